"""Amortised rules against their bases, and against posteriors that a linear network holds exactly.

In the linear-Gaussian limit, h^l = h^{l−1} + ε_l and y = h^{L−1} + ε_L with variances s_l, the posterior of the first
hidden layer is linear in the datum, h¹_n | y_n ~ N(x_n + k (y_n − x_n), s_1 (1 − k)), k = s_1 / Σ_l s_l, and that of
the next a step of a bridge, h²_n | h¹_n, y_n ~ N(h¹_n + k' (y_n − h¹_n), s_2 (1 − k')), k' = s_2 / (s_2 + s_3).
"""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from fast import few
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from rules import LEARNT
from scipy import stats

from ppl_dgp.fit import fit_lbfgs, fit_svi
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate, unwrap
from ppl_dgp.guides import (
    Amortised,
    Conditional,
    DoublyStochastic,
    Guide,
    Markov,
    MeanField,
    NestedCompression,
)
from ppl_dgp.kernels import RBF
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

equinox = pytest.importorskip("equinox")

KEY = jax.random.PRNGKey(5)
X = jnp.linspace(-1.0, 1.2, 4)[:, None]
Y = jnp.array([0.3, -0.2, 0.5, 0.9])[:, None]
Z = jnp.array([[-0.8], [0.6]])
NOISES = {1: (0.2,), 2: (0.3, 0.2), 3: (0.3, 0.15, 0.2)}
MOMENTS = PowerEP(0.0, propagation="moments")


def layers(variance, depth=2, width=1, subsample_size=None):
    widths = [width] * (depth - 1) + [1]

    def model(x, y=None, index=None, size=None):
        functions, inputs = [], 1
        for i, outputs in enumerate(widths, start=1):
            inducing = jnp.repeat(Z, inputs, 1)
            mean = Linear(jnp.ones((inputs, outputs)) / inputs)
            functions.append(sparse_gp(f"layer{i}", RBF(variance, 1.0), inducing, outputs, mean=mean))
            inputs = outputs
        with data_plate(size or x.shape[0], index, subsample_size) as rows:
            h, y = (x, y) if subsample_size is None else (x[rows], y[rows])
            for i, f in enumerate(functions[:-1]):
                site = f"layer{i + 1}/h"
                h = offer(site, numpyro.sample(site, f(h).noisy(NOISES[depth][i]), infer={"role": "hidden"}))
            numpyro.sample("y", functions[-1](h).noisy(NOISES[depth][-1]), obs=y)

    return model


def started(guide, u=None, x=X, y=Y):
    run = handlers.substitute(handlers.seed(guide, KEY), u or {})
    return {
        name: site["value"]
        for name, site in handlers.trace(run).get_trace(x, y).items()
        if site["type"] == "param"
    }


def elsewhere(params, size=0.3):
    """Other parameters near these; those of q(u) stay factors."""
    return {
        name: value
        if "/u" in name
        else value + size * jax.random.normal(jax.random.fold_in(KEY, i), value.shape)
        for i, (name, value) in enumerate(sorted(params.items()))
    }


def perceptron(inputs):
    return equinox.nn.MLP(inputs, 3, 4, 1, activation=jnp.tanh, key=KEY)


NETS = {"widths": (4,), "linear": (), "equinox": perceptron(2), "function": perceptron}


def hidden(guide, params, x=X, y=Y, site="layer1/h"):
    """What the guide gives as parameters of the rows at hand, with the u that params has."""
    run = handlers.substitute(handlers.seed(guide, KEY), params)
    return unwrap(handlers.trace(run).get_trace(x, y)[site]["fn"]).params


