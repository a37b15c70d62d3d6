"""The collapsed bound of a deep GP, and what is and is not the optimal q(u), against bounds with q(u) spelt out."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss, refuse
from numpyro import handlers

from ppl_dgp.fit import fit_lbfgs, fit_svi
from ppl_dgp.guides import (
    Conditional,
    Diagonal,
    DoublyStochastic,
    FullRank,
    Guide,
    LayerChain,
    Markov,
    MeanField,
    Optimal,
)
from ppl_dgp.kernels import Matern32
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.objectives.representation import RepresentationHandler

KEY = jax.random.PRNGKey(8)
X = jnp.linspace(-1.5, 1.5, 7)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
MODEL = deep_gp((2, 1), 4, inner_noise=0.05)
CLOSED = PowerEP(0.0, propagation="moments")
RULES = {"mean-field": MeanField(), "markov-full": Markov(full=True)}


@cache
def started(rule, inducing=None):
    guide = Guide(MODEL, hidden=rule, inducing=inducing or FullRank())
    params = initial(KEY, MODEL, guide, X, Y)
    moved = {}
    for position, (name, value) in enumerate(sorted(params.items())):
        step = 0.2 * jax.random.normal(jax.random.fold_in(KEY, position), jnp.shape(value), value.dtype)
        if name.endswith("_scale") and value.ndim == 3:
            moved[name] = jnp.tril(step, -1) + 0.4 * jnp.eye(value.shape[-1])
        elif name.endswith(("_loc", "_slope", "_weights")):
            moved[name] = value + step
        else:
            moved[name] = value * jnp.exp(step)
    return guide, moved


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean-field", pytest.param("markov-full", marks=pytest.mark.slow)])
def test_it_is_the_bound_at_the_optimal_q_of_u_and_above_it_elsewhere(name):
    guide, params = started(RULES[name])
    collapsed = -loss(Collapsed(), params, MODEL, guide, X, Y)
    best = jax.jit(lambda p: Collapsed().finish(p, MODEL, guide, X, Y))(params)
    bound = jax.jit(jax.value_and_grad(lambda p: -CLOSED.loss(KEY, p, MODEL, guide, X, Y)))
    value, gradient = bound(best)
    assert float(value) == pytest.approx(collapsed, rel=1e-8)
    assert float(bound(params)[0]) < collapsed
    for layer in (1, 2, 3):
        np.testing.assert_allclose(gradient[f"layer{layer}/u_loc"], 0.0, atol=1e-5)
        # a Cholesky factor has a lower triangle only
        np.testing.assert_allclose(jnp.tril(gradient[f"layer{layer}/u_scale"]), 0.0, atol=1e-5)


def test_the_optimal_q_of_u_is_added_where_the_parameters_have_none():
    model = sparse_gp_regression(4)
    guide = Guide(model, inducing=Optimal())
    params = initial(KEY, model, guide, X, Y)
    bare = {name: value for name, value in params.items() if "/u_" not in name}
    expected = jax.jit(lambda p: Collapsed().finish(p, model, guide, X, Y))(params)
    found = Collapsed().finish(bare, model, guide, X, Y)
    assert set(found) == set(expected)
    for name in ("gp/u_loc", "gp/u_scale"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-12)


@pytest.mark.slow
def test_one_layer_ends_at_its_optimal_q_of_u():
    model = sparse_gp_regression(4)
    guide = Guide(model, inducing=Optimal())
    spelt_out, collapsed = (
        jax.jit(lambda p, objective=objective: objective.loss(KEY, p, model, guide, X, Y))
        for objective in (PowerEP(0.5), Collapsed(0.5))
    )
    fit = fit_lbfgs(KEY, model, X, Y, guide=guide, objective=Collapsed(0.5), steps=5)
    assert float(spelt_out(fit.params)) == pytest.approx(fit.losses[0, -1], rel=1e-7)
    # Adam's last loss is that before its last step; every restart has its own q(u)
    fit = fit_svi(KEY, model, guide, Collapsed(0.5), X, Y, steps=3, restarts=2)
    for r in range(2):
        params = {name: each[r] for name, each in fit.restart_params.items()}
        assert float(spelt_out(params)) == pytest.approx(float(collapsed(params)), rel=1e-7)


@pytest.mark.slow  # compiles the gradient of two layers of kernel expectations
@pytest.mark.usefixtures("optimised")
def test_a_deep_gp_is_fitted_by_it():
    """Deterministic training; it ends with the q(u) that NumPyro's SVI would need thousands of steps for."""
    guide = Guide(MODEL, hidden=MeanField(), inducing=Optimal())
    fit = fit_lbfgs(KEY, MODEL, X, Y, guide=guide, objective=Collapsed(), steps=40)
    assert fit.losses[0, -1] < fit.losses[0, 0] - 1.0
    closed = float(CLOSED.loss(KEY, fit.params, MODEL, guide, X, Y))
    assert closed == pytest.approx(fit.losses[0, -1], rel=1e-7)
    draws = jax.jit(jax.vmap(lambda key: PowerEP(0.0).loss(key, fit.params, MODEL, guide, X, Y)))
    values = np.asarray(draws(jax.random.split(KEY, 4000)))
    assert abs(values.mean() - closed) < 4.0 * values.std() / np.sqrt(len(values))


