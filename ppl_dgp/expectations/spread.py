r"""How much k(h, z) of one RBF varies under h ~ N(m, V): Cov[k(h, z), k(h, z')], without what cancels.

As ⟨k k'⟩ − ⟨k⟩⟨k'⟩ it would have no more digits than ⟨k k'⟩, which for narrow V is far larger, and what whitens both
sides by Kzz takes up to eight digits more. With distances in lengthscales, S = ℓ⁻¹Vℓ⁻¹, s = m − (z + z')/2 and
d = (z − z')/2,

.. math::
    r = \log \frac{\langle k k' \rangle}{\langle k \rangle \langle k' \rangle} = \log |I + S| - \tfrac12 \log |I + 2S|
        + s^\top G s - d^\top H d, \quad H = S (I + S)^{-1}, \quad G = H (I + 2S)^{-1},

all of whose parts vanish with V, and the covariance is ⟨k k'⟩(1 − exp(−r)), from the formulas of Titsias & Lawrence
(2010), appendix B.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations.terms import Term
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import inverse_lower, precise_matmul, squared_distance

#: of r, as a share of the logarithm of the largest number
LARGEST_RATIO = 0.4


def spread_of_pairs(term: Term, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B K"]:
    """Lower triangles of the covariance, row by row, K = M(M+1)/2, of inputs with independent dimensions."""
    first, second = np.tril_indices(z.shape[0])
    mean, z = _in_lengthscales(term, inputs, z)
    s = inputs.scale**2 * term.precision
    once, twice = 1.0 / (1.0 + s), 1.0 / (1.0 + 2.0 * s)
    wide, narrow = s * once * twice, s * once
    centre, half = 0.5 * (z[first] + z[second]), 0.5 * (z[first] - z[second])
    about = jnp.concatenate([centre**2, centre], 1)

    def of_centres(weights: Array) -> Array:
        # Σ w (m − c)², all by one matrix product
        rows = precise_matmul(jnp.concatenate([weights, -2.0 * weights * mean], 1), about.T)
        return rows + jnp.sum(weights * mean**2, 1)[:, None]

    second_volume = -0.5 * jnp.sum(jnp.log1p(2.0 * s), 1)
    apart = squared_distance(z, z)[first, second]
    log_mass = second_volume[:, None] - of_centres(twice) - 0.25 * apart
    volume = second_volume + jnp.sum(jnp.log1p(s), 1)
    ratio = volume[:, None] + of_centres(wide) - precise_matmul(narrow, (half**2).T)
    return term.variance**2 * _difference(log_mass, ratio)


def spread(term: Term, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M"]:
    """The whole matrices, of inputs with any covariance."""
    mean, z = _in_lengthscales(term, inputs, z)
    root = _root(term)[:, None] * inputs.scale
    s, identity = precise_matmul(root, jnp.swapaxes(root, -1, -2)), jnp.eye(root.shape[-1], dtype=root.dtype)
    (whiten, log_once), (second, log_twice) = _whitened(identity + s), _whitened(identity + 2.0 * s)
    once, twice = (precise_matmul(jnp.swapaxes(each, -1, -2), each) for each in (whiten, second))
    # H = S (I + S)⁻¹ and G = H (I + 2S)⁻¹, of wide V as I − (I + S)⁻¹ and (I + S)⁻¹ − (I + 2S)⁻¹
    is_wide = jnp.trace(s, axis1=-2, axis2=-1)[:, None, None] > 1.0
    product = precise_matmul(once, s)
    narrow = jnp.where(is_wide, identity - once, product)
    wide = jnp.where(is_wide, once - twice, precise_matmul(product, twice))
    offset = mean[:, None] - z
    quadratic = lambda matrix: jnp.sum(precise_matmul(offset, matrix) * offset, -1)
    distance = jnp.sum(precise_matmul(offset, jnp.swapaxes(whiten, -1, -2)) ** 2, -1)
    average = term.variance * jnp.exp(-0.5 * (log_once[:, None] + distance))
    # s and d are halves of the sum and the difference of two offsets
    own = 0.5 * (log_once - 0.5 * log_twice)[:, None] + 0.25 * quadratic(wide - narrow)
    across = precise_matmul(precise_matmul(offset, 0.5 * (wide + narrow)), jnp.swapaxes(offset, -1, -2))
    # ⟨k k'⟩ is at most e⁻ʳ in units of the variance: beyond this it is 0
    largest = LARGEST_RATIO * np.log(jnp.finfo(offset.dtype).max)
    ratio = jnp.minimum(own[:, :, None] + own[:, None] + across, largest)
    return average[:, :, None] * average[:, None] * jnp.expm1(ratio)


def _whitened(matrix: Float[Array, "B D D"]) -> tuple[Float[Array, "B D D"], Float[Array, " B"]]:
    """L⁻¹ of L Lᵀ = matrix, and the logarithm of its determinant."""
    lower = jnp.linalg.cholesky(matrix)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)), axis=-1)
    return inverse_lower(lower), log_det


@jax.custom_jvp
def _difference(log_mass: Array, ratio: Array) -> Array:
    """exp(log_mass) − exp(log_mass − ratio), by the larger of them."""
    return _both(log_mass, ratio)[0]


def _both(log_mass: Array, ratio: Array) -> tuple[Array, Array]:
    """The difference, and what is subtracted."""
    up = ratio >= 0.0
    # neither is above 1, but where rounding is more than that
    larger = jnp.exp(jnp.minimum(log_mass - jnp.where(up, 0.0, ratio), 0.0))
    less = larger * jnp.expm1(-jnp.abs(ratio))
    return jnp.where(up, -less, less), jnp.where(up, larger + less, larger)


@_difference.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    found, subtracted = _both(*primals)
    return found, found * tangents[0] + subtracted * tangents[1]


def _in_lengthscales(term: Term, inputs: Gaussian, z: Array) -> tuple[Array, Array]:
    """Means and inducing inputs from an origin amid the latter, which is what rounding is relative to."""
    origin, root = jax.lax.stop_gradient(z.mean(0)), _root(term)
    return (inputs.mean - origin) * root, (z - origin) * root


def _root(term: Term) -> Float[Array, " D"]:
    """1/ℓ; a dimension that is not active counts for nothing, and has no slope."""
    active = term.precision > 0.0
    return jnp.where(active, jnp.sqrt(jnp.where(active, term.precision, 1.0)), 0.0)
