"""q(u) that is a point: what a sampler moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.gp.contract import LOC_SUFFIX
from ppl_dgp.guides.inducing import Earlier, InducingRule
from ppl_dgp.numerics.gaussian import InducingGaussian


@dataclass(frozen=True)
class PointMass(InducingRule):
    """All of q(u) at one value, its parameter ``<site>_loc``: an objective under it is that of u itself.

    It begins at a draw of the scale that other rules begin with.
    """

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        start = lambda key: initial_scale * jax.random.normal(key, shape)
        return Point(numpyro.param(name + LOC_SUFFIX, start))


class Point(InducingGaussian):
    """A value (P, M), whose log density is called 0: that with respect to the mass there."""

    is_value = True

    def __init__(self, value: Array) -> None:
        super().__init__(value, jnp.zeros_like(value), validate_args=False)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """The value, whatever the key."""
        return jnp.broadcast_to(self.loc, sample_shape + self.event_shape)

    def log_prob(self, value: Array) -> Array:
        return jnp.zeros(value.shape[: value.ndim - len(self.event_shape)])


def _kl_to_prior(q: Point, p: dist.Independent) -> Float[Array, ""]:
    """−log p(u)."""
    energy: Array = -p.log_prob(q.loc)
    return energy


kl_divergence.register(Point, dist.Independent)(_kl_to_prior)
