r"""A layer as a linear regression on its whitened features φ(h⁻), u integrated out in closed form.

The targets are h = slope h⁻ + ε under q, or data; with r = h − m(h⁻), weights w = 1/(s² + α⟨D⟩) and

.. math::
    A = \sum_n w_n \langle φ_n φ_n^\top\rangle, \qquad b = \sum_n w_n \langle r_n φ_n\rangle

the optimal q(u) of the whitened u is N((I + A)⁻¹ b, (I + A)⁻¹). For certain inputs this is the posterior of Power EP at
any α (Bui, Yan & Turner 2017); for uncertain ones the optimum of the mean-field bound (Damianou & Lawrence 2013;
Chamberlin 2016, 2.5), and of the Markov one (4.6), at α = 0. Shapes: N rows, P outputs, M inducing points.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from ppl_dgp import expectations
from ppl_dgp.gaussian import Gaussian
from ppl_dgp.linalg import cholesky, inverse_lower
from ppl_dgp.means import affine
from ppl_dgp.memory import Site
from ppl_dgp.propagation import Function


@dataclass
class Features:
    """What a regression needs of its inputs: ⟨D⟩ (N, 1), and A, b and ⟨r²⟩ at given weights."""

    residual: Float[Array, "N 1"]

    def gram(self, weights: Float[Array, " N"]) -> Float[Array, "M M"]:
        """A = Σ w ⟨φφᵀ⟩."""
        raise NotImplementedError

    def products(self, weights: Float[Array, "N P"]) -> Float[Array, "P M"]:
        """b = Σ w ⟨r φ⟩ for each output."""
        raise NotImplementedError

    def squares(self) -> Float[Array, "N P"]:
        """⟨r²⟩."""
        raise NotImplementedError


@dataclass
class CertainFeatures(Features):
    """At inputs that are known: φ (N, M) and r (N, P), with the variance of the targets (N, P)."""

    phi: Float[Array, "N M"]
    difference: Float[Array, "N P"]
    variance: Float[Array, "N P"] | float = 0.0

    def gram(self, weights: Float[Array, " N"]) -> Float[Array, "M M"]:
        scaled = self.phi * jnp.sqrt(weights)[:, None]
        return scaled.T @ scaled

    def products(self, weights: Float[Array, "N P"]) -> Float[Array, "P M"]:
        return (self.difference * weights).T @ self.phi

    def squares(self) -> Float[Array, "N P"]:
        return jnp.square(self.difference) + self.variance


class UncertainFeatures(Features):
    """At inputs h⁻ ~ N(m, V), by kernel expectations; h = slope h⁻ + ε, ε with moments ``noise``; ``phi`` is ⟨φ⟩."""

    def __init__(
        self,
        residual: Float[Array, "N 1"],
        phi: Float[Array, "N M"],
        f: Function,
        inputs: Gaussian,
        slope: Array | None,
        noise: Gaussian,
    ) -> None:
        super().__init__(residual)
        linear, bias = affine(f.mean, inputs.mean.shape[1])
        rest = None if linear is None else -linear.T
        if slope is not None:
            rest = slope if rest is None else slope + rest
        rows = inputs.mean.shape[0]
        self._f, self._inputs, self._phi = f, inputs, phi
        #: r = rest·h⁻ + offset + (ε − E ε)
        self._rest = None if rest is None else jnp.broadcast_to(rest, (rows, *rest.shape[-2:]))
        self._offset = noise.mean - bias
        self._variance = noise.variance

    def gram(self, weights: Float[Array, " N"]) -> Float[Array, "M M"]:
        f = self._f
        total = expectations.psi2_sum(f.kernel, self._inputs, f.inducing, weights)
        return f.whiten @ total @ f.whiten.T

    def products(self, weights: Float[Array, "N P"]) -> Float[Array, "P M"]:
        found = (weights * self._offset).T @ self._phi
        if self._rest is None:
            return found
        f = self._f
        cross = expectations.psi4(f.kernel, self._inputs, f.inducing, self._rest)
        return found + jnp.einsum("np,npm->pm", weights, cross) @ f.whiten.T

    def squares(self) -> Float[Array, "N P"]:
        mean, variance = self._offset, self._variance
        if self._rest is not None:
            mean = mean + jnp.einsum("npd,nd->np", self._rest, self._inputs.mean)
            covariance = self._inputs.covariance()
            variance = variance + jnp.einsum("npd,nde,npe->np", self._rest, covariance, self._rest)
        return jnp.square(mean) + variance


@dataclass(frozen=True)
class Regression:
    """Targets against features, under Gaussian noise of variance (N, C): C is 1, or P where the outputs' differ.

    ``memory`` is what earlier data said of u, if anything.
    """

    features: Features
    noise: Float[Array, "N C"]
    num_outputs: int
    memory: Site | None = None

    def energy(self, alpha: float) -> Float[Array, ""]:
        """The log evidence of the targets with u integrated out, and power EP's correction for D, in total nats."""
        weights, residual = self._weights(alpha), self.features.residual
        shape = (residual.shape[0], self.num_outputs)
        each = jnp.log(2.0 * pi / weights) + weights * self.features.squares()
        ratio = residual / self.noise
        if alpha == 0.0:
            correction = 0.5 * ratio
        else:
            correction = (1.0 - alpha) / (2.0 * alpha) * jnp.log1p(alpha * ratio)
        lowers, products = self._solved(weights)
        # log |I + A| of each output, and bᵀ (I + A)⁻¹ b
        log_det = (
            2.0 * jnp.log(jnp.diagonal(lowers, axis1=1, axis2=2)).sum() * (self.num_outputs // len(lowers))
        )
        total = -0.5 * jnp.broadcast_to(each, shape).sum() - jnp.broadcast_to(correction, shape).sum()
        if self.memory is not None:
            total = total + self.memory.constant - 0.5 * jnp.square(self.memory.targets).sum()
        return total + 0.5 * (jnp.square(products).sum() - log_det)

    def optimum(self, alpha: float) -> Gaussian:
        """The optimal q(u): means (P, M) and lower Cholesky factors (P, M, M), whitened."""
        lowers, products = self._solved(self._weights(alpha))
        inverses = inverse_lower(lowers)
        mean = jnp.einsum("cmk,pm->pck" if len(lowers) == 1 else "pmk,pm->pk", inverses, products)
        covariance = jnp.swapaxes(inverses, -1, -2) @ inverses
        size = products.shape[-1]
        scale, _ = cholesky(jnp.broadcast_to(covariance, (self.num_outputs, size, size)), 0.0)
        return Gaussian(mean.reshape(self.num_outputs, size), scale)

    def _weights(self, alpha: float) -> Float[Array, "N C"]:
        return 1.0 / (self.noise + alpha * self.features.residual)

    def _solved(self, weights: Float[Array, "N C"]) -> tuple[Float[Array, "C M M"], Float[Array, "P M"]]:
        """L_B with L_B L_Bᵀ = I + A, for each column of noise, and L_B⁻¹ b."""
        grams = jnp.stack([self.features.gram(weights[:, c]) for c in range(weights.shape[1])])
        rows = weights.shape[0]
        products = self.features.products(jnp.broadcast_to(weights, (rows, self.num_outputs)))
        if self.memory is not None:
            seen = self.memory.features
            grams = grams + jnp.swapaxes(seen, -1, -2) @ seen
            products = products + jnp.einsum("pam,pa->pm", seen, self.memory.targets) + self.memory.linear
        lowers, _ = cholesky(jnp.eye(grams.shape[-1], dtype=grams.dtype) + grams, 0.0)
        if len(lowers) == 1:
            return lowers, solve_triangular(lowers[0], products.T, lower=True).T
        return lowers, solve_triangular(lowers, products[:, :, None], lower=True)[:, :, 0]
