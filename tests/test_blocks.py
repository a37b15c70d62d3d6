"""What blocks of a stack may be: features and means of any kind, modules, missing targets, decoders of latents."""

from itertools import product

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import KEY, initial, loss, on_host
from jax.scipy.special import logsumexp
from jax.scipy.stats import multivariate_normal, norm
from numpyro.handlers import seed
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density
from optax import cosine_decay_schedule
from scipy.optimize import minimize

from ppl_dgp import (
    BayesianLayer,
    DeterministicNetwork,
    Fourier,
    GPLayer,
    LatentInputs,
    NetworkBlock,
    Points,
    RandomFeaturesLayer,
    stack,
    stack_classification,
)
from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.means import Constant, Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Amortised, Diagonal, Guide, MeanField
from ppl_dgp.kernels import Matern32
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

equinox = pytest.importorskip("equinox")

X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2.0 * X[:, :1])
Z = X[::2] + 0.1
GAP = jnp.nan


def mean_loss(objective, params, model, guide, *args, count=400):
    """And its standard error."""
    of_key = lambda key: objective.loss(key, params, model, guide, *args)
    losses = np.asarray(jax.jit(jax.vmap(of_key))(jax.random.split(KEY, count)))
    return losses.mean(), losses.std() / np.sqrt(count)


@pytest.mark.slow
def test_features_that_are_points_are_inducing_inputs():
    ends = Z[:, :1]
    usual = stack([GPLayer(1, inducing=Z, train_inducing=False), GPLayer(inducing=ends)])
    learnt = lambda: Points(numpyro.param("layer2/inducing", ends))
    same = stack([GPLayer(1, inducing=Points(Z)), GPLayer(inducing=learnt)])
    params = initial(KEY, usual, Guide(usual), X, Y)
    own = initial(KEY, same, Guide(same), X, Y)
    assert own.keys() == params.keys() - {"layer1/inducing"}
    params["layer2/u_loc"] = jnp.array([[0.3, -0.4, 0.2]])
    for objective in (PowerEP(0.0), PowerEP(0.5, 2)):
        expected = loss(objective, params, usual, Guide(usual), X, Y)
        given = {name: params[name] for name in own}
        np.testing.assert_allclose(loss(objective, given, same, Guide(same), X, Y), expected, rtol=1e-8)


def test_fourier_features_of_a_first_layer():
    """Beside the program of a model of one's own."""
    features, line = Fourier(-3.0, 3.0, 4), X[:, :1]
    model = stack([GPLayer(kernel=Matern32, inducing=features)], noise=0.1)
    assert model.blocks[0].num_inducing == 9 and "Fourier(low=-3.0" in repr(model)

    def own(x, y=None):
        f = sparse_gp("layer1", Matern32(1.0, 1.0), features)
        with data_plate(len(x)):
            return numpyro.sample("y", f(x).noisy(0.1), obs=y)

    params = initial(KEY, model, Guide(model), line, Y)
    params |= {"layer1/lengthscale": jnp.ones(1), "layer1/variance": jnp.ones(())}
    params["layer1/u_loc"] = jnp.linspace(-1.0, 1.0, 9)[None]
    given = {name: params[name] for name in ("layer1/u_loc", "layer1/u_scale")}
    for alpha in (0.0, 0.5):
        expected = loss(PowerEP(alpha), given, own, Guide(own), line, Y)
        np.testing.assert_allclose(
            loss(PowerEP(alpha), params, model, Guide(model), line, Y), expected, rtol=1e-8
        )


@pytest.mark.slow
def test_means_of_any_kind():
    """A constant of the last layer is taken off y; the identity is what a hidden layer's linear map is."""
    plain = stack([GPLayer(2, inducing=Z), GPLayer(inducing=Z)], noise=0.1)
    identity = lambda: Linear(numpyro.param("slopes", jnp.eye(2)))
    moved = stack([GPLayer(2, inducing=Z, mean=identity), GPLayer(inducing=Z, mean=Constant(0.7))], noise=0.1)
    params = initial(KEY, plain, Guide(plain), X, Y)
    own = initial(KEY, moved, Guide(moved), X, Y + 0.7)
    assert own.keys() == params.keys() | {"slopes"}
    for name, value in params.items():
        np.testing.assert_allclose(own[name], value, err_msg=name)
    expected = loss(PowerEP(0.5, 2), params, plain, Guide(plain), X, Y)
    np.testing.assert_allclose(
        loss(PowerEP(0.5, 2), own, moved, Guide(moved), X, Y + 0.7), expected, rtol=1e-9
    )
    waves = stack([RandomFeaturesLayer(num_frequencies=3, mean=Constant(0.7))])
    params = initial(KEY, waves, Guide(waves), X, Y)
    rest = loss(PowerEP(0.0), params, waves, Guide(waves), X, Y + 0.7)
    unmoved = stack([RandomFeaturesLayer(num_frequencies=3)])
    np.testing.assert_allclose(rest, loss(PowerEP(0.0), params, unmoved, Guide(unmoved), X, Y), rtol=1e-9)


