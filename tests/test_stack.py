"""Stacks of GPs, networks and latents: as the models that they are in special cases, and against known evidences."""

import doctest
import pickle
from importlib import import_module

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from compiled import KEY, initial, loss, noise_like, on_host, refuse
from fast import seldom
from jax.scipy.special import logsumexp
from jax.scipy.stats import multivariate_normal, norm
from numpyro.handlers import seed
from numpyro.infer.util import log_density
from rules import INDUCING, RULES, carried

from ppl_dgp import (
    BayesianLayer,
    DeterministicNetwork,
    GPLayer,
    LatentInputs,
    RandomFeaturesLayer,
    deep_gp,
    default_priors,
    latent_input_gp,
    sparse_gp_regression,
    stack,
)
from ppl_dgp.fit import Fit, fit_svi
from ppl_dgp.guides import Conditional, Diagonal, DoublyStochastic, FullRank, Guide, MeanField, MomentMatched
from ppl_dgp.kernels import Linear as LinearKernel
from ppl_dgp.kernels import Matern32, Periodic
from ppl_dgp.numerics.gaussian import Gaussian, beside
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, PowerEP

X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2.0 * X[:, :1])
ALPHAS = (0.0, 0.5, 1.0)
SLOW = pytest.mark.slow


def mostly_slow(rules, *fast):
    """Names of rules, of which some alone are tried by every run."""
    return [name if name in fast else pytest.param(name, marks=SLOW) for name in sorted(rules)]


def perturbed(params, scale=0.1):
    """Other values of all parameters, positive ones positive."""
    moved = {}
    for number, (name, value) in enumerate(sorted(on_host(params).items())):
        if name.endswith("u_scale") and value.ndim == 3:
            moved[name] = jnp.asarray(value)
        elif (value > 0.0).all():
            moved[name] = jnp.asarray(value * np.exp(scale))
        else:
            moved[name] = jnp.asarray(value + scale * noise_like(value, number))
    return moved


def means(objective, params, model, guide, *args, count=400, key=KEY):
    """Of the loss over so many keys, and the standard error."""
    of_key = lambda key: objective.loss(key, params, model, guide, *args)
    losses = np.asarray(jax.jit(jax.vmap(of_key))(jax.random.split(key, count)))
    return losses.mean(), losses.std() / np.sqrt(count)


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(2,), (1,), pytest.param((3, 1), marks=SLOW)])
def test_layers_of_gps_are_a_deep_gp(widths):
    deep = deep_gp(widths, 3, inner_noise=0.05)
    same = stack([*(GPLayer(width, 3) for width in widths), GPLayer(num_inducing=3)], inner_noise=0.05)
    hidden = (DoublyStochastic(), Conditional(), MeanField()) if widths == (1,) else (DoublyStochastic(),)
    for rule in hidden:
        start = initial(KEY, deep, Guide(deep, rule), X, Y)
        own = initial(KEY, same, Guide(same, rule), X, Y)
        assert {name: value.shape for name, value in own.items()} == {k: v.shape for k, v in start.items()}
        params = perturbed(start)
        for alpha in ALPHAS:
            expected = loss(PowerEP(alpha), params, deep, Guide(deep, rule), X, Y)
            found = loss(PowerEP(alpha), params, same, Guide(same, rule), X, Y)
            np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow
def test_inducing_inputs_are_pushed_through_layers_of_gps():
    rule = INDUCING["global"]
    deep, same = deep_gp((2,), 3), stack([GPLayer(2, 3), GPLayer(num_inducing=3)])
    params = perturbed(initial(KEY, deep, Guide(deep, inducing=rule), X, Y))
    expected = loss(PowerEP(0.5), params, deep, Guide(deep, inducing=rule), X, Y)
    found = loss(PowerEP(0.5), params, same, Guide(same, inducing=rule), X, Y)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow
def test_latents_below_a_gp_are_latent_inputs():
    known, same = latent_input_gp(2, (), 3), stack([LatentInputs(2), GPLayer(num_inducing=3)])
    guides = [Guide(model, latent=MeanField()) for model in (known, same)]
    params = perturbed(initial(KEY, known, guides[0], X, Y))
    moved = {
        f"layer1/{name}" if name[0] == "z" else name.replace("layer1/", "layer2/"): value
        for name, value in params.items()
    }
    assert moved.keys() == initial(KEY, same, guides[1], X, Y).keys()
    for alpha in ALPHAS:
        expected = loss(PowerEP(alpha), params, known, guides[0], X, Y)
        np.testing.assert_allclose(loss(PowerEP(alpha), moved, same, guides[1], X, Y), expected, rtol=1e-10)


