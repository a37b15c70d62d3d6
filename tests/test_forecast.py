"""Smoothing, forecasting and simulating: Kalman's answers where the model is linear, dense algebra where f is held.

Where moments are passed on: draws of states and u, and Jacobians by differences.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.handlers import lift, seed, substitute, trace
from numpyro.infer.autoguide import AutoNormal
from scipy import stats
from test_gpssm import (
    CONTROLS,
    KEY,
    NOISE,
    PROCESS,
    T,
    Y,
    begun,
    linear,
    moved,
    nearly_nothing,
    prepared,
    random_walk,
    smoothed,
    without_function,
)

from ppl_dgp.fit import Posterior
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import AcrossOutputs, Conditional, Guide, Markov
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.prediction.forecast import forecast, simulate, smooth, transition_moments
from ppl_dgp.prediction.growth import DivergenceWarning, warn_of_growth
from ppl_dgp.prediction.posterior_path import draw, series
from ppl_dgp.prediction.rollout import FunctionPath, onward, onward_moments

DRAWS = 20_000
DRAWN = ("path", "independent")


@pytest.fixture(scope="module")
def walk():
    """A random walk, its guide at Kalman's smoother."""
    chain, _ = random_walk()
    model, guide, params = prepared(Markov(), emission="identity", kernel=nearly_nothing)
    values = {
        "x_slope": chain.slopes,
        "x_loc": chain.offsets,
        "x_scale": chain.scale_trils[:, 0] / PROCESS**0.5,
    }
    return model, guide, without_function(params, **values, **begun(chain)), chain.marginals()


def test_smoothing_is_kalmans(walk):
    model, guide, params, marginals = walk
    found = smooth(KEY, Posterior(model, guide, params), None, Y, num_samples=DRAWS)
    deviation = np.sqrt(marginals.covariances[:, 0])
    assert (abs(found.mean - marginals.means) < 4 * deviation / DRAWS**0.5).all()
    np.testing.assert_allclose(found.deviation, deviation, rtol=0.03)


@pytest.mark.parametrize("function", DRAWN)
def test_forecast_of_a_random_walk_is_kalmans(walk, function):
    """The last state's moments, then Q more at each step, and R on top; the log density at each step."""
    model, guide, params, marginals = walk
    future = jnp.array([2.5, 1.0, jnp.nan])
    settings = {"y_future": future, "function": function, "num_samples": DRAWS}
    found = forecast(KEY, Posterior(model, guide, params), None, Y, 3, **settings)
    variance = marginals.covariances[-1, 0, 0] + PROCESS * np.arange(1, 4) + NOISE
    mean = float(marginals.means[-1, 0])
    assert (abs(found.mean[:, 0] - mean) < 4 * np.sqrt(variance / DRAWS)).all()
    np.testing.assert_allclose(found.variance[:, 0], variance, rtol=0.05)
    np.testing.assert_allclose(found.samples.var(0)[:, 0], variance, rtol=0.05)
    expected = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (np.asarray(future) - mean) ** 2 / variance
    np.testing.assert_allclose(found.log_density, [*expected[:2], 0.0], atol=0.03)


def test_simulation_begins_at_the_prior(walk):
    model, guide, params, _ = walk
    found = simulate(KEY, Posterior(model, guide, params), None, Y, 2, num_samples=DRAWS)
    np.testing.assert_allclose(found.states.var(0)[:, 0], 1.0 + PROCESS * np.arange(1, 3), rtol=0.05)


