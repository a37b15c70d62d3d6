"""Likelihoods of one function per target: tempered expectations against quadrature by brute force."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from fast import few
from scipy import integrate, special, stats

from ppl_dgp.likelihoods import (
    Bernoulli,
    Beta,
    Gamma,
    Gaussian,
    Heteroscedastic,
    Laplace,
    MixedLikelihood,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Scalar,
    StudentT,
)

ALPHAS = [0.0, 1e-3, 0.25, 0.5, 1.0]
CUTS = np.array([-1.0, 0.2, 3.0])
LogP = Callable[[np.ndarray, np.ndarray], np.ndarray]


def tempered(log_p, y: float, mean: float, variance: float, alpha: float) -> float:
    """t_α by Gauss–Legendre on panels that halve, a hundred times finer than any width, towards y, 0 and the mean."""
    s = np.sqrt(variance)
    marks = np.unique([mean - 12 * s, mean, mean + 12 * s, *(m for m in bends(y) if abs(m - mean) < 40 * s)])
    marks = np.unique([*marks, marks[0] - 9 * s, marks[-1] + 9 * s])
    steps = np.geomspace(1e-8, 0.5, 40)
    edges = np.unique(
        np.concatenate(
            [
                np.r_[a, a + (b - a) * steps, b - (b - a) * steps, b]
                for a, b in zip(marks[:-1], marks[1:], strict=True)
            ]
        )
    )
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)[:, None]
    f, w = (edges[:-1, None] + half * (nodes + 1.0)).ravel(), (half * weights).ravel()
    with np.errstate(divide="ignore"):
        log_w = np.log(w) + stats.norm.logpdf(f, mean, s)
    if alpha == 0.0:
        return float(np.sum(np.exp(log_w) * log_p(y, f)))
    return float(special.logsumexp(log_w + alpha * log_p(y, f)) / alpha)


def bends(y: float) -> list[float]:
    """Where any of the log densities below bends sharply."""
    near = [y, 0.0, *CUTS]
    if y > 0.0:
        near.append(np.log(y))
    if 0.0 < y < 1.0:
        near.append(special.logit(y))
    return near


def ordinal(y: float, f: np.ndarray) -> np.ndarray:
    edges = np.array([-np.inf, *CUTS, np.inf])
    low, high = (edges[int(y)] - f) / 0.5, (edges[int(y) + 1] - f) / 0.5
    low, high = np.where(low > 0, -high, low), np.where(low > 0, -low, high)
    with np.errstate(divide="ignore"):
        return special.log_ndtr(high) + np.log1p(-np.exp(special.log_ndtr(low) - special.log_ndtr(high)))


def beta(y: float, f: np.ndarray) -> np.ndarray:
    a, b = 20.0 * special.expit(f), 20.0 * special.expit(-f)
    return (a - 1) * np.log(y) + (b - 1) * np.log1p(-y) - special.betaln(a, b)


def negative_binomial(y: float, f: np.ndarray) -> np.ndarray:
    counts = special.gammaln(y + 2.5) - special.gammaln(2.5) - special.gammaln(y + 1)
    return counts - y * np.logaddexp(0, np.log(2.5) - f) - 2.5 * np.logaddexp(0, f - np.log(2.5))


def student(df: float, scale: float) -> LogP:
    return lambda y, f: stats.t.logpdf(y, df, f, scale)


# likelihood, log p(y|f), rows (y, mean, variance) up to the extreme, and the accuracy relative to max(1, |t|)
CASES = {
    "gaussian": (
        Gaussian(jnp.asarray(0.3)),
        lambda y, f: stats.norm.logpdf(y, f, np.sqrt(0.3)),
        [(0.8, 0.3, 0.4), (30.0, 0.0, 2.0)],
        1e-9,
    ),
    "normal": (
        Scalar(lambda f: dist.Normal(f, 0.01)),
        lambda y, f: stats.norm.logpdf(y, f, 0.01),
        [(0.8, 0.3, 0.4), (5.0, 0.0, 1.0), (0.3, 0.3, 1e-6)],
        1e-7,
    ),
    "poisson": (
        Poisson(),
        lambda y, f: y * f - np.exp(f) - special.gammaln(y + 1),
        [(2.0, 0.3, 0.4), (0.0, 1.0, 2.0), (1000.0, -6.0, 1.0), (1000.0, 1.0, 0.1)],
        1e-6,
    ),
    "bernoulli": (
        Bernoulli("logit"),
        lambda y, f: -np.logaddexp(0.0, (1 - 2 * y) * f),
        [(1.0, 0.3, 0.4), (1.0, -30.0, 1.0), (0.0, 4.0, 1e4), (1.0, -3.0, 1e2)],
        1e-6,
    ),
    "probit": (
        Bernoulli(),
        lambda y, f: special.log_ndtr((2 * y - 1) * f),
        [(1.0, 0.3, 0.4), (1.0, -30.0, 1.0), (0.0, 4.0, 1e4), (1.0, -3.0, 1e2)],
        1e-5,
    ),
    "student": (StudentT(4.0, 0.8), student(4.0, 0.8), [(0.5, 0.3, 0.4), (-20.0, 0.0, 1.0)], 1e-8),
    # the scale far below the deviation of f
    "sharp student": (
        StudentT(4.0, 1e-3),
        student(4.0, 1e-3),
        [(0.5, 0.3, 1.0), (0.0, 0.0, 1.0), (12.0, 0.0, 1.0), (40.0, 0.0, 1.0)],
        1e-6,
    ),
    "cauchy": (StudentT(1.0, 1e-4), student(1.0, 1e-4), [(0.0, 0.0, 1.0), (3.0, 0.0, 1.0), (8.0, 0.0, 1.0)], 1e-6),
    "nearly normal student": (StudentT(100.0, 0.01), student(100.0, 0.01), [(0.1, 0.0, 1.0), (4.5, 0.0, 1.0)], 1e-6),
    "laplace": (
        Laplace(0.7),
        lambda y, f: -np.abs(y - f) / 0.7 - np.log(1.4),
        [(0.5, 0.3, 0.4), (10.0, 0.0, 1.0), (0.0, 0.0, 1e-8)],
        1e-9,
    ),
    "sharp laplace": (
        Laplace(1e-3),
        lambda y, f: -np.abs(y - f) / 1e-3 - np.log(2e-3),
        [(0.5, 0.3, 1.0), (0.0, 0.0, 1.0), (10.0, 0.0, 1.0)],
        1e-8,
    ),
    "negative binomial": (
        NegativeBinomial(2.5),
        negative_binomial,
        [(2.0, 0.3, 0.4), (0.0, 3.0, 9.0), (1000.0, -2.0, 1.0)],
        1e-7,
    ),
    "gamma": (
        Gamma(20.0),
        lambda y, f: stats.gamma.logpdf(y, 20.0, scale=np.exp(f) / 20.0),
        [(2.0, 0.3, 0.4), (1e-3, 1.0, 1.0), (100.0, 1.0, 1.0)],
        1e-6,
    ),
    "beta": (Beta(20.0), beta, [(0.4, 0.3, 0.4), (1e-4, 2.0, 1.0), (0.9, -1.0, 4.0)], 1e-7),
    "ordinal": (
        Ordinal(jnp.asarray(CUTS), 0.5),
        ordinal,
        [(0.0, 0.3, 0.4), (1.0, 0.3, 1.0), (2.0, -5.0, 4.0), (3.0, 0.0, 50.0)],
        1e-6,
    ),
}  # fmt: skip
#: beside which a case of the same kind is fast, or another test of the same integral
LONG = ("normal", "probit", "cauchy", "sharp student")


def columns(rows):
    return (jnp.asarray(column)[:, None] for column in zip(*rows, strict=True))


@pytest.mark.parametrize("case", few(CASES, *(n for n, name in enumerate(CASES) if name not in LONG)))
def test_tempered_expectation_is_the_integral(case):
    likelihood, log_p, rows, accuracy = CASES[case]
    y, mean, variance = columns(rows)
    expected = np.array([[tempered(log_p, *row, alpha) for row in rows] for alpha in ALPHAS])
    # α as an array, traced, (A, 1, 1) against rows (1, N, 1); one compilation for all
    alphas = jnp.asarray(ALPHAS)
    found = jax.jit(jax.vmap(lambda alpha: likelihood.tempered(y, mean, variance, alpha)))(alphas)[..., 0]
    assert np.all(np.abs(found - expected) <= accuracy * np.maximum(1.0, np.abs(expected)))
    # and as numbers, which closed forms answer where there are any
    for number, alpha in ((0, 0.0), (4, 1.0)):
        closed = jax.jit(lambda y, m, v, alpha=alpha: likelihood.tempered(y, m, v, alpha))(y, mean, variance)
        assert np.all(
            np.abs(closed[:, 0] - expected[number]) <= accuracy * np.maximum(1.0, np.abs(expected[number]))
        )
    # t_α is a power mean of p: it never falls as α rises
    assert np.all(np.diff(found, axis=0) >= -2 * accuracy * np.abs(expected[1:]))


def test_the_oracle_agrees_with_scipy():
    f = lambda z: stats.t.logpdf(0.5, 4.0, z, 1e-2) * stats.norm.pdf(z, 0.3, 1.0)
    expected = integrate.quad(f, -10, 10, points=[0.5, 0.3], limit=500, epsabs=1e-11)[0]
    assert tempered(student(4.0, 1e-2), 0.5, 0.3, 1.0, 0.0) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("case", ["gaussian", "poisson", "bernoulli", "sharp student", "laplace"])
def test_variance_outside_the_logarithm(case):
    likelihood, log_p, rows, _ = CASES[case]
    y, (mean, inside, outside), alpha = rows[0][0], (0.3, 0.2, 0.35), 0.5
    nodes, weights = np.polynomial.legendre.leggauss(80)
    weights = 8.0 * weights * stats.norm.pdf(8.0 * nodes)
    centres = mean + np.sqrt(outside) * 8.0 * nodes
    expected = float(weights @ [tempered(log_p, y, m, inside, alpha) for m in centres])
    arguments = [jnp.full((1, 1), value) for value in (y, mean, inside, outside)]
    found = float(jax.jit(lambda *a: likelihood.tempered_outside(*a, alpha))(*arguments)[0, 0])
    # far from y the peak of Student's t yields to its tail, a bend that 32 nodes know to 10⁻⁵ of the value
    assert found == pytest.approx(expected, abs=2e-4 if case == "sharp student" else 2e-6)
    # Jensen: a logarithm of a mean is at least the mean of logarithms
    assert tempered(log_p, y, mean, inside + outside, alpha) > found


@pytest.mark.parametrize("case", few(["poisson", "probit", "sharp student", "sharp laplace", "beta"], 0, 2))
def test_gradient_is_that_of_the_integral(case):
    """No gradient goes through the nodes' positions, and none is missed."""
    likelihood, log_p, rows, _ = CASES[case]
    y, mean, variance = rows[0]
    value = lambda m, v: likelihood.tempered(jnp.full((1, 1), y), m[None, None], v[None, None], 0.5).sum()
    slopes = jax.jit(jax.grad(value, (0, 1)))(jnp.asarray(mean), jnp.asarray(variance))
    step = 1e-4
    numeric = [
        (tempered(log_p, y, mean + a, variance + b, 0.5) - tempered(log_p, y, mean - a, variance - b, 0.5))
        / (2 * step)
        for a, b in ((step, 0.0), (0.0, step))
    ]
    # central differences err by step² times a third derivative
    np.testing.assert_allclose(slopes, numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_gradient_is_finite_where_f_is_known_exactly(case):
    """A datum at an inducing input has no variance given u."""
    likelihood, log_p, rows, _ = CASES[case]
    y, mean, _ = rows[0]
    value = lambda m, v: likelihood.tempered(jnp.full((1, 1), y), m, v, 0.5).sum()
    found, slopes = jax.jit(jax.value_and_grad(value, (0, 1)))(jnp.full((1, 1), mean), jnp.zeros((1, 1)))
    assert float(found) == pytest.approx(float(log_p(y, np.asarray(mean))), abs=1e-9)
    assert np.isfinite(slopes).all()


def test_known_values_of_the_literature():
    arguments = jnp.ones((1, 1)), jnp.full((1, 1), 0.3), jnp.full((1, 1), 0.4)
    found = Bernoulli("logit").expected_log_density(*arguments)
    np.testing.assert_allclose(found, [[-0.601197485380]], atol=1e-11)
    np.testing.assert_allclose(jnp.exp(Bernoulli().log_density(*arguments)), [[0.600076947169]], atol=1e-11)


@pytest.mark.parametrize("case", ["gaussian", "laplace", "bernoulli", "student"])
def test_small_alpha_in_32_bits(case):
    likelihood, log_p, _, _ = CASES[case]
    likelihood = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), likelihood)
    y = {"bernoulli": 1.0}.get(case, 0.8)
    alphas = jnp.asarray([1e-4, 1e-3, 1e-2], jnp.float32)
    row = [jnp.full((1, 1), value, jnp.float32) for value in (y, 0.3, 2.0)]
    found = jax.jit(jax.vmap(lambda alpha: likelihood.tempered(*row, alpha)))(alphas)[:, 0, 0]
    assert found.dtype == jnp.float32
    expected = [tempered(log_p, y, 0.3, 2.0, alpha) for alpha in (1e-4, 1e-3, 1e-2)]
    # ε/α is 6e-4, 6e-5 and 6e-6 here: what a naive logarithm of a mean would lose
    np.testing.assert_allclose(found, expected, rtol=2e-5)