@pytest.mark.slow
def test_a_network_below_a_gp_is_a_gp_of_its_outputs():
    model = stack([DeterministicNetwork((4, 2)), GPLayer(num_inducing=3, kernel=Matern32)])
    params = perturbed(initial(KEY, model, Guide(model), X, Y))
    of = {name.removeprefix("layer1/"): value for name, value in on_host(params).items()}
    hidden = np.tanh(np.asarray(X) @ of["network1/weights"] + of["network1/bias"])
    inputs = jnp.asarray(hidden @ of["network2/weights"] + of["network2/bias"])
    shallow = sparse_gp_regression(3, kernel=Matern32)
    known = {name.replace("layer2/", "gp/"): value for name, value in params.items() if "network" not in name}
    for objective in (*map(PowerEP, ALPHAS), BlackBoxAlpha(0.5), Collapsed()):
        expected = loss(objective, known, shallow, Guide(shallow), inputs, Y)
        np.testing.assert_allclose(loss(objective, params, model, Guide(model), X, Y), expected, rtol=1e-10)
    slope = jax.jit(jax.grad(lambda values: PowerEP(0.5).loss(KEY, values, model, Guide(model), X, Y)))(
        params
    )
    assert all(np.isfinite(value).all() for value in slope.values())
    assert float(jnp.abs(slope["layer1/network1/weights"]).min()) > 0.0


def test_one_layer_is_bayesian_linear_regression():
    """Models of one layer, their bound at the posterior of the weights; the evidence is of the dense kernel."""
    for block in (BayesianLayer(activation="relu", weight_scale=0.8), RandomFeaturesLayer(num_frequencies=4)):
        model = stack([block], noise=0.2)
        guide = Guide(model)
        params = perturbed(initial(KEY, model, guide, X, Y))
        if isinstance(block, RandomFeaturesLayer):
            phase = (X / params["layer1/lengthscale"]) @ params["layer1/frequencies"].T
            waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], 1) * jnp.sqrt(
                params["layer1/variance"] / 4
            )
        else:
            scaled = params["layer1/weight_scale"] / np.sqrt(2.0) * jnp.maximum(X, 0.0)
            waves = jnp.column_stack([scaled, jnp.full(6, params["layer1/bias_scale"])])
        covariance = waves @ waves.T + 0.2 * jnp.eye(6)
        evidence = float(multivariate_normal.logpdf(Y[:, 0], jnp.zeros(6), covariance))
        best = Collapsed().finish(params, model, guide, X, Y)
        for alpha in ALPHAS:
            np.testing.assert_allclose(-loss(PowerEP(alpha), best, model, guide, X, Y), evidence, rtol=1e-8)


