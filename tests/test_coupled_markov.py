"""``Conditional(markov=True)``: its weight by quadrature, and at its corners the rules that it unites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial, loss, on_host, refuse
from fast import few, seldom
from numpyro import handlers
from rules import MODEL, RULES, X, Y
from scipy import stats
from test_gpssm import CONTROLS, moved, prepared
from test_gpssm import Y as SERIES
from test_nested import bound
from test_nested import moved as moved_layers

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian
from ppl_dgp.models import deep_gp, deep_gplvm
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(4)
UNION = Conditional(markov=True)
POORER = {
    "mean-field": MeanField(),
    "markov": Markov(),
    "coupled": Conditional(),
    "doubly-stochastic": DoublyStochastic(),
}
NOISES = jnp.array([0.1, 0.3])


def step_and_value(rows=3, width=3):
    """A step of two outputs at h⁻ of several dimensions, the moments of f given, and a value of h."""
    rng = np.random.default_rng(5)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    function = SparseGP("f", RBF(1.0, 1.0), jnp.zeros((1, width)), jnp.eye(1), Zero(2), jnp.zeros((2, 1)))
    spread = jnp.exp(0.3 * normal(rows, 2))
    marginal = Marginal(
        function, normal(rows, width), jnp.ones((rows, 1)), normal(rows, 2), 0.5 * spread, 0.0 * spread
    )
    params = {
        "shrinkage": 1.0 + 0.5 * normal(rows, 2),
        "slope": 0.5 * normal(rows, 2, width),
        "loc": normal(rows, 2),
        "scale": jnp.exp(0.3 * normal(rows, 2)),
    }
    return Emission(marginal, Gaussian(NOISES)), params, normal(rows, 2)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_weight_is_the_integral_over_f(alpha):
    """(1/α) log ∫ q(f | h) (p(h | f) / q(h | f))^α df, output by output; and q(h) itself."""
    step, params, value = step_and_value()
    p = on_host(params)
    h, mean, variance = (np.asarray(a) for a in (value, step.marginal.mean, step.marginal.variance))
    noise = np.asarray(NOISES)
    c = 1.0 - p["shrinkage"] * np.sqrt(noise)
    line = np.einsum("bqp,bp->bq", p["slope"], np.asarray(step.marginal.inputs)) + p["loc"]
    log_q, expected = np.zeros(3), np.zeros(3)
    for n, k in np.ndindex(h.shape):
        f = np.linspace(-12.0, 12.0, 40_001)
        given = stats.norm.logpdf(
            h[n, k], c[n, k] * f + (1 - c[n, k]) * line[n, k], p["scale"][n, k] * noise[k] ** 0.5
        )
        joint = np.exp(given) * stats.norm.pdf(f, mean[n, k], variance[n, k] ** 0.5)
        density = np.trapezoid(joint, f)
        ratio = stats.norm.logpdf(h[n, k], f, noise[k] ** 0.5) - given
        if alpha:
            term = np.log(np.trapezoid(joint / density * np.exp(alpha * ratio), f)) / alpha
        else:
            term = np.trapezoid(joint / density * ratio, f)
        log_q[n] += np.log(density)
        expected[n] += term
    np.testing.assert_allclose(UNION.log_weight(params, step, value, alpha), expected, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(UNION.conditional(params, step).log_prob(value), log_q, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_corners_are_the_rules_that_it_unites(alpha):
    """Weight and density: c = 0 is ``Markov``, T = 0 the coupled rule, both a mean field; c = 1, S = s² the model's."""
    step, params, value = step_and_value()
    without_f = {"shrinkage": jnp.broadcast_to(1.0 / jnp.sqrt(NOISES), value.shape)}
    without_line = {"slope": jnp.zeros_like(params["slope"])}
    model = {"shrinkage": jnp.zeros_like(value), "scale": jnp.ones_like(value)}
    for rule, corner in (
        (Markov(), without_f),
        (Conditional(), without_line),
        (MeanField(), without_f | without_line),
        (DoublyStochastic(), model),
    ):
        found = UNION.log_weight(params | corner, step, value, alpha)
        np.testing.assert_allclose(
            found, rule.log_weight(params, step, value, alpha), rtol=0.0, atol=1e-12, err_msg=repr(rule)
        )
        density = UNION.conditional(params | corner, step).log_prob(value)
        expected = rule.conditional(params, step).log_prob(value)
        np.testing.assert_allclose(density, expected, rtol=0.0, atol=1e-12, err_msg=repr(rule))


@pytest.mark.slow
@pytest.mark.parametrize("poorer", few(POORER, 1))
@pytest.mark.parametrize("alpha", seldom([0.0, 0.5], 1))
def test_nested_start_of_layers_has_the_poorer_bound(alpha, poorer):
    """The same key, so the same draws. What T says of data in the first layer M has absorbed."""
    guide, params = moved_layers(poorer)
    union = Guide(MODEL, hidden=UNION)
    start = nested_start(guide, union, params, X, Y)
    assert start.keys() == initial(KEY, MODEL, union, X, Y).keys()
    assert contains(union, guide) and not contains(guide, union)
    objective = PowerEP(alpha, 2)
    assert bound(objective, union, start) == pytest.approx(bound(objective, guide, params), abs=1e-9)