MOMENTS = ["gaussian", "poisson", "bernoulli", "probit", "laplace", "negative binomial", "gamma", "beta"]


@pytest.mark.parametrize("case", MOMENTS)
def test_draws_have_the_stated_moments(case):
    likelihood = CASES[case][0]
    mean, variance = jnp.full((40_000, 1), 0.3), jnp.full((40_000, 1), 0.2)
    draws = np.asarray(jax.jit(likelihood.sample)(jax.random.PRNGKey(0), mean, variance), float)
    centre, spread = (float(a[0, 0]) for a in likelihood.moments(mean[:1], variance[:1]))
    # standard errors from the draws themselves
    assert abs(draws.mean() - centre) < 4 * draws.std() / 200
    squares = np.square(draws - centre)
    assert abs(squares.mean() - spread) < 4 * squares.std() / 200
    likelihood.check(jnp.asarray(draws[:50]))


@pytest.mark.parametrize("label", [0, 1, 2])
def test_gradient_of_ordinal_classes_at_the_edges(label):
    """The outermost classes have an infinite edge, which must not reach the gradient of the scale."""

    def value(scale, variance):
        ordinal = Ordinal(jnp.asarray([-0.4, 0.7]), scale)
        return ordinal.tempered(
            jnp.asarray([[label]]), jnp.asarray([[0.3]]), variance.reshape(1, 1), 1.0
        ).sum()

    at = jnp.asarray(0.8), jnp.asarray(0.5)
    slopes = jax.grad(value, (0, 1))(*at)
    for place in (0, 1):
        step = lambda size, p=place: value(*(each + (size if k == p else 0.0) for k, each in enumerate(at)))
        assert float(slopes[place]) == pytest.approx(float(step(1e-5) - step(-1e-5)) / 2e-5, abs=1e-7)


