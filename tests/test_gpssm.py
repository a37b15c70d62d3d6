"""State space models: linear-Gaussian limits with Kalman's evidence, nested families, drawn and in closed form."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, loss, noise_like, on_host, refuse
from fast import few
from numpyro.handlers import seed as seeded
from numpyro.handlers import substitute, trace
from rules import RULES as NARROW
from scipy import stats

from ppl_dgp.guides import (
    Amortised,
    Conditional,
    DoublyStochastic,
    Guide,
    Markov,
    MeanField,
    Optimal,
    PointEstimate,
)
from ppl_dgp.guides.following import following_start
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Poisson
from ppl_dgp.models import gpssm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import BlackBoxAlpha, ImportanceWeighted, PowerEP
from ppl_dgp.state_space.kalman import LinearEmission, smoothed_posterior
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.sequences import layout

KEY = jax.random.PRNGKey(1)
MOMENTS = PowerEP(0.0, propagation="moments")
T, NOISE, PROCESS = 6, 0.1, 0.3
NONE = jnp.zeros((T, 0))
Y = jnp.array([0.4, -0.3, 0.5, 1.4, 1.1, 2.0])[:, None]
CONTROLS = jnp.array([0.1, -0.6, 0.3, 1.0, -0.2, 0.4])[:, None]
RULES = {**NARROW, "amortised": Amortised((3,), Conditional())}


def nearly_nothing(dims):
    return RBF(1e-12, jnp.ones(dims))


def prepared(rule, x=NONE, y=Y, **settings):
    """A model, its guide and where they start."""
    model = gpssm(y.shape[1], **{"num_inducing": 3, "noise": NOISE, "process_noise": PROCESS} | settings)
    guide = Guide(model, hidden=rule)
    return model, guide, initial(KEY, model, guide, x, y)


def moved(params, size=0.3):
    """Parameters away from where they start, the scales still positive."""
    found = {}
    for number, (name, value) in enumerate(sorted(on_host(params).items())):
        noise = size * noise_like(value, number)
        if name.endswith("_scale") and value.ndim == 3:
            noise = np.tril(noise)
        found[name] = (
            value * np.exp(noise) if name.endswith(("scale", "noise", "residual")) else value + noise
        )
    return {name: jnp.asarray(value) for name, value in found.items()}


def mean_of(objective, params, model, guide, x, y, draws=4000):
    """Minus the loss, averaged over keys, and its standard error."""
    one = jax.jit(jax.vmap(lambda key: -objective.loss(key, params, model, guide, x, y)))
    values = np.asarray(one(jax.random.split(KEY, draws)))
    return values.mean(), values.std() / np.sqrt(draws)


def linear(width, weights, bias, controls, process=PROCESS, start=(0.0, 1.0)):
    """x_t = Aᵀ[x; c] + b, the chain of the model's transition without a GP."""
    steps = controls.shape[0]
    slopes = jnp.broadcast_to(weights[:width].T, (steps, width, width))
    scale = jnp.sqrt(process) * jnp.eye(width)
    offsets = controls @ weights[width:] + bias
    first = jnp.full(width, start[0]), jnp.sqrt(start[1]) * jnp.eye(width)
    return LinearGaussianChain(*first, slopes, offsets, jnp.broadcast_to(scale, (steps, width, width)))


def smoothed(chain, y, weights, bias):
    """The posterior's chain and the log evidence; x_0 is not observed."""
    rows = jnp.concatenate([jnp.full((1, y.shape[1]), jnp.nan), y])
    root = jnp.sqrt(NOISE) * jnp.eye(y.shape[1])
    found, evidence = smoothed_posterior(chain, rows, LinearEmission(weights.T, bias, root))
    return found, float(evidence)


def random_walk(y=Y):
    return smoothed(linear(1, jnp.eye(1), jnp.zeros(1), NONE), y, jnp.eye(1), jnp.zeros(1))


# the prior of u, of which nothing is learnt where the function has no variance
def without_function(params, **values):
    shape = params["transition/u_scale"].shape
    eye = jnp.broadcast_to(jnp.eye(shape[-1]), shape)
    noise = jnp.full_like(params["transition/noise"], PROCESS)
    return params | {"transition/u_scale": eye, "transition/noise": noise} | values


