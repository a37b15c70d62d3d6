r"""Moments of u of which the mean of a function is known by weights of a residual's kernel (Salimbeni et al. 2018).

Of inducing inputs Z and O the whitened u has two blocks; where q leaves the second its prior covariance and moves its
mean alone, to :math:`L_v^\top a`, f has

.. math::
    mean: φ(x) µ + (k(x, O) - φ(x) φ(O)^\top) a, \quad variance: k(x, x) - φ(x) (I - S) φ(x)^\top,
    \qquad φ(x) = k(x, Z) L^{-\top}

so that no matrix over O is factorised. The moments are those of u too, for whoever asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.numerics.gaussian import Gaussian


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class WeightedGaussian(Gaussian):
    """Moments of u over M inducing outputs, K of them Z's, and what gives those of f without its weights φ at all M.

    :param first: N(µ, S) of the K, (P, K), its scale lower Cholesky factors.
    :param weights: a, (P, M − K).
    :param whiten: L⁻¹ of Z, (K, K).
    :param others: φ(O), (M − K, K).
    """

    first: Gaussian
    weights: Float[Array, "P R"]
    whiten: Float[Array, "K K"]
    others: Float[Array, "R K"]

    def of_function(
        self, cross: Float[Array, "B M"], prior: Float[Array, " B"]
    ) -> tuple[Float[Array, "B P"], Float[Array, "B P"]]:
        """Mean, the mean function left out, and variance of f at B rows.

        :param cross: k(x, Z) beside k(x, O).
        :param prior: k(x, x).
        """
        size = self.whiten.shape[0]
        phi = cross[:, :size] @ self.whiten.T
        mean = self.first.projected_mean(phi) + (cross[:, size:] - phi @ self.others.T) @ self.weights.T
        left = jnp.maximum(prior - jnp.square(phi).sum(1), 0.0)
        return mean, left[:, None] + self.first.projected_variance(phi)
