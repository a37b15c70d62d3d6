"""Gaussian moments in place of a draw (docs/design.md, 1.2): a mean and a scale, as a pytree."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.numerics.linalg import diag_quadratic


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """Moments in place of a draw, of a whitened u or of a layer's h.

    :param mean: (P, M) for u, or one per datum (B, P, M); (B, Q) for h.
    :param scale: standard deviations (P, M) or (B, Q), or lower Cholesky factors (P, M, M) or (B, Q, Q).
    :param factor: F (P, M, r) of a u whose covariance is diag(scale²) + F Fᵀ.
    """

    mean: Array
    scale: Array
    factor: Float[Array, "*_ M r"] | None = None
    #: whether functions of it are linearised at the mean, rather than matched in their moments
    linearise: bool = field(default=False, metadata={"static": True})

    @property
    def diagonal(self) -> bool:
        """Whether ``scale`` holds standard deviations."""
        return self.scale.ndim == 2

    def projected_mean(self, weights: Float[Array, "B *P M"]) -> Float[Array, "B P"]:
        """E[A u] for each output; A is shared by them, or each one's own."""
        return project(weights, self.mean)

    def projected_variance(self, weights: Float[Array, "B *P M"]) -> Float[Array, "B P"]:
        """diag(A S Aᵀ) for each output: the variance of A u that comes from q(u)."""
        if weights.ndim == 3:
            return jnp.square(self._roots(weights)).sum(-1).T
        if not self.diagonal:
            return diag_quadratic(weights, self.scale)
        variance = jnp.square(weights) @ jnp.square(self.scale).T
        if self.factor is None:
            return variance
        return variance + jnp.square(jnp.einsum("bm,pmr->bpr", weights, self.factor)).sum(-1)

    def projected_covariance(self, weights: Float[Array, "B *P M"]) -> Float[Array, "P B B"]:
        """A S Aᵀ for each output."""
        root = self._roots(weights)
        return root @ jnp.swapaxes(root, -1, -2)

    def _roots(self, weights: Float[Array, "B *P M"]) -> Float[Array, "P B K"]:
        """A times a root of S, for each output."""
        weights = jnp.swapaxes(weights, 0, 1) if weights.ndim == 3 else weights
        root = weights * self.scale[:, None, :] if self.diagonal else jnp.matmul(weights, self.scale)
        if self.factor is None:
            return root
        return jnp.concatenate([root, jnp.matmul(weights, self.factor)], -1)

    def draw(self, key: Array, alike: bool = False) -> Float[Array, "B Q"]:
        """One draw of h, the rows independent; ``alike`` each with the same noise, whatever rows are beside it."""
        shape = self.mean.shape[-1:] if alike else self.mean.shape
        noise = jnp.broadcast_to(jax.random.normal(key, shape, self.mean.dtype), self.mean.shape)
        spread = self.scale * noise if self.diagonal else jnp.einsum("bij,bj->bi", self.scale, noise)
        return self.mean + spread

    @property
    def variance(self) -> Array:
        """The variance of each coordinate, (P, M) or (B, Q)."""
        if not self.diagonal:
            return jnp.square(self.scale).sum(-1)
        return jnp.square(self.scale) + (0.0 if self.factor is None else jnp.square(self.factor).sum(-1))

    @property
    def scale_tril(self) -> Float[Array, "B Q Q"]:
        """Lower Cholesky factors of the rows of h, of deviations too."""
        return jax.vmap(jnp.diag)(self.scale) if self.diagonal else self.scale

    def covariance(self) -> Array:
        """The covariance matrices, (P, M, M) or (B, Q, Q)."""
        if not self.diagonal:
            return self.scale @ jnp.swapaxes(self.scale, -1, -2)
        matrices = jnp.square(self.scale)[..., None] * jnp.eye(self.scale.shape[-1], dtype=self.scale.dtype)
        return matrices if self.factor is None else matrices + self.factor @ jnp.swapaxes(self.factor, -1, -2)


def project(weights: Float[Array, "B *P M"], u: Float[Array, "*B P M"]) -> Float[Array, "B P"]:
    """A u for each output, u one draw or one per datum; A is shared by the outputs, or each one's own."""
    if weights.ndim == 3:
        return (weights * u).sum(-1)
    return weights @ u.T if u.ndim == 2 else jnp.einsum("bm,bpm->bp", weights, u)


def beside(
    first: Float[Array, "B D"] | Gaussian, second: Float[Array, "B Q"] | Gaussian
) -> Float[Array, "B DQ"] | Gaussian:
    """Columns of two independent kinds side by side, each known, a draw, or carried as moments."""
    if not isinstance(first, Gaussian) and not isinstance(second, Gaussian):
        return jnp.concatenate([first, second], 1)
    parts = [
        each if isinstance(each, Gaussian) else Gaussian(each, jnp.zeros_like(each))
        for each in (first, second)
    ]
    means = jnp.concatenate([part.mean for part in parts], 1)
    if all(part.diagonal for part in parts):
        scale = jnp.concatenate([part.scale for part in parts], 1)
    else:
        scale = jax.vmap(jax.scipy.linalg.block_diag)(*(part.scale_tril for part in parts))
    return Gaussian(means, scale, linearise=any(part.linearise for part in parts))


