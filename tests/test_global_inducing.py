"""Global inducing points: posteriors of pseudo-observations, inducing inputs that are draws of the layer before."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import Trace_ELBO

from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.fit import Posterior, fit_svi, shallow_start
from ppl_dgp.gp.contract import inducing_role
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import FullRank, GlobalInducing, Guide, MeanField
from ppl_dgp.guides.global_inducing import pseudo_posterior
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP
from tests.rules import MODEL, X, Y

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)


def started(model, guide, key=KEY):
    """Parameters of model and guide at their start, q(u) moved from it."""
    sites = trace(seed(guide, key)).get_trace(X, Y) | trace(seed(model, key)).get_trace(X, Y)
    params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
    for number, name in enumerate(sorted(params)):
        if name.endswith("_targets"):
            noise = jax.random.normal(jax.random.key(number), params[name].shape)
            params[name] = params[name] + 0.3 * noise
        if name.endswith("_precision") and params[name].ndim == 3:
            moved = jax.random.normal(jax.random.key(number), params[name].shape)
            params[name] = params[name] @ (jnp.eye(params[name].shape[-1]) + 0.3 * jnp.tril(moved))
    return params


def test_q_is_the_posterior_of_pseudo_observations():
    """By Bayes' rule with dense matrices, of one A for all outputs and of one for each."""
    size, outputs = 4, 3
    targets = jnp.asarray(RANDOM.normal(size=(outputs, size)))
    for weights, precision in (
        (RANDOM.normal(size=(size, size)), RANDOM.uniform(0.1, 5.0, (outputs, size))),
        (RANDOM.normal(size=(size, size)), RANDOM.uniform(0.1, 5.0, size)),
        (RANDOM.normal(size=(size, size)), np.tril(RANDOM.normal(size=(outputs, size, size)))),
        (RANDOM.normal(size=(outputs, size, size)), RANDOM.uniform(0.1, 5.0, (outputs, size))),
    ):
        q = pseudo_posterior(jnp.asarray(weights), targets, jnp.asarray(precision))
        for p in range(outputs):
            a = weights if weights.ndim == 2 else weights[p]
            each = precision if precision.ndim == 1 else precision[p]
            noise = np.diag(1.0 / each) if each.ndim == 1 else np.linalg.inv(each @ each.T)
            gain = a.T @ np.linalg.inv(a @ a.T + noise)
            np.testing.assert_allclose(q.loc[p], gain @ np.asarray(targets[p]), atol=1e-11)
            np.testing.assert_allclose(q.scale[p] @ q.scale[p].T, np.eye(size) - gain @ a, atol=1e-11)
            assert np.all(np.triu(q.scale[p], 1) == 0.0)


def test_of_one_layer_it_holds_the_exact_posterior():
    """With M = N the data themselves, at their noise, for pseudo-observations, the bound is the evidence."""
    model = sparse_gp_regression(6, inducing=np.asarray(X), jitter=0.0)
    guide = Guide(model, inducing=GlobalInducing())
    params = started(model, guide)
    noise = params["likelihood/noise"]
    params |= {"gp/u_targets": Y.T, "gp/u_precision": jnp.eye(6)[None] / jnp.sqrt(noise)}
    kernel = RBF(params["gp/variance"], params["gp/lengthscale"])
    covariance = kernel(X, X) + noise * jnp.eye(6)
    evidence = jax.scipy.stats.multivariate_normal.logpdf(Y[:, 0], jnp.zeros(6), covariance)
    np.testing.assert_allclose(PowerEP(0.0).loss(KEY, params, model, guide, X, Y), -evidence, rtol=1e-9)


