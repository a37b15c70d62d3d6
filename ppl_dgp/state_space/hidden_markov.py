r"""Regimes that follow a Markov chain, summed out exactly; and regressions that switch with them, fitted by EM.

.. math::
    s_1 \sim \pi, \quad s_t \sim \Pi_{s_{t-1}}, \qquad
    \log \sum_{s_1 \ldots s_T} \prod_t p(s_t | s_{t-1}) \, e^{w_t(s_t)}

The sum is the forward algorithm's (Rabiner 1989), a product of T matrices that is taken in parallel over time; the
derivatives of its logarithm are what the backward pass would give (Eisner 2016). Shapes: T steps of S sequences one
after the other, K regimes, D inputs, Q targets.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from ppl_dgp.numerics.products import multiplying_in_full

#: regressions are fitted from so many random assignments of the steps, which agree for so many steps in a row
RESTARTS, BLOCK = 10, 10
#: each regime sees this share of all the steps besides its own, so that none is lost or fits a few of them perfectly
SHARED = 0.01
#: noise variances at least, relative to the variance of the targets
REGIME_NOISE_FLOOR = 1e-4


class RegimeChain(NamedTuple):
    """π (K,), and Π (K, K), whose rows sum to 1: a pytree."""

    initial: Float[Array, " K"]
    transition: Float[Array, "K K"]

    def log_evidence(self, weights: Float[Array, "T K"], first: Bool[Array, " T"]) -> Float[Array, " T"]:
        """Increments of the steps to the logarithm of the sum over all regimes, given those before it.

        :param weights: w_t(k).
        :param first: whether a step is the first of its sequence.
        """
        return _log_evidence(weights, *self._logs, first)

    def probabilities(self, weights: Float[Array, "T K"], first: Bool[Array, " T"]) -> Float[Array, "T K"]:
        """p(s_t = k | all steps)."""
        shares: Float[Array, "T K"] = jax.grad(lambda w: self.log_evidence(w, first).sum())(weights)
        return shares

    def sample(self, key: Array, first: Bool[Array, " T"]) -> Int[Array, " T"]:
        """A draw of the regimes."""
        initial, transition = self._logs

        def step(before: Array, turn: tuple[Array, Array]) -> tuple[Array, Array]:
            key, begins = turn
            regime = jax.random.categorical(key, jnp.where(begins, initial, transition[before]))
            return regime, regime

        return jax.lax.scan(step, jnp.asarray(0), (jax.random.split(key, first.shape[0]), first))[1]

    @property
    def _logs(self) -> tuple[Float[Array, " K"], Float[Array, "K K"]]:
        """Their logarithms, finite where a probability is 0."""
        smallest = jnp.finfo(self.initial.dtype).tiny
        return jnp.log(jnp.maximum(self.initial, smallest)), jnp.log(jnp.maximum(self.transition, smallest))


def _log_evidence(
    weights: Float[Array, "T K"],
    initial: Float[Array, " K"],
    transition: Float[Array, "K K"],
    first: Bool[Array, " T"],
) -> Float[Array, " T"]:
    def compose(before: Array, after: Array) -> Array:
        return logsumexp(before[..., :, :, None] + after[..., None, :, :], axis=-2)

    # log p(s_t | s_{t−1}) + w_t(s_t); where a sequence begins it is the same whatever came before
    matrices = jnp.where(first[:, None, None], initial, transition) + weights[:, None, :]
    through = jax.lax.associative_scan(compose, matrices)
    # the first step begins a sequence, so that all rows of the products are the same
    total = logsumexp(through[:, 0], axis=-1)
    return jnp.diff(total, prepend=jnp.zeros(1, total.dtype))


class RegimeRegressions(NamedTuple):
    """Linear regressions of the regimes, W (K, D, Q), b (K, Q) and their noise (K, Q), and which step is whose."""

    weights: Float[Array, "K D Q"]
    bias: Float[Array, "K Q"]
    noise: Float[Array, "K Q"]
    chain: RegimeChain
    probabilities: Float[Array, "T K"]

    def means(self, inputs: Float[Array, "T D"]) -> Float[Array, "T K Q"]:
        """W_kᵀ h + b_k."""
        return jnp.einsum("td,kdq->tkq", inputs, self.weights) + self.bias


def regime_regressions(
    key: Array,
    inputs: Float[Array, "T D"],
    targets: Float[Array, "T Q"],
    first: Bool[Array, " T"],
    num_regimes: int,
    *,
    iterations: int = 50,
) -> RegimeRegressions:
    """target_t ~ N(W_{s_t}ᵀ input_t + b_{s_t}, noise_{s_t}), by EM from random starts, of which the most likely stays.

    Works inside jit. The most frequent regime comes first.

    :raises ValueError: if there are no regimes.
    """
    if num_regimes < 1:
        raise ValueError(f"num_regimes: found {num_regimes}, expected at least 1")
    regressions: RegimeRegressions = _regime_em(key, inputs, targets, first, num_regimes, iterations)
    return regressions


@partial(jax.jit, static_argnames=("num_regimes", "iterations"))
@multiplying_in_full
def _regime_em(
    key: Array, inputs: Array, targets: Array, first: Array, num_regimes: int, iterations: int
) -> RegimeRegressions:
    steps = inputs.shape[0]
    ones = jnp.ones((steps, 1), inputs.dtype)
    design = jnp.concatenate([inputs, ones], 1)

    def maximised(shares: Float[Array, "T K"]) -> tuple[Array, Array]:
        """The weighted regression of each regime: (K, D + 1, Q), (K, Q)."""
        count = (shares + SHARED).T
        gram = jnp.einsum("kt,ti,tj->kij", count, design, design)
        solved = jnp.linalg.pinv(gram, hermitian=True) @ jnp.einsum("kt,ti,tq->kiq", count, design, targets)
        error = jnp.square(targets - design @ solved)
        return solved, jnp.einsum("kt,ktq->kq", count, error) / count.sum(1)[:, None]

    least = REGIME_NOISE_FLOOR * jnp.maximum(targets.var(0), REGIME_NOISE_FLOOR)

    def iteration(
        state: tuple[Array, Array, Array], _: None
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
        shares, initial, transition = state
        solved, noise = maximised(shares)
        noise = jnp.maximum(noise, least)
        error = targets - design @ solved
        density = -0.5 * jnp.square(error) / noise[:, None] - 0.5 * jnp.log(2.0 * jnp.pi * noise)[:, None]
        evidence = lambda w, i, t: _log_evidence(w, i, t, first).sum()
        logs = jnp.log(initial), jnp.log(transition)
        value, (shares, begun, moved) = jax.value_and_grad(evidence, (0, 1, 2))(density.sum(-1).T, *logs)
        # expected counts, and one more of each
        initial, transition = (
            (begun + 1.0) / (begun + 1.0).sum(),
            (moved + 1.0) / (moved + 1.0).sum(1, keepdims=True),
        )
        return (shares, initial, transition), (value, solved, noise)

    def one(key: Array) -> tuple[Array, Array, Array, RegimeChain, Array]:
        # blocks of steps at random
        labels = jax.random.randint(key, (-(-steps // BLOCK),), 0, num_regimes)
        shares = jax.nn.one_hot(jnp.repeat(labels, BLOCK)[:steps], num_regimes, dtype=inputs.dtype)
        even = jnp.full((num_regimes, num_regimes), 1.0 / num_regimes, inputs.dtype)
        state, (values, solved, noises) = jax.lax.scan(iteration, (shares, even[0], even), None, iterations)
        return values[-1], solved[-1], noises[-1], RegimeChain(*state[1:]), state[0]

    values, *fits = jax.vmap(one)(jax.random.split(key, RESTARTS))
    solved, noise, chain, shares = jax.tree.map(lambda leaf: leaf[jnp.argmax(values)], fits)
    order = jnp.argsort(-shares.sum(0))
    chain = RegimeChain(chain.initial[order], chain.transition[order][:, order])
    solved = solved[order]
    return RegimeRegressions(solved[:, :-1], solved[:, -1], noise[order], chain, shares[:, order])
