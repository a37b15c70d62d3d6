r"""A layer as a linear regression on its whitened features φ(h⁻), u integrated out in closed form.

The targets are h = slope h⁻ + ε under q, or data; with r = h − m(h⁻), weights w = 1/(s² + α⟨D⟩) and

.. math::
    A = \sum_n w_n \langle φ_n φ_n^\top\rangle, \qquad b = \sum_n w_n \langle r_n φ_n\rangle

the optimal q(u) of the whitened u is N((I + A)⁻¹ b, (I + A)⁻¹). For certain inputs this is the posterior of Power EP at
any α (Bui, Yan & Turner 2017; :mod:`ppl_dgp.objectives.deterministic_inputs`); for uncertain ones the optimum of the
mean-field bound (Damianou & Lawrence 2013; Chamberlin 2016, 2.5), and of the Markov one (4.6), at α = 0. Shapes: N
rows, P outputs, M inducing points, and C columns of noise: 1, or P where the outputs' noise differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ppl_dgp import expectations
from ppl_dgp.gp.features import inducing_points
from ppl_dgp.gp.means import affine
from ppl_dgp.gp.moment_matching import Function, pieces
from ppl_dgp.gp.old_posterior import Site
from ppl_dgp.gp.separate import Pieces, for_each_output, outputs_of
from ppl_dgp.numerics.double_precision import in_double
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower, weighted_grams
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio
from ppl_dgp.objectives.factors import Factors

Part = TypeVar("Part")


@dataclass(frozen=True)
class Statistics:
    """Sums over the rows that hold all that the energy and q(u) need: A, b, and what does not depend on u, in nats.

    ``squares`` is Σ w⟨r²⟩ of uncertain inputs, above which bᵀ(I + A)⁻¹b is by rounding alone; None where A is a product
    of features with themselves, or more than rows are in b.
    """

    gram: Float[Array, "C M M"]
    products: Float[Array, "P M"]
    constant: Float[Array, ""]
    squares: Float[Array, ""] | None = None

    @classmethod
    def alike(
        cls,
        total: Float[Array, "M M"],
        products: Float[Array, "P M"],
        squares: Float[Array, " P"],
        variance: Float[Array, ""],
        rows: Float[Array, ""] | int,
        noise: Float[Array, " C"],
        corrected: bool,
    ) -> Statistics:
        """At α = 0 under the same noise everywhere, of Σ φφᵀ, Σ rφᵀ, Σ ⟨r²⟩ and Σ k(x_n, x_n) of so many rows."""
        each = jnp.broadcast_to(noise, squares.shape)
        constant = -0.5 * (rows * jnp.log(2.0 * pi * each) + squares / each).sum()
        if corrected:
            # Σ_n D_n, not negative in exact arithmetic
            left = jnp.maximum(variance - jnp.trace(total), 0.0)
            constant = constant - 0.5 * (left / each).sum()
        return cls(total / noise[:, None, None], products / each[:, None], constant)

    def remembering(self, site: Site) -> Statistics:
        """With what earlier data said of u beside them: rows like any other, and what does not depend on u."""
        seen, targets = site.features, site.targets
        return Statistics(
            self.gram + jnp.swapaxes(seen, -1, -2) @ seen,
            self.products + jnp.einsum("pam,pa->pm", seen, targets) + site.linear,
            self.constant + site.constant - 0.5 * jnp.square(targets).sum(),
        )

    def energy(self) -> Float[Array, ""]:
        """The log evidence of the targets with u integrated out, and power EP's correction for D, in total nats."""
        lowers, products = self._solved()
        # log |I + A| of each output, and bᵀ (I + A)⁻¹ b
        log_det = 2.0 * jnp.log(jnp.diagonal(lowers, axis1=1, axis2=2)).sum() * (len(products) // len(lowers))
        explained = jnp.square(products).sum()
        if self.squares is not None:
            explained = jnp.minimum(explained, self.squares)
        return self.constant + 0.5 * (explained - log_det)

    def optimum(self) -> Gaussian:
        """The optimal q(u): means (P, M) and lower Cholesky factors (P, M, M), whitened."""
        lowers, products = self._solved()
        outputs, size = products.shape
        inverses = inverse_lower(lowers)
        mean = jnp.einsum("cmk,pm->pck" if len(lowers) == 1 else "pmk,pm->pk", inverses, products)
        covariance = jnp.swapaxes(inverses, -1, -2) @ inverses
        scale, _ = cholesky(jnp.broadcast_to(covariance, (outputs, size, size)), 0.0)
        return Gaussian(mean.reshape(outputs, size), scale)

    def _solved(self) -> tuple[Float[Array, "C M M"], Float[Array, "P M"]]:
        """L_B with L_B L_Bᵀ = I + A, for each column of noise, and L_B⁻¹ b."""
        lowers, _ = cholesky(jnp.eye(self.gram.shape[-1], dtype=self.gram.dtype) + self.gram, 0.0)
        if len(lowers) == 1:
            return lowers, solve_triangular(lowers[0], self.products.T, lower=True).T
        return lowers, solve_triangular(lowers, self.products[:, :, None], lower=True)[:, :, 0]


class Features:
    """The inputs of a layer, as its regression needs them."""

    #: whether 32 bits do not hold the sums; a gram matrix that is a product with its transpose is positive in any
    wide: ClassVar[bool] = False

    def statistics(self, noise: Float[Array, "#N C"], factors: Factors) -> Statistics:
        """The sums over rows under Gaussian noise of the given variance, one row of it if all have the same."""
        raise NotImplementedError


def row_constant(
    weights: Float[Array, "N C"],
    squares: Float[Array, "N P"],
    ratio: Float[Array, "N C"],
    alpha: Alpha,
    corrected: bool = True,
    counts: Float[Array, " N"] | None = None,
) -> Float[Array, ""]:
    """Σ −½ (log 2π/w + w⟨r²⟩) and power EP's correction, a factor per row; ``ratio`` is D / s², α broadcasts to it.

    A weight of 0, where the noise is infinite, is that of an entry that was not observed.

    :param counts: how often each row counts, once if None.
    """
    seen, times = weights > 0.0, 1.0 if counts is None else counts[:, None]
    volume = jnp.where(seen, jnp.log(2.0 * pi / jnp.where(seen, weights, 1.0)), 0.0)
    total = -0.5 * (times * (volume + weights * squares)).sum()
    if not corrected:
        return total
    correction = jnp.where(seen, 0.5 * (1.0 - alpha) * log1p_ratio(alpha, ratio), 0.0)
    return total - jnp.broadcast_to(times * correction, squares.shape).sum()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GaussianInputs(Features):
    """At inputs h⁻ ~ N(m, V), by kernel expectations; r = rest·h⁻ + offset + ε, ε centred; ``phi`` is ⟨φ⟩."""

    phi: Float[Array, "N M"]
    function: Pieces
    inputs: Gaussian
    rest: Float[Array, "N P D"] | None
    offset: Float[Array, "N P"]
    variance: Float[Array, "N P"]

    wide = True

    @classmethod
    def of(
        cls, phi: Float[Array, "N M"], f: Function, inputs: Gaussian, slope: Array | None, noise: Gaussian
    ) -> GaussianInputs:
        """Those of a layer whose targets are slope h⁻ + ε, ε with moments ``noise``."""
        linear, bias = affine(f.mean, inputs.mean.shape[1])
        rest = None if linear is None else -linear.T
        if slope is not None:
            rest = slope if rest is None else slope + rest
        if rest is not None:
            rest = jnp.broadcast_to(rest, (inputs.mean.shape[0], *rest.shape[-2:]))
        return cls(phi, pieces(f), inputs, rest, noise.mean - bias, noise.variance)

    def statistics(self, noise: Float[Array, "#N C"], factors: Factors) -> Statistics:
        """The sums over rows, by kernel expectations; at α = 0 alone."""
        weights = jnp.broadcast_to(1.0 / noise, (len(self.phi), noise.shape[1]))
        gram = self._gram(weights)
        squares = self._squares()
        products = self._products(jnp.broadcast_to(weights, squares.shape))
        constant = row_constant(weights, squares, weights, 0.0, corrected=False)
        # Σ w⟨D⟩ = Σ w ψ0 − tr A: row by row it would lose digits to Kzz⁻¹, and cost as much again as A. Where f varies
        # so much more than its noise that rounding makes it negative, a bound without its floor has no top
        residual = weights.T @ expectations.psi0(self.function.kernel, self.inputs)
        residual = jnp.maximum(residual - jnp.trace(gram, axis1=1, axis2=2), 0.0)
        constant = constant - 0.5 * residual.sum() * (len(products) // len(gram))
        return Statistics(gram, products, constant, (weights * squares).sum())

    def _gram(self, weights: Float[Array, "N C"]) -> Float[Array, "C M M"]:
        # as ⟨φ⟩⟨φ⟩ᵀ + Cov[φ]: whitened on both sides, ψ2 would lose the digits of Kzz⁻¹, which are nats beside A
        f = self.function
        beyond = expectations.kernel_covariance_sum(
            f.kernel, self.inputs, inducing_points(f.inducing), weights
        )
        known = weighted_grams(self.phi, weights)
        return known + f.whiten @ beyond @ f.whiten.T

    def _products(self, weights: Float[Array, "N P"]) -> Float[Array, "P M"]:
        products = (weights * self.offset).T @ self.phi
        if self.rest is None:
            return products
        f = self.function
        cross = expectations.psi4(f.kernel, self.inputs, inducing_points(f.inducing), self.rest)
        return products + jnp.einsum("np,npm->pm", weights, cross) @ f.whiten.T

    def _squares(self) -> Float[Array, "N P"]:
        mean, variance = self.offset, self.variance
        if self.rest is not None:
            mean = mean + jnp.einsum("npd,nd->np", self.rest, self.inputs.mean)
            covariance = self.inputs.covariance()
            variance = variance + jnp.einsum("npd,nde,npe->np", self.rest, covariance, self.rest)
        return jnp.square(mean) + variance


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SeparateInputs(Features):
    """Those of outputs with kernels of their own: ``parts`` of :class:`GaussianInputs` with a leading axis of them."""

    parts: Any
    inputs: Gaussian

    wide = True

    @classmethod
    def of(
        cls, phi: Float[Array, "N P M"], f: Function, inputs: Gaussian, slope: Array | None, noise: Gaussian
    ) -> SeparateInputs:
        """As :meth:`GaussianInputs.of`."""

        def one(
            f: Function, phi: Array, slope: Array | None, mean: Array, deviation: Array
        ) -> tuple[Any, ...]:
            found = GaussianInputs.of(phi[:, 0], f, inputs, slope, Gaussian(mean, deviation))
            return found.phi, found.rest, found.offset, found.variance

        parts = for_each_output(one, f, phi, slope, noise.mean, jnp.sqrt(noise.variance))
        return cls((outputs_of(f), *parts), inputs)

    def statistics(self, noise: Float[Array, "#N C"], factors: Factors) -> Statistics:
        """The sums of each output, whose constants add up."""
        outputs = self.parts[1].shape[0]
        noises = jnp.broadcast_to(noise, (len(noise), outputs)).T[:, :, None]

        def of_one(f: Pieces, phi: Array, rest: Any, offset: Array, variance: Array, noise: Array) -> Any:
            found = GaussianInputs(phi, f, self.inputs, rest, offset, variance).statistics(noise, factors)
            return found.gram[0], found.products[0], found.constant, found.squares

        of_all: Any = jax.vmap(of_one)
        gram, products, constant, squares = of_all(*self.parts, noises)
        return Statistics(gram, products, constant.sum(), squares.sum())


@dataclass(frozen=True)
class Regression:
    """A layer's features, the variances of its noise and its factors, and what earlier data said of u."""

    features: Features
    noise: Float[Array, "#N C"]
    factors: Factors
    site: Site | None = None

    def energy(self) -> Float[Array, ""]:
        """See :meth:`Statistics.energy`."""
        return self._of(Statistics.energy)

    def optimum(self) -> Gaussian:
        """See :meth:`Statistics.optimum`."""
        return self._of(Statistics.optimum)

    def _of(self, what: Callable[[Statistics], Part]) -> Part:
        def part(features: Features, noise: Array, site: Site | None) -> Part:
            sums = features.statistics(noise, self.factors)
            return what(sums if site is None else sums.remembering(site))

        given = self.features, self.noise, self.site
        return in_double(part, *given) if self.features.wide else part(*given)
