"""Power means against their definition, at α where the definition cancels, and in their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from scipy.special import logsumexp

from ppl_dgp.numerics.power_mean import log1p_ratio, log_det_ratio, log_power_mean

RANDOM = np.random.default_rng(0)
LOG_P = RANDOM.normal(size=(7, 5)) * np.array([0.01, 0.1, 1.0, 10.0, 300.0])
LOG_W = np.log(RANDOM.dirichlet(np.ones(7)))[:, None]


@pytest.mark.parametrize("alpha", [1e-3, 0.2, 0.5, 1.0])
def test_power_mean_is_its_definition(alpha):
    wanted = logsumexp(LOG_W + alpha * LOG_P, axis=0) / alpha
    np.testing.assert_allclose(
        log_power_mean(jnp.asarray(LOG_P), alpha, jnp.asarray(LOG_W)), wanted, rtol=1e-9
    )


def test_alpha_zero_is_the_mean_and_the_limit():
    mean = np.exp(LOG_W * np.ones_like(LOG_P)) * LOG_P
    found = log_power_mean(jnp.asarray(LOG_P), 0.0, jnp.asarray(LOG_W))
    np.testing.assert_allclose(found, mean.sum(0), rtol=1e-12)
    variance = np.exp(LOG_W).ravel() @ np.square(LOG_P - mean.sum(0))
    # first order in α: half the variance of log p
    near = log_power_mean(jnp.asarray(LOG_P), 1e-8, jnp.asarray(LOG_W))
    np.testing.assert_allclose((near - found)[:4], 0.5e-8 * variance[:4], rtol=1e-4, atol=1e-13)


def test_an_array_of_alphas_agrees_with_numbers():
    alphas = np.array([0.0, 1e-6, 0.3, 0.7, 1.0])
    found = log_power_mean(jnp.asarray(LOG_P), jnp.asarray(alphas))
    for column, alpha in enumerate(alphas):
        alone = log_power_mean(jnp.asarray(LOG_P[:, column]), float(alpha))
        np.testing.assert_allclose(found[column], alone, rtol=1e-12)
    two = jnp.asarray(2.0)
    np.testing.assert_allclose(
        log1p_ratio(jnp.asarray(alphas), two), [log1p_ratio(float(a), two) for a in alphas]
    )


@pytest.mark.slow
@pytest.mark.parametrize("alpha", few([1e-4, 1e-2, 1.0], 0))
def test_32_bits_lose_nothing_near_zero(alpha):
    single = log_power_mean(jnp.asarray(LOG_P[:, :3], jnp.float32), alpha)
    np.testing.assert_allclose(single, log_power_mean(jnp.asarray(LOG_P[:, :3]), alpha), atol=1e-6)


def test_impossible_values_and_their_derivatives():
    log_p = jnp.asarray([[-jnp.inf, -1.0], [0.3, -2.0]])
    mean = jax.jit(log_power_mean)
    np.testing.assert_allclose(mean(log_p, 0.5)[0], 0.3 + 2.0 * np.log(0.5))
    gradient = jax.jit(jax.grad(lambda a: log_power_mean(log_p, a).sum()))(jnp.asarray(0.5))
    step = 1e-6
    numeric = (mean(log_p, 0.5 + step) - mean(log_p, 0.5 - step)).sum() / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6)
    slope = jax.jit(jax.grad(lambda p: log_power_mean(p, jnp.asarray(0.0)).sum()))(log_p[:, 1:])
    assert jnp.isfinite(slope).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_series_and_the_determinant_meet(dtype):
    root = RANDOM.normal(size=(6, 6))
    matrix = root @ root.T - 2.0 * np.eye(6)
    eigenvalues = np.linalg.eigvalsh(matrix)
    few = np.finfo(dtype).eps ** 0.2 / np.linalg.norm(matrix)
    for epsilon in (1e-12, 0.5 * few, 0.99 * few, 1.01 * few, 3 * few):
        expected = np.log1p(epsilon * eigenvalues).sum() / epsilon
        log_det = jnp.linalg.slogdet(jnp.eye(6, dtype=dtype) + epsilon * jnp.asarray(matrix, dtype))[1]
        found = log_det_ratio(epsilon, jnp.asarray(matrix, dtype), log_det)
        # where they meet, both have lost to eps^(4/5)
        np.testing.assert_allclose(found, expected, rtol=20 * np.finfo(dtype).eps ** 0.8)
