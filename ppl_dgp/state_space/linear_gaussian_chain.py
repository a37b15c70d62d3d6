r"""Linear-Gaussian Markov chains over layers or time, everything in O(T).

.. math::
    x_0 \sim N(m_0, L_0 L_0^\top), \quad x_t = A_t x_{t-1} + b_t + L_t \varepsilon_t

Density, entropy and KL are vectorised; draws and marginals are one pass over t, by ``lax.scan`` or, in parallel, by
``lax.associative_scan`` (Särkkä & García-Fernández 2021). What linear observations say of a chain is
:mod:`ppl_dgp.state_space.kalman`. Shapes: T steps, so T + 1 states; Q state dimensions. The chain's x_0 is its step 0,
from nothing: A_0 = 0, b_0 = m_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from ppl_dgp.numerics.linalg import inverse_lower


class Marginals(NamedTuple):
    """Moments of the states; ``cross[..., t − 1, :, :]`` is Cov(x_t, x_{t−1})."""

    means: Float[Array, "*batch states Q"]
    covariances: Float[Array, "*batch states Q Q"]
    cross: Float[Array, "*batch T Q Q"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearGaussianChain:
    """x_0 ~ N(m_0, L_0 L_0ᵀ), x_t ~ N(A_t x_{t−1} + b_t, L_t L_tᵀ), t = 1 … T: a pytree. Leading axes broadcast.

    :param initial_mean: m_0.
    :param initial_scale_tril: L_0, like every L lower triangular with a positive diagonal.
    :param slopes: A.
    :param offsets: b.
    :param scale_trils: L.
    """

    initial_mean: Float[Array, "*#batch Q"]
    initial_scale_tril: Float[Array, "*#batch Q Q"]
    slopes: Float[Array, "*#batch T Q Q"]
    offsets: Float[Array, "*#batch T Q"]
    scale_trils: Float[Array, "*#batch T Q Q"]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes, broadcast."""
        leading = (self.initial_mean.shape[:-1], self.initial_scale_tril.shape[:-2], self.slopes.shape[:-3])
        return jnp.broadcast_shapes(*leading, self.offsets.shape[:-2], self.scale_trils.shape[:-3])

    @property
    def event_shape(self) -> tuple[int, int]:
        """(T + 1, Q), the shape of a path."""
        return self.offsets.shape[-2] + 1, self.offsets.shape[-1]

    def sample(
        self, key: Shaped[Array, "..."], shape: tuple[int, ...] = (), *, parallel: bool = False
    ) -> Float[Array, "*paths states Q"]:
        """Paths (*shape, *batch, T + 1, Q); ``parallel`` in time, they are the same up to rounding."""
        slopes, offsets, scales = self.steps
        noise = jax.random.normal(key, (*shape, *self.batch_shape, *self.event_shape), offsets.dtype)
        return recursion(slopes, offsets + apply(scales, noise), parallel)

    def log_prob(self, path: Float[Array, "*paths states Q"]) -> Float[Array, "*values"]:
        """log density of paths, whose leading axes broadcast against the chain's; no pass over t.

        :raises ValueError: if a path does not have T + 1 states of Q dimensions.
        """
        if path.shape[-2:] != self.event_shape:
            raise ValueError(
                f"path: found shape {path.shape}, expected (..., {self.event_shape[0]}, {self.event_shape[1]}): the "
                "initial state, then one per step"
            )
        slopes, offsets, scales = self.steps
        residual = path - apply(slopes, _before(path)) - offsets
        squares = jnp.square(apply(inverse_lower(scales), residual)).sum((-2, -1))
        return -0.5 * squares - log_det(scales).sum(-1) - self._half_size * log(2.0 * pi)

    def entropy(self) -> Float[Array, "*batch"]:
        """−E log q = ½ (T + 1) Q log 2πe + Σ_t log |L_t|."""
        entropy = self._half_size * (log(2.0 * pi) + 1.0) + log_det(self.steps[2]).sum(-1)
        return jnp.broadcast_to(entropy, self.batch_shape)

    def kl(self, other: LinearGaussianChain) -> Float[Array, "*values"]:
        """KL[self ‖ other], both of T steps: the sum over t of E_{x_{t−1} ~ self} of the KL between their steps.

        :raises ValueError: if the two differ in T or Q.
        """
        if other.event_shape != self.event_shape:
            raise ValueError(
                f"other: found paths of shape {other.event_shape}, expected {self.event_shape}; "
                "chains must agree in their steps and dimensions"
            )
        (slopes, offsets, scales), (slopes_p, offsets_p, scales_p) = self.steps, other.steps
        means, covariances, _ = self.marginals()
        precision_root = inverse_lower(scales_p)
        # E|L_p⁻¹(D x + e)|² = |L_p⁻¹(D m + e)|² + tr(L_p⁻¹ D P Dᵀ L_p⁻ᵀ), D = A − A_p, e = b − b_p
        difference = times(precision_root, slopes - slopes_p)
        shift = apply(difference, _before(means)) + apply(precision_root, offsets - offsets_p)
        spread = times(difference, _before(covariances, 3), transposed(difference)).trace(axis1=-2, axis2=-1)
        noise = jnp.square(times(precision_root, scales)).sum((-2, -1))
        squares = jnp.square(shift).sum(-1) + spread + noise
        return 0.5 * squares.sum(-1) - self._half_size + (log_det(scales_p) - log_det(scales)).sum(-1)

    def marginals(self, *, parallel: bool = False) -> Marginals:
        """Means, covariances and neighbours' cross-covariances, by a scan or ``parallel`` in time: the same numbers."""
        slopes, offsets, scales = self.steps
        noises = times(scales, transposed(scales))
        states, width = self.event_shape
        offsets = jnp.broadcast_to(offsets, (*self.batch_shape, states, width))
        noises = jnp.broadcast_to(noises, (*self.batch_shape, states, width, width))
        if parallel:

            def compose(first: Any, second: Any) -> Any:
                # (A, b, S) after (A', b', S'): x ↦ A (A' x + b' + noise') + b + noise
                return times(second[0], first[0]), *propagate(*first[1:], *second)

            elements = (_as_long(slopes, noises.ndim), offsets, noises)
            _, means, covariances = jax.lax.associative_scan(compose, elements, axis=offsets.ndim - 2)
        else:

            def step(state: Any, turn: Any) -> Any:
                state = propagate(*state, *turn)
                return state, state

            start = jnp.zeros_like(offsets[..., 0, :]), jnp.zeros_like(noises[..., 0, :, :])
            means, covariances = jax.lax.scan(step, start, time_first(slopes, offsets, noises))[1]
            means, covariances = jnp.moveaxis(means, 0, -2), jnp.moveaxis(covariances, 0, -3)
        # Cov(x_t, x_{t−1}) = A_t P_{t−1}
        return Marginals(means, covariances, times(self.slopes, covariances[..., :-1, :, :]))

    @property
    def _half_size(self) -> float:
        return 0.5 * self.event_shape[0] * self.event_shape[1]

    @property
    def steps(self) -> tuple[Array, Array, Array]:
        """Slopes, offsets and scale factors of the steps 0 … T; step 0 starts from nothing."""
        slopes = jnp.pad(self.slopes, [(0, 0)] * (self.slopes.ndim - 3) + [(1, 0), (0, 0), (0, 0)])
        offsets = _prepend(self.initial_mean[..., None, :], self.offsets, 2)
        return slopes, offsets, _prepend(self.initial_scale_tril[..., None, :, :], self.scale_trils, 3)