@cache
def linear_system():
    """Two states, a control and three outputs, the guide at Kalman's smoother; the model's values, and its chain."""
    weights = jnp.array([[0.8, 0.3], [-0.4, 0.7], [0.5, -0.2]])
    bias, c, d = (
        jnp.array([0.1, -0.2]),
        jnp.array([[1.0, 0.5, 0.0], [-0.3, 1.0, 0.4]]),
        jnp.array([0.0, 0.3, -0.1]),
    )
    y = jnp.column_stack([Y, -0.5 * Y, Y**2 - 1.0])
    chain, _ = smoothed(linear(2, weights, bias, CONTROLS), y, c, d)
    model, guide, params = prepared(
        Markov(full=True), CONTROLS, y, latent=2, mean="linear", kernel=nearly_nothing
    )
    slopes = jnp.concatenate([chain.slopes, jnp.zeros((T, 2, 1))], 2)
    params = without_function(
        params, x_slope=slopes, x_loc=chain.offsets, x_scale=chain.scale_trils / PROCESS**0.5
    )
    params |= {
        "transition/weights": weights,
        "transition/bias": bias,
        "emission/weights": c,
        "emission/bias": d,
    }
    params |= {"x_0_loc": chain.initial_mean[None], "x_0_scale": chain.initial_scale_tril[None]}
    return (Posterior(model, guide, params), CONTROLS, y), (weights, bias, c, d), chain


@pytest.fixture(scope="module")
def system():
    """Controls ahead, and the moments of y there."""
    arguments, values, chain = linear_system()
    found, ahead = chain.marginals(), CONTROLS[:2]
    mean, covariance = np.asarray(found.means[-1]), np.asarray(found.covariances[-1])
    weights, bias, c, d = map(np.asarray, values)
    expected = []
    for control in np.asarray(ahead):
        mean = np.concatenate([mean, control]) @ weights + bias
        covariance = weights[:2].T @ covariance @ weights[:2] + PROCESS * np.eye(2)
        expected.append((mean @ c + d, c.T @ covariance @ c + NOISE * np.eye(3)))
    return (*arguments, ahead), expected


@pytest.mark.parametrize(
    "function", ["moments", "linearised", *(pytest.param(name, marks=pytest.mark.slow) for name in DRAWN)]
)
def test_forecast_of_a_linear_system_is_kalmans(system, function):
    """Outputs are correlated: the log density is the joint one, of the entries that came."""
    arguments, expected = system
    future = jnp.array([[0.5, jnp.nan, -0.4], [1.0, 0.2, 0.3]])
    drawn = function in DRAWN
    found = forecast(KEY, *arguments, y_future=future, function=function, num_samples=DRAWS)
    for h, (mean, covariance) in enumerate(expected):
        error = np.sqrt(np.diag(covariance) / DRAWS) if drawn else 1e-6
        assert (abs(found.mean[h] - mean) < 4 * error).all()
        np.testing.assert_allclose(found.variance[h], np.diag(covariance), rtol=0.05 if drawn else 1e-5)
        there = ~np.isnan(future[h])
        density = stats.multivariate_normal(mean[there], covariance[np.ix_(there, there)]).logpdf(
            future[h][there]
        )
        assert found.log_density[h] == pytest.approx(density, abs=0.04 if drawn else 1e-5)
        assert (abs(found.samples[:, h].mean(0) - mean) < 4 * np.sqrt(np.diag(covariance) / DRAWS)).all()
        np.testing.assert_allclose(np.cov(found.samples[:, h].T), covariance, atol=0.04)
    # one step after the other along a path, but each on its own where moments are passed on
    both = np.corrcoef(found.samples[:, 0, 0], found.samples[:, 1, 0])[0, 1]
    assert abs(both) > 0.3 if drawn else abs(both) < 4 / DRAWS**0.5


@pytest.fixture(scope="module")
def following():
    """Two states that follow f under a control, away from where they start."""
    model, guide, params = prepared(Conditional(), CONTROLS, latent=2)
    return model, guide, moved(params, 0.4)


@pytest.fixture(scope="module")
def transition(following):
    _, guide, params = following
    return trace(substitute(seed(guide, KEY), params)).get_trace(CONTROLS, Y)["x"]["fn"].trajectory


@pytest.fixture(scope="module")
def uncertain(transition):
    """f with moments of u, a correlated state, and a control."""
    f = transition.function
    u = Gaussian(f.u, 0.4 * jnp.tril(jax.random.normal(KEY, (2, 3, 3))))
    state = Gaussian(jnp.array([[0.3, -0.5]]), jnp.array([[[0.7, 0.0], [-0.3, 0.4]]]))
    return replace(f, u=u), state, CONTROLS[3:4]


