"""Targets of numbers: what they may be under a likelihood, and what is asked where they may be classes as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
from jaxtyping import Float

from ppl_dgp.cli.classes import TAKE_CLASSES
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.names import OWN_SCALE, WITH_LIKELIHOOD
from ppl_dgp.cli.uses import COUNT_LIKELIHOODS, OWN_ROWS
from ppl_dgp.data import Standardiser, Table
from ppl_dgp.likelihoods import LIKELIHOODS, likelihood_class

#: whole numbers whose mean is more are as good as real ones
MOST_COUNTED = 100.0


def as_they_are(count: int) -> Standardiser:
    """The units of targets that mean nothing in others."""
    return Standardiser(np.zeros(count), np.ones(count))


def check_support(
    settings: Any, names: Collection[str], y: Float[np.ndarray, "N P"] | None, source: str
) -> None:
    """Raise BadInput for a target that its likelihood does not know; NaN is a missing one."""
    if y is None or settings.observed not in OWN_SCALE:
        return
    cls: Any = likelihood_class(LIKELIHOODS[settings.observed])
    # what is learnt of it does not decide what targets may be
    learnt = (each for each in dataclasses.fields(cls) if "start" in each.metadata)
    likelihood = cls(**{each.name: each.metadata["start"] for each in learnt})
    for name, column in zip(names, y.T, strict=True):
        there = column[~np.isnan(column)]
        wrong = ~np.asarray(likelihood.support(there), bool)
        if wrong.any():
            others = "choose another --model" if settings.model in OWN_ROWS else "choose another --likelihood"
            raise BadInput(
                f"target {name!r} of {source} has {there[wrong][0]:g}, but --likelihood {settings.observed} is of "
                f"{likelihood.expects.rstrip(',')}",
                f"take such rows out, or {others}",
            )


def whole_targets(y: Float[np.ndarray, "N P"] | None) -> Float[np.ndarray, "N P"] | None:
    """The targets that predictions are scored by, rows that lack one without any; None if no row has them all."""
    if y is None:
        return None
    lacking = np.isnan(y).any(1)
    return None if lacking.all() else np.where(lacking[:, None], np.nan, y)


def unscored_notes(
    y: Float[np.ndarray, "N P"] | None, scored: Float[np.ndarray, "N P"] | None
) -> tuple[str, ...]:
    """A note on the rows to predict that have targets, but not all that a score takes."""
    if y is None:
        return ()
    count = len(y) if scored is None else int(np.isnan(scored).all(1).sum())
    return (f"{count} of {len(y)} rows lack a target: predicted, not scored",) if count else ()


def counts_notes(settings: Any, table: Table, given: Collection[str]) -> tuple[str, ...]:
    """A note on targets that look like counts, of whom it was not said that their noise is Gaussian."""
    if "likelihood" in given or settings.model in OWN_ROWS or table.labels:
        return ()
    names = [
        name for name, values in zip(table.target_names, table.y.T, strict=True) if _look_like_counts(values)
    ]
    if not names:
        return ()
    takers = "" if settings.model in WITH_LIKELIHOOD else f" (of a {', '.join(WITH_LIKELIHOOD)})"
    return (
        f"{', '.join(names)} of {table.name} may be of counts, whole numbers of at least 0, under Gaussian noise: "
        f"--likelihood {' or '.join(COUNT_LIKELIHOODS)} is of counts{takers}",
    )


def _look_like_counts(values: Float[np.ndarray, " N"]) -> bool:
    """Whether small whole numbers of at least 0, of more than two values."""
    there = values[~np.isnan(values)]
    whole = bool((there >= 0.0).all() and (there == np.round(there)).all())
    return whole and len(np.unique(there)) > 2 and float(there.mean()) < MOST_COUNTED


def check_meaning(settings: Any, table: Table, given: Collection[str]) -> None:
    """Ask, by raising BadInput, whether targets of 0 and 1 alone are classes or numbers, unless that was said."""
    if "likelihood" in given or settings.model in OWN_ROWS or table.labels:
        return
    columns = zip(table.target_names, table.y.T, strict=True)
    both = [name for name, values in columns if set(np.unique(values[~np.isnan(values)])) == {0.0, 1.0}]
    if not both:
        return
    classes = "--likelihood bernoulli for two classes"
    if settings.model not in TAKE_CLASSES:
        classes += f" (of a {', '.join(TAKE_CLASSES[:2])} or {TAKE_CLASSES[2]})"
    raise BadInput(
        f"{', '.join(both)} of {table.name} holds 0 and 1 alone, which may be classes or numbers",
        f"say which: {classes}, --likelihood gaussian for numbers",
    )