def begun(chain):
    return {"x_0_loc": chain.initial_mean[None], "x_0_scale": jnp.diag(chain.initial_scale_tril)[None]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", few([PowerEP(0.0), PowerEP(0.5, 2), PowerEP(1.0, 1), MOMENTS], 0), ids=repr
)
def test_markov_reaches_kalmans_evidence(objective):
    """At the smoother's chain the bound is the evidence for every draw: one sequence, controls, two dimensions."""
    weights = jnp.array([[0.8, 0.3], [-0.4, 0.7], [0.5, -0.2]])
    bias, c, d = (
        jnp.array([0.1, -0.2]),
        jnp.array([[1.0, 0.5, 0.0], [-0.3, 1.0, 0.4]]),
        jnp.array([0.0, 0.3, -0.1]),
    )
    y = jnp.column_stack([Y, -0.5 * Y, Y**2 - 1.0])
    chain, evidence = smoothed(linear(2, weights, bias, CONTROLS), y, c, d)
    model, guide, params = prepared(
        Markov(full=True), CONTROLS, y, latent=2, mean="linear", kernel=nearly_nothing
    )
    slopes = chain.slopes
    params = without_function(
        params, x_slope=slopes, x_loc=chain.offsets, x_scale=chain.scale_trils / PROCESS**0.5
    )
    params |= {
        "transition/weights": weights,
        "transition/bias": bias,
        "emission/weights": c,
        "emission/bias": d,
    }
    # x_0 is two-dimensional: its own rule is full as well
    params |= {"x_0_loc": chain.initial_mean[None], "x_0_scale": chain.initial_scale_tril[None]}
    assert -loss(objective, params, model, guide, CONTROLS, y) == pytest.approx(evidence, abs=1e-5)


def coupled_walk():
    """The smoother of the random walk under the coupled rule: c_t its slope, as f is the identity."""
    chain, evidence = random_walk()
    gain = chain.slopes[:, 0]
    values = {
        "x_shrinkage": (1.0 - gain) / PROCESS**0.5,
        "x_loc": chain.offsets / (1.0 - gain),
        "x_scale": chain.scale_trils[:, 0] / PROCESS**0.5,
        **begun(chain),
    }
    return values, evidence


@pytest.mark.slow
def test_transition_begins_at_its_regression_on_the_start():
    """f at the start's states: K (s² Kzz + KᵀK)⁻¹ Kᵀ (x_t − x_{t−1}) beside the identity, in NumPy."""
    model, guide, params = prepared(MeanField(), CONTROLS)
    q = trace(substitute(seeded(guide, KEY), params)).get_trace(CONTROLS, Y)["x"]["fn"]
    function = replace(q.trajectory.function, u=params["transition/u_loc"])
    before = np.concatenate([Y[:1], Y[:-1]])
    inputs, z = np.concatenate([before, CONTROLS], 1), np.asarray(function.inducing)
    # lengthscales begin at √2, of a state and a control
    gram = lambda a, b: np.exp(-0.25 * np.square(a[:, None] - b).sum(-1))
    cross, kzz = gram(inputs, z), gram(z, z) + float(function.nugget) * np.eye(len(z))
    expected = before + cross @ np.linalg.solve(PROCESS * kzz + cross.T @ cross, cross.T @ (Y - before))
    np.testing.assert_allclose(function(jnp.asarray(inputs)).mean, expected, atol=1e-8)
    assert abs(expected - before).max() > 0.1


@pytest.mark.parametrize("objective", few([PowerEP(0.0), PowerEP(0.5, 2)], 1), ids=repr)
@pytest.mark.slow
def test_coupled_reaches_kalmans_evidence_of_a_random_walk(objective):
    values, evidence = coupled_walk()
    model, guide, params = prepared(Conditional(), emission="identity", kernel=nearly_nothing)
    params = without_function(params, **values)
    assert -loss(objective, params, model, guide, NONE, Y) == pytest.approx(evidence, abs=1e-5)


