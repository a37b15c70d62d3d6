r"""Marginals whose outputs are correlated given u in each row, and their emissions.

At α = 0 a likelihood of single columns sees their variances alone; at α > 0 the integral over a row's outputs is one,
which Gaussian noise has in closed form (docs/design.md, "Mixed outputs").
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission, check_shape
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.likelihoods.gaussian import tempered_jointly
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha, is_number


@dataclass(frozen=True, eq=False)
class CorrelatedMarginal(Marginal):
    """Marginals whose ``residual`` and ``from_u`` are the diagonals of covariances between the outputs of a row.

    To be observed, by noise or by a likelihood of each column, which may lack entries, and as a hidden layer under
    ``DoublyStochastic()``.
    """

    #: what makes them, and what to do instead of arithmetic
    made_by: ClassVar[str]
    remedy: ClassVar[str]

    @abstractmethod
    def given_u(self) -> Float[Array, "B P P"]:
        """Covariance of each row's outputs given u."""

    @abstractmethod
    def through_u(self) -> Float[Array, "B P P"]:
        """What the moments of u add to it."""

    def rows_drawn(self, key: Array, sample_shape: tuple[int, ...]) -> Float[Array, "*S B P"]:
        """Draws of f of each row alone."""
        lower, _ = cholesky(self.given_u() + self.through_u())
        noise = jax.random.normal(key, sample_shape + self.mean.shape, self.mean.dtype)
        return self.mean + jnp.einsum("bpr,...br->...bp", lower, noise)

    def noisy(self, variance: Any) -> Emission:
        return CorrelatedEmission(self, likelihoods.Gaussian(jnp.asarray(variance)))

    def observe(self, likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution]) -> Emission:
        plain = super().observe(likelihood)
        if plain.likelihood.num_targets(self.mean.shape[1]) != self.mean.shape[1]:
            raise ValueError(
                f"likelihood: found {type(plain.likelihood).__name__}, whose targets are of several functions each, "
                "expected one of single columns"
            )
        return CorrelatedEmission(self, plain.likelihood)

    def output(self, which: Int[Array, " B"]) -> Marginal:
        raise self._refusal("one output per row")

    def __add__(self, other: Any) -> Any:
        raise self._refusal("a sum")

    def __mul__(self, scale: Any) -> Any:
        raise self._refusal("a multiple")

    __radd__ = __add__
    __rmul__ = __mul__

    def _refusal(self, what: str) -> ValueError:
        return ValueError(
            f"{self.made_by}: found {what} of {self.made_by} outputs, expected them to be observed; {self.remedy}"
        )


class CorrelatedEmission(Emission):
    """Noisy or observed outputs that are correlated given u."""

    marginal: CorrelatedMarginal
    correlated = True

    def partly_observed(self) -> Emission:
        return CorrelatedEmission(self.marginal, self.likelihood, partly=True)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        """t_α of each row, its outputs together.

        :raises ValueError: at α > 0 under another likelihood than Gaussian noise.
        """
        if is_number(alpha, 0.0):
            return super().tempered(value, alpha, u_outside=u_outside)
        marginal = self.marginal
        if not isinstance(self.likelihood, likelihoods.Gaussian):
            raise ValueError(
                f"alpha: found {alpha} for {marginal.made_by} outputs under {type(self.likelihood).__name__}, whose "
                "integral over the outputs of a row is known under Gaussian noise alone; take alpha=0"
            )
        check_shape(value, self)
        seen = ~jnp.isnan(value) if self.partly else jnp.ones(value.shape, bool)
        noise = jnp.where(seen, self.likelihood.variance, jnp.inf)
        residual = jnp.where(seen, value, marginal.mean) - marginal.mean
        given_u, through_u = marginal.given_u(), marginal.through_u()
        covariance = given_u if u_outside else given_u + through_u
        rows = tempered_jointly(residual, covariance, noise, alpha)
        if not u_outside:
            return rows
        # E over u of the quadratic form: the trace of what u adds
        root = jnp.where(seen, 1.0 / jnp.sqrt(jnp.where(seen, noise, 1.0)), 0.0)
        scaled = lambda matrices: root[:, :, None] * matrices * root[:, None, :]
        inner = jnp.eye(value.shape[-1], dtype=covariance.dtype) + alpha * scaled(covariance)
        added: Array = jnp.trace(jnp.linalg.solve(inner, scaled(through_u)), axis1=1, axis2=2)
        return rows - 0.5 * added

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (B, P): of f, then of y."""
        key_f, key_y = jax.random.split(key)
        drawn = self.marginal.rows_drawn(key_f, sample_shape)
        draws: Array = self.likelihood.sample(key_y, drawn, jnp.zeros_like(drawn))
        return draws
