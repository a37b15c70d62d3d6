"""Objectives: which divergence is minimised."""

from ppl_dgp.objectives.approximate import ApproximatePowerEP
from ppl_dgp.objectives.collapsed import Collapsed, collapsed_energy
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.objectives.importance_weighted import ImportanceWeighted
from ppl_dgp.objectives.power_ep import BlackBoxAlpha, PowerEP

#: the objectives by the names that estimators and the command line give them
OBJECTIVES: dict[str, type[AlphaDivergence]] = {
    "power-ep": PowerEP,
    "black-box-alpha": BlackBoxAlpha,
    "approximate-power-ep": ApproximatePowerEP,
}

__all__ = [
    "OBJECTIVES",
    "AlphaDivergence",
    "ApproximatePowerEP",
    "BlackBoxAlpha",
    "Collapsed",
    "ImportanceWeighted",
    "PowerEP",
    "collapsed_energy",
]