@pytest.mark.slow
def test_poorer_guides_of_a_random_walk_are_below_in_order():
    """Mean field at its optimum falls short by its divergence from the smoother, found densely; others too."""
    chain, evidence = random_walk()
    _, covariances, _ = chain.marginals()
    precision = -np.asarray(jax.hessian(lambda path: chain.log_prob(path[:, None]))(jnp.zeros(T + 1)))
    np.testing.assert_allclose(np.diag(np.linalg.inv(precision)), covariances[:, 0, 0], rtol=1e-9)
    variance = 1.0 / np.diag(precision)
    mean = chain.marginals().means
    divergence = 0.5 * (-np.log(variance).sum() - np.linalg.slogdet(precision)[1])
    model, guide, params = prepared(MeanField(), emission="identity", kernel=nearly_nothing)
    optimum = {"x_loc": mean[1:], "x_scale": np.sqrt(variance[1:] / PROCESS)[:, None]}
    optimum |= {"x_0_loc": mean[:1], "x_0_scale": np.sqrt(variance[:1])[:, None]}
    params = without_function(params, **jax.tree.map(jnp.asarray, optimum))
    energy, slope = jax.jit(jax.value_and_grad(lambda p: MOMENTS.loss(KEY, p, model, guide, NONE, Y)))(params)
    assert -float(energy) == pytest.approx(evidence - divergence, abs=1e-6)
    assert -float(energy) < evidence - 0.1
    for name in optimum:
        np.testing.assert_allclose(slope[name], 0.0, atol=1e-6)
    # the model's own steps, and rules moved from the smoother
    values, _ = coupled_walk()
    for name in ("coupled", "doubly-stochastic"):
        model, guide, params = prepared(RULES[name], emission="identity", kernel=nearly_nothing)
        own = {site: value + 0.1 for site, value in values.items() if site in params}
        value, error = mean_of(PowerEP(0.0), without_function(params, **own), model, guide, NONE, Y)
        assert value < evidence - 4 * error, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule, emission",
    few([(MeanField(), "linear"), (Markov(), "linear"), (Markov(full=True), "gp"), (MeanField(), "gp")], 2),
)
def test_drawn_is_closed_form(rule, emission):
    """Two sequences, controls, two dimensions, u as moments: within 4 standard errors."""
    x = jnp.column_stack([CONTROLS, jnp.array([0, 0, 0, 0, 1, 1])])
    model, guide, params = prepared(rule, x, latent=2, emission=emission, num_sequences=2)
    params = moved(params, 0.2)
    value, error = mean_of(PowerEP(0.0), params, model, guide, x, Y)
    assert abs(-loss(MOMENTS, params, model, guide, x, Y) - value) < 4 * error < 0.03 * abs(value)


@cache
def parts(rule):
    """The trajectory of a model at drawn values, its q, and a path."""
    _, guide, params = prepared(rule, CONTROLS, latent=2)
    run = trace(substitute(seeded(guide, KEY), moved(params, 0.4))).get_trace(CONTROLS, Y)
    q = run["x"]["fn"]
    return q.trajectory, q, run["x"]["value"]


@pytest.mark.parametrize("alpha", few([0.0, 0.5], 1))
def test_coupled_without_f_is_mean_field(alpha):
    """c = 0, for every path, draw of u and α: the same density and the same weight."""
    trajectory, q, path = parts(MeanField())
    params = {
        **q.params,
        "shrinkage": jnp.broadcast_to(1.0 / jnp.sqrt(trajectory.noise), q.params["loc"].shape),
    }
    start = {"loc": q.begun.mean, "scale": jnp.sqrt(q.begun.variance)}
    coupled = TrajectoryConditional(trajectory, Conditional(), params, MeanField(), start)
    both = jax.jit(lambda path: [(of.log_prob(path), of.log_weight(path, alpha)) for of in (coupled, q)])
    np.testing.assert_allclose(*both(path), rtol=0.0, atol=1e-9)


@pytest.mark.slow
def test_coupled_begins_where_a_chain_ended():
    """From the smoother of a random walk it is the smoother; of a fitted chain it keeps the means."""
    chain, evidence = random_walk()
    model, guide, params = prepared(Markov(), emission="identity", kernel=nearly_nothing)
    values = {
        "x_slope": chain.slopes,
        "x_loc": chain.offsets,
        "x_scale": chain.scale_trils[:, 0] / PROCESS**0.5,
    }
    params = without_function(params, **values, **begun(chain))
    for rule in (Conditional(), Conditional(markov=True)):
        coupled = Guide(model, hidden=rule)
        start = following_start(guide, coupled, params, NONE, Y)
        assert -loss(PowerEP(0.0), start, model, coupled, NONE, Y) == pytest.approx(evidence, abs=1e-5)
    with pytest.raises(ValueError, match="expected Markov"):
        following_start(coupled, guide, start, NONE, Y)


