"""GP-NARX: the table of lags against a loop, free simulation against prediction, dense algebra and a random walk."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, loss
from numpyro import handlers

from ppl_dgp.fit import Posterior, fit_lbfgs
from ppl_dgp.guides import Guide, Optimal
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Poisson
from ppl_dgp.models import gp_narx, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.prediction.growth import DivergenceWarning
from ppl_dgp.prediction.narx import lagged, simulate_narx
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(0)
RANDOM = np.random.default_rng(1)
T, L, K = 12, 2, 3
Y, CONTROLS = RANDOM.normal(size=(T, 2)), RANDOM.normal(size=(T, 1))
DRAWS = 20_000


def test_lags_are_those_of_a_loop():
    """Two sequences, gaps in y and in a control: inputs, targets and steps one by one."""
    y, controls, first = Y.copy(), CONTROLS.copy(), np.isin(np.arange(T), [0, 5])
    y[2, 1], controls[11, 0] = np.nan, np.nan
    found = lagged(y, controls, first, lags=L, control_lags=4)
    expected = []
    for t in range(T):
        start = 5 if t >= 5 else 0
        if t - L < start or t - 3 < start:
            continue
        row = [*y[t - 1], *y[t - 2], *(controls[t - lag, 0] for lag in range(4))]
        if np.isfinite([*row, *y[t]]).all():
            expected.append((t, row))
    np.testing.assert_array_equal(found.rows, [t for t, _ in expected])
    # the step 3, whose past holds the gap, 4 as well, and 11 with its control, are left out
    np.testing.assert_array_equal(found.rows, [8, 9, 10])
    np.testing.assert_array_equal(found.x, [row for _, row in expected])
    np.testing.assert_array_equal(found.y, y[found.rows])


@cache
def narx(**settings):
    """A model of two outputs and a control, its guide, table and parameters away from where they start."""
    table = lagged(Y, CONTROLS, lags=L, control_lags=K)
    model = gp_narx(2, 4, lags=L, **settings)
    guide = Guide(model)
    params = initial(KEY, model, guide, table.x, table.y)
    shape = params["gp/u_loc"].shape
    noise = jax.random.normal(KEY, (*shape, shape[1]))
    params |= {
        "gp/u_loc": jax.random.normal(KEY, shape),
        "gp/u_scale": jnp.tril(0.1 * noise) + 0.3 * jnp.eye(shape[1]),
    }
    return model, guide, table, params | {"likelihood/noise": jnp.array(0.05)}


def test_it_is_a_sparse_regression_on_the_table():
    """About the output before it, it is that of the differences."""
    model, guide, table, params = narx()
    plain = sparse_gp_regression(4, num_outputs=2)
    expected = loss(PowerEP(0.5), params, plain, Guide(plain), table.x, table.y)
    assert loss(PowerEP(0.5), params, model, guide, table.x, table.y) == pytest.approx(expected, rel=1e-12)
    last = gp_narx(2, 4, lags=L, mean="last")
    found = loss(PowerEP(0.5), params, last, Guide(last), table.x, table.y + table.x[:, :2])
    assert found == pytest.approx(expected, rel=1e-12)


def test_means_fed_back_are_predictions_unrolled():
    model, guide, _, params = narx()
    future = np.array([[0.3, np.nan], [np.nan, np.nan], [-0.2, 0.4]])
    found = simulate_narx(
        KEY, Posterior(model, guide, params), Y[3:5], CONTROLS[3:8], y_future=future, feedback="means"
    )
    series = list(Y[:5])
    for h, t in enumerate(range(5, 8)):
        row = np.concatenate([series[t - 1], series[t - 2], CONTROLS[t], CONTROLS[t - 1], CONTROLS[t - 2]])[
            None
        ]
        one = predict(KEY, Posterior(model, guide, params), row, num_samples=1)
        np.testing.assert_allclose(found.mean[h], one.mean[0], atol=1e-9)
        np.testing.assert_allclose(found.variance[h], one.variance[0], atol=1e-9)
        series.append(one.mean[0])
    error = np.square(future - found.mean) / found.variance + np.log(2 * np.pi * found.variance)
    np.testing.assert_allclose(found.log_density, -0.5 * np.nansum(error, 1), atol=1e-9)


def test_two_steps_of_one_function_have_the_moments_of_dense_draws():
    """f(x₁) and f(x₂) of one draw, x₂ made of the first output: their joint covariance in NumPy."""
    model, guide, _, params = narx()
    at = Y[3:5], CONTROLS[3:7]
    found = simulate_narx(KEY, Posterior(model, guide, params), *at, num_samples=DRAWS)
    length, z = np.asarray(params["gp/lengthscale"]), np.asarray(params["gp/inducing"])
    gram = lambda a, b: (
        float(params["gp/variance"])
        * np.exp(-0.5 * np.square((a[..., :, None, :] - b[..., None, :, :]) / length).sum(-1))
    )
    root = np.linalg.cholesky(gram(z, z) + 1e-8 * float(params["gp/variance"]) * np.eye(len(z)))
    mean, scale = np.asarray(params["gp/u_loc"]), np.asarray(params["gp/u_scale"])
    random = np.random.default_rng(5)

    def moments(inputs):
        """Mean and covariance of f at several places, (D, P, places) and (D, P, places, places), u integrated out."""
        weights = np.linalg.solve(root, np.swapaxes(gram(inputs, z), -1, -2))
        given_u = gram(inputs, inputs) - np.swapaxes(weights, -1, -2) @ weights
        from_u = np.einsum("...mi,pmk,plk,...lj->...pij", weights, scale, scale, weights)
        return np.einsum("...mi,pm->...pi", weights, mean), given_u[..., None, :, :] + from_u

    one = np.concatenate([Y[4], Y[3], CONTROLS[5], CONTROLS[4], CONTROLS[3]])
    first, spread = moments(one[None])
    f_1 = first[:, 0] + np.sqrt(spread[:, 0, 0]) * random.normal(size=(DRAWS, 2))
    y_1 = f_1 + np.sqrt(0.05) * random.normal(size=(DRAWS, 2))
    rest = np.broadcast_to(np.concatenate([Y[4], CONTROLS[6], CONTROLS[5], CONTROLS[4]]), (DRAWS, 5))
    both = np.stack([np.broadcast_to(one, (DRAWS, 7)), np.concatenate([y_1, rest], 1)], 1)
    centre, spread = moments(both)
    gain = spread[..., 1, 0] / spread[..., 0, 0]
    left = spread[..., 1, 1] - gain * spread[..., 0, 1]
    f_2 = centre[..., 1] + gain * (f_1 - centre[..., 0]) + np.sqrt(left) * random.normal(size=(DRAWS, 2))
    for ours, theirs in ((found.states[:, 0], f_1), (found.states[:, 1], f_2)):
        error = np.sqrt((ours.var(0) + theirs.var(0)) / DRAWS)
        assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
        np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.03)
    # the same function at both: drawn anew the covariance would be another
    ours = [np.cov(found.states[:, 0, p], found.states[:, 1, p])[0, 1] for p in range(2)]
    theirs = [np.cov(f_1[:, p], f_2[:, p])[0, 1] for p in range(2)]
    np.testing.assert_allclose(ours, theirs, atol=4 * 1.5 * np.prod(f_1.std(0)) / DRAWS**0.5)


@pytest.mark.slow
def test_without_f_it_is_a_random_walk():
    """About the last output, with a function of no variance: h s² after h steps, of the second sequence's end."""
    model = gp_narx(1, 3, mean="last", kernel=lambda dims: RBF(1e-12, jnp.ones(dims)), noise=0.3)
    guide, table = Guide(model), lagged(Y[:, 0], lags=1)
    params = initial(KEY, model, guide, table.x, table.y)
    future = np.array([0.7, np.nan, -0.4])
    found = simulate_narx(
        KEY, Posterior(model, guide, params), Y[-1:, 0], 3, y_future=future, num_samples=DRAWS
    )
    variance = 0.3 * np.arange(1, 4)
    assert (np.abs(found.samples.mean(0)[:, 0] - Y[-1, 0]) < 4 * np.sqrt(variance / DRAWS)).all()
    np.testing.assert_allclose(found.samples.var(0)[:, 0], variance, rtol=0.05)
    np.testing.assert_allclose(found.variance[:, 0], variance, rtol=0.05)
    expected = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (future - Y[-1, 0]) ** 2 / variance
    np.testing.assert_allclose(found.log_density, [expected[0], 0.0, expected[2]], atol=0.03)


