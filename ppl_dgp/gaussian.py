"""Moments carried in place of a draw (design, section 1.2): a mean and a scale, as a pytree."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.linalg import diag_quadratic


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Moments of a whitened u, ``mean`` (P, M) and ``scale`` (P, M) standard deviations or (P, M, M) lower factors."""

    mean: Float[Array, "P M"]
    scale: Float[Array, "P M"] | Float[Array, "P M M"]

    def projected_variance(self, weights: Float[Array, "B M"]) -> Float[Array, "B P"]:
        """diag(A S Aᵀ) for each output: the variance of A u that comes from q(u)."""
        if self.scale.ndim == self.mean.ndim:
            return jnp.square(weights) @ jnp.square(self.scale).T
        return diag_quadratic(weights, self.scale)


class InducingGaussian(dist.Distribution):
    """q(u) = Π_p N(loc_p, S_p) over whitened inducing outputs, independent between outputs.

    :param loc: means, (P, M).
    :param scale: standard deviations (P, M), or lower Cholesky factors (P, M, M).
    """

    arg_constraints = {"loc": constraints.real_matrix}
    support = constraints.real_matrix
    reparametrized_params = ["loc", "scale"]
    pytree_data_fields = ("loc", "scale")

    def __init__(self, loc: Array, scale: Array, *, validate_args: bool | None = None) -> None:
        self.loc, self.scale = loc, scale
        super().__init__((), loc.shape, validate_args=validate_args)

    @property
    def moments(self) -> Gaussian:
        """The same distribution as carried moments."""
        return Gaussian(self.loc, self.scale)

    @property
    def diagonal(self) -> bool:
        """Whether the coordinates of u are independent."""
        return self.scale.ndim == self.loc.ndim

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (P, M)."""
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.loc.dtype)
        if self.diagonal:
            return self.loc + self.scale * noise
        return self.loc + jnp.einsum("pmk,...pk->...pm", self.scale, noise)

    def log_prob(self, value: Array) -> Array:
        """log q(value), for value of shape (..., P, M)."""
        difference = value - self.loc
        if self.diagonal:
            return dist.Normal(0.0, self.scale).log_prob(difference).sum((-2, -1))
        return dist.MultivariateNormal(self.loc, scale_tril=self.scale).log_prob(value).sum(-1)

    @property
    def mean(self) -> Array:
        return self.loc

    @property
    def variance(self) -> Array:
        return jnp.square(self.scale) if self.diagonal else jnp.square(self.scale).sum(-1)


@kl_divergence.register(InducingGaussian, dist.Independent)
def _kl_to_normal(q: InducingGaussian, p: dist.Independent) -> Array:
    """KL[q(u) ‖ Π N(m, s²)]: ½ Σ (tr S + (µ−m)²)/s² − 1 − log |S|/s²."""
    base = p.base_dist
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    if not isinstance(base, dist.Normal):
        raise NotImplementedError(f"KL of InducingGaussian to {type(base).__name__}: only Normal is known")
    variance = jnp.square(base.scale)
    quadratic = (q.variance + jnp.square(q.loc - base.loc)) / variance
    if q.diagonal:
        log_det = 2.0 * jnp.log(q.scale).sum()
    else:
        log_det = 2.0 * jnp.log(jnp.diagonal(q.scale, axis1=-2, axis2=-1)).sum()
    log_det_prior = jnp.broadcast_to(jnp.log(variance), q.loc.shape).sum()
    return 0.5 * (quadratic.sum() - q.loc.size - log_det + log_det_prior)


def moments_of(distribution: dist.Distribution) -> Gaussian | None:
    """Moments of a q(u) over (P, M), or None where the distribution is not a Gaussian known here.

    Knows :class:`InducingGaussian`, a ``Normal`` over both axes, and a batch of ``MultivariateNormal`` per output.
    """
    if isinstance(distribution, InducingGaussian):
        return distribution.moments
    base = distribution
    while isinstance(base, dist.Independent | dist.ExpandedDistribution):
        base = base.base_dist
    shape = distribution.batch_shape + distribution.event_shape
    if isinstance(base, dist.Normal):
        return Gaussian(jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape))
    if isinstance(base, dist.MultivariateNormal):
        tril = jnp.broadcast_to(base.scale_tril, shape + shape[-1:])
        return Gaussian(jnp.broadcast_to(base.loc, shape), tril)
    return None
