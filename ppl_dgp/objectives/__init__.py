"""Objectives: which divergence is minimised."""

from ppl_dgp.objectives.collapsed import Collapsed, collapsed_energy
from ppl_dgp.objectives.power_ep import AlphaDivergence, BlackBoxAlpha, PowerEP

__all__ = ["AlphaDivergence", "BlackBoxAlpha", "Collapsed", "PowerEP", "collapsed_energy"]