@pytest.mark.slow
def test_a_step_of_moments_is_that_of_many_draws(uncertain, transition):
    """Of states and u; the mean of f is the state, whose products with the kernel count: both outputs together."""
    f, state, control = uncertain
    found = onward_moments(f, transition, state, control)
    number = 100_000
    keys = jax.random.split(KEY, 4)
    states = state.mean + jax.random.normal(keys[0], (number, 2)) @ state.scale[0].T
    u = f.u.mean + jnp.einsum("pij,npj->npi", f.u.scale, jax.random.normal(keys[1], (number, 2, 3)))
    inputs = jnp.concatenate([states, jnp.broadcast_to(control, (number, 1))], 1)
    marginal = replace(f, u=u)(inputs)
    spread = jnp.sqrt(marginal.variance + transition.noise)
    draws = np.asarray(marginal.mean + spread * jax.random.normal(keys[2], (number, 2)))
    centred = draws - draws.mean(0)
    products = np.einsum("ni,nj->nij", centred, centred)
    assert (abs(draws.mean(0) - found.mean[0]) < 4 * draws.std(0) / number**0.5).all()
    assert (abs(products.mean(0) - found.covariance()[0]) < 4 * products.std(0) / number**0.5).all()
    # which the outputs' correlation passes by far
    assert abs(found.covariance()[0, 0, 1]) > 20 * products[:, 0, 1].std() / number**0.5


def test_a_linearised_step_is_that_of_its_jacobian(uncertain, transition):
    f, state, control = uncertain
    found = onward_moments(f, transition, replace(state, linearise=True), control)

    def at(x):
        return replace(f, u=f.u.mean)(jnp.concatenate([x, control], 1))

    steps = 1e-5 * np.eye(2)[:, None]
    jacobian = np.stack([(at(state.mean + e).mean - at(state.mean - e).mean)[0] / 2e-5 for e in steps], 1)
    weights = np.asarray(at(state.mean).weights[0])
    own = [weights @ s @ s.T @ weights for s in np.asarray(f.u.scale)] + np.asarray(
        at(state.mean).residual[0]
    )
    covariance = jacobian @ state.covariance()[0] @ jacobian.T + np.diag(own + np.asarray(transition.noise))
    np.testing.assert_allclose(found.mean, at(state.mean).mean, atol=1e-12)
    np.testing.assert_allclose(found.covariance()[0], covariance, atol=1e-8)


@pytest.mark.slow
def test_moments_begin_at_those_of_the_draws_where_q_follows_f():
    """And go on through a GP emission, of which u is integrated out too."""
    y = jnp.column_stack([Y, 0.5 * Y])
    model, guide, params = prepared(Conditional(), CONTROLS, y, emission="gp")
    params, number = moved(params, 0.3), 4000
    found = forecast(
        KEY,
        Posterior(model, guide, params),
        CONTROLS,
        y,
        CONTROLS[:1],
        function="moments",
        num_samples=number,
    )
    ends = smooth(
        jax.random.PRNGKey(9), Posterior(model, guide, params), CONTROLS, y, num_samples=number
    ).paths[:, -1]
    drawn = draw(KEY, model, guide, params, *series(CONTROLS, y))
    f, g = drawn.integrated(drawn.trajectory.function), drawn.integrated(drawn.emission.marginal.function)
    begin = Gaussian(jnp.asarray(ends.mean(0)[None]), jnp.asarray(np.linalg.cholesky(np.cov(ends.T))[None]))
    state = onward_moments(f, drawn.trajectory, begin, CONTROLS[:1])
    error = np.sqrt(2 * state.variance[0] / number)
    assert (abs(found.states[:, 0].mean(0) - state.mean[0]) < 6 * error).all()
    np.testing.assert_allclose(np.cov(found.states[:, 0].T), state.covariance()[0], atol=0.1)
    # of the emission, exact moments of draws of its u at the draws of the states
    states = jnp.asarray(found.states[:, 0])
    u = g.u.mean + jnp.einsum("pij,npj->npi", g.u.scale, jax.random.normal(KEY, (number, *g.u.mean.shape)))
    marginal = replace(g, u=u)(states)
    values = np.asarray(marginal.mean + jnp.sqrt(marginal.variance) * jax.random.normal(KEY, (number, 2)))
    assert (abs(values.mean(0) - found.mean[0]) < 5 * values.std(0) / number**0.5).all()
    np.testing.assert_allclose(values.var(0) + NOISE, found.variance[0], rtol=0.12)


