"""What links between the inducing outputs of layers gain, beside the bound by quadrature over two slopes.

Two linear layers of one slope each, w_l ~ N(0, 1): h_n ~ N(w_1 x_n, s_1), y_n ~ N(w_2 h_n, s_2). At the inducing input
1 a layer's u is its slope, and nothing of f is left beside it. With h from the model's own conditional the bound is

    Σ_n E[−½ log 2π s_2 − ((y_n − w_1 w_2 x_n)² + w_2² s_1) / 2 s_2] − KL[q(w_1, w_2) ‖ p],

the mean of a polynomial of degree four under q: slopes whose product is known are told to be independent at a price.
With a q(h_n) of its own it falls apart into a part of w_1 and one of w_2, and links are worth nothing.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from scipy import optimize

from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Coupled, DoublyStochastic, FullRank, Guide, LayerChain, MeanField
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.kernels import Linear
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(2)
X = np.linspace(-1.0, 1.0, 6)
Y = 1.5 * X + 0.1 * np.cos(5.0 * X)
NOISES = (0.01, 0.05)
#: q(h_n) where it is one of its own
H_LOC, H_SCALE = 1.3 * X, 0.15
DATA = jnp.asarray(X[:, None]), jnp.asarray(Y[:, None])


def model(x, y=None, index=None, size=None):
    f, g = (sparse_gp(f"layer{i}", Linear(1.0), jnp.ones((1, 1)), jitter=1e-14) for i in (1, 2))
    with data_plate(6):
        h = offer("layer1/h", numpyro.sample("layer1/h", f(x).noisy(NOISES[0]), infer={"role": "hidden"}))
        numpyro.sample("y", g(h).noisy(NOISES[1]), obs=y)


def bound(q, own_h=False):
    """By Gauss–Hermite nodes, exact for polynomials; q is m_1, log s_1, m_2, log s_2 and the link."""
    m_1, log_1, m_2, log_2, link = q
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    a, b = np.meshgrid(nodes, nodes, indexing="ij")
    weights = np.outer(weights, weights) / weights.sum() ** 2
    w_1 = m_1 + np.exp(log_1) * a
    w_2 = m_2 + link * (w_1 - m_1) + np.exp(log_2) * b
    total = -0.5 * (w_1**2 + w_2**2) + 0.5 * (a**2 + b**2) + log_1 + log_2
    for x, y, loc in zip(X, Y, H_LOC, strict=True):
        mean, variance = (loc, H_SCALE**2) if own_h else (w_1 * x, NOISES[0])
        squares = (y - w_2 * mean) ** 2 + w_2**2 * variance
        total = total - 0.5 * np.log(2.0 * np.pi * NOISES[1]) - 0.5 * squares / NOISES[1]
        if own_h:
            squares = (loc - w_1 * x) ** 2 + H_SCALE**2
            total = total - 0.5 * np.log(NOISES[0]) - 0.5 * squares / NOISES[0] + 0.5 + np.log(H_SCALE)
    return float((weights * total).sum())


@cache
def best(links, own_h=False):
    """The optimum by SciPy, with links or without, and its value."""
    full = lambda q: q if links else np.append(q, 0.0)
    start = np.array([1.2, -1.0, 1.2, -1.0, -0.3][: 4 + links])
    found = optimize.minimize(lambda q: -bound(full(q), own_h), start, method="BFGS", options={"gtol": 1e-8})
    return full(found.x), -found.fun


def parameters(q, link=None):
    m_1, log_1, m_2, log_2, slope = q
    found = {"layer1/u_loc": [[m_1]], "layer2/u_loc": [[m_2]]}
    found |= {"layer1/u_scale": [[[np.exp(log_1)]]], "layer2/u_scale": [[[np.exp(log_2)]]]}
    if link is not None:
        found[link] = [[[[slope]]]]
    return {name: jnp.array(value) for name, value in found.items()}


def mean_of(guide, params, draws=20_000):
    """Bound and gradient averaged over keys, and their standard errors."""
    one = jax.value_and_grad(lambda p, key: -PowerEP(0.0).loss(key, p, model, guide, *DATA))
    values, slopes = jax.jit(jax.vmap(one, (None, 0)))(params, jax.random.split(KEY, draws))
    mean_and_error = lambda each: (np.asarray(each.mean(0)), np.asarray(each.std(0)) / draws**0.5)
    return mean_and_error(values), {name: mean_and_error(each) for name, each in slopes.items()}


LINKED = {LayerChain(): "layer2/u_link", Coupled("full"): "layer2/u_link_layer1_u"}


@pytest.mark.parametrize("rule", [LayerChain(), pytest.param(Coupled("full"), marks=pytest.mark.slow)])
def test_links_gain_what_quadrature_says(rule):
    """Nine tenths of a nat: both optima are SciPy's, value and gradient."""
    values = {}
    for inducing, links in ((FullRank(), False), (rule, True)):
        q, expected = best(links)
        guide = Guide(model, hidden=DoublyStochastic(), inducing=inducing)
        params = parameters(q, LINKED[rule] if links else None)
        values[links], slopes = mean_of(guide, params)
        value, error = values[links]
        assert abs(value - expected) < 4.0 * error
        for name, (slope, of_slope) in slopes.items():
            assert np.all(np.abs(slope) < 4.5 * of_slope), name
    assert best(True)[1] - best(False)[1] == pytest.approx(0.9249, abs=1e-3)
    (poor, poor_error), (rich, rich_error) = values[False], values[True]
    assert rich - poor > 0.9249 - 4.0 * np.hypot(poor_error, rich_error) > 0.85


