"""What every likelihood offers: t_α(y) = (1/α) log E_{f~N(m,v)}[p(y|f)^α], t_0 = E[log p(y|f)] (docs/design.md, 4).

Shapes: ``y`` is (B, P), ``mean`` and ``variance`` those of the F functions behind it, (B, F), independent given the
row; t_α is (B, P). Most likelihoods have one function per target, F = P; their axes may also be broadcast, (K, B, P)
inside a quadrature. Variances may be 0, where f is known: values are then exact, and gradients finite.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.quadrature import deviation
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.power_mean import Alpha, is_number

FunctionRows = Float[Array, "*#rows"]  # (B, F), with axes in front inside a quadrature
Targets = Num[Array, "*#targets"]  # (B, P)


class Likelihood:
    """p(y | f). A subclass gives ``support``, ``tempered``, ``tempered_outside``, ``sample`` and ``moments``."""

    #: what y may be, in words
    expects: str = "finite numbers"
    #: whether y is one of several classes without order, of which quantiles mean nothing
    unordered: bool = False
    #: what y is: "numbers", "two classes", "classes" of which the likelihood knows how many, or "ordered classes"
    target: str = "numbers"
    #: a value that y can have, or one per target
    possible: float | Array = 0.0

    @property
    def support(self) -> constraints.Constraint:
        """The support of one y."""
        raise NotImplementedError

    def num_functions(self, num_targets: int) -> int:
        """How many functions P target columns need.

        :raises ValueError: if there can be no such number of columns.
        """
        return num_targets

    def num_targets(self, num_functions: int) -> int:
        """How many target columns that many functions make.

        :raises ValueError: if the number of functions does not fit.
        """
        return num_functions

    def tempered(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """t_α(y); ``alpha`` a number in [0, 1], or an array that broadcasts."""
        raise NotImplementedError

    def tempered_outside(
        self, y: Targets, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """E_{m'~N(m, outside)}[t_α(y; m', inside)]: a part of the variance stays outside the logarithm."""
        raise NotImplementedError

    def _outside_at_nodes(
        self,
        y: Targets,
        mean: FunctionRows,
        inside: FunctionRows,
        outside: FunctionRows,
        alpha: Alpha,
        nodes: tuple[np.ndarray, np.ndarray],
    ) -> Float[Array, "*#targets"]:
        """:meth:`tempered_outside` by nodes z (K, F) and weights (K,) of several functions, m' = m + √outside z.

        They average t_α − t_0 alone, which falls with α; the mean of t_0 is t_0 under the whole variance. So the value
        is continuous at α = 0, and the nodes err by a part of what α adds.
        """
        whole = self.tempered(y, mean, inside + outside, 0.0)
        if is_number(alpha, 0.0):
            return whole
        z, weights = (jnp.asarray(a, jnp.result_type(mean)) for a in nodes)
        centres = mean + deviation(outside) * z.reshape(len(z), *(1,) * (mean.ndim - 1), -1)
        arguments = jnp.broadcast_to(y, (len(z), *y.shape)), centres, jnp.broadcast_to(inside, centres.shape)
        added = self._added(*arguments, alpha)
        return whole + (weights.reshape(-1, *(1,) * (added.ndim - 1)) * added).sum(0)

    def _added(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """t_α − t_0, what α adds, under the outer mean of :meth:`_outside_at_nodes`."""
        return self._coarser().tempered(y, mean, variance, alpha) - self.tempered(y, mean, variance, 0.0)

    def _coarser(self) -> Likelihood:
        """Itself, with fewer nodes where those of an outer mean err by more; without a difference if not overridden."""
        return self

    def expected_log_density(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows
    ) -> Float[Array, "*#targets"]:
        """t_0 = E[log p(y|f)], of the variational bound."""
        return self.tempered(y, mean, variance, 0.0)

    def log_density(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows
    ) -> Float[Array, "*#targets"]:
        """t_1 = log E[p(y|f)], the predictive log density."""
        return self.tempered(y, mean, variance, 1.0)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        """A draw of f, then one of y."""
        raise NotImplementedError

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """Mean and variance of y; of classes, those of their indicators (…, C): p and p(1 − p)."""
        raise NotImplementedError

    def function_at(self, y: Targets) -> Targets:
        """Of each target, a value of f that makes it likely, for a model that begins at its data; y itself if f is y's
        own scale or no one value is better. NaN stays."""
        return y

    def check(self, y: Targets) -> None:
        """Refuse targets outside the support, where they are concrete (not traced); NaN is a missing entry.

        :raises ValueError: naming the first that is wrong.
        """
        if is_traced(y):
            return
        values = np.asarray(y)
        values = np.where(np.isnan(values), self.possible, values) if values.dtype.kind == "f" else values
        # on the host: constraints are comparisons, and each would be a program of its own on the device
        wrong = ~np.broadcast_to(np.asarray(self.support(values)), values.shape)
        if wrong.any():
            place = np.argwhere(wrong)[0]
            raise ValueError(
                f"y: found {values[tuple(place)]} at row {place[0]}, expected {self.expects} for "
                f"{type(self).__name__}; encode or remove it"
            )
