"""The order α of a divergence: 0 is the ELBO. It may follow a schedule over the steps of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

#: α of a step, like an optax schedule: ``optax.linear_schedule(0.0, 1.0, 2000)``
Schedule = Callable[[Any], Any]


def checked_alpha(name: str, alpha: Any) -> float:
    """α of the objective ``name``.

    :raises TypeError: if it is not a number.
    :raises ValueError: if it is outside [0, 1].
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise TypeError(f"{name}: alpha: found {alpha!r}, expected a number in [0, 1]")
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"{name}: alpha: found {alpha}, expected a number in [0, 1]; 0 is the ELBO")
    return float(alpha)


def is_zero(alpha: float | Array) -> bool:
    """Whether α is 0 for certain, so that the ELBO's branch can be taken; a traced α is not."""
    return not isinstance(alpha, jax.Array) and alpha == 0.0
