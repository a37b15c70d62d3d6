"""States by the subspace method beside simulated linear systems, whose states are known up to a linear map."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers

from ppl_dgp.models import gpssm, linear_gaussian_ssm, switching_gpssm
from ppl_dgp.state_space.linear_gaussian_em import linear_dynamics
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.subspace import horizon_of, subspace_states

#: two resonances, of which an output of one column shows the sum
SLOPES = np.zeros((4, 4))
SLOPES[:2, :2] = 0.97 * np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
SLOPES[2:, 2:] = 0.9 * np.array([[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]])
WEIGHTS = np.array([[1.0, 0.0, 1.0, 0.0]])


def simulated(steps=200, noise=0.0, begins=(0,), seed=0):
    """Controls, states, outputs and the layout of sequences that begin at given steps."""
    random = np.random.default_rng(seed)
    inputs, states, x = random.normal(size=(4, 1)), [], np.zeros(4)
    controls = random.normal(size=(steps, 1))
    for t, control in enumerate(controls):
        x = random.normal(size=4) if t in begins else x
        x = SLOPES @ x + inputs @ control + 0.3 + noise * random.normal(size=4)
        states.append(x)
    states = np.array(states)
    y = states @ WEIGHTS.T - 0.5 + noise * random.normal(size=(steps, 1))
    where = Layout(jnp.isin(jnp.arange(steps), jnp.array(begins)), len(begins))
    return jnp.asarray(controls), states, jnp.asarray(y), where


def explained(states, found):
    """Share of the variance of states that a linear map of those found leaves open."""
    inputs = np.column_stack([found, np.ones(len(found))])
    left = states - inputs @ np.linalg.lstsq(inputs, states, rcond=None)[0]
    return (left.var(0) / states.var(0)).max()


@pytest.mark.parametrize("begins", [(0,), (0, 70, 130)])
def test_states_without_noise_are_found_exactly(begins):
    """Up to a linear map, where the rows before are there; the transition between them has the system's eigenvalues."""
    controls, states, y, where = simulated(begins=begins)
    found = np.asarray(jax.jit(lambda y: subspace_states(y, controls, 4, where))(y))
    np.testing.assert_allclose(found.mean(0), 0.0, atol=1e-10)
    np.testing.assert_allclose(found.std(0), 1.0, atol=1e-10)
    place = np.arange(len(y)) - np.asarray(begins)[np.asarray(where.sequence)]
    there = place >= 10
    assert explained(states[there], found[there]) < 1e-9
    steps = np.flatnonzero(there[1:] & there[:-1] & (place[1:] > 0)) + 1
    inputs = np.column_stack([found[steps - 1], controls[steps], np.ones(len(steps))])
    slopes = np.linalg.lstsq(inputs, found[steps], rcond=None)[0][:4].T
    by_angle = lambda values: sorted(values, key=np.angle)
    np.testing.assert_allclose(
        by_angle(np.linalg.eigvals(slopes)), by_angle(np.linalg.eigvals(SLOPES)), atol=1e-4
    )


@pytest.mark.slow
def test_em_from_them_has_the_likelihood_of_the_true_states():
    """From the output and its earlier values EM is 39 nats below the truth after as many iterations, from here 5."""
    controls, states, y, where = simulated(noise=0.1)
    lags = jnp.column_stack([jnp.roll(y, lag, 0) for lag in range(4)])
    reached = {
        name: float(linear_dynamics(y, controls, jnp.asarray(start), where).log_likelihood[-1])
        for name, start in {
            "subspace": subspace_states(y, controls, 4, where), "truth": states, "lags": lags
        }.items()
    }  # fmt: skip
    assert reached["subspace"] > reached["truth"] - 8.0
    assert reached["subspace"] > reached["lags"] + 25.0


def test_units_do_not_matter():
    controls, _, y, where = simulated(noise=0.1)
    plain = subspace_states(y, controls, 4, where)
    scaled = subspace_states(1e3 * y + 7.0, 0.01 * controls, 4, where)
    np.testing.assert_allclose(np.abs(np.diag(np.corrcoef(plain.T, scaled.T)[:4, 4:])), 1.0, atol=1e-6)


def test_the_horizon_is_what_the_rows_bear():
    assert horizon_of(200, 1, 1, 4) == 10
    assert horizon_of(40, 1, 1, 4) == 5
    # as many outputs of the future as there are states
    assert horizon_of(10_000, 1, 0, 30) == 30
    # each sequence loses rows of its own
    assert horizon_of(450, 1, 1, 4, num_sequences=30) == 7
    for steps, sequences in ((20, 1), (200, 30)):
        with pytest.raises(ValueError, match=f"start: found 'subspace' with {steps} steps"):
            horizon_of(steps, 1, 1, 4, sequences)


@pytest.mark.slow
def test_a_model_begins_there():
    """At a linear system that follows the series better than that of y and its earlier values does."""
    controls, _, y, _ = simulated(noise=0.1)

    def begun(start):
        model = gpssm(1, 4, 10, mean="linear", start=start)
        sites = handlers.trace(handlers.seed(model, 0)).get_trace(controls, y)
        return {name: site["value"] for name, site in sites.items() if site["type"] == "param"}

    params = begun("subspace")
    angles = np.sort(np.abs(np.angle(np.linalg.eigvals(params["transition/weights"][:4].T))))
    np.testing.assert_allclose(angles, [0.2, 0.2, 0.7, 0.7], atol=0.05)
    assert float(params["likelihood/noise"]) > 0.0


def test_the_linear_model_begins_there():
    """EM's likelihood from there is the model's density, above that of a start at y and its earlier values."""
    controls, _, y, where = simulated(noise=0.1)
    found = {}
    for start in ("outputs", "subspace"):
        model = linear_gaussian_ssm(1, 4, start=start)
        series = handlers.trace(handlers.seed(model, 0)).get_trace(controls, y)["y"]["fn"]
        found[start] = float(series.log_prob(y))
    em = linear_dynamics(y, controls, subspace_states(y, controls, 4, where), where)
    assert found["subspace"] == pytest.approx(float(em.log_likelihood[-1]), abs=1e-6)
    assert found["subspace"] > found["outputs"] + 25.0


def test_states_in_their_own_coordinates_are_not_observed():
    for model in (gpssm, switching_gpssm, linear_gaussian_ssm):
        with pytest.raises(ValueError, match="start: found 'subspace' beside an identity emission"):
            model(1, latent=4, emission="identity", start="subspace")
