"""Linear-Gaussian chains against the dense joint Gaussian of all states, and of states and observations, in NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from jax.flatten_util import ravel_pytree
from scipy.stats import multivariate_normal

from ppl_dgp.state_space.kalman import LinearEmission, filtered
from ppl_dgp.state_space.kalman import smoothed_posterior as smoother
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain, propagate

T, Q, P, BATCH = 5, 2, 3, 2
STATES = T + 1
KEY = jax.random.key(5)
# compiled once for all tests of the same shapes
sample = jax.jit(LinearGaussianChain.sample, static_argnums=(2,), static_argnames="parallel")
marginals = jax.jit(LinearGaussianChain.marginals, static_argnames="parallel")
kl, posterior, kalman = map(jax.jit, (LinearGaussianChain.kl, smoother, filtered))


def tril(random, *shape):
    lower = np.tril(random.normal(size=shape), -1) * 0.5
    return lower + np.eye(shape[-1]) * random.uniform(0.3, 1.2, size=(*shape[:-1], 1))


def chain_of(seed, batch=(), steps=T):
    random = np.random.default_rng(seed)
    fields = (
        random.normal(size=(*batch, Q)),
        tril(random, *batch, Q, Q),
        0.7 * random.normal(size=(*batch, steps, Q, Q)),
        random.normal(size=(*batch, steps, Q)),
        tril(random, *batch, steps, Q, Q),
    )
    return LinearGaussianChain(*map(jnp.asarray, fields))


def emission_of(seed, steps=()):
    random = np.random.default_rng(seed)
    fields = random.normal(size=(*steps, P, Q)), random.normal(size=(*steps, P)), tril(random, *steps, P, P)
    return LinearEmission(*map(jnp.asarray, fields))


def dense(chain):
    """Mean and covariance of (x_0 … x_T), from x = F x + c + noise: (I − F)⁻¹ c, (I − F)⁻¹ D (I − F)⁻ᵀ."""
    steps = chain.slopes.shape[-3]
    flow, noise = np.eye((steps + 1) * Q), np.zeros(((steps + 1) * Q,) * 2)
    for t in range(steps + 1):
        here = slice(t * Q, (t + 1) * Q)
        lower = np.asarray(chain.initial_scale_tril if t == 0 else chain.scale_trils[t - 1])
        noise[here, here] = lower @ lower.T
        if t:
            flow[here, (t - 1) * Q : t * Q] = -np.asarray(chain.slopes[t - 1])
    inverse = np.linalg.inv(flow)
    offsets = np.concatenate([chain.initial_mean, np.ravel(chain.offsets)])
    return inverse @ offsets, inverse @ noise @ inverse.T


def blocks(mean, covariance):
    """Means, covariances and Cov(x_t, x_{t−1}) of the states, cut from the dense ones."""
    cut = lambda i, j: covariance[i * Q : (i + 1) * Q, j * Q : (j + 1) * Q]
    states = len(mean) // Q
    return (
        mean.reshape(states, Q),
        np.stack([cut(t, t) for t in range(states)]),
        np.stack([cut(t, t - 1) for t in range(1, states)]),
    )


def conditioned(chain, emission, y):
    """The dense posterior of the states given what is not NaN in y, and the log evidence, by the joint Gaussian."""
    mean, covariance = dense(chain)
    c = np.zeros((STATES * P, STATES * Q))
    noise = np.zeros((STATES * P,) * 2)
    full = lambda value, *shape: np.broadcast_to(value, (STATES, *shape))
    matrices, scales = full(emission.matrix, P, Q), full(emission.scale_tril, P, P)
    for t in range(STATES):
        rows = slice(t * P, (t + 1) * P)
        c[rows, t * Q : (t + 1) * Q], noise[rows, rows] = matrices[t], scales[t] @ scales[t].T
    there = ~np.isnan(y.ravel())
    c, noise = c[there], noise[np.ix_(there, there)]
    expected = c @ mean + full(emission.offset, P).ravel()[there]
    total = c @ covariance @ c.T + noise
    gain = np.linalg.solve(total, c @ covariance).T
    found = y.ravel()[there]
    evidence = multivariate_normal.logpdf(found, expected, total) if there.any() else 0.0
    return mean + gain @ (found - expected), covariance - gain @ c @ covariance, evidence


def observed(pattern):
    y = np.random.default_rng(9).normal(size=(STATES, P))
    if pattern == "missing":
        y[0], y[2, 1], y[3], y[5, :2] = np.nan, np.nan, np.nan, np.nan
    elif pattern == "last missing":
        y[3:] = np.nan
    elif pattern == "none":
        y[:] = np.nan
    return y


CHAIN, OTHER = chain_of(0), chain_of(1)


def test_density_and_entropy_are_those_of_the_joint_gaussian():
    mean, covariance = dense(CHAIN)
    joint = multivariate_normal(mean, covariance)
    paths = np.random.default_rng(2).normal(size=(4, STATES, Q))
    np.testing.assert_allclose(
        CHAIN.log_prob(jnp.asarray(paths)), joint.logpdf(paths.reshape(4, -1)), rtol=1e-10
    )
    np.testing.assert_allclose(CHAIN.entropy(), joint.entropy(), rtol=1e-10)


@pytest.mark.parametrize("parallel", [False, True])
def test_marginals_are_blocks_of_the_joint_gaussian(parallel):
    for found, expected in zip(marginals(CHAIN, parallel=parallel), blocks(*dense(CHAIN)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_kl_is_that_of_the_joint_gaussians():
    (mean, covariance), (mean_p, covariance_p) = dense(CHAIN), dense(OTHER)
    inverse, shift = np.linalg.inv(covariance_p), mean - mean_p
    log_dets = np.linalg.slogdet(covariance_p)[1] - np.linalg.slogdet(covariance)[1]
    expected = 0.5 * (np.trace(inverse @ covariance) + shift @ inverse @ shift - len(mean) + log_dets)
    np.testing.assert_allclose(kl(CHAIN, OTHER), expected, rtol=1e-10)
    np.testing.assert_allclose(kl(CHAIN, CHAIN), 0.0, atol=1e-12)


def test_draws_have_the_joint_moments_within_their_standard_errors():
    count = 20_000
    mean, covariance = dense(CHAIN)
    draws = np.asarray(sample(CHAIN, KEY, (count,))).reshape(count, -1)
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(0) - mean) < 4.5 * deviation / count**0.5)
    # Var of a sample covariance of Gaussians: (Σ_ii Σ_jj + Σ_ij²) / n
    error = np.sqrt((np.outer(deviation, deviation) ** 2 + covariance**2) / count)
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 4.5 * error)


def test_draws_in_parallel_are_the_same():
    both = [sample(CHAIN, KEY, (3, 4), parallel=parallel) for parallel in (False, True)]
    assert both[0].shape == (3, 4, STATES, Q)
    np.testing.assert_allclose(*both, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("steps", [(), (STATES,)])
@pytest.mark.parametrize("pattern", ["all", "missing", "last missing", "none"])
def test_posterior_is_the_joint_gaussian_conditioned(pattern, steps):
    emission, y = emission_of(3, steps), observed(pattern)
    mean, covariance, evidence = conditioned(CHAIN, emission, y)
    chain, found = posterior(CHAIN, jnp.asarray(y), emission)
    np.testing.assert_allclose(found, evidence, rtol=1e-10, atol=1e-10)
    for got, expected in zip(marginals(chain), blocks(mean, covariance), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
    # not the neighbours alone: the whole joint
    for got, expected in zip(dense(chain), (mean, covariance), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
    for lower in (chain.initial_scale_tril, chain.scale_trils):
        assert np.all(np.triu(lower, 1) == 0) and np.all(np.diagonal(lower, axis1=-2, axis2=-1) > 0)


def test_a_mask_leaves_out_what_a_nan_does():
    emission, y = emission_of(3), observed("missing")
    whole = jnp.asarray(np.where(np.isnan(y), 7.0, y))
    masked = posterior(CHAIN, whole, emission, jnp.asarray(~np.isnan(y)))
    missing = posterior(CHAIN, jnp.asarray(y), emission)
    np.testing.assert_allclose(ravel_pytree(masked)[0], ravel_pytree(missing)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pattern", ["all", "missing"])
def test_filter_is_the_joint_gaussian_given_the_past(pattern):
    emission, y = emission_of(3), observed(pattern)
    found, before = kalman(CHAIN, jnp.asarray(y), emission), 0.0
    for t in range(STATES):
        mean, covariance, evidence = conditioned(
            CHAIN, emission, np.where(np.arange(STATES)[:, None] <= t, y, np.nan)
        )
        here = slice(t * Q, (t + 1) * Q)
        np.testing.assert_allclose(found.means[t], mean[here], rtol=1e-9)
        np.testing.assert_allclose(found.covariances[t], covariance[here, here], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.log_predictive[t], evidence - before, rtol=1e-9, atol=1e-10)
        before = evidence


def test_precise_and_distant_observations_keep_their_digits():
    # noise 1e-5 at values of 1e4: the sums of squares are 1e18, the evidence is not
    emission = LinearEmission(jnp.eye(Q), jnp.zeros(Q), 1e-5 * jnp.eye(Q))
    chain = LinearGaussianChain(
        jnp.full(Q, 1e4),
        jnp.eye(Q),
        jnp.broadcast_to(jnp.eye(Q), (T, Q, Q)),
        jnp.zeros((T, Q)),
        CHAIN.scale_trils,
    )
    y = sample(chain, KEY)
    smoothed, evidence = posterior(chain, y, emission)
    np.testing.assert_allclose(evidence, kalman(chain, y, emission).log_predictive.sum(), rtol=1e-7)
    np.testing.assert_allclose(marginals(smoothed).means, y, atol=1e-8)


def test_evidence_bounds_every_chain_and_is_reached_by_the_posterior():
    # log p(y) = E_q[log p(y | x)] − KL[q ‖ p] + KL[q ‖ posterior], for any q: here another chain
    emission, y = emission_of(3), observed("all")
    exact, evidence = posterior(CHAIN, jnp.asarray(y), emission)
    for q in (OTHER, exact):
        means, covariances, _ = marginals(q)
        whiten = np.linalg.inv(emission.scale_tril)
        error = (y - np.asarray(means @ emission.matrix.T + emission.offset)) @ whiten.T
        spread = whiten @ np.asarray(emission.matrix @ covariances @ emission.matrix.T) @ whiten.T
        fit = multivariate_normal.logpdf(error, cov=np.eye(P)) + np.linalg.slogdet(whiten)[1]
        bound = fit.sum() - 0.5 * np.trace(spread, axis1=-2, axis2=-1).sum() - kl(q, CHAIN)
        np.testing.assert_allclose(bound + kl(q, exact), evidence, rtol=1e-10)


@jax.jit
def everything(chain, paths, y):
    emission, other = jax.tree.map(lambda leaf: leaf.astype(paths.dtype), (emission_of(3), OTHER))
    smoothed, evidence = smoother(chain, y, emission)
    moments = (
        chain.marginals(),
        chain.marginals(parallel=True),
        smoothed.marginals(),
        filtered(chain, y, emission),
    )
    return chain.log_prob(paths), chain.entropy(), chain.kl(other), evidence, moments


@pytest.mark.slow
@pytest.mark.parametrize("shared", few([False, True], 1))
def test_leading_axes_are_chains_side_by_side(shared):
    chain = chain_of(4, (BATCH,))
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], chain) for i in range(BATCH)]
    if shared:  # one slope and noise for all rows
        fields = rows[0].initial_scale_tril, rows[0].slopes, chain.offsets, rows[0].scale_trils
        chain = LinearGaussianChain(chain.initial_mean, *fields)
        rows = [LinearGaussianChain(row.initial_mean, *fields[:2], row.offsets, fields[3]) for row in rows]
    y = jnp.asarray(observed("missing"))
    ys = jnp.stack([y, 2.0 * y])
    assert chain.batch_shape == (BATCH,) and chain.event_shape == (STATES, Q)
    draws = [sample(chain, KEY, (3,), parallel=parallel) for parallel in (False, True)]
    assert draws[0].shape == (3, BATCH, STATES, Q)
    np.testing.assert_allclose(*draws, rtol=1e-10, atol=1e-12)
    each = [everything(row, draws[0][0, i], ys[i]) for i, row in enumerate(rows)]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    close = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    jax.tree.map(close, everything(chain, draws[0][0], ys), expected)
    if not shared:
        jax.tree.map(close, jax.jit(jax.vmap(everything))(chain, draws[0][0], ys), expected)


def test_single_precision_stays_so_and_agrees():
    paths, y = CHAIN.initial_mean + jnp.zeros((STATES, Q)), jnp.asarray(observed("missing"))
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (CHAIN, paths, y))
    arguments = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), half)
    for found, expected in zip(
        *map(jax.tree.leaves, (everything(*half), everything(*arguments))), strict=True
    ):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_propagation_between_layers_of_different_widths():
    random = np.random.default_rng(6)
    slope, root, noise = random.normal(size=(4, 2)), tril(random, 2, 2), tril(random, 4, 4)
    joint = np.block([[root, np.zeros((2, 4))], [slope @ root, noise]])
    expected = (joint @ joint.T)[2:, 2:]
    mean, covariance = propagate(
        jnp.ones(2),
        jnp.asarray(root @ root.T),
        jnp.asarray(slope),
        jnp.zeros(4),
        jnp.asarray(noise @ noise.T),
    )
    np.testing.assert_allclose(mean, slope.sum(1), rtol=1e-12)
    np.testing.assert_allclose(covariance, expected, rtol=1e-12)


def objective(chain, emission, y, parallel):
    smoothed, evidence = smoother(chain, y, emission)
    moments = jnp.square(smoothed.marginals(parallel=parallel).cross).sum()
    moments += (
        chain.log_prob(smoothed.sample(KEY, parallel=parallel))
        + filtered(chain, y, emission).log_predictive[-1]
    )
    return evidence + moments + smoothed.entropy() + smoothed.kl(chain)


@pytest.mark.slow
def test_gradients_agree_with_finite_differences_and_are_finite_where_observations_are_missing():
    y = jnp.asarray(observed("missing"))
    flat, unflatten = ravel_pytree((CHAIN, emission_of(3)))
    both = jax.jit(jax.value_and_grad(lambda point: objective(*unflatten(point), y, False)))
    gradient = both(flat)[1]
    assert np.all(np.isfinite(gradient))
    # along the parameters themselves, so that the factors stay triangular; the error is of the order of h²
    up, down = both(flat * (1 + 1e-5))[0], both(flat * (1 - 1e-5))[0]
    np.testing.assert_allclose(gradient @ flat, (up - down) / 2e-5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", few([False, True], 1))
def test_memory_is_linear_in_the_number_of_steps(parallel):
    # no array of the program or of its gradient grows faster than T: not T² for T + 1 states
    largest = []
    for steps in (40, 80):
        gradient = jax.grad(lambda chain, y: objective(chain, emission_of(3), y, parallel))
        program = str(jax.make_jaxpr(gradient)(chain_of(7, (), steps), jnp.zeros((steps + 1, P))))
        shapes = re.findall(r"\bf64\[([\d,]+)\]", program)
        largest.append(max(np.prod([int(length) for length in shape.split(",")]) for shape in shapes))
        assert ("scan[" in program) and program.count("scan[") < 20
    assert largest[1] <= 2 * largest[0] and largest[0] < 41**2


def test_refusals_say_what_was_expected():
    with pytest.raises(ValueError, match=r"path: found shape \(5, 2\), expected \(..., 6, 2\)"):
        CHAIN.log_prob(jnp.zeros((T, Q)))
    with pytest.raises(ValueError, match=r"observations: found shape \(5, 3\), expected \(..., 6, 3\)"):
        smoother(CHAIN, jnp.zeros((T, P)), emission_of(3))
    with pytest.raises(ValueError, match=r"other: found paths of shape \(4, 2\), expected \(6, 2\)"):
        CHAIN.kl(chain_of(0, (), 3))
