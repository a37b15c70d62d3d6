r"""Gaussians over whitened inducing outputs in two independent blocks: the first dense, the others diagonal.

Where the others have their prior's covariance, their mean may be known by weights a of the residual's kernel, v = h(O)
of mean C a, in the notation of :mod:`ppl_dgp.guides.decoupled`: L_vᵀ a whitened, its KL ½ aᵀ C a.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import whitening
from ppl_dgp.numerics.weighted_gaussian import WeightedGaussian


class InducingBlocks(InducingGaussian):
    """q(u_p) = N(loc_p, blockdiag(L_p L_pᵀ, diag(s_p²))): K coordinates with a dense covariance before M − K without.

    :param loc: means, (P, M).
    :param lower: lower Cholesky factors L of the first block, (P, K, K).
    :param deviations: s, those of the others, (P, M − K).
    """

    reparametrized_params = ["loc", "lower", "deviations"]
    pytree_data_fields = ("lower", "deviations")

    def __init__(
        self,
        loc: Float[Array, "P M"],
        lower: Float[Array, "P K K"],
        deviations: Float[Array, "P R"],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.lower, self.deviations = lower, deviations
        size, others = lower.shape[-1], deviations.shape[-1]
        # as moments S = diag(scale²) + F Fᵀ, the scale 0 where F is L and F 0 where the scale is s
        scale = jnp.pad(deviations, ((0, 0), (size, 0)))
        factor = jnp.pad(lower, ((0, 0), (0, others), (0, 0)))
        super().__init__(loc, scale, factor, validate_args=validate_args)

    def noise(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.loc.dtype)
        first, others = self._blocks(noise)
        dense = jnp.einsum("pmk,...pk->...pm", self.lower, first)
        return jnp.concatenate([dense, self.deviations * others], -1)

    def log_prob(self, value: Array) -> Array:
        first, others = self._blocks(value - self.loc)
        dense = dist.MultivariateNormal(0.0, scale_tril=self.lower).log_prob(first).sum(-1)
        log_density: Array = dense + dist.Normal(0.0, self.deviations).log_prob(others).sum((-2, -1))
        return log_density

    def log_det(self) -> Array:
        dense = jnp.log(jnp.diagonal(self.lower, axis1=-2, axis2=-1)).sum()
        return 2.0 * (dense + jnp.log(self.deviations).sum())

    def _blocks(self, value: Array) -> tuple[Array, Array]:
        size = self.lower.shape[-1]
        return value[..., :size], value[..., size:]


class InducingWeights(InducingBlocks):
    """The same with s = 1 and for the others' mean L_vᵀ a: KL and moments of f need no Cholesky factor over O.

    They take Kuu with its usual jitter; where its own factor needs more, draws of u differ by that.

    :param mean: of the first block, (P, K).
    :param lower: its Cholesky factors.
    :param weights: a, (P, M − K).
    :param gram: Kuu, jitter on its diagonal, (M, M).
    :param whiten: L⁻¹ of it, by which the others' mean is whitened where u is looked at itself.
    """

    reparametrized_params = ["loc", "lower"]
    pytree_data_fields = ("weighted", "quadratic")

    def __init__(
        self,
        mean: Float[Array, "P K"],
        lower: Float[Array, "P K K"],
        weights: Float[Array, "P R"],
        gram: Float[Array, "M M"],
        whiten: Float[Array, "M M"],
    ) -> None:
        size = mean.shape[1]
        own, _ = whitening(gram[:size, :size], 0.0)
        others = gram[size:, :size] @ own.T
        # aᵀ C a, C = K_OO − φ(O) φ(O)ᵀ; rounding alone can bring it below 0
        each = (weights * (weights @ gram[size:, size:])).sum(1) - jnp.square(weights @ others).sum(1)
        self.quadratic = jnp.maximum(each, 0.0).sum()
        # L⁻¹ K = Lᵀ, of which L_vᵀ is the last block
        loc = jnp.concatenate([mean, weights @ gram[size:] @ whiten[size:].T], 1)
        super().__init__(loc, lower, jnp.ones_like(weights))
        self.weighted = WeightedGaussian(
            self.loc,
            self.scale,
            self.factor,
            first=Gaussian(mean, lower),
            weights=weights,
            whiten=own,
            others=others,
        )

    @property
    def moments(self) -> WeightedGaussian:
        return self.weighted


def _kl_by_weights(q: InducingWeights, p: dist.Independent) -> Array:
    """KL[q(u) ‖ N(0, I)] of the first block, and ½ aᵀ C a."""
    first = InducingGaussian(q.weighted.first.mean, q.lower)
    divergence: Array = kl_divergence(first, dist.Normal(0.0, 1.0).expand(first.event_shape).to_event(2))
    return divergence + 0.5 * q.quadratic


kl_divergence.register(InducingWeights, dist.Independent)(_kl_by_weights)
