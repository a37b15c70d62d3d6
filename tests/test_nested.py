"""Nested families keep their order: a richer guide begins where the poorer one ended, and ends no lower."""

import doctest
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import initial, noise_like, on_host
from fast import few
from numpyro import handlers
from rules import MODEL, RULES, X, Y

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
    Optimal,
    nesting,
)
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

KEY = jax.random.PRNGKey(3)


@cache
def moved(name, inducing=FullRank()):  # noqa: B008
    """A guide and its parameters, moved away from where they start."""
    guide = Guide(MODEL, hidden=RULES[name], inducing=inducing)
    return guide, _moved(initial(KEY, MODEL, guide, X, Y))


def _moved(params):
    found = {}
    for position, (site, value) in enumerate(sorted(on_host(params).items())):
        step = 0.1 * noise_like(value, position)
        if site.endswith(("_loc", "inducing", "core")) or "link" in site:
            found[site] = value + step
        elif site.endswith("u_scale") and value.ndim == 3:
            found[site] = value * np.exp(step) + 0.3 * np.eye(value.shape[-1])
        else:
            found[site] = value * np.exp(step)
    return {name: jnp.asarray(value) for name, value in found.items()}


def bound(objective, guide, params, key=KEY):
    return -float(jax.jit(lambda p: objective.loss(key, p, guide.model, guide, X, Y))(params))


def both(name, poor_name="mean-field"):
    poor, params = moved(poor_name)
    rich = Guide(MODEL, hidden=RULES[name])
    return (poor, params), (rich, nested_start(poor, rich, params, X, Y))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    few(["markov", "coupled", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tied", "free"))], 1),
)
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


@pytest.mark.slow
@pytest.mark.parametrize("objective", few([PowerEP(0.5, 3), BlackBoxAlpha(0.0, 2)], 0), ids=repr)
def test_coupled_at_the_models_own_conditional_is_doubly_stochastic(objective):
    (plain, params), (coupled, richer) = both("coupled", "doubly-stochastic")
    # c = 1 and S = s²: a coupled rule starts there
    for layer, width in (("layer1", 2), ("layer2", 1)):
        np.testing.assert_allclose(richer[f"{layer}/h_shrinkage"], np.zeros((6, width)))
        np.testing.assert_allclose(richer[f"{layer}/h_scale"], np.ones((6, width)))
    assert bound(objective, coupled, richer) == pytest.approx(bound(objective, plain, params), abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("objective", few([PowerEP(0.0, 2), BlackBoxAlpha(0.5, 2)], 1), ids=repr)
def test_full_rank_contains_diagonal(objective):
    poor, params = moved("doubly-stochastic", Diagonal())
    rich = Guide(MODEL, hidden=DoublyStochastic(), inducing=FullRank())
    richer = nested_start(poor, rich, params, X, Y)
    assert richer["layer1/u_scale"].shape == (2, 3, 3)
    assert bound(objective, rich, richer) == pytest.approx(bound(objective, poor, params), abs=1e-9)


def log_q(guide, params, values):
    """log q of every latent at the given values of all."""

    def densities(params, values):
        sites = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), data={**params, **values}))
        return {
            name: site["fn"].log_prob(values[name])
            for name, site in sites.get_trace(X, Y).items()
            if name in values
        }

    return jax.jit(densities)(params, values)


def values_of(guide, params):

    def values(params):
        sites = handlers.trace(handlers.substitute(handlers.seed(guide, KEY), data=params)).get_trace(X, Y)
        return {name: sites[name]["value"] for name in sites if name.endswith(("/u", "/h"))}

    return jax.jit(values)(params)


@pytest.mark.parametrize(
    "poor, rich, atol",
    few(
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
            (Optimal(), FullRank(), 1e-9),
            (LowRank(2), FullRank(), 1e-9),
            (LowRank(1), LowRank(2), 1e-4),
            (LowRank(2), LayerChain(), 1e-9),
            (LayerChain(1), LayerChain(2), 1e-9),
            (LayerChain(2), LayerChain(), 1e-9),
            (LayerChain(), Coupled("full"), 1e-9),
            (LayerChain(1), Coupled("full"), 1e-9),
            (Coupled(), Coupled("full"), 1e-9),
        ],
        0,
    ),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "poor, rich",
    few(
        [
            ("mean-field", MeanField(full=True)),
            ("mean-field", Markov(full=True)),
            ("mean-field", Conditional(across_outputs=True)),
            ("markov", Markov(full=True)),
            ("free", Conditional(across_outputs=True)),
        ],
        3,
    ),
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
        (Guide(MODEL, inducing=LayerChain()), Guide(MODEL, inducing=LayerChain(1)), "inducing"),
        (Guide(MODEL, inducing=LowRank(2)), Guide(MODEL, inducing=LowRank(1)), "inducing"),
        (Guide(MODEL, inducing=LayerChain()), Guide(MODEL, inducing=Coupled()), "inducing"),
        (Guide(MODEL, inducing=Coupled("full")), Guide(MODEL, inducing=Coupled()), "inducing"),
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
STEP_MODEL = deep_gp((2,), 8)
STEPS = 1500


