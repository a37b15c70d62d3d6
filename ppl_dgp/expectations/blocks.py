"""Work on many rows a block at a time, so that what a block needs is held once, in the gradient too."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.numerics.gaussian import Gaussian

#: numbers that one block may hold, 2 MB in 64 bits: about the cache of a core
BLOCK_NUMBERS = 2**18


def map_rows(
    function: Callable[[Gaussian], Array], inputs: Gaussian, row_size: int, block: int | None = None
) -> Array:
    """``function`` of the rows, computed block by block; its result has a leading axis of rows."""
    rows = inputs.mean.shape[0]
    length = _length(rows, row_size, block)
    if length >= rows:
        return function(inputs)
    results = jax.lax.map(
        jax.checkpoint(lambda part: function(Gaussian(*part)), prevent_cse=False),
        (_cut(inputs.mean, length, "edge"), _cut(inputs.scale, length, "edge")),
    )
    rows_of_blocks: Array = results.reshape(-1, *results.shape[2:])[:rows]
    return rows_of_blocks


def sum_rows(
    function: Callable[[Gaussian], Array],
    inputs: Gaussian,
    weights: Float[Array, " B"] | Float[Array, "B C"],
    row_size: int,
    block: int | None = None,
) -> Array:
    """Σ_b w_b function_b, one for each column of weights.

    :param function: of a few rows, its values with a leading axis of rows.
    """
    rows = inputs.mean.shape[0]
    length = _length(rows, row_size, block)

    def weighted(mean: Array, scale: Array, weights: Array) -> Array:
        return jnp.tensordot(weights.T, function(Gaussian(mean, scale)), axes=1, precision="highest")

    if length >= rows:
        return weighted(inputs.mean, inputs.scale, weights)
    weighted = jax.checkpoint(weighted, prevent_cse=False)
    # the rows that fill the last block repeat a real one, with weight 0
    parts = (_cut(inputs.mean, length, "edge"), _cut(inputs.scale, length, "edge"), _cut(weights, length))
    shape = jax.eval_shape(weighted, *(part[0] for part in parts))
    start = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(lambda total, part: (total + weighted(*part), None), start, parts)[0]


def _length(rows: int, row_size: int, block: int | None) -> int:
    """Rows in a block: blocks of nearly one length, none longer than asked for."""
    if block is not None and block < 1:
        raise ValueError(f"block: found {block}, expected a positive number of rows, or None for a default")
    longest = max(1, BLOCK_NUMBERS // max(1, row_size)) if block is None else block
    return -(-rows // max(1, -(-rows // longest)))


def _cut(array: Array, length: int, mode: str = "constant") -> Array:
    """The array (B, …) as blocks (K, length, …), filled up with copies of its last row or with 0."""
    rows = array.shape[0]
    missing = -rows % length
    padding = ((0, missing), *((0, 0),) * (array.ndim - 1))
    return jnp.pad(array, padding, mode=mode).reshape(-1, length, *array.shape[1:])