@pytest.mark.slow
@pytest.mark.parametrize("name", few(LEARNT, 1))
def test_it_starts_as_its_base_starts(name):
    net = NETS["equinox"] if name == "coupled" else NETS["widths"]
    model, rule = layers(0.8, width=2), LEARNT[name]
    u = {"layer1/u": jnp.array([[0.4, -0.7], [0.1, 0.5]]), "layer2/u": jnp.array([[-0.3, 0.2]])}
    base, amortised = (hidden(Guide(model, hidden=each), u) for each in (rule, Amortised(net, rule)))
    assert base.keys() == amortised.keys()
    for parameter, value in base.items():
        np.testing.assert_allclose(amortised[parameter], value, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name, alpha", few([("mean-field", 0.0), ("tied", 0.5)], 1))
def test_its_loss_at_the_start_is_its_bases(name, alpha):
    """The same key, and u as good as known, so that it is the same however it is carried."""
    model, rule = layers(0.8), LEARNT[name]
    u = {"layer1/u": jnp.array([[0.4, -0.7]]), "layer2/u": jnp.array([[-0.3, 0.2]])}
    q = {f"{site}_loc": value for site, value in u.items()}
    q |= {f"{site}_scale": 1e-9 * jnp.eye(2)[None] for site in u}
    losses = []
    for guide in (Guide(model, hidden=rule), Guide(model, hidden=Amortised((4,), rule))):
        params = started(guide, u) | q
        losses.append(jax.jit(lambda q, g=guide: PowerEP(alpha, 3).loss(KEY, q, model, g, X, Y))(params))
    assert float(losses[1]) == pytest.approx(float(losses[0]), abs=1e-6)


@pytest.mark.parametrize("net", NETS)
def test_as_many_parameters_for_any_number_of_rows(net):
    guide = Guide(layers(0.8, 3), hidden=Amortised(NETS[net], MeanField()))
    few, many = started(guide), started(guide, x=jnp.tile(X, (5, 1)), y=jnp.tile(Y, (5, 1)))
    assert {name: value.shape for name, value in few.items()} == {n: v.shape for n, v in many.items()}
    assert all(isinstance(value, jax.Array) for value in few.values())
    own = [name for name in few if name.startswith("layer2/h")]
    assert own and all(name.startswith("layer2/h_net/") for name in own)


def test_each_row_has_its_own_distribution_among_any_others():
    guide = Guide(layers(0.8), hidden=Amortised((4,), Markov()))
    params = elsewhere(started(guide))
    x, y = jnp.concatenate([X, X + 0.3]), jnp.concatenate([Y, 2 * Y])
    params["layer1/u"] = jnp.ones((1, 2))
    both, new = hidden(guide, params, x, y), hidden(guide, params, x[4:], y[4:])
    for name, value in new.items():
        np.testing.assert_allclose(value, both[name][4:], atol=1e-12)
    assert float(jnp.ptp(new["scale"])) > 1e-3


@pytest.mark.slow
def test_minibatches_average_to_the_full_batch():
    model = layers(0.8)
    guide = Guide(model, hidden=Amortised((4,), MeanField()))
    params = elsewhere(started(guide))
    step = jax.jit(jax.value_and_grad(
        lambda q, x, y, index: MOMENTS.loss(KEY, q, model, guide, x, y, index=index, size=4)
    ))  # fmt: skip
    parts = [step(params, X[i], Y[i], i) for i in map(jnp.array, combinations(range(4), 2))]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(parts), *parts)
    whole = jax.jit(jax.value_and_grad(lambda q: MOMENTS.loss(KEY, q, model, guide, X, Y)))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), mean, whole)
    # rows that the plate draws itself
    drawing = layers(0.8, subsample_size=2)
    other = Guide(drawing, hidden=guide.hidden)
    rows = {"data": jnp.array([0, 1])}
    drawn = jax.jit(lambda q: MOMENTS.loss(KEY, q | rows, drawing, other, X, Y))(params)
    assert float(drawn) == pytest.approx(float(parts[0][0]), abs=1e-9)


def test_closed_form_and_draws_agree():
    model = layers(0.8)
    guide = Guide(model, hidden=Amortised((4,), MeanField()))
    params = elsewhere(started(guide))
    values = jax.jit(jax.vmap(lambda key: PowerEP(0.0).loss(key, params, model, guide, X, Y)))(
        jax.random.split(KEY, 4000)
    )
    closed = float(jax.jit(lambda q: MOMENTS.loss(KEY, q, model, guide, X, Y))(params))
    assert abs(float(values.mean()) - closed) < 4 * float(values.std()) / 4000**0.5


def evidence(depth):
    return float(stats.norm.logpdf(Y, X, sum(NOISES[depth]) ** 0.5).sum())


def linear(name, own, weight, variance, start):
    """A layer's location own · start + weight · (x, y), and its variance."""
    head = {f"{name}_net/loc/own": jnp.array([own]), f"{name}_net/loc/weight": jnp.array(weight)[:, None]}
    return head | {f"{name}_net/scale/bias": jnp.array([0.5 * np.log(variance / start)])}


def first(depth):
    noise = NOISES[depth]
    k = noise[0] / sum(noise)
    return linear("layer1/h", 1.0, [-k, k], noise[0] * (1 - k), noise[0])


def prior_u(depth):
    return {f"layer{i}/u_loc": jnp.zeros((1, 2)) for i in range(1, depth + 1)} | {
        f"layer{i}/u_scale": jnp.eye(2)[None] for i in range(1, depth + 1)
    }