def test_the_density_of_a_network_is_that_of_its_weights():
    """What NUTS samples: two layers of weights, hidden values and y, written out."""
    layers = BayesianLayer(2, weight_scale=1.3), BayesianLayer(activation="tanh", bias_scale=0.0)
    model = stack(layers, noise=0.3)
    random = np.random.default_rng(0)
    first, last = random.normal(size=(2, 3)), random.normal(size=(1, 3))
    h = random.normal(size=(6, 2))
    at = {"layer1/u": jnp.asarray(first), "layer2/u": jnp.asarray(last), "layer1/h": jnp.asarray(h)}
    given = {
        "layer1/noise": 0.04,
        "layer1/weight_scale": 1.3,
        "layer1/bias_scale": 0.5,
        "layer2/weight_scale": 0.9,
    }
    values = (
        at | {name: jnp.asarray(value) for name, value in given.items()} | {"layer1/start": jnp.zeros((2, 3))}
    )
    with seed(rng_seed=0):
        found = log_density(model, (X, Y), {}, values)[0]
    x, y = np.asarray(X), np.asarray(Y)
    centre = np.column_stack([1.3 / np.sqrt(2.0) * x, np.full(6, 0.5)]) @ first.T
    mean = 0.9 / np.sqrt(2.0) * np.tanh(h) @ last[:, :2].T
    expected = norm.logpdf(first).sum() + norm.logpdf(last).sum()
    expected += norm.logpdf(h, centre, 0.2).sum() + norm.logpdf(y, mean, np.sqrt(0.3)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow
def test_weights_integrated_out_and_drawn_have_one_expectation():
    """At α = 0 of a network with a hidden layer: local reparameterisation, weights of each row, and of all rows."""
    model = stack([BayesianLayer(2), BayesianLayer()])
    guide = Guide(model, inducing=Diagonal())
    params = perturbed(initial(KEY, model, guide, X, Y), 0.3)
    local, error = means(PowerEP(0.0), params, model, guide, X, Y, count=4000)
    spreads = [error]
    for representation in ("per_datum_sample", "shared_sample"):
        other, spread = means(PowerEP(0.0), params, model, carried(guide, representation), X, Y, count=4000)
        assert abs(other - local) < 4.0 * np.hypot(error, spread)
        spreads.append(spread)
    assert spreads[0] < spreads[1]  # what it is for


LIMIT = stack(
    [
        GPLayer(1, 3, kernel=lambda dims: LinearKernel(1e-12)),
        BayesianLayer(activation="identity", weight_scale=1.2, train_scales=False),
    ],
    noise=0.1,
    inner_noise=0.3,
)
LINE, OBSERVED = X[:, :1], 0.7 * X[:, :1] + jnp.array([[0.3], [-0.2], [0.1], [0.4], [-0.3], [0.1]])


def evidence_of_the_limit(inner):
    """h = x + ε, y = w h + b + e: Gaussian given (w, b), over which it is summed on a grid."""
    w, b = jnp.meshgrid(jnp.linspace(-9.0, 9.0, 1801), jnp.linspace(-7.0, 7.0, 701), indexing="ij")
    prior = norm.logpdf(w, 0.0, 1.2) + norm.logpdf(b)
    spread = jnp.sqrt(w**2 * inner + 0.1)
    rows = sum(norm.logpdf(y, w * x + b, spread) for x, y in zip(LINE[:, 0], OBSERVED[:, 0], strict=True))
    return float(logsumexp(prior + rows)) + np.log(0.01 * 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("rule", mostly_slow(RULES, "doubly-stochastic", "coupled", "mean-field"))
def test_bounds_lie_below_the_evidence_and_grow_with_alpha(rule):
    """Noise in the input of a line: nothing of f is left given u, so that power EP bounds this evidence at every α."""
    model, guide = LIMIT, Guide(LIMIT, hidden=RULES[rule])
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), LINE, OBSERVED, steps=150, learning_rate=0.05)
    evidence = evidence_of_the_limit(float(fit.params["layer1/noise"]))
    bounds, errors = [], []
    for alpha in ALPHAS:
        bound, error = means(PowerEP(alpha, 8), fit.params, model, guide, LINE, OBSERVED, count=1000)
        bounds.append(-bound)
        errors.append(error)
    assert np.isfinite(bounds).all() and bounds[-1] < evidence + 4.0 * errors[-1]
    for k in (0, 1):
        assert bounds[k] < bounds[k + 1] + 4.0 * np.hypot(errors[k], errors[k + 1])
    assert bounds[0] > evidence - 4.0  # not by being far below


MIXED = stack(
    [LatentInputs(1), BayesianLayer(2), GPLayer(1, 3, mean="zero"), RandomFeaturesLayer(num_frequencies=2)]
)


@pytest.mark.parametrize("alpha", seldom([pytest.param(0.0, marks=SLOW), 0.5, 1.0], 2))
@pytest.mark.parametrize("rule", mostly_slow(RULES, "doubly-stochastic", "coupled"))
def test_every_hidden_rule_and_alpha(rule, alpha):
    guide = Guide(MIXED, hidden=RULES[rule], latent=MeanField())
    params = initial(KEY, MIXED, guide, X, Y)
    losses = lambda values: PowerEP(alpha, 2).loss(KEY, values, MIXED, guide, X, Y)
    found, slopes = jax.jit(jax.value_and_grad(losses))(params)
    assert np.isfinite(found)
    assert all(np.isfinite(value).all() for value in slopes.values())


