"""The reference that guides of the kink are judged by: its paths and its u are those of exact formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from benchmarks.particle_gibbs import draw_path, function_of, kernel, posterior_of_u

INPUTS = jnp.linspace(-2.0, 2.0, 5)
THETA = jnp.array([0.8, 0.5, 0.1, 0.2])


@pytest.mark.slow
def test_paths_have_the_moments_of_a_grid():
    """Forward and backward over a grid of 400 states; within four standard errors of chains that stand still."""
    f = function_of(INPUTS, THETA, jnp.array([0.5, -1.0, 0.3, 0.8, -0.4]))
    y = np.array([0.3, 0.9, 1.4, 0.2, -0.8, -0.5, 0.4, 1.1])
    grid = np.linspace(-4.0, 4.0, 400)
    mean, variance = map(np.asarray, f.step(jnp.asarray(grid)))
    move = norm.pdf(grid[None], mean[:, None], variance[:, None] ** 0.5)
    likely = [np.ones(400), *(norm.pdf(each, grid, 0.2**0.5) for each in y)]
    ahead, behind = [norm.pdf(grid)], [np.ones(400)]
    for each in likely[1:]:
        ahead.append((ahead[-1] @ move) * each)
        ahead[-1] = ahead[-1] / ahead[-1].sum()
    for each in likely[:0:-1]:
        behind.append(move @ (each * behind[-1]))
        behind[-1] = behind[-1] / behind[-1].sum()
    weight = np.array(ahead) * np.array(behind[::-1])
    weight /= weight.sum(1, keepdims=True)
    exact = weight @ grid

    def chain(key):
        turn = lambda path, key: (lambda new: (new, new))(draw_path(key, f, jnp.asarray(y), path, 20))
        start = jnp.concatenate([jnp.zeros(1), jnp.asarray(y)])
        return jax.lax.scan(turn, start, jax.random.split(key, 520))[1][20:]

    paths = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 40)))
    for power in (1, 2):
        by_chain = (paths**power).mean(1)
        error = by_chain.std(0, ddof=1) / 40**0.5
        expected = exact if power == 1 else weight @ grid**2
        np.testing.assert_array_less(abs(by_chain.mean(0) - expected), 4.5 * error)
    assert np.ptp(exact) > 0.5


def test_u_has_the_posterior_of_dense_matrices():
    path = np.array([0.1, 0.5, 1.2, 0.3, -0.9, -0.2, 0.6])
    density, mean, root = posterior_of_u(INPUTS, THETA, jnp.asarray(path))
    phi = np.asarray(function_of(INPUTS, THETA).features(jnp.asarray(path[:-1])))
    noise = 0.5 - np.square(phi).sum(0) + 0.1
    covariance = phi.T @ phi + np.diag(noise)
    steps = np.diff(path)
    np.testing.assert_allclose(
        density, multivariate_normal.logpdf(steps, np.zeros(6), covariance), rtol=1e-10
    )
    np.testing.assert_allclose(mean, phi @ np.linalg.solve(covariance, steps), rtol=1e-9)
    posterior = np.eye(5) - phi @ np.linalg.solve(covariance, phi.T)
    np.testing.assert_allclose(np.linalg.inv(root @ root.T), posterior, atol=1e-10)
    # of whitened inducing outputs: K(Z, Z) = L Lᵀ
    np.testing.assert_allclose(phi.T @ phi, _through(path), atol=1e-6)


def _through(path):
    """K(x, Z) K(Z, Z)⁻¹ K(Z, x)."""
    across, within = (np.asarray(kernel(INPUTS, each, THETA)) for each in (jnp.asarray(path[:-1]), INPUTS))
    return across.T @ np.linalg.solve(within, across)
