"""Natural gradients of chains against dense Gaussians with inverses, the Fisher matrix, and Kalman's smoother."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from jax.flatten_util import ravel_pytree

from ppl_dgp.state_space.kalman import LinearEmission, smoothed_posterior
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.natural_chain import natural_chain_step

T, Q = 3, 2
STATES = T + 1
BREAK = jnp.array([True, False, True])
stepped = jax.jit(natural_chain_step, static_argnames="independent_noise")


def tril(random, *shape):
    lower = 0.4 * np.tril(random.normal(size=shape), -1)
    return lower + np.eye(shape[-1]) * random.uniform(0.4, 1.2, size=(*shape[:-1], 1))


def chain_of(seed, steps=T, independent=False, joined=None, dtype=float):
    random = np.random.default_rng(seed)
    fields = [
        random.normal(size=Q),
        tril(random, Q, Q),
        0.6 * random.normal(size=(steps, Q, Q)),
        random.normal(size=(steps, Q)),
        tril(random, steps, Q, Q),
    ]
    if independent:
        fields[1], fields[4] = fields[1] * np.eye(Q), fields[4] * np.eye(Q)
    if joined is not None:
        fields[2] = fields[2] * np.asarray(joined)[:, None, None]
    return LinearGaussianChain(*(jnp.asarray(field, dtype) for field in fields))


def moments(chain):
    """η, centred: means, covariances and those of neighbours."""
    mean, covariance = dense(chain)
    cut = lambda i, j: covariance[i * Q : (i + 1) * Q, j * Q : (j + 1) * Q]
    states = len(mean) // Q
    own = jnp.stack([cut(t, t) for t in range(states)])
    return mean.reshape(states, Q), own, jnp.stack([cut(t, t - 1) for t in range(1, states)])


def dense(chain):
    """Mean and covariance of all states, from x = F x + c + noise."""
    states = chain.offsets.shape[0] + 1
    slopes, offsets, scales = chain.steps
    flow, noise = np.eye(states * Q), np.zeros((states * Q,) * 2)
    for t in range(states):
        here = slice(t * Q, (t + 1) * Q)
        noise[here, here] = scales[t] @ scales[t].T
        if t:
            flow[here, (t - 1) * Q : t * Q] = -slopes[t]
    inverse = np.linalg.inv(flow)
    return inverse @ np.ravel(offsets), inverse @ noise @ inverse.T


def chain_at(means, own, cross, independent=False):
    """The chain with given moments: A = C Σ⁻¹, b = m − A m⁻, S = Σ − A Cᵀ."""
    slopes = jnp.stack([jnp.linalg.solve(own[t].T, cross[t].T).T for t in range(len(cross))])
    offsets = means[1:] - jnp.einsum("tij,tj->ti", slopes, means[:-1])
    noises = own[1:] - jnp.einsum("tij,tkj->tik", slopes, cross)
    keep = jnp.eye(Q) if independent else jnp.ones((Q, Q))
    lowers = jnp.linalg.cholesky(jnp.concatenate([own[:1], noises]) * keep)
    return LinearGaussianChain(means[0], lowers[0], slopes, offsets, lowers[1:])


def loss_of(seed, steps=T):
    """A smooth function of a chain's parameters, not convex."""
    weights = chain_of(seed, steps)

    def loss(chain):
        scales = jnp.concatenate([chain.initial_scale_tril[None], chain.scale_trils])
        spreads = scales @ jnp.swapaxes(scales, -1, -2)
        pairs = zip(jax.tree.leaves(chain), jax.tree.leaves(weights), strict=True)
        rest = sum(jnp.sin(leaf + weight).sum() for leaf, weight in pairs)
        return rest + 0.3 * jnp.cos(spreads).sum() - 0.2 * jnp.linalg.slogdet(spreads)[1].sum()

    return loss


def explicit(chain, loss, rate, joined=None):
    """θ − rate ∂loss/∂η with dense inverses: mean and covariance after it."""
    mean, covariance = dense(chain)
    eta = moments(chain)
    in_means, in_own, in_cross = jax.grad(lambda eta: loss(chain_at(*eta)))(eta)
    if joined is not None:
        in_cross = in_cross * joined[:, None, None]
    precision = np.linalg.inv(covariance)
    for t in range(len(in_means)):
        here, last = slice(t * Q, (t + 1) * Q), slice((t - 1) * Q, t * Q)
        # −½ precision − rate ∂loss/∂(E x xᵀ); an entry beside the diagonal block is there twice
        precision[here, here] += 2.0 * rate * 0.5 * (in_own[t] + in_own[t].T)
        if t:
            precision[here, last] += rate * in_cross[t - 1]
            precision[last, here] += rate * in_cross[t - 1].T
    # about the means: what the second moments add to the linear term vanishes
    after = np.linalg.inv(precision)
    return mean - rate * after @ np.ravel(in_means), after


@pytest.mark.slow
@pytest.mark.parametrize("seed", few([1, 2, 3], 0))
def test_a_step_is_the_formula_with_dense_inverses(seed):
    chain, loss, rate = chain_of(seed), loss_of(seed + 10), 0.05
    found = stepped(chain, jax.jit(jax.grad(loss))(chain), rate)
    for got, expected in zip(dense(found.chain), explicit(chain, loss, rate), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-11)
    assert found.halvings == 0