def with_own_h(params):
    """q(h) is kept in units of the layer's noise."""
    scale = jnp.full((6, 1), H_SCALE / NOISES[0] ** 0.5)
    return params | {"layer1/h_loc": jnp.asarray(H_LOC[:, None]), "layer1/h_scale": scale}


@pytest.mark.slow
def test_links_gain_nothing_beside_a_mean_field():
    """SciPy's optimum has none (Chamberlin 4.5), and a link costs what quadrature says."""
    q, expected = best(True, own_h=True)
    assert abs(q[-1]) < 1e-6
    assert expected == pytest.approx(best(False, own_h=True)[1], abs=1e-8)
    guide = Guide(model, hidden=MeanField(), inducing=LayerChain())
    q[-1] = -2.0
    assert bound(q, own_h=True) < expected - 0.5
    (value, error), _ = mean_of(guide, with_own_h(parameters(q, "layer2/u_link")))
    assert abs(value - bound(q, own_h=True)) < 4.0 * error


@pytest.mark.slow
def test_training_reaches_what_links_gain():
    """From the optimum without links, by Adam on draws, to within a twentieth of the gain."""
    poor, rich = (
        Guide(model, hidden=DoublyStochastic(), inducing=rule) for rule in (FullRank(), LayerChain())
    )
    start = nested_start(poor, rich, parameters(best(False)[0]), *DATA)
    fit = fit_svi(KEY, model, rich, PowerEP(0.0, 8), *DATA, steps=3000, learning_rate=0.02, start=start)
    (value, error), _ = mean_of(rich, fit.params)
    gain = best(True)[1] - best(False)[1]
    assert value > best(True)[1] - 0.05 * gain - 4.0 * error
    assert value < best(True)[1] + 4.0 * error


def test_a_linear_layer_is_its_slope():
    """What the quadrature rests on: f(x) = u x, with no variance left."""
    with handlers.seed(rng_seed=0), handlers.substitute(data={"layer1/u": jnp.array([[0.7]])}):
        at = sparse_gp("layer1", Linear(1.0), jnp.ones((1, 1)), jitter=1e-14)(DATA[0])
    np.testing.assert_allclose(at.mean, 0.7 * DATA[0], atol=1e-12)
    np.testing.assert_allclose(at.variance, 0.0, atol=1e-12)
