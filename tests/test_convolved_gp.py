"""The model of convolved outputs: mixed outputs as its limit, recovery, entries that are missing, files, refusals."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, loss
from fast import few
from numpyro.handlers import seed

from ppl_dgp import Fit
from ppl_dgp.diagnostics import layer_maps
from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.smoothing import Convolved, rows_of_outputs
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import convolved_gp, multi_output_gp, sparse_gp_regression
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
N, P, Q = 6, 3, 2
X = np.sort(RANDOM.uniform(-2.0, 2.0, size=(N, 1)), 0)
Y = RANDOM.normal(size=(N, P))
STRENGTHS = jnp.asarray(RANDOM.normal(size=(P, Q)))
SETTINGS = dict(inducing=X[::2], noise=0.1)


def loss_of(model, alpha, x, y):
    params = initial(KEY, model, Guide(model), x, y)
    return loss(PowerEP(alpha), params | {"gp/u_loc": params["gp/u_loc"] + 0.3}, model, Guide(model), x, y)


@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 1))
def test_without_smoothing_it_is_the_model_of_mixed_outputs(alpha):
    """And no entry that is missing counts."""
    held = lambda dims: Convolved(STRENGTHS, 0.0, jnp.ones((Q, dims)))
    x, y = jnp.asarray(X), jnp.asarray(Y).at[0, 1].set(jnp.nan).at[3].set(jnp.nan)
    one = loss_of(convolved_gp(P, Q, 3, kernel=held, **SETTINGS), alpha, x, y)
    kernel = lambda dims: RBF(1.0, 1.0)
    mixed = multi_output_gp(P, Q, 3, kernel=kernel, separate=True, weights=np.asarray(STRENGTHS), **SETTINGS)
    np.testing.assert_allclose(one, loss_of(mixed, alpha, x, y), rtol=1e-10)
    rest = np.arange(N) != 3
    left_out = loss_of(convolved_gp(P, Q, 3, kernel=held, **SETTINGS), alpha, x[rest], y[rest])
    np.testing.assert_allclose(one, left_out, rtol=1e-10)


def smoothed_outputs(number, rows=60):
    """Three outputs of one function, sharp, smoother and late, still smoother and early; of two a run is held out."""
    random = np.random.default_rng(number)
    kernel = Convolved(
        jnp.array([[1.0], [2.0], [-1.5]]),
        jnp.array([0.1, 0.5, 0.9]).reshape(3, 1, 1),
        jnp.array([[0.5]]),
        jnp.array([0.0, 0.3, -0.2]).reshape(3, 1, 1),
    )
    x = np.sort(random.uniform(-5.0, 5.0, rows))[:, None]
    covariance = np.asarray(kernel(*[rows_of_outputs(jnp.asarray(x), 3)] * 2)) + 1e-10 * np.eye(3 * rows)
    f = (np.linalg.cholesky(covariance) @ random.normal(size=3 * rows)).reshape(rows, 3)
    held = np.zeros(f.shape, bool)
    held[(x[:, 0] > -2.0) & (x[:, 0] < 0.0), 1] = True
    held[(x[:, 0] > 1.0) & (x[:, 0] < 2.0), 0] = True
    return x, np.where(held, np.nan, f + 0.05 * random.normal(size=f.shape)), f, held


@pytest.mark.slow
def test_smoothing_and_delays_are_recovered():
    """Of one function the data know ratios of S and differences of c² and δ; what is held out is predicted by them."""
    x, y, f, held = smoothed_outputs(1)
    errors, models = {}, {"convolved": convolved_gp(3, 1, 30, delayed=True)}
    models["independent"] = multi_output_gp(3, 3, 30, separate=True, weights=np.eye(3))
    for name, model in models.items():
        fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=1000, learning_rate=0.03)
        errors[name] = np.sqrt(np.square(fit.predict(KEY, x).mean - f)[held].mean())
        if name == "convolved":
            strengths, widths, delays = (
                np.asarray(fit.params[f"gp/{each}"]).ravel() for each in ("strengths", "widths", "delays")
            )
    np.testing.assert_allclose(strengths / strengths[0], [1.0, 2.0, -1.5], rtol=0.1)
    np.testing.assert_allclose(widths**2 - widths[0] ** 2, [0.0, 0.24, 0.8], atol=0.1)
    np.testing.assert_allclose(delays - delays[0], [0.0, 0.3, -0.2], atol=0.05)
    assert errors["convolved"] < 0.1 and errors["convolved"] < 0.3 * errors["independent"]


@pytest.mark.slow
def test_a_start_is_a_kernel():
    kernel = Convolved(STRENGTHS, jnp.full((P, Q, 1), 0.2), jnp.full((Q, 1), 0.7))
    model = convolved_gp(P, Q, 3, kernel=kernel)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.5), X, Y, steps=1, learning_rate=1e-9)
    np.testing.assert_allclose(fit.params["gp/strengths"], STRENGTHS, rtol=1e-6)
    np.testing.assert_allclose(fit.params["gp/widths"], 0.2, rtol=1e-6)
    assert "gp/delays" not in fit.params


@pytest.mark.slow
def test_entries_are_rows_of_plain_regression():
    """The kernel in another model of the zoo, inducing inputs (z, p): what is missing is a row that is not there."""
    kernel = Convolved(STRENGTHS, jnp.full((P, Q, 1), 0.2), jnp.full((Q, 1), 0.7))
    rows, y = np.asarray(rows_of_outputs(jnp.asarray(X), P))[::2], Y.reshape(-1, 1)[::2]
    model = sparse_gp_regression(4, kernel=kernel, inducing=rows[1:8:2], noise=0.1)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.5), rows, y, steps=20, batch_size=4, learning_rate=0.1)
    np.testing.assert_array_equal(fit.params["gp/inducing"][:, 1], rows[1:8:2, 1])
    assert np.abs(fit.params["gp/inducing"][:, 0] - rows[1:8:2, 0]).min() > 0.0
    assert np.abs(fit.params["gp/strengths"] - STRENGTHS).min() > 0.0
    assert np.isfinite(fit.predict(KEY, rows).mean).all()


@pytest.mark.slow
def test_what_a_fit_is_asked_for(tmp_path):
    model = convolved_gp(P, Q, 3, delayed=True)
    assert repr(model) == "convolved_gp(num_outputs=3, num_latents=2, num_inducing=3, delayed=True)"
    assert pickle.loads(pickle.dumps(model)) == model
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.5), X, Y, steps=5, batch_size=4)
    prediction = fit.predict(KEY, X, Y, levels=(0.1, 0.9))
    assert prediction.mean.shape == (N, P) and np.isfinite(prediction.log_density).all()
    mean, covariance = fit.joint_prediction(KEY, jnp.asarray(X))
    np.testing.assert_allclose(np.einsum("pnn->np", covariance), prediction.f_variance, atol=1e-8)
    np.testing.assert_allclose(mean, prediction.f_mean, atol=1e-8)
    draws = fit.sample_functions(KEY, jnp.asarray(X), num_samples=4000)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5.0 * float(covariance.max() / 4000) ** 0.5)
    (layer,) = layer_maps(fit, jnp.asarray(X))
    assert layer.mean.shape == (N * P, 1)
    fit.save(tmp_path / "fit.safetensors")
    loaded = Fit.load(tmp_path / "fit.safetensors")
    assert loaded.model == model
    np.testing.assert_array_equal(loaded.predict(KEY, X).mean, fit.predict(KEY, X).mean)


@pytest.mark.slow
def test_other_likelihoods_and_32_bits():
    counts = np.abs(np.round(Y))
    model = convolved_gp(P, Q, 3, likelihood="poisson")
    assert np.isfinite(fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, counts, steps=2).losses).all()
    with jax.enable_x64(False):
        model = convolved_gp(P, Q, 3)
        fit = fit_svi(jax.random.key(0), model, Guide(model), PowerEP(0.5), X, Y, steps=3)
        assert np.isfinite(fit.losses).all() and fit.params["gp/widths"].dtype == np.float32


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: convolved_gp(P, 0), "num_latents: found 0"),
        (lambda: convolved_gp(P, kernel=Convolved), "kernel: found .*Convolved.*, expected Convolved"),
        (lambda: convolved_gp(P, kernel=RBF(1.0, 1.0)), "kernel: found RBF.*, expected Convolved"),
        (lambda: convolved_gp(P, 1, kernel=Convolved(STRENGTHS, 0.1, 1.0)), r"kernel: found strengths \(3, 2\), exp"),
        (lambda: convolved_gp(P, Q, kernel=Convolved(STRENGTHS, 0.1, 1.0), delayed=True), "delayed: found True"),
        (lambda: seed(convolved_gp(P, 1, 2, kernel=lambda d: RBF(1.0, 1.0)), KEY)(jnp.asarray(X)), "kernel: found RBF"),
        (lambda: seed(convolved_gp(2, 1, 2), KEY)(jnp.asarray(X), jnp.asarray(Y)), "y: found 3 columns, expected 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()