class InducingGaussian(dist.Distribution):
    """q(u) = Π_p N(loc_p, S_p) over whitened inducing outputs, independent between outputs.

    :param loc: means, (P, M).
    :param scale: standard deviations (P, M), or lower Cholesky factors (P, M, M).
    :param factor: F (P, M, r) where S = diag(scale²) + F Fᵀ is of low rank but for its diagonal.
    """

    arg_constraints = {"loc": constraints.real_matrix}
    support = constraints.real_matrix
    reparametrized_params = ["loc", "scale", "factor"]
    pytree_data_fields: tuple[str, ...] = ("loc", "scale", "factor")
    #: whether it is a single value, so that its variances are 0 whatever they are
    is_value = False

    def __init__(
        self, loc: Array, scale: Array, factor: Array | None = None, *, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale, self.factor = loc, scale, factor
        super().__init__((), loc.shape[-2:], validate_args=validate_args)

    @property
    def moments(self) -> Gaussian:
        """The same distribution as carried moments."""
        return Gaussian(self.loc, self.scale, self.factor)

    @property
    def diagonal(self) -> bool:
        """Whether the coordinates of u are independent."""
        return self.scale.ndim == 2 and self.factor is None

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (P, M)."""
        return self.loc + self.noise(key, sample_shape)

    def noise(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of u − E u."""
        if self.factor is not None:
            key, key_factor = jax.random.split(key)
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.loc.dtype)
        if self.scale.ndim == 3:
            return jnp.einsum("pmk,...pk->...pm", self.scale, noise)
        noise = self.scale * noise
        if self.factor is None:
            return noise
        outputs, _, rank = self.factor.shape
        shared = jax.random.normal(key_factor, (*sample_shape, outputs, rank), self.loc.dtype)
        return noise + jnp.einsum("pmr,...pr->...pm", self.factor, shared)

    def log_prob(self, value: Array) -> Array:
        """log q(value), for value of shape (..., P, M)."""
        difference = value - self.loc
        log_density: Array
        if self.factor is not None:
            zero = jnp.zeros(self.event_shape, self.loc.dtype)
            low_rank = dist.LowRankMultivariateNormal(zero, self.factor, jnp.square(self.scale))
            log_density = low_rank.log_prob(difference).sum(-1)
        elif self.diagonal:
            log_density = dist.Normal(0.0, self.scale).log_prob(difference).sum((-2, -1))
        else:
            log_density = dist.MultivariateNormal(0.0, scale_tril=self.scale).log_prob(difference).sum(-1)
        return log_density

    @property
    def mean(self) -> Array:
        return self.loc

    @property
    def variance(self) -> Array:
        return Gaussian(self.loc, self.scale, self.factor).variance

    def log_det(self) -> Array:
        """log |S|, summed over outputs; of what is left of S once u is conditioned, where it is."""
        if self.scale.ndim == 3:
            return 2.0 * jnp.log(jnp.diagonal(self.scale, axis1=-2, axis2=-1)).sum()
        diagonal = 2.0 * jnp.log(self.scale).sum()
        if self.factor is None:
            return diagonal
        # |D + F Fᵀ| = |D| |I + Fᵀ D⁻¹ F|
        scaled = self.factor / self.scale[..., None]
        inner = jnp.eye(scaled.shape[-1], dtype=scaled.dtype) + jnp.swapaxes(scaled, -1, -2) @ scaled
        total: Array = diagonal + jnp.linalg.slogdet(inner)[1].sum()
        return total


def _kl_to_normal(q: InducingGaussian, p: dist.Independent) -> Array:
    """KL[q(u) ‖ Π N(m, s²)]: ½ Σ (tr S + (µ−m)²)/s² − 1 − log |S|/s²."""
    base = p.base_dist
    while isinstance(base, dist.ExpandedDistribution):
        base = base.base_dist
    if not isinstance(base, dist.Normal):
        raise NotImplementedError(f"KL of {type(q).__name__} to {type(base).__name__}: only Normal is known")
    variance = jnp.square(base.scale)
    quadratic = (q.variance + jnp.square(q.mean - base.loc)) / variance
    log_det_prior = jnp.broadcast_to(jnp.log(variance), q.event_shape).sum()
    return 0.5 * (quadratic.sum() - quadratic.size - q.log_det() + log_det_prior)


kl_divergence.register(InducingGaussian, dist.Independent)(_kl_to_normal)


def moments_of(distribution: dist.Distribution) -> Gaussian | None:
    """Moments of a q(u) over (P, M), or of rows (B, Q), or None where the distribution is not a Gaussian known here.

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
