r"""Linear-Gaussian Markov chains over layers or time, everything in O(T).

.. math::
    x_0 \sim N(m_0, L_0 L_0^\top), \quad x_t = A_t x_{t-1} + b_t + L_t \varepsilon_t, \quad y_t = C x_t + d + R e_t

Density, entropy and KL are vectorised; draws and marginals are one pass over t, by ``lax.scan`` or, in parallel, by
``lax.associative_scan`` (Särkkä & García-Fernández 2021). The posterior given y is again a forward chain, found by one
backward pass of information (Fraser & Potter 1969); :meth:`LinearGaussianChain.filter` is Kalman's. Shapes: T steps, so
T + 1 states; Q state dimensions; P observed ones. The chain's x_0 is its step 0, from nothing: A_0 = 0, b_0 = m_0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from ppl_dgp.linalg import inverse_lower


class Marginals(NamedTuple):
    """Moments of the states; ``cross[..., t − 1, :, :]`` is Cov(x_t, x_{t−1})."""

    means: Float[Array, "*batch states Q"]
    covariances: Float[Array, "*batch states Q Q"]
    cross: Float[Array, "*batch T Q Q"]


class Filtered(NamedTuple):
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
        slopes, offsets, scales = self._steps
        noise = jax.random.normal(key, (*shape, *self.batch_shape, *self.event_shape), offsets.dtype)
        return _recursion(slopes, offsets + _apply(scales, noise), parallel)

    def log_prob(self, path: Float[Array, "*paths states Q"]) -> Float[Array, "*values"]:
        """log density of paths, whose leading axes broadcast against the chain's; no pass over t.

        :raises ValueError: if a path does not have T + 1 states of Q dimensions.
        """
        if path.shape[-2:] != self.event_shape:
            raise ValueError(
                f"path: found shape {path.shape}, expected (..., {self.event_shape[0]}, {self.event_shape[1]}): the "
                "initial state, then one per step"
            )
        slopes, offsets, scales = self._steps
        residual = path - _apply(slopes, _before(path)) - offsets
        squares = jnp.square(_apply(inverse_lower(scales), residual)).sum((-2, -1))
        return -0.5 * squares - _log_det(scales).sum(-1) - self._half_size * log(2.0 * pi)

    def entropy(self) -> Float[Array, "*batch"]:
        """−E log q = ½ (T + 1) Q log 2πe + Σ_t log |L_t|."""
        entropy = self._half_size * (log(2.0 * pi) + 1.0) + _log_det(self._steps[2]).sum(-1)
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
        (slopes, offsets, scales), (slopes_p, offsets_p, scales_p) = self._steps, other._steps
        means, covariances, _ = self.marginals()
        precision_root = inverse_lower(scales_p)
        # E|L_p⁻¹(D x + e)|² = |L_p⁻¹(D m + e)|² + tr(L_p⁻¹ D P Dᵀ L_p⁻ᵀ), D = A − A_p, e = b − b_p
        difference = _times(precision_root, slopes - slopes_p)
        shift = _apply(difference, _before(means)) + _apply(precision_root, offsets - offsets_p)
        spread = _times(difference, _before(covariances, 3), _t(difference)).trace(axis1=-2, axis2=-1)
        noise = jnp.square(_times(precision_root, scales)).sum((-2, -1))
        squares = jnp.square(shift).sum(-1) + spread + noise
        return 0.5 * squares.sum(-1) - self._half_size + (_log_det(scales_p) - _log_det(scales)).sum(-1)

    def marginals(self, *, parallel: bool = False) -> Marginals:
        """Means, covariances and neighbours' cross-covariances, by a scan or ``parallel`` in time: the same numbers."""
        slopes, offsets, scales = self._steps
        noises = _times(scales, _t(scales))
        states, width = self.event_shape
        offsets = jnp.broadcast_to(offsets, (*self.batch_shape, states, width))
        noises = jnp.broadcast_to(noises, (*self.batch_shape, states, width, width))
        if parallel:

            def compose(first: Any, second: Any) -> Any:
                # (A, b, S) after (A', b', S'): x ↦ A (A' x + b' + noise') + b + noise
                return _times(second[0], first[0]), *propagate(*first[1:], *second)

            elements = (_as_long(slopes, noises.ndim), offsets, noises)
            _, means, covariances = jax.lax.associative_scan(compose, elements, axis=offsets.ndim - 2)
        else:

            def step(state: Any, turn: Any) -> Any:
                state = propagate(*state, *turn)
                return state, state

            start = jnp.zeros_like(offsets[..., 0, :]), jnp.zeros_like(noises[..., 0, :, :])
            means, covariances = jax.lax.scan(step, start, _time_first(slopes, offsets, noises))[1]
            means, covariances = jnp.moveaxis(means, 0, -2), jnp.moveaxis(covariances, 0, -3)
        # Cov(x_t, x_{t−1}) = A_t P_{t−1}
        return Marginals(means, covariances, _times(self.slopes, covariances[..., :-1, :, :]))

    def filter(
        self,
        observations: Float[Array, "*batch states P"],
        emission: LinearEmission,
        mask: Bool[Array, "*#batch states P"] | None = None,
    ) -> Filtered:
        """Kalman's filter, in Joseph's form; for the arguments and errors see :meth:`posterior`."""
        seen = self._seen(observations, emission, mask)

        def step(state: Any, turn: Any) -> Any:
            moves, (h, y, log_norm) = turn
            mean, covariance = propagate(*state, *moves)
            gain = _times(covariance, _t(h))
            root = jnp.linalg.cholesky(_identity(h) + _times(h, gain))
            inverse = inverse_lower(root)
            gain = _times(gain, _t(inverse), inverse)
            error = y - _apply(h, mean)
            keep = _identity(gain) - _times(gain, h)
            mean = mean + _apply(gain, error)
            covariance = _times(keep, covariance, _t(keep)) + _times(gain, _t(gain))
            surprise = 0.5 * jnp.square(_apply(inverse, error)).sum(-1) + _log_det(root)
            return (mean, covariance), (mean, covariance, log_norm - surprise)

        slopes, offsets, scales = _time_first(*self._steps)
        turns = (slopes, offsets, _times(scales, _t(scales))), seen
        means, covariances, log_predictive = jax.lax.scan(step, self._nothing(seen), turns)[1]
        means, covariances = jnp.moveaxis(means, 0, -2), jnp.moveaxis(covariances, 0, -3)
        return Filtered(means, covariances, jnp.moveaxis(log_predictive, 0, -1))

    def posterior(
        self,
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
        seen = self._seen(observations, emission, mask)
        h, y, log_norm = seen

        def step(message: Any, turn: Any) -> Any:
            # p(y_t … y_T | x_t) ∝ exp(−½ xᵀΛx + ηᵀx)
            (slope, offset, scale, inverse), (h, y, _) = turn
            precision, eta = message[0] + _times(_t(h), h), message[1] + _apply(_t(h), y)
            # (Q⁻¹ + Λ)⁻¹ = L B⁻¹ Lᵀ, Q = L Lᵀ, B = I + LᵀΛL, B⁻¹ = U Uᵀ with U lower
            root = lower_inverse_root(_identity(slope) + _times(_t(scale), precision, scale))
            narrowed = _times(scale, root)
            # E = (I + QΛ)⁻¹: x_t | x_{t−1}, y ~ N(E (A x_{t−1} + b) + L B⁻¹ Lᵀ η, L B⁻¹ Lᵀ)
            keep = _times(narrowed, _t(root), inverse)
            mean = _apply(keep, offset) + _apply(narrowed, _apply(_t(narrowed), eta))
            # ΛE as a sum of squares: symmetric and never negative
            half = _times(precision, narrowed, _t(root))
            back = _times(_t(keep), precision, keep) + _times(half, _t(half))
            eta = _apply(_t(slope), _apply(_t(keep), eta - _apply(precision, offset)))
            return (_times(_t(slope), back, slope), eta), (_times(keep, slope), mean, narrowed)

        slopes, offsets, scales = _time_first(*self._steps)
        mean, spread = self._nothing(seen)
        turns = (slopes, offsets, scales, inverse_lower(scales)), seen
        slopes, offsets, scales = _time_last(*jax.lax.scan(step, (spread, mean), turns, reverse=True)[1])
        later = slopes[..., 1:, :, :], offsets[..., 1:, :], scales[..., 1:, :, :]
        chain = LinearGaussianChain(offsets[..., 0, :], scales[..., 0, :, :], *later)
        # log p(y) = log p(x) + log p(y | x) − log p(x | y) at any x: at the posterior's mean no term is large
        path = _recursion(*chain._steps[:2], parallel=False)
        error = y - _apply(h, jnp.moveaxis(path, -2, 0))
        emitted = (log_norm - 0.5 * jnp.square(error).sum(-1)).sum(0)
        return chain, self.log_prob(path) + emitted - chain.log_prob(path)

    @property
    def _half_size(self) -> float:
        return 0.5 * self.event_shape[0] * self.event_shape[1]

    @property
    def _steps(self) -> tuple[Array, Array, Array]:
        """Slopes, offsets and scale factors of the steps 0 … T; step 0 starts from nothing."""
        slopes = jnp.pad(self.slopes, [(0, 0)] * (self.slopes.ndim - 3) + [(1, 0), (0, 0), (0, 0)])
        offsets = _prepend(self.initial_mean[..., None, :], self.offsets, 2)
        return slopes, offsets, _prepend(self.initial_scale_tril[..., None, :, :], self.scale_trils, 3)

    def _nothing(self, seen: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        """Zeros, shaped as the mean and covariance of one state."""
        leading = seen[0].shape[1:-2], seen[1].shape[1:-1], seen[2].shape[1:]
        batch, width = jnp.broadcast_shapes(self.batch_shape, *leading), self.event_shape[1]
        return jnp.zeros((*batch, width), self.offsets.dtype), jnp.zeros(
            (*batch, width, width), self.offsets.dtype
        )

    def _seen(
        self, observations: Array, emission: LinearEmission, mask: Array | None
    ) -> tuple[Array, Array, Array]:
        """H, y and c, time first: p(y_t | x_t) = exp(c_t − ½|y_t − H_t x_t|²), what is missing left out."""
        expected = self.event_shape[0], emission.offset.shape[-1]
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
        noise = jnp.where(both, _times(r, _t(r)), _identity(r))
        root = jnp.linalg.cholesky(noise)
        whiten = inverse_lower(root)
        h = _times(whiten, jnp.where(there[..., None], emission.matrix, 0.0))
        residual = jnp.where(there, jnp.where(there, observations, 0.0) - emission.offset, 0.0)
        log_norm = -0.5 * log(2.0 * pi) * there.sum(-1, dtype=root.dtype) - _log_det(root)
        y = _apply(whiten, residual)
        return jnp.moveaxis(h, -3, 0), jnp.moveaxis(y, -2, 0), jnp.moveaxis(log_norm, -1, 0)


def propagate(
    mean: Float[Array, "*#batch P"],
    covariance: Float[Array, "*#batch P P"],
    slope: Float[Array, "*#batch Q P"],
    offset: Float[Array, "*#batch Q"],
    noise_covariance: Float[Array, "*#batch Q Q"],
) -> tuple[Float[Array, "*out Q"], Float[Array, "*out Q Q"]]:
    """Moments of A x + b + noise for x ~ (mean, covariance): A m + b, A S Aᵀ + noise. Widths may differ."""
    return _apply(slope, mean) + offset, _times(slope, covariance, _t(slope)) + noise_covariance


def lower_inverse_root(matrix: Float[Array, "*batch Q Q"]) -> Float[Array, "*batch Q Q"]:
    """The lower triangular U, its diagonal positive, with U Uᵀ = matrix⁻¹; NaN where `matrix` is not positive definite.

    One Cholesky factorisation and one triangular inverse: L U is then the Cholesky factor of L matrix⁻¹ Lᵀ.
    """
    # matrix = V Vᵀ with V upper triangular, the Cholesky factor with rows and columns in reverse; U = V⁻ᵀ
    upper = jnp.linalg.cholesky(matrix[..., ::-1, ::-1])[..., ::-1, ::-1]
    return inverse_lower(_t(upper))


def _recursion(
    slopes: Float[Array, "*#paths states Q Q"], shifts: Float[Array, "*#paths states Q"], parallel: bool
) -> Float[Array, "*paths states Q"]:
    """x_t = A_t x_{t−1} + s_t, from x_{−1} = 0."""
    shifts = jnp.broadcast_to(shifts, jnp.broadcast_shapes(slopes.shape[:-1], shifts.shape))
    if parallel:

        def compose(first: Any, second: Any) -> Any:
            return _times(second[0], first[0]), _apply(second[0], first[1]) + second[1]

        elements = (_as_long(slopes, shifts.ndim + 1), shifts)
        path: Array = jax.lax.associative_scan(compose, elements, axis=shifts.ndim - 2)[1]
        return path

    def step(state: Array, turn: tuple[Array, Array]) -> tuple[Array, Array]:
        state = _apply(turn[0], state) + turn[1]
        return state, state

    turns = jnp.moveaxis(slopes, -3, 0), jnp.moveaxis(shifts, -2, 0)
    return jnp.moveaxis(jax.lax.scan(step, jnp.zeros_like(shifts[..., 0, :]), turns)[1], 0, -2)


def _apply(matrix: Array, vector: Array) -> Array:
    return jnp.einsum("...ij,...j->...i", matrix, vector, precision="highest")


def _times(*matrices: Array) -> Array:
    product = matrices[0]
    for matrix in matrices[1:]:
        product = jnp.matmul(product, matrix, precision="highest")
    return product


def _t(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, -1, -2)


def _identity(matrix: Array) -> Array:
    return jnp.eye(matrix.shape[-2], dtype=matrix.dtype)


def _log_det(lower: Array) -> Array:
    return jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)).sum(-1)