def propagate(
    mean: Float[Array, "*#batch P"],
    covariance: Float[Array, "*#batch P P"],
    slope: Float[Array, "*#batch Q P"],
    offset: Float[Array, "*#batch Q"],
    noise_covariance: Float[Array, "*#batch Q Q"],
) -> tuple[Float[Array, "*out Q"], Float[Array, "*out Q Q"]]:
    """Moments of A x + b + noise for x ~ (mean, covariance): A m + b, A S Aᵀ + noise. Widths may differ."""
    return apply(slope, mean) + offset, times(slope, covariance, transposed(slope)) + noise_covariance


def recursion(
    slopes: Float[Array, "*#paths states Q Q"], shifts: Float[Array, "*#paths states Q"], parallel: bool
) -> Float[Array, "*paths states Q"]:
    """x_t = A_t x_{t−1} + s_t, from x_{−1} = 0."""
    shifts = jnp.broadcast_to(shifts, jnp.broadcast_shapes(slopes.shape[:-1], shifts.shape))
    if parallel:

        def compose(first: Any, second: Any) -> Any:
            return times(second[0], first[0]), apply(second[0], first[1]) + second[1]

        elements = (_as_long(slopes, shifts.ndim + 1), shifts)
        path: Array = jax.lax.associative_scan(compose, elements, axis=shifts.ndim - 2)[1]
        return path

    def step(state: Array, turn: tuple[Array, Array]) -> tuple[Array, Array]:
        state = apply(turn[0], state) + turn[1]
        return state, state

    turns = jnp.moveaxis(slopes, -3, 0), jnp.moveaxis(shifts, -2, 0)
    return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(shifts[..., 0, :]), turns)[1], 0, -2)


def apply(matrix: Array, vector: Array) -> Array:
    """Matrices times vectors."""
    return jnp.einsum("...ij,...j->...i", matrix, vector, precision="highest")


def times(*matrices: Array) -> Array:
    """The product of matrices, from the left."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = jnp.matmul(product, matrix, precision="highest")
    return product


def transposed(matrix: Array) -> Array:
    """Matrices with their last two axes exchanged."""
    return jnp.swapaxes(matrix, -1, -2)


def log_det(lower: Array) -> Array:
    """log |L| of triangular matrices with a positive diagonal."""
    return jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)).sum(-1)


def _prepend(first: Array, rest: Array, trailing: int) -> Array:
    """Along the time axis, ``trailing`` from the end; leading axes broadcast."""
    batch = jnp.broadcast_shapes(first.shape[:-trailing], rest.shape[:-trailing])
    parts = [jnp.broadcast_to(part, (*batch, *part.shape[-trailing:])) for part in (first, rest)]
    return jnp.concatenate(parts, axis=-trailing)


def _before(states: Array, trailing: int = 2) -> Array:
    """Values of x_{t−1}, for t = 0 … T; nothing, 0, before x_0. The time axis is ``trailing`` from the end."""
    widths = [(1, 0) if axis == states.ndim - trailing else (0, 0) for axis in range(states.ndim)]
    return jnp.pad(jax.lax.slice_in_dim(states, 0, states.shape[-trailing] - 1, axis=-trailing), widths)


def _as_long(array: Array, ndim: int) -> Array:
    """With leading axes of length 1 up to ``ndim``: a parallel scan has one axis for all."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


def time_first(slopes: Array, offsets: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Values of the steps with time as the leading axis, as ``lax.scan`` has it."""
    return jnp.moveaxis(slopes, -3, 0), jnp.moveaxis(offsets, -2, 0), jnp.moveaxis(scales, -3, 0)