def in_numpy(params, key, draws):
    """The bound of a deep GP of one hidden layer by its definition, each draw by hand: mean and standard error.

    And with f of the last layer averaged in the logarithm, as log weights of u and h have it.
    """
    noise = np.random.default_rng(key)
    x, y = np.asarray(X), np.asarray(Y)
    values = {name: np.asarray(value) for name, value in params.items()}

    def kernel(layer, a, b):
        scaled = (a[:, None] - b) / values[f"{layer}/lengthscale"]
        return values[f"{layer}/variance"] * np.exp(-0.5 * np.square(scaled).sum(-1))

    def layer(name, z, mean, inputs):
        """A draw of u; its divergence; moments of f at the inputs given the draw."""
        gram = kernel(name, z, z)
        gram = gram + 1e-8 * gram.diagonal().mean() * np.eye(len(z))
        lower = np.linalg.cholesky(gram)
        inverse = np.linalg.inv(lower)
        at_z = kernel(name, z, z) @ inverse.T
        divergence, us = 0.0, []
        for p in range(len(values[f"{name}/u_targets"])):
            residual = values[f"{name}/u_targets"][p] - mean(z)[:, p]
            precision = values[f"{name}/u_precision"][p] @ values[f"{name}/u_precision"][p].T
            covariance = np.linalg.inv(np.eye(len(z)) + at_z.T @ precision @ at_z)
            centre = covariance @ at_z.T @ precision @ residual
            divergence += 0.5 * (
                np.trace(covariance) + centre @ centre - len(z) - np.linalg.slogdet(covariance)[1]
            )
            us.append(centre + np.linalg.cholesky(covariance) @ noise.normal(size=len(z)))
        u = np.stack(us)
        weights = kernel(name, inputs, z) @ inverse.T
        variance = values[f"{name}/variance"] - np.square(weights).sum(1)
        return divergence, mean(inputs) + weights @ u.T, variance, mean(z) + at_z @ u.T

    bounds = []
    for _ in range(draws):
        first, mean, variance, pushed = layer("layer1", values["layer1/inducing"], lambda h: h, x)
        spread = np.sqrt(variance + values["layer1/noise"])[:, None]
        h = mean + spread * noise.normal(size=mean.shape)
        second, mean, variance, _ = layer("layer2", pushed, lambda h: np.zeros((len(h), 1)), h)
        s2 = values["likelihood/noise"]
        square = np.square(y - mean)[:, 0]
        expected = -0.5 * np.log(2 * np.pi * s2) - 0.5 * (square + variance) / s2
        within = -0.5 * np.log(2 * np.pi * (s2 + variance)) - 0.5 * square / (s2 + variance)
        bounds.append([expected.sum() - first - second, within.sum() - first - second])
    return np.mean(bounds, 0), np.std(bounds, 0) / np.sqrt(draws)


@pytest.mark.slow
def test_the_bound_is_that_of_its_definition():
    """A deep GP of two layers, by NumPy draw by draw; in one run of the model or in two, at any number of draws."""
    model = deep_gp((2,), 3, inner_noise=0.05)
    guide = Guide(model, inducing=GlobalInducing())
    params = started(model, guide)
    # where draws differ much
    params |= {"layer1/u_precision": 0.1 * params["layer1/u_precision"]}
    (expected, within), (error, within_error) = in_numpy(params, 1, 4000)
    found = np.asarray(
        jax.vmap(lambda key: PowerEP(0.0).loss(key, params, model, guide, X, Y))(jax.random.split(KEY, 4000))
    )
    assert abs(-found.mean() - expected) < 4.0 * np.hypot(error, found.std() / np.sqrt(4000))
    drawn = joint_draws(KEY, Posterior(model, guide, params), X, Y, num_draws=4000, num_locals=1).log_ratio
    assert abs(drawn.mean() - within) < 4.0 * np.hypot(within_error, drawn.std() / np.sqrt(4000))
    # as when somebody wraps the guide: the model is run for itself, and hears of the inducing inputs
    wrapped = lambda *args, **kwargs: guide(*args, **kwargs)
    for objective in (PowerEP(0.0), PowerEP(0.5, 4)):
        losses = [objective.loss(KEY, params, model, each, X, Y) for each in (guide, wrapped)]
        np.testing.assert_allclose(*losses, rtol=1e-10)


@pytest.mark.slow
def test_inducing_inputs_are_the_draw_of_the_layer_before():
    model = deep_gp((2, 2), 3)
    guide = Guide(model, hidden=MeanField(), inducing=GlobalInducing())
    functions = {}

    class Watched(numpyro.primitives.Messenger):
        def postprocess_message(self, msg):
            if msg["type"] == "inducing":
                functions[msg["function"]] = msg["value"], msg["behind"]

    params = started(model, guide)
    with Watched():
        seed(substitute(guide, params), KEY)(X, Y)
    assert sorted(functions) == ["layer2", "layer3"]
    for inducing, behind in functions.values():
        own = behind.whiten  # f at Z by its marginal, the draw known
        np.testing.assert_allclose(inducing, behind(behind.inducing).mean, rtol=1e-12)
        assert own.shape == (3, 3) and inducing.shape == (3, 2)
    # gradients of what is not used are none, and those of the first layer's inputs are some
    slopes = jax.grad(lambda params: PowerEP(0.0).loss(KEY, params, model, guide, X, Y))(params)
    assert np.abs(slopes["layer1/inducing"]).max() > 0.0
    assert np.all(slopes["layer2/inducing"] == 0.0) and np.all(slopes["layer3/inducing"] == 0.0)


