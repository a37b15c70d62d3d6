r"""Kalman's filter and smoother of a linear-Gaussian chain: what linear observations say of its states, in O(T).

.. math::
    y_t = C x_t + d + R e_t

The posterior given y is again a forward chain, found by one backward pass of information (Fraser & Potter 1969). Shapes
as in :mod:`ppl_dgp.state_space.linear_gaussian_chain`; P observed dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ppl_dgp.numerics.linalg import inverse_lower, lower_inverse_root
from ppl_dgp.state_space.linear_gaussian_chain import (
    LinearGaussianChain,
    apply,
    log_det,
    propagate,
    recursion,
    time_first,
    times,
    transposed,
)


class KalmanFiltered(NamedTuple):
    """Moments of each x_t given y_0 … y_t, and log p(y_t | y_0 … y_{t−1}), whose sum is the log evidence."""

    means: Float[Array, "*batch states Q"]
    covariances: Float[Array, "*batch states Q Q"]
    log_predictive: Float[Array, "*batch states"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearEmission:
    """y_t = C x_t + d + R e. Leading axes broadcast against (*batch, T + 1): one for all steps, or one for each.

    :param matrix: C.
    :param offset: d.
    :param scale_tril: R, the lower Cholesky factor of the noise covariance.
    """

    matrix: Float[Array, "*#steps P Q"]
    offset: Float[Array, "*#steps P"]
    scale_tril: Float[Array, "*#steps P P"]


def filtered(
    chain: LinearGaussianChain,
    observations: Float[Array, "*batch states P"],
    emission: LinearEmission,
    mask: Bool[Array, "*#batch states P"] | None = None,
) -> KalmanFiltered:
    """Kalman's filter, in Joseph's form; for the arguments and errors see :func:`smoothed_posterior`."""
    observed = _emission_terms(chain, observations, emission, mask)

    def step(state: Any, turn: Any) -> Any:
        moves, (h, y, log_norm) = turn
        mean, covariance = propagate(*state, *moves)
        gain = times(covariance, transposed(h))
        root = jnp.linalg.cholesky(_identity(h) + times(h, gain))
        inverse = inverse_lower(root)
        gain = times(gain, transposed(inverse), inverse)
        error = y - apply(h, mean)
        keep = _identity(gain) - times(gain, h)
        mean = mean + apply(gain, error)
        covariance = times(keep, covariance, transposed(keep)) + times(gain, transposed(gain))
        surprise = 0.5 * jnp.square(apply(inverse, error)).sum(-1) + log_det(root)
        return (mean, covariance), (mean, covariance, log_norm - surprise)

    slopes, offsets, scales = time_first(*chain.steps)
    turns = (slopes, offsets, times(scales, transposed(scales))), observed
    means, covariances, log_predictive = jax.lax.scan(step, _nothing(chain, observed), turns)[1]
    means, covariances = jnp.moveaxis(means, 0, -2), jnp.moveaxis(covariances, 0, -3)
    return KalmanFiltered(means, covariances, jnp.moveaxis(log_predictive, 0, -1))


def smoothed_posterior(
    chain: LinearGaussianChain,
    observations: Float[Array, "*batch states P"],
    emission: LinearEmission,
    mask: Bool[Array, "*#batch states P"] | None = None,
) -> tuple[LinearGaussianChain, Float[Array, "*batch"]]:
    """The chain x | y, whose marginals are the smoother's, and the log evidence log p(y).

    :param observations: y_0 … y_T; a NaN is missing. Where x_0 is not observed the first row is all NaN.
    :param emission: how y_t comes from x_t.
    :param mask: True where an observation counts; all that are not NaN if not given.
    :raises ValueError: if observations or mask do not have T + 1 rows, or P columns.
    """
    observed = _emission_terms(chain, observations, emission, mask)
    h, y, log_norm = observed

    def step(message: Any, turn: Any) -> Any:
        # p(y_t … y_T | x_t) ∝ exp(−½ xᵀΛx + ηᵀx)
        (slope, offset, scale, inverse), (h, y, _) = turn
        precision, eta = message[0] + times(transposed(h), h), message[1] + apply(transposed(h), y)
        # (Q⁻¹ + Λ)⁻¹ = L B⁻¹ Lᵀ, Q = L Lᵀ, B = I + LᵀΛL, B⁻¹ = U Uᵀ with U lower
        root = lower_inverse_root(_identity(slope) + times(transposed(scale), precision, scale))
        narrowed = times(scale, root)
        # E = (I + QΛ)⁻¹: x_t | x_{t−1}, y ~ N(E (A x_{t−1} + b) + L B⁻¹ Lᵀ η, L B⁻¹ Lᵀ)
        keep = times(narrowed, transposed(root), inverse)
        mean = apply(keep, offset) + apply(narrowed, apply(transposed(narrowed), eta))
        # ΛE as a sum of squares: symmetric and never negative
        half = times(precision, narrowed, transposed(root))
        back = times(transposed(keep), precision, keep) + times(half, transposed(half))
        eta = apply(transposed(slope), apply(transposed(keep), eta - apply(precision, offset)))
        return (times(transposed(slope), back, slope), eta), (times(keep, slope), mean, narrowed)

    slopes, offsets, scales = time_first(*chain.steps)
    mean, spread = _nothing(chain, observed)
    turns = (slopes, offsets, scales, inverse_lower(scales)), observed
    slopes, offsets, scales = _time_last(*jax.lax.scan(step, (spread, mean), turns, reverse=True)[1])
    later = slopes[..., 1:, :, :], offsets[..., 1:, :], scales[..., 1:, :, :]
    posterior = LinearGaussianChain(offsets[..., 0, :], scales[..., 0, :, :], *later)
    # log p(y) = log p(x) + log p(y | x) − log p(x | y) at any x: at the posterior's mean no term is large
    path = recursion(*posterior.steps[:2], parallel=False)
    error = y - apply(h, jnp.moveaxis(path, -2, 0))
    emitted = (log_norm - 0.5 * jnp.square(error).sum(-1)).sum(0)
    return posterior, chain.log_prob(path) + emitted - posterior.log_prob(path)


def _nothing(chain: LinearGaussianChain, observed: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    """Zeros, shaped as the mean and covariance of one state."""
    leading = observed[0].shape[1:-2], observed[1].shape[1:-1], observed[2].shape[1:]
    batch, width = jnp.broadcast_shapes(chain.batch_shape, *leading), chain.event_shape[1]
    return jnp.zeros((*batch, width), chain.offsets.dtype), jnp.zeros(
        (*batch, width, width), chain.offsets.dtype
    )


def _emission_terms(
    chain: LinearGaussianChain, observations: Array, emission: LinearEmission, mask: Array | None
) -> tuple[Array, Array, Array]:
    """H, y and c, time first: p(y_t | x_t) = exp(c_t − ½|y_t − H_t x_t|²), what is missing left out."""
    expected = chain.event_shape[0], emission.offset.shape[-1]
    for name, value in {"observations": observations, "mask": mask}.items():
        if value is not None and value.shape[-2:] != expected:
            raise ValueError(
                f"{name}: found shape {value.shape}, expected (..., {expected[0]}, {expected[1]}): a row for every "
                "state, x_0's first, all NaN where that is not observed"
            )
    there = ~jnp.isnan(observations) if mask is None else mask & ~jnp.isnan(observations)
    # what is missing gets an independent unit noise, no dependence on x and a residual of 0
    r = emission.scale_tril
    both = there[..., :, None] & there[..., None, :]
    noise = jnp.where(both, times(r, transposed(r)), _identity(r))
    root = jnp.linalg.cholesky(noise)
    whiten = inverse_lower(root)
    h = times(whiten, jnp.where(there[..., None], emission.matrix, 0.0))
    residual = jnp.where(there, jnp.where(there, observations, 0.0) - emission.offset, 0.0)
    log_norm = -0.5 * log(2.0 * pi) * there.sum(-1, dtype=root.dtype) - log_det(root)
    y = apply(whiten, residual)
    return jnp.moveaxis(h, -3, 0), jnp.moveaxis(y, -2, 0), jnp.moveaxis(log_norm, -1, 0)


def _identity(matrix: Array) -> Array:
    return jnp.eye(matrix.shape[-2], dtype=matrix.dtype)


def _time_last(slopes: Array, offsets: Array, scales: Array) -> tuple[Array, Array, Array]:
    return jnp.moveaxis(slopes, 0, -3), jnp.moveaxis(offsets, 0, -2), jnp.moveaxis(scales, 0, -3)
