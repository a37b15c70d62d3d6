"""Objectives: which divergence is minimised."""

from ppl_dgp.objectives.capabilities import Capabilities, capabilities_of
from ppl_dgp.objectives.closed_form import collapsed_energy, collapsed_posterior
from ppl_dgp.objectives.collapsed import Collapsed
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.objectives.importance_weighted import ImportanceWeighted
from ppl_dgp.objectives.power_ep import BlackBoxAlpha, PowerEP
from ppl_dgp.objectives.research.approximate_power_ep import ApproximatePowerEP
from ppl_dgp.objectives.research.pathwise import PathWarning, Pathwise
from ppl_dgp.objectives.site_energy import SiteEnergy

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
    "Capabilities",
    "Collapsed",
    "ImportanceWeighted",
    "PathWarning",
    "Pathwise",
    "PowerEP",
    "SiteEnergy",
    "capabilities_of",
    "collapsed_energy",
    "collapsed_posterior",
]