@cache
def trained(hidden, inducing, start=None):
    """A guide fitted to the step function, from a poorer one's parameters if that is named."""
    guide = Guide(STEP_MODEL, hidden=hidden, inducing=inducing)
    warm = (
        None if start is None else nested_start(trained(*start)[0], guide, trained(*start)[1], STEP_X, STEP_Y)
    )
    # a rate that falls to zero, so that the end is not blurred by the steps
    rate = optax.cosine_decay_schedule(0.01, STEPS)
    fit = fit_svi(
        KEY, STEP_MODEL, guide, PowerEP(0.0), STEP_X, STEP_Y, steps=STEPS, learning_rate=rate, start=warm
    )
    return guide, fit.params


FIELD, FREE, OWN, FULL = MeanField(), Conditional(free=True), DoublyStochastic(), FullRank()
UNION = Conditional(markov=True)
#: hidden rules with q(u) of full rank, then rules for q(u)
PAIRS = [
    *((poor, FULL, rich, FULL) for poor, rich in [
        (FIELD, MeanField(full=True)), (FIELD, Markov()), (FIELD, Conditional()), (FIELD, Conditional(tied=True)),
        (FIELD, FREE), (OWN, Conditional()), (Markov(), Markov(full=True)), (FREE, Conditional(across_outputs=True)),
        (Markov(), UNION), (Conditional(), UNION),
    ]),
    *((OWN, poor, OWN, rich) for poor, rich in [
        (Diagonal(), LowRank(2)), (LowRank(2), LowRank(4)), (LowRank(2), FULL), (Diagonal(), FULL),
        (FULL, AcrossOutputs()), (FULL, LayerChain(2)), (LayerChain(2), LayerChain()), (FULL, Coupled()),
        (LayerChain(), Coupled("full")), (Coupled(), Coupled("full")),
    ]),
    (Conditional(), FULL, Conditional(), LayerChain()),
]  # fmt: skip


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}<{pair[2]}-{pair[3]}")
def test_nested_families_keep_their_order_after_training(pair):
    poor, rich = pair[:2], pair[2:]
    low, low_error = mean_of(*trained(*poor), STEP_X, STEP_Y)
    guide = Guide(STEP_MODEL, hidden=rich[0], inducing=rich[1])
    start = nested_start(trained(*poor)[0], guide, trained(*poor)[1], STEP_X, STEP_Y)
    begin, begin_error = mean_of(guide, start, STEP_X, STEP_Y)
    assert abs(begin - low) < 4 * np.hypot(begin_error, low_error)
    high, high_error = mean_of(*trained(*rich, poor), STEP_X, STEP_Y)
    assert high > low - 3 * np.hypot(low_error, high_error)


@pytest.mark.campaign
@pytest.mark.slow
def test_the_bound_rises_along_the_links_where_q_of_h_depends_on_u():
    """Its slope is not 0 at the optimum without them, as it is for mean fields (4.5); test_structured has the gain."""
    poorer, params = trained(Conditional(), FULL)
    guide = Guide(STEP_MODEL, hidden=Conditional(), inducing=LayerChain())
    params = nested_start(poorer, guide, params, STEP_X, STEP_Y)
    (site,) = (name for name in params if name.endswith("u_link"))

    def slope(key):
        bound = lambda link: (
            -PowerEP(0.0).loss(key, {**params, site: link}, STEP_MODEL, guide, STEP_X, STEP_Y)
        )
        return jax.grad(bound)(params[site]).ravel()

    found = jax.jit(lambda keys: jax.lax.map(slope, keys))(jax.random.split(KEY, 4000))
    # the squared norm of its mean from two halves that share no draw, and what it would be off by if it were 0
    first, second = found[::2].mean(0), found[1::2].mean(0)
    error = jnp.linalg.norm(jnp.cov(found.T) / 2000)
    assert first @ second > 5 * error
