"""Sums of functions, offsets and multiples against exact GPs, NumPy by hand, and the same model in other words."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss, refuse
from fast import few
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, Predictive
from numpyro.infer.autoguide import AutoNormal
from scipy import stats
from scipy.special import logsumexp

from ppl_dgp.fit import Posterior, fit_lbfgs, fit_power_ep, fit_svi
from ppl_dgp.gp.means import Constant, Linear
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import (
    Conditional,
    DoublyStochastic,
    FullRank,
    Guide,
    LayerChain,
    Markov,
    MeanField,
    MomentMatched,
)  # fmt: skip
from ppl_dgp.kernels import RBF, Matern32
from ppl_dgp.likelihoods import Poisson
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, ImportanceWeighted, PowerEP
from ppl_dgp.prediction.joint import joint_prediction, sample_functions
from ppl_dgp.prediction.predict import predict
from ppl_dgp.streaming.model import functions_of

KEY, RNG = jax.random.PRNGKey(0), np.random.default_rng(5)
X = jnp.array([-1, -0.3, 0.4, 1.2, 2])[:, None]
W = jnp.array([0.7, -0.5, 0.1, 0.4, -1.1])[:, None]
Y = jnp.array([[0.5, 1.2], [-0.2, 0.3], [0.1, -0.6], [0.9, 0.2], [-0.4, 0.7]])
ZF, ZG = jnp.array([-0.8, 0.5, 1.6])[:, None], jnp.array([-0.9, 0.2])[:, None]
KF, KG, NOISE = RBF(1.3, 0.7), Matern32(0.6, 1.1), 0.1


def function(name, kernel, z, outputs=2, spread=0.5, mean=None, draw=False):
    """A function whose q(u) has means and full covariances, or one draw of u."""
    rng = np.random.default_rng(len(name) + len(z))
    m = len(z)
    whiten = inverse_lower(cholesky(kernel(z, z), 0.0)[0])
    loc = jnp.asarray(rng.standard_normal((outputs, m)))
    scale = jnp.asarray(np.tril(spread * rng.standard_normal((outputs, m, m))) + spread * np.eye(m))
    return SparseGP(
        name,
        kernel,
        z,
        whiten,
        mean or Constant(0.3 * jnp.ones(outputs)),
        loc if draw else Gaussian(loc, scale),
    )


F, G = function("f", KF, ZF), function("ggg", KG, ZG)


def close(value, expected, rtol=1e-10):
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-12)


def same(value, expected):
    for part in ("mean", "variance", "from_u"):
        close(getattr(value, part), getattr(expected, part))
    shape = value.mean.shape
    close(jnp.broadcast_to(value.residual, shape), jnp.broadcast_to(expected.residual, shape))


# moments


def test_independent_functions_add_their_moments():
    f, g = F(X), G(W)
    total = f + g
    close(total.mean, f.mean + g.mean)
    close(total.residual, f.residual + g.residual)
    close(total.from_u, f.from_u + g.from_u)
    same(sum([f, g]), total)
    same(g + f, total)
    same((f + g) - g - f + 1.0, 0.0 * f + 1.0)
    # where a model has q begin, a step has another mean and all else as it is
    begun = replace(total, mean=Y)
    close(begun.mean, Y)
    close(begun.joint()[1], total.joint()[1])


@pytest.mark.slow
def test_scales_and_offsets():
    """c f(h) + b has mean c m + b and variances times c², for whatever broadcasts to (B, P)."""
    f, shape = F(X), (5, 2)
    for scale in (2.0, -3, np.float64(0.5), jnp.array([2.0, -1.0]), np.arange(5.0)[:, None], jnp.asarray(Y)):
        c = np.broadcast_to(np.asarray(scale), shape)
        for scaled in (f * scale, scale * f):
            close(scaled.mean, c * f.mean)
            close(np.broadcast_to(scaled.residual, shape), c**2 * np.broadcast_to(f.residual, shape))
            close(scaled.from_u, c**2 * f.from_u)
        for moved in (f + scale, scale + f):
            close(moved.mean, f.mean + c)
            close(moved.variance, f.variance)
        close((scale - f).mean, c - f.mean)
        close((f - scale).mean, f.mean - c)
        close((f - scale).variance, f.variance)
    same(-f, -1.0 * f)
    same(f / 4, 0.25 * f)
    assert (2.0 * f).residual.shape == (5, 1) and (f * jnp.array([2.0, -1.0])).residual.shape == shape
    # one output: a number per row may come as (B,)
    one = function("f", KF, ZF, 1)(X)
    same(one + W[:, 0], one + W)
    same(one * W[:, 0], one * W)


@pytest.mark.parametrize("draw", [False, True])
def test_one_function_at_two_inputs(draw):
    """f(x) + c f(w) against the joint Gaussian of f over the rows of both."""
    f = function("f", KF, ZF, draw=draw)
    total = 2.0 * f(X) - f(W) * 0.5
    mean, covariance = f.joint(jnp.concatenate([X, W]))
    rows = np.hstack([2.0 * np.eye(5), -0.5 * np.eye(5)])
    close(total.mean, rows @ np.asarray(mean))
    expected = np.einsum("ni,pij,mj->pnm", rows, covariance, rows)
    close(total.variance, np.diagonal(expected, axis1=1, axis2=2).T)
    close(total.joint()[1], expected, 1e-8)


def test_a_function_added_to_itself():
    f = F(X)
    same(f + f, 2.0 * f)
    same(F(X) + F(X), 2.0 * f)
    # equal inputs that are not the same array
    copied = f + F(X + 0.0)
    close(copied.variance, (2.0 * f).variance, 1e-9)
    nothing = f - f
    assert not jnp.any(nothing.mean) and not jnp.any(nothing.variance)


def test_joint_covariances_add():
    mean, covariance = (3.0 * F(X) + Y * G(W)).joint()
    (mean_f, cov_f), (mean_g, cov_g) = F.joint(X), G.joint(W)
    close(mean, 3.0 * mean_f + Y * mean_g)
    by_hand = 9.0 * cov_f + Y.T[:, :, None] * cov_g * Y.T[:, None, :]
    close(covariance, by_hand)
    close(np.diagonal(covariance, axis1=1, axis2=2).T, (3.0 * F(X) + Y * G(W)).variance, 1e-9)


def test_outputs_of_a_sum():
    which = jnp.array([0, 1, 1, 0, 1])
    total = F(X) * jnp.array([1.0, 2.0]) + G(W)
    picked = total.output(which)
    for part in ("mean", "residual", "from_u"):
        close(getattr(picked, part)[:, 0], np.asarray(getattr(total, part))[np.arange(5), which])
    close(F(X).output(which).mean + G(W).output(which).mean, (F(X) + G(W)).output(which).mean)


def test_the_sum_of_draws_is_what_the_moments_say():
    """Draws of u give the mean and the variance that moments of u give, within five standard errors."""
    total = F(X) + 0.5 * G(W)

    def drawn(key):
        draws = [
            f.u.mean + jnp.einsum("pmk,pk->pm", f.u.scale, jax.random.normal(k, f.u.mean.shape))
            for k, f in zip(jax.random.split(key), (F, G), strict=True)
        ]
        f, g = (
            SparseGP(f.name, f.kernel, f.inducing, f.whiten, f.mean, u)
            for f, u in zip((F, G), draws, strict=True)
        )
        return (f(X) + 0.5 * g(W)).mean

    means = jax.jit(jax.vmap(drawn))(jax.random.split(KEY, 20_000))
    assert (np.abs(means.mean(0) - total.mean) < 5 * np.sqrt(total.from_u / 20_000)).all()
    np.testing.assert_allclose(means.var(0), total.from_u, rtol=5 * (2 / 20_000) ** 0.5)


@pytest.mark.slow
def test_what_cannot_be_added():
    f, g = F(X), G(W)
    for wrong in (jnp.ones(5), jnp.ones((5, 3)), jnp.ones((1, 5, 2)), jnp.ones((2, 2))):
        with pytest.raises(ValueError, match=r"offset: found shape .* expected a number, \(P,\)"):
            f + wrong
        with pytest.raises(ValueError, match="scale: found shape"):
            wrong * f
    with pytest.raises(ValueError, match="functions: found values of shapes"):
        f + function("h", KF, ZF, 1)(X)
    with pytest.raises(TypeError, match="product of functions"):
        f * g
    with pytest.raises(TypeError, match="draw what is uncertain"):
        f + Gaussian(Y, Y)
    with pytest.raises(TypeError):
        1.0 / f
    changed = SparseGP("f", KG, F.inducing, F.whiten, F.mean, F.u)
    with pytest.raises(ValueError, match="f twice in one sum, with different parameters"):
        f + changed(X)
    which = jnp.zeros(5, int)
    with pytest.raises(ValueError, match="1 of the 2 outputs"):
        f.output(which) + f.output(1 - which)
    uncertain, other = Gaussian(X, 0.1 * jnp.ones((5, 1))), Gaussian(W, 0.1 * jnp.ones((5, 1)))
    for inputs in (uncertain, other):
        with pytest.raises(ValueError, match="an uncertain input correlates"):
            F(uncertain) + G(inputs)
    with pytest.raises(ValueError, match="f at moments and at other inputs"):
        F(uncertain) + F(X)
    for read in (lambda s: s.function.kernel, lambda s: s.function(X), lambda s: s.function.u):
        with pytest.raises(ValueError, match="found a sum or a multiple of f, ggg, expected one sparse GP"):
            read(f + g)


# objectives


def fixed(combine, observe=None, outputs=2, kernels=(KF, KG)):
    """A model of functions f and g with all values fixed, and what is observed of them."""

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", kernels[0], ZF, outputs, jitter=0.0)
        g = sparse_gp("g", kernels[1], ZG, outputs, jitter=0.0)
        with data_plate(size or x.shape[0], index):
            total = combine(f, g, x)
            numpyro.sample("y", observe(total) if observe else total.noisy(NOISE), obs=y)

    return model


def q_of(outputs=2, names=("f", "g"), seed=3):
    rng, params = np.random.default_rng(seed), {}
    for name, z in zip(names, (ZF, ZG), strict=False):
        m = len(z)
        params[f"{name}/u_loc"] = jnp.asarray(rng.standard_normal((outputs, m)))
        factor = 0.4 * np.tril(rng.standard_normal((outputs, m, m)), -1) + 0.5 * np.eye(m)
        params[f"{name}/u_scale"] = jnp.asarray(factor)
    return params


def by_hand(kernel, z, x, loc, scale):
    """Mean, residual variance and variance from q(u) in NumPy, without whitening's triangular solve."""
    kzz, kxz = np.asarray(kernel(z, z)), np.asarray(kernel(x, z))
    weights = np.linalg.solve(np.linalg.cholesky(kzz), kxz.T).T
    residual = np.asarray(kernel.diag(x)) - np.einsum("nm,nm->n", kxz, np.linalg.solve(kzz, kxz.T).T)
    covariance = np.asarray(scale) @ np.swapaxes(scale, 1, 2)
    return (
        weights @ np.asarray(loc).T,
        residual[:, None],
        np.einsum("nm,pmk,nk->np", weights, covariance, weights),
    )


