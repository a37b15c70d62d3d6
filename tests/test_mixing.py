"""Mixed outputs: against dense matrices over all outputs, quadrature, limits, and entries that are missing."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax.scipy.stats import multivariate_normal
from numpyro.handlers import seed, trace

from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.emission import JointEmission, emission_of
from ppl_dgp.gp.mixing import mixed
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import AcrossOutputs, Conditional, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian, Poisson
from ppl_dgp.models import multi_output_gp, sparse_gp_regression
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
N, P, Q = 4, 3, 2
X = jnp.linspace(-1.5, 1.5, N)[:, None]
Y = jnp.asarray(RANDOM.normal(size=(N, P)))
W = jnp.asarray(RANDOM.normal(size=(P, Q)))
NOISE = jnp.array([[0.1, 0.2, 0.3]])
GAPS = jnp.asarray(RANDOM.uniform(size=(N, P)) < 0.3).at[0, 0].set(True).at[1, 1].set(False)
KERNELS = [RBF(1.0, 0.8), RBF(0.5, 1.5)]


def functions(kernels=KERNELS, inducing=X):
    """Two functions of which all inputs are inducing inputs, so that u is all that they are at X."""
    return sparse_gp("g", kernels, inducing, Q, jitter=0.0)


def model(x, y=None):
    g = functions()
    with data_plate(x.shape[0]):
        numpyro.sample("y", mixed(g(x), W).noisy(NOISE).partly_observed(), obs=y)


def dense():
    """Covariance of all outputs at all rows, output by output."""
    each = jnp.stack([kernel(X, X) for kernel in KERNELS])
    return jnp.einsum("pq,qnm,rq->pnrm", W, each, W).reshape(P * N, P * N)


def optimum(seen):
    """q(u) of all functions at once, the posterior of v given the entries that were seen, by Bayes' rule."""
    whiten = [np.linalg.cholesky(np.asarray(kernel(X, X))) for kernel in KERNELS]
    maps = np.concatenate(
        [np.concatenate([W[p, q] * whiten[q] for q in range(Q)], 1) for p in range(P)]
    )  # (PN, QN)
    keep = np.asarray(seen.T).ravel()
    noise = np.repeat(np.asarray(NOISE[0]), N)
    gram = np.eye(Q * N) + (maps[keep].T / noise[keep]) @ maps[keep]
    covariance = np.linalg.inv(gram)
    mean = covariance @ (maps[keep].T / noise[keep]) @ np.asarray(Y.T).ravel()[keep]
    return {
        "g/u_loc": jnp.asarray(mean.reshape(Q, N)),
        "g/u_scale": jnp.linalg.cholesky(jnp.asarray(covariance)),
    }


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "heterotopic"])
def test_the_bound_is_the_evidence_of_all_outputs(gaps):
    """With u all that is to know, q(u) at its optimum; missing entries are left out of the dense matrix."""
    seen = ~GAPS if gaps else jnp.ones((N, P), bool)
    y = jnp.where(seen, Y, jnp.nan)
    guide = Guide(model, inducing=AcrossOutputs())
    params, keep = optimum(seen), np.asarray(seen.T).ravel()
    covariance = dense() + jnp.diag(jnp.repeat(NOISE[0], N))
    evidence = multivariate_normal.logpdf(
        Y.T.ravel()[keep], jnp.zeros(keep.sum()), covariance[np.ix_(keep, keep)]
    )
    # u is drawn, as outputs are linked: on average, and nothing is left to average in the evidence
    bound = jax.jit(lambda key: -PowerEP(0.0).loss(key, params, model, guide, X, y))
    bounds = jax.lax.map(bound, jax.random.split(KEY, 400))
    assert abs(bounds.mean() - evidence) < 4.0 * bounds.std() / 20.0
    # as many independent functions know less: with the covariance between them cut the bound is lower
    covariance = params["g/u_scale"] @ params["g/u_scale"].T
    blocks = jnp.stack([covariance[q * N : (q + 1) * N, q * N : (q + 1) * N] for q in range(Q)])
    alone = params | {"g/u_scale": jnp.linalg.cholesky(blocks)}
    assert -PowerEP(0.0).loss(KEY, alone, model, Guide(model), X, y) < evidence


