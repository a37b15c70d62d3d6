"""Gaussian noise, closed at every α."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows, Likelihood
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio, log_det_ratio


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y = f + ε, ε ~ N(0, variance); variance a scalar, per output (P,), or per row (B, 1) or (B, P)."""

    variance: Array = field(metadata=dict(start=0.1, site="noise"))

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """t_α = −½ log 2πs² − (1/2α) log(1 + αv/s²) − ½ (y−m)²/(s² + αv); t_0 = log N(y; m, s²) − v/(2s²)."""
        s2 = self.variance
        penalty = 0.5 * log1p_ratio(alpha, variance / s2)
        return -0.5 * jnp.log(2.0 * pi * s2) - penalty - 0.5 * jnp.square(y - mean) / (s2 + alpha * variance)

    def tempered_outside(
        self, y: Array, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> FunctionRows:
        """E_{m'~N(m, outside)}[t_α(y; m', inside)]: t_α(y; m, D) − outside / (2(s² + αD))."""
        tempered = self.tempered(y, mean, inside, alpha)
        return tempered - 0.5 * outside / (self.variance + alpha * inside)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        noise = jax.random.normal(key, jnp.shape(mean), jnp.result_type(mean))
        return mean + jnp.sqrt(variance + self.variance) * noise

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        return mean, variance + self.variance


def tempered_jointly(
    residual: Float[Array, "B P"], covariance: Float[Array, "B P P"], noise: Float[Array, "B P"], alpha: Alpha
) -> Float[Array, "B"]:
    """t_α of outputs that are correlated, f ~ N(m, V), y = f + ε, ε ~ N(0, R) with R diagonal (Bui 2017, 3.78).

    −½ log |2πR| − (1/2α) log |I + αR⁻½VR⁻½| − ½ (y − m)ᵀ(R + αV)⁻¹(y − m); an output of infinite noise counts for
    nothing.
    """
    seen = jnp.isfinite(noise)
    volume = jnp.where(seen, jnp.log(2.0 * pi * jnp.where(seen, noise, 1.0)), 0.0)
    root = jnp.where(seen, 1.0 / jnp.sqrt(jnp.where(seen, noise, 1.0)), 0.0)
    ratio = root[:, :, None] * covariance * root[:, None, :]
    lower, _ = cholesky(jnp.eye(ratio.shape[-1], dtype=ratio.dtype) + alpha * ratio, 0.0)
    log_det = 2.0 * jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(1)
    whitened = jax.scipy.linalg.solve_triangular(lower, (root * residual)[:, :, None], lower=True)[:, :, 0]
    return -0.5 * (volume.sum(1) + log_det_ratio(alpha, ratio, log_det) + jnp.square(whitened).sum(1))
