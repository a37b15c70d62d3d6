"""Gaussian noise whose variance is a second function: y ~ N(f, noise · exp(g)) (Lázaro-Gredilla & Titsias 2011)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.gaussian import Gaussian
from ppl_dgp.likelihoods.likelihood import FunctionRows, Likelihood, Targets
from ppl_dgp.likelihoods.quadrature import deviation, tilted_nodes
from ppl_dgp.numerics.power_mean import Alpha, is_number, log_power_mean

#: Gauss–Hermite nodes per function of the means that stay outside the logarithm
OUTSIDE_NODES = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Heteroscedastic(Likelihood):
    """y_p ~ N(f_p, noise · exp(g_p)): the functions are f_1 … f_P, g_1 … g_P, so that means and variances are (B, 2P).

    f is integrated out in closed form, g by quadrature where α > 0.
    """

    noise: float | Array = field(default=1.0, metadata=dict(start=0.1))
    num_nodes: int = field(default=64, metadata=dict(static=True))

    def _parts(self, mean: FunctionRows, variance: FunctionRows) -> tuple[Array, Array, Array, Array]:
        """Mean of f and of the log variance of the noise, variances of both."""
        (m_f, m_g), (v_f, v_g) = jnp.split(mean, 2, -1), jnp.split(variance, 2, -1)
        return m_f, m_g + jnp.log(self.noise), v_f, v_g

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def num_functions(self, num_targets: int) -> int:
        return 2 * num_targets

    def num_targets(self, num_functions: int) -> int:
        if num_functions % 2:
            raise ValueError(
                f"likelihood: found {num_functions} functions for Heteroscedastic, expected two per target; make the "
                "GP with num_outputs=2"
            )
        return num_functions // 2

    def tempered(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """With m_g that of g + log noise, t_0 = −½ log 2π − m_g/2 − ½ ((y − m_f)² + v_f) exp(v_g/2 − m_g)."""
        m_f, m_g, v_f, v_g = self._parts(mean, variance)
        if is_number(alpha, 0.0):
            squared = jnp.square(y - m_f) + v_f
            return -0.5 * log(2.0 * pi) - 0.5 * m_g - 0.5 * squared * jnp.exp(0.5 * v_g - m_g)

        def given(g: Array) -> Array:
            return Gaussian(jnp.exp(g)).tempered(y, m_f, v_f, alpha)

        z, log_weights = tilted_nodes(given, m_g, v_g, alpha, self.num_nodes)
        return log_power_mean(given(m_g + deviation(v_g) * z), alpha, log_weights)

    def tempered_outside(
        self, y: Targets, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """The outer mean of what α adds to t_0 by Gauss–Hermite in f and g, 8 × 8 nodes."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(OUTSIDE_NODES)
        number = mean.shape[-1] // 2
        both = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2).repeat(number, 1)
        product = np.outer(weights, weights).ravel() / weights.sum() ** 2
        return self._outside_at_nodes(y, mean, inside, outside, alpha, (both, product))

    def _coarser(self) -> Heteroscedastic:
        # three quarters: with half of 64 a traced α of 0 would be 10⁻⁶ off the bound, so 10⁻⁹
        return replace(self, num_nodes=(3 * self.num_nodes + 3) // 4)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        key_f, key_y = jax.random.split(key)
        noise = jax.random.normal(key_f, jnp.shape(mean), jnp.result_type(mean))
        f, g = jnp.split(mean + deviation(variance) * noise, 2, -1)
        return f + jnp.sqrt(self.noise) * jnp.exp(0.5 * g) * jax.random.normal(key_y, jnp.shape(f), f.dtype)

    def moments(
        self, mean: FunctionRows, variance: FunctionRows
    ) -> tuple[Float[Array, "*#targets"], Float[Array, "*#targets"]]:
        """m_f, and v_f + exp(m_g + v_g/2), (B, P)."""
        m_f, m_g, v_f, v_g = self._parts(mean, variance)
        return m_f, v_f + jnp.exp(m_g + 0.5 * v_g)