def test_moments_are_those_of_the_dense_conditional():
    z = X[:2]
    with seed(rng_seed=0), trace():
        g = functions(inducing=z)
    f = mixed(g(X), W)
    of_g = jnp.stack([KERNELS[q](X, X) - g(X).weights[:, q] @ g(X).weights[:, q].T for q in range(Q)])
    given_u = jnp.einsum("pq,qnm,rq->npmr", W, of_g, W)
    np.testing.assert_allclose(f.covariance(g(X).residual), jnp.einsum("npnr->npr", given_u), atol=1e-12)
    np.testing.assert_allclose(f.joint()[1], jnp.einsum("npmp->pnm", given_u), atol=1e-12)
    np.testing.assert_allclose(f.variance, jnp.einsum("npnp->np", given_u), atol=1e-12)
    draws = jax.vmap(f.draw)(jax.random.split(KEY, 20_000)) - f.mean
    found = jnp.einsum("snp,smr->npmr", draws, draws) / 20_000
    # of 20 000 draws a covariance has a standard error of at most √2 of a variance in a hundred and forty
    largest = float(jnp.einsum("npnp->np", given_u).max())
    np.testing.assert_allclose(found, given_u, atol=0.04 * largest)
    single = f.noisy(NOISE)
    drawn = single.sample(KEY, (20_000,)) - f.mean
    rows = jnp.einsum("snp,snr->npr", drawn, drawn) / 20_000
    expected = jnp.einsum("npnr->npr", given_u) + jnp.eye(P) * NOISE
    np.testing.assert_allclose(rows, expected, atol=0.04 * largest)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_a_row_is_tempered_as_a_whole(alpha):
    """By Gauss–Hermite quadrature over g of each row, u integrated in the logarithm or outside it."""
    with seed(rng_seed=1), trace():
        g = functions(inducing=X[:2])
    marginal = g(X)
    centre, spread = marginal.mean, jnp.array([[0.2, 0.1]])
    inner = type(marginal)(
        g, X, marginal.weights, centre, marginal.residual, jnp.broadcast_to(spread, (N, Q))
    )
    y = jnp.where(GAPS, jnp.nan, Y)
    noise = 10.0 * NOISE  # of noise that is small beside f quadrature would need more nodes
    emission = mixed(inner, W).noisy(noise).partly_observed()
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / (2.0 * np.pi)

    def log_mean(mean, variance):
        f = (mean[:, None] + np.sqrt(variance)[:, None] * grid) @ np.asarray(W).T
        terms = -0.5 * np.log(2 * np.pi * noise) - 0.5 * np.square(np.asarray(Y)[:, None] - f) / noise
        log_p = np.where(np.asarray(GAPS)[:, None], 0.0, terms).sum(-1)
        return np.log((mass * np.exp(alpha * log_p)).sum(1)) / alpha

    inside = np.asarray(inner.residual)
    np.testing.assert_allclose(
        emission.tempered(y, alpha), log_mean(np.asarray(centre), inside + spread), atol=1e-8
    )
    outside = np.zeros(N)
    coarse, shares = np.polynomial.hermite_e.hermegauss(12)
    places = np.stack(np.meshgrid(coarse, coarse, indexing="ij"), -1).reshape(-1, 2)
    for point, share in zip(places, np.outer(shares, shares).ravel() / (2.0 * np.pi), strict=True):
        outside += share * log_mean(np.asarray(centre + jnp.sqrt(spread) * point), inside)
    np.testing.assert_allclose(emission.tempered(y, alpha, u_outside=True), outside, atol=1e-8)
    near_zero = emission.tempered(y, 1e-7), emission.tempered(y, 0.0)
    np.testing.assert_allclose(*near_zero, atol=1e-5)


@pytest.mark.slow
def test_of_weights_that_are_the_identity_it_is_the_model_without():
    settings = dict(inducing=np.asarray(X[:2]), noise=0.1)
    one = multi_output_gp(2, 2, 2, weights=np.eye(2), **settings)
    other = sparse_gp_regression(2, num_outputs=2, **settings)
    y = Y[:, :2]
    for objective in (PowerEP(0.0), PowerEP(0.5), PowerEP(1.0)):
        losses = []
        for each in (one, other):
            sites = trace(seed(Guide(each), KEY)).get_trace(X, y)
            params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
            params["gp/u_loc"] = params["gp/u_loc"] + 0.3
            losses.append(objective.loss(KEY, params, each, Guide(each), X, y))
        np.testing.assert_allclose(*losses, rtol=1e-12)