@pytest.mark.slow
def test_nested_start_holds_along_a_trajectory():
    """Mean field in Markov, draw by draw; the model's own steps in the coupled rule."""
    model, guide, params = prepared(MeanField(), CONTROLS)
    params = moved(params)
    markov = Guide(model, hidden=Markov())
    richer = nested_start(guide, markov, params, CONTROLS, Y)
    poor = loss(PowerEP(0.0), params, model, guide, CONTROLS, Y)
    assert loss(PowerEP(0.0), richer, model, markov, CONTROLS, Y) == pytest.approx(poor, abs=1e-8)
    own, coupled = Guide(model, hidden=DoublyStochastic()), Guide(model, hidden=Conditional())
    params = {name: value for name, value in params.items() if name not in ("x_loc", "x_scale")}
    richer = nested_start(own, coupled, params, CONTROLS, Y)
    poor = loss(PowerEP(0.0), params, model, own, CONTROLS, Y)
    assert loss(PowerEP(0.0), richer, model, coupled, CONTROLS, Y) == pytest.approx(poor, abs=1e-8)


@pytest.mark.parametrize("objective", few([PowerEP(0.0, 2), PowerEP(0.5, 2)], 1), ids=repr)
def test_coupled_at_the_models_own_steps_is_doubly_stochastic(objective):
    """c = 1, S = Q: one draw of u per trajectory, draw by draw the same number."""
    model, guide, params = prepared(DoublyStochastic(), CONTROLS)
    params = moved(params)
    richer = Guide(model, hidden=Conditional())
    more = initial(KEY, model, richer, CONTROLS, Y) | params
    more |= {"x_shrinkage": jnp.zeros((T, 1)), "x_scale": jnp.ones((T, 1))}
    poor = loss(objective, params, model, guide, CONTROLS, Y)
    assert loss(objective, more, model, richer, CONTROLS, Y) == pytest.approx(poor, abs=1e-8)


def test_steps_are_tempered_one_by_one():
    """The weight of a path at α is Σ_t (1/α) log ∫ N(f; m, v) N(x_t; f, Q)^α df − log q, by quadrature."""
    alpha = 0.5
    trajectory, q, path = parts(Markov())
    step, states = trajectory.steps(path), np.asarray(trajectory.states(path))
    mean = np.asarray(step.marginal.mean)
    deviation = np.sqrt(np.broadcast_to(step.marginal.variance, mean.shape))
    total = float(trajectory.prior.log_prob(path[:1]).sum() - q.log_prob(path))
    for t in range(T):
        for k in range(2):
            f = np.linspace(mean[t, k] - 9 * deviation[t, k], mean[t, k] + 9 * deviation[t, k], 4001)
            density = stats.norm.pdf(f, mean[t, k], deviation[t, k])
            powered = stats.norm.pdf(states[t, k], f, np.sqrt(trajectory.noise[k])) ** alpha
            total += np.log(np.trapezoid(density * powered, f)) / alpha
    assert float(q.log_weight(path, alpha)) == pytest.approx(total, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(RULES, list(RULES).index("coupled")))
def test_small_alpha_is_the_elbo(name):
    """At the same draws: a traced α of 0 is the exact branch, and what α adds is in proportion to it."""
    model, guide, params = prepared(RULES[name], CONTROLS)
    params = moved(params)
    elbo = loss(PowerEP(0.0), params, model, guide, CONTROLS, Y, key=KEY)
    energy = lambda alpha: PowerEP(lambda _: alpha, 1).at_step(0).loss(KEY, params, model, guide, CONTROLS, Y)
    found = jax.jit(jax.vmap(energy))(jnp.array([0.0, 1e-3, 1e-4, 1e-5]))
    assert float(found[0]) == pytest.approx(elbo, abs=1e-9)
    added = elbo - np.asarray(found[1:])
    # of the model's own steps it adds nothing, to any draw
    np.testing.assert_allclose(added[:2], 10.0 * added[1:], rtol=0.05, atol=1e-10)
    assert (added[0] == pytest.approx(0.0, abs=1e-10)) == (name == "doubly-stochastic")


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_gradient_at_a_small_alpha_is_the_elbos(name):
    model, guide, params = prepared(RULES[name], CONTROLS)
    params = moved(params)
    slopes = [
        jax.jit(jax.grad(lambda p, a=alpha: PowerEP(a, 1).loss(KEY, p, model, guide, CONTROLS, Y)))(params)
        for alpha in (0.0, 1e-7)
    ]
    for site, slope in slopes[0].items():
        np.testing.assert_allclose(slopes[1][site], slope, rtol=1e-4, atol=1e-4, err_msg=site)


