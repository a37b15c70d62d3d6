"""The linear-Gaussian state space model and its EM: dense Gaussian algebra, an optimiser of the exact evidence."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from compiled import loss
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from ppl_dgp.fit import fit_lbfgs
from ppl_dgp.models import linear_gaussian_ssm
from ppl_dgp.objectives import PowerEP
from ppl_dgp.state_space.kalman import filtered
from ppl_dgp.state_space.linear_gaussian_em import (
    LinearSeries,
    LinearSystem,
    contracted,
    in_slots,
    linear_dynamics,
)
from ppl_dgp.state_space.sequences import Layout, layout

#: two sequences of 9 and 5 steps, one control, gaps; x_0 ~ N(0.3, 0.5)
CUT, T, INITIAL = 9, 14, (0.3, 0.5)
LAYOUT = Layout(jnp.isin(jnp.arange(T), jnp.array([0, CUT])), 2)
RANDOM = np.random.default_rng(3)
CONTROLS = jnp.asarray(RANDOM.normal(size=(T, 1)))
STATES = jnp.asarray(np.cumsum(RANDOM.normal(size=(T, 2)), 0) * 0.5)
Y = jnp.asarray(STATES @ np.array([[1.0, 0.4, 0.2], [0.3, -0.6, 1.0]]) + 0.4 * RANDOM.normal(size=(T, 3)))
Y = Y.at[jnp.array([0, 3, 3, 3, 10]), jnp.array([1, 0, 1, 2, 2])].set(jnp.nan)


def dense(system, controls, initial=INITIAL):
    """Mean and covariance of all states x_0 … x_T of one sequence, unrolled in NumPy."""
    width = len(system.bias)
    a, b = np.split(np.asarray(system.transition), [width], 1)
    mean, means = np.full(width, initial[0]), [np.full(width, initial[0])]
    covariance = initial[1] * np.eye(width)
    for control in np.asarray(controls):
        mean = a @ mean + b @ control + np.asarray(system.bias)
        means.append(mean)
        row = a @ covariance[-width:]
        corner = row[:, -width:] @ a.T + np.diag(system.noise)
        covariance = np.block([[covariance, row.T], [row, corner]])
    return np.concatenate(means), covariance


def conditioned(system, controls, y, initial=INITIAL):
    """Means and variances of the states given what was observed of one sequence, and its log evidence."""
    mean, covariance = dense(system, controls, initial)
    c = np.kron(np.eye(len(y) + 1)[1:], system.weights)
    there = ~np.isnan(np.ravel(y))
    c, noise = c[there], np.tile(system.observation_noise, len(y))[there]
    expected = c @ mean + np.tile(system.offset, len(y))[there]
    total = c @ covariance @ c.T + np.diag(noise)
    found = np.ravel(y)[there]
    gain = np.linalg.solve(total, c @ covariance).T
    left = np.diag(covariance - gain @ c @ covariance)
    shape = len(y) + 1, len(system.bias)
    evidence = multivariate_normal.logpdf(found, expected, total)
    return (mean + gain @ (found - expected)).reshape(shape), left.reshape(shape), evidence


PARTS = slice(0, CUT), slice(CUT, T)


@cache
def fitted(iterations, fixed=False):
    states = jnp.concatenate([STATES, STATES[:, :1]], 1) if fixed else STATES
    settings = {"iterations": iterations, "initial": INITIAL, "fixed_emission": fixed}
    return linear_dynamics(Y, CONTROLS, states, LAYOUT, **settings)


@pytest.mark.parametrize("fixed", [False, True])
def test_moments_and_evidence_are_those_of_dense_algebra(fixed):
    """Missing entries are marginalised, and sequences are independent: their evidences add up."""
    found = fitted(30, fixed)
    if fixed:
        np.testing.assert_array_equal(found.system.weights, np.eye(3))
        np.testing.assert_array_equal(found.system.offset, 0.0)
    each = [conditioned(found.system, CONTROLS[rows], Y[rows]) for rows in PARTS]
    assert float(found.log_likelihood[-1]) == pytest.approx(sum(evidence for *_, evidence in each), abs=1e-8)
    np.testing.assert_allclose(found.means, np.concatenate([mean for mean, *_ in each]), atol=1e-8)
    np.testing.assert_allclose(
        found.variances, np.concatenate([variance for _, variance, _ in each]), atol=1e-8
    )


@pytest.mark.parametrize("fixed", [False, True])
def test_no_iteration_decreases_the_evidence(fixed):
    found = fitted(30, fixed).log_likelihood
    assert np.diff(found).min() > -1e-9
    assert found[-1] > found[0] + 1.0


def test_the_m_step_maximises_what_dense_moments_expect():
    """E log p(x, y) under the posterior of the step before, by dense moments, has no slope at the new values."""
    before, after = fitted(30).system, fitted(31).system
    moments = []
    for rows in PARTS:
        mean, covariance = dense(before, CONTROLS[rows])
        y, size = np.asarray(Y[rows]), len(mean)
        c = np.kron(np.eye(len(y) + 1)[1:], before.weights)
        there = ~np.isnan(y.ravel())
        c = c[there]
        noise = np.tile(before.observation_noise, len(y))[there]
        gain = np.linalg.solve(c @ covariance @ c.T + np.diag(noise), c @ covariance).T
        expected = c @ mean + np.tile(before.offset, len(y))[there]
        mean = mean + gain @ (y.ravel()[there] - expected)
        root = np.linalg.cholesky(covariance - gain @ c @ covariance + 1e-14 * np.eye(size))
        # of a quadratic form the mean over mean ± √size · columns of the root is the expectation
        points = mean + np.sqrt(size) * np.concatenate([root.T, -root.T])
        moments.append((points.reshape(2 * size, len(y) + 1, -1), rows))

    def expected_density(system):
        total = 0.0
        for points, rows in moments:
            inputs = jnp.concatenate(
                [points[:, :-1], jnp.broadcast_to(CONTROLS[rows], (len(points), *CONTROLS[rows].shape))], -1
            )
            step = points[:, 1:] - inputs @ system.transition.T - system.bias
            error = jnp.nan_to_num(Y[rows] - points[:, 1:] @ system.weights.T - system.offset)
            there = ~jnp.isnan(Y[rows])
            density = (-0.5 * jnp.square(step) / system.noise - 0.5 * jnp.log(system.noise)).sum((1, 2))
            noise = system.observation_noise
            density += jnp.where(there, -0.5 * jnp.square(error) / noise - 0.5 * jnp.log(noise), 0.0).sum(
                (1, 2)
            )
            total += density.mean()
        return total

    for name, slope in jax.jit(jax.grad(expected_density))(after)._asdict().items():
        np.testing.assert_allclose(slope, 0.0, atol=1e-6, err_msg=name)


def noisy_walk():
    """A state that is observed with noise and gaps: two sequences of 25 and 15 steps, controls and layout."""
    random, steps = np.random.default_rng(4), 40
    controls, state, x = random.normal(size=(steps, 1)), np.zeros(steps), 0.0
    for t in range(steps):
        state[t] = x = 0.7 * x * (t not in (0, 25)) + 0.8 * controls[t, 0] + 0.2 + 0.5 * random.normal()
    y = (
        jnp.asarray(state[:, None] + 0.5 * random.normal(size=(steps, 1)))
        .at[jnp.array([4, 5, 30])]
        .set(jnp.nan)
    )
    return y, jnp.asarray(controls), Layout(jnp.isin(jnp.arange(steps), jnp.array([0, 25])), 2)


@pytest.mark.slow
def test_em_ends_where_lbfgs_does():
    """SciPy on the exact evidence, from where EM is at first."""
    y, controls, where = noisy_walk()
    end = linear_dynamics(y, controls, jnp.nan_to_num(y), where, iterations=300, fixed_emission=True)
    c, d = end.system.weights, end.system.offset

    def loss(values):
        system = LinearSystem(values[None, :2], values[2:3], jnp.exp(values[3:4]), c, d, jnp.exp(values[4:]))
        return -filtered(
            system.chain(controls, where), in_slots(y, where), system.emission
        ).log_predictive.sum()

    start = np.array([0.5, 0.0, 0.0, -3.0, -3.0])
    found = minimize(jax.jit(jax.value_and_grad(loss)), start, jac=True, method="L-BFGS-B")
    assert float(end.log_likelihood[0]) < -found.fun - 0.5
    assert float(end.log_likelihood[-1]) == pytest.approx(-found.fun, abs=1e-5)
    values = np.array([*end.system.transition[0], *end.system.bias, *np.log([end.system.noise[0]])])
    np.testing.assert_allclose(values, found.x[:4], atol=5e-3)


def test_nothing_to_learn_from_is_survived():
    """A column without entries, one that never varies, and a control that is the bias again."""
    y = jnp.column_stack([Y[:, 0], jnp.full(T, jnp.nan), jnp.ones(T)])
    found = linear_dynamics(y, jnp.ones_like(CONTROLS), STATES, LAYOUT, iterations=30, initial=INITIAL)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert np.diff(found.log_likelihood).min() > -1e-8
    # equal shares: the smallest weights that explain as much
    np.testing.assert_allclose(found.system.transition[:, 2], found.system.bias, atol=1e-8)


def test_one_step_that_says_nothing_of_the_noise_leaves_it_a_size():
    y, none = jnp.array([[1e6, 3.0]]), jnp.zeros((1, 0))
    found = linear_dynamics(y, none, jnp.zeros((1, 2)), layout(1))
    np.testing.assert_allclose(found.system.observation_noise, 1e-6)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="controls: found 13 rows, expected 14"):
        linear_dynamics(Y, CONTROLS[1:], STATES, LAYOUT)
    with pytest.raises(ValueError, match="states: found 13 rows"):
        linear_dynamics(Y, CONTROLS, STATES[1:], LAYOUT)
    with pytest.raises(ValueError, match="states: found 2 dimensions, expected at least 3"):
        linear_dynamics(Y, CONTROLS, STATES, LAYOUT, fixed_emission=True)
    with pytest.raises(ValueError, match="iterations: found 0"):
        linear_dynamics(Y, CONTROLS, STATES, LAYOUT, iterations=0)


X = jnp.column_stack([CONTROLS, jnp.asarray(LAYOUT.sequence)])
VALUES = {
    "transition/weights": jnp.array([[0.7, 0.2], [-0.3, 0.5], [0.4, -0.6]]),
    "transition/bias": jnp.array([0.1, -0.2]),
    "transition/noise": jnp.array([0.3, 0.2]),
    "emission/weights": jnp.array([[1.0, 0.5, 0.1], [-0.4, 0.8, 0.9]]),
    "emission/bias": jnp.array([0.2, 0.0, -0.3]),
    "likelihood/noise": jnp.array([0.1, 0.2, 0.3]),
}
SYSTEM = LinearSystem(
    VALUES["transition/weights"].T, VALUES["transition/bias"], VALUES["transition/noise"],
    VALUES["emission/weights"].T, VALUES["emission/bias"], VALUES["likelihood/noise"],
)  # fmt: skip
MODEL = linear_gaussian_ssm(3, 2, initial=INITIAL, num_sequences=2, missing=True, iterations=30)


def no_guide(x, y=None):
    """Nothing to approximate."""


def observed(system, controls):
    """Mean and covariance of y of one sequence, (T P,)."""
    mean, covariance = dense(system, controls)
    steps = len(controls)
    c = np.kron(np.eye(steps + 1)[1:], system.weights)
    noise = np.diag(np.tile(system.observation_noise, steps))
    return c @ mean + np.tile(system.offset, steps), c @ covariance @ c.T + noise


def test_the_models_density_is_the_dense_normals():
    """Of two sequences with gaps, at any α: there is nothing to approximate."""
    each = [conditioned(SYSTEM, CONTROLS[rows], Y[rows])[2] for rows in PARTS]
    assert -loss(PowerEP(0.5), VALUES, MODEL, no_guide, X, Y) == pytest.approx(sum(each), abs=1e-8)


@pytest.mark.slow
def test_series_are_drawn_with_the_dense_moments():
    count = 20_000
    series = LinearSeries(SYSTEM, CONTROLS, LAYOUT, INITIAL)
    draws = np.asarray(jax.jit(lambda key: series.sample(key, (count,)))(jax.random.PRNGKey(0)))
    for rows in PARTS:
        mean, covariance = observed(SYSTEM, CONTROLS[rows])
        found, deviation = draws[:, rows].reshape(count, -1), np.sqrt(np.diag(covariance))
        assert (np.abs(found.mean(0) - mean) < 4.5 * deviation / count**0.5).all()
        # Var of a sample covariance of Gaussians: (Σ_ii Σ_jj + Σ_ij²) / n
        error = np.sqrt((np.outer(deviation, deviation) ** 2 + covariance**2) / count)
        assert (np.abs(np.cov(found.T) - covariance) < 4.5 * error).all()
        np.testing.assert_allclose(series.mean[rows].ravel(), mean, atol=1e-10)
        np.testing.assert_allclose(series.variance[rows].ravel(), np.diag(covariance), atol=1e-10)
    # no draw of one sequence knows of the other
    across = np.corrcoef(draws[:, CUT - 1].T, draws[:, CUT].T)[:3, 3:]
    assert (np.abs(across) < 4.5 / count**0.5).all()
    values = jax.jit(series.log_prob)(draws[:2])
    joints = [(rows, multivariate_normal(*observed(SYSTEM, CONTROLS[rows]))) for rows in PARTS]
    expected = [sum(joint.logpdf(y[rows].ravel()) for rows, joint in joints) for y in draws[:2]]
    np.testing.assert_allclose(values, expected, atol=1e-8)


def test_rows_to_come_are_forecast():
    """Dense Gaussian algebra of the last rows of a sequence given those before."""
    y = Y.at[CUT + 2 :].set(jnp.nan)
    series = LinearSeries(SYSTEM, CONTROLS, LAYOUT, INITIAL, partly=True)
    marginals = jax.jit(lambda y: series.states_given(y).marginals())(y)
    means, variances, _ = conditioned(SYSTEM, CONTROLS[CUT:], y[CUT:])
    np.testing.assert_allclose(marginals.means[CUT + 1 :], means, atol=1e-8)
    found = jnp.diagonal(marginals.covariances, axis1=1, axis2=2)[CUT + 1 :]
    np.testing.assert_allclose(found, variances, atol=1e-8)


@pytest.mark.slow
def test_it_begins_where_em_ends():
    """From y as states to start at; without y as a random walk, whose draws Predictive has."""
    y = jnp.nan_to_num(Y[:, :2])
    model = linear_gaussian_ssm(2, initial=INITIAL, num_sequences=2, iterations=30)
    sites = handlers.trace(handlers.seed(model, 0)).get_trace(X, y)
    em = linear_dynamics(y, CONTROLS, y, LAYOUT, iterations=30, initial=INITIAL)
    evidence = jax.jit(sites["y"]["fn"].log_prob)(y)
    assert float(evidence) == pytest.approx(float(em.log_likelihood[-1]), abs=1e-8)
    params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
    assert set(params) == set(VALUES)
    draws = Predictive(model, params=params, num_samples=3)(jax.random.PRNGKey(1), X)["y"]
    assert draws.shape == (3, T, 2) and np.isfinite(draws).all()
    walk = handlers.trace(handlers.seed(model, 0)).get_trace(X)["y"]["fn"].system
    np.testing.assert_array_equal(walk.transition, np.eye(2, 3))


@pytest.mark.slow
def test_training_ends_where_em_does():
    y, controls, where = noisy_walk()
    x = jnp.column_stack([controls, where.sequence])
    assert np.isnan(y).any()
    model = linear_gaussian_ssm(1, emission="identity", num_sequences=2, missing=True, iterations=1)
    fit = fit_lbfgs(jax.random.PRNGKey(0), model, x, y)
    em = linear_dynamics(
        y, controls, jnp.nan_to_num(y), where, iterations=1000, fixed_emission=True
    ).log_likelihood
    assert -fit.losses[0, 0] < em[-1] - 0.1
    assert -fit.losses[0, -1] == pytest.approx(float(em[-1]), abs=1e-4)


@pytest.mark.slow
def test_lifted_it_runs_under_nuts():
    priors = {"transition/bias": dist.Normal(0.0, 1.0).expand((2,)).to_event(1)}
    held = {name: value for name, value in VALUES.items() if name not in priors}
    lifted = handlers.lift(handlers.substitute(MODEL, data=held), prior=priors)
    mcmc = MCMC(NUTS(lifted), num_warmup=200, num_samples=400, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), X, Y)
    found = mcmc.get_samples()["transition/bias"]
    # given all else the evidence is quadratic in b: the posterior from its slope and curvature at 0
    evidence = lambda b: LinearSeries(SYSTEM._replace(bias=b), CONTROLS, LAYOUT, INITIAL).log_prob(Y)
    slope, curvature = jax.jit(lambda b: (jax.grad(evidence)(b), jax.hessian(evidence)(b)))(jnp.zeros(2))
    covariance = np.linalg.inv(np.eye(2) - curvature)
    np.testing.assert_allclose(found.mean(0), covariance @ slope, atol=0.1)
    np.testing.assert_allclose(found.std(0), np.sqrt(np.diag(covariance)), rtol=0.2)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"emission": "none"}, "emission: found 'none'"),
        ({"latent": 1, "emission": "identity"}, "latent: found 1, expected at least 2"),
        ({"latent": 0}, "latent"),
        ({"initial": (0.0, 0.0)}, "initial"),
        ({"num_sequences": 0}, "num_sequences: found 0"),
        ({"iterations": 0}, "iterations: found 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        linear_gaussian_ssm(2, **settings)


def test_a_minibatch_is_refused():
    with pytest.raises(ValueError, match="index: found a minibatch"):
        handlers.seed(MODEL, 0)(X, Y, index=jnp.arange(3), size=T)


def radius(system):
    return abs(np.linalg.eigvals(system.transition[:, : len(system.bias)])).max()


@pytest.mark.slow
def test_dynamics_that_would_grow_are_held_back():
    """A grown series: the nearest transition that does not, the rest at its best beside it."""
    growing = jnp.asarray(1.2 ** np.arange(T))[:, None] * jnp.array([[1.0, 0.5, -1.0]])
    growing = growing + 0.1 * jnp.asarray(np.random.default_rng(0).normal(size=(T, 3)))
    about = growing, CONTROLS, growing[:, :2], LAYOUT
    free = linear_dynamics(*about, iterations=30, initial=INITIAL)
    held = linear_dynamics(*about, iterations=30, initial=INITIAL, stable=True)
    assert radius(free.system) > 1.01
    assert radius(held.system) == pytest.approx(0.999, abs=1e-9)
    assert (np.diff(held.log_likelihood) > -1e-9).all()
    # the bias is at its best: the evidence is flat there
    series = lambda bias: LinearSeries(held.system._replace(bias=bias), CONTROLS, LAYOUT, INITIAL).log_prob(
        growing
    )
    assert (
        abs(jax.grad(series)(held.system.bias)).max()
        < 0.05 * abs(jax.grad(series)(held.system.bias + 0.1)).max()
    )


@pytest.mark.slow
def test_stable_dynamics_stay_as_they_are():
    free = linear_dynamics(Y, CONTROLS, STATES, LAYOUT, initial=INITIAL)
    assert radius(free.system) < 0.999
    held = linear_dynamics(Y, CONTROLS, STATES, LAYOUT, initial=INITIAL, stable=True)
    for one, other in zip(jax.tree.leaves(free), jax.tree.leaves(held), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_contraction_moves_what_is_outside_alone(dtype):
    """Eigenvalues 1.3, 0.5 ± 0.2 i and 0.9; a Jordan block, whose eigenvectors are one, is scaled."""
    basis = np.random.default_rng(1).normal(size=(4, 4))
    blocks = np.zeros((4, 4))
    blocks[0, 0], blocks[1:3, 1:3], blocks[3, 3] = 1.3, [[0.5, 0.2], [-0.2, 0.5]], 0.9
    slopes = jnp.asarray(basis @ blocks @ np.linalg.inv(basis), dtype)
    for found, grows in (contracted(slopes), jax.jit(contracted)(slopes)):
        blocks[0, 0] = 0.999
        assert bool(grows) and found.dtype == dtype
        np.testing.assert_allclose(
            found, basis @ blocks @ np.linalg.inv(basis), atol=1e-4 if dtype is np.float32 else 1e-12
        )
    jordan = jnp.array([[1.1, 1.0], [0.0, 1.1]], dtype)
    assert abs(np.linalg.eigvals(contracted(jordan)[0])).max() <= 1.0