def perceptron(inputs=2, outputs=2):
    return equinox.nn.MLP(inputs, outputs, 4, 1, activation=jnp.tanh, key=KEY)


def test_a_module_is_the_network_that_it_is():
    known = stack([DeterministicNetwork((4, 2)), GPLayer(inducing=Z)])
    model = stack([NetworkBlock(perceptron()), GPLayer(inducing=Z)])
    assert repr(model).startswith("stack(blocks=(NetworkBlock(module=MLP, prior=None), GPLayer(")
    assert model == stack([NetworkBlock(perceptron()), GPLayer(inducing=Z)])
    params = initial(KEY, model, Guide(model), X, Y)
    paths = {f"layer1/network/layers/{layer}/{kind}" for layer in (0, 1) for kind in ("weight", "bias")}
    assert paths < params.keys()
    np.testing.assert_array_equal(params["layer1/network/layers/0/weight"], perceptron().layers[0].weight)
    given = {name: value for name, value in params.items() if name not in paths}
    for layer in (0, 1):
        given[f"layer1/network{layer + 1}/weights"] = params[f"layer1/network/layers/{layer}/weight"].T
        given[f"layer1/network{layer + 1}/bias"] = params[f"layer1/network/layers/{layer}/bias"]
    for objective in (PowerEP(0.0), BlackBoxAlpha(0.5)):
        expected = loss(objective, given, known, Guide(known), X, Y)
        np.testing.assert_allclose(loss(objective, params, model, Guide(model), X, Y), expected, rtol=1e-10)


LINE = X[:, :1]
OBSERVED = 0.7 * LINE + jnp.array([[0.3], [-0.2], [0.1], [0.4], [-0.3], [0.1]])


def slope_twice():
    """y = v w x + e, of which w is a module's weight."""
    line = equinox.nn.Linear(1, 1, use_bias=False, key=KEY)
    last = BayesianLayer(activation="identity", bias_scale=0.0, train_scales=False)
    return stack([NetworkBlock(line, lambda path, shape: dist.Normal(0.0, 1.5)), last], noise=0.1)


def test_the_density_of_a_module_with_priors():
    at = {"layer1/network/weight": jnp.array([[0.8]]), "layer2/u": jnp.array([[-0.4, 0.0]])}
    with seed(rng_seed=0):
        found = log_density(slope_twice(), (LINE, OBSERVED), {}, at)[0]
    expected = norm.logpdf(0.8, 0.0, 1.5) + norm.logpdf(-0.4) + norm.logpdf(0.0)
    expected += norm.logpdf(OBSERVED, -0.32 * LINE, np.sqrt(0.1)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.slow
def test_the_bound_of_a_module_with_priors():
    """That of independent Gaussians of w and v is a formula, whose optimum lies below the evidence."""
    model = slope_twice()
    with pytest.raises(ValueError, match="site 'layer1/network/weight' without a role.*AutoNormal"):
        initial(KEY, model, Guide(model), LINE, OBSERVED)
    guide = Guide(model, others=AutoNormal)
    falling = cosine_decay_schedule(0.05, 1500)
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), LINE, OBSERVED, steps=1500, learning_rate=falling)
    x, y = np.asarray(LINE), np.asarray(OBSERVED)

    def negative_bound(at):
        (a, b), (s, t) = at[:2], np.exp(at[2:])
        squares = y**2 - 2.0 * y * x * a * b + x**2 * (a**2 + s**2) * (b**2 + t**2)
        kl_w = np.log(1.5 / s) + (s**2 + a**2) / 4.5 - 0.5
        kl_v = np.log(1.0 / t) + (t**2 + b**2) / 2.0 - 0.5
        return 5.0 * squares.sum() + 3.0 * np.log(0.2 * np.pi) + kl_w + kl_v

    best = -minimize(negative_bound, np.array([1.0, 0.7, -1.0, -1.0])).fun
    bound, error = mean_loss(PowerEP(0.0), fit.params, model, guide, LINE, OBSERVED, count=2000)
    assert best - 0.1 - 4.0 * error < -bound < best + 4.0 * error
    grid = jnp.linspace(-12.0, 12.0, 4001)
    covariance = lambda w: w**2 * LINE @ LINE.T + 0.1 * jnp.eye(6)
    of_w = jax.vmap(lambda w: multivariate_normal.logpdf(OBSERVED[:, 0], jnp.zeros(6), covariance(w)))(grid)
    assert best < float(logsumexp(of_w + norm.logpdf(grid, 0.0, 1.5))) + np.log(0.006)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_flax_modules(kind):
    pytest.importorskip("flax", reason="flax is not installed")
    from flax import linen, nnx

    module = linen.Dense(2) if kind == "linen" else nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model = stack([NetworkBlock(module), GPLayer(inducing=Z)])
    params = initial(KEY, model, Guide(model), X, Y)
    known = stack([DeterministicNetwork((2,)), GPLayer(inducing=Z)])
    given = {name: value for name, value in params.items() if "network" not in name}
    given |= {
        "layer1/network1/weights": params["layer1/network/kernel"],
        "layer1/network1/bias": params["layer1/network/bias"],
    }
    expected = loss(PowerEP(0.5), given, known, Guide(known), X, Y)
    np.testing.assert_allclose(loss(PowerEP(0.5), params, model, Guide(model), X, Y), expected, rtol=1e-10)