def fisher(chain, free):
    """The Fisher matrix of a family, from the Hessian of KL at its minimum, and what puts its parameters in place."""
    at, put = ravel_pytree(chain)
    places = np.flatnonzero(ravel_pytree(free)[0])
    moved = lambda change: put(at.at[places].add(change))
    matrix = jax.jit(jax.hessian(lambda change: chain.kl(moved(change))))(jnp.zeros(len(places)))
    return matrix, places, moved


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("joined", few([None, BREAK], 1))
def test_the_direction_is_the_inverse_fisher_matrix_times_the_gradient(independent, joined):
    chain = chain_of(4, independent=independent, joined=joined)
    noise = jnp.eye(Q) if independent else jnp.tril(jnp.ones((Q, Q)))
    ones = jax.tree.map(jnp.ones_like, chain)
    free = replace(ones, initial_scale_tril=noise, scale_trils=ones.scale_trils * noise)
    free = replace(free, slopes=ones.slopes * (1.0 if joined is None else joined[:, None, None]))
    matrix, places, moved = fisher(chain, free)
    gradient = jax.jit(jax.grad(loss_of(14)))(chain)
    direction = -np.linalg.solve(matrix, ravel_pytree(gradient)[0][places])
    step = lambda rate: stepped(chain, gradient, rate, joined=joined, independent_noise=independent).chain
    # central differences of the step in ρ
    change = (ravel_pytree(step(1e-4))[0] - ravel_pytree(step(-1e-4))[0]) / 2e-4
    np.testing.assert_allclose(change[places], direction, rtol=2e-6, atol=2e-6)
    assert np.all(np.delete(change, places) == 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float64, 1e-10), (jnp.float32, 2e-4)])
def test_one_step_of_a_linear_gaussian_model_is_kalmans_smoother(dtype, tolerance):
    steps, random = 40, np.random.default_rng(3)
    prior, q = chain_of(5, steps, dtype=dtype), chain_of(6, steps, dtype=dtype)
    y = jnp.asarray(random.normal(size=(steps + 1, 1)), dtype).at[0].set(jnp.nan)
    emission = LinearEmission(*(jnp.asarray(each, dtype) for each in ([[1.0, -0.5]], [0.2], [[0.3]])))
    posterior, _ = smoothed_posterior(prior, y, emission)

    def loss(q):
        means, covariances, _ = q.marginals()
        c, r = emission.matrix, emission.scale_tril[0, 0]
        residual = y[1:, 0] - (means @ c[0] + emission.offset[0])[1:]
        spread = jnp.einsum("i,tij,j->t", c[0], covariances, c[0])[1:]
        return q.kl(prior) + 0.5 * ((jnp.square(residual) + spread) / r**2).sum()

    gradient = jax.jit(jax.grad(loss))
    found = stepped(q, gradient(q), 1.0).chain
    for got, exact in zip(jax.tree.leaves(found), jax.tree.leaves(posterior), strict=True):
        np.testing.assert_allclose(got, exact, rtol=tolerance, atol=tolerance)
    again = stepped(found, gradient(found), 1.0)
    # a sum of cancelling terms, whose rounding is that of their number
    assert abs(again.divergence) < 100 * jnp.finfo(dtype).eps * 3 * steps and again.halvings == 0


def test_sequences_behind_each_other_are_chains_of_their_own():
    chain, loss = chain_of(7, joined=BREAK), loss_of(8)
    gradient = jax.jit(jax.grad(loss))(chain)
    whole = stepped(chain, gradient, 0.1, joined=BREAK).chain
    # the states 0, 1 and the states 2, 3
    first = LinearGaussianChain(
        chain.initial_mean, chain.initial_scale_tril, *(leaf[:1] for leaf in _steps(chain))
    )
    last = LinearGaussianChain(chain.offsets[1], chain.scale_trils[1], *(leaf[2:] for leaf in _steps(chain)))
    pieces = [
        (first, replace(gradient, **dict(zip(NAMES, (leaf[:1] for leaf in _steps(gradient)), strict=True)))),
        (
            last,
            LinearGaussianChain(
                gradient.offsets[1], gradient.scale_trils[1], *(leaf[2:] for leaf in _steps(gradient))
            ),
        ),
    ]
    alone = [stepped(piece, slope, 0.1).chain.steps for piece, slope in pieces]
    for got, *expected in zip(whole.steps, *alone, strict=True):
        np.testing.assert_allclose(got, np.concatenate(expected), rtol=1e-12, atol=1e-13)


NAMES = ("slopes", "offsets", "scale_trils")


def _steps(chain):
    return tuple(getattr(chain, name) for name in NAMES)


def test_a_step_is_halved_until_it_is_a_density_within_reach():
    chain, loss = chain_of(1), loss_of(11)
    gradient = jax.jit(jax.grad(loss))(chain)
    taken, halvings = 16.0, 0
    while np.linalg.eigvalsh(explicit(chain, loss, taken)[1]).min() < 0:
        taken, halvings = 0.5 * taken, halvings + 1
    found = stepped(chain, gradient, 16.0)
    assert found.halvings == halvings > 0
    for got, expected in zip(dense(found.chain), explicit(chain, loss, taken), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.divergence, jax.jit(chain.kl)(found.chain), rtol=1e-9)
    near = stepped(chain, gradient, 16.0, most=0.5 * found.divergence)
    assert near.divergence <= 0.5 * found.divergence and near.halvings > halvings
    # nothing is near enough: q stays where it is
    stays = stepped(chain, gradient, 16.0, most=0.0)
    assert stays.halvings == 30
    for got, was in zip(jax.tree.leaves(stays.chain), jax.tree.leaves(chain), strict=True):
        np.testing.assert_allclose(got, was, rtol=1e-14, atol=1e-15)
