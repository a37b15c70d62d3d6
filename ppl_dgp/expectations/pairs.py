"""Statistics of pairs of inducing inputs, of which the lower triangle is held where they are symmetric."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations.blocks import map_rows, sum_rows
from ppl_dgp.numerics.gaussian import Gaussian

#: of a few rows (B, M, M), or their lower triangles row by row, (B, M(M+1)/2), and whether it is these
PairStatistics = tuple[Callable[[Gaussian], Array], bool]


def summed_pairs(
    statistics: PairStatistics,
    inputs: Gaussian,
    weights: Float[Array, " B"] | Float[Array, "B C"],
    num_inducing: int,
    row_size: int,
    block: int | None,
) -> Float[Array, "*C M M"]:
    """Their sums over rows with weights, a block of rows at a time."""
    of_rows, triangles = statistics
    if not triangles:
        return sum_rows(of_rows, inputs, weights, row_size, block)
    # where each entry of a symmetric (M, M) stands in its lower triangle
    row, column = np.indices((num_inducing, num_inducing))
    high, low = np.maximum(row, column), np.minimum(row, column)
    return sum_rows(of_rows, inputs, weights, row_size // 2, block)[..., high * (high + 1) // 2 + low]


def contracted_pairs(
    statistics: PairStatistics,
    inputs: Gaussian,
    matrices: Float[Array, "P M M"],
    row_size: int,
    block: int | None,
) -> Float[Array, "B P"]:
    """Their products with matrices, all outputs in one, a block of rows at a time."""
    of_rows, triangles = statistics
    flat = matrices.reshape(len(matrices), -1).T
    if triangles:
        # what is above the diagonal counts with what is below
        size = matrices.shape[1]
        both = matrices + jnp.where(jnp.eye(size, dtype=bool), 0.0, jnp.swapaxes(matrices, 1, 2))
        first, second = np.tril_indices(size)
        flat, row_size = both[:, first, second].T, row_size // 2

    def rows(part: Gaussian) -> Array:
        found = of_rows(part)
        return jnp.matmul(found.reshape(len(found), -1), flat, precision="highest")

    return map_rows(rows, inputs, row_size, block)
