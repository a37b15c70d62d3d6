"""Quantiles of y from what S draws of the hidden layers say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Num

from ppl_dgp.gp.emission import Emission
from ppl_dgp.likelihoods import Gaussian as GaussianNoise

#: halvings of an interval, after which 64 bits know it no better
HALVINGS = 60


def has_gaussian_targets(emission: Emission) -> bool:
    """Whether every target is Gaussian given the hidden layers."""
    return all(isinstance(part.likelihood, GaussianNoise) for part in emission.parts)


def mixture_quantiles(
    mean: Float[Array, "S *rows"], variance: Float[Array, "S *rows"], levels: Sequence[float]
) -> Float[Array, "K *rows"]:
    """Of S Gaussians of equal weight: q with mean_s Φ((q - m_s) / σ_s) the level, exact but for rounding.

    It lies between the least and the greatest of their own quantiles, which are one where the Gaussians are, as those
    of a single layer.
    """
    level = jnp.asarray(levels, mean.dtype).reshape(-1, *(1,) * (mean.ndim - 1))
    deviation = jnp.sqrt(variance)
    each = mean + ndtri(level)[:, None] * deviation
    precise = 4.0 * jnp.finfo(mean.dtype).eps

    def apart(state: tuple[Array, Array, Array]) -> Array:
        low, high, number = state
        size = precise * jnp.maximum(jnp.abs(low), jnp.abs(high))
        return (number < HALVINGS) & (high - low > size).any()

    def halved(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, number = state
        middle = 0.5 * (low + high)
        below = ndtr((middle[:, None] - mean) / deviation).mean(1) < level
        return jnp.where(below, middle, low), jnp.where(below, high, middle), number + 1

    low, high, _ = jax.lax.while_loop(apart, halved, (each.min(1), each.max(1), jnp.asarray(0)))
    found: Array = 0.5 * (low + high)
    return found


def drawn_quantiles(draws: Num[Array, "S *rows"], levels: Sequence[float]) -> Float[Array, "K *rows"]:
    """The least of S draws that a share of at least the level does not exceed: of counts a count."""
    order, number = jnp.sort(draws.astype(jnp.result_type(draws, 1.0)), axis=0), len(draws)
    # 0.975 · 200 may be a hair more than 195
    return order[jnp.asarray([max(1, math.ceil(level * number - 1e-6)) - 1 for level in levels])]