@pytest.mark.parametrize(
    "rule",
    mostly_slow(INDUCING.keys() - {"decoupled-weights"}, "low-rank", "global"),
)
def test_every_inducing_rule(rule):
    model = stack([BayesianLayer(2), RandomFeaturesLayer(2, 2), GPLayer(1, 3), BayesianLayer()])
    guide = Guide(model, inducing=INDUCING[rule])
    params = initial(KEY, model, guide, X, Y)
    assert np.isfinite(loss(PowerEP(0.5, 2), params, model, guide, X, Y))


def test_weights_of_a_residual_are_of_points():
    model = stack([BayesianLayer()])
    with pytest.raises(
        ValueError, match="orthogonal: found 'weights' for the site 'layer1/u', of which Kuu is not"
    ):
        initial(KEY, model, Guide(model, inducing=INDUCING["decoupled-weights"]), X, Y)


@pytest.mark.slow
def test_minibatches_are_unbiased():
    """Exactly where nothing is drawn, and within two standard errors' width where hidden layers are."""
    parts = jnp.array([[0, 3], [1, 4], [2, 5]])
    model = stack([DeterministicNetwork((3, 2)), BayesianLayer()])
    params = perturbed(initial(KEY, model, Guide(model), X, Y))
    for alpha in ALPHAS:
        full = loss(PowerEP(alpha), params, model, Guide(model), X, Y)
        found = [loss(PowerEP(alpha), params, model, Guide(model), X[at], Y[at], at, 6) for at in parts]
        np.testing.assert_allclose(np.mean(found), full, rtol=1e-9)
    model = stack([LatentInputs(1), BayesianLayer(2), GPLayer(num_inducing=3)])
    guide = Guide(model, Conditional(), latent=MeanField())
    params = perturbed(initial(KEY, model, guide, X, Y))
    full, error = means(PowerEP(0.5, 2), params, model, guide, X, Y, count=2000)
    found = [
        means(PowerEP(0.5, 2), params, model, guide, X[at], Y[at], at, 6, count=2000, key=jax.random.key(k))
        for k, at in enumerate(parts)
    ]
    spread = np.sqrt(sum(each[1] ** 2 for each in found)) / 3.0
    assert abs(np.mean([each[0] for each in found]) - full) < 4.0 * np.hypot(error, spread)


@pytest.mark.slow
def test_where_layers_begin():
    model = stack(
        [
            BayesianLayer(3),
            GPLayer(2, 3, mean="zero"),
            RandomFeaturesLayer(2, 20, mean="zero"),
            BayesianLayer(),
        ]
    )
    params = initial(KEY, model, Guide(model), X, Y)
    np.testing.assert_array_equal(params["layer1/u_loc"], params["layer1/start"])
    assert float(jnp.abs(params["layer1/start"]).min()) > 0.0
    # of layers without a mean, the linear map is what u regresses on
    first = jnp.column_stack([X / np.sqrt(2.0), jnp.ones(6)]) @ params["layer1/start"].T
    mapped = first @ params["layer2/linear_map"]
    phase = (mapped / params["layer3/lengthscale"]) @ params["layer3/frequencies"].T
    waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], 1) / np.sqrt(20.0)
    np.testing.assert_allclose(waves @ params["layer3/u_loc"].T, mapped, atol=0.2)


def test_the_last_layer_begins_at_the_regression_of_y():
    model = stack([BayesianLayer(3), BayesianLayer(activation="tanh")])
    params = initial(KEY, model, Guide(model), X, Y)
    first = jnp.column_stack([X / np.sqrt(2.0), jnp.ones(6)]) @ params["layer1/start"].T
    waves = np.asarray(jnp.column_stack([jnp.tanh(first) / np.sqrt(3.0), jnp.ones(6)]))
    ridge = np.linalg.solve(waves.T @ waves + 0.1 * np.eye(4), waves.T @ np.asarray(Y))
    np.testing.assert_allclose(params["layer2/u_loc"], ridge.T, rtol=1e-8)
    # of counts y is no function
    counted = stack([BayesianLayer()], likelihood="poisson")
    params = initial(KEY, counted, Guide(counted), X, jnp.round(1.0 + Y))
    np.testing.assert_array_equal(params["layer1/u_loc"], 0.0)


