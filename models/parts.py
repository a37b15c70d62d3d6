"""What the models of the zoo share besides: noise, the shape of targets."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Num
from numpyro.distributions import constraints

from ppl_dgp.gp.wrappers import data_plate


def noise_variance(noise: Any, start: float = 0.1) -> Array:
    """The observation noise: the site ``likelihood/noise`` where it is learnt, else the given number or rows."""
    if noise is None:
        variance: Array = numpyro.param(
            "likelihood/noise", jnp.asarray(start), constraint=constraints.positive
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


def rows_plate(
    x: Array, index: Array | None, size: int | None, subsample_size: int | None = None
) -> numpyro.plate:
    """The plate of the rows at hand, of a table of ``size`` rows.

    :raises ValueError: for a minibatch of a table of unknown size, whose rows would count once each, or a wrong one.
    """
    rows = x.shape[0]
    if index is not None and size is None:
        raise ValueError(
            f"size: found none beside an index of {index.shape[0]} rows, expected the number of rows that they are "
            "drawn from; give size=N"
        )
    if index is not None and index.shape[0] != rows:
        raise ValueError(f"index: found {index.shape[0]} rows, expected {rows} as x has")
    if size is not None and size < rows:
        raise ValueError(
            f"size: found {size} for {rows} rows, expected at least as many; give that of the table"
        )
    return data_plate(size or rows, index, subsample_size)


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
