"""Objectives: which divergence is minimised."""

from ppl_dgp.objectives.closed_form import collapsed_energy, collapsed_posterior
from ppl_dgp.objectives.collapsed import Collapsed
from ppl_dgp.objectives.power_ep import AlphaDivergence, BlackBoxAlpha, PowerEP
from ppl_dgp.objectives.site_energy import SiteEnergy

#: the objectives by the names that estimators and the command line give them
OBJECTIVES: dict[str, type[AlphaDivergence]] = {"power-ep": PowerEP, "black-box-alpha": BlackBoxAlpha}

__all__ = [
    "OBJECTIVES",
    "AlphaDivergence",
    "BlackBoxAlpha",
    "Collapsed",
    "PowerEP",
    "SiteEnergy",
    "collapsed_energy",
    "collapsed_posterior",
]
