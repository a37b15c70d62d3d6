"""p(z | y) of discrete latents against every combination by hand."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import chisquare, norm
from test_discrete_layers import (
    NODES,
    NOISE,
    PI,
    WEIGHTS,
    Z1,
    Z2,
    gp,
    parameters,
    rows_by_quadrature,
    tempered,
)
from test_discrete_layers import X as ROWS
from test_discrete_layers import Y as TARGETS
from test_discrete_layers import model as layered
from test_outside_sum import CENTRES, MOVES, Y, chain, change_point, nothing
from test_outside_sum import PI as BEGIN

from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.fit import Posterior
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide, MeanField
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.prediction.predict import log_likelihood, predict
from ppl_dgp.prediction.responsibilities import discrete_draws, responsibilities

KEY = jax.random.PRNGKey(1)


def without_inputs(x, y):
    return chain(y)


def test_of_a_chain_and_of_a_site_beside_it():
    log_p = np.empty((2, *[3] * 4))
    for s, *z in product(range(2), *[range(3)] * 4):
        log_p[(s, *z)] = np.log([0.6, 0.4][s]) + np.log(BEGIN[z[0]]) + np.log(MOVES[z[:-1], z[1:]]).sum()
        log_p[(s, *z)] += norm.logpdf(Y, CENTRES[z], 0.5 + s).sum()
    shares = np.exp(log_p - logsumexp(log_p))
    guide = lambda x, y: nothing()
    found = responsibilities(KEY, Posterior(without_inputs, guide, {}), None, Y, num_samples=1)
    assert sorted(found) == ["s", "z_0", "z_1", "z_2", "z_3"]
    with pytest.raises(ValueError, match="y: found nan at row 1, column 0"):
        responsibilities(
            KEY, Posterior(without_inputs, guide, {}), None, np.where(np.arange(4) == 1, np.nan, Y)
        )
    for axis, name in enumerate(sorted(found)):
        others = tuple(other for other in range(5) if other != axis)
        np.testing.assert_allclose(found[name], shares.sum(others), atol=1e-6)


def assert_drawn_from(log_p, drawn):
    """Draws of several sites, numbers of values (S, sites), against log p of every combination: Pearson's test."""
    expected = np.exp(log_p - logsumexp(log_p)) * len(drawn)
    found = np.zeros_like(expected)
    np.add.at(found, tuple(drawn.T), 1)
    often = expected > 5.0
    rest = lambda counts: np.append(counts[often], counts[~often].sum())
    assert often.sum() > 10
    assert chisquare(rest(found), rest(expected)).pvalue > 1e-3


@pytest.mark.slow
def test_joint_draws_of_a_chain_are_those_of_every_combination():
    """Regimes that follow each other, and a site beside them: what responsibilities say nothing of."""
    log_p = np.empty((2, *[3] * 4))
    for s, *z in product(range(2), *[range(3)] * 4):
        log_p[(s, *z)] = np.log([0.6, 0.4][s]) + np.log(BEGIN[z[0]]) + np.log(MOVES[z[:-1], z[1:]]).sum()
        log_p[(s, *z)] += norm.logpdf(Y, CENTRES[z], 0.5 + s).sum()
    guide = lambda x, y: nothing()
    found = discrete_draws(KEY, Posterior(without_inputs, guide, {}), None, Y, num_samples=2000)
    assert sorted(found) == ["s", "z_0", "z_1", "z_2", "z_3"]
    assert_drawn_from(log_p, np.stack([found[name] for name in sorted(found)], 1))


def each_row_and_all(x, y):
    """A kind of all rows, and one of each."""
    k = numpyro.sample("k", dist.Categorical(jnp.asarray(BEGIN)), infer={"enumerate": "parallel"})
    with data_plate(len(Y)):
        r = numpyro.sample("r", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(jnp.asarray(CENTRES)[k] * (1.0 - 0.5 * r), 1.0), obs=y)


@pytest.mark.slow
def test_joint_draws_of_rows_agree_with_what_all_rows_share():
    log_p = np.empty((3, *[2] * 4))
    for k, *r in product(range(3), *[range(2)] * 4):
        rows = np.asarray(r)
        log_p[(k, *r)] = np.log(BEGIN[k]) + np.log(np.where(rows, 0.3, 0.7)).sum()
        log_p[(k, *r)] += norm.logpdf(Y, CENTRES[k] * (1.0 - 0.5 * rows), 1.0).sum()
    fit = Posterior(each_row_and_all, lambda x, y: nothing(), {})
    found = discrete_draws(KEY, fit, None, Y, num_samples=2000)
    assert found["r"].shape == (2000, 4)
    assert_drawn_from(log_p, np.column_stack([found["k"], found["r"]]))


