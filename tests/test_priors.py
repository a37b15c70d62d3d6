"""Priors of hyperparameters: their densities, which parameters have one, and that models are sampled under them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.handlers import lift
from scipy import stats

from ppl_dgp import (
    Guide,
    PowerEP,
    SamplingWarning,
    deep_gp,
    default_priors,
    fit_nuts,
    fit_svi,
    sparse_gp_regression,
)
from ppl_dgp.kernels import Periodic

X = jnp.linspace(-1.5, 1.5, 12)[:, None] * jnp.ones((1, 2))
Y = jnp.sin(2 * X[:, :1])


def test_densities_are_those_that_are_said():
    """An inverse gamma of each lengthscale, and a half-normal of the root of each variance, by SciPy."""
    priors = default_priors(sparse_gp_regression(4), X, Y)
    assert priors.keys() == {"gp/lengthscale", "gp/variance", "likelihood/noise"}
    begun, lengths = np.sqrt(2.0), np.array([0.7, 2.0])
    expected = stats.invgamma.logpdf(lengths, 5.0, scale=5.0 * begun).sum()
    np.testing.assert_allclose(priors["gp/lengthscale"].log_prob(jnp.asarray(lengths)), expected, rtol=1e-12)
    for name in ("gp/variance", "likelihood/noise"):
        variance = 0.3
        # σ² has the density of σ over 2 σ
        expected = stats.halfnorm.logpdf(np.sqrt(variance)) - np.log(2.0 * np.sqrt(variance))
        np.testing.assert_allclose(priors[name].log_prob(jnp.asarray(variance)), expected, rtol=1e-12)
    least, most = stats.invgamma.ppf([0.01, 0.99], 5.0, scale=5.0)
    np.testing.assert_allclose([least, most], [0.43, 3.9], rtol=0.01)


def test_every_layer_and_kernel_has_its_own():
    deep = default_priors(deep_gp((2,), 4), X, Y)
    assert {"layer1/lengthscale", "layer1/variance", "layer1/noise", "layer2/lengthscale"} <= deep.keys()
    assert not any(name.endswith(("inducing", "linear_map", "mean")) for name in deep)
    periodic = default_priors(sparse_gp_regression(4, kernel=Periodic(1.0, 1.0, 3.0)), X[:, :1], Y)
    expected = stats.lognorm.logpdf(2.0, 1.0, scale=3.0)
    np.testing.assert_allclose(periodic["gp/period"].log_prob(jnp.asarray(2.0)), expected, rtol=1e-12)


def test_a_model_without_hyperparameters_is_refused():
    def model(x, y=None):
        weights = numpyro.param("weights", jnp.zeros(2))
        numpyro.sample("y", numpyro.distributions.Normal(x @ weights, 1.0).to_event(1), obs=y[:, 0])

    with pytest.raises(ValueError, match="found the parameters weights, expected some of a kernel"):
        default_priors(model, X, Y)
    with pytest.raises(TypeError, match="model: found the class deep_gp, .*call it first"):
        default_priors(deep_gp, X, Y)


@pytest.mark.parametrize("train", ["svi", "nuts"])
def test_a_prior_of_nothing_is_refused(train):
    """NumPyro passes over it, and the parameter that was meant would have none."""
    prior = {"gp/lengthscales": numpyro.distributions.LogNormal(0.0, 1.0)}
    model = lift(sparse_gp_regression(4), prior=prior)
    said = "prior: found 'gp/lengthscales', which the model does not have; the nearest .* 'gp/lengthscale'"
    with pytest.raises(ValueError, match=said):
        if train == "svi":
            fit_svi(jax.random.key(0), model, Guide(model), PowerEP(0.0), X, Y, steps=1)
        else:
            fit_nuts(jax.random.key(0), model, X, Y, num_warmup=1, num_samples=4)


@pytest.mark.slow
def test_hyperparameters_are_sampled_under_them():
    """What they say of the noise is corrected by the data: twelve rows of a sine with a noise of a tenth."""
    y = Y + 0.1 * jax.random.normal(jax.random.key(1), Y.shape)
    model = sparse_gp_regression(6)
    lifted = lift(model, prior=default_priors(model, X[:, :1], y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        fit = fit_nuts(jax.random.key(0), lifted, X[:, :1], y, num_warmup=200, num_samples=200, num_chains=2)
    noise = np.sqrt(fit.params["likelihood/noise_draws"])
    assert noise.shape == (2, 200) and 0.05 < np.median(noise) < 0.3 and noise.std() > 0.01
    assert fit.params["gp/lengthscale_draws"].shape == (2, 200, 1)