@pytest.mark.slow
def test_moments_of_u_are_many_draws_where_q_does_not_follow_f():
    """E_{q(u)} of the weight of one path, at α = 0 and above, u outside the logarithm."""
    trajectory, q, path = parts(MeanField())
    u = trajectory.function.u
    assert isinstance(u, jax.Array)
    moments = Gaussian(u, 0.3 * jnp.ones_like(u))

    def weight(u, alpha):
        function = type(trajectory.function)(**{**vars(trajectory.function), "u": u})
        other = type(trajectory)(function, trajectory.noise, trajectory.controls, trajectory.initial)
        start = {"loc": q.begun.mean, "scale": jnp.sqrt(q.begun.variance)}
        return TrajectoryConditional(other, q.rule, q.params, MeanField(), start).log_weight(path, alpha)

    draws = u + 0.3 * jax.random.normal(KEY, (20_000, *u.shape))
    for alpha in (0.0, 0.7):
        values = np.asarray(jax.vmap(lambda u: weight(u, alpha))(draws))  # noqa: B023
        error = values.std() / np.sqrt(len(values))
        assert abs(float(weight(moments, alpha)) - values.mean()) < 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean-field", "markov", "coupled", "tied", "doubly-stochastic"])
def test_drawn_along_is_unrolled(name):
    """Steps taken one by one, x_0 anew at the start of each sequence, have the density of the whole."""
    trajectory, q, path = parts(RULES[name])
    where = trajectory.layout
    total, before = float(q.begun.log_prob(path[where.initial]).sum()), path[0]
    for t in range(T):
        one = trajectory.at(before[None], CONTROLS[t][None])
        own = jax.tree.map(lambda leaf: leaf[t][None], q.params)  # noqa: B023
        total += float(q.rule.conditional(own, one).log_prob(path[t + 1][None])[0])
        before = path[t + 1]
    assert float(q.log_prob(path)) == pytest.approx(total, abs=1e-9)
    # draws have the moments of two unrolled steps
    keys = jax.random.split(KEY, 20_000)
    found = jax.vmap(q.sample)(keys)[:, 2]

    def two(key):
        first, *rest = jax.random.split(key, 3)
        state = q.begun.sample(first)
        for t, each in enumerate(rest):
            own = jax.tree.map(lambda leaf: leaf[t][None], q.params)  # noqa: B023
            state = q.rule.conditional(own, trajectory.at(state, CONTROLS[t][None])).sample(each)
        return state[0]

    expected = jax.vmap(two)(jax.random.split(jax.random.fold_in(KEY, 1), 20_000))
    error = np.sqrt((found.var(0) + expected.var(0)) / len(keys))
    assert (abs(found.mean(0) - expected.mean(0)) < 4 * error).all()
    np.testing.assert_allclose(found.std(0), expected.std(0), rtol=0.04)