def test_ordinal_classes():
    likelihood = CASES["ordinal"][0]
    mean, variance = jnp.full((40_000, 1), 0.3), jnp.full((40_000, 1), 0.8)
    p = np.asarray(likelihood.probabilities(mean[:1], variance[:1]))[0]
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    shares = np.bincount(np.asarray(likelihood.sample(jax.random.PRNGKey(0), mean, variance))[:, 0]) / 40_000
    np.testing.assert_array_less(np.abs(shares - p), 4 * np.sqrt(p * (1 - p) / 40_000))
    whole = [
        float(likelihood.log_density(jnp.full((1, 1), k), mean[:1], variance[:1])[0, 0]) for k in range(4)
    ]
    np.testing.assert_allclose(np.exp(whole), p, rtol=1e-10)


def test_noise_per_row_and_per_output():
    y, mean, variance = jnp.ones((3, 2)), jnp.zeros((3, 2)), jnp.full((3, 2), 0.5)
    for noise in (jnp.array([0.1, 0.2]), jnp.array([[0.1], [0.2], [0.3]])):
        together = Gaussian(noise).tempered(y, mean, variance, 0.5)
        whole = jnp.broadcast_to(noise, (3, 2))
        for n in range(3):
            alone = Gaussian(whole[n, 1]).tempered(y[n : n + 1, 1:], mean[:1, 1:], variance[:1, 1:], 0.5)
            np.testing.assert_allclose(together[n, 1], alone[0, 0], rtol=1e-14)


