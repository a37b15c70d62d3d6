"""Objectives: which divergence is minimised."""

from ppl_dgp.objectives.power_ep import AlphaDivergence, BlackBoxAlpha, PowerEP

__all__ = ["AlphaDivergence", "BlackBoxAlpha", "PowerEP"]
