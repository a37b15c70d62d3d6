"""Adam (Kingma and Ba, ICLR 2015) whose steps are counted row by row.

What has a row per datum is moved only by minibatches that have the row, and its averages are of so many gradients as
it has seen. Where all rows move together the numbers are those of ``optax.adam``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

#: decays of the averages of gradients and of their squares, and what is added to the root of the latter
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


class AdamState(NamedTuple):
    """Of every parameter how many steps each of its rows has taken, and the averages of gradients and squares."""

    count: Any
    mean: Any
    square: Any


def scale_by_adam() -> optax.GradientTransformation:
    """The direction of Adam, of length about 1."""

    def init(params: Any) -> AdamState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return AdamState(
            jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[:1], jnp.int32), params), zeros(), zeros()
        )

    def update(slopes: Any, state: Any, params: Any = None) -> tuple[Any, AdamState]:
        count = jax.tree.map(optax.safe_increment, state.count)
        mean = jax.tree.map(lambda g, m: (1.0 - MEAN_DECAY) * g + MEAN_DECAY * m, slopes, state.mean)
        square = jax.tree.map(
            lambda g, v: (1.0 - SQUARE_DECAY) * jnp.square(g) + SQUARE_DECAY * v, slopes, state.square
        )
        direction = jax.tree.map(_direction, count, mean, square)
        return direction, AdamState(count, mean, square)

    return optax.GradientTransformation(init, update)


def adam_at(learning_rate: float | Array | optax.Schedule) -> optax.GradientTransformation:
    """Adam of a learning rate, which may be traced."""
    return optax.chain(scale_by_adam(), optax.scale_by_learning_rate(learning_rate))


#: the same object for the same learning rate, so that programs are found again
adam = lru_cache(maxsize=64)(adam_at)


def _direction(count: Array, mean: Array, square: Array) -> Array:
    by_row = count.reshape(count.shape + (1,) * (mean.ndim - count.ndim))
    unbiased = lambda value, decay: value / (1.0 - decay**by_row).astype(value.dtype)
    root: Array = jnp.sqrt(unbiased(square, SQUARE_DECAY)) + EPSILON
    direction: Array = unbiased(mean, MEAN_DECAY) / root
    return direction
