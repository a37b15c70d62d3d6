"""Nested families keep their order: a richer guide begins where the poorer one ended, and ends no lower."""

import doctest
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp.data import synthetic
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import (
    AcrossOutputs,
    Conditional,
    Coupled,
    Diagonal,
    DoublyStochastic,
    FullRank,
    Guide,
    LayerChain,
    LowRank,
    Markov,
    MeanField,
    nesting,
)
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

KEY = jax.random.PRNGKey(3)
X = jnp.linspace(-1.5, 1.5, 6)[:, None] * jnp.array([[1.0, -0.5]])
Y = jnp.sin(2 * X[:, :1])
MODEL = deep_gp((2, 1), 3, inner_noise=0.05)
RULES = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "coupled": Conditional(),
    "tied": Conditional(tied=True),
    "free": Conditional(free=True),
    "doubly-stochastic": DoublyStochastic(),
}


@cache
def moved(name, inducing=FullRank()):  # noqa: B008
    """A guide and its parameters, moved away from where they start."""
    guide = Guide(MODEL, hidden=RULES[name], inducing=inducing)
    svi = SVI(MODEL, guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    params = jax.jit(lambda: svi.get_params(svi.init(KEY, X, Y)))()
    found = {}
    for position, (site, value) in enumerate(sorted(params.items())):
        step = 0.1 * jax.random.normal(jax.random.fold_in(KEY, position), jnp.shape(value), value.dtype)
        if site.endswith(("_loc", "inducing")):
            found[site] = value + step
        elif site.endswith("u_scale") and value.ndim == 3:
            found[site] = value * jnp.exp(step) + 0.3 * jnp.eye(value.shape[-1])
        else:
            found[site] = value * jnp.exp(step)
    return guide, found


def bound(objective, guide, params, key=KEY):
    return -float(jax.jit(lambda p: objective.loss(key, p, guide.model, guide, X, Y))(params))


def both(name, poor_name="mean-field"):
    poor, params = moved(poor_name)
    rich = Guide(MODEL, hidden=RULES[name])
    return (poor, params), (rich, nested_start(poor, rich, params, X, Y))


@pytest.mark.parametrize("name", ["markov", "coupled", "tied", "free"])
def test_richer_families_contain_mean_field(name):
    objective = PowerEP(0.0)
    (poor, params), (rich, richer) = both(name)
    draws = jax.jit(
        lambda p, g: handlers.seed(handlers.substitute(g, data=p), KEY)(X, Y)["layer2/h"], static_argnums=1
    )
    np.testing.assert_allclose(draws(richer, rich), draws(params, poor), atol=1e-6)
    if name in ("markov", "coupled"):
        # u is carried as moments in both: the same key gives the same number
        assert bound(objective, rich, richer) == pytest.approx(bound(objective, poor, params), abs=1e-9)
        return
    # u is drawn for each datum: equal in expectation
    poorer, errors = mean_of(poor, params, X, Y)
    found, error = mean_of(rich, richer, X, Y)
    assert abs(found - poorer) < 4 * np.hypot(error, errors)


@pytest.mark.parametrize("objective", [PowerEP(0.5, 3), BlackBoxAlpha(0.0, 2)], ids=repr)
def test_coupled_at_the_models_own_conditional_is_doubly_stochastic(objective):
    (plain, params), (coupled, richer) = both("coupled", "doubly-stochastic")
    # c = 1 and S = s²: a coupled rule starts there
    for layer, width in (("layer1", 2), ("layer2", 1)):
        np.testing.assert_allclose(richer[f"{layer}/h_pull"], np.zeros((6, width)))
        np.testing.assert_allclose(richer[f"{layer}/h_scale"], np.ones((6, width)))
    assert bound(objective, coupled, richer) == pytest.approx(bound(objective, plain, params), abs=1e-8)


@pytest.mark.parametrize("objective", [PowerEP(0.0, 2), BlackBoxAlpha(0.5, 2)], ids=repr)
def test_full_rank_contains_diagonal(objective):
    poor, params = moved("doubly-stochastic", Diagonal())
    rich = Guide(MODEL, hidden=DoublyStochastic(), inducing=FullRank())
    richer = nested_start(poor, rich, params, X, Y)
    assert richer["layer1/u_scale"].shape == (2, 3, 3)
    assert bound(objective, rich, richer) == pytest.approx(bound(objective, poor, params), abs=1e-9)


def log_q(guide, params, values):
    """log q of every latent at the given values of all."""
    sites = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), data={**params, **values}))
    return {
        name: site["fn"].log_prob(values[name])
        for name, site in sites.get_trace(X, Y).items()
        if name in values
    }


def values_of(guide, params):
    sites = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), data=params)).get_trace(X, Y)
    return {name: sites[name]["value"] for name in sites if name.endswith(("/u", "/h"))}


