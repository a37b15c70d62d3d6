"""Statistics of pairs of inducing inputs, of which the lower triangle is held where they are symmetric."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations.blocks import map_rows
from ppl_dgp.numerics.gaussian import Gaussian


def triangle_places(size: int) -> np.ndarray:
    """Where each entry of a symmetric (M, M) stands among those of its lower triangle, row by row."""
    row, column = np.indices((size, size))
    high, low = np.maximum(row, column), np.minimum(row, column)
    positions: np.ndarray = high * (high + 1) // 2 + low
    return positions


def of_squares(matrices: Float[Array, "P M M"]) -> Float[Array, "K P"]:
    """What whole matrices of pairs (m, m') are multiplied with, all outputs in one product."""
    return matrices.reshape(len(matrices), -1).T


def of_pairs(matrices: Float[Array, "P M M"]) -> Float[Array, "K P"]:
    """The same of lower triangles: what is above the diagonal counts with what is below."""
    size = matrices.shape[1]
    both = matrices + jnp.where(jnp.eye(size, dtype=bool), 0.0, jnp.swapaxes(matrices, 1, 2))
    first, second = np.tril_indices(size)
    return both[:, first, second].T


def contracted_with(
    statistics: Callable[[Gaussian], Array],
    matrix: Float[Array, "K P"],
    inputs: Gaussian,
    block: int | None,
    row_size: int | None = None,
) -> Float[Array, "B P"]:
    """Statistics of pairs, (B, K) or (B, M, M), times a matrix, some rows at a time."""

    def rows(part: Gaussian) -> Array:
        found = statistics(part)
        return jnp.matmul(found.reshape(len(found), -1), matrix, precision="highest")

    return map_rows(rows, inputs, len(matrix) if row_size is None else row_size, block)