@pytest.mark.parametrize(
    "likelihood, y, words",
    [
        (Bernoulli(), [0.0, 2.0], "found 2.0 at row 1, expected labels 0 and 1"),
        (Ordinal(jnp.asarray(CUTS)), [4, 0], "found 4 at row 0, expected whole labels 0 … 3"),
        (Poisson(), [0.0, 1.5], "found 1.5 at row 1"),
        (Gamma(1.0), [0.0, 1.5], "found 0.0 at row 0, expected positive"),
        (Beta(1.0), [0.5, 1.0], "between 0 and 1"),
    ],
)
def test_targets_that_cannot_be(likelihood, y, words):
    with pytest.raises(ValueError, match=words):
        likelihood.check(jnp.asarray(y)[:, None])


@pytest.mark.parametrize("likelihood, y", [(Gamma(2.0), 3.0), (Beta(4.0), 0.2), (Poisson(), 7.0)])
def test_function_at_a_target_has_it_as_its_mean(likelihood, y):
    """Of counts half a count more, for they may be 0."""
    f = likelihood.function_at(jnp.full((1, 1), y))
    mean, _ = likelihood.moments(f, jnp.zeros((1, 1)))
    assert float(mean[0, 0]) == pytest.approx(y + 0.5 * isinstance(likelihood, Poisson), rel=1e-6)
    both = MixedLikelihood((Gaussian(jnp.asarray(0.1)), likelihood)).function_at(jnp.array([[-1.5, y]]))
    np.testing.assert_allclose(both, [[-1.5, float(f[0, 0])]], rtol=1e-6)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="columns"):
        Ordinal(jnp.asarray(CUTS)).num_functions(2)
    with pytest.raises(ValueError, match="expected 1 for Ordinal"):
        Ordinal(jnp.asarray(CUTS)).num_targets(3)


