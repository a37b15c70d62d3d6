"""Minibatches of contiguous steps: what all windows say, in turn, is what the whole series says."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import loss
from fast import few, seldom
from numpyro.handlers import seed, substitute, trace
from scipy import stats
from test_gpssm import (
    CONTROLS,
    KEY,
    MOMENTS,
    NOISE,
    NONE,
    PROCESS,
    T,
    mean_of,
    moved,
    nearly_nothing,
    prepared,
    without_function,
)
from test_gpssm import Y as Y6

from ppl_dgp.diagnostics import to_arviz
from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.guides import (
    Amortised,
    Conditional,
    DoublyStochastic,
    Guide,
    Markov,
    MeanField,
    MomentMatched,
    PRSSMSurrogate,
)
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.models import gpssm
from ppl_dgp.numerics.gaussian import moments_of
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import forecast, smooth
from ppl_dgp.state_space.sequences import layout
from ppl_dgp.state_space.trajectory import Trajectory
from ppl_dgp.state_space.windows import Windows, WindowSpec

LENGTHS, WINDOW, COUNT = (5, 4), 2, 11
Y = jnp.array([0.4, -0.3, 0.5, 1.4, 1.1, 2.0, 1.0, 0.3, -0.5])[:, None]
NUMBERS = jnp.repeat(jnp.array([3.0, 7.0]), jnp.array(LENGTHS))
X = jnp.column_stack([jnp.cos(jnp.arange(9.0)), NUMBERS])
SETTINGS = {"num_sequences": 2, "window": WINDOW, "latent": 2}


@pytest.mark.parametrize("length", few([1, 2, 4, 5], 1))
def test_windows_count_every_row_alike(length):
    """In L windows each; of a sequence of 4 steps those of 5 repeat the last, which does not count again."""
    cut = Windows(length, layout(9, NUMBERS, 2), jnp.arange(9 + 2 * (length - 1)))
    assert WindowSpec(length, 2)(X) == cut.count == len(cut.at_hand)
    rows, counted = np.asarray(cut.rows), np.asarray(cut.counted)
    assert np.bincount(rows[counted]).tolist() == [length] * 9
    assert cut.weight == pytest.approx(1.0 / length)
    # contiguous, of one sequence
    for window in rows.reshape(-1, length):
        assert set(np.diff(window)) <= {0, 1} and (window < 5).all() == (window < 5).any()
    # the first row of a sequence counts where a window begins it
    firsts = np.isin(rows, [0, 5]) & counted
    assert cut.begins.tolist() == firsts.reshape(-1, length).any(1).tolist()


def test_windows_end_to_end():
    """5 steps make windows at 0, 2 and (moved back) 3; 4 steps at 5 and 7; beyond their number the last once more."""
    cut = Windows(WINDOW, layout(9, NUMBERS, 2)).end_to_end
    rows, counted = np.asarray(cut.rows), np.asarray(cut.counted)
    assert rows.reshape(-1, WINDOW)[:, 0].tolist() == [0, 2, 3, 5, 7, 7]
    assert sorted(rows[counted][:9]) == list(range(9))
    assert cut.begins[:5].tolist() == [True, False, False, True, False]
    assert cut.opening.tolist() == [0, 3]
    assert rows[np.asarray(cut.places)].tolist() == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("rule", few([MeanField(), Markov()], 1), ids=["mean-field", "markov"])
def test_bound_of_a_window_is_unbiased(rule):
    """The mean over windows of what each says of the whole, and what all say together, is the bound of the whole."""
    model, guide, params = prepared(rule, X, Y, **SETTINGS)
    params = moved(params)
    whole = -loss(MOMENTS, params, model, guide, X, Y)

    def one(numbers):
        return -MOMENTS.loss(KEY, params, model, guide, X, Y, index=numbers, size=COUNT)

    one = jax.jit(one)
    single = [float(one(jnp.array([k]))) for k in range(COUNT)]
    assert np.mean(single) == pytest.approx(whole, rel=1e-9)
    assert np.std(single) > 1.0
    assert float(one(jnp.arange(COUNT))) == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("objective", [PowerEP(0.0), PowerEP(0.5, 2)], ids=repr)
def test_drawn_bound_of_a_window_is_unbiased(objective):
    """Drawn, within four standard errors: the first state of a window comes of q of the whole series."""
    model, guide, params = prepared(Markov(), X, Y, **SETTINGS)
    params = moved(params)
    keys = jax.random.split(KEY, 4000)

    def mean(one):
        values = np.asarray(jax.jit(jax.vmap(one))(keys))
        return values.mean(), values.std() / np.sqrt(len(keys))

    def window(key):
        index = jax.random.randint(key, (1,), 0, COUNT)
        return -objective.loss(key, params, model, guide, X, Y, index=index, size=COUNT)

    whole, error = mean(lambda key: -objective.loss(key, params, model, guide, X, Y))
    found, noise = mean(window)
    assert found == pytest.approx(whole, abs=4 * np.hypot(error, noise))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Conditional(), Conditional(markov=True), DoublyStochastic()], ids=repr)
def test_window_whose_start_no_rule_knows_is_a_sequence(rule):
    """Windows of 6 steps end to end, three each, weigh a path as a model of two sequences does."""
    x, y, apart = jnp.zeros((6, 0)), Y[:6], jnp.repeat(jnp.arange(2.0), 3)[:, None]
    _, first, params = prepared(rule, x, y, window=3)
    _, second, _ = prepared(rule, apart, y, num_sequences=2)
    params = moved(params)
    assert params["x_0_loc"].shape == (6, 1)
    line = Windows(3, layout(6)).end_to_end.at_hand
    one = trace(substitute(seed(first, KEY), params)).get_trace(x, y, index=line, size=8)["x"]["fn"]
    # those of the states before rows 0 and 3
    params |= {name: value[::3] for name, value in params.items() if name.startswith("x_0_")}
    two = trace(substitute(seed(second, KEY), params)).get_trace(apart, y)["x"]["fn"]
    path = 0.3 * jax.random.normal(KEY, one.event_shape)
    weighed = lambda q, path: [q.log_weight(path, alpha) for alpha in (0.0, 0.5)] + [q.log_prob(path)]
    np.testing.assert_allclose(
        *jax.jit(lambda path: [weighed(q, path) for q in (one, two)])(path), rtol=1e-10
    )


@pytest.mark.slow
def test_network_sees_the_series_around_a_window():
    """What it says of a row is the same in a window and in the whole, and changes with the rows around it alone."""
    rule = Amortised((3,), MeanField(), around=1)
    model = gpssm(1, num_inducing=3, **SETTINGS)
    guide = Guide(model, hidden=rule)
    sites = trace(seed(guide, KEY)).get_trace(X, Y)
    params = moved({name: site["value"] for name, site in sites.items() if site["type"] == "param"})

    def said(y, **index):
        q = trace(substitute(seed(guide, KEY), params)).get_trace(X, y, **index)["x"]["fn"]
        return np.asarray(q.params["loc"])

    whole = said(Y)
    rows = Windows(WINDOW, layout(9, NUMBERS, 2), jnp.array([1, 3])).rows
    np.testing.assert_allclose(said(Y, index=jnp.array([1, 3]), size=COUNT), whole[rows], rtol=1e-12)
    # row 4 ends the first sequence: rows 3 and 4 see it, 5 begins another
    changed = (said(Y.at[4].add(1.0)) != whole).any(1)
    assert changed.tolist() == [row in (3, 4) for row in range(9)]


@pytest.mark.slow
def test_fit_in_windows():
    model = gpssm(1, num_inducing=3, **SETTINGS)
    guide = Guide(model, hidden=MeanField())
    fit = fit_svi(KEY, model, guide, MOMENTS, X, Y, steps=3, batch_size=2 * WINDOW)
    assert np.isfinite(fit.losses).all() and fit.params["x_loc"].shape == (9, 2)
    # in ArviZ the slots of all states, x_0 of both sequences among them
    data = to_arviz(KEY, fit, X, Y, num_draws=3)
    assert dict(data.posterior["x"].sizes) == {"chain": 1, "draw": 3, "x_slot": 11, "x_latent": 2}
    assert np.isfinite(data.log_likelihood["y"]).all()
    for size in (3, (COUNT + 1) * WINDOW):
        with pytest.raises(ValueError, match="batch_size"):
            fit_svi(KEY, model, guide, MOMENTS, X, Y, steps=3, batch_size=size)
    with pytest.raises(ValueError, match="window: found 6 steps, expected at most 5"):
        long = gpssm(1, num_inducing=3, num_sequences=2, window=6)
        fit_svi(KEY, long, Guide(long), MOMENTS, X, Y, steps=3)


def test_moments_passed_along_a_random_walk_are_its_own():
    """Without a GP x_t ~ N(0, 1 + t Q): E log p(y_t | x_t) in closed form, p and q of the states cancelling."""
    model, guide, params = prepared(MomentMatched(), emission="identity", kernel=nearly_nothing)
    params = without_function(params, x_0_loc=jnp.zeros((1, 1)), x_0_scale=jnp.ones((1, 1)))
    variance = 1.0 + PROCESS * (1.0 + jnp.arange(T))
    expected = -0.5 * jnp.log(2 * jnp.pi * NOISE) - 0.5 * (Y6[:, 0] ** 2 + variance) / NOISE
    assert -loss(PowerEP(0.0), params, model, guide, NONE, Y6) == pytest.approx(
        float(expected.sum()), rel=1e-5
    )


@pytest.mark.slow
def test_moments_of_a_step_are_those_of_draws():
    """Of f(x_0) + ε, f drawn with u from q(u), x_0 uncertain."""
    model, guide, params = prepared(MomentMatched(), CONTROLS, Y6, latent=2)
    params = moved(params)
    q = trace(substitute(seed(guide, KEY), params)).get_trace(CONTROLS, Y6)
    trajectory, u = q["x"]["fn"].trajectory, q["transition/u"]["fn"]
    integrated = replace(trajectory.function, u=moments_of(u))
    found = TrajectoryConditional(
        Trajectory(integrated, trajectory.noise, trajectory.controls, trajectory.initial),
        *(MomentMatched(), {}, MeanField(), {"loc": params["x_0_loc"], "scale": params["x_0_scale"]}),
    ).moments("moments")

    def draw(key):
        key_u, key_0, key_step = jax.random.split(key, 3)
        function = replace(trajectory.function, u=u.sample(key_u))
        state = params["x_0_loc"] + params["x_0_scale"] * jax.random.normal(key_0, (1, 2))
        step = Trajectory(function, trajectory.noise, trajectory.controls, trajectory.initial)
        return step.at(state, CONTROLS[:1]).sample(key_step)[0]

    draws = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, 20_000)))
    error = draws.std(0) / len(draws) ** 0.5
    assert (abs(draws.mean(0) - found.mean[1]) < 4 * error).all()
    np.testing.assert_allclose(draws.std(0), found.scale[1], rtol=0.02)


def energy_on_a_grid(params, y, shared):
    """E Σ_t log N(y_t; x_t, s²) less the divergences, states handed on from density to density on a grid.

    :param shared: whether the steps of a path share u, over which Gauss–Hermite nodes then go outside, or each step
        has f with u integrated out.
    """
    value = {name: np.asarray(each).ravel() for name, each in params.items()}
    at, width = np.linspace(-24.0, 24.0, 801), 0.06
    z, length, variance = (value[f"transition/{name}"] for name in ("inducing", "lengthscale", "variance"))
    # one inducing input: φ = k(x, z) / √k(z, z)
    phi = np.sqrt(variance) * np.exp(-0.5 * np.square((at - z) / length))
    loc, scale = value["transition/u_loc"], value["transition/u_scale"]
    start, spread, process = value["x_0_loc"], value["x_0_scale"], value["transition/noise"]

    def along(u, of_u):
        left = variance - phi**2 + of_u * phi**2
        total, density = 0.0, stats.norm.pdf(at, start, spread) * width
        for t, seen in enumerate(np.ravel(y)):
            c, around, s = 1.0, 0.0 * at, process
            if "x_shrinkage" in value:
                c = 1.0 - value["x_shrinkage"][t] * np.sqrt(process)
                around = (1.0 - c) * (value["x_slope"][t] * at + value["x_loc"][t])
                s = process * value["x_scale"][t] ** 2
            # E log p(x_t | f) − log q(x_t | f, x_{t−1}) over both
            away = np.square(around - (1.0 - c) * (at + phi * u)) + np.square(1.0 - c) * left
            total += density @ (0.5 * (1.0 + np.log(s / process)) - 0.5 * (away + s) / process)
            mean, noise = c * (at + phi * u) + around, s + c**2 * left
            turn = stats.norm.pdf(at, mean[:, None], np.sqrt(noise)[:, None]) * width
            density = density @ turn
            assert density.sum() == pytest.approx(1.0, abs=1e-9)
            total += density @ stats.norm.logpdf(seen, at, NOISE**0.5)
        return total

    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    each = [along(loc + scale * node, 0.0) for node in nodes] if shared else [along(loc, scale**2)]
    likely = np.dot(weights / weights.sum(), each) if shared else each[0]
    means, scales = np.array([loc, start]), np.array([scale, spread])
    return float(likely - 0.5 * (means**2 + scales**2 - 1.0 - 2.0 * np.log(scales)).sum())


RULES_OF_A_PATH = [
    (PRSSMSurrogate(), 3),
    (DoublyStochastic(), 3),
    (PRSSMSurrogate(), 2),
    (PRSSMSurrogate(), 1),
    (Conditional(markov=True), 3),
]


@pytest.mark.slow
@pytest.mark.parametrize("rule, length", few(RULES_OF_A_PATH, 0))
def test_energy_of_a_path_is_that_of_its_densities(rule, length):
    """PR-SSM's surrogate integrates u out at every step, and the bound has one draw of it for the path."""
    x, y = NONE[:length], Y6[:length]
    model, guide, params = prepared(rule, x, y, num_inducing=1, emission="identity")
    # a function that is much the same wherever a path comes, and uncertain
    known = {"u_loc": [[0.9]], "u_scale": [[[0.8]]], "lengthscale": [3.0], "inducing": [[0.4]]}
    params = moved(params) | {f"transition/{name}": jnp.array(value) for name, value in known.items()}
    surrogate, bound = (energy_on_a_grid(params, y, shared) for shared in (False, True))
    found, error = mean_of(PowerEP(0.0), params, model, guide, x, y, draws=20_000)
    expected = surrogate if isinstance(rule, PRSSMSurrogate) else bound
    assert abs(found - expected) < 4.0 * error
    # of one step they are the same, of more the test can tell them apart
    if length == 1:
        assert surrogate == pytest.approx(bound, abs=1e-9)
    else:
        assert abs(surrogate - bound) > 10.0 * error


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", few([DoublyStochastic(), PRSSMSurrogate()], 0), ids=lambda rule: type(rule).__name__
)
@pytest.mark.parametrize("length", seldom([9, 8], 0))
def test_the_series_goes_on_from_what_its_windows_learnt(rule, length):
    """A level that jumps to 50 at step 6: states, and forecasts of either kind, are of the windows they were learnt in.

    With next to no f and no noise x_t = x_{t−1}; of 8 steps the third window begins at step 5.
    """
    level = jnp.repeat(jnp.array([0.0, 3.0, 50.0]), 3)[:length, None]
    settings = {"window": 3, "kernel": nearly_nothing, "process_noise": 1e-6, "emission": "identity"}
    model, guide, params = prepared(rule, jnp.zeros((length, 0)), level, **settings)
    # of the states before windows at 0, 3 and 6, or 5
    begun = jnp.repeat(jnp.array([0.0, 3.0, 50.0]), jnp.array([3, length - 6, 3]))[:, None]
    params["x_0_loc"], params["x_0_scale"] = begun, jnp.full((length, 1), 1e-4)
    fit = Posterior(model, guide, params)
    smoothed = smooth(KEY, fit, None, level, num_samples=20)
    expected = np.repeat([0.0, 3.0, 50.0], 3)[:length]
    np.testing.assert_allclose(np.ravel(smoothed.mean)[-length:], expected, atol=0.01)
    for function in ("path", "moments"):
        ahead = forecast(KEY, fit, None, level, 2, function=function, num_samples=20)
        np.testing.assert_allclose(ahead.mean, 50.0, atol=0.01)