def test_the_transition_under_q_is_that_of_dense_algebra(following, transition):
    """Mean m + A µ and variance k − A Kzz Aᵀ + A S Aᵀ at states and a control, in NumPy."""
    model, guide, params = following
    at, control = jnp.array([[0.1, -0.7], [1.2, 0.4], [0.0, 0.0]]), jnp.array([[0.3]])
    moments = jax.jit(
        lambda values: transition_moments(Posterior(model, guide, values), CONTROLS, Y, at, control)
    )
    mean, variance = moments(params)
    z, length = np.asarray(params["transition/inducing"]), np.asarray(params["transition/lengthscale"])
    size = float(params["transition/variance"])
    gram = lambda a, b: size * np.exp(-0.5 * np.square((a[:, None] - b) / length).sum(-1))
    inputs = np.concatenate([at, np.broadcast_to(control, (3, 1))], 1)
    root = np.linalg.cholesky(gram(z, z) + float(transition.function.nugget) * np.eye(3))
    a = np.linalg.solve(root, gram(z, inputs)).T
    scale = np.asarray(params["transition/u_scale"])
    from_u = np.stack([np.square(a @ each).sum(1) for each in scale], 1)
    np.testing.assert_allclose(mean, at + a @ np.asarray(params["transition/u_loc"]).T, atol=1e-8)
    np.testing.assert_allclose(variance, (size - np.square(a).sum(1))[:, None] + from_u, atol=1e-8)


@pytest.mark.slow
def test_a_function_met_place_by_place_is_one_joint_draw(transition):
    """Against the Cholesky factor of its dense covariance given u; a place met again has the same value."""
    function = transition.function
    inputs = jax.random.normal(KEY, (5, 3))
    z = jax.random.normal(jax.random.fold_in(KEY, 1), (6, 2))
    mean, covariance = function.joint(inputs)
    expected = mean + jnp.einsum("pnm,mp->np", jnp.linalg.cholesky(covariance), z[:5])
    memory, values = FunctionPath.empty(function, 6, z), []
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


@pytest.mark.slow
def test_sequences_go_on_from_their_own_end():
    x = jnp.column_stack([CONTROLS, jnp.array([0, 0, 0, 0, 1, 1])])
    model, guide, params = prepared(Markov(), x, num_sequences=2, emission="identity", kernel=nearly_nothing)
    params = without_function(params, x_slope=jnp.zeros_like(params["x_slope"]), x_loc=Y)
    for sequence, last in ((0, Y[3, 0]), (-1, Y[5, 0])):
        settings = {"sequence": sequence, "num_samples": 4000}
        found = forecast(KEY, Posterior(model, guide, params), x, Y, jnp.zeros((1, 1)), **settings)
        # q's states are around y with variance Q, and Q more comes with the step
        assert abs(found.mean[0, 0] - last) < 4 * np.sqrt(2 * PROCESS / 4000)


