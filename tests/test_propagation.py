"""Moments in place of draws: closed-form bounds against their sampled estimates, and what each propagation is."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss, noise_like, on_host, refuse
from fast import few
from jaxtyping import TypeCheckError
from numpyro.infer import Trace_ELBO
from rules import CLOSED

from ppl_dgp.fit import Posterior
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.moment_matching import linearised, matched, matched_covariance
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import (
    Conditional,
    Coupled,
    DoublyStochastic,
    Guide,
    MeanField,
    MomentMatched,
    NestedCompression,
)
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(4)
X = jnp.linspace(-1.5, 1.5, 5)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
DEEP = deep_gp((2, 2), 4, inner_noise=0.05)
TWO = deep_gp((2,), 4, inner_noise=0.05)


@cache
def started(rule, model=DEEP):
    guide = Guide(model, hidden=rule)
    starting = Guide(model, hidden=DoublyStochastic()) if isinstance(rule, NestedCompression) else guide
    return guide, _moved(initial(KEY, model, starting, X, Y))


def _moved(params):
    moved = {}
    for position, (name, value) in enumerate(sorted(on_host(params).items())):
        step = 0.3 * noise_like(value, position)
        if name.endswith("_scale") and value.ndim == 3:
            moved[name] = np.tril(0.3 * step) + 0.4 * np.eye(value.shape[-1])
        elif name.endswith(("_loc", "_slope", "_weights")):
            moved[name] = value + step
        else:
            moved[name] = value * np.exp(0.3 * step)
    return {name: jnp.asarray(value) for name, value in moved.items()}


def draws(objective, guide, params, number=20_000):
    run = jax.jit(jax.vmap(lambda key: -objective.loss(key, params, guide.model, guide, X, Y)))
    values = np.asarray(run(jax.random.split(KEY, number)))
    return values.mean(), values.std() / np.sqrt(number)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    few(
        ["mean-field", "free"]
        + [
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mean-field-full", "markov", "markov-full", "across")
        ],
        0,
    ),
)
def test_closed_form_bound_is_the_mean_of_the_sampled_one(name):
    guide, params = started(CLOSED[name])
    exact = -loss(PowerEP(0.0, propagation="moments"), params, DEEP, guide, X, Y)
    mean, error = draws(PowerEP(0.0), guide, params)
    assert abs(mean - exact) < 3.5 * error


def test_nothing_is_drawn_in_closed_form():
    guide, params = started(MeanField())
    objective = PowerEP(0.0, propagation="moments")
    value = jax.jit(lambda key: objective.loss(key, params, DEEP, guide, X, Y))
    assert value(jax.random.PRNGKey(1)) == value(jax.random.PRNGKey(2))


@pytest.mark.parametrize("propagation", few(["moments", "full-moments"], 1))
def test_moment_matching_is_exact_for_two_layers(propagation):
    """Bui 2017, 4.4.1: the last layer's expectation needs two moments of its Gaussian input."""
    guide, params = started(DoublyStochastic(), TWO)
    exact = -loss(PowerEP(0.0, propagation=propagation), params, TWO, guide, X, Y)
    mean, error = draws(PowerEP(0.0), guide, params)
    assert abs(mean - exact) < 3.5 * error


@pytest.mark.slow
def test_moment_matching_of_three_layers_is_near_the_bound_and_linearisation_further():
    guide, params = started(DoublyStochastic())
    mean, error = draws(PowerEP(0.0), guide, params)
    gaps = {}
    for how in ("moments", "full-moments", "linearised"):
        matched_guide = Guide(DEEP, hidden=MomentMatched(how))
        gaps[how] = abs(-loss(PowerEP(0.0), params, DEEP, matched_guide, X, Y) - mean)
    assert gaps["linearised"] > 10.0 * error  # it does not tend to the ELBO
    assert gaps["full-moments"] < gaps["linearised"]


@pytest.mark.slow
def test_a_rule_that_prefers_moments_is_heard():
    guide, params = started(DoublyStochastic())
    preferring = Guide(DEEP, hidden=MomentMatched("full-moments"))
    asked = loss(PowerEP(0.0, propagation="full-moments"), params, DEEP, guide, X, Y)
    assert loss(PowerEP(0.0), params, DEEP, preferring, X, Y) == pytest.approx(asked, rel=1e-12)
    # NumPyro's own objective draws
    assert np.isfinite(loss(Trace_ELBO(), params, DEEP, preferring, X, Y))


