"""Marginals of a sparse GP at inputs, given its inducing outputs or under their moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission
from ppl_dgp.numerics.gaussian import Gaussian

if TYPE_CHECKING:
    from ppl_dgp.gp.sparse_gp import SparseGP
else:  # a function makes marginals: its file imports this one
    SparseGP = Any


@dataclass(frozen=True, eq=False)
class Marginal:
    """Marginals of f at inputs h, and where they came from.

    ``residual`` (B, 1) is D(h), the variance of f given u; ``from_u`` (B, P) what the moments of u add to it, and those
    of the inputs where they are uncertain (``weights`` and ``residual`` are then averages).
    """

    function: SparseGP
    inputs: Float[Array, "B D"] | Gaussian
    weights: Float[Array, "B M"]
    mean: Float[Array, "B P"]
    residual: Float[Array, "B 1"]
    from_u: Float[Array, "B P"]

    @property
    def rows(self) -> Float[Array, "B D"]:
        """The inputs, where they are draws. Raises TypeError where they are carried as moments."""
        if isinstance(self.inputs, Gaussian):
            raise TypeError(f"{self.function.name}: found moments of the inputs, expected draws (B, D)")
        return self.inputs

    @property
    def variance(self) -> Float[Array, "B P"]:
        """Variance of f, (B, P)."""
        return self.residual + self.from_u

    def output(self, which: Int[Array, " B"]) -> Marginal:
        """The marginal of one output per row, (B, 1), as where a row belongs to one of several functions."""
        take = lambda values: jnp.take_along_axis(values, which[:, None], 1)
        return replace(self, mean=take(self.mean), from_u=take(self.from_u))

    def noisy(self, variance: Any) -> Emission:
        """f(h) + ε, ε ~ N(0, variance): scalar, per output (P,), or per row (B, 1) or (B, P)."""
        return Emission(self, likelihoods.Gaussian(jnp.asarray(variance)))

    def observe(self, likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution]) -> Emission:
        """y | f(h) under a likelihood, or any scalar distribution: ``lambda f: dist.Poisson(jnp.exp(f))``.

        :raises ValueError: if the likelihood needs another number of functions than P.
        """
        known = isinstance(likelihood, likelihoods.Likelihood)
        return Emission(self, likelihood if known else likelihoods.Scalar(likelihood))  # type: ignore[arg-type]