@pytest.mark.parametrize("poorer", few(POORER, 1))
@pytest.mark.slow
def test_nested_start_of_a_trajectory_is_the_poorer(poorer):
    """At one path of two dimensions: the density of all its steps, and its weight at every α."""
    model, guide, params = prepared(POORER[poorer], CONTROLS, latent=2)
    params, union = moved(params, 0.4), Guide(model, hidden=UNION)
    start = nested_start(guide, union, params, CONTROLS, SERIES)

    def of_path(guide, params):
        run = handlers.substitute(handlers.seed(guide, KEY), params | values)
        q = handlers.trace(run).get_trace(CONTROLS, SERIES)["x"]["fn"]
        return [q.log_prob(values["x"]), *(q.log_weight(values["x"], alpha) for alpha in (0.0, 0.5, 1.0))]

    values = {"x": 0.5 * jax.random.normal(KEY, (7, 2)), "transition/u": 0.3 * jnp.ones((2, 3))}
    found, expected = (
        jax.jit(of_path, static_argnums=0)(*pair) for pair in ((union, start), (guide, params))
    )
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-9)


@pytest.mark.slow
def test_a_first_layer_has_no_slope():
    """Its h⁻ is data; of minibatches too. Behind a latent there is one."""
    guide = Guide(MODEL, hidden=UNION)
    for rows in ({}, {"index": jnp.arange(4), "size": 6}):
        n = 4 if rows else 6
        sites = handlers.trace(handlers.seed(guide, KEY)).get_trace(X[:n], Y[:n], **rows)
        shapes = {name: site["value"].shape for name, site in sites.items() if site["type"] == "param"}
        assert {name for name in shapes if name.endswith("slope")} == {"layer2/h_slope"}
        # the whole data set's, of which the plate gathers those at hand
        assert shapes["layer2/h_slope"] == (6, 1, 2)


@pytest.mark.parametrize("poorer", few(POORER, 1))
@pytest.mark.slow
def test_behind_a_latent_the_first_layer_has_a_slope(poorer):
    """A deep GPLVM's latents have no GP in front, and the same Gaussian under each of these rules."""
    model, rows = deep_gplvm(3, 2, (2,), 4), jnp.zeros((6, 0))
    y = jnp.cos(jnp.arange(18.0)).reshape(6, 3)
    guide, union = Guide(model, hidden=POORER[poorer]), Guide(model, hidden=UNION)
    params = moved(initial(KEY, model, guide, rows, y), 0.1)
    start = nested_start(guide, union, params, rows, y)
    assert start["layer1/h_slope"].shape == (6, 2, 2)
    found, expected = (
        loss(PowerEP(0.0), each, model, of, rows, y) for each, of in ((start, union), (params, guide))
    )
    assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_it_starts_at_the_models_own_conditional():
    """As the coupled rule does: the same draws, the same number."""
    own, union = Guide(MODEL), Guide(MODEL, hidden=UNION)
    params = initial(KEY, MODEL, own, X, Y)
    expected = loss(PowerEP(0.5, 2), params, MODEL, own, X, Y)
    start = initial(KEY, MODEL, union, X, Y) | params
    assert loss(PowerEP(0.5, 2), start, MODEL, union, X, Y) == pytest.approx(expected, abs=1e-8)


def test_it_holds_no_rule_with_correlated_noise_and_none_holds_it():
    for rule in (Markov(full=True), MeanField(full=True), Conditional(tied=True), Conditional(free=True)):
        assert UNION.contains(rule) is None
    assert all(rule.contains(UNION) is None for rule in RULES.values())
    with pytest.raises(
        ValueError, match=r"richer: found hidden=Markov.*which does not contain CoupledMarkov"
    ):
        nested_start(Guide(MODEL, hidden=UNION), Guide(MODEL, hidden=Markov()), {}, X, Y)


@pytest.mark.slow
def test_it_is_refused_where_what_follows_f_is():
    guide, params = Guide(MODEL, hidden=UNION), initial(KEY, MODEL, Guide(MODEL, hidden=UNION), X, Y)
    with pytest.raises(TypeError, match="CoupledMarkov: found no closed form of its moments"):
        refuse(PowerEP(0.0, propagation="moments"), params, MODEL, guide, X, Y)


def test_in_32_bits():
    """A draw's weight, in numbers of the same digits."""
    step, params, value = step_and_value()
    wide = UNION.log_weight(params, step, value, 0.5)
    cast = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    marginal = step.marginal
    narrow = Marginal(marginal.function, *cast(tuple(getattr(marginal, part) for part in ("inputs", "weights", "mean", "residual", "from_u"))))  # fmt: skip  # noqa: E501
    found = UNION.log_weight(cast(params), Emission(narrow, Gaussian(cast(NOISES))), cast(value), 0.5)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wide, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_a_model_that_draws_its_rows_has_the_same_parameters():
    model = deep_gp((2, 1), 3, subsample_size=2)
    params = initial(KEY, model, Guide(model, hidden=UNION), X, Y)
    assert "layer1/h_slope" not in params and params["layer2/h_slope"].shape == (6, 1, 2)