def kl(params):
    total = 0.0
    for name in ("f", "g"):
        loc, scale = np.asarray(params[f"{name}/u_loc"]), np.asarray(params[f"{name}/u_scale"])
        total += 0.5 * ((scale**2).sum() + (loc**2).sum() - loc.size)
        total -= np.log(np.abs(np.diagonal(scale, axis1=1, axis2=2))).sum()
    return total


SCALES = np.array([[1.0, 2.0], [0.5, -1.0], [1.5, 0.3], [2.0, 1.0], [-0.7, 1.0]])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", [PowerEP, BlackBoxAlpha])
def test_both_functions_and_a_scale_per_row_by_hand(kind, alpha):
    """Σ_n t_α − KL with all moments in NumPy: u outside the logarithm in PowerEP, inside it in BlackBoxAlpha."""
    model = fixed(lambda f, g, x: SCALES * f(x) - 3 * g(x) + 0.2)
    params = q_of()
    m_f, d_f, v_f = by_hand(KF, ZF, X, params["f/u_loc"], params["f/u_scale"])
    m_g, d_g, v_g = by_hand(KG, ZG, X, params["g/u_loc"], params["g/u_scale"])
    mean, inside, outside = SCALES * m_f - 3 * m_g + 0.2, SCALES**2 * d_f + 9 * d_g, SCALES**2 * v_f + 9 * v_g
    if kind is BlackBoxAlpha:
        inside, outside = inside + outside, 0.0
    squares = np.square(np.asarray(Y) - mean) + outside
    penalty = inside / NOISE / 2 if alpha == 0 else np.log1p(alpha * inside / NOISE) / (2 * alpha)
    rows = -0.5 * np.log(2 * np.pi * NOISE) - penalty - 0.5 * squares / (NOISE + alpha * inside)
    value = -loss(kind(alpha), params, model, Guide(model, inducing=FullRank()), X, Y)
    assert value == pytest.approx(rows.sum() - kl(params), rel=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_counts_by_quadrature(alpha):
    """A likelihood without closed form: E_u (1/α) log E_{f|u} p(y|f)^α, both expectations by Gauss-Hermite in NumPy."""
    counts = jnp.array([[0.0], [1.0], [3.0], [2.0], [0.0]])
    model = fixed(lambda f, g, x: f(x) + 0.5 * g(x), lambda total: total.observe(Poisson()), outputs=1)
    params = q_of(1)
    m_f, d_f, v_f = by_hand(KF, ZF, X, params["f/u_loc"], params["f/u_scale"])
    m_g, d_g, v_g = by_hand(KG, ZG, X, params["g/u_loc"], params["g/u_scale"])
    mean, inside, outside = m_f + 0.5 * m_g, d_f + 0.25 * d_g, v_f + 0.25 * v_g
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    through_u = mean[..., None] + np.sqrt(outside)[..., None] * nodes
    values = through_u[..., None] + np.sqrt(inside)[..., None, None] * nodes
    log_p = stats.poisson.logpmf(np.asarray(counts)[..., None, None], np.exp(values))
    inner = log_p @ weights if alpha == 0 else logsumexp(alpha * log_p, axis=-1, b=weights) / alpha
    value = -loss(PowerEP(alpha), params, model, Guide(model, inducing=FullRank()), X, counts)
    assert value == pytest.approx((inner @ weights).sum() - kl(params), abs=2e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_an_offset_is_taken_from_the_data(alpha):
    offset = jnp.asarray(RNG.standard_normal((5, 2)))
    with_offset, plain = fixed(lambda f, g, x: f(x) + offset), fixed(lambda f, g, x: f(x))
    values = [
        loss(PowerEP(alpha), q_of(), model, Guide(model), X, y)
        for model, y in ((with_offset, Y), (plain, Y - offset))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_twice_a_function_has_four_times_its_variance(alpha):
    """The whitened u is the same; and a scale per row is a change of the units of y, noise included."""
    params = q_of(1)
    y, scale = Y[:, :1], jnp.array([2.0, 0.5, 1.0, -3.0, 0.7])[:, None]
    twice = fixed(lambda f, g, x: 2 * f(x), outputs=1)
    wide = fixed(lambda f, g, x: f(x), outputs=1, kernels=(RBF(4 * 1.3, 0.7), KG))
    value, expected = (loss(PowerEP(alpha), params, model, Guide(model), X, y) for model in (twice, wide))
    assert value == pytest.approx(expected, rel=1e-10)
    rows = fixed(lambda f, g, x: f(x) * scale, lambda total: total.noisy(NOISE * scale**2), outputs=1)
    plain = fixed(lambda f, g, x: f(x), outputs=1)
    value = loss(PowerEP(alpha), params, rows, Guide(rows), X, y * scale)
    expected = loss(PowerEP(alpha), params, plain, Guide(plain), X, y)
    assert value == pytest.approx(expected + float(jnp.log(jnp.abs(scale)).sum()), rel=1e-10)


@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 1))
def test_the_sum_of_two_exact_functions_is_the_exact_gp_of_the_sum_of_kernels(alpha):
    """Z = X and q(u_f, u_g) the joint posterior, linked by LayerChain: the evidence of k_f + k_g, with no gap."""
    y, x = Y[:, :1], X

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", KF, X, 1, jitter=0.0)
        g = sparse_gp("g", KG, X, 1, jitter=0.0)
        with data_plate(5, index):
            numpyro.sample("y", (f(x) + g(x)).noisy(NOISE), obs=y)

    phi = np.hstack([np.linalg.cholesky(np.asarray(k(x, x))) for k in (KF, KG)])
    covariance = np.linalg.inv(np.eye(10) + phi.T @ phi / NOISE)
    loc = covariance @ phi.T @ np.asarray(y)[:, 0] / NOISE
    first, cross = covariance[:5, :5], covariance[5:, :5]
    link = cross @ np.linalg.inv(first)
    params = {
        "f/u_loc": loc[None, :5],
        "g/u_loc": loc[None, 5:],
        "f/u_scale": np.linalg.cholesky(first)[None],
        "g/u_scale": np.linalg.cholesky(covariance[5:, 5:] - link @ cross.T)[None],
        "g/u_link": link[None, :, None, :],
    }
    params = {name: jnp.asarray(value) for name, value in params.items()}
    guide = Guide(model, inducing=LayerChain())
    assert set(handlers.trace(handlers.seed(guide, KEY)).get_trace(x, y)) >= set(params)
    run = jax.jit(jax.vmap(lambda key: -PowerEP(alpha).loss(key, params, model, guide, x, y)))
    values = np.asarray(run(jax.random.split(KEY, 4000)))
    evidence = stats.multivariate_normal(np.zeros(5), KF(x, x) + KG(x, x) + NOISE * np.eye(5)).logpdf(y[:, 0])
    se = values.std() / 4000**0.5
    assert 0.0 < se < 0.05 and abs(values.mean() - evidence) < 4 * se
    # a guide written by hand says nothing of its links: both u are drawn

    def linked(x, y=None):
        q_f = InducingGaussian(params["f/u_loc"], params["f/u_scale"])
        moved = (numpyro.sample("f/u", q_f) - params["f/u_loc"]) @ jnp.asarray(link).T
        numpyro.sample("g/u", InducingGaussian(params["g/u_loc"] + moved, params["g/u_scale"]))

    run = jax.jit(jax.vmap(lambda key: -PowerEP(alpha).loss(key, {}, model, linked, x, y)))
    values = np.asarray(run(jax.random.split(KEY, 4000)))
    assert abs(values.mean() - evidence) < 4 * values.std() / 4000**0.5
    # independent q(u_f) q(u_g) with the same means and precisions leave a gap
    alone = {name: value for name, value in params.items() if not name.endswith("link")}
    independent = Guide(model, inducing=FullRank())
    assert -loss(PowerEP(alpha), alone, model, independent, x, y) < evidence - 0.1


@pytest.mark.slow
def test_a_bayesian_linear_fixed_effect():
    """f(x) + x β with β sampled: the ELBO averages the square of x (β − E β) too, in closed form."""
    features = jnp.asarray(RNG.standard_normal((5, 3)))

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", KF, ZF, jitter=0.0)
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with data_plate(5, index):
            numpyro.sample("y", (f(x) + features @ beta).noisy(NOISE), obs=y)

    guide = Guide(model, inducing=FullRank(), others=AutoNormal)
    y, params = Y[:, :1], q_of(1, ("f",))
    handlers.seed(guide, KEY)(X, y)
    loc, scale = np.array([0.4, -0.2, 0.7]), np.array([0.3, 0.5, 0.2])
    params |= {"beta_auto_loc": jnp.asarray(loc), "beta_auto_scale": jnp.asarray(scale)}
    mean, inside, outside = by_hand(KF, ZF, X, params["f/u_loc"], params["f/u_scale"])
    effects = np.asarray(features)
    squares = np.square(np.asarray(y) - mean - (effects @ loc)[:, None]) + outside
    squares = squares + (effects**2 @ scale**2)[:, None]
    kl_u = kl(params | {"g/u_loc": np.zeros((1, 1)), "g/u_scale": np.ones((1, 1, 1))})
    kl_beta = 0.5 * (scale**2 + loc**2 - 1 - 2 * np.log(scale)).sum()
    for alpha in (0.0, 0.5):
        penalty = inside / NOISE / 2 if alpha == 0 else np.log1p(alpha * inside / NOISE) / (2 * alpha)
        rows = -0.5 * np.log(2 * np.pi * NOISE) - penalty - 0.5 * squares / (NOISE + alpha * inside)
        run = jax.jit(jax.vmap(lambda key, a=alpha: -PowerEP(a, 1).loss(key, params, model, guide, X, y)))
        values = np.asarray(run(jax.random.split(KEY, 10_000)))
        se = values.std() / 100
        assert abs(values.mean() - (rows.sum() - kl_u - kl_beta)) < 4 * se and se < 0.3

    # a parameter in its place is trained like any other
    def with_param(x, y=None, index=None, size=None):
        f = sparse_gp("f", RBF(1e-8, 1.0), ZF)
        beta = numpyro.param("beta", jnp.zeros(3))
        with data_plate(5, index):
            numpyro.sample("y", (f(x) + features @ beta).noisy(1.0), obs=y)

    fit = fit_svi(KEY, with_param, Guide(with_param), PowerEP(), X, y, steps=600, learning_rate=0.1)
    close(fit.params["beta"], np.linalg.lstsq(effects, np.asarray(y)[:, 0], rcond=None)[0], 1e-2)


# hidden layers

RULES = {
    "doubly-stochastic": DoublyStochastic(),
    "mean-field": MeanField(),
    "markov": Markov(),
    "coupled": Conditional(),
    "tied": Conditional(tied=True),
}


def two_layers(first):
    """A first layer given by ``first``, of functions f and g of the rows, and one more."""

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", KF, ZF, 2, initial_scale=0.3)
        g = sparse_gp("g", KG, ZG, 2, initial_scale=0.3)
        last = sparse_gp("last", RBF(1.0, 1.5), jnp.asarray(np.random.default_rng(0).standard_normal((4, 2))))
        with data_plate(size or x.shape[0], index):
            rows = jnp.arange(x.shape[0]) if index is None else index
            layer = first(f, g, x, rows).noisy(0.05)
            h = offer("h", numpyro.sample("h", layer, infer={"role": "hidden"}))
            numpyro.sample("y", last(h).noisy(NOISE), obs=y)

    return model


SUM = two_layers(lambda f, g, x, rows: f(x) + 0.5 * g(W[rows]) + x @ jnp.array([[0.5, -1.0]]))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("name", few(RULES, 0, 2))
def test_a_linear_offset_is_a_linear_mean(name, alpha):
    """The same hidden layer written in two ways has the same loss, whatever the rule, row for row and draw for draw."""
    weights = jnp.array([[0.5, -1.0]])

    def linear(f, g, x, rows):
        moved = SparseGP(f.name, f.kernel, f.inducing, f.whiten, Linear(weights), f.u)
        return moved(x)

    y, values = Y[:, :1], []
    guides = [
        Guide(model, hidden=RULES[name])
        for model in (two_layers(lambda f, g, x, rows: f(x) + x @ weights), two_layers(linear))
    ]
    sites = handlers.trace(handlers.seed(guides[1], KEY)).get_trace(X, y)
    rng = np.random.default_rng(2)
    params = {
        k: site["value"] * jnp.asarray(1 + 0.2 * rng.random(jnp.shape(site["value"])))
        for k, site in sites.items()
        if site["type"] == "param"
    }
    values = [loss(PowerEP(alpha, 4), params, guide.model, guide, X, y) for guide in guides]
    assert values[0] == pytest.approx(values[1], rel=1e-10)


@pytest.mark.parametrize(
    "name", [name if name == "coupled" else pytest.param(name, marks=pytest.mark.slow) for name in RULES]
)
@pytest.mark.slow
def test_a_deep_gp_whose_first_layer_is_a_sum_is_trained(name):
    """The loss of the last steps is below that of the first by far more than the noise of their means."""
    fit = fit_svi(
        KEY, SUM, Guide(SUM, hidden=RULES[name]), PowerEP(), X, Y[:, :1], steps=150, learning_rate=0.05
    )
    first, last = fit.losses[0, :20], fit.losses[0, -20:]
    se = np.sqrt((first.var() + last.var()) / 20)
    assert first.mean() - last.mean() > 4 * se


def test_markov_listens_to_all_inputs_and_starts_at_the_mean():
    """Its slope has the columns of every input once, and starts at the scaled linear means."""
    moved = lambda f, weights: SparseGP(f.name, f.kernel, f.inducing, f.whiten, Linear(weights), f.u)

    def first(f, g, x, rows):
        f, g = moved(f, jnp.array([[1.0, 2.0]])), moved(g, jnp.array([[3.0, -1.0]]))
        return f(x) * jnp.array([1.0, 10.0]) + g(W[rows]) * 2.0 + g(x)

    model = two_layers(first)
    sites = handlers.trace(handlers.seed(Guide(model, hidden=Markov()), KEY)).get_trace(X, Y[:, :1])
    close(sites["h_slope"]["value"], np.broadcast_to([[1 + 3.0, 6.0], [20 - 1.0, -2.0]], (5, 2, 2)))


def test_rules_that_read_one_function_refuse_a_sum():
    y = Y[:, :1]
    guide = Guide(SUM, hidden=Conditional(free=True))
    with pytest.raises(ValueError, match="found a sum or a multiple of f, g, expected one sparse GP"):
        handlers.seed(guide, KEY)(X, y)
    guide = Guide(SUM, hidden=MomentMatched("full-moments"))
    params = {
        k: site["value"]
        for k, site in handlers.trace(handlers.seed(guide, KEY)).get_trace(X, y).items()
        if site["type"] == "param"
    }
    # certain inputs: the outputs are independent, and nothing of the function is asked for
    assert np.isfinite(loss(PowerEP(), params, SUM, guide, X, y))


@pytest.mark.slow
def test_a_layer_carried_as_moments_meets_a_sum():
    """f(h) + g(x), h integrated out under MeanField by kernel expectations, against draws of h."""

    def model(x, y=None, index=None, size=None):
        f, g = sparse_gp("f", KF, ZF, 1), sparse_gp("g", KG, ZG, 1)
        first = sparse_gp("first", RBF(1.0, 1.0), ZF, mean=Linear(jnp.eye(1)))
        with data_plate(5, index):
            h = offer("h", numpyro.sample("h", first(x).noisy(0.05), infer={"role": "hidden"}))
            numpyro.sample("y", (2.0 * f(h) + g(x) - x[:, 0]).noisy(NOISE), obs=y)

    guide, y = Guide(model, hidden=MeanField()), Y[:, :1]
    params = {
        k: site["value"]
        for k, site in handlers.trace(handlers.seed(guide, KEY)).get_trace(X, y).items()
        if site["type"] == "param"
    } | q_of(1)
    exact = -loss(PowerEP(0.0, propagation="moments"), params, model, guide, X, y)
    run = jax.jit(jax.vmap(lambda key: -PowerEP(0.0, 1).loss(key, params, model, guide, X, y)))
    values = np.asarray(run(jax.random.split(KEY, 10_000)))
    assert abs(values.mean() - exact) < 4 * values.std() / 100


@pytest.mark.slow
def test_importance_weights_draw_each_function_of_a_sum():
    """With next to no hidden noise all samples of a row meet one draw, and the bound is E_f log p(y | f) − KL."""

    def model(x, y=None, index=None, size=None):
        f, g = sparse_gp("f", KF, ZF, 1, jitter=0.0), sparse_gp("g", KG, ZG, 1, jitter=0.0)
        with data_plate(5, index):
            h = numpyro.sample("h", dist.Normal(x, 1e-6).to_event(1), infer={"role": "hidden"})
            numpyro.sample("y", (f(h) + 0.5 * g(h)).noisy(NOISE), obs=y)

    guide = Guide(model, hidden=DoublyStochastic(), latent=DoublyStochastic())
    params, y = q_of(1), Y[:, :1]
    m_f, d_f, v_f = by_hand(KF, ZF, X, params["f/u_loc"], params["f/u_scale"])
    m_g, d_g, v_g = by_hand(KG, ZG, X, params["g/u_loc"], params["g/u_scale"])
    variance = d_f + v_f + 0.25 * (d_g + v_g)
    squares = np.square(np.asarray(y) - m_f - 0.5 * m_g) + variance
    expected = (-0.5 * np.log(2 * np.pi * NOISE) - 0.5 * squares / NOISE).sum() - kl(params)
    run = jax.jit(jax.vmap(lambda key: -ImportanceWeighted(3).loss(key, params, model, guide, X, y)))
    values = np.asarray(run(jax.random.split(KEY, 4000)))
    assert abs(values.mean() - expected) < 4 * values.std() / 4000**0.5 + 1e-3


def test_closed_forms_of_one_function_refuse_a_sum():
    model, y = fixed(lambda f, g, x: f(x) + g(x), outputs=1), Y[:, :1]
    with pytest.raises(ValueError, match="found a sum or a multiple of f, g, expected one sparse GP"):
        refuse(Collapsed(), {}, model, Guide(model), X, y)

    def moved(x, y=None, index=None, size=None):
        f = sparse_gp("f", KF, ZF)
        with data_plate(5, index):
            numpyro.sample("y", (f(x) + 1.0).noisy(NOISE), obs=y)

    for fit in (
        lambda: fit_lbfgs(KEY, moved, X, Y[:, :1], guide=Guide(moved), objective=Collapsed()),
        lambda: fit_power_ep(KEY, moved, Guide(moved), X, Y[:, :1], alpha=0.5),
    ):
        with pytest.raises(ValueError, match="found a sum or a multiple of f, expected one sparse GP"):
            fit()


# NumPyro and prediction


def test_predictions_of_a_sum():
    """Marginals, joint covariance and joint draws agree with the moments of the functions."""
    model, params = fixed(lambda f, g, x: f(x) - 2 * g(x) + x @ jnp.ones((1, 2))), q_of()
    posterior = Posterior(model, Guide(model, inducing=FullRank()), params)
    new = jnp.array([[-0.5], [0.9], [2.5]])
    m_f, d_f, v_f = by_hand(KF, ZF, new, params["f/u_loc"], params["f/u_scale"])
    m_g, d_g, v_g = by_hand(KG, ZG, new, params["g/u_loc"], params["g/u_scale"])
    mean, variance = m_f - 2 * m_g + np.asarray(new), d_f + v_f + 4 * (d_g + v_g)
    prediction = predict(KEY, posterior, new, num_samples=2)
    close(prediction.f_mean, mean)
    close(prediction.f_variance, variance)
    close(prediction.variance, variance + NOISE)
    centre, covariance = joint_prediction(KEY, posterior, new, num_samples=2)
    close(centre, mean)
    close(np.diagonal(covariance, axis1=1, axis2=2).T, variance, 1e-8)
    draws = np.asarray(sample_functions(KEY, posterior, new, 4000))
    assert (np.abs(draws.mean(0) - mean) < 4.5 * np.sqrt(variance / 4000)).all()
    for p in range(2):
        spread = np.sqrt(np.outer(np.diag(covariance[p]), np.diag(covariance[p])) * 2 / 4000)
        assert (np.abs(np.cov(draws[:, :, p].T) - covariance[p]) < 4.5 * spread).all()
    assert list(functions_of(model, params, new)) == ["f", "g"]


@pytest.mark.slow
def test_predictive_and_nuts_see_a_plain_distribution():
    """Draws from the prior have its variance, and NUTS finds the posterior of a model that is linear in u_f and u_g."""
    y, model = Y[:, :1], fixed(lambda f, g, x: f(x) + 2 * g(x) + 0.3, outputs=1)
    prior = Predictive(model, num_samples=20_000)(KEY, X)["y"][..., 0]
    np.testing.assert_allclose(prior.var(0), 1.3 + 4 * 0.6 + NOISE, rtol=5 * (2 / 20_000) ** 0.5)
    mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=1000, progress_bar=False)
    mcmc.run(KEY, X, y)
    draws = mcmc.get_samples()
    u = np.hstack([np.asarray(draws[name])[:, 0] for name in ("f/u", "g/u")])
    phi, total = [], NOISE
    for kernel, z, scale in ((KF, ZF, 1.0), (KG, ZG, 2.0)):
        kzz, kxz = np.asarray(kernel(z, z)), np.asarray(kernel(X, z))
        phi.append(scale * np.linalg.solve(np.linalg.cholesky(kzz), kxz.T).T)
        total = total + scale**2 * np.asarray(kernel.diag(X)) - np.square(phi[-1]).sum(1)
    weights = np.hstack(phi)
    covariance = np.linalg.inv(np.eye(5) + (weights.T / total) @ weights)
    loc = covariance @ (weights.T / total) @ (np.asarray(y)[:, 0] - 0.3)
    deviation = np.sqrt(np.diag(covariance))
    # 1000 draws, of which NUTS leaves some hundreds of effect
    assert (np.abs(u.mean(0) - loc) < 5 * deviation / 250**0.5).all()
    np.testing.assert_allclose(u.std(0), deviation, rtol=5 / 500**0.5)
