"""Distributions over whitened inducing outputs that are correlated across outputs or across layers.

With u^l | u^{<l} ~ N(µ_l + Σ_k U_lk (u^k − µ_k), W_l W_lᵀ) the marginal mean of u^l is µ_l, and its covariance that of
loadings G_l on independent noise: G_ll = W_l, and those on earlier noise are Σ_k U_lk G_k. All closed forms follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian


class InducingJoint(InducingGaussian):
    """q(vec u) = N(vec loc, L Lᵀ): one full Gaussian over the outputs of a layer.

    :param loc: means, (P, M).
    :param scale: lower Cholesky factor over the P·M coordinates, output by output, (PM, PM).
    """

    def __init__(self, loc: Array, scale: Array, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, scale, validate_args=validate_args)

    @property
    def moments(self) -> Gaussian | None:  # type: ignore[override]
        """None where there are several outputs: those that are correlated cannot be integrated out one by one."""
        return Gaussian(self.loc, self.scale[None]) if self.loc.shape[0] == 1 else None

    @property
    def diagonal(self) -> bool:
        return False

    def noise(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        noise = jax.random.normal(key, (*sample_shape, self.scale.shape[0]), self.loc.dtype)
        return (noise @ self.scale.T).reshape(sample_shape + self.event_shape)

    def log_prob(self, value: Array) -> Array:
        flat = (value - self.loc).reshape(*value.shape[:-2], -1)
        log_density: Array = dist.MultivariateNormal(0.0, scale_tril=self.scale).log_prob(flat)
        return log_density

    @property
    def variance(self) -> Array:
        return jnp.square(self.scale).sum(-1).reshape(self.event_shape)

    def log_det(self) -> Array:
        return 2.0 * jnp.log(jnp.diagonal(self.scale)).sum()


@dataclass(frozen=True)
class LayerLink:
    """The linear map U_lk from the outputs of an earlier layer, (…, P', M'), to those of this one, (…, P, M)."""

    #: (P, M, P', M'), or (P, M, M') where output p listens to output p alone
    weights: Array

    def __call__(self, u: Float[Array, "*B Q K"]) -> Float[Array, "*B P M"]:
        if self.weights.ndim == 3:
            return jnp.einsum("pmk,...pk->...pm", self.weights, u)
        outputs, size, sources, source_size = self.weights.shape
        flat = u.reshape(*u.shape[:-2], sources * source_size)
        mapped = flat @ self.weights.reshape(outputs * size, sources * source_size).T
        return mapped.reshape(*u.shape[:-2], outputs, size)


@dataclass(frozen=True)
class LowRankLink:
    """U_lk = B_l C B_kᵀ with bases that the layers' outputs share (Chamberlin 2016, A.6): O(M r + P P' r²) values."""

    basis: Float[Array, "M r"]
    core: Float[Array, "P r Q r"]
    source_basis: Float[Array, "K r"]

    def __call__(self, u: Float[Array, "*B Q K"]) -> Float[Array, "*B P M"]:
        inner = jnp.einsum("prqs,...qs->...pr", self.core, u @ self.source_basis)
        return inner @ self.basis.T


class InducingConditional(InducingGaussian):
    """q(u^l | u^{<l}), linear Gaussian: ``mean`` and ``variance`` are the marginal ones, the draws conditional.

    ``kl_divergence`` to the prior is averaged over the earlier layers, in closed form.

    :param loc: marginal means µ_l, (P, M).
    :param scale: of the noise, standard deviations (P, M) or lower Cholesky factors (P, M, M).
    :param links: U_lk, by the earlier site's name.
    :param earlier: q of the earlier sites.
    :param values: their draws, (P', M').
    """

    def __init__(
        self,
        loc: Array,
        scale: Array,
        links: Mapping[str, LayerLink | LowRankLink],
        earlier: Mapping[str, InducingGaussian],
        values: Mapping[str, Array],
    ) -> None:
        self.links, self.earlier, self.values = dict(links), dict(earlier), dict(values)
        super().__init__(loc, scale, validate_args=False)

    @property
    def given(self) -> tuple[str, ...]:
        """The sites that u depends on: they must be drawn, not integrated out on their own."""
        return tuple(self.links)

    def shift(self, draws: Mapping[str, Array]) -> Array:
        """Σ_k U_lk (u^k − µ_k), for one draw or one per datum of each earlier site."""
        return sum((link(draws[k] - self.earlier[k].loc) for k, link in self.links.items()), jnp.zeros(()))

    def at(self, draws: Mapping[str, Array]) -> InducingGaussian:
        """q(u^l | draws), its mean (P, M), or (B, P, M) where there is a draw per datum."""
        return InducingGaussian(self.loc + self.shift(draws), self.scale)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        return self.at(self.values).sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        return super().log_prob(value - self.shift(self.values))

    def loadings(self) -> Float[Array, "R P M"]:
        """G_l: u^l − µ_l = Σ_r ε_r G_l[r], ε the independent noise of all layers up to this one."""
        before = {k: loadings(self.earlier[k]) for k in self.links}
        longest = max(array.shape[0] for array in before.values())
        # the noise of a layer comes after that of the layers it depends on, so shorter ones are filled up
        mapped = jnp.zeros((longest, *self.event_shape), self.loc.dtype)
        for k, link in self.links.items():
            mapped = mapped.at[: before[k].shape[0]].add(link(before[k]))
        return jnp.concatenate([mapped, _own_loadings(self)])

    @property
    def variance(self) -> Array:
        return jnp.square(self.loadings()).sum(0)


def loadings(q: InducingGaussian) -> Float[Array, "R P M"]:
    """The loadings of any q(u) of these rules on independent noise."""
    return q.loadings() if isinstance(q, InducingConditional) else _own_loadings(q)


def _own_loadings(q: InducingGaussian) -> Float[Array, "R P M"]:
    outputs, size = q.event_shape
    scale = q.scale if q.scale.ndim == 3 else q.scale[..., None] * jnp.eye(size, dtype=q.scale.dtype)
    blocks = (
        jnp.eye(outputs, dtype=scale.dtype)[:, None, :, None] * jnp.swapaxes(scale, -1, -2)[:, :, None, :]
    )
    return blocks.reshape(outputs * size, outputs, size)