def test_what_cannot_be_forecast_is_said(walk):
    model, guide, params, _ = walk
    with pytest.raises(ValueError, match="function"):
        forecast(KEY, Posterior(model, guide, params), None, Y, 2, function="mean")
    with pytest.raises(ValueError, match="controls: found 1 columns, expected 0"):
        forecast(KEY, Posterior(model, guide, params), None, Y, jnp.zeros((2, 1)))
    with pytest.raises(ValueError, match="sequence: found 1, expected -1 to 0"):
        forecast(KEY, Posterior(model, guide, params), None, Y, 2, sequence=1)
    with pytest.raises(ValueError, match="y_future: found shape \\(3, 1\\), expected \\(2, 1\\)"):
        forecast(KEY, Posterior(model, guide, params), None, Y, 2, y_future=jnp.zeros(3))
    with pytest.raises(ValueError, match="num_samples"):
        smooth(KEY, Posterior(model, guide, params), None, Y, num_samples=0)
    plain = deep_gp((), 3)
    with pytest.raises(ValueError, match="found 0 trajectories"):
        smooth(KEY, Posterior(plain, Guide(plain), {}), CONTROLS, Y)


def test_what_has_no_moments_is_said(following):
    model, guide, params = following
    with pytest.raises(ValueError, match="num_samples: found 2, expected more than the 2"):
        forecast(
            KEY, Posterior(model, guide, params), CONTROLS, Y, CONTROLS, function="moments", num_samples=2
        )

    def refuse(guide, values):
        at = lambda each: transition_moments(
            Posterior(guide.model, guide, each), CONTROLS, Y, jnp.zeros((1, 2)), jnp.ones((1, 1))
        )
        jax.eval_shape(at, values)

    with pytest.raises(ValueError, match="links between outputs"):
        refuse(Guide(model, inducing=AcrossOutputs()), params | {"transition/u_scale": jnp.eye(6)})
    lifted = lift(model, {"transition/noise": dist.LogNormal(jnp.zeros(2)).to_event(1)})
    with pytest.raises(ValueError, match="guide: found that it draws 'transition/noise'"):
        refuse(Guide(lifted, others=AutoNormal), params)


def test_a_function_met_where_it_was_before_stays_one_function_in_32_bits():
    """Places that close in on one another: outputs that are alike have the covariance of f | u, 5 standard errors."""
    places, z = 1.5 * 0.93 ** np.arange(150)[:, None], np.random.default_rng(0).normal(size=(150, 2000))
    with jax.enable_x64(False):
        kernel, inducing = RBF(jnp.float32(1.0), jnp.float32(0.7)), jnp.linspace(-2.0, -1.0, 3)[:, None]
        whiten = inverse_lower(cholesky(kernel(inducing, inducing))[0])
        f = SparseGP("f", kernel, inducing, whiten, Zero(2000), jnp.zeros((2000, 3)))
        step = lambda memory, place: memory.meet(f, place[None])[::-1]
        values = jax.lax.scan(step, FunctionPath.empty(f, 150, jnp.asarray(z)), jnp.asarray(places))[1]
    at = lambda a, b: np.exp(-0.5 * (np.subtract.outer(a.ravel(), b.ravel()) / 0.7) ** 2)
    known = at(places, np.asarray(inducing))
    covariance = at(places, places) - known @ np.linalg.solve(at(*2 * [np.asarray(inducing)]), known.T)
    found = np.asarray(values, float) @ np.asarray(values, float).T / 2000
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / 2000)
    assert (abs(found - covariance) < 5 * error + 1e-4).all()


@pytest.mark.slow
def test_dynamics_that_grow_without_end_are_told(recwarn):
    """A walk whose state is multiplied at each step leaves all numbers; one that is not says nothing."""
    model, guide, params = prepared(Markov(), mean="linear", emission="identity", kernel=nearly_nothing)
    growing = params | {"transition/weights": jnp.full((1, 1), 1e100), "transition/bias": jnp.ones(1)}
    with pytest.warns(DivergenceWarning, match="found 5 of 5 paths that are no numbers, from step [3-5] on"):
        forecast(KEY, Posterior(model, guide, growing), None, Y, 6, function="independent", num_samples=5)
    recwarn.clear()
    forecast(KEY, Posterior(model, guide, params), None, Y, 6, function="independent", num_samples=5)
    assert not [found for found in recwarn if found.category is DivergenceWarning]
    states = np.zeros((3, 4, 2))
    states[1, 2:] = np.nan
    with pytest.warns(DivergenceWarning, match="found 1 of 3 paths .* from step 3 on"):
        warn_of_growth(states)