@pytest.mark.slow
def test_shares_of_draws_are_responsibilities_behind_a_hidden_layer():
    guide = Guide(layered, hidden=DoublyStochastic())
    params, _ = parameters(layered, guide)
    fit = Posterior(layered, guide, params)
    drawn = fit.discrete_draws(KEY, ROWS, TARGETS, num_samples=4000)["z"]
    shares = responsibilities(KEY, fit, ROWS, TARGETS, num_samples=4000)["z"][:, 1]
    np.testing.assert_allclose(drawn.mean(0), shares, atol=4 * 0.5 * (2 / 4000) ** 0.5)


@pytest.mark.slow
def test_of_rows_behind_a_hidden_layer():
    """E_q(h) p(z_n | h_n, y_n), by quadrature in h; not p(z_n | y_n) of means."""
    guide = Guide(layered, hidden=DoublyStochastic())
    params, _ = parameters(layered, guide)
    mean, residual = gp(0.5, 0.8, Z1, np.asarray(params["layer1/u_loc"]), ROWS[:, 0], 1.0)
    expected = []
    for n in range(len(ROWS)):
        h = mean[n, 0] + np.sqrt(residual[n] + 0.15) * NODES
        after, variance = gp(1.0, 0.6, Z2, np.asarray(params["layer2/u_loc"]), h)
        log_p = [np.log(PI[z]) + tempered(TARGETS[n], after[:, z], variance, NOISE[z], 1.0) for z in range(2)]
        expected.append(np.exp(log_p - logsumexp(log_p, axis=0)) @ WEIGHTS)
    found = responsibilities(KEY, Posterior(layered, guide, params), ROWS, TARGETS, num_samples=20_000)["z"]
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=4 * 0.5 / 20_000**0.5)


def test_a_model_without_discrete_latents_is_refused():
    plain = sparse_gp_regression(2)
    for verb in (responsibilities, discrete_draws):
        with pytest.raises(ValueError, match="without discrete latents"):
            verb(KEY, Posterior(plain, Guide(plain), {}), ROWS, TARGETS)


def test_the_density_of_rows_given_a_draw_is_summed_over_their_values():
    """log Σ_z π_z N(y; g_z(h), D + s²) at the draw of h; averaged over draws it is that of the quadrature."""
    guide = Guide(layered, hidden=DoublyStochastic())
    params, _ = parameters(layered, guide)
    mean, residual = gp(0.5, 0.8, Z1, np.asarray(params["layer1/u_loc"]), ROWS[:, 0], 1.0)
    fit = Posterior(layered, guide, params)
    drawn = jax.jit(jax.vmap(lambda key: log_likelihood(key, fit, ROWS, TARGETS)))
    found = np.asarray(drawn(jax.random.split(KEY, 20_000)))
    for n in range(len(ROWS)):
        h = mean[n, 0] + np.sqrt(residual[n] + 0.15) * NODES
        after, variance = gp(1.0, 0.6, Z2, np.asarray(params["layer2/u_loc"]), h)
        by_value = [
            np.log(PI[z]) + tempered(TARGETS[n], after[:, z], variance, NOISE[z], 1.0) for z in range(2)
        ]
        expected = WEIGHTS @ logsumexp(by_value, axis=0)
        assert found[:, n].mean() == pytest.approx(expected, abs=4 * found[:, n].std() / 20_000**0.5)


def test_new_rows_of_a_site_that_all_rows_share_are_refused():
    params = {"gp/u_loc": jnp.zeros((2, 3)), "gp/u_scale": jnp.broadcast_to(jnp.eye(3), (2, 3, 3))}
    with pytest.raises(ValueError, match="'tau' outside the data plate, whose value new rows share"):
        predict(KEY, Posterior(change_point, Guide(change_point), params), np.zeros((4, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [DoublyStochastic(), pytest.param(MeanField(), marks=pytest.mark.slow)])
def test_weights_of_diagnostics_are_summed_over_the_values_of_rows(rule):
    """log p(y_n | u) of FITC, of which bounds, k-hat and LOO are made."""
    guide = Guide(layered, hidden=rule)
    params, _ = parameters(layered, guide)
    fit = Posterior(layered, guide, params)
    found = joint_draws(KEY, fit, ROWS, TARGETS, num_draws=8, num_locals=1000).log_likelihood
    expected = rows_by_quadrature(params, 1.0, isinstance(rule, DoublyStochastic), False)
    error = found.std(0) / 8**0.5
    np.testing.assert_array_less(np.abs(found.mean(0) - expected), 6.0 * error + 2e-3)


def test_diagnostics_by_row_refuse_sites_that_all_rows_share():
    params = {"gp/u_loc": jnp.zeros((2, 3)), "gp/u_scale": jnp.broadcast_to(jnp.eye(3), (2, 3, 3))}
    with pytest.raises(ValueError, match="'tau'] outside the data plate, expected none"):
        joint_draws(
            KEY, Posterior(change_point, Guide(change_point), params), np.zeros((4, 1)), np.zeros((4, 1))
        )
