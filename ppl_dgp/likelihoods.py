"""Tempered expectations t_α(y) = (1/α) log E_{f~N(m,v)}[p(y|f)^α], t_0 = E[log p(y|f)] (design, section 4).

A likelihood here is a scalar one: p(y_np | f_np), independent over rows n and outputs p given f. Each offers the
tempered expectation, its variant in which a part of the variance stays outside the logarithm, and the moments and
draws of y. Shapes broadcast: y, mean and variance are (B, P), parameters anything that broadcasts against them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Num
from numpyro.distributions import constraints

from ppl_dgp.tempering import Alpha, log1p_ratio, log_power_mean

Rows = Float[Array, "*#rows"]  # (B, P), or (K, B, P) inside a quadrature
Targets = Num[Array, "*#rows"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """y = f + ε, ε ~ N(0, variance); variance a scalar, per output (P,), or per row (B, 1) or (B, P)."""

    variance: Array

    support = constraints.real

    def tempered(self, y: Array, mean: Rows, variance: Rows, alpha: Alpha) -> Rows:
        """t_α = −½ log 2πs² − (1/2α) log(1 + αv/s²) − ½ (y−m)²/(s² + αv); t_0 = log N(y; m, s²) − v/(2s²)."""
        s2 = self.variance
        constant = -0.5 * jnp.log(2.0 * pi * s2)
        if not isinstance(alpha, jax.Array) and alpha == 0.0:
            return constant - 0.5 * (jnp.square(y - mean) + variance) / s2
        penalty = 0.5 * log1p_ratio(alpha, variance / s2)
        return constant - penalty - 0.5 * jnp.square(y - mean) / (s2 + alpha * variance)

    def tempered_outside(self, y: Array, mean: Rows, inside: Rows, outside: Rows, alpha: Alpha) -> Rows:
        """E_{m'~N(m, outside)}[t_α(y; m', inside)]: t_α(y; m, D) − outside / (2(s² + αD))."""
        tempered = self.tempered(y, mean, inside, alpha)
        return tempered - 0.5 * outside / (self.variance + alpha * inside)

    def sample(self, key: Array, mean: Rows, variance: Rows) -> Rows:
        """A draw of y."""
        noise = jax.random.normal(key, jnp.shape(mean), jnp.result_type(mean))
        return mean + jnp.sqrt(variance + self.variance) * noise

    def moments(self, mean: Rows, variance: Rows) -> tuple[Rows, Rows]:
        """Mean and variance of y."""
        return mean, variance + self.variance


@dataclass(frozen=True)
class Scalar:
    """Any scalar NumPyro distribution of f, by Gauss–Hermite quadrature.

    :param of: maps f to the distribution of y, ``lambda f: dist.Poisson(jnp.exp(f))``.
    :param num_nodes: nodes of the quadrature; exact for polynomials in f up to degree 2·num_nodes − 1.
    """

    of: Callable[[Array], dist.Distribution]
    num_nodes: int = 32

    @property
    def support(self) -> constraints.Constraint:
        """The support of y."""
        return self.of(jnp.zeros(())).support

    def _nodes(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Values of f, (K, B, P), and log weights, (K, 1, 1)."""
        nodes, weights = np.polynomial.hermite.hermgauss(self.num_nodes)
        column = (-1,) + (1,) * jnp.ndim(mean)
        f = mean + _deviation(variance) * sqrt(2.0) * jnp.asarray(nodes, jnp.result_type(mean)).reshape(column)
        return f, jnp.asarray(np.log(weights / sqrt(pi)), f.dtype).reshape(column)

    def tempered(self, y: Array, mean: Rows, variance: Rows, alpha: Alpha) -> Rows:
        """t_α by quadrature over f ~ N(mean, variance)."""
        f, log_weights = self._nodes(mean, variance)
        return log_power_mean(self.of(f).log_prob(y), alpha, log_weights)

    def tempered_outside(self, y: Array, mean: Rows, inside: Rows, outside: Rows, alpha: Alpha) -> Rows:
        """E_{m'~N(m, outside)}[t_α(y; m', inside)], by quadrature in both."""
        if not isinstance(alpha, jax.Array) and alpha == 0.0:
            return self.tempered(y, mean, inside + outside, alpha)
        centres, log_weights = self._nodes(mean, outside)
        return (jnp.exp(log_weights) * self.tempered(y, centres, inside, alpha)).sum(0)

    def sample(self, key: Array, mean: Rows, variance: Rows) -> Targets:
        """A draw of f, then one of y."""
        key_f, key_y = jax.random.split(key)
        noise = jax.random.normal(key_f, jnp.shape(mean), jnp.result_type(mean))
        return self.of(mean + _deviation(variance) * noise).sample(key_y)

    def moments(self, mean: Rows, variance: Rows) -> tuple[Rows, Rows]:
        """Mean and variance of y, by the laws of total expectation and variance."""
        f, log_weights = self._nodes(mean, variance)
        weights, y = jnp.exp(log_weights), self.of(f)
        centre = (weights * y.mean).sum(0)
        return centre, (weights * (y.variance + jnp.square(y.mean - centre))).sum(0)


def _deviation(variance: Rows) -> Rows:
    """The square root, with gradient 0 rather than infinity at 0, where f is known exactly."""
    positive = variance > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


Likelihood = Gaussian | Scalar
