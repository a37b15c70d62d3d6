"""Training on tables: one layer, and where q(h) does not follow f, in closed form, all else by draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array, Shaped
from numpyro.infer import ELBO

from ppl_dgp.fit.closed_bound import CHAINS, COLLAPSES, OF_DESCENT, descended, may_descend
from ppl_dgp.fit.full_batch import BUDGET
from ppl_dgp.fit.jitter import JitterWarning
from ppl_dgp.fit.result import Fit, FitError, checked_data
from ppl_dgp.fit.shallow import shallow_start
from ppl_dgp.fit.stochastic import fit_svi
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.shallow import shallow_of
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.objectives import Collapsed, PowerEP

#: rows, at most, whose kernel expectations are affordable in every iteration, and those of one layer
CLOSED_ROWS, ROWS_OF_ONE = 2000, 10_000
#: iterations of a descent by which starts are compared
TRIAL = 100


def fit_table(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Any,
    objective: ELBO,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int | str = "auto",
    **settings: Any,
) -> Fit:
    """As :func:`ppl_dgp.fit.fit_svi`, but without draws for one layer, and for deep GPs whose q(h) does not follow f.

    Where nothing is drawn nothing need be waited for: with ``steps="auto"``, α = 0, Gaussian noise and all rows at
    once, 10 000 at most, a sparse GP is trained by ``fit_lbfgs``, q(u) at its optimum in closed form (Titsias 2009).
    The parameters that ``MeanField()`` and ``Markov()`` have for each row are slow under Adam: after tens of thousands
    of steps their bound may lie tens of nats below its optimum. Up to 2 000 rows they are trained so too (Damianou and
    Lawrence 2013), the mean field by natural gradients, from the shallow or the usual start, whichever a hundred
    iterations bring lower, and ``Markov()`` from the mean field's optimum.

    :param settings: of :func:`ppl_dgp.fit.fit_svi`; other ones than ``start``, ``tolerance``, ``budget``, ``progress``,
        ``callback``, ``checkpoint`` and ``resume`` are of draws.
    :returns: the fit, its objective the one that is given.
    :raises ValueError: as :func:`ppl_dgp.fit.fit_svi`.
    """
    usual = {name: value for name, value in settings.items() if name != "batch_size" or value is not None}
    if _may_be_closed(guide, objective, steps, usual):
        rows = checked_data(x, y, model)
        if getattr(model, COLLAPSES, False) and len(rows[0]) <= ROWS_OF_ONE:
            return descended(key, model, guide, objective, *rows, **_of_descent(usual))
        chained = guide.hidden in CHAINS and len(rows[0]) <= CLOSED_ROWS
        chained = chained and getattr(objective, "weights", None) is None  # which have no closed form there
        shallow = shallow_of(model, rows[0]) if chained else None
        try:
            if shallow is not None and shallow.closed:
                return _closed(key, model, guide, objective, *rows, usual)
        except ValueError as refusal:
            if not str(refusal).startswith("kernel:"):  # one without closed expectations
                raise
    return fit_svi(key, model, guide, objective, x, y, steps=steps, **settings)


def fit_collapsed(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Guide,
    objective: Collapsed,
    x: ArrayLike,
    y: ArrayLike,
    *,
    steps: int | str = "auto",
    **settings: Any,
) -> Fit:
    """``fit_lbfgs`` on an objective that is closed, with q(u) at its optimum in the fit's parameters.

    A deep GP begins where :func:`fit_table` begins it.

    :param settings: as of :func:`fit_table`; those that are of draws are not looked at.
    """
    rows = checked_data(x, y, model)
    if shallow_of(model, rows[0]) is None:
        return descended(key, model, guide, objective, *rows, steps=steps, **_of_descent(settings))
    return _closed(key, model, guide, objective, *rows, settings, steps)


def _may_be_closed(guide: Any, objective: ELBO, steps: int | str, settings: dict[str, Any]) -> bool:
    """What can be said before the data are looked at."""
    bound = isinstance(objective, PowerEP) and objective.at_alpha(0.0) == objective
    if not bound or objective.propagation == "linearised":
        return False
    return isinstance(guide, Guide) and may_descend(guide, steps, settings)


def _closed(
    key: Shaped[Array, "..."],
    model: Any,
    guide: Guide,
    objective: ELBO,
    x: Array,
    y: Array,
    given: dict[str, Any],
    steps: int | str = "auto",
) -> Fit:
    settings = _of_descent(given)

    def descend(rule: Guide, **own: Any) -> Fit:
        # of layers that depend on each other no natural gradients are known
        natural = rule.hidden == MeanField()
        return descended(key, model, rule, objective, x, y, natural=natural, **own)

    if settings.get("start") is None and not settings.get("resume"):
        settings["start"] = _best_start(key, guide, (x, y), settings, descend)
    return descend(guide, steps=steps, **settings)


def _of_descent(given: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in given.items() if name in OF_DESCENT}
    return settings | {"budget": min(settings.get("budget") or BUDGET, BUDGET)}


def _best_start(
    key: Shaped[Array, "..."],
    guide: Guide,
    rows: tuple[Array, Array],
    settings: dict[str, Any],
    descend: Callable[..., Fit],
) -> Parameters:
    """Of the mean field the lower of two short descents' ends, of a richer rule the mean field's optimum."""
    poorer = replace(guide, hidden=MeanField())
    starts: list[Parameters | None] = [None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # of what is not asked for
        try:
            starts.insert(0, shallow_start(key, guide.model, poorer, *rows))
        except FitError:
            pass
        trials = [descend(poorer, start=start, steps=TRIAL) for start in starts]
        best = min(trials, key=lambda trial: trial.losses[0, -1])
        if guide == poorer:
            return dict(best.params)
        given = {name: settings[name] for name in ("budget", "tolerance") if name in settings}
        optimum = descend(poorer, start=best.params, **given)
    return nested_start(poorer, guide, optimum.params, *rows)