@pytest.mark.slow
def test_nested_compression_is_the_free_family_at_averaged_weights():
    """Its closed form against draws of u and h with T = ⟨A⟩ held: Hensman & Lawrence 2014, corrected."""
    compressed, params = started(NestedCompression())
    exact = -loss(PowerEP(0.0), params, DEEP, compressed, X, Y)
    found = numpyro.handlers.trace(
        numpyro.handlers.substitute(numpyro.handlers.seed(compressed, KEY), data=params)
    )
    from ppl_dgp.objectives.representation import RepresentationHandler

    names = {"layer1/h": "moments", "layer2/h": "moments"}
    u = {f"layer{layer}/u": "marginal" for layer in (1, 2, 3)}
    with RepresentationHandler(u, 5, KEY, propagation=names):
        sites = found.get_trace(X, Y)
    free, _ = started(Conditional(free=True))
    start = dict(params)
    for name in names:
        for parameter, value in sites[name]["fn"].params.items():
            start[f"{name}_{parameter}"] = value
    mean, error = draws(PowerEP(0.0), free, start)
    assert abs(mean - exact) < 3.5 * error


def a_function(outputs=2, slope=True):
    keys = jax.random.split(KEY, 4)
    z = jax.random.normal(keys[0], (5, 2))
    kernel = RBF(1.3, jnp.array([0.8, 1.4]))
    whiten = inverse_lower(cholesky(kernel(z, z))[0])
    scale = jnp.tril(0.3 * jax.random.normal(keys[1], (outputs, 5, 5)))
    u = Gaussian(jax.random.normal(keys[2], (outputs, 5)), scale)
    weights = jax.random.normal(keys[3], (2, outputs))
    return SparseGP("f", kernel, z, whiten, Linear(weights, 0.3), u)


@pytest.mark.slow
def test_matched_moments_are_those_of_draws():
    f = a_function()
    inputs = Gaussian(
        jnp.array([[0.3, -0.2], [1.0, 0.5]]), jnp.array([[[0.6, 0.0], [0.3, 0.4]], [[0.2, 0.0], [-0.1, 0.9]]])
    )
    centre, covariance = jax.jit(lambda at: (matched(f, at).mean, matched_covariance(f, at)))(inputs)
    number = 200_000
    keys = jax.random.split(KEY, 3)
    noise = jax.random.normal(keys[0], (number, 2, 2))
    h = inputs.mean + jnp.einsum("bde,sbe->sbd", inputs.scale, noise)
    u = f.u.mean + jnp.einsum("pmk,spk->spm", f.u.scale, jax.random.normal(keys[1], (number, 2, 5)))
    for row in range(2):
        marginal = SparseGP(f.name, f.kernel, f.inducing, f.whiten, f.mean, u)(h[:, row])
        values = marginal.mean + jnp.sqrt(marginal.residual) * jax.random.normal(keys[2], marginal.mean.shape)
        error = values.std(0) / np.sqrt(number)
        np.testing.assert_array_less(jnp.abs(values.mean(0) - centre[row]), 4.0 * error)
        # standard error of a covariance: sd of the products
        centred = values - centre[row]
        products = centred[:, :, None] * centred[:, None, :]
        spread = products.std(0) / np.sqrt(number)
        np.testing.assert_array_less(jnp.abs(products.mean(0) - covariance[row]), 4.5 * spread)


@pytest.mark.parametrize("how", [matched, lambda f, h: linearised(f, h)[0]], ids=["matched", "linearised"])
@pytest.mark.slow
def test_a_certain_input_gives_the_marginal(how):
    f, at = a_function(), jnp.array([[0.3, -0.2], [1.0, 0.5]])
    moments, marginal = how(f, Gaussian(at, jnp.zeros_like(at))), f(at)
    np.testing.assert_allclose(moments.mean, marginal.mean, rtol=1e-9)
    np.testing.assert_allclose(moments.residual + moments.beyond, marginal.variance, rtol=1e-7)


def test_linearised_variance_is_that_of_the_tangent():
    """A GP whose lengthscale is long is nearly linear: then both propagations agree to the second order."""
    f = a_function()
    flat = SparseGP("f", RBF(1.0, 100.0), f.inducing, jnp.eye(5), f.mean, Gaussian(f.u.mean, 0.1 * f.u.scale))
    inputs = Gaussian(jnp.array([[0.3, -0.2]]), jnp.array([[0.3, 0.2]]))
    both = jax.jit(
        lambda at: [(m.mean, m.residual + m.beyond) for m in (matched(flat, at), linearised(flat, at)[0])]
    )
    (mean, variance), (tangent_mean, tangent_variance) = both(inputs)
    np.testing.assert_allclose(mean, tangent_mean, rtol=1e-3)
    np.testing.assert_allclose(variance, tangent_variance, rtol=1e-2)


def test_what_has_no_closed_form_is_refused():
    guide, params = started(Conditional())
    with pytest.raises(TypeError, match="propagation"):
        refuse(PowerEP(0.0, propagation="moments"), params, DEEP, guide, X, Y)
    field, start = started(MeanField())
    with pytest.raises(ValueError, match="alpha=0"):
        refuse(PowerEP(0.5, propagation="moments"), start, DEEP, field, X, Y)
    with pytest.raises(ValueError, match="alpha=0"):
        refuse(BlackBoxAlpha(0.5, propagation="moments"), start, DEEP, field, X, Y)
    # the types checked in tests may speak first
    with pytest.raises((ValueError, TypeCheckError), match="propagation"):
        PowerEP(0.0, propagation="sideways")
    linked = Guide(DEEP, hidden=DoublyStochastic(), inducing=Coupled())
    start = initial(KEY, DEEP, linked, X, Y)
    with pytest.raises(ValueError, match="links between layers"):
        refuse(PowerEP(0.0, propagation="moments"), start, DEEP, linked, X, Y)