def test_entries_of_y_may_be_missing():
    """At α = 0 entries add up: what two complementary halves say is what all say, and the KL once more."""
    model = stack([DeterministicNetwork((2,)), BayesianLayer(activation="tanh")], num_outputs=2, missing=True)
    y = jnp.concatenate([Y, 0.5 - Y**2], 1)
    here = np.arange(12).reshape(6, 2) % 3 == 0
    params = initial(KEY, model, Guide(model), X, jnp.where(here, y, GAP))
    assert all(np.isfinite(value).all() for value in params.values()) and params["layer2/u_loc"].any()
    of = lambda seen: loss(PowerEP(0.0), params, model, Guide(model), X, jnp.where(seen, y, GAP))
    np.testing.assert_allclose(of(here) + of(~here), of(here | ~here) + of(here & ~here), rtol=1e-10)
    refusing = stack(model.blocks, num_outputs=2)
    with pytest.raises(ValueError, match="NaN|missing|finite"):
        fit_svi(KEY, refusing, Guide(refusing), PowerEP(0.0), X, jnp.where(here, y, GAP), steps=1)


TABLE = jnp.array([[0.9, -0.6], [-1.1, 0.8], [0.2, 0.1]])
NOTHING = jnp.zeros((3, 0))


@pytest.mark.slow
def test_a_linear_decoder_is_bayesian_principal_components():
    """y = z wᵀ + e, w and z unknown: the bound lies below the evidence, an integral over z with w integrated out."""
    decoder = BayesianLayer(activation="identity", bias_scale=0.0, train_scales=False)
    model = stack([LatentInputs(1), decoder], num_outputs=2, noise=0.2)
    guide = Guide(model, latent=MeanField())
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), None, TABLE, steps=500, learning_rate=0.05)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = jnp.asarray(list(product(nodes, repeat=3)))
    mass = jnp.asarray([np.prod(each) for each in product(weights / np.sqrt(2.0 * np.pi), repeat=3)])
    covariance = z[:, :, None] * z[:, None, :] + 0.2 * jnp.eye(3)
    given_z = multivariate_normal.logpdf(TABLE.T[:, None], jnp.zeros(3), covariance).sum(0)
    evidence = float(logsumexp(given_z, b=mass))
    bounds = []
    for alpha in (0.0, 0.5, 1.0):
        bound, error = mean_loss(PowerEP(alpha, 8), fit.params, model, guide, NOTHING, TABLE, count=1000)
        assert -bound < evidence + 4.0 * error
        bounds.append(-bound)
    assert evidence - 2.5 < bounds[0] < bounds[1] < bounds[2]


@pytest.mark.slow
def test_a_linear_decoder_finds_the_principal_subspace():
    """With many rows its covariance is that of probabilistic principal components at their optimum."""
    random = np.random.default_rng(0)
    y = random.normal(size=(400, 2)) @ random.normal(size=(2, 5)) + 0.3 * random.normal(size=(400, 5))
    y = jnp.asarray(y - y.mean(0))
    decoder = BayesianLayer(activation="identity", bias_scale=0.0)
    model = stack([LatentInputs(2), decoder], num_outputs=5)
    guide = Guide(model, latent=MeanField())
    # turns of the latents are told apart by the rows' q alone, so that a rate that does not fall never gets there
    rate = cosine_decay_schedule(0.1, 4000)
    objective = PowerEP(0.0, num_particles=4)
    fit = fit_svi(KEY, model, guide, objective, None, y, steps=4000, learning_rate=rate)
    of = on_host(fit.params)
    weights = of["layer2/weight_scale"] / np.sqrt(2.0) * of["layer2/u_loc"][:, :2]
    found = weights @ weights.T + of["likelihood/noise"] * np.eye(5)
    values, vectors = np.linalg.eigh(np.asarray(y.T @ y) / 400.0)
    rest = values[:3].mean()
    expected = (vectors[:, 3:] * (values[3:] - rest)) @ vectors[:, 3:].T + rest * np.eye(5)
    # the weights' prior draws them in by a hundredth or two, the largest variance by twice that
    assert np.linalg.norm(found - expected, 2) < 0.05 * np.linalg.norm(expected, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "latent",
    [MeanField(), pytest.param(Amortised((4,), MeanField(), missing="mask"), marks=pytest.mark.slow)],
    ids=["mean-field", "amortised"],
)
def test_a_decoder_of_uncertain_weights_on_minibatches(latent):
    """Latents alone below a network, holes in y, half of the rows at a step."""
    y = jnp.concatenate([Y, -Y, Y**2], 1).at[2, 1].set(GAP)
    model = stack([LatentInputs(2), BayesianLayer(3), BayesianLayer()], num_outputs=3, missing=True)
    guide = Guide(model, inducing=Diagonal(), latent=latent)
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), None, y, steps=300, learning_rate=0.02, batch_size=3)
    early, late = fit.losses[0, :50].mean(), fit.losses[0, -50:].mean()
    assert late < early
    assert fit.predict(KEY, jnp.zeros((4, 0)), num_samples=5).mean.shape == (4, 3)


