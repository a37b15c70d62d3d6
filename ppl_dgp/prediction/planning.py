r"""Controls that a state space model expects to cost least: the cross-entropy method over simulations of its states.

.. math::
    \min_{c_{1:H}} \mathbb{E}_{q(u)} \mathbb{E}_{x_{1:H} | u, c} \; cost(y_{1:H}, c_{1:H})

The expectation is the mean over draws of u, of f at each step given u, and of the noise, which all candidates share,
so that they are compared under the same functions (Rubinstein & Kroese 2004; of Gaussian process dynamics Deisenroth
& Rasmussen 2011 plan by moments instead). Shapes: K candidates, H steps, C controls, D draws, Q state dimensions, P
outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.handlers import block

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.prediction.particle_filter import ParticleFilter, Particles
from ppl_dgp.prediction.posterior_path import check_number, series
from ppl_dgp.prediction.rollout import onward
from ppl_dgp.state_space.sequences import check_times

#: of the candidates of an iteration, the share that the next one is drawn around
ELITES = 0.1
#: one elite would have no spread
FEWEST_CANDIDATES = 20
#: of the spread of the elites, what an iteration keeps of the one before
INERTIA = 0.2

Cost = Callable[[Array, Array], Any]


@dataclass(frozen=True)
class ControlPlan:
    """The best controls (H, C), their mean cost with its standard error, and the means of y (D, H, P) under them.

    The error is that of the draws; over candidates chosen by the same draws the cost is a little too low.
    """

    controls: Float[np.ndarray, "H C"]
    cost: float
    error: float
    outputs: Float[np.ndarray, "D H P"]


@takes_fit
def plan_controls(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    cost: Cost,
    steps: int,
    bounds: tuple[ArrayLike, ArrayLike],
    *,
    state: ArrayLike | None = None,
    start: ArrayLike | None = None,
    times: ArrayLike | None = None,
    hold: int = 1,
    sequence: int | None = -1,
    num_samples: int = 10,
    num_candidates: int = 200,
    iterations: int = 5,
) -> ControlPlan:
    """ControlPlan H controls from a state on, to be applied as a whole, or one by one and planned again after each.

    :param fit: of a state space model, such as ``gpssm``, with controls.
    :param x: as trained on, with the numbers of sequences where there are several.
    :param y: as trained on.
    :param cost: of the means of the outputs (H, P), in the units that were trained on, and of the controls (H, C), one
        number; a function of JAX, of which the same object compiles once.
    :param steps: H.
    :param bounds: the least and the greatest of the controls, numbers or (C,).
    :param state: the state (Q,) to begin at, where it is known; otherwise what q says of the end of ``sequence``.
    :param start: controls (H, C) that the search begins around; the middle of the bounds if not given.
    :param times: of steps of different length their Δt, a number or (H,), which is no control to be chosen; None where
        the model has steps of one length.
    :param hold: steps that each control is held for.
    :param sequence: the one that goes on; None for a new one, from p(x_0).
    :param num_samples: D draws of u, by which all candidates are judged.
    :param num_candidates: K of an iteration, at least 20.
    :param iterations: of the search; each simulates K·D paths of H steps.
    :raises ValueError: if the model has no trajectory, no controls or not that sequence, for bounds, state or start
        that do not fit, or where the guide draws anything besides u and the states.
    """
    numbers = {"num_samples": num_samples, "iterations": iterations, "steps": steps, "hold": hold}
    for name, number in numbers.items():
        check_number(name, number)
    if num_candidates < FEWEST_CANDIDATES:
        raise ValueError(
            f"num_candidates: found {num_candidates}, expected at least {FEWEST_CANDIDATES}, of which the best tenth "
            "is gone on from"
        )
    data, ahead = series(x, y), _step_times(fit.model, times, steps)
    # without the number of the sequence and Δt
    width = data[0].shape[1] - (getattr(fit.model, "num_sequences", 1) > 1) - (times is not None)
    low, high = _limits(bounds, width)
    middle = np.broadcast_to(0.5 * (low + high), (steps, width))
    begin = middle if start is None else np.asarray(start, float)
    if begin.shape != middle.shape or not np.isfinite(begin).all():
        raise ValueError(
            f"start: found shape {begin.shape}, expected {middle.shape}, finite controls of all steps; leave it out to "
            "begin at the middle of the bounds"
        )
    known = None if state is None else jnp.asarray(np.asarray(state, float).ravel())
    numbers_of_search = steps, hold, num_samples, num_candidates, iterations
    program = _planned(fit.model, fit.guide, cost, numbers_of_search, sequence)
    arrays = map(jnp.asarray, (begin, low, high, ahead))
    found = program(key, fit.params, *data, *arrays, known)
    controls, costs, outputs = map(np.asarray, found)
    if not np.isfinite(costs).all():
        raise ValueError(
            "cost: found NaN or infinity under every candidate, expected a finite number; look at what it makes of the "
            "outputs of forecast(key, fit, x, y, controls)"
        )
    error = float(costs.std(ddof=1) / np.sqrt(num_samples)) if num_samples > 1 else np.inf
    return ControlPlan(controls, float(costs.mean()), error, outputs)


def _limits(bounds: tuple[ArrayLike, ArrayLike], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of each control. Raises ValueError where they are none."""
    low, high = (np.asarray(bound, float) for bound in bounds)
    fits = all(bound.shape in ((), (width,)) for bound in (low, high))
    if width < 1 or not fits or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise ValueError(
            f"bounds: found {bounds!r}, expected the least and the greatest of the {width} controls, numbers or "
            f"({width},), the least below the greatest"
        )
    return np.broadcast_to(low, (width,)), np.broadcast_to(high, (width,))


