"""Counts, positive numbers and fractions, whose mean is a function of f: exp(f), or the logistic 1/(1 + exp(−f))."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.nn import log_sigmoid
from jax.scipy.special import gammaln
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows
from ppl_dgp.likelihoods.scalar import Elementwise
from ppl_dgp.numerics.power_mean import Alpha, is_number


def _static(default: int) -> Any:
    return field(default=default, metadata=dict(static=True))


class _LogLink(Elementwise):
    """E[y|f] = exp(f)."""

    def function_at(self, y: Array) -> Array:
        """log(y + 1/2): counts may be 0."""
        return jnp.log(y + 0.5)

    def spread(self, square: Array, mean: Array) -> Array:
        """E[Var[y|f]], from E[exp(2f)] and E[exp(f)]."""
        raise NotImplementedError

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """Closed, from E[exp(f)] = exp(m + v/2) and E[exp(2f)] = exp(2m + 2v)."""
        centre = jnp.exp(mean + 0.5 * variance)
        square = jnp.exp(2.0 * (mean + variance))
        return centre, self.spread(square, centre) + jnp.square(centre) * jnp.expm1(variance)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Poisson(_LogLink):
    """Counts, y ~ Poisson(exp(f))."""

    num_nodes: int = _static(64)

    expects = "whole numbers of at least 0"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.nonnegative_integer

    def of(self, f: Array) -> dist.Distribution:
        return dist.Poisson(jnp.exp(f))

    def log_prob(self, y: Array, f: Array) -> Array:
        return y * f - jnp.exp(f) - gammaln(y + 1.0)

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """t_0 = y m − exp(m + v/2) − log y!; quadrature else."""
        if is_number(alpha, 0.0):
            return y * mean - jnp.exp(mean + 0.5 * variance) - gammaln(y + 1.0)
        return super().tempered(y, mean, variance, alpha)

    def spread(self, square: Array, mean: Array) -> Array:
        return mean


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NegativeBinomial(_LogLink):
    """Counts with mean exp(f) and variance exp(f) + exp(2f)/concentration."""

    concentration: float | Array = field(metadata=dict(start=1.0))
    num_nodes: int = _static(64)

    expects = "whole numbers of at least 0"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.nonnegative_integer

    def of(self, f: Array) -> dist.Distribution:
        return dist.NegativeBinomial2(jnp.exp(f), self.concentration)

    def log_prob(self, y: Array, f: Array) -> Array:
        """In logits l = f − log r: y log σ(l) + r log σ(−l) + log Γ(y + r)/(Γ(r) y!)."""
        r = self.concentration
        logit = f - jnp.log(r)
        counts = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        return y * log_sigmoid(logit) + r * log_sigmoid(-logit) + counts

    def spread(self, square: Array, mean: Array) -> Array:
        return mean + square / self.concentration


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gamma(_LogLink):
    """Positive numbers with mean exp(f) and variance exp(2f)/concentration; concentration 1 is the exponential."""

    concentration: float | Array = field(metadata=dict(start=1.0))
    num_nodes: int = _static(64)

    expects = "positive numbers"

    possible = 1.0

    @property
    def support(self) -> constraints.Constraint:
        return constraints.positive

    def of(self, f: Array) -> dist.Distribution:
        return dist.Gamma(self.concentration, self.concentration * jnp.exp(-f))

    def log_prob(self, y: Array, f: Array) -> Array:
        return self._constant(y) - self.concentration * (f + y * jnp.exp(-f))

    def function_at(self, y: Array) -> Array:
        return jnp.log(y)

    def _constant(self, y: Array) -> Array:
        k = jnp.asarray(self.concentration)
        return k * jnp.log(k) + (k - 1.0) * jnp.log(y) - gammaln(k)

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """t_0 = k log k + (k−1) log y − log Γ(k) − k m − k y exp(v/2 − m); quadrature else."""
        if is_number(alpha, 0.0):
            return self._constant(y) - self.concentration * (mean + y * jnp.exp(0.5 * variance - mean))
        return super().tempered(y, mean, variance, alpha)

    def spread(self, square: Array, mean: Array) -> Array:
        return square / self.concentration


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beta(Elementwise):
    """Fractions with mean µ = 1/(1 + exp(−f)) and variance µ(1 − µ)/(1 + concentration)."""

    concentration: float | Array = field(metadata=dict(start=10.0))
    num_nodes: int = _static(64)

    expects = "numbers between 0 and 1, neither of them included,"

    possible = 0.5

    @property
    def support(self) -> constraints.Constraint:
        return constraints.open_interval(0.0, 1.0)

    def of(self, f: Array) -> dist.Distribution:
        return dist.Beta(self.concentration * jax.nn.sigmoid(f), self.concentration * jax.nn.sigmoid(-f))

    def function_at(self, y: Array) -> Array:
        return jnp.log(y) - jnp.log1p(-y)

    def log_prob(self, y: Array, f: Array) -> Array:
        """(a−1) log y + (b−1) log(1−y) − log B(a, b), a = φµ, b = φ(1−µ), with Γ(a) = Γ(1+a)/a, which a = 0 allows."""
        k = jnp.asarray(self.concentration)
        a, b = k * jax.nn.sigmoid(f), k * jax.nn.sigmoid(-f)
        reciprocal = 2.0 * jnp.log(k) + log_sigmoid(f) + log_sigmoid(-f) - gammaln(1.0 + a) - gammaln(1.0 + b)
        return (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y) + gammaln(k) + reciprocal
