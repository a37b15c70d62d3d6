"""The α objectives on models with closed forms: what is inside the logarithm and what outside it, and minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from compiled import initial, loss
from fast import few
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from rules import carried

from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Conditional, DoublyStochastic, FullRank, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

KEY = jax.random.PRNGKey(7)
# θ ~ N(0, 1), h_n ~ N(θ, A), y_n ~ N(h_n, B);  q(θ) = N(M, V), q(h_n | θ) = N(C θ + D_n, S)
A, B, M, V, C, S = 0.5, 0.3, 0.2, 0.3, 0.4, 0.4
D = np.array([0.6, -0.3, 0.9])
TOY_Y = jnp.array([1.1, -0.4, 1.6])


def toy_model(y, index=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    with data_plate(3, index):
        h = numpyro.sample("h", dist.Normal(theta, A**0.5))
        numpyro.sample("y", dist.Normal(h, B**0.5), obs=y)


def toy_guide(y, index=None):
    theta = numpyro.sample("theta", dist.Normal(numpyro.param("loc", M), V**0.5))
    with data_plate(3, index):
        numpyro.sample("h", dist.Normal(C * theta + numpyro.param("d", jnp.asarray(D), event_dim=0), S**0.5))


def toy(alpha, globals_outside_log):
    """Closed forms by quadrature over θ of the Gaussian integral over h."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    theta = M + V**0.5 * nodes[:, None]
    weights = weights / weights.sum()
    y, q_mean = np.asarray(TOY_Y), C * theta + D
    log_normal = lambda r2, v: -0.5 * np.log(2 * np.pi * v) - 0.5 * r2 / v
    kl = 0.5 * (V + M**2 - 1 - np.log(V))
    if alpha == 0.0:
        inner = log_normal((y - q_mean) ** 2 + S, B) + log_normal((q_mean - theta) ** 2 + S, A)
        inner += 0.5 * np.log(2 * np.pi * np.e * S)
        return float((weights @ inner).sum() - kl)
    # ∫ N(h; q)^{1−α} (N(h; θ, A) N(y; h, B))^α dh = exp(½ b²/p − ½ c) √(2π/p) · constants
    p = (1 - alpha) / S + alpha / A + alpha / B
    b = (1 - alpha) * q_mean / S + alpha * theta / A + alpha * y / B
    c = (1 - alpha) * q_mean**2 / S + alpha * theta**2 / A + alpha * y**2 / B
    constants = (
        (1 - alpha) * np.log(2 * np.pi * S) + alpha * np.log(2 * np.pi * A) + alpha * np.log(2 * np.pi * B)
    )
    log_z = 0.5 * b**2 / p - 0.5 * c + 0.5 * np.log(2 * np.pi / p) - 0.5 * constants
    if globals_outside_log:
        return float((weights @ log_z).sum() / alpha - kl)
    return float(np.log(weights @ np.exp(log_z)).sum() / alpha - kl)


def toy_evidence():
    covariance = np.ones((3, 3)) + (A + B) * np.eye(3)
    y = np.asarray(TOY_Y)
    return float(
        -0.5 * y @ np.linalg.solve(covariance, y) - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    )


@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 1, 2))
@pytest.mark.parametrize("kind", [PowerEP, BlackBoxAlpha])
def test_conjugate_toy(kind, alpha):
    # 400 particles leave a bias of the logarithm's mean, about var(w^α)/2S < 0.003, below the tolerance
    objective, params = kind(alpha, 400), {"loc": jnp.asarray(M), "d": jnp.asarray(D)}
    run = jax.jit(jax.vmap(lambda key: -objective.loss(key, params, toy_model, toy_guide, TOY_Y)))
    values = run(jax.random.split(KEY, 2000))
    expected = toy(alpha, kind is PowerEP)
    se = float(values.std()) / 2000**0.5
    assert abs(float(values.mean()) - expected) < 4 * se + (0.01 if alpha else 0.0)
    if kind is PowerEP:
        assert expected < toy_evidence()
    assert toy(alpha, True) <= toy(alpha, False) + 1e-12


def test_power_ep_is_a_bound_and_black_box_is_none():
    """At α = 1 and q(θ) the posterior of θ, the one is the evidence and the other lies above it."""
    global M, V
    kept = M, V
    precision = 1 + 3 / (A + B)
    try:
        V = 1 / precision
        M = float(V * TOY_Y.sum() / (A + B))
        assert toy(1.0, True) == pytest.approx(toy_evidence(), abs=1e-10)
        assert toy(1.0, False) > toy_evidence() + 0.1
        assert toy(0.5, True) < toy_evidence()
    finally:
        M, V = kept


