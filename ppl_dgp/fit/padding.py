"""Tables of different lengths, and the states of their fits, made equal in shape."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped


class UnequalLengthError(ValueError):
    """Fits that cannot train side by side, their tables being of different length."""


def longer(table: Shaped[Array, "N ..."], rows: int, axis: int = 0) -> Shaped[Array, "..."]:
    """The same, its rows repeated in turn until there are so many: values that are possible."""
    return table if table.shape[axis] == rows else jnp.take(table, np.arange(rows) % table.shape[axis], axis)


def shorter(value: Shaped[Array, "..."], shape: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Its first entries along every axis, so that it has a shape."""
    return value[tuple(map(slice, shape))]


def stacked(states: Sequence[Any], counts: Sequence[int]) -> Any:
    """The members' states, leaf by leaf, with a leading axis; an axis that is as long as each table is lengthened.

    :raises UnequalLengthError: where shapes differ in another way.
    """

    def stack(*leaves: Any) -> Array:
        shapes = [np.shape(leaf) for leaf in leaves]
        if len({len(shape) for shape in shapes}) == 1:
            for axis, sizes in enumerate(zip(*shapes, strict=True)):
                if len(set(sizes)) > 1 and sizes == tuple(counts):
                    leaves = tuple(longer(leaf, max(counts), axis) for leaf in leaves)
        if len({np.shape(leaf) for leaf in leaves}) > 1:
            raise UnequalLengthError(
                f"xs, ys: found parameters of shapes {sorted(set(shapes))}, expected the same of all members but for "
                "those with a row for each datum; fit one by one"
            )
        return jnp.stack(leaves)

    return jax.tree.map(stack, *states)
