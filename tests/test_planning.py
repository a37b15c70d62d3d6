"""Planned controls: the linear-quadratic optimum in closed form, costs as simulations have them, refusals."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gpssm import CONTROLS, KEY, Y, moved, nearly_nothing, prepared

from ppl_dgp import forecast, plan_controls
from ppl_dgp.fit import Posterior
from ppl_dgp.guides import MeanField

GAIN, PULL, H = 0.8, 0.9, 4
BOUNDS = -3.0, 3.0


@cache
def linear_system(process=1e-10):
    """x_t = 0.9 x_{t−1} + 0.8 c_t, seen as it is."""
    model, guide, params = prepared(
        MeanField(), CONTROLS, mean="linear", emission="identity", kernel=nearly_nothing
    )
    params = params | {
        "transition/weights": jnp.array([[PULL], [GAIN]]),
        "transition/bias": jnp.zeros(1),
        "transition/noise": jnp.full(1, process),
    }
    return Posterior(model, guide, params), CONTROLS, Y


def quadratic(outputs, controls):
    """Towards 1, at a price."""
    return jnp.square(outputs - 1.0).sum() + 0.1 * jnp.square(controls).sum()


def best():
    """The least squares of x = G c + g: controls, and their cost."""
    begin = 0.5
    powers = PULL ** np.arange(1, H + 1) * begin
    response = GAIN * np.array([[PULL ** (t - s) if s <= t else 0.0 for s in range(H)] for t in range(H)])
    rows = np.concatenate([response, np.sqrt(0.1) * np.eye(H)])
    targets = np.concatenate([1.0 - powers, np.zeros(H)])
    controls, cost, *_ = np.linalg.lstsq(rows, targets, rcond=None)
    return controls, float(cost[0])


def test_of_a_linear_system_it_is_the_optimum_of_least_squares():
    settings = {"state": np.array([0.5]), "num_candidates": 300, "iterations": 15, "num_samples": 2}
    found = plan_controls(KEY, *linear_system(), quadratic, H, BOUNDS, **settings)
    controls, cost = best()
    np.testing.assert_allclose(found.controls[:, 0], controls, atol=0.02)
    assert found.cost == pytest.approx(cost, abs=1e-3) and found.error < 1e-4
    np.testing.assert_allclose(
        found.outputs[0, :, 0], [0.5 * PULL + GAIN * controls[0], *found.outputs[1, 1:, 0]], atol=0.03
    )


@pytest.mark.slow
def test_bounds_and_held_controls_are_kept():
    settings = {"state": np.array([0.5]), "num_candidates": 100, "iterations": 8, "num_samples": 2, "hold": 3}
    found = plan_controls(
        KEY, *linear_system(), lambda outputs, _: -outputs.sum(), H, (np.array([-0.2]), 0.4), **settings
    )
    np.testing.assert_allclose(found.controls, 0.4, atol=1e-6)
    # from a start beyond them too
    beyond = plan_controls(
        KEY,
        *linear_system(),
        lambda outputs, _: -outputs.sum(),
        H,
        (-0.2, 0.4),
        start=np.full((H, 1), 5.0),
        **settings,
    )
    np.testing.assert_allclose(beyond.controls, 0.4, atol=1e-6)
    uneven = plan_controls(KEY, *linear_system(), quadratic, H, BOUNDS, **settings).controls
    assert (uneven[:3] == uneven[0]).all() and uneven[3] != uneven[0]


@pytest.mark.slow
def test_its_cost_is_that_of_simulations_under_the_plan():
    """From what q says of the end, of a function that is not known: the mean over forecasts."""
    model, guide, params = prepared(MeanField(), CONTROLS, num_inducing=6, emission="identity")
    posterior = Posterior(model, guide, moved(params, 0.3)), CONTROLS, Y
    draws = 2000
    settings = {"num_candidates": 20, "iterations": 1, "num_samples": draws}
    found = plan_controls(KEY, *posterior, quadratic, H, BOUNDS, **settings)
    ahead = forecast(KEY, *posterior, jnp.asarray(found.controls), function="independent", num_samples=draws)
    outputs = ahead.states[..., :1]
    costs = np.square(outputs - 1.0).sum((1, 2)) + 0.1 * np.square(found.controls).sum()
    error = np.hypot(found.error, costs.std() / draws**0.5)
    assert abs(found.cost - costs.mean()) < 4 * error and found.error > 0.0
    assert found.outputs.shape == (draws, H, 1)


@pytest.mark.slow
def test_what_cannot_be_planned_is_refused():
    for changed, words in (
        ({"bounds": (1.0, 1.0)}, "bounds: found"),
        ({"bounds": (jnp.zeros(2), jnp.ones(2))}, "bounds: found"),
        ({"times": 1.0}, "times: found 1.0 for gpssm"),
        ({"start": jnp.zeros((H, 2))}, r"start: found shape \(4, 2\), expected \(4, 1\)"),
        ({"state": np.array([0.0, 1.0])}, "state: found 2 dimensions, expected 1"),
        ({"num_candidates": 5}, "num_candidates: found 5, expected at least 20"),
        ({"hold": 0}, "hold: found 0"),
    ):
        settings = {"bounds": BOUNDS} | changed
        with pytest.raises(ValueError, match=words):
            plan_controls(KEY, *linear_system(), quadratic, H, settings.pop("bounds"), **settings)
    for cost, words in (
        (lambda outputs, _: outputs[:, 0], r"cost: found shape \(4,\) for one path"),
        (lambda outputs, _: outputs.sum() * jnp.nan, "cost: found NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=words):
            plan_controls(KEY, *linear_system(), cost, H, BOUNDS, num_candidates=20, iterations=1)


@pytest.mark.slow
def test_the_time_of_a_step_is_not_chosen():
    """Of timed steps: the same drive under given times as a simulation of it has."""
    x = jnp.concatenate([CONTROLS, jnp.full_like(CONTROLS, 0.5)], 1)
    model, guide, params = prepared(MeanField(), x, num_inducing=6, emission="identity", timed=True)
    posterior, draws = (Posterior(model, guide, moved(params, 0.3)), x, Y), 2000
    times = np.array([0.2, 2.0, 0.7, 1.0])
    settings = {"num_candidates": 20, "iterations": 1, "num_samples": draws, "times": times}
    found = plan_controls(KEY, *posterior, quadratic, H, BOUNDS, **settings)
    assert found.controls.shape == (H, 1)
    given = jnp.asarray(np.column_stack([found.controls, times]))
    ahead = forecast(KEY, *posterior, given, function="independent", num_samples=draws)
    deviation = np.hypot(found.outputs.std(0), ahead.states.std(0)) / draws**0.5
    assert (abs(found.outputs.mean(0) - ahead.states.mean(0)) < 4.5 * deviation).all()
    with pytest.raises(ValueError, match="times: found None for gpssm"):
        plan_controls(KEY, *posterior, quadratic, H, BOUNDS)


def test_it_is_a_verb_of_the_fit():
    posterior, *rows = linear_system()
    found = posterior.plan_controls(
        jax.random.key(0), *rows, quadratic, H, BOUNDS, num_candidates=20, iterations=1, num_samples=1
    )
    assert found.controls.shape == (H, 1) and np.isinf(found.error)
