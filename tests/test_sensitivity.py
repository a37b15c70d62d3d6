"""Partial dependence and draws of the layers, against Monte Carlo, kernels and the moments of predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace

from ppl_dgp.diagnostics import partial_dependence
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, exact_gp_regression
from ppl_dgp.prediction.joint import sample_functions, sample_layers
from ppl_dgp.prediction.predict import predict

KEY, RNG = jax.random.key(0), np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (12, 2))
Y = np.stack([np.sin(3.0 * X[:, 0]), X[:, 0] * X[:, 1]], 1)
VALUES = {"gp/lengthscale": [0.7, 1.5], "gp/variance": 1.3, "likelihood/noise": 0.05}
PARAMS = {name: jnp.asarray(value) for name, value in VALUES.items()}
EXACT = Posterior(exact_gp_regression(), no_latents, PARAMS, data=(jnp.asarray(X), jnp.asarray(Y)))
MODEL = deep_gp((2,), 5)
GUIDE = Guide(MODEL, hidden=DoublyStochastic())
LINE = np.linspace(-1.0, 1.0, 6)[:, None] * np.ones((1, 2))


def deep() -> Posterior:
    """A deep GP as it begins, its q(u) away from the prior."""
    params = {}
    for program in (MODEL, GUIDE):
        sites = trace(seed(program, KEY)).get_trace(jnp.asarray(X), jnp.asarray(Y[:, :1])).values()
        params |= {site["name"]: site["value"] for site in sites if site["type"] == "param"}
    params["layer1/u_loc"] = params["layer1/u_loc"] + 0.5
    return Posterior(MODEL, GUIDE, params)


def test_partial_dependence_is_the_average_of_predictions_and_of_draws() -> None:
    values = np.array([0.4, -0.5, 0.1])
    found = partial_dependence(KEY, EXACT, X, 1, values=values, num_rows=4)
    rows = X[[0, 4, 7, 11]]
    np.testing.assert_array_equal(found.values, np.sort(values))
    for number, value in enumerate(found.values):
        at = np.stack([rows[:, 0], np.full(4, value)], 1)
        predicted = predict(KEY, EXACT, at)
        np.testing.assert_allclose(found.mean[number], predicted.f_mean.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found.rows[:, number], predicted.f_mean, rtol=1e-9)
        averages = sample_functions(KEY, EXACT, at, 8000).mean(1)
        # a standard deviation of S draws is known to 1/√2S
        np.testing.assert_allclose(found.deviation[number], averages.std(0), rtol=4.0 / np.sqrt(16_000))
    np.testing.assert_allclose(found.importance, found.mean.std(0))
    assert found.mean.shape == (3, 2) and found.rows.shape == (4, 3, 2)
    with pytest.raises(ValueError, match="column: found 2, expected 0 to 1"):
        partial_dependence(KEY, EXACT, X, 2)


def test_draws_of_the_prior_have_the_kernel_for_a_covariance() -> None:
    at = jnp.asarray(LINE)
    draws = np.asarray(sample_functions(KEY, EXACT, at, 20_000, prior=True))[:, :, 0]
    expected = RBF(variance=PARAMS["gp/variance"], lengthscale=PARAMS["gp/lengthscale"])(at, at)
    # (k_ii k_jj + k_ij²) / S is the variance of a covariance
    np.testing.assert_allclose(draws.T @ draws / 20_000, expected, atol=5 * 1.3 * np.sqrt(2 / 20_000))


@pytest.mark.slow
def test_draws_of_layers_have_the_moments_of_each_layer() -> None:
    fit = deep()
    layers = sample_layers(KEY, fit, LINE, 4000)
    assert {name: value.shape[1:] for name, value in layers.items()} == {"layer1": (6, 2), "layer2": (6, 1)}
    (first, _) = fit.layer_maps(jnp.asarray(LINE))
    expected = np.sqrt(first.deviation**2 + np.asarray(fit.params["layer1/noise"]))
    hidden = np.asarray(layers["layer1"])
    np.testing.assert_allclose(hidden.mean(0), first.mean, atol=5 * expected.max() / np.sqrt(4000))
    np.testing.assert_allclose(hidden.std(0), expected, rtol=5 / np.sqrt(8000))
    # of the prior: a kernel of its own around the linear mean, and the noise
    before = np.asarray(sample_layers(KEY, fit, LINE, 4000, prior=True)["layer1"])
    variance = float(fit.params["layer1/variance"] + fit.params["layer1/noise"])
    np.testing.assert_allclose(before.std(0), np.sqrt(variance), rtol=5 / np.sqrt(8000))
    np.testing.assert_allclose(before.mean(0), LINE, atol=5 * np.sqrt(variance / 4000))