@pytest.mark.slow
def test_few_particles_lie_below_and_more_come_closer():
    """T21: the logarithm of a mean of draws is low on average (Jensen), and its bias goes to 0."""
    params, exact = {"loc": jnp.asarray(M), "d": jnp.asarray(D)}, toy(1.0, False)
    biases = []
    for particles in (1, 10, 100):
        objective = BlackBoxAlpha(1.0, particles)
        loss = jax.jit(jax.vmap(lambda key, o=objective: -o.loss(key, params, toy_model, toy_guide, TOY_Y)))
        values = loss(jax.random.split(KEY, 4000))
        biases.append(exact - float(values.mean()))
        assert biases[-1] > -4 * float(values.std()) / 4000**0.5
    assert biases[0] > 3 * biases[1] > 9 * biases[2]


def test_a_draw_of_globals_alone_is_enough_if_no_number_is_asked_for():
    """Without local latents t_α is averaged over draws of θ: one a step, eight if they are asked for."""

    def model(y):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(theta, B**0.5), obs=y)

    def guide(y):
        numpyro.sample("theta", dist.Normal(M, V**0.5))

    of = lambda objective: jax.jit(jax.vmap(lambda key: objective.loss(key, {}, model, guide, TOY_Y)))
    keys = jax.random.split(KEY, 2000)
    unasked, one, eight = (np.asarray(of(PowerEP(0.5, number))(keys)) for number in (None, 1, 8))
    np.testing.assert_array_equal(unasked, one)
    r2 = np.square(np.asarray(TOY_Y) - M) + V
    expected = 0.5 * (V + M**2 - 1 - np.log(V)) + (0.5 * np.log(2 * np.pi * B) + 0.5 * r2 / B).sum()
    for losses in (one, eight):
        assert abs(losses.mean() - expected) < 4.0 * losses.std() / len(keys) ** 0.5
    np.testing.assert_allclose(one.var() / eight.var(), 8.0, rtol=0.2)


def test_alpha_zero_is_numpyros_elbo():
    params = {"loc": jnp.asarray(M), "d": jnp.asarray(D)}
    keys = jax.random.split(KEY, 20_000)
    run = jax.jit(jax.vmap(lambda key: -Trace_ELBO().loss(key, params, toy_model, toy_guide, TOY_Y)))
    theirs = run(keys)
    assert abs(float(theirs.mean()) - toy(0.0, True)) < 4 * float(theirs.std()) / 20_000**0.5


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("kind", [PowerEP, BlackBoxAlpha])
def test_alpha_outside_its_range(kind, bad):
    with pytest.raises(ValueError, match="alpha"):
        kind(bad)
    with pytest.raises(TypeError, match="alpha"):
        kind("half")
    with pytest.raises(ValueError, match="num_particles"):
        kind(0.5, 0)


def test_objectives_are_equal_by_what_they_are():
    """Fits of equal ones share a program."""
    schedule = optax.linear_schedule(0.0, 1.0, 10)
    for made in (
        lambda: PowerEP(0.5, 4),
        lambda: BlackBoxAlpha(schedule),
        lambda: PowerEP(propagation="moments"),
    ):
        assert made() == made() and hash(made()) == hash(made())
    different = [PowerEP(0.5, 4), PowerEP(0.5), BlackBoxAlpha(0.5, 4), PowerEP(schedule), PowerEP(0.4, 4)]
    assert len({*different}) == len(different) and PowerEP(0.5) != "PowerEP"


X = jnp.linspace(-1.0, 1.2, 4)[:, None]
Y = jnp.array([0.3, -0.2, 0.5, 0.9])[:, None]
Z = jnp.array([-0.8, 0.6])[:, None]


def layers(variance, depth=2, noise=0.2):
    """Identity means; as the kernel's variance goes to 0 a Gaussian chain h¹ = x + ε, …, y = h + ε."""

    def model(x, y=None, index=None, size=None):
        functions = [
            sparse_gp(f"layer{i}", RBF(variance, 1.0), Z, mean=Linear(jnp.eye(1)))
            for i in range(1, depth + 1)
        ]
        with data_plate(size or x.shape[0], index):
            h = x
            for i, f in enumerate(functions[:-1], start=1):
                h = numpyro.sample(f"layer{i}/h", f(h).noisy(noise), infer={"role": "hidden"})
            numpyro.sample("y", functions[-1](h).noisy(noise), obs=y)

    return model