@pytest.mark.slow
def test_small_networks_learn():
    """A sine with noise of 0.1: where it begins badly, a network ends as a constant function with noise of 0.7."""
    x = jnp.linspace(-1.5, 1.5, 40)[:, None]
    y = jnp.sin(3.0 * x) + 0.1 * jax.random.normal(KEY, x.shape)
    model = stack([BayesianLayer(5), BayesianLayer(activation="tanh")])
    for rule in (FullRank(), Diagonal()):
        fit = fit_svi(
            KEY, model, Guide(model, inducing=rule), PowerEP(0.0), x, y, steps=1000, learning_rate=0.02
        )
        found = fit.predict(KEY, x, num_samples=50).mean
        assert float(jnp.sqrt(jnp.square(found - jnp.sin(3.0 * x)).mean())) < 0.15


def test_a_stack_is_a_value():
    model = stack(
        [DeterministicNetwork([4, 2]), GPLayer(2, 3, kernel="rbf + linear"), BayesianLayer()], noise=0.1
    )
    assert repr(model) == (
        "stack(blocks=(DeterministicNetwork(widths=(4, 2), activation='tanh'), GPLayer(width=2, num_inducing=3, "
        "kernel=RBF + Linear), BayesianLayer(width=None, activation=None)), noise=0.1)"
    )
    assert pickle.loads(pickle.dumps(model)) == model and hash(pickle.loads(pickle.dumps(model))) == hash(
        model
    )
    assert model != stack([*model.blocks[:2], BayesianLayer(activation="tanh")], noise=0.1)
    assert BayesianLayer(2) == BayesianLayer(2) != BayesianLayer(3)


@pytest.mark.slow
def test_a_fit_of_a_stack_is_saved_and_predicts(tmp_path):
    model = stack([LatentInputs(1), BayesianLayer(4), GPLayer(1, 3), BayesianLayer(activation="tanh")])
    guide = Guide(model, inducing=Diagonal(), latent=MeanField())
    fit = fit_svi(KEY, model, guide, PowerEP(0.5), X, Y, steps=3, batch_size=3)
    fit.save(tmp_path / "stack.fit")
    again = Fit.load(tmp_path / "stack.fit")
    assert again.model == model
    new = fit.predict(KEY, X[:4], Y[:4])
    assert new.mean.shape == (4, 1) and np.isfinite(new.log_density).all()
    np.testing.assert_array_equal(again.predict(KEY, X[:4], Y[:4]).mean, new.mean)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["heteroscedastic", pytest.param("student-t", marks=SLOW)])
def test_networks_under_other_likelihoods(likelihood):
    """As many functions as the likelihood has; at its start a network's last layer is that of the prior."""
    model = stack([BayesianLayer(2), BayesianLayer(activation="tanh")], num_outputs=2, likelihood=likelihood)
    y = jnp.concatenate([Y, -Y], 1)
    params = initial(KEY, model, Guide(model), X, y)
    assert params["layer2/u_loc"].shape == (4 if likelihood == "heteroscedastic" else 2, 3)
    assert not params["layer2/u_loc"].any()
    for objective in (PowerEP(0.0), PowerEP(0.5, 2)):
        assert np.isfinite(loss(objective, params, model, Guide(model), X, y))


def test_scales_of_weights_have_priors():
    priors = default_priors(stack([BayesianLayer(2), BayesianLayer()]), X, Y)
    scales = {f"layer{n}/{kind}_scale" for n in (1, 2) for kind in ("weight", "bias")}
    assert priors.keys() == scales | {"likelihood/noise", "layer1/noise"}
    expected = 0.5 * np.log(2.0 / np.pi) - 0.5 * 0.7**2
    np.testing.assert_allclose(priors["layer1/weight_scale"].log_prob(0.7), expected, rtol=1e-6)


def test_moments_side_by_side():
    random = np.random.default_rng(0)
    root = jnp.asarray(np.tril(random.normal(size=(3, 2, 2))))
    first, second = Gaussian(jnp.ones((3, 2)), root), Gaussian(jnp.zeros((3, 1)), jnp.full((3, 1), 0.5))
    both = beside(first, second)
    np.testing.assert_allclose(both.covariance()[:, :2, :2], first.covariance(), rtol=1e-12)
    np.testing.assert_allclose(both.covariance()[:, 2, :], [[0.0, 0.0, 0.25]] * 3, atol=1e-15)
    known = beside(second, X[:3])
    np.testing.assert_array_equal(known.variance, [[0.25, 0.0, 0.0]] * 3)