def _prepend(first: Array, rest: Array, trailing: int) -> Array:
    """Along the time axis, ``trailing`` from the end; leading axes broadcast."""
    batch = jnp.broadcast_shapes(first.shape[:-trailing], rest.shape[:-trailing])
    parts = [jnp.broadcast_to(part, (*batch, *part.shape[-trailing:])) for part in (first, rest)]
    return jnp.concatenate(parts, axis=-trailing)


def _before(states: Array, trailing: int = 2) -> Array:
    """What belongs to x_{t−1}, for t = 0 … T; nothing, 0, before x_0. The time axis is ``trailing`` from the end."""
    widths = [(1, 0) if axis == states.ndim - trailing else (0, 0) for axis in range(states.ndim)]
    return jnp.pad(jax.lax.slice_in_dim(states, 0, states.shape[-trailing] - 1, axis=-trailing), widths)


def _as_long(array: Array, ndim: int) -> Array:
    """With leading axes of length 1 up to ``ndim``: a parallel scan has one axis for all."""
    return array.reshape((1,) * (ndim - array.ndim) + array.shape)


def _time_first(slopes: Array, offsets: Array, scales: Array) -> tuple[Array, Array, Array]:
    return jnp.moveaxis(slopes, -3, 0), jnp.moveaxis(offsets, -2, 0), jnp.moveaxis(scales, -3, 0)


def _time_last(slopes: Array, offsets: Array, scales: Array) -> tuple[Array, Array, Array]:
    return jnp.moveaxis(slopes, 0, -3), jnp.moveaxis(offsets, 0, -2), jnp.moveaxis(scales, 0, -3)
