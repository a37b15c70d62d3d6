"""Tempered expectations against one-dimensional quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from ppl_dgp.likelihoods import Gaussian, Scalar

ALPHAS = [0.0, 1e-3, 0.25, 0.5, 1.0]


def expectation(function, mean, variance):
    """E[function(f)], f ~ N(mean, variance), by the trapezoidal rule, which is spectral for smooth decaying f."""
    f = mean + np.sqrt(variance) * np.linspace(-12, 12, 4001)
    return np.trapezoid(stats.norm.pdf(f, mean, np.sqrt(variance)) * function(f), f)


def tempered(log_p, mean, variance, alpha):
    if alpha == 0.0:
        return expectation(log_p, mean, variance)
    return np.log(expectation(lambda f: np.exp(alpha * log_p(f)), mean, variance)) / alpha


CASES = {
    "gaussian": (Gaussian(jnp.asarray(0.3)), 0.8, lambda f: stats.norm.logpdf(0.8, f, np.sqrt(0.3))),
    "normal": (Scalar(lambda f: dist.Normal(f, 0.9)), 0.8, lambda f: stats.norm.logpdf(0.8, f, 0.9)),
    "poisson": (
        Scalar(lambda f: dist.Poisson(jnp.exp(f))),
        2.0,
        lambda f: stats.poisson.logpmf(2, np.exp(f)),
    ),
    "bernoulli": (
        Scalar(lambda f: dist.Bernoulli(logits=f)),
        1.0,
        lambda f: -np.logaddexp(0.0, -f),
    ),
    "student": (
        Scalar(lambda f: dist.StudentT(4.0, f, 0.8)),
        0.5,
        lambda f: stats.t.logpdf(0.5, 4, f, 0.8),
    ),
}


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", CASES)
def test_tempered_expectation_is_the_integral(case, alpha):
    likelihood, y, log_p = CASES[case]
    mean, variance = np.array([[0.3, -0.7]]), np.array([[0.4, 0.2]])
    found = likelihood.tempered(jnp.full((1, 2), y), jnp.asarray(mean), jnp.asarray(variance), alpha)
    expected = [tempered(log_p, m, v, alpha) for m, v in zip(mean[0], variance[0], strict=True)]
    # the Gaussian is closed; Gauss-Hermite of 32 nodes has converged on these smooth integrands to 1e-7
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-8 if case == "gaussian" else 1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", ["gaussian", "poisson", "bernoulli"])
def test_variance_outside_the_logarithm(case, alpha):
    likelihood, y, log_p = CASES[case]
    mean, inside, outside = 0.3, 0.2, 0.35
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    centres = mean + np.sqrt(outside) * nodes
    expected = sum(
        w / np.sqrt(2 * np.pi) * tempered(log_p, m, inside, alpha)
        for w, m in zip(weights, centres, strict=True)
    )
    arguments = [jnp.full((1, 1), value) for value in (y, mean, inside, outside)]
    found = likelihood.tempered_outside(*arguments, alpha)
    np.testing.assert_allclose(found, [[expected]], atol=2e-6)
    # Jensen: a logarithm of a mean is at least the mean of logarithms
    whole = likelihood.tempered(*arguments[:2], arguments[2] + arguments[3], alpha)
    assert float(whole[0, 0]) >= float(found[0, 0]) - 1e-9


def test_known_values_of_the_literature():
    bernoulli = Scalar(lambda f: dist.Bernoulli(logits=f))
    arguments = jnp.ones((1, 1)), jnp.full((1, 1), 0.3), jnp.full((1, 1), 0.4)
    np.testing.assert_allclose(bernoulli.tempered(*arguments, 0.0), [[-0.601197485380]], atol=1e-12)
    probit = Scalar(lambda f: dist.Bernoulli(probs=jax.scipy.stats.norm.cdf(f)))
    found = jnp.exp(probit.tempered(*arguments, 1.0))
    np.testing.assert_allclose(found, [[0.600076947169]], atol=1e-9)


@pytest.mark.parametrize("alpha", [1e-6, 1e-4, 1e-2])
def test_small_alpha_loses_nothing_in_32_bits(alpha):
    y, mean, variance = (jnp.array([[value]]) for value in (0.8, 0.3, 2.0))
    wide = Gaussian(jnp.asarray(0.3)).tempered(y, mean, variance, alpha)
    narrow = Gaussian(jnp.asarray(0.3, jnp.float32)).tempered(
        *(jnp.asarray(value, jnp.float32) for value in (y, mean, variance)), alpha
    )
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, wide, rtol=2e-6)


@pytest.mark.parametrize("case", ["gaussian", "poisson", "bernoulli"])
def test_rises_with_alpha(case):
    """t_α is a power mean of p: it never falls as α rises."""
    likelihood, y, _ = CASES[case]
    values = [float(likelihood.tempered(*(jnp.full((1, 1), a) for a in (y, 0.3, 1.0)), a)[0, 0]) for a in ALPHAS]
    assert np.all(np.diff(values) > 0)


@pytest.mark.parametrize("case", ["gaussian", "poisson", "bernoulli", "normal"])
def test_draws_have_the_stated_moments(case):
    likelihood = CASES[case][0]
    mean, variance = jnp.full((20_000, 1), 0.3), jnp.full((20_000, 1), 0.2)
    draws = likelihood.sample(jax.random.PRNGKey(0), mean, variance)
    expected_mean, expected_variance = (float(a[0, 0]) for a in likelihood.moments(mean[:1], variance[:1]))
    se = np.sqrt(expected_variance / draws.size)
    assert abs(float(draws.mean()) - expected_mean) < 4 * se
    # the fourth moment of these is below six times that of a normal
    assert abs(float(draws.var()) / expected_variance - 1) < 4 * np.sqrt(12 / draws.size)


def test_noise_per_row_and_per_output():
    y, mean, variance = jnp.ones((3, 2)), jnp.zeros((3, 2)), jnp.full((3, 2), 0.5)
    for noise in (jnp.array([0.1, 0.2]), jnp.array([[0.1], [0.2], [0.3]])):
        together = Gaussian(noise).tempered(y, mean, variance, 0.5)
        whole = jnp.broadcast_to(noise, (3, 2))
        for n in range(3):
            alone = Gaussian(whole[n, 1]).tempered(y[n : n + 1, 1:], mean[:1, 1:], variance[:1, 1:], 0.5)
            np.testing.assert_allclose(together[n, 1], alone[0, 0], rtol=1e-14)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_gradient_is_finite_where_f_is_known_exactly(alpha):
    """A datum at an inducing input has no variance given u."""
    likelihood, y, log_p = CASES["poisson"]
    t = lambda mean, v: likelihood.tempered(jnp.full((1, 1), y), jnp.full((1, 1), mean), jnp.full((1, 1), v), alpha).sum()  # noqa: E501,E731
    value, slopes = jax.value_and_grad(t, (0, 1))(0.3, 0.0)
    assert float(value) == pytest.approx(float(log_p(0.3)), abs=1e-12)
    assert np.isfinite(slopes).all()
