"""Discrete latents outside the data plate, and chains: every combination by hand, NumPyro's enumeration, refusals."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss, refuse
from fast import few
from numpyro import handlers
from numpyro.contrib.funsor import enum, log_density, markov
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.objectives import BlackBoxAlpha, ImportanceWeighted, PowerEP
from ppl_dgp.objectives.outside_sum import OutsideSum

KEY = jax.random.PRNGKey(2)
Y = np.array([0.3, 2.1, -0.7, 1.9])
CENTRES, PI = np.array([-1.0, 0.5, 2.0]), np.array([0.2, 0.5, 0.3])
MOVES = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.05, 0.15, 0.8]])
LOC, SCALE = np.array([0.2, 1.0, -0.5, 1.5]), 0.6


def nothing(*args, **kwargs):
    pass


def whole(y):
    """All rows have one centre and another latent each, whose q is not the posterior; a row's own z beside them."""
    k = numpyro.sample("k", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
    with data_plate(len(Y)):
        r = numpyro.sample("r", dist.Bernoulli(0.3))
        h = numpyro.sample("h", dist.Normal(jnp.asarray(CENTRES)[k], 1.0))
        numpyro.sample("y", dist.Normal(h * (1.0 - 0.5 * r), 0.5), obs=y)


def guide_of_h(y):
    with data_plate(len(Y)):
        numpyro.sample("h", dist.Normal(jnp.asarray(LOC), SCALE))


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_each_row_has_its_power_mean_given_what_all_rows_share(alpha):
    """log Σ_k π_k Π_n [E_q(h_n) (Σ_r w)^α]^(1/α), h by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    h = LOC[:, None] + SCALE * nodes
    by_k = []
    for k in range(3):
        log_y = [np.log(p) + norm.logpdf(Y[:, None], h * (1 - 0.5 * r), 0.5) for r, p in ((0, 0.7), (1, 0.3))]
        log_w = (
            logsumexp(log_y, axis=0) + norm.logpdf(h, CENTRES[k], 1.0) - norm.logpdf(nodes) + np.log(SCALE)
        )
        rows = logsumexp(alpha * log_w, b=weights / weights.sum(), axis=1) / alpha
        by_k.append(np.log(PI[k]) + rows.sum())
    run = lambda key: -PowerEP(alpha, 4000).loss(key, {}, whole, guide_of_h, jnp.asarray(Y))
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 16)))
    assert values.mean() == pytest.approx(logsumexp(by_k), abs=5.0 * values.std() / 4.0 + 1e-3)


def test_at_alpha_0_it_is_averaged_over_the_draws_of_all_rows():
    """E_q(h) log Σ_k π_k Π_n Σ_r w_n: the best q(k, r | h)."""
    random = np.random.default_rng(0)
    h = LOC + SCALE * random.normal(size=(200_000, 4))
    by_k = []
    for k in range(3):
        log_y = [np.log(p) + norm.logpdf(Y, h * (1 - 0.5 * r), 0.5) for r, p in ((0, 0.7), (1, 0.3))]
        log_w = logsumexp(log_y, axis=0) + norm.logpdf(h, CENTRES[k], 1.0) - norm.logpdf(h, LOC, SCALE)
        by_k.append(np.log(PI[k]) + log_w.sum(1))
    expected = logsumexp(by_k, axis=0)
    run = lambda key: -PowerEP(0.0, 2).loss(key, {}, whole, guide_of_h, jnp.asarray(Y))
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 20_000)))
    error = (values.var() / 20_000 + expected.var() / 200_000) ** 0.5
    assert values.mean() == pytest.approx(expected.mean(), abs=4.0 * error)


def chain(y, steps=markov):
    """Regimes of a Markov chain, each step with data of its own; a site that is no step of it, all data depend on."""
    s = numpyro.sample("s", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
    z = None
    for t in steps(range(len(Y))) if steps is not None else range(len(Y)):
        prior = jnp.asarray(PI) if z is None else jnp.asarray(MOVES)[z]
        z = numpyro.sample(f"z_{t}", dist.Categorical(prior), infer={"enumerate": "parallel"})
        numpyro.sample(f"y_{t}", dist.Normal(jnp.asarray(CENTRES)[z], 0.5 + s), obs=y[t])


def chain_by_hand():
    total = []
    for s, *z in product(range(2), *[range(3)] * len(Y)):
        prior = np.log([0.6, 0.4][s]) + np.log(PI[z[0]]) + np.log(MOVES[z[:-1], z[1:]]).sum()
        total.append(prior + norm.logpdf(Y, CENTRES[z], 0.5 + s).sum())
    return logsumexp(total)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_chain_is_summed_over_all_its_paths(alpha):
    found = -loss(PowerEP(alpha, 1), {}, chain, nothing, jnp.asarray(Y))
    assert found == pytest.approx(chain_by_hand(), abs=1e-9)


@pytest.mark.slow
def test_funsor_enumerates_the_chain_to_the_same():
    theirs = log_density(enum(chain, -1), (jnp.asarray(Y),), {}, {})[0]
    ours = -loss(PowerEP(0.5, 1), {}, lambda y: chain(y, None), nothing, jnp.asarray(Y))
    assert ours == pytest.approx(float(theirs), abs=1e-5)


def test_a_long_chain_runs_the_model_no_more_often_than_a_short_one():
    """K² times: two colours, whatever its length."""
    for steps in (3, 12):
        names = [f"z_{t}" for t in range(steps)]
        model = {
            name: {"value": jnp.zeros((), int), "fn": dist.Categorical(jnp.asarray(PI))} for name in names
        }

        def factors(values, steps=steps):
            found = {"z_0": values["z_0"] * 1.0}
            for t in range(1, steps):
                found[f"z_{t}"] = 1.0 * values[f"z_{t}"] + values[f"z_{t - 1}"]
                found[f"y_{t}"] = 2.0 * values[f"z_{t}"]
            return found

        assert OutsideSum.of(names, model, factors).sizes == [3, 3]


X, Z = np.linspace(-1.0, 1.0, 4)[:, None], np.array([[-0.8], [0.1], [0.9]])


def change_point(x, y=None):
    """Rows before and after a row that is not known are of two functions."""
    f = sparse_gp("gp", RBF(1.0, jnp.array([0.6])), jnp.asarray(Z), 2)
    tau = numpyro.sample("tau", dist.Categorical(jnp.ones(5) / 5), infer={"enumerate": "parallel"})
    with data_plate(4):
        after = (jnp.arange(4) >= tau).astype(int)
        numpyro.sample("y", f(x).output(after).noisy(0.1), obs=y)


def test_at_alpha_1_its_exponential_averages_to_the_fitc_evidence_over_change_points():
    def at(u):
        def guide(x, y):
            numpyro.sample("gp/u", dist.Delta(u, event_dim=2), infer={"role": "inducing"})

        value = -PowerEP(1.0, 1).loss(KEY, {}, change_point, guide, jnp.asarray(X), jnp.asarray(Y[:, None]))
        return value - dist.Normal().log_prob(u).sum()

    values = np.exp(np.asarray(jax.jit(jax.vmap(at))(jax.random.normal(KEY, (100_000, 2, 3)))))
    k = lambda a, b: np.exp(-0.5 * ((a - b.T) / 0.6) ** 2)
    phi = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + 1e-8 * np.eye(3)), k(Z, X)).T
    evidence = 0.0
    for tau in range(5):
        after = np.arange(4) >= tau
        covariance = np.equal.outer(after, after) * (phi @ phi.T) + np.diag(1.1 - np.square(phi).sum(1))
        evidence += multivariate_normal.pdf(Y, np.zeros(4), covariance) / 5
    assert values.mean() == pytest.approx(evidence, abs=4.0 * values.std() / 100_000**0.5)


@pytest.mark.parametrize("alpha", few([0.0, 0.5], 1))
def test_u_is_one_draw_for_all_rows_that_share_a_site(alpha):
    """E_u log Σ_τ Π_n exp t_α, by draws of u in NumPy; with u of each row its own it is another number."""
    program = Guide(change_point)
    random = np.random.default_rng(1)
    loc, scale = random.normal(size=(2, 3)), 0.7
    params = {"gp/u_loc": jnp.asarray(loc), "gp/u_scale": scale * jnp.broadcast_to(jnp.eye(3), (2, 3, 3))}
    k = lambda a, b: np.exp(-0.5 * ((a - b.T) / 0.6) ** 2)
    phi = np.linalg.solve(np.linalg.cholesky(k(Z, Z) + 1e-8 * np.eye(3)), k(Z, X)).T
    residual, s2 = 1.0 - np.square(phi).sum(1)[:, None], 0.1

    def simulated(shared, draws=200_000):
        u = loc + scale * random.normal(size=(draws, 1 if shared else 4, 2, 3))
        mean = np.einsum("nm,snpm->snp", phi, np.broadcast_to(u, (draws, 4, 2, 3)))
        penalty = residual / s2 if alpha == 0.0 else np.log1p(alpha * residual / s2) / alpha
        t = -0.5 * np.log(2 * np.pi * s2) - 0.5 * penalty
        t = t - 0.5 * np.square(Y[:, None] - mean) / (s2 + alpha * residual)
        by_tau = [t[:, :tau, 0].sum(1) + t[:, tau:, 1].sum(1) - np.log(5) for tau in range(5)]
        each = logsumexp(by_tau, axis=0)
        return each.mean(), each.var() / draws

    kl = 0.5 * (6 * scale**2 + np.square(loc).sum() - 6 - 12 * np.log(scale))
    (expected, variance), (apart, _) = simulated(True), simulated(False)
    run = lambda key: (
        -PowerEP(alpha, 1).loss(key, params, change_point, program, jnp.asarray(X), jnp.asarray(Y[:, None]))
    )
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 20_000)))
    error = (values.var() / 20_000 + variance) ** 0.5
    assert values.mean() == pytest.approx(expected - kl, abs=4.0 * error)
    assert abs(expected - apart) > 10.0 * error


def test_what_is_masked_counts_for_nothing():
    def program(y):
        with handlers.mask(mask=False):
            numpyro.sample("k", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
        with data_plate(4):
            numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    found = -loss(PowerEP(0.5, 1), {}, program, nothing, jnp.asarray(Y))
    assert found == pytest.approx(norm.logpdf(Y).sum(), abs=1e-9)


def refusal(program, guide=nothing, objective=None, *args):
    with pytest.raises(ValueError) as error:
        refuse(objective or PowerEP(0.5), {}, program, guide, *(args or (jnp.asarray(Y),)))
    return str(error.value)


def test_what_cannot_be_summed_is_refused():
    for objective in (BlackBoxAlpha(0.5), ImportanceWeighted(2)):
        assert "['k'] outside the data plate, whose sum stands above" in refusal(whole, guide_of_h, objective)

    def in_batches(y):
        k = numpyro.sample("k", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
        with data_plate(8, jnp.arange(4)):
            numpyro.sample("y", dist.Normal(jnp.asarray(CENTRES)[k], 1.0), obs=y)

    assert "found a minibatch of the plate 'data'" in refusal(in_batches)

    def several(y):
        k = numpyro.sample(
            "k", dist.Categorical(jnp.asarray(PI)).expand([2]).to_event(1), infer={"enumerate": "parallel"}
        )
        with data_plate(4):
            numpyro.sample("y", dist.Normal(jnp.asarray(CENTRES)[k].sum(), 1.0), obs=y)

    assert "'k' of shape (2,) outside the data plate" in refusal(several)

    def guided(y):
        numpyro.sample("k", dist.Categorical(jnp.asarray(PI)))
        guide_of_h(y)

    assert refusal(whole, guided).startswith("guide: found a q of the discrete latent 'k'")

    def rows_of_a_chain(y):
        z = [
            numpyro.sample(f"z_{t}", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
            for t in range(10)
        ]
        with data_plate(4):
            numpyro.sample("y", dist.Normal(jnp.stack(z)[:4], 1.0), obs=y)

    assert "'data' to depend on 59049 combinations of 10 discrete sites" in refusal(rows_of_a_chain)

    def layered(x, y):
        f = sparse_gp("layer1", RBF(1.0, jnp.ones(1)), jnp.asarray(Z))
        k = numpyro.sample("k", dist.Categorical(jnp.ones(2) / 2), infer={"enumerate": "parallel"})
        with data_plate(4):
            h = numpyro.sample("h", f(x).noisy(0.1), infer=hidden_role())
            numpyro.sample("y", dist.Normal(h[:, 0] + k, 1.0), obs=y)

    found = refusal(layered, Guide(layered), PowerEP(0.0), jnp.asarray(X), jnp.asarray(Y))
    assert found.startswith(
        "hidden: found DoublyStochastic() for 'h' beside the discrete sites ['k'], at alpha=0"
    )
