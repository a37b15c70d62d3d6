"""What the models of the zoo share besides: noise, the shape of targets."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Num
from numpyro.distributions import constraints


def noise_variance(noise: Any, start: float = 0.1) -> Array:
    """The observation noise: the site ``likelihood/noise`` where it is learnt, else the given number or rows."""
    if noise is None:
        variance: Array = numpyro.param(
            "likelihood/noise", jnp.asarray(start), constraint=constraints.softplus_positive
        )
        return variance
    return jnp.asarray(noise)


def rows_of_noise(variance: Array, index: Array | None, observed: bool) -> Array:
    """Noise for the rows at hand: (N,) given per training row is gathered, and new rows get its mean; else as it is."""
    if variance.ndim != 1:
        return variance
    if not observed:
        return variance.mean()
    return variance[:, None] if index is None else variance[index][:, None]


def as_columns(x: Array, y: Array | None, num_outputs: int | None = None) -> Num[Array, "B P"] | None:
    """Targets as (B, P).

    :raises ValueError: if x is not a matrix, or y does not fit x or ``num_outputs``.
    """
    if jnp.ndim(x) != 2:
        raise ValueError(
            f"x: found shape {jnp.shape(x)}, expected (N, D); give a column per input, x[:, None]"
        )
    if y is None:
        return None
    columns = y[:, None] if jnp.ndim(y) == 1 else y
    if columns.shape[0] != x.shape[0]:
        raise ValueError(
            f"y: found {columns.shape[0]} rows, expected {x.shape[0]} as x has; check how they were cut"
        )
    if num_outputs is not None and columns.shape[1] != num_outputs:
        raise ValueError(
            f"y: found {columns.shape[1]} columns, expected {num_outputs}; make the model with num_outputs="
            f"{columns.shape[1]}"
        )
    return columns