def _step_times(model: Model, times: ArrayLike | None, steps: int) -> Float[np.ndarray, "H _"]:
    """Δt of the steps as a last column, none where the model has none. Raises ValueError where they do not fit it."""
    if getattr(model, "timed", times is not None) != (times is not None):
        wanted = (
            "None, for its steps have one length" if times is not None else "the steps' Δt, a number or (H,)"
        )
        raise ValueError(f"times: found {times!r} for {model!r}, expected {wanted}")
    if times is None:
        return np.zeros((steps, 0))
    given = np.asarray(times, float)
    if given.shape not in ((), (steps,)):
        raise ValueError(
            f"times: found shape {given.shape}, expected a number or ({steps},), one for each step"
        )
    column = np.broadcast_to(given, (steps,))[:, None]
    check_times("times", jnp.asarray(column[:, 0]))
    return column


@lru_cache(maxsize=32)
def _planned(
    model: Model, guide: Model, cost: Cost, numbers: tuple[int, int, int, int, int], sequence: int | None
) -> Model:
    steps, hold, num_samples, num_candidates, iterations = numbers
    elites = max(2, round(ELITES * num_candidates))

    def program(
        key: Array,
        params: Parameters,
        x: Array,
        y: Array,
        start: Float[Array, "H C"],
        low: Float[Array, " C"],
        high: Float[Array, " C"],
        times: Float[Array, "H _"],
        state: Float[Array, " Q"] | None,
    ) -> tuple[Array, Array, Array]:
        key_draws, key_paths, key_search = jax.random.split(key, 3)
        drawn = ParticleFilter.drawn(key_draws, model, guide, params, (x, y), num_samples, sequence)
        drawn.shared.check_controls(jnp.concatenate([start, times], 1))
        begin = drawn.begin if state is None else _begun_at(drawn.begin, state)
        noises = jax.random.split(key_paths, num_samples)
        every = jnp.arange(num_samples)

        def simulated(controls: Float[Array, "H C"]) -> tuple[Float[Array, " D"], Float[Array, "D H P"]]:
            given = jnp.concatenate([controls, times], 1)

            def one(number: Array, noise: Array) -> Array:
                f, g = drawn.functions(number)
                about = drawn.shared.trajectory, begin.states[number], given, begin.regimes[number]
                states = onward(noise, *about, held=False, function=f)
                with block():
                    marginal = g(states)
                return Emission(marginal, drawn.shared.emission.likelihood).mean

            outputs = jax.vmap(one)(every, noises)
            costs = jax.vmap(cost, (0, None))(outputs, controls)
            if jnp.shape(costs) != (num_samples,):
                raise ValueError(
                    f"cost: found shape {jnp.shape(costs)[1:]} for one path, expected one number; sum over its steps"
                )
            return costs, outputs

        def expected(blocks: Float[Array, "B C"]) -> Float[Array, ""]:
            result: Array = simulated(_held(blocks, hold, steps))[0].mean()
            return result

        first = jnp.clip(start[::hold], low, high)
        spread = jnp.broadcast_to(0.5 * (high - low), first.shape)
        draws = jax.random.split(key_search, iterations)

        def turn(search: Any, key: Array) -> tuple[Any, None]:
            centre, spread, best = search
            noise = jax.random.normal(key, (num_candidates - 1, *centre.shape), centre.dtype)
            # the best so far is one of them, so that no iteration loses it
            tried = jnp.concatenate([best[None], jnp.clip(centre + spread * noise, low, high)])
            costs = jnp.nan_to_num(
                jax.lax.map(expected, tried, batch_size=min(num_candidates, 50)), nan=jnp.inf
            )
            order = jnp.argsort(costs)
            chosen = tried[order[:elites]]
            centre = INERTIA * centre + (1.0 - INERTIA) * chosen.mean(0)
            spread = INERTIA * spread + (1.0 - INERTIA) * chosen.std(0)
            return (centre, spread, tried[order[0]]), None

        best = jax.lax.scan(turn, (first, spread, first), draws)[0][2]
        controls = _held(best, hold, steps)
        return controls, *simulated(controls)

    return compiled(program)


def _held(blocks: Float[Array, "B C"], hold: int, steps: int) -> Float[Array, "H C"]:
    """Each control for as many steps."""
    return jnp.repeat(blocks, hold, axis=0, total_repeat_length=blocks.shape[0] * hold)[:steps]


def _begun_at(begin: Particles, state: Float[Array, " Q"]) -> Particles:
    """The same draws of the functions at one state. Raises ValueError if it is of another dimension."""
    if state.shape != begin.states.shape[1:]:
        raise ValueError(
            f"state: found {state.shape[0]} dimensions, expected {begin.states.shape[1]}, those of the model's states; "
            "smooth(…).paths[:, -1] has such"
        )
    return begin._replace(states=jnp.broadcast_to(state, begin.states.shape))