@pytest.mark.slow
def test_what_one_output_lacks_another_knows():
    """Two outputs of one function: the half of the second that was never seen is predicted by the first."""
    x = np.linspace(-3.0, 3.0, 40)[:, None]
    truth = np.sin(2.0 * x) @ np.array([[1.0, -2.0]])
    y = truth + 0.05 * RANDOM.normal(size=truth.shape)
    y[20:, 1] = np.nan
    model = multi_output_gp(2, 1, 12)
    start = model.first_weights(KEY, jnp.asarray(y))
    assert start.shape == (2, 1) and start[0, 0] * start[1, 0] < 0.0
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=1000, learning_rate=0.03)
    assert np.abs(fit.predict(KEY, x[20:]).mean[:, 1] - truth[20:, 1]).max() < 0.2
    draws = fit.sample_functions(KEY, jnp.asarray(x[::8]), num_samples=5)
    np.testing.assert_allclose(
        draws[..., 1] / draws[..., 0], fit.params["gp/weights"][1, 0] / fit.params["gp/weights"][0, 0]
    )


@pytest.mark.slow
def test_it_is_a_hidden_layer_of_the_models_own_conditional():
    def deep(x, y=None):
        first = sparse_gp("first", RBF(1.0, 1.0), X[:3], Q)
        second = sparse_gp("second", RBF(1.0, 1.0), jnp.ones((2, P)) * jnp.array([[0.0], [1.0]]), 1)
        with data_plate(x.shape[0]):
            h = numpyro.sample("h", mixed(first(x), W).noisy(0.1), infer=hidden_role())
            numpyro.sample("y", second(h).noisy(0.1), obs=y)

    assert np.isfinite(fit_svi(KEY, deep, Guide(deep), PowerEP(0.5), X, Y[:, :1], steps=2).losses).all()
    with pytest.raises(
        ValueError, match="for a layer of mixed or convolved outputs, whose correlations it does not know"
    ):
        fit_svi(KEY, deep, Guide(deep, hidden=Conditional()), PowerEP(0.0), X, Y[:, :1], steps=1)


@pytest.mark.slow
def test_32_bits():
    with jax.enable_x64(False):
        model = multi_output_gp(3, 2, 3, separate=True)
        fit = fit_svi(
            jax.random.key(0), model, Guide(model), PowerEP(0.5), np.asarray(X), np.asarray(Y), steps=3
        )
        assert fit.losses.dtype == np.float64 and np.isfinite(fit.losses).all()
        assert fit.params["gp/weights"].dtype == np.float32


def test_what_cannot_be_is_refused():
    with seed(rng_seed=0), trace():
        g = functions()
    f = mixed(g(X), W)
    for wrong in (lambda: f + 1.0, lambda: 2.0 * f, lambda: f.output(jnp.zeros(N, int))):
        with pytest.raises(
            ValueError, match="mixed: found .* of mixed outputs, expected them to be observed"
        ):
            wrong()
    with pytest.raises(ValueError, match=r"weights: found shape \(2, 3\), expected \(P, 2\)"):
        mixed(g(X), W.T)
    with pytest.raises(ValueError, match="alpha: found 0.5 for mixed outputs under Poisson"):
        f.observe(Poisson()).tempered(jnp.ones((N, P)), 0.5)
    beside = JointEmission(f.noisy(0.1), mixed(g(X), W[:1]).observe(Poisson()))
    assert beside.tempered(jnp.ones((N, P + 1)), 0.0).shape == (N,)
    with pytest.raises(ValueError, match=r"alpha: found mixtures of \['g'\] in two emissions side by side"):
        beside.tempered(jnp.ones((N, P + 1)), 0.5)
    assert f.observe(Gaussian(NOISE)).tempered(Y, 0.5).shape == (N,)
    assert f.observe(Poisson()).tempered(jnp.ones((N, P)), 0.0).shape == (N,)
    assert emission_of(f.noisy(0.1)) is not None
    with pytest.raises(ValueError, match=r"weights: found shape \(2, 2\), expected \(3, 2\)"):
        multi_output_gp(3, 2, weights=np.eye(2))
    with pytest.raises(ValueError, match="num_latents"):
        multi_output_gp(3, 0)
