"""Rules for the whitened inducing outputs: q(u) = Π over layers and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
from numpyro.distributions import constraints

from ppl_dgp.gaussian import InducingGaussian


class InducingRule:
    """q(u) of one site of shape (P, M)."""

    def distribution(self, name: str, shape: tuple[int, int], initial_scale: float) -> InducingGaussian:
        """Declare the parameters and return q(u), started at mean 0 and ``initial_scale``."""
        raise NotImplementedError


@dataclass(frozen=True)
class FullRank(InducingRule):
    """q(u_p) = N(µ_p, L_p L_pᵀ) for each output: O(P M²) parameters."""

    def distribution(self, name: str, shape: tuple[int, int], initial_scale: float) -> InducingGaussian:
        loc = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        identity = jnp.broadcast_to(initial_scale * jnp.eye(shape[1]), (*shape, shape[1]))
        return InducingGaussian(
            loc, numpyro.param(f"{name}_scale", identity, constraint=constraints.lower_cholesky)
        )


@dataclass(frozen=True)
class Diagonal(InducingRule):
    """q(u_pm) = N(µ_pm, s_pm²): O(P M) parameters."""

    def distribution(self, name: str, shape: tuple[int, int], initial_scale: float) -> InducingGaussian:
        loc = numpyro.param(f"{name}_loc", jnp.zeros(shape))
        scale = numpyro.param(
            f"{name}_scale", jnp.full(shape, initial_scale), constraint=constraints.positive
        )
        return InducingGaussian(loc, scale)
