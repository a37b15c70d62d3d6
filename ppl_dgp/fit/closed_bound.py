"""Descent of a bound that is closed with q(u) at its optimum: of one layer, or of q(h) that does not follow f."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array, Shaped
from numpyro.infer import ELBO

from ppl_dgp.fit.full_batch import fit_lbfgs
from ppl_dgp.fit.result import Fit
from ppl_dgp.guides import FullRank, Guide, Markov, MeanField, Optimal
from ppl_dgp.objectives import Collapsed

#: settings that a descent has too, and those that say nothing of draws while they are as usual
OF_DESCENT = {"start", "progress", "checkpoint", "resume", "tolerance", "budget", "callback"}
USUAL = {"restarts": 1, "learning_rate": None}
#: rules of hidden variables that do not follow f
CHAINS = Markov(), MeanField()
#: the property by which a model of one layer says that its bound is closed
COLLAPSES = "collapses"
_COLLAPSED = Collapsed()


def may_descend(guide: Guide, steps: int | str, settings: dict[str, Any]) -> bool:
    """Whether q(u) is free, nothing else is drawn, and nothing is asked for that is of draws."""
    usual = all(settings.get(name, value) == value for name, value in USUAL.items())
    known = settings.keys() <= OF_DESCENT | USUAL.keys()
    free = guide.others is None and guide.inducing == FullRank()
    return steps == "auto" and usual and known and free


def descended(
    key: Shaped[Array, "..."],
    model: Any,
    guide: Guide,
    objective: ELBO,
    x: ArrayLike | None,
    y: ArrayLike,
    **settings: Any,
) -> Fit:
    """The fit that ``fit_lbfgs`` ends at, under the guide and the objective that are given."""
    collapsed = replace(guide, inducing=Optimal())
    bound = objective
    if not isinstance(objective, Collapsed):
        bound = _COLLAPSED.weighted(getattr(objective, "weights", None))
    fit = fit_lbfgs(key, model, x, y, guide=collapsed, objective=bound, **settings)
    return replace(fit, guide=guide, objective=objective)