def started(model, rule):
    guide = Guide(model, hidden=rule, inducing=FullRank())
    return guide, initial(KEY, model, guide, X, Y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", [PowerEP(0.0, 4000), pytest.param(PowerEP(0.5, 4000), marks=pytest.mark.slow)], ids=repr
)
def test_linear_gaussian_limit(objective):
    """Evidence known; each rule at its best q(h), known too, stays below it, and in order."""
    model, noise = layers(1e-12), 0.2
    evidence = float(dist.Normal(X, (2 * noise) ** 0.5).log_prob(Y).sum())
    values = {}
    for name, rule in {
        "plain": DoublyStochastic(),
        "mean-field": MeanField(),
        "coupled": Conditional(),
    }.items():
        guide, params = started(model, rule)
        if name != "plain":
            # the posterior of h given x and y: N((x + y)/2, noise/2), which these rules hold exactly
            params["layer1/h_loc"] = 0.5 * (X + Y)
            params["layer1/h_scale"] = jnp.full((4, 1), 0.5**0.5)  # in units of the noise
        if name == "coupled":
            params["layer1/h_shrinkage"] = jnp.full((4, 1), noise**-0.5)  # c = 0
        values[name] = -loss(objective, params, model, guide, X, Y)
    assert values["plain"] < evidence - 0.05
    # where q(h) is the posterior the weight is constant: no Monte Carlo error
    assert values["mean-field"] == pytest.approx(evidence, abs=1e-5)
    assert values["coupled"] == pytest.approx(evidence, abs=1e-5)
    # doubly stochastic at α = 0: E log N(y; h, s²) under h ~ N(x, s²)
    if objective.alpha == 0.0:
        expected = float((dist.Normal(X, noise**0.5).log_prob(Y) - 0.5).sum())
        assert abs(values["plain"] - expected) < 4 * 2.5 / 4000**0.5


@pytest.mark.parametrize(
    "objective",
    [pytest.param(PowerEP(0.0, 2), marks=pytest.mark.slow), PowerEP(0.6, 2), BlackBoxAlpha(0.6, 2)],
    ids=repr,
)
def test_minibatches_average_to_the_full_batch(objective):
    """One layer has no draws at hand, so that losses and gradients of all minibatches average to those of all rows."""
    model = layers(0.8, depth=1)
    guide, params = started(model, DoublyStochastic())
    params["layer1/u_loc"] = jnp.array([[0.4, -0.7]])
    step = jax.value_and_grad(
        lambda q, x, y, index: objective.loss(KEY, q, model, guide, x, y, index=index, size=4)
    )
    step = jax.jit(step)
    parts = [
        step(params, X[i], Y[i], i) for i in map(jnp.array, ([0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]))
    ]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(parts), *parts)
    whole = jax.jit(jax.value_and_grad(lambda q: objective.loss(KEY, q, model, guide, X, Y)))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), mean, whole)


@pytest.mark.slow
def test_minibatches_of_the_toy_share_their_rows():
    """Every particle of a subsampled plate sees the same rows; the mean over index sets is the full value."""
    params = {"loc": jnp.asarray(M), "d": jnp.asarray(D)}
    objective = PowerEP(0.5, 200)
    run = jax.jit(jax.vmap(
        lambda key, index: -objective.loss(key, params, toy_model, toy_guide, TOY_Y[index], index=index),
        in_axes=(0, None),
    ))  # fmt: skip
    values = jnp.stack([run(jax.random.split(KEY, 2000), jnp.array([n])) for n in range(3)])
    assert abs(float(values.mean()) - toy(0.5, True)) < 4 * float(values.mean(0).std()) / 2000**0.5 + 0.01


@pytest.mark.slow
def test_moments_rows_and_joint_draws_of_u_agree_in_expectation():
    model = layers(0.5)
    guide, params = started(model, DoublyStochastic())
    params["layer1/u_loc"], params["layer2/u_loc"] = jnp.array([[0.3, -0.2]]), jnp.array([[-0.4, 0.6]])
    params["layer1/u_scale"] = params["layer2/u_scale"] = jnp.array([[[0.5, 0.0], [0.1, 0.6]]])

    results = {}
    for how in ("marginal", "per_datum_sample", "shared_sample"):
        asking = carried(guide, how)
        objective = PowerEP(0.0, 4)
        run = jax.jit(jax.vmap(lambda key, g=asking, o=objective: -o.loss(key, params, model, g, X, Y)))
        values = run(jax.random.split(KEY, 4000))
        results[how] = float(values.mean()), float(values.std()) / 4000**0.5
    centre, error = results["marginal"]
    for how in ("per_datum_sample", "shared_sample"):
        value, se = results[how]
        assert abs(value - centre) < 4 * np.hypot(error, se)
        assert se > error