@pytest.mark.parametrize(
    "poor, rich, atol",
    [
        (Diagonal(), FullRank(), 1e-9),
        # its factors are a thousandth of the deviations: log q moves by about (rank · 1e-6) z²/2 per coordinate
        (Diagonal(), LowRank(2), 1e-4),
        (Diagonal(), AcrossOutputs(), 1e-9),
        (Diagonal(), Coupled(), 1e-9),
        (FullRank(), AcrossOutputs(), 1e-9),
        (FullRank(), LayerChain(), 1e-9),
        (FullRank(), LayerChain(2), 1e-9),
        (FullRank(), Coupled("full"), 1e-9),
    ],
)
def test_richer_inducing_rules_are_the_poorer_at_their_start(poor, rich, atol):
    guide, params = moved("doubly-stochastic", poor)
    richer = Guide(MODEL, hidden=DoublyStochastic(), inducing=rich)
    values = values_of(guide, params)
    found = log_q(richer, nested_start(guide, richer, params, X, Y), values)
    expected = log_q(guide, params, values)
    for name in ("layer1/u", "layer2/u", "layer3/u"):
        np.testing.assert_allclose(found[name], expected[name], atol=atol)
    assert contains(richer, guide) and not contains(guide, richer)


@pytest.mark.parametrize(
    "poor, rich",
    [
        ("mean-field", MeanField(full=True)),
        ("mean-field", Markov(full=True)),
        ("mean-field", Conditional(across_outputs=True)),
        ("markov", Markov(full=True)),
        ("free", Conditional(across_outputs=True)),
    ],
)
def test_rules_that_correlate_outputs_are_the_poorer_at_their_start(poor, rich):
    guide, params = moved(poor)
    richer = Guide(MODEL, hidden=rich)
    values = values_of(guide, params)
    found = log_q(richer, nested_start(guide, richer, params, X, Y), values)
    expected = log_q(guide, params, values)
    for name in ("layer1/h", "layer2/h"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-9)
    assert contains(richer, guide) and not contains(guide, richer)


def test_a_family_that_is_not_contained_is_refused():
    _, params = moved("mean-field")
    for poor, rich, argument in (
        (Guide(MODEL, hidden=Conditional()), Guide(MODEL, hidden=MeanField()), "hidden"),
        # under t_0 the tied rule does not hold the model's own conditional
        (Guide(MODEL, hidden=DoublyStochastic()), Guide(MODEL, hidden=Conditional(tied=True)), "hidden"),
        (Guide(MODEL, inducing=FullRank()), Guide(MODEL, inducing=Diagonal()), "inducing"),
        (Guide(MODEL, inducing=LayerChain(1)), Guide(MODEL, inducing=LayerChain()), "inducing"),
        (Guide(MODEL, hidden=MeanField(full=True)), Guide(MODEL, hidden=Markov()), "hidden"),
        (Guide(MODEL, inducing=LayerChain(1)), Guide(MODEL, inducing=LayerChain()), "inducing"),
        (Guide(MODEL, hidden=MeanField(full=True)), Guide(MODEL, hidden=Markov()), "hidden"),
        (Guide(MODEL), Guide(deep_gp((2, 1), 3)), "model"),
    ):
        with pytest.raises(ValueError, match=argument):
            nested_start(poor, rich, params, X, Y)


@pytest.mark.slow
def test_the_example_runs():
    assert doctest.testmod(nesting) == (0, 8)


def mean_of(guide, params, x, y, draws=4000):
    """The ELBO, from independent draws, and its standard error."""
    run = jax.jit(jax.vmap(lambda key: -PowerEP(0.0).loss(key, params, guide.model, guide, x, y)))
    values = run(jax.random.split(jax.random.fold_in(KEY, 1), draws))
    return float(values.mean()), float(values.std()) / draws**0.5


TABLE = synthetic.step(50)
STEP_X = jnp.asarray(TABLE.X[:50])
STEP_Y = jnp.asarray((TABLE.y[:50] - TABLE.y[:50].mean()) / TABLE.y[:50].std())
STEP_MODEL = deep_gp((1,), 10)
STEPS = 1500


@cache
def trained(name, inducing, start=None):
    """A guide fitted to the step function, from a poorer one's parameters if that is named."""
    guide = Guide(STEP_MODEL, hidden=RULES[name], inducing=inducing)
    warm = None
    if start is not None:
        poor, params = trained(*start)
        warm = nested_start(poor, guide, params, STEP_X, STEP_Y)
    # a rate that falls to zero, so that the end is not blurred by the steps
    rate = optax.cosine_decay_schedule(0.01, STEPS)
    fit = fit_svi(
        KEY, STEP_MODEL, guide, PowerEP(0.0), STEP_X, STEP_Y, steps=STEPS, learning_rate=rate, start=warm
    )
    return guide, fit.params


PAIRS = [
    ("mean-field", "coupled"),
    ("doubly-stochastic", "coupled"),
    ("mean-field", "markov"),
    ("mean-field", "tied"),
    ("mean-field", "free"),
    ("doubly-stochastic", "doubly-stochastic"),
]


@pytest.mark.slow
@pytest.mark.parametrize("poor, rich", PAIRS)
def test_nested_families_keep_their_order_after_training(poor, rich):
    # the last pair differs in q(u): diagonal, then of full rank
    poorer = (poor, Diagonal() if poor == rich else FullRank())
    low, low_error = mean_of(*trained(*poorer), STEP_X, STEP_Y)
    guide = Guide(STEP_MODEL, hidden=RULES[rich])
    start = nested_start(trained(*poorer)[0], guide, trained(*poorer)[1], STEP_X, STEP_Y)
    begin, begin_error = mean_of(guide, start, STEP_X, STEP_Y)
    assert abs(begin - low) < 4 * np.hypot(begin_error, low_error)
    high, high_error = mean_of(*trained(rich, FullRank(), poorer), STEP_X, STEP_Y)
    assert high > low - 3 * np.hypot(low_error, high_error)
