"""Bayesian linear layers and random features: by weight-space regression, dense evidences, and Monte Carlo."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import pytest
from compiled import KEY, initial, loss
from jax.scipy.stats import multivariate_normal
from numpyro.handlers import seed, trace

from ppl_dgp.fit import Posterior
from ppl_dgp.gp.bayesian_layer import ACTIVATIONS, Activated, bayesian_linear
from ppl_dgp.gp.random_features import RandomWaves, random_features_gp, unit_frequencies
from ppl_dgp.gp.weight_space import FunctionWeights, weight_space_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Diagonal, Guide, LowRank
from ppl_dgp.kernels import RBF, Matern12, Matern32, Matern52, Periodic
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, PowerEP
from ppl_dgp.prediction.predict import predict

RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(8, 2)))
Y = jnp.asarray(RANDOM.normal(size=(8, 2)))
NEW = jnp.asarray(RANDOM.normal(size=(5, 2)))
NOISE = 0.3


def tanh_layer(x, y=None, index=None, size=None):
    f = bayesian_linear("f", 2, 2, activation="tanh", weight_scale=1.5, bias_scale=0.7)
    with data_plate(size or x.shape[0], index):
        numpyro.sample("y", f(x).noisy(NOISE), obs=y)


def waves_layer(x, y=None, index=None, size=None):
    f = random_features_gp("f", RBF(1.2, 0.8), unit_frequencies(jax.random.key(3), RBF, 6, 2), 2)
    with data_plate(size or x.shape[0], index):
        numpyro.sample("y", f(x).noisy(NOISE), obs=y)


def basis_of(model, x):
    """φ as written on paper, not by the package."""
    x = np.asarray(x)
    if model is tanh_layer:
        return np.column_stack([1.5 / np.sqrt(2.0) * np.tanh(x), np.full(len(x), 0.7)])
    omega = np.asarray(unit_frequencies(jax.random.key(3), RBF, 6, 2)) / 0.8
    return np.sqrt(1.2 / 6) * np.column_stack([np.cos(x @ omega.T), np.sin(x @ omega.T)])


def posterior_of_weights(model):
    """Mean (P, M) and covariance of the weights, Bishop 2006, eq. 3.53 and 3.54."""
    waves = basis_of(model, X)
    covariance = np.linalg.inv(np.eye(waves.shape[1]) + waves.T @ waves / NOISE)
    return (covariance @ waves.T @ np.asarray(Y) / NOISE).T, covariance


def at_the_posterior(model):
    mean, covariance = posterior_of_weights(model)
    scale = jnp.linalg.cholesky(jnp.asarray(covariance))
    return {"f/u_loc": jnp.asarray(mean), "f/u_scale": jnp.broadcast_to(scale, (2, *scale.shape))}


@pytest.mark.parametrize("model", [tanh_layer, waves_layer])
def test_one_layer_is_bayesian_linear_regression(model):
    waves = basis_of(model, X)
    marginal = waves @ waves.T + NOISE * np.eye(8)
    evidence = sum(float(multivariate_normal.logpdf(Y[:, p], jnp.zeros(8), marginal)) for p in range(2))
    params = at_the_posterior(model)
    for alpha in (0.0, 0.5, 1.0):
        bound = -loss(PowerEP(alpha), params, model, Guide(model), X, Y)
        np.testing.assert_allclose(bound, evidence, rtol=1e-10)
        collapsed = -loss(Collapsed(alpha), params, model, Guide(model), X, Y)
        np.testing.assert_allclose(collapsed, evidence, rtol=1e-10)
    found = Collapsed().finish(params, model, Guide(model), X, Y)
    mean, covariance = posterior_of_weights(model)
    np.testing.assert_allclose(found["f/u_loc"], mean, atol=1e-8)
    np.testing.assert_allclose(found["f/u_scale"][0] @ found["f/u_scale"][0].T, covariance, atol=1e-8)
    new = predict(KEY, Posterior(model, Guide(model), params), NEW)
    at_new = basis_of(model, NEW)
    np.testing.assert_allclose(new.mean, at_new @ mean.T, atol=1e-8)
    spread = np.einsum("bm,mn,bn->b", at_new, covariance, at_new) + NOISE
    np.testing.assert_allclose(new.variance, np.stack([spread, spread], 1), atol=1e-8)


def test_guides_of_the_weights_are_in_order():
    """Mean-field below low-rank below full-rank at each one's optimum, which for mean-field is known."""
    mean, covariance = posterior_of_weights(tanh_layer)
    params = at_the_posterior(tanh_layer)
    evidence = -loss(PowerEP(0.0), params, tanh_layer, Guide(tanh_layer), X, Y)
    precisions = np.diagonal(np.linalg.inv(covariance))
    deviations = np.broadcast_to(1.0 / np.sqrt(precisions), mean.shape)
    best = {"f/u_loc": jnp.asarray(mean), "f/u_scale": jnp.asarray(deviations)}
    guide = Guide(tanh_layer, inducing=Diagonal())
    bound = -loss(PowerEP(0.0), best, tanh_layer, guide, X, Y)
    # KL[q ‖ posterior] of the best product of normals, the same of both outputs
    gap = 0.5 * (np.log(precisions).sum() + np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(evidence - bound, 2.0 * gap, rtol=1e-8)
    # a covariance of rank 2 beside a diagonal is any of three weights but for one number
    start = initial(KEY, tanh_layer, Guide(tanh_layer, inducing=LowRank(2)), X, Y)
    assert start["f/u_factor"].shape == (2, 3, 2)


def test_local_reparameterisation_has_the_moments_of_sampled_weights():
    """f(x) under moments of u, by algebra and by a hundred thousand draws of the weights."""
    mean = jnp.asarray(RANDOM.normal(size=(2, 3)))
    scale = jnp.asarray(np.tril(RANDOM.normal(size=(2, 3, 3))))
    with seed(rng_seed=0), trace():
        f = bayesian_linear("f", 2, 2, activation="relu")
    local = replace(f, u=Gaussian(mean, scale))(X)
    waves = f.kernel.basis(X)
    np.testing.assert_allclose(local.residual, 0.0, atol=1e-14)
    np.testing.assert_allclose(local.mean, waves @ mean.T, atol=1e-13)
    exact = jnp.einsum("bm,pmk,pnk,bn->bp", waves, scale, scale, waves)
    np.testing.assert_allclose(local.variance, exact, atol=1e-12)
    draws = mean + jnp.einsum("pmk,spk->spm", scale, jax.random.normal(KEY, (100_000, 2, 3)))
    values = jnp.einsum("bm,spm->sbp", waves, draws)
    error = jnp.sqrt(local.variance / 100_000)
    assert (jnp.abs(values.mean(0) - local.mean) < 4.5 * error).all()
    np.testing.assert_allclose(values.var(0), local.variance, rtol=4.5 * np.sqrt(2.0 / 100_000))


@pytest.mark.parametrize("cls", [RBF, Matern12, Matern32, Matern52])
def test_random_features_near_the_kernel(cls):
    """The average of many waves is the kernel, within the standard error of what it averages."""
    kernel, number = cls(1.3, jnp.array([0.7, 1.1])), 20_000
    omega = unit_frequencies(jax.random.key(1), cls, number, 2)
    waves = RandomWaves(kernel, omega)
    np.testing.assert_allclose(waves.diag(X), 1.3, rtol=1e-10)
    scaled = X / jnp.array([0.7, 1.1])
    each = 1.3 * jnp.cos((scaled[:, None] - scaled[None]) @ omega.T)
    np.testing.assert_allclose(waves(X, X), each.mean(-1), atol=1e-10)
    error = each.std(-1) / np.sqrt(number)
    assert (jnp.abs(waves(X, X) - kernel(X, X)) <= 4.5 * error + 1e-12).all()

    # half as many frequencies have √2 the error: of 200 independent sets
    def square_error(number):
        keys = jax.random.split(jax.random.key(2), 200)
        near = jax.vmap(lambda key: RandomWaves(kernel, unit_frequencies(key, cls, number, 2))(X, X))(keys)
        return jnp.square(near - kernel(X, X)).mean()

    np.testing.assert_allclose(square_error(50) / square_error(100), 2.0, rtol=0.25)


def test_the_weights_are_drawn_from_their_prior():
    """Of the layer's values over many draws, the covariance is the kernel."""

    def values(key):
        with seed(rng_seed=key):
            return bayesian_linear("f", 2, 1, activation="erf", weight_scale=0.8, bias_scale=0.3)(X).mean[
                :, 0
            ]

    draws = jax.vmap(values)(jax.random.split(KEY, 20_000))
    kernel = Activated(0.8, 0.3, ACTIVATIONS["erf"])(X, X)
    diagonal = jnp.diagonal(kernel)
    error = jnp.sqrt((jnp.square(kernel) + diagonal[:, None] * diagonal) / 20_000)
    assert (jnp.abs(draws.T @ draws / 20_000 - kernel) < 4.5 * error).all()


@pytest.mark.slow
def test_minibatches_are_unbiased():
    params = at_the_posterior(tanh_layer)
    for objective in (PowerEP(0.0), PowerEP(0.5), BlackBoxAlpha(0.5)):
        full = loss(objective, params, tanh_layer, Guide(tanh_layer), X, Y)
        parts = [
            loss(objective, params, tanh_layer, Guide(tanh_layer), X[at], Y[at], at, 8)
            for at in jnp.arange(8).reshape(4, 2)
        ]
        np.testing.assert_allclose(np.mean(parts), full, rtol=1e-9)


def test_32_bits():
    with jax.enable_x64(False):
        x, y = (jnp.asarray(np.asarray(each), jnp.float32) for each in (X, Y))
        params = {
            name: jnp.asarray(np.asarray(v), jnp.float32) for name, v in at_the_posterior(tanh_layer).items()
        }
        narrow = loss(PowerEP(0.5), params, tanh_layer, Guide(tanh_layer), x, y, key=jax.random.PRNGKey(0))
    wide = loss(PowerEP(0.5), at_the_posterior(tanh_layer), tanh_layer, Guide(tanh_layer), X, Y)
    np.testing.assert_allclose(narrow, wide, rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: bayesian_linear("f", 2, activation="step"), ValueError, "activation: found 'step', expected one of"),
        (lambda: bayesian_linear("f", 2, weight_scale=-1.0), ValueError, "weight_scale: found -1.0"),
        (lambda: bayesian_linear("f", 2, 0), ValueError, "num_outputs: found 0"),
        (lambda: weight_space_gp("f", RBF(1.0, 1.0), 2), TypeError, "kernel: found RBF, expected a WeightSpace"),
        (lambda: FunctionWeights(3, 2).cross(RBF(1.0, 1.0), X), TypeError, "take weight_space_gp"),
        (lambda: unit_frequencies(KEY, RBF, 0, 2), ValueError, "number: found 0"),
        (lambda: unit_frequencies(KEY, Periodic, 5, 2), TypeError, "kernel: found Periodic, expected RBF"),
        (lambda: random_features_gp("f", RBF(1.0, 1.0, active_dims=(0,)), X), ValueError, "active_dims"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, error, message, monkeypatch):
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message), seed(rng_seed=0):
        made()