@pytest.mark.slow
@pytest.mark.parametrize("objective", few([PowerEP(0.5, 2), BlackBoxAlpha(0.5, 2)], 0), ids=repr)
def test_gradient_is_that_of_finite_differences(objective):
    model = layers(0.5)
    guide, params = started(model, Conditional())
    loss = jax.jit(lambda q: objective.loss(KEY, q, model, guide, X, Y))
    slope = jax.grad(loss)(params)
    for position, name in enumerate(sorted(params)):
        direction = jax.random.normal(jax.random.fold_in(KEY, position), params[name].shape)
        direction = jnp.tril(direction) if name.endswith("u_scale") else direction
        at = lambda t, n=name, d=direction: float(loss({**params, n: params[n] + t * d}))
        numeric = (at(1e-5) - at(-1e-5)) / 2e-5
        assert float((slope[name] * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_missing_rows_keep_their_temper():
    """A mask leaves out rows and leaves t_α what it is."""
    model = layers(0.8, depth=1)
    guide, params = started(model, DoublyStochastic())
    kept = jnp.array([0, 1, 3])
    for objective in (PowerEP(0.0), PowerEP(0.5)):
        expected = loss(objective, params, model, guide, X[kept], Y[kept])
        assert masked_rows(params, objective) == pytest.approx(expected, abs=1e-9)


def masked_rows(params, objective):
    def model(x, y=None, index=None, size=None):
        f = sparse_gp("layer1", RBF(0.8, 1.0), Z, mean=Linear(jnp.eye(1)))
        with data_plate(x.shape[0]), handlers.mask(mask=jnp.array([True, True, False, True])):
            numpyro.sample("y", f(x).noisy(0.2), obs=y)

    return loss(objective, params, model, Guide(model), X, Y)


@pytest.mark.parametrize(
    "rule, alpha",
    few(
        [(MeanField(), 0.5), (Conditional(), 0.5), (Conditional(free=True), 0.0), (DoublyStochastic(), 1.0)],
        1,
        3,
    ),
)
def test_rows_masked_with_their_hidden_variables_count_for_nothing(rule, alpha):
    """The same draws in every run, so that what single rows give adds up to the whole, digit for digit."""

    def model(x, y, mask):
        f1, f2 = (sparse_gp(f"layer{i}", RBF(0.6, 1.0), Z, mean=Linear(jnp.eye(1))) for i in (1, 2))
        with data_plate(x.shape[0]), handlers.mask(mask=mask):
            h = numpyro.sample("layer1/h", f1(x).noisy(0.2), infer={"role": "hidden"})
            numpyro.sample("y", f2(h).noisy(0.1), obs=y)

    guide = Guide(model, hidden=rule)
    q = {f"layer{i}/u_loc": jnp.array([[0.3, -0.2 * i]]) for i in (1, 2)}
    q |= {f"layer{i}/u_scale": jnp.array([[[0.5, 0.0], [0.1, 0.6]]]) for i in (1, 2)}
    q |= {
        "layer1/h_loc": X + 0.1,
        "layer1/h_scale": jnp.full((4, 1), 0.3),
        "layer1/h_shrinkage": jnp.full((4, 1), 0.9),
    }
    q |= {"layer1/h_weights": jnp.full((4, 1, 2), 0.2)}
    run = jax.jit(lambda mask, y: -PowerEP(alpha, 3).loss(KEY, q, model, guide, X, y, mask))
    nothing, whole = run(jnp.zeros(4, bool), Y), run(jnp.ones(4, bool), Y)
    rows = [run(jnp.arange(4) == n, Y) - nothing for n in range(4)]
    assert float(whole) == pytest.approx(float(nothing + sum(rows)), abs=1e-9)
    # with all rows masked KL[q(u) ‖ p(u)] is left, ½ (‖L‖² + µ² − 2 − log |S|) for each layer
    kl = sum(0.5 * (0.62 + 0.09 + 0.04 * i * i - 2 - np.log(0.09)) for i in (1, 2))
    assert float(nothing) == pytest.approx(-kl, abs=1e-9)
    # a masked target has no say, whatever it is
    kept = jnp.array([True, True, False, True])
    assert float(run(kept, Y.at[2].set(50.0))) == pytest.approx(float(run(kept, Y)), abs=1e-9)
