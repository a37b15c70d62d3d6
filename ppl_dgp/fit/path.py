"""Training along nested families: each begins at the optimum of a poorer one, which it contains.

A richer family that ends below the poorer one it began at has not found its optimum, whatever its losses say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from numpyro.infer import ELBO

from ppl_dgp.checkpoint import INDEX
from ppl_dgp.fit.convergence import Leg
from ppl_dgp.fit.posterior import shortened
from ppl_dgp.fit.result import Fit, checked_data
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.guides import HIDDEN_RULES, Guide, HiddenRule
from ppl_dgp.guides.names import named
from ppl_dgp.guides.nesting import check_nested, nested_start
from ppl_dgp.objectives import objective_of

#: draws of a difference of bounds, and its standard errors that are worth a word
DRAWS, ERRORS = 100, 2.0


def fit_along(
    path: Sequence[HiddenRule | Guide | str],
    guide: Callable[..., Any],
    train: Callable[..., Fit],
    **settings: Any,
) -> Fit:
    """Train every guide of a path by ``train(guide=…, start=…)``, each from the optimum of the one before it.

    :param path: rules of the hidden layers, their names, or guides, the poorest first; the last may be that of
        ``guide``, which is the last to be trained in any case.
    :param settings: of ``train``; a ``checkpoint`` has a directory for each.
    :returns: the last fit; its ``path`` tells of the others.
    :raises TypeError: for a ``guide`` that is not made of rules.
    :raises ValueError: if a guide does not contain the one before it.
    """
    guides = guides_of(path, guide)
    place, resume = settings.pop("checkpoint"), settings.pop("resume")
    folders = [None if place is None else Path(place) / str(number) for number in range(len(guides))]
    begun = [folder is not None and (folder / INDEX).is_file() for folder in folders]
    fit, legs = None, []
    objective = objective_of(settings.pop("objective"))
    settings |= {"path": None, "objective": objective}
    for each, folder, there in zip(guides, folders, begun, strict=True):
        own = settings | {"guide": each, "checkpoint": folder, "resume": resume and (there or not any(begun))}
        if fit is None:
            fit = train(**own)
            continue
        rows = checked_data(settings["x"], settings["y"], settings["model"])
        own["start"] = nested_start(fit.guide, each, fit.params, *rows)  # type: ignore[arg-type]
        legs.append(leg_of(settings["key"], fit, *rows))
        poorer, fit = fit, train(**own)
        fit = compared(settings["key"], poorer, fit, *rows)
    assert fit is not None
    return replace(fit, path=tuple(legs))


def guides_of(path: Sequence[HiddenRule | Guide | str], guide: Callable[..., Any]) -> list[Guide]:
    """The guides of a path, of one model; refused where one does not contain the one before it."""
    if not isinstance(guide, Guide):
        raise TypeError(
            f"guide: found a {type(guide).__name__} with a path, expected a Guide; leave path out"
        )
    if isinstance(path, str) or len(path) == 0:
        raise ValueError(f"path: found {path!r}, expected rules or guides, the poorest first; leave it out")
    guides = [
        each if isinstance(each, Guide) else replace(guide, hidden=named("path", each, HIDDEN_RULES))
        for each in path
    ]
    if guides[-1] != guide:
        guides.append(guide)
    for poorer, richer in zip(guides, guides[1:], strict=False):
        check_nested(poorer, richer)
    return guides


def leg_of(key: Shaped[Array, "..."], fit: Fit, x: Array, y: Array) -> Leg:
    """What a path keeps of a poorer fit."""
    values = bounds(key, fit, x, y)
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    return Leg(
        shortened(fit.guide, without="model"),
        float(values.mean()),
        error,
        fit.convergence,
        fit.steps,
        fit.seconds,
    )


def compared(key: Shaped[Array, "..."], poorer: Fit, richer: Fit, x: ArrayLike | None, y: ArrayLike) -> Fit:
    """The richer fit, whose ``convergence`` says so where it has ended below the poorer one."""
    difference = bounds(key, poorer, x, y) - bounds(key, richer, x, y)
    shortfall, error = float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))
    if richer.convergence is None or not shortfall > ERRORS * error:
        return richer
    return replace(richer, convergence=replace(richer.convergence, shortfall=shortfall))


def bounds(
    key: Shaped[Array, "..."], fit: Fit, x: ArrayLike | None, y: ArrayLike
) -> Float[np.ndarray, " draws"]:
    """Minus the loss of a fit in nats, for each of ``DRAWS`` keys, which are the same for equal ``key``."""
    rows = checked_data(x, y, fit.model)
    keys = jax.random.split(key, DRAWS)
    return -np.asarray(_losses(fit.model, fit.guide, fit.objective)(keys, dict(fit.params), *rows), float)


@lru_cache(maxsize=32)
def _losses(model: Model, guide: Model, objective: ELBO) -> Callable[..., Array]:
    def program(keys: Array, params: Parameters, x: Array, y: Array) -> Array:
        values: Array = jax.lax.map(lambda key: objective.loss(key, params, model, guide, x, y), keys)
        return values

    return jax.jit(program)
