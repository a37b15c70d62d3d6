r"""What is said of a state space model's trajectory: smoothed within the data, forecast beyond them, simulated anew.

A forecast goes on from the last state of each draw of q. Under it u is one draw, and of what u leaves open f is by
default one function along the path, drawn as the path meets it,

.. math::
    f(x_{t}) \mid f(x_{1}) \dots f(x_{t-1}), u

(exact, O(H³) for H steps: a state that returns finds the same f), or drawn anew at each step, independently given u, as
the models of Doerr et al. (2018) and Ialongo et al. (2019) have it. Shapes: T steps of S sequences, Q state dimensions,
C controls (K of
them where x also numbers the sequences), P outputs, H steps ahead, D draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro.handlers import replay, seed, substitute, trace

from ppl_dgp.gp import Emission, emission_of
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.onward import onward
from ppl_dgp.trajectory import Trajectory

Parameters = dict[str, Array]
FUNCTIONS = ("path", "independent")


@dataclass(frozen=True)
class Smoothed:
    """q of the states given all data, in units of the state: the slots of a sequence's x_0, x_1 … one after the other.

    ``mean`` and ``deviation`` (T + S, Q), of the draws; ``paths`` (D, T + S, Q).
    """

    mean: np.ndarray
    deviation: np.ndarray
    paths: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """What is known of the next H steps.

    ``states`` (D, H, Q) and ``samples`` (D, H, P) of y belong together draw by draw; ``mean`` and ``variance`` (H, P)
    of y; ``log_density`` (H,), the log of the mean over draws of p(y_h | draw), where y was given.
    """

    mean: np.ndarray
    variance: np.ndarray
    states: np.ndarray
    samples: np.ndarray
    log_density: np.ndarray | None = None


def smooth(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Float[Array, "T C"] | None,
    y: Array,
    *,
    num_samples: int = 200,
) -> Smoothed:
    """The states within the data, as q has them.

    :param model: a state space model, such as ``gpssm``.
    :param guide: the fitted ``Guide``.
    :param params: constrained parameters, as ``Fit.params``.
    :param x: as trained on; None for no controls.
    :param y: as trained on.
    :raises ValueError: if the model has no trajectory.
    """
    x, y = _data(x, y)
    _check_number("num_samples", num_samples)
    paths = np.asarray(_smoother(model, guide, num_samples)(key, params, x, y))
    return Smoothed(paths.mean(0), paths.std(0), paths)


def forecast(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Float[Array, "T C"] | None,
    y: Array,
    controls: Float[Array, "H K"] | int,
    *,
    y_future: Array | None = None,
    sequence: int = -1,
    function: str = "path",
    num_samples: int = 200,
) -> Forecast:
    """The steps after the last of a sequence, q's draws of its end going on under ``controls``.

    :param x: as trained on, with the numbers of sequences where there are several; None for no controls.
    :param y: as trained on.
    :param controls: those of the H steps ahead, or H where the model has none.
    :param y_future: what came, (H, P), NaN where it is not known; its log density at each step is then returned.
    :param sequence: which one, the last by default.
    :param function: "path", one draw of f held along each path, or "independent", drawn anew at each step given u.
    :raises ValueError: if the model has no trajectory, for controls that do not fit it, or another ``function``.
    """
    x, y = _data(x, y)
    return _ahead(key, model, guide, params, (x, y), controls, y_future, function, num_samples, sequence)


def simulate(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Float[Array, "T C"] | None,
    y: Array,
    controls: Float[Array, "H K"] | int,
    *,
    y_future: Array | None = None,
    function: str = "path",
    num_samples: int = 200,
) -> Forecast:
    """Free simulation of a new sequence from p(x_0); for arguments and errors see :func:`forecast`."""
    x, y = _data(x, y)
    return _ahead(key, model, guide, params, (x, y), controls, y_future, function, num_samples, None)


def _ahead(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    data: tuple[Array, Array],
    controls: Array | int,
    y_future: Array | None,
    function: str,
    num_samples: int,
    sequence: int | None,
) -> Forecast:
    if function not in FUNCTIONS:
        raise ValueError(f"function: found {function!r}, expected one of {', '.join(FUNCTIONS)}")
    _check_number("num_samples", num_samples)
    given = jnp.zeros((controls, 0)) if isinstance(controls, int) else jnp.asarray(controls, float)
    future = None if y_future is None else jnp.asarray(y_future).reshape(given.shape[0], -1)
    program = _forecaster(model, guide, num_samples, function, sequence)
    found = {name: np.asarray(value) for name, value in program(key, params, *data, given, future).items()}
    mean, variance = found["mean"].mean(0), found["variance"].mean(0) + found["mean"].var(0)
    return Forecast(mean, variance, found["states"], found["samples"], found.get("log_density"))


@lru_cache(maxsize=32)
def _smoother(model: Callable[..., Any], guide: Callable[..., Any], num_samples: int) -> Callable[..., Array]:
    def program(key: Array, params: Parameters, x: Array, y: Array) -> Float[Array, "D slots Q"]:
        def one(key: Array) -> Array:
            return _drawn(key, model, guide, params, x, y)[1]

        return jax.lax.map(one, jax.random.split(key, num_samples))

    return jax.jit(program)


@lru_cache(maxsize=32)
def _forecaster(
    model: Callable[..., Any], guide: Callable[..., Any], num_samples: int, function: str, sequence: int | None
) -> Callable[..., dict[str, Array]]:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Array, future: Array | None
    ) -> dict[str, Array]:
        def one(key: Array) -> dict[str, Array]:
            key_q, key_state, key_path, key_y = jax.random.split(key, 4)
            trajectory, path, emission = _drawn(key_q, model, guide, params, x, y)
            if trajectory.controls.shape[1] != controls.shape[1]:
                raise ValueError(
                    f"controls: found {controls.shape[1]} columns, expected {trajectory.controls.shape[1]}, one for "
                    "each control that the model was trained with"
                )
            if sequence is None:
                state = trajectory.prior.sample(key_state)[0]
            else:
                ends = jnp.append(trajectory.layout.initial[1:], path.shape[0]) - 1
                state = path[ends[sequence]]
            states = onward(key_path, trajectory, state, controls, held=function == "path")
            ahead = Emission(emission.marginal.function(states), emission.likelihood, partly=future is not None)
            found = {"states": states, "samples": ahead.sample(key_y), "mean": ahead.mean, "variance": ahead.variance}
            if future is not None:
                found["log_density"] = ahead.log_prob(future)
            return found

        draws = jax.lax.map(one, jax.random.split(key, num_samples))
        if future is not None:
            draws["log_density"] = logsumexp(draws["log_density"], axis=0) - jnp.log(float(num_samples))
        return draws

    return jax.jit(program)


def _drawn(
    key: Array, model: Callable[..., Any], guide: Callable[..., Any], params: Parameters, x: Array, y: Array
) -> tuple[Trajectory, Float[Array, "slots Q"], Emission]:
    """One draw of q: the trajectory with its u, the path, and the emission."""
    key_guide, key_model = jax.random.split(key)
    drawn = trace(substitute(seed(guide, key_guide), params)).get_trace(x, y)
    sites = trace(substitute(seed(replay(model, drawn), key_model), params)).get_trace(x, y)
    samples = [site for site in drawn.values() if site["type"] == "sample"]
    found = [(site["fn"], site["value"]) for site in samples if isinstance(site["fn"], TrajectoryConditional)]
    emission = emission_of(sites["y"]["fn"]) if "y" in sites else None
    if len(found) != 1 or emission is None:
        raise ValueError(
            f"model: found {len(found)} trajectories, expected one, and y from it; take a state space model, "
            "such as gpssm"
        )
    q, path = found[0]
    return q.trajectory, path, emission


def _data(x: Array | None, y: Array) -> tuple[Array, Array]:
    rows = jnp.asarray(y)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return jnp.zeros((rows.shape[0], 0)) if x is None else jnp.asarray(x, float), rows


def _check_number(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: found {value}, expected at least 1")
