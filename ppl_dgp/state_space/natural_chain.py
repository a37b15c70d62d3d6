r"""Natural gradients of a Gaussian Markov chain: one smoother's pass per update, O(T).

With expectation parameters η = (E x_t, E x_t x_tᵀ, E x_t x_{t−1}ᵀ) and natural parameters θ the step
θ ← θ − ρ ∂loss/∂η multiplies q by Gaussian potentials of neighbours, the sites of conjugate-computation variational
inference (Khan & Lin 2017; Chang, Wilkinson, Khan & Solin 2020; Barfoot, Forbes & Yoon 2020). Where the loss is that of
a linear-Gaussian model, one step of ρ = 1 ends at the smoother's chain. The parameters of a step, A_t, b_t and
S_t = L_t L_tᵀ, are a function of η of two neighbours, so that ∂loss/∂η follows from the gradients in them, and no
objective has to know of η.

Written for increments: with m_t, Σ_t the marginals of q, A̅, b̅ the gradients and H_t = 2 Lᵀ (∂loss/∂S) L, from the last
step back to the first

.. math::
    W_t &= (\bar A_t - \bar b_t m_{t-1}^\top)\, \Sigma_{t-1}^{-1}, \quad
    K_t = \rho W_t + M_t A_t, \quad r_t = l_t - \rho \bar b_t \\
    V_t &= S'_t = L_t (I + \rho H_t + L_t^\top M_t L_t)^{-1} L_t^\top, \quad A'_t = A_t - V_t K_t, \quad
    b'_t = m_t + V_t r_t - A'_t m_{t-1} \\
    M_{t-1} &= A_t^\top M_t A_t - K_t^\top V_t K_t, \quad l_{t-1} = A_t^\top l_t - K_t^\top V_t r_t

from M = 0, l = 0. Without a gradient nothing moves, to the last digit. Shapes: T steps, Q state dimensions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ppl_dgp.numerics.halving import halved_until_near
from ppl_dgp.numerics.linalg import inverse_lower, lower_inverse_root
from ppl_dgp.state_space.linear_gaussian_chain import (
    LinearGaussianChain,
    apply,
    log_det,
    times,
    transposed,
)


class ChainStep(NamedTuple):
    """The chain after a step, KL[before ‖ after], and how often the rate was halved."""

    chain: LinearGaussianChain
    divergence: Float[Array, ""]
    halvings: Int[Array, ""]


def natural_chain_step(
    chain: LinearGaussianChain,
    gradient: LinearGaussianChain,
    rate: Float[Array, ""] | float,
    *,
    joined: Bool[Array, " T"] | None = None,
    independent_noise: bool = False,
    most: Float[Array, ""] | float = jnp.inf,
) -> ChainStep:
    """One step θ ← θ − ρ ∂loss/∂η of one chain, ρ halved until q stays a density within reach, at most 30 times.

    :param chain: q, without leading axes; ``jax.vmap`` takes many.
    :param gradient: of the loss in the chain's parameters, as ``jax.grad`` gives it.
    :param rate: ρ.
    :param joined: whether a step goes on from the state before it; where it does not, a chain of its own begins, whose
        slope is 0 and stays it. All do if not given.
    :param independent_noise: for a family whose L_t are diagonal: the step is that of the family (the gradient in full
        chains projected on it), and q is moved to the member that is closest in KL[full ‖ member].
    :param most: KL[before ‖ after], in nats, that a step may reach.
    """
    slopes, offsets, scales = chain.steps
    slope_gradients, shifts, scale_gradients = gradient.steps
    means, covariances, _ = chain.marginals()
    before = jnp.concatenate([jnp.zeros_like(means[:1]), means[:-1]])
    # of x_0, which follows nothing, any covariance would do
    identity = jnp.broadcast_to(jnp.eye(means.shape[1], dtype=means.dtype), covariances[:1].shape)
    roots = jnp.linalg.cholesky(jnp.concatenate([identity, covariances[:-1]]))
    follows = jnp.concatenate(
        [jnp.zeros(1, bool), jnp.ones(len(means) - 1, bool) if joined is None else joined]
    )
    inverse = inverse_lower(roots)
    centred = slope_gradients - shifts[:, :, None] * before[:, None, :]
    pulls = jnp.where(follows[:, None, None], times(centred, transposed(inverse), inverse), 0.0)
    half = jnp.tril(times(transposed(scales), jnp.tril(scale_gradients)))
    curvatures = half + transposed(jnp.tril(half, -1))
    if independent_noise:
        curvatures = curvatures * identity[0]

    def back(message: tuple[Array, Array], turn: Any) -> Any:
        (precision, pull), (slope, scale, w, shift, curvature, rate) = message, turn
        # I + ρH + LᵀML = (U Uᵀ)⁻¹
        inner = identity[0] + rate * curvature + times(transposed(scale), precision, scale)
        narrowed = times(scale, lower_inverse_root(0.5 * (inner + transposed(inner))))
        towards = times(transposed(narrowed), rate * w + times(precision, slope))
        right = pull - rate * shift
        moved = apply(transposed(narrowed), right)
        pull = apply(transposed(slope), pull) - apply(transposed(towards), moved)
        precision = times(transposed(slope), precision, slope) - times(transposed(towards), towards)
        found = slope - times(narrowed, towards), apply(narrowed, moved), narrowed
        return (0.5 * (precision + transposed(precision)), pull), found

    def attempt(rate: Array) -> tuple[tuple[Array, Array, Array], Array]:
        """A', the means' moves V r, L', and KL[before ‖ after]."""
        nothing = jnp.zeros_like(identity[0]), jnp.zeros_like(means[0])
        rates = jnp.broadcast_to(rate, (len(means),))
        turns = slopes, scales, pulls, shifts, curvatures, rates
        turned, moves, narrowed = jax.lax.scan(back, nothing, turns, reverse=True)[1]
        if independent_noise:
            narrowed = jnp.sqrt(jnp.square(narrowed).sum(-1))[:, :, None] * identity[0]
        whiten = inverse_lower(narrowed)
        parts = (times(whiten, scales), times(whiten, turned - slopes, roots), apply(whiten, moves))
        squares = sum(jnp.square(part).sum() for part in parts)
        divergence = 0.5 * (squares - means.size) + (log_det(narrowed) - log_det(scales)).sum()
        return (turned, moves, narrowed), divergence

    found = halved_until_near(attempt, jnp.asarray(rate, means.dtype), most)
    (turned, moves, narrowed), divergence, count = found
    # b' = m + V r − A' m⁻; as an increment, so that without a gradient it is b
    offsets = offsets + moves - apply(turned - slopes, before)
    after = LinearGaussianChain(offsets[0], narrowed[0], turned[1:], offsets[1:], narrowed[1:])
    return ChainStep(after, divergence, count)
