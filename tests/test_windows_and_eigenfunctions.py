"""Gaussian windows and eigenfunctions: by quadrature, Fourier transforms, limits, and dense evidences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax.scipy.stats import multivariate_normal
from numpyro.distributions import constraints
from numpyro.handlers import seed, trace
from scipy.integrate import quad

from ppl_dgp.fit import fit_nuts, fit_svi
from ppl_dgp.gp.eigenfunctions import Eigenfunctions, ReducedRank, reduced_rank_gp, spectral_density
from ppl_dgp.gp.feature_moments import covariance_quadratic, expected_cross, expected_input_cross
from ppl_dgp.gp.features import covariance, cross
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.windows import GaussianWindows
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF, Matern12, Matern32, Matern52
from ppl_dgp.kernels import Linear as LinearKernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.rollout import FunctionPath

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.uniform(-1.0, 1.0, size=(6, 2)))
KERNEL = RBF(1.3, jnp.array([0.7, 1.1]))
WINDOWS = GaussianWindows(
    jnp.asarray(RANDOM.normal(size=(4, 2))), jnp.asarray(RANDOM.uniform(0.1, 1.0, size=(4, 2)))
)
NODES, SHARES = np.polynomial.hermite_e.hermegauss(60)
GRID = np.stack(np.meshgrid(NODES, NODES, indexing="ij"), -1).reshape(-1, 2)
MASS = np.outer(SHARES, SHARES).ravel() / (2.0 * np.pi)


def under(mean, deviation):
    """Nodes of a Gaussian in two dimensions."""
    return jnp.asarray(mean + deviation * GRID)


@pytest.mark.slow
def test_windows_are_averages_of_the_kernel():
    for m in range(4):
        nodes = under(WINDOWS.centres[m], WINDOWS.widths[m])
        np.testing.assert_allclose(cross(KERNEL, X, WINDOWS)[:, m], KERNEL(X, nodes) @ MASS, atol=1e-10)
        for n in range(4):
            others = under(WINDOWS.centres[n], WINDOWS.widths[n])
            np.testing.assert_allclose(
                covariance(KERNEL, WINDOWS)[m, n], MASS @ KERNEL(nodes, others) @ MASS, atol=1e-10
            )
    mean = Linear(jnp.ones((2, 3)), 0.5)
    averages = jnp.stack(
        [MASS @ mean(under(*pair)) for pair in zip(WINDOWS.centres, WINDOWS.widths, strict=True)]
    )
    np.testing.assert_allclose(WINDOWS.mean(mean), averages, atol=1e-12)


def test_windows_of_no_width_are_points():
    points = GaussianWindows(WINDOWS.centres, jnp.zeros((4, 2)))
    np.testing.assert_allclose(cross(KERNEL, X, points), KERNEL(X, WINDOWS.centres), rtol=1e-13)
    np.testing.assert_allclose(
        covariance(KERNEL, points), KERNEL(WINDOWS.centres, WINDOWS.centres), rtol=1e-13
    )
    f, g = (seed(sparse_gp, KEY)("f", KERNEL, z, 1, jitter=0.0) for z in (points, WINDOWS.centres))
    np.testing.assert_allclose(f(X).mean, g(X).mean, rtol=1e-10)
    np.testing.assert_allclose(f(X).variance, g(X).variance, rtol=1e-10)
    total = lambda widths: covariance(KERNEL, GaussianWindows(WINDOWS.centres, widths)).sum()
    assert np.isfinite(jax.grad(total)(jnp.zeros((4, 2)))).all()


@pytest.mark.slow
def test_windows_have_moments_under_uncertain_inputs():
    inputs = Gaussian(X[:3], jnp.asarray(RANDOM.uniform(0.1, 0.8, size=(3, 2))))
    matrices = jnp.asarray(RANDOM.normal(size=(2, 4, 4)))
    for b in range(3):
        nodes = under(inputs.mean[b], inputs.scale[b])
        at = cross(KERNEL, nodes, WINDOWS)
        np.testing.assert_allclose(expected_cross(KERNEL, inputs, WINDOWS)[b], MASS @ at, atol=1e-10)
        beyond = at - MASS @ at
        spread = jnp.einsum("k,km,kn,pmn->p", MASS, beyond, beyond, matrices)
        np.testing.assert_allclose(
            covariance_quadratic(KERNEL, inputs, WINDOWS, matrices)[b], spread, atol=1e-10
        )
        with_inputs = jnp.einsum("k,km,kd->md", MASS, at, nodes)
        np.testing.assert_allclose(expected_input_cross(KERNEL, inputs, WINDOWS)[b], with_inputs, atol=1e-10)
    with seed(rng_seed=0), trace():
        f = sparse_gp("f", KERNEL, WINDOWS, 1)
    assert f(inputs).mean.shape == (3, 1)  # matched moments
    full = Gaussian(X[:1], jnp.eye(2)[None])
    with pytest.raises(ValueError, match="found moments with covariances between inputs"):
        expected_cross(KERNEL, full, WINDOWS)


@pytest.mark.slow
def test_windows_are_trained():
    """Widths as parameters, in 64 and in 32 bits."""

    def model(x, y=None):
        z = numpyro.param("z", jnp.asarray(np.linspace(-1.0, 1.0, 5)[:, None], x.dtype))
        widths = numpyro.param("widths", jnp.full((5, 1), 0.3, x.dtype), constraint=constraints.positive)
        f = sparse_gp("f", RBF(1.0, 0.3), GaussianWindows(z, widths))
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(0.01), obs=y)

    x = np.linspace(-1.0, 1.0, 30)[:, None]
    for wide in (True, False):
        with jax.enable_x64(wide):
            fit = fit_svi(jax.random.key(0), model, Guide(model), PowerEP(0.0), x, np.sin(3.0 * x), steps=50)
            assert np.isfinite(fit.losses).all() and fit.losses[0, -1] < fit.losses[0, 0]
            assert not np.allclose(fit.params["widths"], 0.3)


@pytest.mark.parametrize(
    "kernel", [RBF(1.3, 0.7), Matern12(0.9, 0.6), Matern32(1.1, 0.5), Matern52(0.7, 0.8)]
)
def test_spectral_densities_are_fourier_transforms(kernel):
    omega = np.array([0.3, 1.7, 4.0])
    at = lambda r: float(kernel(jnp.array([[r]]), jnp.zeros((1, 1)))[0, 0])
    expected = [2.0 * quad(at, 0.0, 30.0, weight="cos", wvar=w, limit=200)[0] for w in omega]
    np.testing.assert_allclose(spectral_density(kernel, jnp.asarray(omega)[:, None]), expected, rtol=1e-7)


@pytest.mark.parametrize("cls", [RBF, Matern12, Matern32, Matern52])
def test_spectral_densities_in_two_dimensions(cls):
    """∫ S dω / (2π)² over the second frequency is the density of the line: of the kernel at r_2 = 0."""
    plane, line = cls(1.3, jnp.array([0.7, 1.1])), cls(1.3, 0.7)
    for first in (0.4, 2.0):
        at = lambda second: float(spectral_density(plane, jnp.array([[first, second]]))[0])  # noqa: B023
        found = quad(at, -np.inf, np.inf, limit=300)[0] / (2.0 * np.pi)
        np.testing.assert_allclose(found, spectral_density(line, jnp.array([[first]]))[0], rtol=1e-6)


@pytest.mark.slow
def test_the_kernel_of_reduced_rank_nears_the_kernel():
    x = jnp.asarray(RANDOM.uniform(-1.0, 1.0, size=(5, 2)))
    features = Eigenfunctions((-6.0, -8.0), (6.0, 8.0), (40, 34))
    reduced = ReducedRank(KERNEL, features)
    np.testing.assert_allclose(reduced(x, x), KERNEL(x, x), atol=1e-8)
    np.testing.assert_allclose(reduced.diag(x), jnp.diagonal(reduced(x, x)), rtol=1e-12)
    # of a Matérn 3/2 what is cut off falls as number⁻³, of a sum it is what its parts lack
    line, errors = x[:, :1], []
    for number in (100, 200, 400):
        near = ReducedRank(Matern32(1.0, 0.5) + RBF(0.5, 0.4), Eigenfunctions((-6.0,), (6.0,), (number,)))
        exact = Matern32(1.0, 0.5)(line, line) + RBF(0.5, 0.4)(line, line)
        errors.append(float(jnp.abs(near(line, line) - exact).max()))
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 8.0, rtol=0.3)


def weighted(x, y=None):
    f = reduced_rank_gp("f", RBF(1.0, 0.6), [-3.0], [3.0], 14)
    with data_plate(x.shape[0]):
        numpyro.sample("y", f(x).noisy(0.1), obs=y)


@pytest.mark.slow
def test_the_bound_is_the_evidence_of_the_weights():
    """Nothing is left that u does not say: with the posterior of the weights the bound is the dense evidence."""
    x, y = X[:, :1], jnp.asarray(RANDOM.normal(size=(6, 1)))
    kernel = ReducedRank(RBF(1.0, 0.6), Eigenfunctions((-3.0,), (3.0,), (14,)))
    waves = kernel.features.cross(kernel, x)
    gram = jnp.eye(14) + waves.T @ waves / 0.1
    scale = jnp.linalg.cholesky(jnp.linalg.inv(gram))
    params = {"f/u_loc": (scale @ scale.T @ waves.T @ y / 0.1).T, "f/u_scale": scale[None]}
    guide = Guide(weighted)
    evidence = multivariate_normal.logpdf(y[:, 0], jnp.zeros(6), kernel(x, x) + 0.1 * jnp.eye(6))
    for alpha in (0.0, 0.5, 1.0):
        bound = -PowerEP(alpha).loss(KEY, params, weighted, guide, x, y)
        np.testing.assert_allclose(bound, evidence, rtol=1e-10)
    with seed(rng_seed=0), trace():
        f = reduced_rank_gp("f", RBF(1.0, 0.6), [-3.0], [3.0], 14)
    np.testing.assert_allclose(f(x).residual, 0.0, atol=1e-14)
    both = f(x) + f(0.5 * x)  # sums, of one function at two places
    assert both.variance.max() < 1e-13


@pytest.mark.slow
def test_a_path_of_it_is_its_mean_and_has_slopes():
    """What its weights tell whole has nothing left to draw, and the root of nothing no slope that is NaN."""
    u = jnp.asarray(RANDOM.normal(size=(1, 9)))

    def ends(lengthscale):
        with seed(rng_seed=0):
            f = reduced_rank_gp("f", RBF(1.0, lengthscale), [-3.0], [3.0], 9)
        f = replace(f, u=u)
        memory, values = FunctionPath.empty(f, 3, jnp.ones((3, 1))), []
        for place in (0.1, 0.4, 0.1):
            value, memory = memory.meet(f, jnp.full((1, 1), place))
            values.append(value - f(jnp.full((1, 1), place)).mean[0])
        return jnp.stack(values), f(jnp.full((1, 1), 0.4)).mean.sum()

    np.testing.assert_allclose(ends(0.7)[0], 0.0, atol=1e-14)
    slope = jax.grad(lambda lengthscale: sum(part.sum() for part in ends(lengthscale)))(0.7)
    alone = jax.grad(lambda lengthscale: ends(lengthscale)[1])(0.7)
    np.testing.assert_allclose(slope, alone, rtol=1e-12)


@pytest.mark.slow
def test_the_weights_are_sampled():
    """NUTS at fixed hyperparameters against the weights' posterior in closed form."""
    x, y = np.asarray(X[:, :1]), RANDOM.normal(size=(6, 1))
    kernel = ReducedRank(RBF(1.0, 0.6), Eigenfunctions((-3.0,), (3.0,), (14,)))
    waves = np.asarray(kernel.features.cross(kernel, jnp.asarray(x)))
    covariance = np.linalg.inv(np.eye(14) + waves.T @ waves / 0.1)
    fit = fit_nuts(KEY, weighted, x, y, num_warmup=500, num_samples=2000)
    draws = np.asarray(fit.params["f/u_draws"]).reshape(-1, 14)
    error = np.sqrt(np.diagonal(covariance) / 500.0)  # of an effective size of a quarter
    assert (np.abs(draws.mean(0) - (covariance @ waves.T @ y / 0.1)[:, 0]) < 5.0 * error).all()


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: Eigenfunctions((0.0,), (0.0,), (3,)), ValueError, "high: found"),
        (lambda: Eigenfunctions((0.0,), (1.0,), (0,)), ValueError, "number: found"),
        (lambda: Eigenfunctions((0.0,) * 3, (1.0,) * 3, (40,) * 3), ValueError, "at most 20000"),
        (lambda: Eigenfunctions((0.0,), (1.0, 2.0), (3,)), ValueError, "number: found 1 numbers beside 1 and 2 ends"),
        (lambda: Eigenfunctions((0.0,), (1.0,), (3,)).waves(jnp.array([[1.5]])), ValueError, "inputs: found 1.5"),
        (lambda: covariance(KERNEL, Eigenfunctions((0.0,), (1.0,), (3,))), TypeError, "take reduced_rank_gp"),
        (lambda: spectral_density(LinearKernel(1.0), jnp.ones((1, 1))), TypeError, "kernel: found Linear"),
        (lambda: spectral_density(RBF(1.0, 1.0, active_dims=(0,)), jnp.ones((1, 1))), ValueError, "active_dims"),
        (lambda: GaussianWindows(jnp.ones((2, 1)), jnp.ones((3, 1))), ValueError, "widths: found shape"),
        (lambda: covariance(Matern32(1.0, 1.0), WINDOWS), TypeError, "kernel: found Matern32, expected RBF"),
        (lambda: covariance(RBF(1.0, 1.0, active_dims=(0,)), WINDOWS), ValueError, "active_dims"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, error, message):
    with pytest.raises(error, match=message):
        made()
