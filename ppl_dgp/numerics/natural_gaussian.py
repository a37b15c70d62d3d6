r"""Natural gradients of a Gaussian N(m, S), by its mean and the Cholesky factor of its covariance.

With natural parameters θ₁ = S⁻¹m, θ₂ = −½S⁻¹ and expectation parameters η₁ = m, η₂ = S + m mᵀ, the natural gradient
with respect to θ is the ordinary one with respect to η (Hensman, Fusi & Lawrence 2013; Salimbeni, Eleftheriadis &
Hensman 2018):

.. math::
    \theta \leftarrow \theta - \rho\, \partial \mathcal{L} / \partial \eta
    \quad\Longleftrightarrow\quad S'^{-1} = S^{-1} + 2 \rho\, \partial \mathcal{L} / \partial S,
    \quad m' = m - \rho\, S'\, \partial \mathcal{L} / \partial m

The step is the same in every parametrisation. With S = L Lᵀ and H = tril(LᵀL̄) + its strict part transposed, L̄ the
gradient in L, it needs no inverse of S: S' = L (I + ρH)⁻¹ Lᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from numpyro.distributions import biject_to, constraints

from ppl_dgp.numerics.halving import halved_until_near
from ppl_dgp.numerics.linalg import lower_inverse_root

# strict lower triangle as it is, then the logarithm of the diagonal
_bijection = biject_to(constraints.lower_cholesky)


class NaturalStep(NamedTuple):
    """N(m', L' L'ᵀ) after a step, as ``loc`` and unconstrained ``scale``; KL[before ‖ after]; halvings of the rate."""

    loc: Float[Array, " M"]
    scale: Float[Array, " K"]
    divergence: Float[Array, ""]
    halvings: Int[Array, ""]


def natural_step(
    loc: Float[Array, " M"],
    scale: Float[Array, " K"],
    loc_gradient: Float[Array, " M"],
    scale_gradient: Float[Array, " K"],
    rate: Float[Array, ""],
    most: Float[Array, ""] | float = jnp.inf,
) -> NaturalStep:
    """One step of one N(m, L Lᵀ), its rate halved until S is positive definite and KL[before ‖ after] at most ``most``.

    ``scale`` is L, unconstrained, K = M (M + 1) / 2; the gradients are those of the loss, unconstrained too.
    """
    lower = _bijection(scale)
    (lower_gradient,) = jax.vjp(_bijection.inv, lower)[1](scale_gradient)
    # H = 2 Lᵀ (∂loss/∂S) L
    half = jnp.tril(jnp.matmul(lower.T, lower_gradient, precision="highest"))
    curvature = half + jnp.tril(half, -1).T

    def attempt(rate: Array) -> tuple[tuple[Array, Array], Array]:
        # U Uᵀ = (I + ρH)⁻¹, S' = L U Uᵀ Lᵀ
        root = lower_inverse_root(jnp.eye(loc.size, dtype=loc.dtype) + rate * curvature)
        after = jnp.matmul(lower, root, precision="highest")
        # m' − m = −ρ S' ∂loss/∂m
        pulled = rate * jnp.matmul(after.T, loc_gradient, precision="highest")
        move = -jnp.matmul(after, pulled, precision="highest")
        # KL[N(m, S) ‖ N(m', S')], S'⁻¹S = I + ρH up to similarity
        spread = 0.5 * rate * jnp.trace(curvature) + jnp.log(jnp.diagonal(root)).sum()
        return (move, after), spread + 0.5 * jnp.square(pulled).sum()

    (move, after), divergence, halvings = halved_until_near(attempt, rate, most)
    return NaturalStep(loc + move, _bijection.inv(after), divergence, halvings)
