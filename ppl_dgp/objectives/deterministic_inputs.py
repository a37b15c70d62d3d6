r"""Sums over rows whose inputs are known, for a layer's regression: in pieces, so that no N × M matrix is held.

With φ = L⁻¹k(Z, x), D_b the covariance of the rows of a factor given u, S_b their noise and V_b = α_b D_b + S_b,

.. math::
    A = \sum_b φ_b^\top V_b^{-1} φ_b, \qquad b = \sum_b φ_b^\top V_b^{-1} r_b, \qquad
    \text{correction} = \sum_b \frac{1 - α_b}{2α_b} \log |I + α_b S_b^{-1/2} D_b S_b^{-1/2}|

(Bui, Yan & Turner 2017; the sign of the correction is that which α → 0 asks for). Memory is O(M² + R M) for pieces of R
rows, in the gradient too: a piece is computed again there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log, pi
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from ppl_dgp.gp.features import InducingFeatures, cross
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.linalg import cholesky, gram, inverse_lower
from ppl_dgp.numerics.power_mean import Alpha, log_det_ratio
from ppl_dgp.numerics.structured_root import InverseRoot
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.objectives.regression import Features, Part, Statistics, row_constant

#: of the features that are held at a time, R M: 64 MB in 64 bits
PIECE_NUMBERS = 2**23
Sums = tuple[Float[Array, "*C M M"], Float[Array, "P M"], Float[Array, "*P"]]


@dataclass(frozen=True)
class DeterministicInputs(Features):
    """At inputs x that are known: r (N, P), with the variance of the targets (N, P) where they are hidden."""

    kernel: Kernel
    inducing: Float[Array, "M D"] | InducingFeatures
    whiten: Float[Array, "M M"] | InverseRoot
    x: Float[Array, "N D"]
    difference: Float[Array, "N P"]
    variance: Float[Array, "N P"] | float = 0.0

    def statistics(self, noise: Float[Array, "#N C"], factors: Factors) -> Statistics:
        """The sums over all rows, one factor each, or over blocks of rows.

        :raises ValueError: if the factors are not those of N rows.
        """
        rows = self.x.shape[0]
        if len(noise) < rows and factors.alike:
            return self._alike(noise[0], factors.corrected)
        noise = jnp.broadcast_to(noise, (rows, noise.shape[1]))
        pieces = piece_of(self.inducing)
        blocks = factors.members(rows)
        powers = factors.powers(rows if blocks is None else len(blocks[0]))
        # one power for all needs no place among the pieces
        each = None if isinstance(powers, float) or not powers.ndim else powers
        if blocks is None:
            variance = jnp.broadcast_to(self.variance, self.difference.shape)
            part: Callable[..., Sums] = partial(self._rows, powers, factors.corrected)
            known = factors.counts(rows)
            counts = None if known is None else jnp.asarray(known, self.x.dtype)
            return Statistics(
                *summed_in_pieces(part, (self.x, self.difference, variance, noise, each, counts), pieces)
            )
        members, valid = blocks
        gathered = (self.x[members], self.difference[members], noise[members], jnp.asarray(valid), each)
        part = partial(self._blocks, powers, factors.corrected)
        return Statistics(*summed_in_pieces(part, gathered, max(1, pieces // members.shape[1])))

    def _alike(self, noise: Float[Array, " C"], corrected: bool) -> Statistics:
        """At α = 0 under the same noise everywhere: the sums without it, which cost three products of N rows."""
        variance = jnp.broadcast_to(self.variance, self.difference.shape)

        def part(x: Array, difference: Array, variance: Array) -> Sums:
            if isinstance(self.whiten, InverseRoot):
                phi = self._phi(x)
                sums = gram(phi), difference.T @ phi
            else:
                sums = whitened_sums(cross(self.kernel, x, self.inducing), self.whiten, difference)
            return *sums, (jnp.square(difference) + variance).sum(0)

        sums = summed_in_pieces(part, (self.x, self.difference, variance), piece_of(self.inducing))
        return Statistics.alike(*sums, self.kernel.diag(self.x).sum(), len(self.x), noise, corrected)

    def _phi(self, x: Float[Array, "R D"]) -> Float[Array, "R M"]:
        return cross(self.kernel, x, self.inducing) @ self.whiten.T

    def _rows(
        self,
        alpha: Alpha,
        corrected: bool,
        x: Float[Array, "R D"],
        difference: Float[Array, "R P"],
        variance: Float[Array, "R P"],
        noise: Float[Array, "R C"],
        each: Float[Array, " R"] | None,
        counts: Float[Array, " R"] | None,
    ) -> Sums:
        alpha = alpha if each is None else each[:, None]
        phi = self._phi(x)
        residual = jnp.maximum(self.kernel.diag(x) - jnp.square(phi).sum(1), 0.0)[:, None]
        weights = 1.0 / (noise + alpha * residual)
        squares = jnp.square(difference) + variance
        constant = row_constant(weights, squares, residual / noise, alpha, corrected, counts)
        weights = weights if counts is None else weights * counts[:, None]
        # of an entry that is missing, or a row that counts for nothing, the weight is 0, where the root has no slope
        seen = weights > 0.0
        roots = jnp.where(seen, jnp.sqrt(jnp.where(seen, weights, 1.0)), 0.0)
        sums = jnp.stack([gram(phi * roots[:, c, None]) for c in range(weights.shape[1])])
        return sums, (difference * weights).T @ phi, constant

    def _blocks(
        self,
        alpha: Alpha,
        corrected: bool,
        x: Float[Array, "B S D"],
        difference: Float[Array, "B S P"],
        noise: Float[Array, "B S C"],
        valid: Bool[Array, "B S"],
        each: Float[Array, " B"] | None,
    ) -> Sums:
        powers = jnp.broadcast_to(jnp.asarray(alpha if each is None else each, x.dtype), x.shape[:1])
        phi, targets, constants = jax.vmap(partial(self._block, corrected))(
            powers, x, difference, noise, valid
        )
        # (B, C, S, ·) to (C, B S, ·): what is whitened within its block is a row like any other
        columns, width = phi.shape[1], phi.shape[-1]
        phi = jnp.moveaxis(phi, 1, 0).reshape(columns, -1, width)
        targets = jnp.moveaxis(targets, 1, 0).reshape(columns, phi.shape[1], -1)
        products = jnp.swapaxes(targets, 1, 2) @ phi
        return jnp.swapaxes(phi, 1, 2) @ phi, products.reshape(-1, width), constants.sum()

    def _block(
        self,
        corrected: bool,
        alpha: Float[Array, ""],
        x: Float[Array, "S D"],
        difference: Float[Array, "S P"],
        noise: Float[Array, "S C"],
        valid: Bool[Array, " S"],
    ) -> tuple[Float[Array, "C S M"], Float[Array, "C S Q"], Float[Array, ""]]:
        """φ and r whitened by V_b, Q outputs sharing each column of noise, and the part without u."""
        outputs, columns = difference.shape[1], noise.shape[1]
        phi = self._phi(x)
        residual = self.kernel(x, x) - phi @ phi.T
        # a place without a row, or without this column's entry in it, has no part in anything
        seen = (valid[:, None] & jnp.isfinite(noise)).T
        deviation = jnp.sqrt(jnp.where(seen, noise.T, 1.0))
        residual = jnp.where(seen[:, :, None] & seen[:, None, :], residual, 0.0)
        ratio = residual / (deviation[:, :, None] * deviation[:, None, :])
        lower, _ = cholesky(jnp.eye(len(x), dtype=x.dtype) + alpha * ratio, 0.0)
        log_det = 2.0 * jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(1)
        phi = jnp.where(seen[:, :, None], phi, 0.0) / deviation[:, :, None]
        rows = jnp.where(seen, difference.T, 0.0) / deviation
        targets = jnp.swapaxes(rows.reshape(columns, outputs // columns, -1), 1, 2)
        phi, targets = (solve_triangular(lower, each, lower=True) for each in (phi, targets))
        # of each column of noise; outputs that share it have the same
        constant = -0.5 * (seen.sum(1) * log(2.0 * pi) + log_det) - jnp.log(deviation).sum(1)
        if corrected:
            constant = constant - 0.5 * (1.0 - alpha) * log_det_ratio(alpha, ratio, log_det)
        total = constant.sum() * (outputs // columns) - 0.5 * jnp.square(targets).sum()
        return phi, targets, total


@jax.custom_jvp
def whitened_sums(
    cross: Float[Array, "N M"], whiten: Float[Array, "M M"], targets: Float[Array, "N P"]
) -> tuple[Float[Array, "M M"], Float[Array, "P M"]]:
    """Σ φφᵀ and Σ r φᵀ of φ = L⁻¹k(Z, x), from k(x, Z) and L⁻¹; its gradient takes one product with N rows more."""
    phi = cross @ whiten.T
    return phi.T @ phi, targets.T @ phi


@whitened_sums.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    (cross, whiten, targets), (dcross, dwhiten, dtargets) = primals, tangents
    phi = cross @ whiten.T
    total, products = phi.T @ phi, targets.T @ phi
    # k(x, Z) = φLᵀ, so that φᵀ dφ = φᵀ dk L⁻ᵀ + φᵀφ (dL⁻¹ L)ᵀ: what L⁻¹ changes needs no rows
    turned = (dwhiten @ inverse_lower(whiten)).T
    half = (phi.T @ dcross) @ whiten.T + total @ turned
    dproducts = (targets.T @ dcross) @ whiten.T + products @ turned + dtargets.T @ phi
    return (total, products), (half + half.T, dproducts)


def piece_of(inducing: Array | InducingFeatures) -> int:
    """So many rows are held at a time."""
    return max(1, PIECE_NUMBERS // inducing.shape[0])


def summed_in_pieces(part: Callable[..., Part], rows: tuple[Any, ...], size: int) -> Part:
    """Σ part over pieces of at most ``size`` of the leading axis."""
    count = rows[0].shape[0]
    if count <= size:
        return part(*rows)
    whole = count // size * size
    pieces = jax.tree.map(lambda each: each[:whole].reshape(-1, size, *each.shape[1:]), rows)
    # what the gradient needs of a piece is computed again, not kept
    again = jax.checkpoint(part)

    def step(total: Part, piece: tuple[Any, ...]) -> tuple[Part, None]:
        return jax.tree.map(jnp.add, total, again(*piece)), None

    shapes = jax.eval_shape(part, *jax.tree.map(lambda each: each[0], pieces))
    total: Part
    total, _ = jax.lax.scan(
        step, jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes), pieces
    )
    if whole == count:
        return total
    rest = jax.tree.map(lambda leaf: leaf[whole:], rows)
    sums: Part = jax.tree.map(jnp.add, total, again(*rest))
    return sums
