"""Nodes for expectations under N(0, 1) of integrands that may be far sharper than it.

A rule is values z_k and logarithms of weights w_k with Σ_k w_k F(z_k) ≈ E[F(z)], the normal density in the weights. It
is a trapezoidal rule, or Gauss–Legendre, in t for z = c + w sinh t, which spaces its nodes by w near c and ever more
widely away from it: one rule resolves a peak of width 10⁻⁴ and the bulk around it (Trefethen & Weideman 2014, on why
the trapezoidal rule converges geometrically). Centre and width are found from the integrand, and no gradient goes
through them: nodes that stand still give the gradient of the integral as exactly as its value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float
from scipy import special

from ppl_dgp.numerics.power_mean import Alpha

NodeRows = Float[Array, "*#rows"]
QuadratureNodes = tuple[Float[Array, "K *rows"], Float[Array, "K *#rows"]]

#: deviations from the centre that nodes reach; N(0, 1) has 10⁻¹⁹ beyond
REACH = 9.0
#: at α = 0 a peak further out than this has no weight that counts
FAR = 4.0
MODE_STEPS = 20
NEWTON_STEPS = 6
#: widths from its middle within which a step is; 10⁻⁹ of it lies outside
STEP = 6.0


def deviation(variance: NodeRows) -> NodeRows:
    """The square root, with gradient 0 rather than infinity at 0, where f is known exactly."""
    positive = variance > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def log_normal(z: Array) -> Array:
    """log N(z; 0, 1)."""
    return -0.5 * jnp.square(z) - 0.5 * log(2.0 * pi)


def plain_nodes(number: int, like: Array) -> QuadratureNodes:
    """Nodes for integrands as smooth as the normal density itself, (K, 1, …) for rows like those of ``like``."""
    t = _midpoints(number).reshape((number,) + (1,) * jnp.ndim(like)).astype(jnp.result_type(like))
    zero = jnp.zeros((1,) * jnp.ndim(like), t.dtype)
    return _stretched(t, zero, zero + 1.0, zero - REACH, zero + REACH)


def tilted_nodes(
    log_p: Callable[[Array], Array],
    mean: NodeRows,
    variance: NodeRows,
    alpha: Alpha,
    number: int,
    peak: Array | None = None,
) -> QuadratureNodes:
    """Nodes for E[p(m + √v z)^α], or for E[log p] at α = 0, of a log p that is concave or nearly so.

    :param log_p: f → log p(y|f), elementwise, for f of the shape to which mean and variance broadcast.
    :param number: K; 64 reach 10⁻⁹ where p is no sharper than 10⁻² deviations of f.
    :param peak: where in f log p bends most, if that is known and need not be near the mode (a step).
    """
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(variance), jax.eval_shape(log_p, mean).shape)
    m = jnp.broadcast_to(stop_gradient(mean), shape)
    s = jnp.broadcast_to(stop_gradient(deviation(variance)), shape)
    at_zero = jnp.asarray(alpha) == 0.0
    power = stop_gradient(jnp.where(at_zero, 1.0, alpha)).astype(m.dtype)

    def slopes(z: Array, power: Array = power) -> tuple[Array, Array]:
        """g'(z) and max(−g''(z), 1) of g(z) = −z²/2 + α log p(m + s z)."""
        first = lambda f: jax.jvp(log_p, (f,), (jnp.ones_like(f),))[1]
        slope, bend = jax.jvp(first, (m + s * z,), (jnp.ones_like(m),))
        # where log p is not concave the normal density's own curvature stands in; NaN compares as false
        curvature = 1.0 - power * jnp.square(s) * bend
        return power * s * slope - z, jnp.where(curvature > 1.0, curvature, 1.0)

    mode = _mode(slopes, 2.0 / jnp.maximum(s, 1e-3))
    width = 1.0 / jnp.sqrt(slopes(mode)[1])
    centre = mode
    if peak is not None:
        bent = jnp.where(s > 0.0, (peak - m) / jnp.where(s > 0.0, s, 1.0), 0.0)
        near = jnp.abs(bent - mode) < FAR
        centre = jnp.where(near, bent, centre)
        # p bends there as sharply at every α
        bend = 1.0 / jnp.sqrt(slopes(centre, jnp.ones_like(power))[1])
        width = jnp.where(near, jnp.minimum(width, bend), width)
    # E[log p] lives where the normal density does, E[p^α] around its mode
    width = jnp.where(at_zero & (jnp.abs(centre) > FAR), 1.0, width)
    centre = jnp.where(at_zero, jnp.clip(centre, -FAR, FAR), centre)
    middle = jnp.where(at_zero, 0.0, mode)
    t = _midpoints(number).reshape((number,) + (1,) * len(shape)).astype(m.dtype)
    z, log_weights = _stretched(t, centre, width, middle - REACH, middle + REACH)
    return stop_gradient(z), stop_gradient(log_weights)


