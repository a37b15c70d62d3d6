"""Power means (1/α) log E[p^α] and what they need: E[log p] at α = 0, and no cancellation on the way there.

α is a number, for which 0 is a branch of its own, or an array: traced where it is annealed, or one per datum.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

Alpha = float | Array


def is_number(alpha: Alpha, value: float) -> bool:
    """Whether α is a number, not an array, and is ``value``: then a closed form may stand in its place."""
    return isinstance(alpha, int | float) and alpha == value


def log1p_ratio(alpha: Alpha, x: Array) -> Array:
    """log(1 + αx) / α, and x at α = 0."""
    if isinstance(alpha, int | float):
        return x if alpha == 0.0 else jnp.log1p(alpha * x) / alpha
    safe = jnp.where(alpha == 0.0, 1.0, alpha)
    return jnp.where(alpha == 0.0, x, jnp.log1p(safe * x) / safe)


def log_power_mean(
    log_p: Float[Array, "K *rows"], alpha: Alpha, log_weights: Float[Array, "K *#rows"] | None = None
) -> Float[Array, "*rows"]:
    """(1/α) log Σ_k w_k p_k^α over the first axis, and Σ_k w_k log p_k at α = 0.

    :param log_p: log p_k; −∞ is allowed where α is positive.
    :param alpha: broadcasts against the other axes.
    :param log_weights: logarithms of weights that sum to 1; equal ones if not given.
    """
    count = log_p.shape[0]
    if log_weights is None:
        log_weights = jnp.full((count,) + (1,) * (log_p.ndim - 1), -jnp.log(float(count)), log_p.dtype)
    # a weight that underflows to 0 takes no −∞ into the sum, and −∞ no NaN into the gradient of a weight
    weights, possible = jnp.exp(log_weights), log_p > -jnp.inf
    centre = (weights * jnp.where(possible, log_p, 0.0)).sum(0)
    centre = jnp.where(((weights > 0.0) & ~possible).any(0), -jnp.inf, centre)
    if is_number(alpha, 0.0):
        return centre
    safe = jnp.where(jnp.asarray(alpha) == 0.0, 1.0, alpha)
    # log E exp(α log p) loses eps / α to rounding; around E log p, while α |log p − E log p| is small, it does not
    difference = log_p - centre
    near = jnp.isfinite(centre) & (jnp.abs(safe * difference).max(0) < 1.0)
    inside = jnp.where(near, difference, 0.0)
    close = jnp.where(near, centre, 0.0) + jnp.log1p((weights * jnp.expm1(safe * inside)).sum(0)) / safe
    exponent = jnp.where(possible, log_weights + safe * jnp.where(possible, log_p, 0.0), -jnp.inf)
    far = logsumexp(jnp.where(near, 0.0, exponent), axis=0) / safe
    mean = jnp.where(near, close, far)
    return mean if isinstance(alpha, int | float) else jnp.where(jnp.asarray(alpha) == 0.0, centre, mean)


def log_det_ratio(
    alpha: Alpha, matrix: Float[Array, "*batch S S"], log_det: Float[Array, "*#batch"]
) -> Float[Array, "*batch"]:
    """(1/α) log |I + αX| for symmetric X, given that logarithm, and tr X at α = 0.

    Where α|X| is small by its series, which begins with tr X: the quotient would lose all digits.

    :param alpha: a number, or broadcasts against the batch.
    """
    square = matrix @ matrix
    first, second = jnp.trace(matrix, axis1=-2, axis2=-1), jnp.trace(square, axis1=-2, axis2=-1)
    third, fourth = (square * matrix).sum((-2, -1)), jnp.square(square).sum((-2, -1))
    series = first - alpha * (second / 2 - alpha * (third / 3 - alpha * fourth / 4))
    # the error of the series is (α|X|)⁴/5, that of the quotient eps / α|X|, both relative
    near = jnp.square(alpha) * second < jnp.finfo(matrix.dtype).eps ** 0.4
    return jnp.where(near, series, log_det / jnp.where(near, 1.0, alpha))