def test_simulations_that_grow_without_end_are_told():
    model = gp_narx(1, 1, kernel="linear")
    guide, table = Guide(model), lagged(Y[:, 0], lags=1)
    params = initial(KEY, model, guide, table.x, table.y)
    growing = Posterior(model, guide, params | {"gp/u_loc": jnp.full_like(params["gp/u_loc"], 1e150)})
    with pytest.warns(DivergenceWarning, match="simulate_narx: found 4 of 4 paths that are no numbers"):
        simulate_narx(KEY, growing, Y[-1:, 0], 5, num_samples=4)


@pytest.mark.slow
def test_a_driven_nonlinear_series_is_simulated():
    """Trained on one half, simulated over the other from its start and the controls alone."""
    random, steps = np.random.default_rng(0), 240
    controls, y = random.uniform(-1, 1, size=steps), np.zeros(steps)
    for t in range(1, steps):
        y[t] = np.sin(1.5 * y[t - 1]) + 0.8 * controls[t] + 0.05 * random.normal()
    table = lagged(y[:160], controls[:160], lags=1)
    model = gp_narx(1, 20)
    guide = Guide(model, inducing=Optimal())
    fit = fit_lbfgs(KEY, model, table.x, table.y, guide=guide, objective=Collapsed(0.0))
    for feedback in ("draws", "means"):
        found = simulate_narx(KEY, fit, y[159:160], controls[160:], feedback=feedback, num_samples=50)
        assert np.sqrt(np.mean(np.square(found.mean[:, 0] - y[160:]))) < 0.2 * y.std()


