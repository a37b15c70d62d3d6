r"""Forecasts that go on from a particle filter: after rows that were seen since training, or from many origins of them.

A path begins at a particle, drawn by its weight, and follows the function of that particle's u,

.. math::
    p(y_{o+h} \mid y_{\le o}) \approx \frac1D \sum_d p(y_{o+h} \mid x_{o+h}^d, u^d), \quad
    x_o^d, u^d \sim \sum_i w_o^i \, \delta(x_o^i, u^i)

What u leaves open of f is drawn along the path, or at each step, as in :mod:`ppl_dgp.prediction.forecast`; the filter
integrates it out step by step, so that no path remembers values of f before its origin. Shapes: n rows, K controls, P
outputs, H steps ahead, D draws, N particles, O origins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Num

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.prediction.particle_filter import ParticleFilter, Particles, new_rows
from ppl_dgp.prediction.posterior_path import check_ahead, check_number, series
from ppl_dgp.prediction.rollout import LONGEST_PATH, onward

#: what may be done about f along a path
DRAWN = ("path", "independent")
#: numbers that paths drawn side by side may hold
SIDE_BY_SIDE = 2**24


@dataclass(frozen=True)
class OriginForecasts:
    """Forecasts of one record from O origins, K horizons h of each, and the free run from the first of them.

    ``origins`` (O,) are the rows filtered before, so that horizon h of origin o is of row o + h, counted from 1.
    ``came`` (O, K, P), NaN beyond the record's end and where nothing came; ``mean`` (O, K, P), ``samples``
    (O, D, K, P) of y, ``log_density`` (O, K), 0 where nothing came. ``free_came``, ``free_mean``, ``free_samples`` and
    ``free_log_density`` are those of the steps from the first origin to the end, without the first axis.
    """

    origins: np.ndarray
    horizons: tuple[int, ...]
    came: np.ndarray
    mean: np.ndarray
    samples: np.ndarray
    log_density: np.ndarray
    free_came: np.ndarray
    free_mean: np.ndarray
    free_samples: np.ndarray
    free_log_density: np.ndarray


def forecast_seen(
    key: Array,
    fit: Posterior,
    data: tuple[Array, Array],
    seen: tuple[Array | None, Array],
    controls: Float[Array, "H K"],
    future: Num[Array, "H P"] | None,
    sequence: int | None,
    function: str,
    numbers: tuple[int, int],
) -> dict[str, Array]:
    """The steps after rows ``seen``, as :func:`ppl_dgp.prediction.forecast.forecast` has them.

    :param data: training rows.
    :param numbers: of draws and of particles.
    :raises ValueError: for rows that do not fit, or moments in place of draws.
    """
    if function not in DRAWN:
        raise ValueError(
            f"function: found {function!r} after rows seen, whose states are particles, expected 'path' or "
            "'independent'"
        )
    check_number("num_particles", numbers[1])
    if not isinstance(seen, tuple) or len(seen) != 2:
        raise ValueError(
            f"seen: found {type(seen).__name__}, expected a pair, controls (or None) and y of the rows"
        )
    rows = new_rows(*seen, data[1].shape[1], ("seen[0]", "seen[1]"))
    check_ahead(fit.model, "seen[0]", rows[0])
    program = _after_rows(fit.model, fit.guide, *numbers, function, sequence)
    steps: dict[str, Array] = program(key, fit.params, *data, *rows, controls, future)
    return steps


def forecast_origins(
    key: Array,
    fit: Posterior,
    x: Array | None,
    y: Array,
    x_new: Float[Array, "n K"] | None,
    y_new: Array,
    *,
    horizons: Sequence[int],
    num_first: int = 0,
    num_origins: int = 50,
    num_samples: int = 200,
    num_particles: int = 500,
    sequence: int | None = -1,
    function: str | None = None,
) -> OriginForecasts:
    """Forecasts of a record from many of its rows, each filtered on those before it, by one compiled program.

    For all settings and errors see :func:`ppl_dgp.diagnostics.horizons.horizon_scores`.

    :param sequence: which one the record goes on from; None if it is a new one.
    """
    numbers = {"num_origins": num_origins, "num_samples": num_samples, "num_particles": num_particles}
    for name, number in numbers.items():
        check_number(name, number)
    data = series(x, y)
    controls, came = new_rows(x_new, y_new, data[1].shape[1])
    check_ahead(fit.model, "x_new", controls)
    came, steps = came.astype(controls.dtype), came.shape[0] - num_first
    if not 0 <= index(num_first) < came.shape[0]:
        raise ValueError(
            f"num_first: found {num_first}, expected 0 to {came.shape[0] - 1}: rows are left to score behind them"
        )
    if bool(jnp.isinf(came).any()) or not bool(jnp.isfinite(controls).all()):
        raise ValueError(
            "x_new, y_new: found numbers that are not finite, expected finite ones, NaN only where an output is missing"
        )
    asked = tuple(index(horizon) for horizon in horizons)
    if not asked or sorted(set(asked)) != list(asked) or asked[0] < 1 or asked[-1] > steps:
        raise ValueError(
            f"horizons: found {asked}, expected numbers of steps that rise, from 1 to {steps}, the rows behind the "
            "first num_first; leave out those beyond, or give a longer record"
        )
    chosen = ("path" if steps <= LONGEST_PATH else "independent") if function is None else function
    if chosen not in DRAWN:
        raise ValueError(f"function: found {function!r}, expected one of {', '.join(DRAWN)}, or None")
    last = came.shape[0] - asked[0]
    origins = np.unique(np.linspace(num_first, last, min(num_origins, last - num_first + 1)).round()).astype(
        int
    )
    program = _from_origins(
        fit.model, fit.guide, num_samples, num_particles, chosen, sequence, asked, num_first
    )
    found = program(key, fit.params, *data, controls, came, jnp.asarray(origins))
    return OriginForecasts(origins, asked, **{name: np.asarray(value) for name, value in found.items()})


@lru_cache(maxsize=32)
def _after_rows(
    model: Model, guide: Model, num_samples: int, num_particles: int, function: str, sequence: int | None
) -> Model:
    def program(
        key: Array,
        params: Parameters,
        x: Array,
        y: Array,
        seen_controls: Array,
        seen: Array,
        controls: Array,
        future: Array | None,
    ) -> dict[str, Array]:
        key_draws, key_filter, key_ahead = jax.random.split(key, 3)
        drawn = ParticleFilter.drawn(key_draws, model, guide, params, (x, y), num_particles, sequence)
        particles, _ = drawn.run(key_filter, seen_controls, seen)
        drawn.shared.check_controls(controls)
        return _ahead(key_ahead, drawn, particles, controls, future, num_samples, function == "path")

    return compiled(program)


@lru_cache(maxsize=32)
def _from_origins(
    model: Model,
    guide: Model,
    num_samples: int,
    num_particles: int,
    function: str,
    sequence: int | None,
    horizons: tuple[int, ...],
    num_first: int,
) -> Model:
    places = np.array(horizons) - 1

    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Array, came: Array, origins: Array
    ) -> dict[str, Array]:
        key_draws, key_filter, key_free, key_ahead = jax.random.split(key, 4)
        drawn = ParticleFilter.drawn(key_draws, model, guide, params, (x, y), num_particles, sequence)
        if drawn.shared.emission.mean.shape[1] != came.shape[1]:
            raise ValueError(
                "likelihood: found one of classes, expected one of numbers, whose errors and intervals are scored; see "
                "forecast(y_future=…).log_density"
            )
        after, _ = drawn.run(key_filter, controls, came, kept=True)
        clouds = jax.tree.map(lambda first, each: jnp.concatenate([first[None], each]), drawn.begin, after)
        # beyond the record's end nothing came, whatever its controls
        behind = [(0, horizons[-1]), (0, 0)]
        all_controls = jnp.pad(controls, behind, mode="edge")
        all_came = jnp.pad(came, behind, constant_values=jnp.nan)

        def going_on(key: Array, origin: Any, steps: int) -> dict[str, Array]:
            cloud = jax.tree.map(lambda each: each[origin], clouds)
            at, rows = (
                jax.lax.dynamic_slice_in_dim(each, origin, steps) for each in (all_controls, all_came)
            )
            found = _ahead(key, drawn, cloud, at, rows, num_samples, function == "path")
            return {
                "came": rows,
                "mean": found["mean"],
                "samples": found["samples"],
                "log_density": found["log_density"],
            }

        def at_horizons(turn: tuple[Array, Array]) -> dict[str, Array]:
            found = going_on(*turn, horizons[-1])
            return {
                name: value[..., places, :] if value.ndim > 1 else value[places]
                for name, value in found.items()
            }

        free = going_on(key_free, num_first, came.shape[0] - num_first)
        scored = jax.lax.map(at_horizons, (jax.random.split(key_ahead, origins.shape[0]), origins))
        result: dict[str, Array] = scored | {f"free_{name}": value for name, value in free.items()}
        return result

    return compiled(program)


def _ahead(
    key: Array,
    drawn: ParticleFilter,
    particles: Particles,
    controls: Float[Array, "H K"],
    future: Num[Array, "H P"] | None,
    num_samples: int,
    held: bool,
) -> dict[str, Array]:
    """Moments, draws and densities of the steps after particles."""
    key_choice, key_paths = jax.random.split(key)
    # independent of each other, as what is made of pairs of draws expects
    chosen = jax.random.categorical(key_choice, particles.log_weights, shape=(num_samples,))

    def one(turn: tuple[Array, Array]) -> dict[str, Array]:
        (key, particle), trajectory = turn, drawn.shared.trajectory
        key_path, key_y = jax.random.split(key)
        f, g = drawn.functions(particles.which[particle])
        begin, regime = particles.states[particle], particles.regimes[particle]
        states = onward(key_path, trajectory, begin, controls, regime, held=held, function=f)
        ahead = Emission(g(states), drawn.shared.emission.likelihood, partly=future is not None)
        steps = {
            "states": states,
            "samples": ahead.sample(key_y),
            "mean": ahead.mean,
            "variance": ahead.variance,
        }
        if future is not None:
            steps["log_density"] = ahead.log_prob(future)
        return steps

    # a path's memory of f is a matrix of its steps
    together = max(1, min(num_samples, SIDE_BY_SIDE // max(controls.shape[0], 1) ** 2))
    turns = jax.random.split(key_paths, num_samples), chosen
    return averaged_over_draws(jax.lax.map(one, turns, batch_size=together))


def averaged_over_draws(draws: dict[str, Array]) -> dict[str, Array]:
    """The mixture over draws: its mean and variance (by the law of total variance), and its log density if any."""
    variance = draws["variance"].mean(0) + draws["mean"].var(0)
    steps = draws | {"mean": draws["mean"].mean(0), "variance": variance}
    if "log_density" in draws:
        densities = draws["log_density"]
        steps["log_density"] = logsumexp(densities, axis=0) - log(densities.shape[0])
    return steps
