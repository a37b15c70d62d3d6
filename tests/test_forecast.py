"""Smoothing, forecasting and simulating: Kalman's answers where the model is linear, dense algebra where f is held."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, substitute, trace
from test_gpssm import (
    CONTROLS,
    KEY,
    NOISE,
    PROCESS,
    Y,
    begun,
    moved,
    nearly_nothing,
    prepared,
    random_walk,
    without_function,
)

from ppl_dgp.forecast import forecast, simulate, smooth
from ppl_dgp.guides import Conditional, Guide, Markov
from ppl_dgp.models import deep_gp
from ppl_dgp.onward import Memory, onward

DRAWS = 20_000


@pytest.fixture(scope="module")
def walk():
    """A random walk, its guide at Kalman's smoother."""
    chain, _ = random_walk()
    model, guide, params = prepared(Markov(), emission="identity", kernel=nearly_nothing)
    values = {"x_slope": chain.slopes, "x_loc": chain.offsets, "x_scale": chain.scale_trils[:, 0] / PROCESS**0.5}
    return model, guide, without_function(params, **values, **begun(chain)), chain.marginals()


def test_smoothing_is_kalmans(walk):
    model, guide, params, marginals = walk
    found = smooth(KEY, model, guide, params, None, Y, num_samples=DRAWS)
    deviation = np.sqrt(marginals.covariances[:, 0])
    assert (abs(found.mean - marginals.means) < 4 * deviation / DRAWS**0.5).all()
    np.testing.assert_allclose(found.deviation, deviation, rtol=0.03)


@pytest.mark.parametrize("function", ["path", "independent"])
def test_forecast_of_a_random_walk_is_kalmans(walk, function):
    """The last state's moments, then Q more at each step, and R on top; the log density at each step."""
    model, guide, params, marginals = walk
    future = jnp.array([2.5, 1.0, jnp.nan])
    settings = {"y_future": future, "function": function, "num_samples": DRAWS}
    found = forecast(KEY, model, guide, params, None, Y, 3, **settings)
    variance = marginals.covariances[-1, 0, 0] + PROCESS * np.arange(1, 4) + NOISE
    mean = float(marginals.means[-1, 0])
    assert (abs(found.mean[:, 0] - mean) < 4 * np.sqrt(variance / DRAWS)).all()
    np.testing.assert_allclose(found.variance[:, 0], variance, rtol=0.05)
    np.testing.assert_allclose(found.samples.var(0)[:, 0], variance, rtol=0.05)
    expected = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (np.asarray(future) - mean) ** 2 / variance
    np.testing.assert_allclose(found.log_density, [*expected[:2], 0.0], atol=0.03)


def test_simulation_begins_at_the_prior(walk):
    model, guide, params, _ = walk
    found = simulate(KEY, model, guide, params, None, Y, 2, num_samples=DRAWS)
    np.testing.assert_allclose(found.states.var(0)[:, 0], 1.0 + PROCESS * np.arange(1, 3), rtol=0.05)


@pytest.fixture(scope="module")
def transition():
    model, guide, params = prepared(Conditional(), CONTROLS, latent=2)
    run = trace(substitute(seed(guide, KEY), moved(params, 0.4))).get_trace(CONTROLS, Y)
    return run["x"]["fn"].trajectory


def test_a_function_met_place_by_place_is_one_joint_draw(transition):
    """Against the Cholesky factor of its dense covariance given u; a place met again has the same value."""
    function = transition.function
    inputs = jax.random.normal(KEY, (5, 3))
    z = jax.random.normal(jax.random.fold_in(KEY, 1), (6, 2))
    mean, covariance = function.joint(inputs)
    expected = mean + jnp.einsum("pnm,mp->np", jnp.linalg.cholesky(covariance), z[:5])
    memory, values = Memory.empty(function, 6, z), []
    for row in [*inputs, inputs[1]]:
        value, memory = memory.meet(function, row[None])
        values.append(value)
    np.testing.assert_allclose(jnp.stack(values[:5]), expected, atol=1e-6)
    np.testing.assert_allclose(values[5], values[1], atol=1e-3)


def test_independent_steps_are_the_models_own(transition):
    """Their moments are those of draws of the trajectory, of which a first step from a known state is compared."""
    draws = jax.vmap(lambda key: onward(key, transition, jnp.ones(2), CONTROLS[:1], held=False))
    found = np.asarray(draws(jax.random.split(KEY, DRAWS)))[:, 0]
    step = transition.at(jnp.ones((1, 2)), CONTROLS[:1])
    deviation = np.sqrt(np.asarray(step.variance[0]))
    assert (abs(found.mean(0) - np.asarray(step.mean[0])) < 4 * deviation / DRAWS**0.5).all()
    np.testing.assert_allclose(found.std(0), deviation, rtol=0.03)


def test_sequences_go_on_from_their_own_end():
    x = jnp.column_stack([CONTROLS, jnp.array([0, 0, 0, 0, 1, 1])])
    model, guide, params = prepared(Markov(), x, num_sequences=2, emission="identity", kernel=nearly_nothing)
    params = without_function(params, x_slope=jnp.zeros_like(params["x_slope"]), x_loc=Y)
    for sequence, last in ((0, Y[3, 0]), (1, Y[5, 0]), (-1, Y[5, 0])):
        settings = {"sequence": sequence, "num_samples": 4000}
        found = forecast(KEY, model, guide, params, x, Y, jnp.zeros((1, 1)), **settings)
        # q's states are around y with variance Q, and Q more comes with the step
        assert abs(found.mean[0, 0] - last) < 4 * np.sqrt(2 * PROCESS / 4000)


def test_what_cannot_be_forecast_is_said(walk):
    model, guide, params, _ = walk
    with pytest.raises(ValueError, match="function"):
        forecast(KEY, model, guide, params, None, Y, 2, function="mean")
    with pytest.raises(ValueError, match="controls: found 1 columns, expected 0"):
        forecast(KEY, model, guide, params, None, Y, jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match="num_samples"):
        smooth(KEY, model, guide, params, None, Y, num_samples=0)
    plain = deep_gp((), 3)
    with pytest.raises(ValueError, match="found 0 trajectories"):
        smooth(KEY, plain, Guide(plain), {}, CONTROLS, Y)
