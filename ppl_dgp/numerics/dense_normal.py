"""A dense Gaussian of many rows: its log density, with a gradient by hand, and NumPyro's distribution of it.

d log N(y; 0, A) = ½ tr[(ααᵀ − A⁻¹) dA] − αᵀ dy, α = A⁻¹y (Rasmussen & Williams 2006, 5.9). A⁻¹ comes of the triangular
inverse by blocks, so that all but the factorisation is matrix products: half the operations of solves, and faster ones.
Shapes: N rows, P columns.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.numerics.linalg import cholesky, inverse_lower

#: triangles up to this size are inverted by a solve
BLOCK = 256


class DenseNormal(dist.Distribution):
    """P columns, each N(0, A): batch (), event (P, N). ``jitter`` is what A's factorisation needed.

    :param matrix: A.
    :param num_columns: P.
    """

    support = constraints.real_matrix

    def __init__(self, matrix: Float[Array, "N N"], num_columns: int) -> None:
        self.matrix = matrix
        self.lower, self.jitter = cholesky(matrix, 0.0)
        super().__init__((), (num_columns, matrix.shape[0]), validate_args=False)

    def log_prob(self, value: Float[Array, "P N"]) -> Float[Array, ""]:
        return log_density(self.matrix, value)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S P N"]:
        noise = jax.random.normal(key, (*sample_shape, *self.event_shape), self.matrix.dtype)
        return noise @ self.lower.T

    @property
    def mean(self) -> Float[Array, "P N"]:
        return jnp.zeros(self.event_shape, self.matrix.dtype)


@jax.custom_jvp
def log_density(matrix: Float[Array, "N N"], y: Float[Array, "P N"]) -> Float[Array, ""]:
    """Σ_p log N(y_p; 0, A), where A needs jitter of A and that."""
    lower, _ = cholesky(matrix, 0.0)
    return _whitened_log_density(lower, jax.scipy.linalg.solve_triangular(lower, y.T, lower=True))


@log_density.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    (matrix, y), (dmatrix, dy) = primals, tangents
    lower, jitter = cholesky(matrix, 0.0)
    inverse = triangular_inverse(lower)
    whitened = inverse @ y.T
    alpha = inverse.T @ whitened
    slope = 0.5 * (alpha @ alpha.T - len(y) * lower_gram(inverse))
    # what jitter adds grows with the mean diagonal
    grown = jitter * jnp.trace(slope) * jnp.diagonal(dmatrix).mean()
    return _whitened_log_density(lower, whitened), jnp.sum(slope * dmatrix) + grown - jnp.sum(alpha.T * dy)


def _whitened_log_density(lower: Float[Array, "N N"], whitened: Float[Array, "N P"]) -> Float[Array, ""]:
    rows, columns = whitened.shape
    log_det = jnp.log(jnp.diagonal(lower)).sum() + 0.5 * rows * jnp.log(2.0 * jnp.pi)
    return -0.5 * jnp.square(whitened).sum() - columns * log_det


def triangular_inverse(lower: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """L⁻¹ by halves: that of [[A, 0], [B, C]] is [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]."""
    size = lower.shape[0]
    if size <= BLOCK:
        return inverse_lower(lower)
    half = size // 2
    first, last = triangular_inverse(lower[:half, :half]), triangular_inverse(lower[half:, half:])
    below = -last @ (lower[half:, :half] @ first)
    above = jnp.zeros((half, size - half), lower.dtype)
    return jnp.block([[first, above], [below, last]])


def lower_gram(lower: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Wᵀ W of a lower triangular W, by halves: what is 0 is not multiplied."""
    size = lower.shape[0]
    if size <= BLOCK:
        return lower.T @ lower
    half = size // 2
    below, last = lower[half:, :half], lower[half:, half:]
    side = last.T @ below
    first = lower_gram(lower[:half, :half]) + below.T @ below
    return jnp.block([[first, side.T], [side, lower_gram(last)]])
