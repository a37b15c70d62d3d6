"""Objectives: which divergence is minimised."""

from numpyro.infer import ELBO

from ppl_dgp.guides.names import named
from ppl_dgp.objectives.capabilities import Capabilities, capabilities_of
from ppl_dgp.objectives.closed_form import collapsed_energy, collapsed_posterior
from ppl_dgp.objectives.collapsed import Collapsed
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.objectives.importance_weighted import ImportanceWeighted
from ppl_dgp.objectives.power_ep import BlackBoxAlpha, PowerEP
from ppl_dgp.objectives.research.approximate_power_ep import ApproximatePowerEP
from ppl_dgp.objectives.research.ensemble_kalman import EnsembleKalman
from ppl_dgp.objectives.research.pathwise import PathWarning, Pathwise
from ppl_dgp.objectives.site_energy import SiteEnergy
from ppl_dgp.objectives.weighted_kl import WeightedKL

#: the objectives by the names that estimators and the command line give them
OBJECTIVES: dict[str, type[AlphaDivergence]] = {
    "power-ep": PowerEP,
    "black-box-alpha": BlackBoxAlpha,
    "approximate-power-ep": ApproximatePowerEP,
}


def objective_of(value: str | ELBO) -> ELBO:
    """The objective that a name of ``OBJECTIVES`` stands for, at α = 0; what is no name stands for itself.

    :raises ValueError: for a name that is not among them.
    :raises TypeError: for what has no loss, or is a class.
    """
    if isinstance(value, type):
        raise TypeError(
            f"objective: found the class {value.__name__}, expected an objective; call it, {value.__name__}()"
        )
    if not isinstance(value, str) and not callable(getattr(value, "loss", None)):
        raise TypeError(f"objective: found {value!r}, expected an ELBO, or one of {', '.join(OBJECTIVES)}")
    kind = named("objective", value, OBJECTIVES)
    objective: ELBO = kind() if isinstance(value, str) else kind
    return objective


__all__ = [
    "OBJECTIVES",
    "AlphaDivergence",
    "ApproximatePowerEP",
    "BlackBoxAlpha",
    "Capabilities",
    "Collapsed",
    "EnsembleKalman",
    "ImportanceWeighted",
    "PathWarning",
    "Pathwise",
    "PowerEP",
    "SiteEnergy",
    "WeightedKL",
    "capabilities_of",
    "collapsed_energy",
    "collapsed_posterior",
    "objective_of",
]