@pytest.mark.parametrize(
    "depth, base, objective",
    few(
        [
            (2, MeanField(), PowerEP(0.0)),
            (2, MeanField(), Trace_ELBO()),
            (2, Conditional(free=True), PowerEP(0.5, 2)),
            (3, Markov(), PowerEP(0.5, 2)),
        ],
        0,
        2,
    ),
)
def test_a_linear_network_holds_the_posterior(depth, base, objective):
    """Where q(h) is the posterior the weight is the evidence at every draw."""
    model = layers(1e-12, depth)
    guide = Guide(model, hidden=Amortised((), base))
    params = started(guide) | prior_u(depth) | first(depth)
    if "layer1/h_net/weights/own" in params:
        params["layer1/h_net/weights/own"] = jnp.zeros((1, 2))
    if depth == 3:
        s2, s3 = NOISES[3][1:]
        k = s2 / (s2 + s3)
        params |= linear("layer2/h", 1.0, [0.0, k], s2 * (1 - k), s2)
        # h¹ + k' (y − h¹): the slope starts at that of the linear mean, 1
        params["layer2/h_net/slope/bias"] = jnp.array([[-k]])
    value = -float(jax.jit(lambda q: objective.loss(KEY, q, model, guide, X, Y))(params))
    assert value == pytest.approx(evidence(depth), abs=1e-4)


def test_it_reaches_the_optimum_of_a_mean_field():
    """Two hidden layers: the posterior's means, linear in the datum, and its conditional variances."""
    noise = NOISES[3]
    step = np.eye(2) - np.eye(2, k=-1)
    precision = step.T @ np.diag([1 / noise[0], 1 / noise[1]]) @ step
    precision[1, 1] += 1 / noise[2]
    gap = 0.5 * np.log(np.diag(precision).prod() / np.linalg.det(precision))
    k = sum(noise[:2]) / sum(noise)
    model = layers(1e-12, 3)
    guide = Guide(model, hidden=Amortised((), MeanField()))
    params = started(guide) | prior_u(3)
    params |= linear(
        "layer1/h", 1.0, first(3)["layer1/h_net/loc/weight"][:, 0], 1 / precision[0, 0], noise[0]
    )
    params |= linear("layer2/h", 0.0, [1 - k, k], 1 / precision[1, 1], noise[1])
    value = -float(jax.jit(lambda q: MOMENTS.loss(KEY, q, model, guide, X, Y))(params))
    assert value == pytest.approx(evidence(3) - len(X) * gap, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_a_linear_network_is_trained_to_the_optimum_of_its_base(depth):
    """By L-BFGS, to that of parameters of each row: with one hidden layer the evidence, with two a mean field's."""
    noise, model = NOISES[depth], layers(1e-12, depth)
    fit = fit_lbfgs(
        KEY, model, X, Y, guide=Guide(model, hidden=Amortised((), MeanField())), objective=MOMENTS, steps=200
    )
    step = np.eye(depth - 1) - np.eye(depth - 1, k=-1)
    precision = step.T @ np.diag(1.0 / np.array(noise[:-1])) @ step
    precision[-1, -1] += 1 / noise[-1]
    gap = 0.5 * np.log(np.diag(precision).prod() / np.linalg.det(precision))
    assert fit.losses[0, -1] == pytest.approx(len(X) * gap - evidence(depth), abs=1e-6)
    found = hidden(fit.guide, fit.params | {"layer1/u": jnp.zeros((1, 2))})
    np.testing.assert_allclose(found["loc"], X + noise[0] / sum(noise) * (Y - X), atol=1e-4)
    np.testing.assert_allclose(found["scale"], (precision[0, 0] * noise[0]) ** -0.5, rtol=1e-4)


@pytest.mark.slow
def test_it_is_trained_to_the_posterior_on_minibatches(tmp_path):
    """A module of equinox, from the model's own conditional; resumed from a checkpoint the numbers are the same."""
    model = layers(1e-12)
    guide = Guide(model, hidden=Amortised(NETS["function"], MeanField()))
    rate = optax.cosine_decay_schedule(0.03, 1600)
    settings = {"batch_size": 2, "learning_rate": rate, "chunk": 800}
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, steps=1600, **settings)
    for steps in (800, 1600):
        resume = {"checkpoint": tmp_path, "resume": steps > 800}
        parts = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, steps=steps, **settings, **resume)
    np.testing.assert_array_equal(parts.losses, fit.losses)
    for name, value in fit.params.items():
        np.testing.assert_array_equal(parts.params[name], value)
    bound = -float(jax.jit(lambda q: MOMENTS.loss(KEY, q, model, guide, X, Y))(fit.params | prior_u(2)))
    assert evidence(2) - 0.05 < bound < evidence(2) + 1e-6
    found, k = hidden(guide, fit.params | {"layer1/u": jnp.zeros((1, 2))}), NOISES[2][0] / sum(NOISES[2])
    np.testing.assert_allclose(found["loc"], X + k * (Y - X), atol=0.03)
    np.testing.assert_allclose(found["scale"], (1.0 - k) ** 0.5, rtol=0.1)
    # new rows are the model's own, N(x, Σ s), whatever the network says; of 4000 draws of h
    new = predict(KEY, fit, X + 0.1, num_samples=4000)
    np.testing.assert_allclose(new.mean, X + 0.1, atol=4.5 * (NOISES[2][0] / 4000) ** 0.5)
    np.testing.assert_allclose(new.variance, sum(NOISES[2]), atol=4.5 * NOISES[2][0] * (2.0 / 4000) ** 0.5)


