"""Convolved outputs: against quadrature, dense NumPy matrices over all outputs, mixed outputs, and rows left out."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import loss
from fast import few
from numpyro.handlers import seed
from scipy.stats import multivariate_normal

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.convolved import convolved
from ppl_dgp.gp.features import covariance, cross
from ppl_dgp.gp.mixing import mixed
from ppl_dgp.gp.smoothing import Convolved, InducingLatents, rows_of_outputs
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Conditional, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Poisson
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, ImportanceWeighted, PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
N, P, Q, M = 5, 3, 2, 4
X = jnp.asarray(RANDOM.uniform(-1.5, 1.5, size=(N, 1)))
Y = jnp.asarray(RANDOM.normal(size=(N, P)))
Z = jnp.asarray(RANDOM.uniform(-1.5, 1.5, size=(Q, M, 1)))
NOISE = jnp.array([[0.1, 0.2, 0.3]])
GAPS = jnp.zeros((N, P), bool).at[0, 0].set(True).at[1, 2].set(True).at[1, 1].set(True).at[4, 2].set(True)


def kernel_of(dims=1, delays=True):
    draw = np.random.default_rng(dims)
    return Convolved(
        jnp.asarray(draw.normal(size=(P, Q))),
        jnp.asarray(draw.uniform(0.1, 0.6, size=(P, Q, dims))),
        jnp.asarray(draw.uniform(0.6, 1.2, size=(Q, dims))),
        jnp.asarray(draw.normal(size=(P, Q, dims))) if delays else None,
    )


KERNEL = kernel_of()


def function(kernel=KERNEL, inducing=None, number=0):
    return seed(sparse_gp, number)(
        "f", kernel, InducingLatents(Z) if inducing is None else inducing, jitter=0.0
    )


def by_quadrature(kernel, rows, others, with_latent=None):
    """∫∫ G(x − z) k(z, z') G'(x' − z') by Gauss–Hermite rules; with g_q at ``others`` without the second integral."""
    dims = rows.shape[1] - 1
    nodes, shares = np.polynomial.hermite_e.hermegauss(40 if dims == 1 else 16)
    grid = np.array(list(itertools.product(nodes, repeat=dims)))
    mass = np.prod(list(itertools.product(shares / np.sqrt(2.0 * np.pi), repeat=dims)), 1)
    strengths, widths, lengthscale, delays = map(np.asarray, jax.tree.leaves(kernel))
    spots = lambda row, q: row[:dims] - delays[int(row[dims]), q] + widths[int(row[dims]), q] * grid
    total = np.zeros((len(rows), len(others)))
    for (i, row), (j, other) in itertools.product(enumerate(rows), enumerate(others)):
        for q in range(Q) if with_latent is None else [with_latent]:
            near = spots(row, q)
            far, far_mass, strength = other[None], np.ones(1), 1.0
            if with_latent is None:
                far, far_mass, strength = spots(other, q), mass, strengths[int(other[dims]), q]
            r2 = np.square((near[:, None] - far[None]) / lengthscale[q]).sum(-1)
            total[i, j] += strengths[int(row[dims]), q] * strength * mass @ np.exp(-0.5 * r2) @ far_mass
    return total


@pytest.mark.parametrize("dims", [1, 2])
def test_covariances_are_double_integrals(dims):
    kernel = kernel_of(dims)
    rows = np.concatenate([RANDOM.normal(size=(4, dims)), np.array([[0], [1], [2], [1]])], 1)
    found = kernel(jnp.asarray(rows), jnp.asarray(rows))
    np.testing.assert_allclose(found, by_quadrature(kernel, rows, rows), atol=1e-8)
    np.testing.assert_allclose(kernel.diag(jnp.asarray(rows)), np.diagonal(found), rtol=1e-12)
    z = jnp.asarray(RANDOM.normal(size=(Q, 3, dims)))
    between = cross(kernel, jnp.asarray(rows), InducingLatents(z))
    expected = [by_quadrature(kernel, rows, np.asarray(z[q]), q) for q in range(Q)]
    np.testing.assert_allclose(between, np.concatenate(expected, 1), atol=1e-8)
    blocks = [np.asarray(RBF(1.0, kernel.lengthscale[q])(z[q], z[q])) for q in range(Q)]
    own = np.asarray(covariance(kernel, InducingLatents(z)))
    np.testing.assert_allclose(own[:3, :3], blocks[0], rtol=1e-12)
    np.testing.assert_allclose(own[3:, 3:], blocks[1], rtol=1e-12)
    assert not own[:3, 3:].any() and not own[3:, :3].any()


def test_outputs_and_latents_have_one_covariance():
    """f at every output and g at its inducing inputs, of one Gaussian."""
    rows = rows_of_outputs(X, P)
    features = InducingLatents(Z)
    off = np.asarray(cross(KERNEL, rows, features))
    whole = np.block(
        [[np.asarray(KERNEL(rows, rows)), off], [off.T, np.asarray(covariance(KERNEL, features))]]
    )
    assert np.linalg.eigvalsh(whole).min() > -1e-12


@pytest.mark.slow
def test_without_smoothing_outputs_are_mixed():
    """Widths of 0 are the linear model of coregionalisation, to the digit; towards 0 it is the limit."""
    kernel = Convolved(KERNEL.strengths, 0.0, KERNEL.lengthscale)
    f = function(kernel)
    kernels = [RBF(1.0, each) for each in KERNEL.lengthscale]
    g = seed(sparse_gp, KEY)("g", kernels, Z, Q, jitter=0.0)
    moments = lambda shape: Gaussian(f.u.reshape(shape), jnp.linspace(0.2, 1.0, Q * M).reshape(shape))
    for carried in (lambda shape: f.u.reshape(shape), moments):
        one = convolved(replace(f, u=carried((1, Q * M))), X)
        other = mixed(replace(g, u=carried((Q, M)))(X), kernel.strengths)
        for name in ("mean", "residual", "from_u"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
        np.testing.assert_allclose(one.joint()[1], other.joint()[1], atol=1e-12)
        np.testing.assert_allclose(one.given_u(), other.given_u(), atol=1e-12)
        np.testing.assert_allclose(one.through_u(), other.through_u(), atol=1e-12)
        for alpha in (0.0, 0.5, 1.0):
            tempered = [each.noisy(NOISE).tempered(Y, alpha, u_outside=True) for each in (one, other)]
            np.testing.assert_allclose(*tempered, rtol=1e-10)
    near = Convolved(KERNEL.strengths, 1e-4, KERNEL.lengthscale)
    rows = rows_of_outputs(X, P)
    # to first order a variance changes by p/ℓ² of itself
    np.testing.assert_allclose(near(rows, rows), kernel(rows, rows), atol=1e-6)


def test_of_one_function_differences_of_widths_are_known():
    """A smoother g under narrower Gaussians, or a later one under shorter delays, is the same."""
    kernel, t = (
        Convolved(KERNEL.strengths[:, :1], *(each[..., :1, :] for each in jax.tree.leaves(KERNEL)[1:])),
        0.005,
    )
    smoother = jnp.square(kernel.lengthscale) + 2.0 * t
    other = Convolved(
        kernel.strengths * (kernel.lengthscale**2 / smoother).prod() ** 0.25,
        jnp.sqrt(jnp.square(kernel.widths) - t),
        jnp.sqrt(smoother),
        kernel.delays + 0.7,
    )
    rows = rows_of_outputs(X, P)
    np.testing.assert_allclose(kernel(rows, rows), other(rows, rows), atol=1e-13)


def test_whitened_equals_unwhitened():
    f, rows = function(), rows_of_outputs(X, P)
    between, own = cross(KERNEL, rows, f.inducing), covariance(KERNEL, f.inducing)
    weights = np.linalg.solve(own, between.T).T
    np.testing.assert_allclose(f(rows).mean[:, 0], weights @ f.at_inducing()[0], rtol=1e-9)
    of_rows = KERNEL(rows, rows) - weights @ between.T
    np.testing.assert_allclose(f(rows).residual[:, 0], np.diagonal(of_rows), atol=1e-11)
    together = convolved(f, X)
    np.testing.assert_allclose(together.mean.ravel(), f(rows).mean[:, 0], rtol=1e-12)
    blocks = np.einsum("npnr->npr", np.asarray(of_rows).reshape(N, P, N, P))
    np.testing.assert_allclose(together.given_u(), blocks, atol=1e-11)
    assert np.abs(blocks[:, 0, 1]).max() > 0.01
    np.testing.assert_allclose(
        together.joint()[1], np.einsum("npmp->pnm", np.asarray(of_rows).reshape(N, P, N, P)), atol=1e-11
    )


def test_moments_of_u_and_draws_for_each_row():
    f = function()
    lower = jnp.asarray(np.tril(RANDOM.normal(size=(1, Q * M, Q * M))))
    marginal = convolved(replace(f, u=Gaussian(f.u, lower)), X)
    weights = np.asarray(marginal.weights)
    spread = np.einsum("bpm,mk,lk,brl->bpr", weights, lower[0], lower[0], weights)
    np.testing.assert_allclose(marginal.through_u(), spread, atol=1e-12)
    np.testing.assert_allclose(marginal.from_u, np.einsum("bpp->bp", spread), atol=1e-12)
    total = np.asarray(marginal.given_u()) + spread
    drawn = marginal.noisy(NOISE).sample(KEY, (20_000,)) - marginal.mean
    found = jnp.einsum("sbp,sbr->bpr", drawn, drawn) / 20_000
    # of 20 000 draws a covariance has a standard error of at most √2 of a variance in a hundred and forty
    np.testing.assert_allclose(found, total + np.diag(NOISE[0]), atol=0.04 * total.max())
    draws = jnp.asarray(RANDOM.normal(size=(N, 1, Q * M)))
    object.__setattr__(f, "u", draws)
    np.testing.assert_allclose(
        convolved(f, X).mean, np.einsum("bpm,bm->bp", weights, draws[:, 0]), rtol=1e-12
    )


def whole_table(x, y=None):
    f = sparse_gp("f", KERNEL, InducingLatents(Z), jitter=0.0)
    with data_plate(x.shape[0]):
        numpyro.sample("y", convolved(f, x).noisy(NOISE).partly_observed(), obs=y)


def single_entries(inducing):
    def model(rows, y=None):
        f = sparse_gp("f", KERNEL, inducing, jitter=0.0)
        with data_plate(rows.shape[0]):
            noise = NOISE[0, rows[:, 1].astype(int)][:, None]
            numpyro.sample("y", f(rows).noisy(noise), obs=y)

    return model


def dense(alpha, keep, blocks=False, inducing=None):
    """Power EP's energy of entries that are kept, by NP × NP matrices, and its q(v); ``blocks`` are rows."""
    rows = rows_of_outputs(X, P)[keep]
    features = InducingLatents(Z) if inducing is None else inducing
    k, between = np.asarray(KERNEL(rows, rows)), np.asarray(cross(KERNEL, rows, features))
    whiten = np.linalg.inv(np.linalg.cholesky(np.asarray(covariance(KERNEL, features))))
    phi = between @ whiten.T
    same = np.repeat(np.arange(N), P)[keep] if blocks else np.arange(len(rows))
    left = np.where(same[:, None] == same, k - phi @ phi.T, 0.0)
    noise, y = np.tile(NOISE[0], N)[keep], np.asarray(Y).ravel()[keep]
    energy = multivariate_normal.logpdf(y, cov=phi @ phi.T + alpha * left + np.diag(noise))
    if alpha == 0.0:
        energy -= 0.5 * (np.diagonal(left) / noise).sum()
    else:
        scaled = left / np.sqrt(noise[:, None] * noise)
        energy -= (1.0 - alpha) / (2.0 * alpha) * np.linalg.slogdet(np.eye(len(rows)) + alpha * scaled)[1]
    given = np.linalg.inv(alpha * left + np.diag(noise))
    q = np.linalg.inv(np.eye(phi.shape[1]) + phi.T @ given @ phi)
    params = {"f/u_loc": (q @ phi.T @ given @ y)[None], "f/u_scale": np.linalg.cholesky(q)[None]}
    return energy, {name: jnp.asarray(value) for name, value in params.items()}


@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 1))
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "heterotopic"])
def test_energies_are_those_of_dense_matrices(alpha, gaps):
    """Outputs of a row together, and entry by entry; entries that are missing are left out of the matrices."""
    keep = ~np.asarray(GAPS).ravel() if gaps else np.ones(N * P, bool)
    together, optimum = dense(alpha, keep, blocks=True)
    y = jnp.where(GAPS, jnp.nan, Y) if gaps else Y
    table = lambda values: -loss(PowerEP(alpha), values, whole_table, Guide(whole_table), X, y)
    np.testing.assert_allclose(table(optimum), together, rtol=1e-9)
    whole = Guide(whole_table)
    np.testing.assert_allclose(-loss(Collapsed(alpha), {}, whole_table, whole, X, y), together, rtol=1e-9)
    found = Collapsed(alpha).finish({}, whole_table, whole, X, y)
    np.testing.assert_allclose(found["f/u_loc"], optimum["f/u_loc"], atol=1e-9)
    moved = optimum | {"f/u_loc": optimum["f/u_loc"] + 0.1}
    assert table(moved) < together
    rows, entries = rows_of_outputs(X, P)[keep], Y.ravel()[keep][:, None]
    model = single_entries(InducingLatents(Z))
    of_rows = np.repeat(np.arange(N), P)[keep]
    collapsed = -loss(Collapsed(alpha, blocks=of_rows), {}, model, Guide(model), rows, entries)
    np.testing.assert_allclose(collapsed, together, rtol=1e-9)
    alone, optimum = dense(alpha, keep)
    np.testing.assert_allclose(
        -loss(Collapsed(alpha), {}, model, Guide(model), rows, entries), alone, rtol=1e-9
    )
    np.testing.assert_allclose(
        -loss(PowerEP(alpha), optimum, model, Guide(model), rows, entries), alone, rtol=1e-9
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_with_all_inputs_inducing_it_is_the_evidence(alpha):
    """Z the rows (x, p) themselves, of which some are missing: N(y; 0, K + S) of dense matrices at every α."""
    keep = ~np.asarray(GAPS).ravel()
    rows, entries = rows_of_outputs(X, P)[keep], Y.ravel()[keep][:, None]
    noise = np.tile(NOISE[0], N)[keep]
    evidence = multivariate_normal.logpdf(entries[:, 0], cov=np.asarray(KERNEL(rows, rows)) + np.diag(noise))
    model = single_entries(rows)
    # the matrix of all rows is inverted: its condition number is some 1e6
    found = -loss(Collapsed(alpha), {}, model, Guide(model), rows, entries)
    np.testing.assert_allclose(found, evidence, rtol=1e-7)


@pytest.mark.slow
def test_blocks_of_rows_hold_all_their_entries():
    """One block of all is the evidence; blocks of rows, and powers of rows, are those of their entries."""
    y, keep = jnp.where(GAPS, jnp.nan, Y), ~np.asarray(GAPS).ravel()
    rows, noise = rows_of_outputs(X, P)[keep], np.tile(NOISE[0], N)[keep]
    evidence = multivariate_normal.logpdf(
        Y.ravel()[keep], cov=np.asarray(KERNEL(rows, rows)) + np.diag(noise)
    )
    table = lambda objective: -loss(objective, {}, whole_table, Guide(whole_table), X, y)
    np.testing.assert_allclose(table(Collapsed.exact()), evidence, rtol=1e-9)
    labels = np.array([1, 0, 0, 1, 2])
    model = single_entries(InducingLatents(Z))
    entries = Collapsed(0.5, np.repeat(labels, P)[keep])
    alone = -loss(entries, {}, model, Guide(model), rows, Y.ravel()[keep][:, None])
    np.testing.assert_allclose(table(Collapsed(0.5, labels)), alone, rtol=1e-9)
    assert table(Collapsed(0.5, 2)) != table(Collapsed(0.5))
    np.testing.assert_allclose(table(Collapsed(jnp.full(N, 0.5))), table(Collapsed(0.5)), rtol=1e-12)


def test_many_latent_values_are_all_that_is_to_know():
    """Of g on a fine grid, beyond the rows, the bound is the evidence, as close as the grid is fine."""
    grid = InducingLatents(jnp.tile(jnp.linspace(-5.0, 5.0, 26)[:, None], (Q, 1, 1)))
    keep = np.ones(N * P, bool)
    rows = rows_of_outputs(X, P)
    noise = np.tile(NOISE[0], N)
    evidence = multivariate_normal.logpdf(Y.ravel(), cov=np.asarray(KERNEL(rows, rows)) + np.diag(noise))
    bound, _ = dense(0.0, keep, inducing=grid)
    assert dense(0.0, keep)[0] < bound - 0.1
    np.testing.assert_allclose(bound, evidence, atol=1e-3)
    model = single_entries(grid)
    found = -loss(Collapsed(), {}, model, Guide(model), rows, Y.ravel()[:, None])
    np.testing.assert_allclose(found, bound, atol=1e-5)


def test_u_inside_the_logarithm():
    _, params = dense(0.5, np.ones(N * P, bool), blocks=True)
    inside = -loss(BlackBoxAlpha(0.5), params, whole_table, Guide(whole_table), X, Y)
    outside = -loss(PowerEP(0.5), params, whole_table, Guide(whole_table), X, Y)
    assert outside < inside < outside + 5.0


@pytest.mark.slow
def test_gradients_and_32_bits():
    def total(strengths, widths, lengthscale, delays, z, x=X, y=Y):
        f = function(Convolved(strengths, widths, lengthscale, delays), InducingLatents(z))
        f = replace(f, u=jnp.ones(f.u.shape, x.dtype))  # a key's draw is another in 32 bits
        emission = convolved(f, x).noisy(jnp.asarray(0.3, x.dtype))
        return emission.tempered(y, 0.5, u_outside=True).sum() + f.kernel.diag(rows_of_outputs(x, P)).sum()

    arguments = *jax.tree.leaves(KERNEL), Z
    slopes = jax.jit(jax.grad(total, range(5)))(*arguments)
    compiled = jax.jit(total)
    for place, slope in enumerate(slopes):
        step = jax.random.normal(jax.random.key(place), slope.shape)
        there, back = (
            compiled(*(a + size * step if n == place else a for n, a in enumerate(arguments)))
            for size in (1e-5, -1e-5)
        )
        np.testing.assert_allclose((slope * step).sum(), (there - back) / 2e-5, rtol=1e-5)
    exact = float(total(*arguments))
    with jax.enable_x64(False):
        narrow = total(*(jnp.asarray(np.asarray(a), jnp.float32) for a in (*arguments, X, Y)))
        assert narrow.dtype == jnp.float32
        np.testing.assert_allclose(float(narrow), exact, rtol=1e-3)


def test_equal_widths_of_nothing_have_finite_slopes():
    total = lambda widths: Convolved(KERNEL.strengths, widths, KERNEL.lengthscale)(
        *[rows_of_outputs(X, P)] * 2
    ).sum()
    assert np.isfinite(jax.grad(total)(jnp.zeros((P, Q, 1)))).all()


def test_it_is_a_hidden_layer_of_the_models_own_conditional():
    def deep(x, y=None):
        first = sparse_gp("first", KERNEL, InducingLatents(Z))
        second = sparse_gp("second", RBF(1.0, 1.0), jnp.ones((2, P)) * jnp.array([[0.0], [1.0]]), 1)
        with data_plate(x.shape[0]):
            h = numpyro.sample("h", convolved(first, x).noisy(0.1), infer=hidden_role())
            numpyro.sample("y", second(h).noisy(0.1), obs=y)

    params = {}
    for layer, size in (("first", Q * M), ("second", 2)):
        params |= {f"{layer}/u_loc": jnp.zeros((1, size)), f"{layer}/u_scale": jnp.eye(size)[None]}
    assert np.isfinite(loss(PowerEP(0.5), params, deep, Guide(deep), X, Y[:, :1]))
    with pytest.raises(ValueError, match="for a layer of mixed or convolved outputs"):
        loss(PowerEP(0.0), params, deep, Guide(deep, hidden=Conditional()), X, Y[:, :1])


def rows_with(output):
    return jnp.concatenate([X, jnp.full((N, 1), float(output))], 1)


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: KERNEL(rows_with(3), rows_with(0)), ValueError, "x: found 3 in its last column, expected .* 0 to 2"),
        (lambda: KERNEL.diag(rows_with(0.5)), ValueError, "x: found 0.5 in its last column"),
        (lambda: KERNEL.diag(X), ValueError, "x: found 1 columns"),
        (lambda: Convolved(jnp.ones(3), 0.1, 1.0).diag(rows_with(0)), ValueError, r"strengths: found shape \(3,\)"),
        (lambda: Convolved(jnp.ones((3, 2)), jnp.ones((3, 2)), 1.0).diag(rows_with(0)), ValueError, "widths: found"),
        (lambda: Convolved(jnp.ones((3, 2)), 0.1, jnp.ones(2)).diag(rows_with(0)), ValueError, "lengthscale: found"),
        (lambda: function(RBF(1.0, 1.0)), TypeError, "kernel: found RBF, expected Convolved"),
        (lambda: function(inducing=InducingLatents(Z[:1])), ValueError, r"z: found shape \(1, 4, 1\), expected \(2, M"),
        (lambda: convolved(function(), rows_with(0)), ValueError, r"x: found shape \(5, 2\), expected \(B, 1\)"),
        (lambda: convolved(function(), Gaussian(X, 0.1 * jnp.ones(X.shape))), ValueError, "x: found Gaussian"),
        (lambda: convolved(function(RBF(1.0, 1.0), rows_with(0)), X), TypeError, "f: found the kernel RBF"),
        (lambda: convolved(seed(sparse_gp, 0)("f", KERNEL, InducingLatents(Z), 2), X), ValueError, "f: found 2 func"),
        (lambda: convolved(function(), X) + 1.0, ValueError, "convolved: found a sum of convolved outputs"),
        (lambda: 2.0 * convolved(function(), X), ValueError, "convolved: found a multiple of convolved outputs"),
        (
            lambda: convolved(function(), X).observe(Poisson()).tempered(jnp.ones((N, P)), 0.5),
            ValueError,
            "alpha: found 0.5 for convolved outputs under Poisson",
        ),
        (
            lambda: loss(ImportanceWeighted(2), dense(0.0, slice(None))[1], whole_table, Guide(whole_table), X, Y),
            ValueError,
            "function: found a sum or a multiple of f",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, error, message):
    with pytest.raises(error, match=message):
        made()


def test_an_output_that_is_not_there_is_no_number():
    """Where rows are traced nobody can look at them."""
    assert np.isnan(jax.jit(KERNEL.diag)(rows_with(3))).all()
