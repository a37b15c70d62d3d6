"""Noise with heavier tails than Gaussian: Student's t, by quadrature made for it, and Laplace, closed at every α."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, pi, sqrt

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import erf, erfcx, log_ndtr
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows
from ppl_dgp.likelihoods.quadrature import QuadratureNodes, deviation, peaked_nodes
from ppl_dgp.likelihoods.scalar import OUTSIDE, Elementwise
from ppl_dgp.numerics.power_mean import Alpha, is_number

#: from where erfcx(a/√2) is its asymptotic series, and of how many terms: the first left out is below 10⁻¹⁵
_FAR, _TERMS = 12.5, 13


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StudentT(Elementwise):
    """y = f + scale · ε, ε ~ t with ``df`` degrees of freedom; the variance of y exists for df > 2.

    Its log density is not concave, and p^α f's density may have two modes, at y and at the mean; nodes are laid around
    both. Accurate to 10⁻⁶ for scales from 10⁻⁴ deviations of f upwards.
    """

    df: float | Array = field(metadata=dict(start=4.0))
    scale: float | Array = field(metadata=dict(start=0.3))
    num_nodes: int = field(default=96, metadata=dict(static=True))

    expects = "finite numbers"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def of(self, f: Array) -> dist.Distribution:
        return dist.StudentT(self.df, f, self.scale)

    def nodes(
        self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha, number: int
    ) -> QuadratureNodes:
        return _around(y - mean, self.scale, deviation(variance), number)

    def outer_nodes(
        self, y: Array, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows
    ) -> QuadratureNodes:
        # t_α bends where m' is y, within the deviation that is left of f
        return _around(y - mean, self.scale + deviation(inside), deviation(outside), OUTSIDE)

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        y = self.of(mean)
        return mean, variance + y.variance


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Laplace(Elementwise):
    """p(y|f) = exp(−|y − f|/scale) / (2 scale)."""

    scale: float | Array = field(metadata=dict(start=0.3))

    expects = "finite numbers"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def of(self, f: Array) -> dist.Distribution:
        return dist.Laplace(f, self.scale)

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        r"""With d = |y − m|, c = α/b, s = √v and a± = cs ± d/s,

        .. math::
            E[e^{-c|y-f|}] = e^{-d^2/2v} \tfrac12 [\mathrm{erfcx}(a_+/√2) + \mathrm{erfcx}(a_-/√2)],
            \quad E|y - f| = s \sqrt{2/π} e^{-d^2/2v} + d\, \mathrm{erf}(d/(s√2)).

        For small cs the logarithm of the former would lose ε/α to rounding, so its first two cumulants stand in.
        """
        b = jnp.asarray(self.scale, jnp.result_type(mean))
        d, eps = jnp.abs(y - mean), float(jnp.finfo(b.dtype).eps)
        known = variance < jnp.square(eps * b)
        v = jnp.where(known, jnp.square(b), variance)
        s = jnp.sqrt(v)
        ratio = d / s
        centre = s * sqrt(2.0 / pi) * jnp.exp(-0.5 * jnp.square(ratio)) + d * erf(ratio / sqrt(2.0))
        near = -centre / b
        if not is_number(alpha, 0.0):
            near = near + 0.5 * alpha * (jnp.square(d) + v - jnp.square(centre)) / jnp.square(b)
            positive = jnp.where(jnp.asarray(alpha) == 0.0, 1.0, alpha)
            c = positive / b
            upper, lower = c * s + ratio, c * s - ratio
            # erfcx overflows on the left, where the normal distribution function does not underflow
            left = jnp.minimum(lower, 0.0)
            below = -c * d + 0.5 * jnp.square(c * s) + log_ndtr(-left)
            above = -0.5 * jnp.square(ratio) + _log_half_erfcx(jnp.maximum(lower, 0.0))
            second = jnp.where(lower < 0.0, below, above)
            total = jnp.logaddexp(-0.5 * jnp.square(ratio) + _log_half_erfcx(upper), second)
            near = jnp.where(alpha * s < eps ** (1.0 / 3.0) * b, near, total / positive)
        return jnp.where(known, -d / b, near) - jnp.log(2.0 * b)

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        return mean, variance + 2.0 * jnp.square(self.scale)


def _around(distance: Array, width: Array | float, s: Array, number: int) -> QuadratureNodes:
    """Nodes around a peak ``distance`` from the mean of f, in deviations s of f; where s = 0, any nodes do."""
    unit = jnp.where(s > 0.0, s, 1.0)
    peak = jnp.where(s > 0.0, distance / unit, 0.0)
    return peaked_nodes(peak, jnp.broadcast_to(width / unit, peak.shape), number)


def _log_half_erfcx(a: Array) -> Array:
    """log ½ erfcx(a/√2) for a ≥ 0.

    Far out by its asymptotic series: JAX's own is 0 where erfc is no normal number, at arguments of 9.19 to 9.42 in 32
    bits and of 26.54 to 26.64 in 64.
    """
    far = a > _FAR
    outside = jnp.where(far, a, _FAR)
    over_squares = 1.0 / jnp.square(outside)
    series = jnp.ones_like(a)
    for k in range(_TERMS, 0, -1):
        series = 1.0 - (2 * k - 1) * over_squares * series
    near = jnp.log(erfcx(jnp.where(far, 0.0, a) / sqrt(2.0))) - log(2.0)
    return jnp.where(far, jnp.log(series) - jnp.log(outside) - 0.5 * log(2.0 * pi), near)