def test_missing_entries_are_zero_and_flagged():
    y = Y.at[1].set(jnp.nan)

    def model(x, y):
        there = ~jnp.isnan(y[:, 0])
        f1, f2 = (sparse_gp(f"layer{i}", RBF(0.8, 1.0), Z, mean=Linear(jnp.eye(1))) for i in (1, 2))
        with data_plate(x.shape[0]):
            h = numpyro.sample("layer1/h", f1(x).noisy(0.3), infer={"role": "hidden"})
            with handlers.mask(mask=there):
                numpyro.sample("y", f2(h).noisy(0.2), obs=jnp.where(there[:, None], y, 0.0))

    guide = Guide(model, hidden=Amortised((), MeanField(), missing="mask"))
    params = started(guide, y=y)
    weight = jnp.array([0.1, 0.7, 0.0, -0.4])[:, None]
    params["layer1/h_net/loc/weight"] = weight
    loc = hidden(guide, params | {"layer1/u": jnp.zeros((1, 2))}, y=y)["loc"]
    expected = X + 0.1 * X + jnp.where(jnp.isnan(y), 0.0, 0.7 * y - 0.4)
    np.testing.assert_allclose(loc, expected, atol=1e-12)
    gradients = jax.jit(jax.grad(lambda q: PowerEP(0.5, 2).loss(KEY, q, model, guide, X, y)))(params)
    assert all(bool(jnp.isfinite(each).all()) for each in gradients.values())


@pytest.mark.slow
def test_every_weight_has_a_gradient():
    model = layers(0.8)
    guide = Guide(model, hidden=Amortised((3,), Conditional()))
    params = elsewhere(started(guide), 0.1)
    gradients = jax.jit(jax.grad(lambda q: PowerEP(0.5, 2).loss(KEY, q, model, guide, X, Y)))(params)
    for name, gradient in gradients.items():
        assert bool(jnp.isfinite(gradient).all()), name
        if name.endswith(("shrinkage/own", "scale/own")):
            continue  # they multiply a start that is 0 in unconstrained coordinates
        assert float(jnp.abs(gradient).max()) > 0.0, name


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_flax_modules(kind):
    flax = pytest.importorskip("flax")
    nnx = pytest.importorskip("flax.nnx")
    linen = pytest.importorskip("flax.linen")
    assert flax
    net = linen.Dense(3) if kind == "linen" else nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    model = layers(0.8)
    guide = Guide(model, hidden=Amortised(net, MeanField()))
    params = elsewhere(started(guide))
    assert {"layer1/h_net/kernel", "layer1/h_net/bias"} <= params.keys()
    features = X @ params["layer1/h_net/kernel"][:1] + Y @ params["layer1/h_net/kernel"][1:]
    features = jnp.concatenate([X, Y, features + params["layer1/h_net/bias"]], 1)
    loc = hidden(guide, params | {"layer1/u": jnp.zeros((1, 2))})["loc"]
    own, weight, bias = (params[f"layer1/h_net/loc/{each}"] for each in ("own", "weight", "bias"))
    np.testing.assert_allclose(loc, own * X + features @ weight + bias, atol=1e-12)


def test_what_cannot_be_amortised_is_refused():
    model = layers(0.8)
    with pytest.raises(ValueError, match=r"found no y beside x.*predict\(\)"):
        handlers.seed(Guide(model, hidden=Amortised((), MeanField())), KEY)(X)
    for base in (DoublyStochastic(), NestedCompression(), Amortised((), MeanField())):
        with pytest.raises(ValueError, match="nothing to amortise"):
            handlers.seed(Guide(model, hidden=Amortised((), base)), KEY)(X, Y)
    with pytest.raises(TypeError, match="base"):
        Amortised((4,), "mean-field")
    with pytest.raises(ValueError, match="missing: found 'zero'"):
        Amortised((4,), MeanField(), missing="zero")
    with pytest.raises(ValueError, match="net: found 0 among its widths"):
        Amortised([4, 0], MeanField())
    for net in (4, lambda inputs: inputs):
        with pytest.raises(TypeError, match="expected widths such as"):
            handlers.seed(Guide(model, hidden=Amortised(net, MeanField())), KEY)(X, Y)
    flat = equinox.nn.MLP(2, "scalar", 4, 1, key=KEY)
    with pytest.raises(ValueError, match=r"net: found outputs of shape \(4,\)"):
        handlers.seed(Guide(model, hidden=Amortised(flat, MeanField())), KEY)(X, Y)