@pytest.mark.slow  # half a minute of compiling
def test_black_box_alpha_takes_moments_of_the_models_own_conditional():
    guide, params = started(MomentMatched("full-moments"))
    value, gradient = jax.value_and_grad(lambda p: BlackBoxAlpha(0.5).loss(KEY, p, DEEP, guide, X, Y))(params)
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_prediction_by_moments_is_the_mixtures_for_two_layers():
    """Mean and variance of y are exact; the density is one Gaussian's, the mixture's is another."""
    guide, params = started(DoublyStochastic(), TWO)
    found = predict(KEY, Posterior(TWO, guide, params), X, Y, propagation="full-moments")
    drawn = predict(KEY, Posterior(TWO, guide, params), X, Y, num_samples=20_000)
    error = np.sqrt(drawn.f_variance / 20_000)
    np.testing.assert_array_less(np.abs(found.mean - drawn.mean), 4.5 * error)
    # four moments of a Gaussian-like mixture: its variance is known to about sqrt(2/S), three times that here
    np.testing.assert_allclose(found.variance, drawn.variance, rtol=3.0 * 4.5 * np.sqrt(2 / 20_000))
    single = (
        -0.5 * np.log(2 * np.pi * found.variance) - 0.5 * (np.asarray(Y) - found.mean) ** 2 / found.variance
    )
    np.testing.assert_allclose(found.log_density, single[:, 0], rtol=1e-9)


@pytest.mark.slow
def test_one_output_has_its_variance_for_covariance():
    f = a_function(outputs=1)
    inputs = Gaussian(jnp.zeros((3, 2)), jnp.ones((3, 2)))
    moments = matched(f, inputs)
    np.testing.assert_array_equal(matched_covariance(f, inputs)[:, :, 0], moments.residual + moments.beyond)


def test_moments_in_32_bits_keep_the_digits_of_a_small_variance():
    """Numbers of 32 bits, and the same ones in 64: the variance is 1e-8 of what it is the difference of."""
    f, narrow = a_function(), lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    inputs = narrow(Gaussian(0.3 * jnp.ones((3, 2)), 1e-4 * jnp.ones((3, 2))))
    single = SparseGP(f.name, *(narrow(part) for part in (f.kernel, f.inducing, f.whiten, f.mean, f.u)))
    double = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree)
    parts = (single.kernel, single.inducing, single.whiten, single.mean, single.u)
    wide = SparseGP(f.name, *(double(part) for part in parts))
    expected = jax.jit(lambda inputs: matched(wide, inputs))(double(inputs))
    with jax.enable_x64(False):
        found = jax.jit(lambda inputs: matched(single, inputs))(inputs)
        slope = jax.jit(jax.grad(lambda inputs: matched(single, inputs).beyond.sum()))(inputs)
    assert found.beyond.dtype == slope.scale.dtype == jnp.float32
    for name in ("weights", "mean", "residual", "beyond"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=3e-7)


def test_moments_that_nobody_asks_for_are_refused():
    def model(x, y=None):
        layers = [sparse_gp(f"layer{i}", RBF(1.0, 1.0), X[:4], width) for i, width in ((1, 2), (2, 1))]
        with data_plate(5):
            # the draw itself, without offer(): nobody can put moments in its place
            h = numpyro.sample("layer1/h", layers[0](x).noisy(0.1), infer={"role": "hidden"})
            numpyro.sample("y", layers[1](h).noisy(0.1), obs=y)

    guide = Guide(model, hidden=MeanField())
    start = initial(KEY, model, guide, X, Y)
    with pytest.raises(ValueError, match="offer"):
        refuse(PowerEP(0.0, propagation="moments"), start, model, guide, X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_draws_and_moments_agree_as_the_layers_become_certain(alpha):
    """T22: three layers whose functions and noise have hardly any variance: nothing is left to match."""
    model = deep_gp((2, 1), 4, inner_noise=1e-10)
    guide = Guide(model, hidden=DoublyStochastic())
    x, y = jnp.linspace(-1.0, 1.0, 6)[:, None], jnp.sin(jnp.linspace(-3.0, 3.0, 6))[:, None]
    params = initial(KEY, model, guide, x, y)
    certain = {"layer1/variance": 1e-10, "layer2/variance": 1e-10}
    params |= {name: jnp.asarray(value) for name, value in certain.items()}
    found = [
        loss(BlackBoxAlpha(alpha, 2, propagation=how), params, model, guide, x, y)
        for how in ("draws", "moments")
    ]
    # deviations of 1e-5 in h move the value by as much
    assert found[0] == pytest.approx(found[1], abs=1e-3)