@pytest.mark.slow
def test_predictions_and_draws_push_the_inducing_inputs_too():
    """A last layer whose pseudo-observations are certain takes their values at the draws of the layer before."""
    model = deep_gp((2,), 3, inner_noise=1e-8)
    guide = Guide(model, inducing=GlobalInducing())
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), X, Y, steps=3)
    params = dict(fit.params)
    params["layer2/u_precision"] = 1e4 * jnp.eye(3)[None]
    params["layer2/u_targets"] = jnp.array([[1.0, -2.0, 0.5]])
    # the first layer is uncertain as its prior is, so that its draws are nowhere near where it began
    params["layer1/u_precision"] = 1e-3 * jnp.broadcast_to(jnp.eye(3), (2, 3, 3))
    fit = type(fit)(**{**vars(fit), "params": params})
    at = fit.params["layer1/inducing"]
    draws = fit.sample_functions(KEY, at, num_samples=20)
    # up to the noise between the layers, and what the first layer keeps to itself at its own inducing inputs
    np.testing.assert_allclose(draws[..., 0], np.broadcast_to([1.0, -2.0, 0.5], (20, 3)), atol=0.02)
    predicted = fit.predict(KEY, at, num_samples=20)
    np.testing.assert_allclose(np.ravel(predicted.mean), [1.0, -2.0, 0.5], atol=0.02)


@pytest.mark.slow
def test_what_cannot_be_pushed_is_refused():
    guide = Guide(MODEL, hidden=MeanField(), inducing=GlobalInducing())
    params = started(MODEL, guide)
    with pytest.raises(
        ValueError, match="with links between layers or outputs, or a function that needs one draw"
    ):
        PowerEP(0.0, propagation="moments").loss(KEY, params, MODEL, guide, X, Y)

    for objective in (Trace_ELBO(), Collapsed()):
        with pytest.raises(
            ValueError, match="objective: found .* whose inducing inputs it keeps from the model"
        ):
            fit_svi(KEY, MODEL, guide, objective, X, Y, steps=2)

    def model(x, y=None):
        numpyro.sample(
            "f/u", numpyro.distributions.Normal(0.0, 1.0).expand([1, 3]).to_event(2), infer=inducing_role()
        )

    with pytest.raises(ValueError, match="inducing: found GlobalInducing"):
        seed(Guide(model, inducing=GlobalInducing()), KEY)(X, Y)


def test_of_functions_that_stand_before_none_q_differs_in_its_parameters_alone():
    """A model whose functions know nothing of each other keeps their inducing inputs; either q(u) is one Gaussian."""

    def model(x, y=None):
        z = numpyro.param("z", x[:3])
        f = sparse_gp("f", RBF(1.0, 1.0), z)
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(0.1), obs=y)

    guide, usual = (Guide(model, inducing=rule) for rule in (GlobalInducing("shared"), FullRank()))
    params = started(model, guide)
    assert params["f/u_precision"].shape == (3,)
    run = trace(substitute(seed(guide, KEY), params)).get_trace(X, Y)
    q = run["f/u"]["fn"]
    same = {"z": params["z"], "f/u_loc": q.loc, "f/u_scale": q.scale}
    losses = [
        PowerEP(0.0).loss(KEY, values, model, each, X, Y) for values, each in ((params, guide), (same, usual))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-12)


@pytest.mark.slow
def test_it_begins_at_the_sparse_gp_that_is_pulled_back():
    """Where hidden layers are linear the bound is the sparse GP's, but for what pseudo-observations cannot say."""
    x = jnp.linspace(-2.0, 2.0, 20)[:, None] * jnp.array([1.0, -0.5, 0.2])
    y = jnp.sin(3.0 * x[:, :1]) + 0.1 * jnp.cos(17.0 * x[:, :1])
    for widths in ((2,), (3, 4)):
        model = deep_gp(widths, 5)
        guide, usual = (Guide(model, inducing=rule) for rule in (GlobalInducing(), FullRank()))
        starts = [shallow_start(KEY, model, each, x, y) for each in (guide, usual)]
        losses = []
        for params, each in zip(starts, (guide, usual), strict=True):
            losses.append(PowerEP(0.0, 50).loss(KEY, params, model, each, x, y))
        assert losses[1] < losses[0] < losses[1] + 10.0
