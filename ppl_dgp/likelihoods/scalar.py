"""Likelihoods of one function per target, p(y_np | f_np), by one-dimensional quadrature where no form is closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows, Likelihood, Targets
from ppl_dgp.likelihoods.quadrature import QuadratureNodes, deviation, plain_nodes, tilted_nodes
from ppl_dgp.numerics.power_mean import Alpha, is_number, log_power_mean

#: nodes of the mean that stays outside the logarithm, and of moments
OUTSIDE, MOMENTS = 32, 64


class Elementwise(Likelihood):
    """p(y_np | f_np), given by :meth:`of`; a subclass adds what it has in closed form.

    A likelihood of one's own is a frozen dataclass of this class, whose fields are the values that models learn:

    >>> @dataclass(frozen=True)
    ... class Weibull(Elementwise):
    ...     shape: float | Array = 2.0
    ...
    ...     def of(self, f):
    ...         return dist.Weibull(jnp.exp(f), self.shape)
    >>> float(Weibull(1.0).expected_log_density(jnp.ones(1), jnp.zeros(1), jnp.zeros(1))[0])
    -1.0
    """

    #: nodes K of the quadrature
    num_nodes: int = 64

    def of(self, f: Array) -> dist.Distribution:
        """The distribution of y given f, elementwise."""
        raise NotImplementedError

    def log_prob(self, y: Array, f: Array) -> Array:
        """log p(y|f), elementwise."""
        log_density: Array = self.of(f).log_prob(y)
        return log_density

    @property
    def support(self) -> constraints.Constraint:
        return self.of(jnp.zeros(())).support

    def nodes(
        self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha, number: int
    ) -> QuadratureNodes:
        """Nodes z, f = m + √v z, and their log weights."""
        return tilted_nodes(lambda f: self.log_prob(y, f), mean, variance, alpha, number)

    def outer_nodes(
        self, y: Array, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows
    ) -> QuadratureNodes:
        """Nodes of the mean m' = m + √outside z that stays outside the logarithm."""
        return self.nodes(y, mean, outside, 0.0, OUTSIDE)

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """t_α by adaptive quadrature over f ~ N(mean, variance)."""
        z, log_weights = self.nodes(y, mean, variance, alpha, self.num_nodes)
        return log_power_mean(self.log_prob(y, mean + deviation(variance) * z), alpha, log_weights)

    def tempered_outside(
        self, y: Array, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> FunctionRows:
        """E_{m'~N(m, outside)}[t_α(y; m', inside)], by quadrature in both."""
        if is_number(alpha, 0.0):
            return self.tempered(y, mean, inside + outside, alpha)
        z, log_weights = self.outer_nodes(y, mean, inside, outside)
        centres = mean + deviation(outside) * z
        return (jnp.exp(log_weights) * self._coarser().tempered(y, centres, inside, alpha)).sum(0)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        key_f, key_y = jax.random.split(key)
        noise = jax.random.normal(key_f, jnp.shape(mean), jnp.result_type(mean))
        draws: Array = self.of(mean + deviation(variance) * noise).sample(key_y)
        return draws

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """Mean and variance of y, by the laws of total expectation and variance."""
        z, log_weights = plain_nodes(MOMENTS, mean)
        weights, y = jnp.exp(log_weights), self.of(mean + deviation(variance) * z)
        centre = (weights * y.mean).sum(0)
        return centre, (weights * (y.variance + jnp.square(y.mean - centre))).sum(0)


@dataclass(frozen=True)
class Scalar(Elementwise):
    """Any scalar NumPyro distribution of f, by quadrature.

    :param of: maps f to the distribution of y, ``lambda f: dist.Poisson(jnp.exp(f))``.
    :param num_nodes: nodes of the quadrature; 64 reach 10⁻⁹ where log p(y|f) is concave in f and no sharper than
        10⁻² deviations of f.
    """

    of: Callable[[Array], dist.Distribution] = field(metadata=dict(static=True))  # type: ignore[assignment]
    num_nodes: int = 64

    def num_functions(self, num_targets: int) -> int:
        self._check_elementwise(num_targets)
        return num_targets

    def num_targets(self, num_functions: int) -> int:
        self._check_elementwise(num_functions)
        return num_functions

    def _check_elementwise(self, number: int) -> None:
        """Refuse, by a ValueError, what mixes the values of several functions or rows."""
        shape = (2, number)
        f = jax.ShapeDtypeStruct(shape, float)
        found = jax.eval_shape(lambda f: jnp.zeros(self.of(f).shape()), f).shape
        if found != shape:
            raise ValueError(
                f"likelihood: found a distribution of shape {found} for f of shape {shape}, expected one number y for "
                "each value of f; a likelihood of several functions is a subclass of ppl_dgp.likelihoods.Likelihood"
            )

    @property
    def expects(self) -> str:  # type: ignore[override]
        return f"values in {self.support}"