@pytest.mark.slow
def test_moments_of_layers_that_have_none_are_refused():
    for blocks, message in (
        ([GPLayer(1, 3), BayesianLayer()], "inducing: found FunctionWeights, expected points or functionals"),
        ([GPLayer(1, 3), DeterministicNetwork((2,)), GPLayer(num_inducing=3)], "propagation: found moments"),
    ):
        model = stack(blocks)
        params = initial(KEY, model, Guide(model), X, Y)
        with pytest.raises(ValueError, match=message):
            refuse(PowerEP(0.0), params, model, Guide(model, MomentMatched()), X, Y)
    model = stack([GPLayer(1, 3), BayesianLayer()])
    params = initial(KEY, model, Guide(model), X, Y)
    assert np.isfinite(loss(PowerEP(0.0, propagation="linearised"), params, model, Guide(model), X, Y))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: stack([]), ValueError, "blocks: found \\[\\], expected a sequence of blocks"),
        (lambda: stack(GPLayer()), ValueError, "blocks: found GPLayer.*write a list"),
        (lambda: stack([GPLayer]), TypeError, "blocks: found the class GPLayer as block 1.*call it first"),
        (lambda: stack([2, GPLayer()]), TypeError, "blocks: found 2 as block 1"),
        (lambda: stack([GPLayer(2), LatentInputs(1)]), ValueError, "found LatentInputs.* as the last.*add GPLayer"),
        (lambda: stack([GPLayer(2)]), ValueError, "width: found 2 in the last block, expected none"),
        (lambda: stack([GPLayer(mean="linear")]), ValueError, "mean: found 'linear' in the last block"),
        (lambda: stack([GPLayer(), GPLayer()]), ValueError, "width: found none in block 1"),
        (lambda: stack([GPLayer()], inner_noise=0.0), ValueError, "inner_noise: found 0.0"),
        (lambda: GPLayer(0), ValueError, "width: found 0, expected a whole number"),
        (lambda: GPLayer(2, mean="identity"), ValueError, "mean: found 'identity', expected one of linear, zero"),
        (lambda: GPLayer(2, kernel="cosine"), ValueError, "kernel: found 'cosine'"),
        (lambda: GPLayer(2, 5, inducing=np.ones((3, 2))), ValueError, "found 3 inputs beside num_inducing=5"),
        (lambda: RandomFeaturesLayer(2, 0), ValueError, "num_frequencies: found 0"),
        (lambda: RandomFeaturesLayer(2, kernel=Periodic), TypeError, "kernel: found Periodic, expected RBF"),
        (lambda: RandomFeaturesLayer(2, train_frequencies=1), ValueError, "train_frequencies: found 1"),
        (lambda: BayesianLayer(2, "step"), ValueError, "activation: found 'step', expected one of identity"),
        (lambda: BayesianLayer(2, 3.0), TypeError, "activation: found 3.0"),
        (lambda: BayesianLayer(2, weight_scale=0.0), ValueError, "weight_scale: found 0.0, expected a positive"),
        (lambda: BayesianLayer(2, bias_scale=-1.0), ValueError, "bias_scale: found -1.0"),
        (lambda: BayesianLayer(2, train_scales="no"), ValueError, "train_scales: found 'no'"),
        (lambda: DeterministicNetwork(()), ValueError, "widths: found none"),
        (lambda: DeterministicNetwork((2.5,)), ValueError, "widths: found 2.5"),
        (lambda: LatentInputs(0), ValueError, "width: found 0"),
    ],
)  # fmt: skip
def test_settings_of_the_wrong_kind_are_refused_when_a_model_is_made(make, error, message, monkeypatch):
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        make()


def test_the_examples_run():
    for module in ("models.stack", "gp.bayesian_layer", "gp.random_features"):
        found = doctest.testmod(import_module(f"ppl_dgp.{module}"))
        assert found.failed == 0 and found.attempted > 1
