"""Marginals of sparse GPs at inputs, given their inducing outputs or under their moments; they add up.

``f(x) + g(z)``, ``2 * f(x)``, ``f(x) + x @ beta`` are marginals like ``f(x)``, observed and made noisy like it, for
additive models and fixed effects. The moments of a sum are those of :mod:`ppl_dgp.gp.sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.features import Functionals
from ppl_dgp.gp.means import affine
from ppl_dgp.gp.separate import check_shared
from ppl_dgp.gp.sums import (
    FunctionSum,
    ScaledMarginal,
    added_covariance,
    added_variances,
    distinct_inputs,
    inputs_side_by_side,
    per_entry,
)
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky

if TYPE_CHECKING:
    from ppl_dgp.gp.sparse_gp import SparseGP
else:  # a function makes marginals: its file imports this one
    SparseGP = Any


@dataclass(frozen=True, eq=False)
class Marginal:
    """Marginals of f at inputs h, and where they came from.

    ``residual`` (B, 1) is D(h), the variance of f given u, (B, P) where scales or kernels are each output's; ``from_u``
    (B, P) what the moments of u add to it, and those of the inputs where they are uncertain (``weights`` and
    ``residual`` are then averages). Marginals add up, and can be multiplied by numbers (see :class:`MarginalSum`).
    """

    #: NumPy arrays on the left leave the arithmetic to the marginal
    __array_ufunc__ = None

    function: SparseGP
    inputs: Float[Array, "B D"] | Gaussian | Functionals
    weights: Float[Array, "B *P M"]
    mean: Float[Array, "B P"]
    residual: Float[Array, "B #P"]
    from_u: Float[Array, "B P"]

    @property
    def rows(self) -> Float[Array, "B D"]:
        """The inputs, where they are draws.

        :raises TypeError: where they are carried as moments, or are functionals.
        """
        if isinstance(self.inputs, Gaussian | Functionals):
            what = "moments of the inputs" if isinstance(self.inputs, Gaussian) else "functionals"
            raise TypeError(f"{self.function.name}: found {what}, expected draws (B, D)")
        return self.inputs

    @property
    def variance(self) -> Float[Array, "B P"]:
        """Variance of f, (B, P)."""
        return self.residual + self.from_u

    @property
    def terms(self) -> tuple[ScaledMarginal, ...]:
        """The multiples c f(h) of single functions that it is the sum of: itself."""
        return (ScaledMarginal(jnp.ones((1, 1), self.mean.dtype), self),)

    @property
    def functions(self) -> dict[str, SparseGP]:
        """The functions that it is made of, by name."""
        return {term.marginal.function.name: term.marginal.function for term in self.terms}

    def joint(self) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        """Mean (B, P) and full covariance (P, B, B) over the rows, given u or under its moments."""
        return self.function.joint(self.inputs if isinstance(self.inputs, Functionals) else self.rows)

    def draw(self, key: Array) -> Float[Array, "B P"]:
        """A draw of f, joint over the rows, given u or under its moments."""
        mean, covariance = self.joint()
        lower, _ = cholesky(covariance)
        return mean + jnp.einsum("pnm,mp->np", lower, jax.random.normal(key, mean.shape))

    def slope(self, num_inputs: int) -> Float[Array, "B P D"]:
        """Derivative of the mean function with respect to the D inputs, 0 where it is constant."""
        rows, outputs = self.mean.shape
        weights, _ = affine(self.function.mean, num_inputs)
        linear = jnp.zeros((outputs, num_inputs)) if weights is None else weights.T
        return jnp.broadcast_to(linear, (rows, outputs, num_inputs))

    def output(self, which: Int[Array, " B"]) -> Marginal:
        """The marginal of one output per row, (B, 1), as where a row belongs to one of several functions."""
        check_shared(self.function, "output()")
        return replace(self, mean=_pick(self.mean, which), from_u=_pick(self.from_u, which))

    def noisy(self, variance: Any) -> Emission:
        """f(h) + ε, ε ~ N(0, variance): scalar, per output (P,), or per row (B, 1) or (B, P)."""
        return Emission(self, likelihoods.Gaussian(jnp.asarray(variance)))

    def observe(self, likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution]) -> Emission:
        """y | f(h) under a likelihood, or any scalar distribution: ``lambda f: dist.Poisson(jnp.exp(f))``.

        :raises ValueError: if the likelihood needs another number of functions than P.
        """
        is_likelihood = isinstance(likelihood, likelihoods.Likelihood)
        return Emission(self, likelihood if is_likelihood else likelihoods.Scalar(likelihood))  # type: ignore[arg-type]

    def __add__(self, other: Any) -> MarginalSum:
        """f(h) + g(h'), or f(h) + an offset: a number, (P,), (B, 1) or (B, P).

        :raises ValueError: if shapes do not fit, or the values are correlated in a way that is not known.
        """
        if not isinstance(other, Marginal):
            return _marginal_sum(self.terms, self.mean + per_entry("offset", other, self.mean))
        if other.mean.shape != self.mean.shape:
            raise ValueError(
                f"functions: found values of shapes {self.mean.shape} and {other.mean.shape} in one sum, expected the "
                "same rows and outputs; give each function as many outputs"
            )
        return _marginal_sum((*self.terms, *other.terms), self.mean + other.mean)

    def __mul__(self, scale: Any) -> MarginalSum:
        """f(h) times a number, (P,), (B, 1) or (B, P).

        :raises ValueError: if shapes do not fit.
        :raises TypeError: for the product of two functions, which is no Gaussian process.
        """
        if isinstance(scale, Marginal):
            raise TypeError(
                "scale: found a function, expected numbers: a product of functions is no Gaussian process; sample one "
                "of them first, h = numpyro.sample(name, f(x).noisy(variance), infer={'role': 'hidden'})"
            )
        matrix = per_entry("scale", scale, self.mean)
        terms = tuple(ScaledMarginal(matrix * term.scale, term.marginal) for term in self.terms)
        return _marginal_sum(terms, matrix * self.mean)

    def __neg__(self) -> MarginalSum:
        return self * -1.0

    def __sub__(self, other: Any) -> MarginalSum:
        difference: MarginalSum = self + -other
        return difference

    def __rsub__(self, other: Any) -> MarginalSum:
        difference: MarginalSum = -self + other
        return difference

    def __truediv__(self, scale: Any) -> MarginalSum:
        quotient: MarginalSum = self * (1.0 / scale)
        return quotient

    __radd__ = __add__
    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class WeightedMarginal(Marginal):
    """Marginals of f under moments that know its mean and variance by themselves, as weights of a residual's kernel do.

    ``weights``, ``residual`` and ``from_u`` are what they always are, by Kuu's Cholesky factor, which a compiled
    program that reads ``mean`` and ``variance`` alone leaves out.

    :param total: the variance of f, (B, P).
    """

    total: Float[Array, "B P"]

    @property
    def variance(self) -> Float[Array, "B P"]:
        return self.total

    def output(self, which: Int[Array, " B"]) -> Marginal:
        mean, from_u, total = (_pick(part, which) for part in (self.mean, self.from_u, self.total))
        return replace(self, mean=mean, from_u=from_u, total=total)


@dataclass(frozen=True, eq=False)
class MarginalSum(Marginal):
    """Marginals of Σ_i c_i f_i(h_i) + offset, as ``f(x) + g(z)``, ``2 * f(x)`` and ``f(x) + x @ beta`` make them.

    It is observed, made noisy, guided and predicted as f(h) is, at every α, wherever means and variances say all that
    is needed. ``function`` stands for no sparse GP, and refuses what is read of one; ``weights`` are (B, 0).
    ``inputs`` are those of all functions, side by side.
    """

    terms: tuple[ScaledMarginal, ...] = ()

    def output(self, which: Int[Array, " B"]) -> Marginal:
        terms = tuple(
            ScaledMarginal(_pick(term.scale, which), term.marginal.output(which)) for term in self.terms
        )
        mean, residual, from_u = (_pick(part, which) for part in (self.mean, self.residual, self.from_u))
        return replace(self, terms=terms, mean=mean, residual=residual, from_u=from_u)

    def joint(self) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        return self.mean, added_covariance(self.terms)

    def slope(self, num_inputs: int) -> Float[Array, "B P D"]:
        columns = []
        for inputs in distinct_inputs(self.terms):
            width = (inputs.mean if isinstance(inputs, Gaussian) else inputs).shape[1]
            of_them = [term for term in self.terms if term.marginal.inputs is inputs]
            columns.append(sum(term.scale[:, :, None] * term.marginal.slope(width) for term in of_them))
        return jnp.concatenate(columns, 2)


def _marginal_sum(terms: tuple[ScaledMarginal, ...], mean: Float[Array, "B P"]) -> MarginalSum:
    residual, from_u = added_variances(terms)
    function: Any = FunctionSum([term.marginal.function.name for term in terms])
    weights = jnp.zeros((mean.shape[0], 0), mean.dtype)
    return MarginalSum(function, inputs_side_by_side(terms), weights, mean, residual, from_u, terms)


def _pick(values: Float[Array, "#B P"], which: Int[Array, " B"]) -> Float[Array, "#B 1"]:
    """One column per row; the only one where all outputs share it."""
    return values if values.shape[1] == 1 else jnp.take_along_axis(values, which[:, None], 1)
