"""Dense Gaussians by hand: NumPyro's density, finite differences, blocks against whole matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from ppl_dgp.numerics import dense_normal as dense
from ppl_dgp.numerics.dense_normal import DenseNormal, log_density, lower_gram, triangular_inverse

RANDOM = np.random.default_rng(0)
ROOT = RANDOM.normal(size=(7, 9))
MATRIX = jnp.asarray(ROOT @ ROOT.T + 0.5 * np.eye(7))
Y = jnp.asarray(RANDOM.normal(size=(2, 7)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Halves of halves, of unequal size."""
    monkeypatch.setattr(dense, "BLOCK", 2)


def test_blocks_are_the_whole():
    lower = jnp.linalg.cholesky(MATRIX)
    assert_allclose(triangular_inverse(lower), np.linalg.inv(lower), atol=1e-12)
    assert_allclose(lower_gram(lower), lower.T @ lower, rtol=1e-12)


def test_the_density_is_numpyros_with_its_derivatives():
    plain = lambda a, y: dist.MultivariateNormal(0.0, a).log_prob(y).sum()
    both = [jax.jit(jax.value_and_grad(of, argnums=(0, 1))) for of in (log_density, plain)]
    (value, slopes), (expected, theirs) = (each(MATRIX, Y) for each in both)
    assert float(value) == pytest.approx(float(expected), abs=1e-10)
    # NumPyro's looks at the lower triangle alone: its slope there is twice a symmetric one's
    assert_allclose(slopes[0], 0.5 * (theirs[0] + theirs[0].T), atol=1e-10)
    assert_allclose(slopes[1], theirs[1], atol=1e-10)
    symmetric = jax.jit(lambda a: log_density(0.5 * (a + a.T), Y))
    check_grads(symmetric, (MATRIX,), order=2, rtol=1e-4)


def test_jitter_counts_in_the_derivative():
    """Of a singular matrix: jitter grows with its scale."""
    singular = jnp.asarray(ROOT[:, :3] @ ROOT[:, :3].T)
    of = jax.jit(lambda scale: log_density(scale * singular, Y))
    check_grads(of, (jnp.asarray(1.3),), order=1, modes=("rev",), rtol=1e-4)
    assert float(DenseNormal(singular, 1).jitter) > 0.0


def test_columns_are_drawn_with_their_covariance():
    draws = np.asarray(DenseNormal(MATRIX, 2).sample(jax.random.key(0), (20_000,)))
    assert draws.shape == (20_000, 2, 7)
    found = np.cov(draws[:, 1].T)
    error = np.sqrt((np.outer(np.diag(MATRIX), np.diag(MATRIX)) + np.square(MATRIX)) / 20_000)
    assert (abs(found - MATRIX) < 4.5 * error).all()
    assert abs(np.mean(draws[:, 0] * draws[:, 1])) < 0.1