def test_wrong_input_is_refused():
    cases = [
        (lambda: lagged(Y, lags=0), "lags: found 0"),
        (lambda: lagged(Y, CONTROLS, lags=1, control_lags=0), "control_lags: found 0"),
        (lambda: lagged(Y, CONTROLS[1:], lags=1), "controls: found 11 rows, expected 12"),
        (lambda: lagged(Y, first=np.zeros(T), lags=1), "first: found False"),
        (lambda: lagged(Y, lags=T), "lags: found no step among 12"),
        (lambda: lagged(Y[None], lags=1), r"y: found shape \(1, 12, 2\)"),
        (lambda: gp_narx(mean="linear"), "mean: found 'linear'"),
        (lambda: gp_narx(0), "num_outputs: found 0"),
        (lambda: gp_narx(lags=0), "lags: found 0"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="x: found 3 columns, expected at least 4"):
        handlers.seed(gp_narx(2, 2, lags=2), KEY)(jnp.zeros((5, 3)))


def test_wrong_simulations_are_refused():
    model, guide, _, params = narx()
    simulated = lambda *args, **kwargs: simulate_narx(KEY, Posterior(model, guide, params), *args, **kwargs)
    cases = [
        (lambda: simulated(Y[3:5], CONTROLS[3:7], feedback="none"), "feedback: found 'none'"),
        (lambda: simulated(Y[3:5], CONTROLS[3:7], num_samples=0), "num_samples: found 0"),
        (lambda: simulated(Y[3:5], CONTROLS[3:5]), "history: found .* inputs"),
        (lambda: simulated(Y[3:5], 4), "history: found .* inputs"),
        (lambda: simulated(Y[1:5], CONTROLS[3:7]), "history: found .* inputs"),
        (lambda: simulated(Y[3:5], CONTROLS[3:7], y_future=Y[:1]), "y_future: found shape"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    counts = sparse_gp_regression(4, num_outputs=2, likelihood=Poisson())
    with pytest.raises(TypeError, match="Gaussian noise"):
        simulate_narx(KEY, Posterior(counts, Guide(counts), params), Y[3:5], CONTROLS[3:7])
