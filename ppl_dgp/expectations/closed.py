r"""Expectations in closed form: a Gaussian times a term of the kernel is a Gaussian again, tilted towards z.

.. math:: N(h; m, V) \, e^{-\frac12 (h-c)^\top P (h-c)}
    = |I + PV|^{-\frac12} e^{-\frac12 (c-m)^\top W (c-m)} \, N(h; m + VW(c - m), V - VWV), \quad
    W = (P^{-1} + V)^{-1}

and two terms are one about a centre between z and z',

.. math:: (h-z)^\top P_1 (h-z) + (h-z')^\top P_2 (h-z')
    = (h-c)^\top (P_1 + P_2) (h-c) + (z-z')^\top \tfrac{P_1 P_2}{P_1 + P_2} (z-z').

Everything is finite, with its gradient, where V or P vanishes: no inverse of either is taken. Distances are from
each datum's log_mass_of_rows mean, and exponents sums of squares, which is what 32 bits need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations.terms import Term
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import inverse_lower, precise_matmul, squared_distance


class _Tilt(NamedTuple):
    """What P makes of each N(m, V), whatever the centre: T with TᵀT = W, the gain VW, V − VWV, −½ log |I + PV|.

    The matrices are (B, D, D), or diagonals (B, D).
    """

    root: Array
    gain: Array
    covariance: Array
    log_volume: Float[Array, " B"]


class _TiltedMoments(NamedTuple):
    """Mass (B, M), mean (B, M, D) and covariance (B, D, D) or (B, D) of the tilted Gaussians, and Λz_m or None."""

    mass: Float[Array, "B M"]
    mean: Float[Array, "B M D"]
    covariance: Array
    form: Float[Array, "M D"] | None


class _PairMoments(NamedTuple):
    """The same for pairs: the mean m̃ is m + ahead_m + behind_m', E[ℓᵀh] and E[ℓ'ᵀh] are first and second, and
    ℓᵀCℓ' is cross. Of a term without the linear factor they are 1 and 0, all (B, M, M) or (1, 1, 1).
    """

    mass: Float[Array, "B M M"]
    ahead: Float[Array, "B M D"]
    behind: Float[Array, "B M D"]
    covariance: Array
    first: Float[Array, "#B #M #M"]
    second: Float[Array, "#B #M #M"]
    cross: Float[Array, "#B #M #M"]

    @property
    def product(self) -> Array:
        """E[(ℓᵀh)^{0 or 1} (ℓ'ᵀh)^{0 or 1}] under the tilted Gaussian, (B, M, M) or (1, 1, 1)."""
        return self.first * self.second + self.cross


@dataclass(frozen=True)
class Closed:
    """The statistics of a kernel that is a sum of terms."""

    terms: tuple[Term, ...]

    def row_size(self, num_inducing: int) -> int:
        """Numbers held at once for each row by ``psi2``."""
        return num_inducing**2

    def psi1(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M"]:
        """⟨k(h, z_m)⟩."""
        total = jnp.zeros((inputs.mean.shape[0], z.shape[0]), inputs.mean.dtype)
        for term in self.terms:
            tilted = _tilted(term, inputs, z)
            factor = 1.0 if tilted.form is None else _dot(tilted.mean, tilted.form)
            total += tilted.mass * factor
        return total

    def input_kernel(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D"]:
        """⟨h k(h, z_m)⟩."""
        total = jnp.zeros((inputs.mean.shape[0], *z.shape), inputs.mean.dtype)
        for term in self.terms:
            mass, mean, covariance, form = _tilted(term, inputs, z)
            # E[h] = m̃, E[h ℓᵀh] = m̃ ℓᵀm̃ + Cℓ
            first = mean
            if form is not None:
                first = mean * _dot(mean, form)[..., None] + _transformed(covariance, form)
            total += mass[..., None] * first
        return total

    def input_input_kernel(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D D"]:
        """⟨h hᵀ k(h, z_m)⟩."""
        total = jnp.zeros((inputs.mean.shape[0], *z.shape, z.shape[1]), inputs.mean.dtype)
        for term in self.terms:
            mass, mean, covariance, form = _tilted(term, inputs, z)
            # E[hhᵀ] = C + m̃m̃ᵀ, E[hhᵀ ℓᵀh] = (C + m̃m̃ᵀ) ℓᵀm̃ + Cℓ m̃ᵀ + m̃ (Cℓ)ᵀ
            full = (
                covariance
                if covariance.ndim == 3
                else covariance[..., None] * jnp.eye(z.shape[1], dtype=z.dtype)
            )
            second = full[:, None] + _outer(mean, mean)
            if form is not None:
                mixed = _outer(_transformed(covariance, form), mean)
                second = second * _dot(mean, form)[..., None, None] + mixed + jnp.swapaxes(mixed, -1, -2)
            total += mass[..., None, None] * second
        return total

    def psi2(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M"]:
        """⟨k(h, z_m) k(h, z_m')⟩."""
        total = jnp.zeros((inputs.mean.shape[0], z.shape[0], z.shape[0]), inputs.mean.dtype)
        for i, one in enumerate(self.terms):
            for other in self.terms[i:]:
                part = _pair(one, other, inputs, z)
                value = part.mass * part.product
                total += value if one is other else value + jnp.swapaxes(value, -1, -2)
        return total

    def psi2_between(
        self, other: Closed, inputs: Gaussian, z: Float[Array, "M D"], z_other: Float[Array, "K D"]
    ) -> Float[Array, "B M K"]:
        """⟨k(h, z_m) k'(h, z'_k)⟩, k' the kernel of ``other``."""
        total = jnp.zeros((inputs.mean.shape[0], z.shape[0], z_other.shape[0]), inputs.mean.dtype)
        for one in self.terms:
            for second in other.terms:
                part = _pair(one, second, inputs, z, z_other)
                total += part.mass * part.product
        return total

    @property
    def is_rbf(self) -> bool:
        """Whether there is one term, without the linear factor."""
        return len(self.terms) == 1 and self.terms[0].slope is None

    def has_pairs(self, inputs: Gaussian) -> bool:
        """Whether :meth:`pairs` knows the kernel and the inputs: one RBF, independent dimensions."""
        return self.is_rbf and inputs.scale.ndim == 2

    def pairs(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B K"]:
        """The lower triangles of ``psi2``, row by row, K = M(M+1)/2, all exponents by one matrix product.

        With (c − m)² = c² − 2cm + m², its digits are those of distances from an origin amid the inducing inputs.
        """
        (term,) = self.terms
        first, second = np.tril_indices(z.shape[0])
        origin = jax.lax.stop_gradient(z.mean(0))
        z, mean = z - origin, inputs.mean - origin
        tilt = _tilt(inputs.scale, 2.0 * term.precision)
        weights = tilt.root**2
        centre, separated = 0.5 * (z[first] + z[second]), _sqrt(term.precision) * z
        apart = 0.5 * squared_distance(separated, separated)[first, second]
        of_rows = jnp.concatenate([-0.5 * weights, weights * mean], 1)
        of_pairs = jnp.concatenate([centre**2, centre], 1)
        log_mass_of_rows = tilt.log_volume - 0.5 * jnp.sum(weights * mean**2, 1)
        exponent = precise_matmul(of_rows, of_pairs.T) + log_mass_of_rows[:, None] - 0.5 * apart
        return term.variance**2 * jnp.exp(exponent)

    def kernel_kernel_input(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M D"]:
        """⟨k(h, z_m) k(h, z_m') h⟩."""
        total = jnp.zeros((inputs.mean.shape[0], z.shape[0], *z.shape), inputs.mean.dtype)
        for i, one in enumerate(self.terms):
            for other in self.terms[i:]:
                value = _pair_input(one, other, inputs, z)
                total += value if one is other else value + jnp.swapaxes(value, 1, 2)
        return total


def _pair_input(one: Term, other: Term, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M D"]:
    part = _pair(one, other, inputs, z)
    mean = inputs.mean[:, None, None] + part.ahead[:, :, None] + part.behind[:, None]
    # E[h ℓᵀh ℓ'ᵀh] = m̃ E[ℓᵀh ℓ'ᵀh] + Cℓ ℓ'ᵀm̃ + Cℓ' ℓᵀm̃
    value = mean * part.product[..., None]
    if one.slope is not None:
        value += _transformed(part.covariance, one.slope * z)[:, :, None] * part.second[..., None]
    if other.slope is not None:
        value += _transformed(part.covariance, other.slope * z)[:, None] * part.first[..., None]
    return part.mass[..., None] * value


def _tilt(scale: Array, precision: Float[Array, " D"]) -> _Tilt:
    root = _sqrt(precision)
    if scale.ndim == 2:
        variance = scale**2
        spread = 1.0 + variance * precision
        return _Tilt(
            root=root / jnp.sqrt(spread),
            gain=variance * precision / spread,
            covariance=variance / spread,
            log_volume=-0.5 * jnp.sum(jnp.log1p(variance * precision), axis=1),
        )
    identity = jnp.eye(scale.shape[-1], dtype=scale.dtype)
    # I + P^½ V P^½ = GGᵀ has eigenvalues from 1 on; T = G⁻¹ P^½
    whitened = root[:, None] * scale
    lower = jnp.linalg.cholesky(identity + precise_matmul(whitened, jnp.swapaxes(whitened, -1, -2)))
    whiten = inverse_lower(lower) * root
    # VWV = L (TL)ᵀ(TL) Lᵀ
    inner = precise_matmul(whiten, scale)
    back = jnp.swapaxes(inner, -1, -2)
    remaining = identity - precise_matmul(back, inner)
    return _Tilt(
        root=whiten,
        gain=precise_matmul(precise_matmul(scale, back), whiten),
        covariance=precise_matmul(precise_matmul(scale, remaining), jnp.swapaxes(scale, -1, -2)),
        log_volume=-jnp.sum(jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)), axis=1),
    )


def _tilted(term: Term, inputs: Gaussian, z: Float[Array, "M D"]) -> _TiltedMoments:
    tilt = _tilt(inputs.scale, term.precision)
    offset = z - inputs.mean[:, None]
    distance = jnp.sum(_transformed(tilt.root, offset) ** 2, axis=-1)
    mass = term.variance * jnp.exp(tilt.log_volume[:, None] - 0.5 * distance)
    mean = inputs.mean[:, None] + _transformed(tilt.gain, offset)
    return _TiltedMoments(mass, mean, tilt.covariance, None if term.slope is None else term.slope * z)


def _pair(
    one: Term,
    other: Term,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    z_other: Float[Array, "K D"] | None = None,
) -> _PairMoments:
    """Moments of one term at z and the other at ``z_other``, the same inducing inputs if that is not given."""
    z_other = z if z_other is None else z_other
    precision = one.precision + other.precision
    tilt = _tilt(inputs.scale, precision)
    # the centre is A z + (I − A) z', A = P₁/(P₁ + P₂); where both are 0 it does not matter
    share = jnp.where(precision > 0.0, one.precision / jnp.where(precision > 0.0, precision, 1.0), 0.5)
    root = _sqrt(share * other.precision)
    apart = squared_distance(root * z, root * z_other)
    offset, offset_other = z - inputs.mean[:, None], z_other - inputs.mean[:, None]
    ahead, behind = share * offset, (1.0 - share) * offset_other
    left, right = _transformed(tilt.root, ahead), _transformed(tilt.root, behind)
    # |T(c − m)|² by one matrix product for each datum
    distance = (
        jnp.sum(left**2, -1)[:, :, None] + jnp.sum(right**2, -1)[:, None] + 2.0 * _inner_products(left, right)
    )
    log_mass = tilt.log_volume[:, None, None] - 0.5 * (apart + distance)
    mass = one.variance * other.variance * jnp.exp(log_mass)

    ahead, behind = _transformed(tilt.gain, ahead), _transformed(tilt.gain, behind)
    first = second = jnp.ones((1, 1, 1), mass.dtype)
    cross = jnp.zeros((1, 1, 1), mass.dtype)
    if one.slope is not None:
        form = jnp.broadcast_to(one.slope * z, offset.shape)
        first = _dot(inputs.mean[:, None] + ahead, form)[:, :, None] + _inner_products(form, behind)
    if other.slope is not None:
        form = jnp.broadcast_to(other.slope * z_other, offset_other.shape)
        second = _dot(inputs.mean[:, None] + behind, form)[:, None] + _inner_products(ahead, form)
        if one.slope is not None:
            cross = _inner_products(one.slope * z, _transformed(tilt.covariance, form))
    return _PairMoments(mass, ahead, behind, tilt.covariance, first, second, cross)


def _transformed(matrix: Array, vectors: Array) -> Array:
    """The (B, D, D) or diagonal (B, D) matrices times vectors (B, M, D) or (M, D)."""
    if matrix.ndim == 2:
        return matrix[:, None] * vectors
    return precise_matmul(vectors, jnp.swapaxes(matrix, -1, -2))


def _dot(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, axis=-1)


def _inner_products(a: Array, b: Array) -> Array:
    return precise_matmul(a, jnp.swapaxes(b, -1, -2))


def _outer(a: Array, b: Array) -> Array:
    return a[..., :, None] * b[..., None, :]


def _sqrt(x: Array) -> Array:
    """√x with gradient 0 where x is 0: a dimension that is not active stays so."""
    return jnp.where(x > 0.0, jnp.sqrt(jnp.where(x > 0.0, x, 1.0)), 0.0)
