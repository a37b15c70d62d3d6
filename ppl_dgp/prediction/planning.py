r"""Controls that a state space model expects to cost least: the cross-entropy method over simulations of its functions.

.. math::
    \min_{c_{1:H}} \mathbb{E}_{q(u)} \mathbb{E}_{x_{1:H} | u, c} \; cost(y_{1:H}, c_{1:H})

The expectation is the mean over draws of u and of the noise that all candidates share, so that candidates are compared
under the same functions (Rubinstein & Kroese 2004; of Gaussian process dynamics Deisenroth & Rasmussen 2011 plan by
moments instead). Shapes: K candidates, H steps, C controls, D draws, Q state dimensions, P outputs.
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
from ppl_dgp.prediction.particle_filter import ParticleFilter, Particles
from ppl_dgp.prediction.posterior_path import check_number, series
from ppl_dgp.prediction.rollout import onward

#: of the candidates of an iteration, the share that the next one is drawn around
ELITES = 0.1
#: one elite would have no spread
FEWEST_CANDIDATES = 20
#: of the spread of the elites, what an iteration keeps of the one before
INERTIA = 0.2

Cost = Callable[[Array, Array], Any]


@dataclass(frozen=True)
class Plan:
    """The best controls (H, C), their mean cost with its standard error, and the outputs (D, H, P) under them.

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
    hold: int = 1,
    sequence: int | None = -1,
    num_samples: int = 10,
    num_candidates: int = 200,
    iterations: int = 5,
) -> Plan:
    """Plan H controls from a state on, to be applied as a whole, or one by one and planned again after each.

    :param fit: of a state space model, such as ``gpssm``, with controls.
    :param x: as trained on, with the numbers of sequences where there are several.
    :param y: as trained on.
    :param cost: of the means of the outputs (H, P), in the units that were trained on, and of the controls (H, C), one
        number; a function of JAX, of which the same object compiles once.
    :param steps: H.
    :param bounds: the least and the greatest of each control, numbers or (C,).
    :param state: the state (Q,) to begin at, where it is known; otherwise what q says of the end of ``sequence``.
    :param start: controls (H, C) that the search begins around; the middle of the bounds if not given.
    :param hold: steps that each control is held for.
    :param sequence: the one that goes on; None for a new one, from p(x_0).
    :param num_samples: D functions that candidates are judged by.
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
    low, high = (np.atleast_1d(np.asarray(bound, float)) for bound in bounds)
    if (
        low.shape != high.shape
        or low.ndim != 1
        or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all()
    ):
        raise ValueError(
            f"bounds: found {bounds!r}, expected the least and the greatest of each control, numbers or (C,), the "
            "least below the greatest"
        )
    middle = np.broadcast_to(0.5 * (low + high), (steps, len(low)))
    begin = middle if start is None else np.asarray(start, float)
    if begin.shape != middle.shape or not np.isfinite(begin).all():
        raise ValueError(
            f"start: found shape {begin.shape}, expected {middle.shape}, finite controls of all steps"
        )
    known = None if state is None else jnp.asarray(np.asarray(state, float).ravel())
    program = _planned(
        fit.model, fit.guide, cost, (steps, hold, num_samples, num_candidates, iterations), sequence
    )
    found = program(
        key, fit.params, *series(x, y), jnp.asarray(begin), jnp.asarray(low), jnp.asarray(high), known
    )
    controls, costs, outputs = map(np.asarray, found)
    error = float(costs.std(ddof=1) / np.sqrt(num_samples)) if num_samples > 1 else np.inf
    return Plan(controls, float(costs.mean()), error, outputs)


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
        state: Float[Array, " Q"] | None,
    ) -> tuple[Array, Array, Array]:
        key_draws, key_paths, key_search = jax.random.split(key, 3)
        drawn = ParticleFilter.drawn(key_draws, model, guide, params, (x, y), num_samples, sequence)
        drawn.shared.check_controls(start)
        begin = drawn.begin if state is None else _begun_at(drawn.begin, state)
        noises = jax.random.split(key_paths, num_samples)
        every = jnp.arange(num_samples)

        def simulated(controls: Float[Array, "H C"]) -> tuple[Float[Array, " D"], Float[Array, "D H P"]]:
            def one(number: Array, noise: Array) -> Array:
                f, g = drawn.functions(number)
                about = drawn.shared.trajectory, begin.states[number], controls, begin.regimes[number]
                states = onward(noise, *about, held=False, function=f)
                with block():
                    marginal = g(states)
                return Emission(marginal, drawn.shared.emission.likelihood).mean

            outputs = jax.vmap(one)(every, noises)
            return jax.vmap(cost, (0, None))(outputs, controls), outputs

        def expected(blocks: Float[Array, "B C"]) -> Float[Array, ""]:
            result: Array = simulated(_held(blocks, hold, steps))[0].mean()
            return result

        first = start[::hold]
        spread = jnp.broadcast_to(0.5 * (high - low), first.shape)
        draws = jax.random.split(key_search, iterations)

        def turn(search: Any, key: Array) -> tuple[Any, None]:
            centre, spread, best, least = search
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
            return (centre, spread, tried[order[0]], costs[order[0]]), None

        search = first, spread, first, jnp.asarray(jnp.inf, first.dtype)
        best = jax.lax.scan(turn, search, draws)[0][2]
        controls = _held(best, hold, steps)
        return controls, *simulated(controls)

    return jax.jit(program)


def _held(blocks: Float[Array, "B C"], hold: int, steps: int) -> Float[Array, "H C"]:
    """Each control for as many steps."""
    return jnp.repeat(blocks, hold, axis=0, total_repeat_length=blocks.shape[0] * hold)[:steps]


def _begun_at(begin: Particles, state: Float[Array, " Q"]) -> Particles:
    """The same draws of the functions at one state. Raises ValueError if it is of another dimension."""
    if state.shape != begin.states.shape[1:]:
        raise ValueError(
            f"state: found {state.shape[0]} dimensions, expected {begin.states.shape[1]}, those of the model's states"
        )
    return begin._replace(states=jnp.broadcast_to(state, begin.states.shape))