def test_transition_density_is_that_of_dense_algebra():
    """log p(path | u) from kernel matrices in NumPy."""
    trajectory, _, path = parts(Conditional())
    f = trajectory.function
    inputs = np.concatenate([path[:-1], CONTROLS], 1)
    length, z = np.asarray(f.kernel.lengthscale), np.asarray(f.inducing)
    gram = lambda a, b: float(f.kernel.variance) * np.exp(-0.5 * np.square((a[:, None] - b) / length).sum(-1))
    kzz = gram(z, z) + float(f.nugget) * np.eye(len(z))
    a = np.linalg.solve(kzz, gram(z, inputs)).T
    u = np.linalg.cholesky(kzz) @ np.asarray(f.u).T
    variance = float(f.kernel.variance) - (a * gram(inputs, z)).sum(1)
    spread = np.sqrt(variance[:, None] + np.asarray(trajectory.noise))
    expected = (
        stats.norm.logpdf(path[1:], inputs[:, :2] + a @ u, spread).sum() + stats.norm.logpdf(path[0]).sum()
    )
    assert float(trajectory.log_prob(path)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_sequences_add_up():
    """The bound of two sequences is the sum of theirs, with the divergence of u once."""
    x = jnp.column_stack([CONTROLS, jnp.array([3, 3, 3, 3, 7, 7])])
    settings, rule = {"emission": "identity", "latent": 2}, Markov()
    model, guide, params = prepared(rule, x, num_sequences=2, **settings)
    params = moved(params)
    total = 0.0
    for number, rows in enumerate((slice(0, 4), slice(4, 6))):
        alone, alone_guide, own = prepared(rule, CONTROLS[:3], Y[:3], **settings)
        own = {name: params[name] for name in own}
        cuts = {"x_0_loc": slice(number, number + 1), "x_0_scale": slice(number, number + 1)}
        own |= {name: value[cuts.get(name, rows)] for name, value in own.items() if name.startswith("x_")}
        total -= loss(MOMENTS, own, alone, alone_guide, CONTROLS[rows], Y[rows])
    scale, loc = params["transition/u_scale"], params["transition/u_loc"]
    log_det = jnp.log(jnp.diagonal(scale, axis1=-2, axis2=-1)).sum()
    divergence = 0.5 * (jnp.square(scale).sum() + jnp.square(loc).sum() - loc.size) - log_det
    assert -loss(MOMENTS, params, model, guide, x, Y) == pytest.approx(total + float(divergence), abs=1e-7)


@pytest.mark.slow
def test_missing_observations_are_marginalised():
    """Kalman's evidence without them, and nothing of the gradient is lost."""
    y = jnp.column_stack([Y, 0.5 * Y]).at[jnp.array([0, 2, 2, 5]), jnp.array([1, 0, 1, 0])].set(jnp.nan)
    weights, c = jnp.array([[0.9]]), jnp.array([[1.0, -0.4]])
    chain, evidence = smoothed(linear(1, weights, jnp.zeros(1), NONE), y, c, jnp.zeros(2))
    settings = {"latent": 1, "mean": "linear", "kernel": nearly_nothing, "missing": True}
    model, guide, params = prepared(Markov(), NONE, y, **settings)
    scale = chain.scale_trils[:, 0] / PROCESS**0.5
    params = without_function(
        params, x_slope=chain.slopes, x_loc=chain.offsets, x_scale=scale, **begun(chain)
    )
    params |= {"transition/weights": weights, "transition/bias": jnp.zeros(1)}
    params |= {"emission/weights": c, "emission/bias": jnp.zeros(2)}
    assert -loss(MOMENTS, params, model, guide, NONE, y) == pytest.approx(evidence, abs=1e-5)
    slope = jax.jit(jax.grad(lambda p: PowerEP(0.5, 1).loss(KEY, p, model, guide, NONE, y)))(params)
    assert all(np.isfinite(each).all() for each in slope.values())


@pytest.mark.slow
def test_starts_are_finite_with_gaps_and_for_any_likelihood():
    y = jnp.column_stack([Y, 0.5 * Y]).at[jnp.array([0, 2, 2, 5]), jnp.array([1, 0, 1, 0])].set(jnp.nan)
    _, _, params = prepared(MeanField(), NONE, y, latent=3, missing=True)
    filled = np.asarray(params["x_loc"])
    # between two neighbours, or the nearest where there is one; then values a step earlier
    np.testing.assert_allclose(filled[2, :2], [(Y[1, 0] + Y[3, 0]) / 2, (Y[1, 0] + Y[3, 0]) / 4])
    np.testing.assert_allclose([filled[0, 1], filled[5, 0]], [0.5 * Y[1, 0], Y[4, 0]])
    np.testing.assert_allclose(filled[1:, 2], filled[:-1, 0])
    counts = jnp.array([0, 1, 3, 2, 5, 4])[:, None]
    model, guide, params = prepared(Conditional(), NONE, counts, noise=None, likelihood=Poisson())
    assert np.isfinite(loss(PowerEP(0.5, 2), params, model, guide, NONE, counts))


def test_what_a_trajectory_cannot_do_is_said():
    model, guide, params = prepared(Markov(), CONTROLS)
    for objective in (BlackBoxAlpha(0.5), ImportanceWeighted(2)):
        with pytest.raises(ValueError, match="trajectory 'x'"):
            refuse(objective, params, model, guide, CONTROLS, Y)
    with pytest.raises(ValueError, match="expected all of them in their order"):
        model(CONTROLS[:2], Y[:2], index=jnp.arange(2), size=T)
    with pytest.raises(ValueError, match="Optimal"):
        prepared_guide = Guide(model, hidden=Conditional(), inducing=Optimal())
        initial(KEY, model, prepared_guide, CONTROLS, Y)
    with pytest.raises(ValueError, match="PointEstimate"):
        initial(KEY, model, Guide(model, hidden=PointEstimate()), CONTROLS, Y)
    with pytest.raises(ValueError, match="2 sequences in 3 pieces"):
        layout(4, jnp.array([0, 1, 1, 0]), 2)
    for settings in ({"mean": "cubic"}, {"emission": "none"}, {"process_noise": 0.0}, {"num_sequences": 0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            gpssm(1, **settings)
    with pytest.raises(ValueError, match="latent"):
        prepared(Markov(), NONE, jnp.column_stack([Y, Y]), latent=1, emission="identity")