def test_latents_of_a_decoder_begin_at_principal_components():
    model = stack([LatentInputs(1), BayesianLayer()], num_outputs=2)
    params = initial(KEY, model, Guide(model, latent=MeanField()), NOTHING, TABLE)
    first = np.linalg.svd(np.asarray((TABLE - TABLE.mean(0)) / TABLE.std(0)))[0][:, 0]
    found = params["layer1/z_loc"][:, 0]
    assert abs(np.corrcoef(found, first)[0, 1]) > 0.999 and np.std(found) > 0.5


def test_functions_of_labels_begin_at_the_regression_of_signs():
    labels = jnp.array([0, 2, 1, 2, 0, 1])[:, None]
    model = stack_classification([BayesianLayer(activation="tanh")], 3)
    params = initial(KEY, model, Guide(model), X, labels)
    waves = np.column_stack([np.tanh(X) / np.sqrt(2.0), np.ones(6)])
    signs = np.where(labels == np.arange(3), 1.0, -1.0)
    expected = np.linalg.solve(waves.T @ waves + 0.1 * np.eye(3), waves.T @ signs).T
    np.testing.assert_allclose(params["layer1/u_loc"], expected, rtol=1e-8)
    two = stack_classification([BayesianLayer(activation="tanh")])
    params = initial(KEY, two, Guide(two), X, (labels > 1).astype(int))
    np.testing.assert_allclose(params["layer1/u_loc"], expected[2:], rtol=1e-8)
    ordered = stack_classification([BayesianLayer()], 3, likelihood="ordinal")
    assert not initial(KEY, ordered, Guide(ordered), X, labels)["layer1/u_loc"].any()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GPLayer(2, 5, inducing=Fourier(-1.0, 1.0, 4)), ValueError, "num_inducing: found 5 beside inducing"),
        (lambda: GPLayer(2, inducing=Points(Z), train_inducing=False), ValueError, "train_inducing: found False"),
        (lambda: GPLayer(2, mean=3.0), ValueError, "mean: found 3.0, expected one of linear, zero"),
        (lambda: NetworkBlock((4, 2)), TypeError, "module: found \\(4, 2\\), expected one of equinox or flax"),
        (lambda: NetworkBlock(perceptron(), 1.0), TypeError, "prior: found 1.0, expected a distribution"),
        (lambda: stack([NetworkBlock(perceptron())]), ValueError, "found NetworkBlock.* as the last"),
        (lambda: stack([GPLayer()], missing="no"), ValueError, "missing: found 'no'"),
        (lambda: stack_classification([GPLayer(2)], 3), ValueError, "width: found 2 in the last block"),
        (lambda: stack_classification([GPLayer()], 1), ValueError, "num_classes: found 1"),
        (lambda: stack([GPLayer()], likelihood="softmax"), ValueError, "or stack_classification"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_when_a_model_is_made(make, error, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([GPLayer(inducing=Points(Z[:, :1]))], "inducing: found Points of 1 inputs for 'layer1', expected 2"),
        ([GPLayer(1, 3), GPLayer(inducing=Fourier(-2.0, 2.0, 3))], "inducing: found Fourier for 'layer2'"),
        ([GPLayer(inducing=lambda: 3)], "inducing: found 3 from a function"),
        ([GPLayer(2, 3, mean=Linear(jnp.ones((2, 3)))), GPLayer()], "mean: found 3 outputs for 'layer1', expected 2"),
        ([NetworkBlock(perceptron(2, "scalar")), GPLayer()], "module: found outputs of shape \\(6,\\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_data_is_refused(blocks, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = stack(blocks)
    with pytest.raises(ValueError, match=message):
        initial(KEY, model, Guide(model), X, Y)
