"""NUTS of hyperparameters alone: against quadrature of the evidence, and u given them against FITC's closed form."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from fast import few
from numpyro.handlers import lift
from scipy import stats

from ppl_dgp import (
    Collapsed,
    PowerEP,
    SamplingWarning,
    deep_gp,
    fit_nuts,
    sparse_gp_classification,
    sparse_gp_regression,
)
from ppl_dgp.kernels import RBF

X = np.linspace(-1.5, 1.5, 12)[:, None]
Y = np.sin(2 * X) + 0.2 * np.random.default_rng(0).normal(size=X.shape)
NOISE = 0.05
PRIOR = {"gp/lengthscale": dist.InverseGamma(5.0, jnp.array([5.0])).to_event(1)}
#: a variance that has no freedom
ONE = dist.Gamma(1e8, 1e8)
MODEL = lift(
    sparse_gp_regression(12, noise=NOISE, kernel=RBF(1.0, jnp.ones(1))), prior=PRIOR | {"gp/variance": ONE}
)


def rbf(lengthscale):
    return np.exp(-0.5 * np.square((X - X.T) / lengthscale))


def sampled(marginal, model=MODEL, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        settings = {"num_warmup": 200, "num_samples": 500, "num_chains": 2, "x": X, "y": Y} | settings
        return fit_nuts(jax.random.key(0), model, marginal=marginal, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("energy", few([Collapsed.exact(), Collapsed.fitc()], 0), ids=["exact", "FITC"])
def test_a_lengthscale_has_the_posterior_of_quadrature(energy):
    """With inducing inputs at all rows both are the exact GP: its evidence on a grid, the variance without freedom."""
    fit = sampled(energy)
    grid = np.linspace(np.log(0.2), np.log(3.0), 400)
    log_density = [
        stats.multivariate_normal.logpdf(Y[:, 0], np.zeros(12), rbf(np.exp(point)) + NOISE * np.eye(12))
        + stats.invgamma.logpdf(np.exp(point), 5.0, scale=5.0)
        + point
        for point in grid
    ]
    weights = np.exp(log_density - np.max(log_density))
    weights /= weights.sum()
    mean = weights @ grid
    deviation = np.sqrt(weights @ np.square(grid - mean))
    draws = np.log(np.asarray(fit.params["gp/lengthscale_draws"])[..., 0])
    # a thousand draws are worth two hundred at least
    assert abs(draws.mean() - mean) < 4.0 * deviation / np.sqrt(200.0)
    np.testing.assert_allclose(draws.std(), deviation, rtol=0.25)


@pytest.mark.slow
def test_inducing_outputs_are_drawn_given_hyperparameters():
    """Their mean and covariance over 1 000 draws beside FITC's, with hyperparameters that have no freedom."""
    fixed = {"gp/lengthscale": dist.Gamma(1e8, jnp.full(1, 1e8)).to_event(1), "gp/variance": ONE}
    model = lift(sparse_gp_regression(4, noise=NOISE, kernel=RBF(1.0, jnp.ones(1))), prior=fixed)
    fit = sampled(Collapsed.fitc(), model)
    z = np.asarray(fit.params["gp/inducing"])
    kernel = lambda a, b: np.exp(-0.5 * np.square(a - b.T))
    lower = np.linalg.cholesky(kernel(z, z) + 1e-8 * np.eye(4))
    phi = np.linalg.solve(lower, kernel(z, X)).T
    spread = 1.0 - np.square(phi).sum(1) + NOISE
    covariance = np.linalg.inv(np.eye(4) + phi.T @ (phi / spread[:, None]))
    mean = covariance @ (phi / spread[:, None]).T @ Y[:, 0]
    draws = np.asarray(fit.params["gp/u_draws"]).reshape(-1, 4)
    error = np.sqrt(np.diag(covariance) / len(draws))
    assert (np.abs(draws.mean(0) - mean) < 4.5 * error).all()
    np.testing.assert_allclose(draws.std(0), np.sqrt(np.diag(covariance)), rtol=0.12)
    found = fit.predict(jax.random.key(1), X, Y, num_samples=400)
    assert np.sqrt(np.square(found.mean - np.sin(2 * X)).mean()) < 0.2


LIKELY = dist.Gamma(2.0, 2.0)
CLASSES = lift(sparse_gp_classification(2, 4), prior={"gp/variance": LIKELY})
DEEP = lift(deep_gp((1,), 4), prior={"layer1/variance": LIKELY})


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: sampled(PowerEP(0.0)), TypeError, "marginal"),
        (lambda: sampled(Collapsed.fitc(), sparse_gp_regression(4)), TypeError, "expected one that is lifted"),
        (lambda: sampled(Collapsed.fitc(), lift(sparse_gp_regression(4), prior={})), ValueError, "latents none"),
        (lambda: sampled(Collapsed.fitc(), DEEP), ValueError, "latents of each row"),
        (lambda: sampled(Collapsed.fitc(), CLASSES, y=(Y > 0).astype(int)), TypeError, "found Bernoulli"),
    ],
    ids=["energy", "not lifted", "no priors", "hidden layers", "classes"],
)  # fmt: skip
def test_what_has_no_such_density_is_refused(made, error, message):
    with pytest.raises(error, match=message):
        made()
