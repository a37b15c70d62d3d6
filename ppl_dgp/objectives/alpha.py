"""The order α of a divergence: 0 is the ELBO. It may follow a schedule over the steps of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ppl_dgp.numerics.compatibility import is_traced

#: α of a step, like an optax schedule: ``optax.linear_schedule(0.0, 1.0, 2000)``
AlphaSchedule = Callable[[Any], Any]


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


def checked_alphas(name: str, alpha: Any) -> float | Array:
    """One α, or an array of one per factor (F,); a traced scalar where it is annealed.

    :raises TypeError: if it is neither a number nor an array of numbers.
    :raises ValueError: if one is outside [0, 1], or the array has more than one dimension.
    """
    if not isinstance(alpha, np.ndarray | jax.Array):
        return checked_alpha(name, alpha)
    if alpha.dtype.kind not in "fiu" or alpha.ndim > 1:
        raise ValueError(
            f"{name}: alpha: found an array {alpha.shape} of {alpha.dtype}, expected numbers of shape (F,), one per "
            "factor"
        )
    # what is traced has no value yet
    if not is_traced(alpha):
        values = np.ravel(alpha)
        outside = np.flatnonzero(~((values >= 0.0) & (values <= 1.0)))
        if outside.size:
            raise ValueError(
                f"{name}: alpha: found {values[outside[0]]} at position {outside[0]}, expected numbers in [0, 1]"
            )
    return jnp.asarray(alpha, jnp.result_type(float))
