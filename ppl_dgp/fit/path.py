"""Training along nested families: each begins at the optimum of a poorer one, which it contains.

A richer family that ends below the poorer one it began at has not found its optimum, whatever its losses say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped

from ppl_dgp.checkpoint import INDEX
from ppl_dgp.fit.convergence import Leg
from ppl_dgp.fit.energy import drawn_energies
from ppl_dgp.fit.posterior import shortened
from ppl_dgp.fit.result import Fit, checked_data
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
    key, objective = settings["key"], objective_of(settings.pop("objective"))
    rows = checked_data(settings["x"], settings["y"], settings["model"])
    settings |= {"path": None, "objective": objective}
    fit, values, legs = None, np.empty(0), []
    for each, folder, there in zip(guides, folders, begun, strict=True):
        own = settings | {"guide": each, "checkpoint": folder, "resume": resume and (there or not any(begun))}
        if fit is None:
            fit = train(**own)
            values = bounds(key, fit, *rows)
            continue
        own["start"] = nested_start(fit.guide, each, fit.params, *rows)  # type: ignore[arg-type]
        legs.append(_leg(fit, values))
        fit, of_poorer = train(**own), values
        values = bounds(key, fit, *rows)
        fit = compared(fit, values, of_poorer)
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


def _leg(fit: Fit, values: Float[np.ndarray, " draws"]) -> Leg:
    """What a path keeps of a poorer fit."""
    guide = shortened(fit.guide, without="model")
    return Leg(guide, *_mean_and_error(values), fit.convergence, fit.steps, fit.seconds)


def compared(richer: Fit, values: Float[np.ndarray, " draws"], of_poorer: Float[np.ndarray, " draws"]) -> Fit:
    """The richer fit, whose ``convergence`` says so where it has ended below the poorer one.

    :param values: the ``bounds`` of the richer fit, and those of the poorer one of the same key.
    """
    shortfall, error = _mean_and_error(of_poorer - values)
    if richer.convergence is None or not shortfall > ERRORS * error:
        return richer
    return replace(richer, convergence=replace(richer.convergence, shortfall=shortfall))


def bounds(key: Shaped[Array, "..."], fit: Fit, x: ArrayLike, y: ArrayLike) -> Float[np.ndarray, " draws"]:
    """Minus the loss of a fit in nats over ``DRAWS`` draws, at tables as its model takes them."""
    run = drawn_energies(fit.model, fit.guide, fit.objective, DRAWS)
    return np.asarray(run(key, dict(fit.params), jnp.asarray(x), jnp.asarray(y)), float)


def _mean_and_error(values: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