@pytest.mark.slow
def test_links_between_layers_gain_nothing_with_mean_field_hidden_variables():
    """Chamberlin 4.5: at the optimal q(u) the gradient of the links vanishes, and links only lower the bound."""
    field, params = started(MeanField())
    best = Collapsed().finish(params, MODEL, field, X, Y)
    chain = Guide(MODEL, hidden=MeanField(), inducing=LayerChain())
    _, start = started(MeanField(), LayerChain())
    links = {name: value for name, value in start.items() if name.endswith("_link")}
    assert len(links) == 2

    def bound(size, key):
        scaled = {name: size * jax.random.normal(KEY, value.shape) for name, value in links.items()}
        return -PowerEP(0.0).loss(key, {**best, **scaled}, MODEL, chain, X, Y)

    slopes, keys = jax.jit(jax.vmap(jax.grad(bound), (None, 0))), jax.random.split(KEY, 4000)
    at_zero = np.asarray(slopes(0.0, keys))
    assert abs(at_zero.mean()) < 4.0 * at_zero.std() / np.sqrt(len(keys))
    beyond = np.asarray(slopes(0.3, keys))
    assert beyond.mean() < -4.0 * beyond.std() / np.sqrt(len(keys))


@pytest.mark.slow
def test_the_formula_for_q_of_h_given_u_is_no_optimum_of_the_whole_bound():
    """For q(h|u) = N(Tu + M, S): stationary for the layer's own terms, not where the layer feeds another (design 4).

    Σ⁻¹ = I + s⁻² Σ⟨(T − φ)(T − φ)ᵀ⟩ and mean −Σ s⁻² Σ (M − m)(T − ⟨φ⟩), whitened, with the symmetric cross terms.
    """
    guide, params = started(Conditional(free=True))
    weights, loc = params["layer1/h_weights"], params["layer1/h_loc"]
    seeded = handlers.seed(guide, KEY)
    found = handlers.trace(handlers.substitute(seeded, data=params)).get_trace(X, Y)
    step = found["layer1/h"]["fn"].step
    phi, s2 = step.marginal.weights, step.likelihood.variance
    difference = weights - phi[:, None, :]
    precision = jnp.eye(4) + jnp.einsum("nqm,nqk->qmk", difference, difference) / s2
    covariance = jnp.linalg.inv(precision)
    target = loc - step.marginal.function.mean(X)
    mean = -jnp.einsum("qmk,nq,nqk->qm", covariance, target, difference) / s2
    best = {**params, "layer1/u_loc": mean, "layer1/u_scale": jnp.linalg.cholesky(covariance)}

    def own(p):
        carried = RepresentationHandler(
            {f"layer{k}/u": "marginal" for k in (1, 2, 3)}, 7, KEY, propagation={"layer1/h": "moments"}
        )
        with carried:
            sites = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), data=p)).get_trace(X, Y)
        q = sites["layer1/u"]["fn"]
        divergence = numpyro.distributions.kl_divergence(
            q, numpyro.distributions.Normal().expand((2, 4)).to_event(2)
        )
        return sites["layer1/h"]["fn"].expected_weight().sum() - divergence

    np.testing.assert_allclose(jax.grad(own)(best)["layer1/u_loc"], 0.0, atol=1e-9)
    whole = jax.jit(jax.grad(lambda p: -CLOSED.loss(KEY, p, MODEL, guide, X, Y)))(best)
    assert np.abs(whole["layer1/u_loc"]).max() > 1e-2


def test_what_it_cannot_do_is_refused():
    diagonal = Guide(MODEL, hidden=MeanField(), inducing=Diagonal())
    with pytest.raises(TypeError, match="full-rank"):
        refuse(Collapsed(), initial(KEY, MODEL, diagonal, X, Y), MODEL, diagonal, X, Y)
    optimal = Guide(MODEL, hidden=Conditional(), inducing=Optimal())
    with pytest.raises(ValueError, match="Optimal"):
        jax.eval_shape(lambda key: handlers.trace(handlers.seed(optimal, key)).get_trace(X, Y) and None, KEY)
    with pytest.raises(ValueError, match="no gradient trains"):
        fit_svi(KEY, MODEL, Guide(MODEL, hidden=MeanField(), inducing=Optimal()), PowerEP(), X, Y, steps=1)
    guide, params = started(DoublyStochastic())
    with pytest.raises(TypeError, match="closed form"):
        refuse(Collapsed(), params, MODEL, guide, X, Y)
    field, params = started(MeanField())
    with pytest.raises(ValueError, match="alpha"):
        refuse(Collapsed(0.5), params, MODEL, field, X, Y)
    # three inputs of a layer and a kernel without closed form
    wide = deep_gp((3,), 4, kernel=Matern32)
    rough = Guide(wide, hidden=MeanField())
    with pytest.raises(ValueError, match="no bound"):
        refuse(Collapsed(), initial(KEY, wide, rough, X, Y), wide, rough, X, Y)


def test_equal_settings_make_equal_objectives():
    labels = np.array([0, 0, 1])
    for make in (
        Collapsed,
        Collapsed.fitc,
        Collapsed.dtc,
        lambda: Collapsed.pitc(labels),
        lambda: Collapsed(0.3 * labels),
    ):
        assert make() == make() and hash(make()) == hash(make())
    different = [
        Collapsed(),
        Collapsed(0.5),
        Collapsed.dtc(),
        Collapsed.pitc(labels),
        Collapsed.pitc(labels[::-1].copy()),
    ]
    assert len(set(different)) == len(different)