@pytest.mark.parametrize("bits", few([32, 64], 0))
def test_laplace_where_jax_takes_erfcx_for_zero(bits):
    # E e^{-c|y-f|} = ½ e^{-d²/2v} (erfcx(a₊/√2) + erfcx(a₋/√2)), a± = cs ± d/s: here d = 0
    scale = 0.01
    arguments = np.linspace(12.0, 40.0, 3001)
    with jax.enable_x64(bits == 64):
        alphas, zero, variance = jnp.asarray(arguments * scale), jnp.zeros(()), jnp.ones(())
        value, slope = jax.vmap(
            jax.value_and_grad(lambda alpha: alpha * Laplace(scale).tempered(zero, zero, variance, alpha))
        )(alphas)
    at = np.asarray(alphas, float)
    erfcx = special.erfcx(at / scale / np.sqrt(2.0))
    expected = np.log(erfcx) - at * np.log(2.0 * scale)
    expected_slope = (at / scale - np.sqrt(2.0 / np.pi) / erfcx) / scale - np.log(2.0 * scale)
    digits = 1e-4 if bits == 32 else 1e-11
    np.testing.assert_allclose(value, expected, rtol=digits)
    np.testing.assert_allclose(slope, expected_slope, rtol=digits, atol=digits)


def test_heteroscedastic_noise_of_several_targets_has_moments():
    """Of draws of f and g: the mean of f, and the variances of f and of the noise, each target's own."""
    mean, variance = jnp.array([[0.3, -1.0, 0.2, -0.4]]), jnp.array([[0.1, 0.4, 0.3, 0.2]])
    likelihood = Heteroscedastic(jnp.asarray(0.5))
    found = likelihood.moments(mean, variance)
    np.testing.assert_array_equal(found[0], mean[:, :2])
    noise = 0.5 * np.exp(mean[:, 2:] + 0.5 * variance[:, 2:])
    np.testing.assert_allclose(found[1], variance[:, :2] + noise, rtol=1e-12)