def _mode(slopes: Callable[[Array], tuple[Array, Array]], first_step: Array) -> Array:
    """Where a concave g with g'' ≤ −1 is largest: Newton's method inside a bracket, halved where Newton does not help.

    :param first_step: no first step is longer; until the mode is passed, none more than doubles the one before.
    """
    start = jnp.zeros_like(first_step)
    first = slopes(start)[0]
    first = jnp.where(jnp.isfinite(first), jnp.clip(first, -1e4, 1e4), 0.0)

    def turn(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        z, low, high, last, passed = state
        slope, curvature = slopes(z)
        low, high = jnp.where(slope > 0.0, z, low), jnp.where(slope < 0.0, z, high)
        passed = passed | (slope * first < 0.0)
        newton = slope / curvature
        step = jnp.clip(newton, -2.0 * last, 2.0 * last)
        helps = ~passed | (jnp.abs(step) <= 0.5 * last) | (jnp.abs(newton) * jnp.sqrt(curvature) < 1e-2)
        # NaN compares as false
        new = jnp.where(helps & (z + step >= low) & (z + step <= high), z + step, 0.5 * (low + high))
        return new, low, high, jnp.abs(new - z), passed

    # |mode| ≤ |g'(0)|, as g falls at least as fast as −z²/2
    bracket = jnp.minimum(first, 0.0), jnp.maximum(first, 0.0)
    state = (start, *bracket, 0.5 * first_step, jnp.zeros(start.shape, bool))
    mode: Array = jax.lax.fori_loop(0, MODE_STEPS, turn, state)[0]
    return mode


def peaked_nodes(peak: NodeRows, width: NodeRows, number: int) -> QuadratureNodes:
    """Nodes for an integrand with a peak at z = ``peak`` of any width and with heavy tails, the bulk at 0 resolved too.

    :param number: K around the peak; half as many are on the bulk where the peak is not in it.
    """
    sign, c = jnp.where(peak < 0.0, -1.0, 1.0).astype(peak.dtype), jnp.abs(peak)
    width = jnp.clip(width, 1e-7, 1.0)
    column = lambda a: jnp.asarray(a, c.dtype).reshape((-1,) + (1,) * c.ndim)
    split = jnp.where(c > FAR, jnp.minimum(c - 3.0, REACH), -REACH)
    nodes, weights = np.polynomial.legendre.leggauss(number // 2)
    half = 0.5 * (split + REACH)
    bulk, bulk_weights = half * (column(nodes) + 1.0) - REACH, half * column(weights)
    nodes, weights = np.polynomial.legendre.leggauss(number)
    begin, end = jnp.arcsinh((split - c) / width), jnp.arcsinh(REACH / width)
    t = 0.5 * ((end - begin) * column(nodes) + end + begin)
    around = c + width * jnp.sinh(t)
    around_weights = 0.5 * (end - begin) * column(weights) * width * jnp.cosh(t)
    z = jnp.concatenate([bulk, around])
    both_weights = jnp.concatenate([bulk_weights, around_weights])
    positive = both_weights > 0.0
    log_weights = jnp.where(positive, jnp.log(jnp.where(positive, both_weights, 1.0)), -jnp.inf)
    return stop_gradient(sign * z), stop_gradient(log_weights + log_normal(z))


#: a step whose middle is d away is within d of it: twice the STEP widths by which steps begin early
GRADE = 2.0 * STEP


def graded_nodes(begin: NodeRows, width: NodeRows, number: int) -> QuadratureNodes:
    """Nodes for an integrand that is nothing below z = ``begin`` and has the coarser structure the further from it.

    At a distance d from begin nothing is narrower than about max(width, d/12), and nothing narrower than 1 matters
    elsewhere: the trapezoidal rule in t with dt/dz = 1/(width + d/12) + 1.

    :param number: K; spacings are (12 log(1 + 18/(12 width)) + 18)/K of the structure's width at most, and the error
        10⁻⁸ at spacings of 1, 10⁻⁵ at 1.3.
    """
    width, begin = jnp.minimum(width, 1.0), jnp.clip(begin, -REACH, REACH)
    reach, a = REACH - begin, GRADE * width
    end = GRADE * jnp.log1p(reach / a) + reach
    t = end * _midpoints(number).reshape((number,) + (1,) * begin.ndim).astype(begin.dtype)
    # Newton's method for u = log(1 + d/a) from above, where t is convex: it falls to the root and never passes it
    u = jnp.minimum(t / GRADE, jnp.log1p(t / a))
    for _ in range(NEWTON_STEPS):
        grown = a * jnp.exp(u)
        u = u - (GRADE * u + grown - a - t) / (GRADE + grown)
    distance = a * jnp.expm1(u)
    log_weights = jnp.log(end / number) - jnp.log(GRADE / (a + distance) + 1.0)
    z = begin + distance
    return stop_gradient(z), stop_gradient(log_weights + log_normal(z))


@lru_cache(maxsize=64)
def sobol_normals(number: int, dimension: int) -> np.ndarray:
    """Fixed quasi-Monte-Carlo nodes of N(0, I), (number, dimension), weights equal.

    Half of a scrambled Sobol sequence with its mirror image, scaled to unit variances: polynomials that are odd, and
    squares, are integrated exactly. The error of a smooth integrand falls almost as 1/number.

    :param number: even; a power of two is best.
    """
    from scipy.stats import qmc  # half a second, which the first import of the package need not take

    uniforms = qmc.Sobol(dimension, rng=np.random.default_rng(0)).random(number // 2)
    half = special.ndtri(np.clip(uniforms, 1e-12, 1.0 - 1e-12))
    both = np.concatenate([half, -half])
    nodes: np.ndarray = both / both.std(0)
    return nodes


def _midpoints(number: int) -> Array:
    return jnp.asarray((np.arange(number) + 0.5) / number)


def _stretched(t: Array, centre: Array, width: Array, low: Array, high: Array) -> QuadratureNodes:
    """The trapezoidal rule in t for z = centre + width · sinh t between low and high; t are midpoints of [0, 1]."""
    begin, end = jnp.arcsinh((low - centre) / width), jnp.arcsinh((high - centre) / width)
    at = begin + (end - begin) * t
    z = centre + width * jnp.sinh(at)
    spacing = (end - begin) / t.shape[0] * width * jnp.cosh(at)
    return z, jnp.log(spacing) + log_normal(z)
