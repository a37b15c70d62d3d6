r"""A state space model's states as observations come in, by a bootstrap particle filter that predicts each step too.

.. math::
    x_h^i \sim p(x_h \mid x_{h-1}^i, u^i), \quad w_h^i \propto w_{h-1}^i \, p(y_h \mid x_h^i, u^i), \quad
    p(y_h \mid y_{<h}) \approx \sum_i w_{h-1}^i \, p(y_h \mid x_h^i, u^i)

(Gordon et al. 1993). A particle keeps its own draw of u from q, one function along its path; what u leaves open of f is
integrated out at each step, as if the steps were independent given u. Particles are resampled systematically where
their effective number falls below half. Shapes: H steps, N particles, Q state dimensions, C controls, P outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.prediction.posterior_path import check_number, columns_of, draw, series
from ppl_dgp.state_space.trajectory import followed


@dataclass(frozen=True)
class ParticleFiltered:
    """States given what was observed up to each of H steps, and y given what was observed before it.

    ``mean`` and ``deviation`` (H, Q) of x_h | y_1 … y_h; ``predicted_mean`` and ``predicted_variance`` (H, P) of
    y_h | y_1 … y_{h−1}, and ``log_density`` (H,) its log density at what came, 0 where nothing did: the exponential of
    their sum is an unbiased estimate; ``effective_size`` (H,) of the N particles, before they are resampled.
    """

    mean: np.ndarray
    deviation: np.ndarray
    predicted_mean: np.ndarray
    predicted_variance: np.ndarray
    log_density: np.ndarray
    effective_size: np.ndarray


@takes_fit
def filter_forward(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    x_new: Float[Array, "H K"] | None,
    y_new: Array,
    *,
    num_particles: int = 500,
    sequence: int = -1,
    fresh: bool = False,
) -> ParticleFiltered:
    """Filter the steps after the data, from q's draws of the last state, or those of a new sequence.

    u is filtered too, among the draws that the particles begin with: many steps leave few of them.

    :param fit: of a state space model, such as ``gpssm``.
    :param x: as trained on, with the numbers of sequences where there are several; None for no controls.
    :param y: as trained on.
    :param x_new: controls of the H steps; None for no controls.
    :param y_new: what came, (H, P) or (H,), NaN where it is missing.
    :param sequence: which one goes on, the last by default.
    :param fresh: whether the steps are those of a new sequence, from p(x_0), and of u alone is known what q says.
    :raises ValueError: if the model has no trajectory or not that sequence, for x_new or y_new that do not fit it, or
        where the guide draws anything besides u and the states.
    """
    check_number("num_particles", num_particles)
    data = series(x, y)
    rows = columns_of("y_new", y_new, len(y_new), data[1].shape[1])
    controls = jnp.zeros((rows.shape[0], 0)) if x_new is None else jnp.asarray(x_new, float)
    if controls.shape[0] != rows.shape[0]:
        raise ValueError(
            f"x_new: found {controls.shape[0]} rows, expected {rows.shape[0]}, one for each row of y_new"
        )
    program = _filter(fit.model, fit.guide, num_particles, None if fresh else sequence)
    steps = program(key, fit.params, *data, controls, rows)
    return ParticleFiltered(**{name: np.asarray(value) for name, value in steps.items()})


@lru_cache(maxsize=32)
def _filter(model: Model, guide: Model, num_particles: int, sequence: int | None) -> Model:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Float[Array, "H C"], y_new: Array
    ) -> dict[str, Array]:
        key_draws, key_shared, key_steps = jax.random.split(key, 3)

        def one(key: Array) -> Any:
            key_q, key_state = jax.random.split(key)
            drawn = draw(key_q, model, guide, params, x, y)
            begin, regime = drawn.going_on(key_state, sequence)
            return begin, regime, drawn.trajectory.function.u, drawn.emission.marginal.function.u

        # but for their u the functions of all particles are the same
        shared = draw(key_shared, model, guide, params, x, y)
        shared.check_held()
        shared.check_controls(controls)
        every, noises = jnp.arange(num_particles), shared.trajectory.noises
        f, g = shared.trajectory.function, shared.emission.marginal.function
        begin, regimes, transition_u, emission_u = jax.lax.map(
            one, jax.random.split(key_draws, num_particles)
        )

        def step(represented: tuple[Array, Array, Array, Array], turn: Any) -> Any:
            states, regimes, which, log_weights = represented
            key, control, value = turn
            key_states, key_regimes, key_resample = jax.random.split(key, 3)
            inputs = followed(states, jnp.broadcast_to(control, (num_particles, *control.shape)))
            marginal = _with_u(f, transition_u[which])(inputs)
            # of each particle the function that it follows
            followed_one = lambda values: values.reshape(num_particles, *noises.shape)[every, regimes]
            deviation = jnp.sqrt(followed_one(marginal.variance) + noises[regimes])
            states = followed_one(marginal.mean) + deviation * jax.random.normal(
                key_states, states.shape, states.dtype
            )
            regimes = jax.vmap(shared.trajectory.next_regime)(
                jax.random.split(key_regimes, num_particles), regimes
            )
            emitted = _with_u(g, emission_u[which])(states)
            emission = Emission(emitted, shared.emission.likelihood, partly=True)
            weights = jnp.exp(log_weights)
            predicted = _particle_moments(weights, emission.mean, emission.variance)
            # p(y_h | y_<h) = Σ_i w_i p(y_h | x_i)
            joint = log_weights + emission.log_prob(jnp.broadcast_to(value, (num_particles, *value.shape)))
            log_density = logsumexp(joint)
            log_weights = joint - log_density
            weights = jnp.exp(log_weights)
            mean, variance = _particle_moments(weights, states, jnp.zeros_like(states))
            effective = 1.0 / jnp.square(weights).sum()
            few = effective < 0.5 * num_particles
            chosen = jnp.where(few, systematic(key_resample, weights), every)
            log_weights = jnp.where(few, -log(num_particles), log_weights)
            moments = {
                "mean": mean,
                "deviation": jnp.sqrt(variance),
                "predicted_mean": predicted[0],
                "predicted_variance": predicted[1],
                "log_density": log_density,
                "effective_size": effective,
            }
            return (states[chosen], regimes[chosen], which[chosen], log_weights), moments

        even = jnp.full(num_particles, -log(num_particles), begin.dtype)
        turns = jax.random.split(key_steps, y_new.shape[0]), controls, y_new
        result: dict[str, Array] = jax.lax.scan(step, (begin, regimes, every, even), turns)[1]
        return result

    return jax.jit(program)


def systematic(key: Array, weights: Float[Array, " N"]) -> Int[Array, " N"]:
    """Which N particles to go on with: each i ⌊N w_i⌋ or ⌈N w_i⌉ times, N w_i on average (Kitagawa 1996)."""
    number = weights.shape[0]
    places = (jnp.arange(number) + jax.random.uniform(key, (), weights.dtype)) / number
    # the last sum may be below 1 by rounding
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), places), number - 1)


def _with_u(function: SparseGP, u: Float[Array, "N P M"]) -> SparseGP:
    """The function of each particle, a linear map as it is."""
    return function if function.inducing.shape[0] == 0 else replace(function, u=u)


def _particle_moments(
    weights: Float[Array, " N"], mean: Float[Array, "N P"], variance: Float[Array, "N P"]
) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
    """Mean and variance of a mixture."""
    centre = weights @ mean
    return centre, weights @ (variance + jnp.square(mean - centre))
