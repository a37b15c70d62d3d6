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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Num

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.prediction.posterior_path import (
    PosteriorPath,
    check_ahead,
    check_number,
    columns_of,
    draw,
    series,
)
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
    record = new_rows(x_new, y_new, data[1].shape[1])
    check_ahead(fit.model, "x_new", record[0])
    program = _filter(fit.model, fit.guide, num_particles, None if fresh else sequence)
    steps = program(key, fit.params, *data, *record)
    return ParticleFiltered(**{name: np.asarray(value) for name, value in steps.items()})


def new_rows(
    x_new: Array | None, y_new: Array, outputs: int, names: tuple[str, str] = ("x_new", "y_new")
) -> tuple[Float[Array, "H C"], Num[Array, "H P"]]:
    """Controls and outputs of steps that were not trained on. Raises ValueError where they do not fit."""
    rows = columns_of(names[1], y_new, len(y_new), outputs)
    controls = jnp.zeros((rows.shape[0], 0)) if x_new is None else jnp.asarray(x_new, float)
    if controls.shape[0] != rows.shape[0]:
        raise ValueError(
            f"{names[0]}: found {controls.shape[0]} rows, expected {rows.shape[0]}, one for each row of {names[1]}"
        )
    return controls, rows


@lru_cache(maxsize=32)
def _filter(model: Model, guide: Model, num_particles: int, sequence: int | None) -> Model:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Float[Array, "H C"], y_new: Array
    ) -> dict[str, Array]:
        key_draws, key_steps = jax.random.split(key)
        particles = ParticleFilter.drawn(key_draws, model, guide, params, (x, y), num_particles, sequence)
        return particles.run(key_steps, controls, y_new)[1]

    return compiled(program)


class Particles(NamedTuple):
    """N states of logarithmic weights, the regime of each one's step to come, and which draw of u it follows."""

    states: Float[Array, "*H N Q"]
    regimes: Int[Array, "*H N"]
    which: Int[Array, "*H N"]
    log_weights: Float[Array, "*H N"]


@dataclass(frozen=True)
class ParticleFilter:
    """N draws of q that a sequence is followed with: the u of each, where they begin, and all else that they share."""

    shared: PosteriorPath
    transition_u: Float[Array, "N P M"]
    emission_u: Float[Array, "N R L"]
    begin: Particles

    @staticmethod
    def drawn(
        key: Array,
        model: Model,
        guide: Model,
        params: Parameters,
        data: tuple[Array, Array],
        num_particles: int,
        sequence: int | None,
    ) -> ParticleFilter:
        """Particles at the end of a sequence of the training rows ``data``, or at x_0 of a new one."""
        key_draws, key_shared = jax.random.split(key)

        def one(key: Array) -> Any:
            key_q, key_state = jax.random.split(key)
            drawn = draw(key_q, model, guide, params, *data)
            begin, regime = drawn.going_on(key_state, sequence)
            return begin, regime, drawn.trajectory.function.u, drawn.emission.marginal.function.u

        # but for their u the functions of all particles are the same
        shared = draw(key_shared, model, guide, params, *data)
        shared.check_held()
        states, regimes, transition_u, emission_u = jax.lax.map(
            one, jax.random.split(key_draws, num_particles)
        )
        even = jnp.full(num_particles, -log(num_particles), states.dtype)
        begin = Particles(states, regimes, jnp.arange(num_particles), even)
        return ParticleFilter(shared, transition_u, emission_u, begin)

    def functions(self, which: Int[Array, "*N"]) -> tuple[SparseGP, SparseGP]:
        """Transition and emission of some draws of u."""
        f, g = self.shared.trajectory.function, self.shared.emission.marginal.function
        return _with_u(f, self.transition_u[which]), _with_u(g, self.emission_u[which])

    def run(
        self, key: Array, controls: Float[Array, "H C"], y: Num[Array, "H P"], *, kept: bool = False
    ) -> tuple[Particles, dict[str, Array]]:
        """The particles after all steps, or after each, (H, N, …), where they are ``kept``, and their moments."""
        self.shared.check_controls(controls)
        keys = jax.random.split(key, y.shape[0])

        def step(particles: Particles, turn: Any) -> tuple[Particles, Any]:
            particles, moments = self._step(particles, *turn)
            return particles, (particles if kept else None, moments)

        last, (each, moments) = jax.lax.scan(step, self.begin, (keys, controls, y))
        return each if kept else last, moments

    def _step(
        self, particles: Particles, key: Array, control: Float[Array, " C"], y: Num[Array, " P"]
    ) -> tuple[Particles, dict[str, Array]]:
        states, regimes, which, log_weights = particles
        key_states, key_regimes, key_resample = jax.random.split(key, 3)
        number, trajectory = states.shape[0], self.shared.trajectory
        every, shape = jnp.arange(number), trajectory.noises.shape
        f, g = self.functions(which)
        marginal = f(followed(states, jnp.broadcast_to(control, (number, *control.shape))))
        # of each particle the function that it follows
        followed_one = lambda values: values.reshape(number, *shape)[every, regimes]
        deviation = jnp.sqrt(followed_one(marginal.variance) + trajectory.noise_at(control, regimes))
        states = followed_one(marginal.mean) + deviation * jax.random.normal(
            key_states, states.shape, states.dtype
        )
        regimes = jax.vmap(trajectory.next_regime)(jax.random.split(key_regimes, number), regimes)
        emission = Emission(g(states), self.shared.emission.likelihood, partly=True)
        weights = jnp.exp(log_weights)
        predicted = _particle_moments(weights, emission.mean, emission.variance)
        # p(y_h | y_<h) = Σ_i w_i p(y_h | x_i)
        joint = log_weights + emission.log_prob(jnp.broadcast_to(y, (number, *y.shape)))
        log_density = logsumexp(joint)
        log_weights = joint - log_density
        weights = jnp.exp(log_weights)
        mean, variance = _particle_moments(weights, states, jnp.zeros_like(states))
        effective = 1.0 / jnp.square(weights).sum()
        few = effective < 0.5 * number
        chosen = jnp.where(few, systematic(key_resample, weights), every)
        log_weights = jnp.where(few, -log(number), log_weights)
        moments = {
            "mean": mean,
            "deviation": jnp.sqrt(variance),
            "predicted_mean": predicted[0],
            "predicted_variance": predicted[1],
            "log_density": log_density,
            "effective_size": effective,
        }
        return Particles(states[chosen], regimes[chosen], which[chosen], log_weights), moments


def systematic(key: Array, weights: Float[Array, " N"]) -> Int[Array, " N"]:
    """Which N particles to go on with: each i ⌊N w_i⌋ or ⌈N w_i⌉ times, N w_i on average (Kitagawa 1996)."""
    number = weights.shape[0]
    places = (jnp.arange(number) + jax.random.uniform(key, (), weights.dtype)) / number
    # the last sum may be below 1 by rounding
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), places), number - 1)


def _with_u(function: SparseGP, u: Float[Array, "*N P M"]) -> SparseGP:
    """The function of each particle, or of one; a linear map as it is."""
    return function if function.inducing.shape[0] == 0 else replace(function, u=u)


def _particle_moments(
    weights: Float[Array, " N"], mean: Float[Array, "N P"], variance: Float[Array, "N P"]
) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
    """Mean and variance of a mixture."""
    centre = weights @ mean
    return centre, weights @ (variance + jnp.square(mean - centre))
