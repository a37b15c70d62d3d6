r"""Series as regressions on their own past: the table of lags, and free simulation with predictions fed back.

.. math::
    y_t = f(y_{t-1}, \ldots, y_{t-L}, c_t, \ldots, c_{t-K+1}) + \varepsilon_t

Shapes: T steps, P outputs, C controls, L lags of y and K of the controls, D = L P + K C inputs of f, in the order
written; H steps ahead, S draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.handlers import block, seed, substitute, trace

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.representation import replayed
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import moments_of
from ppl_dgp.prediction.forecast import Forecast
from ppl_dgp.prediction.growth import warn_of_growth
from ppl_dgp.prediction.rollout import FunctionPath

FEEDBACKS = ("draws", "means")


class Lagged(NamedTuple):
    """A regression's inputs and targets, and the steps that they are of."""

    x: Float[Array, "N D"]
    y: Float[Array, "N P"]
    rows: np.ndarray


def lagged(
    y: ArrayLike,
    controls: ArrayLike | None = None,
    first: ArrayLike | None = None,
    *,
    lags: int,
    control_lags: int | None = None,
) -> Lagged:
    """The table of a series, of every step whose past is known: NaN, in the target too, leave a step out.

    :param y: (T, P) or (T,).
    :param controls: (T, C) or (T,), None for none.
    :param first: (T,), whether a step is the first of its sequence; one sequence if not given.
    :param lags: L.
    :param control_lags: K, the control at the step itself among them; L if not given.
    :raises ValueError: if a number of lags is not positive, rows do not agree, the first step begins no sequence, or no
        step has a past that is known.
    """
    outputs = _lag_columns("y", y)
    steps = len(outputs)
    given = np.zeros((steps, 0)) if controls is None else _lag_columns("controls", controls)
    begins = np.arange(steps) == 0 if first is None else np.asarray(first, bool)
    for name, rows in (("controls", given), ("first", begins)):
        if len(rows) != steps:
            raise ValueError(f"{name}: found {len(rows)} rows, expected {steps} as y has; give one per step")
    if steps and not begins[0]:
        raise ValueError("first: found False at step 0, expected True: a sequence begins there")
    control_lags = lags if control_lags is None else control_lags
    for name, number in (("lags", lags), ("control_lags", control_lags)):
        if number < 1:
            raise ValueError(f"{name}: found {number}, expected at least 1")
    age = np.arange(steps) - np.maximum.accumulate(np.where(begins, np.arange(steps), 0))
    rows = np.flatnonzero(age >= max(lags, control_lags - 1))
    # newest first
    past = _lags(outputs, rows[:, None] - np.arange(1, lags + 1))
    inputs = np.concatenate([past, _lags(given, rows[:, None] - np.arange(control_lags))], 1)
    known = ~np.isnan(inputs).any(1) & ~np.isnan(outputs[rows]).any(1)
    if not known.any():
        raise ValueError(f"lags: found no step among {steps} with a past of {lags} that is known; lower it")
    return Lagged(jnp.asarray(inputs[known]), jnp.asarray(outputs[rows[known]]), rows[known])


@takes_fit
def simulate_narx(
    key: Array,
    fit: Posterior,
    history: ArrayLike,
    controls: ArrayLike | int,
    *,
    y_future: ArrayLike | None = None,
    feedback: str = "draws",
    num_samples: int = 200,
) -> Forecast:
    """Free simulation: what is predicted is the past of the next step. ``states`` are f, ``samples`` y.

    :param fit: of ``gp_narx``, or of another regression with one GP and Gaussian noise.
    :param history: the L outputs before the first step, (L, P), the latest last.
    :param controls: (K − 1 + H, C), those of the H steps behind the K − 1 before them; H where there are none.
    :param y_future: what came, (H, P), NaN where it is not known; its log density at each step is then returned.
    :param feedback: "draws" of y, one draw of f held along each path; or "means", one path whose inputs count as
        known, so that its variance is too small.
    :raises ValueError: for another feedback, or rows and columns that do not fit the inputs of f.
    :raises TypeError: if the model has no GP of Gaussian noise.

    Warns with ``DivergenceWarning`` where paths grow until they are no numbers.
    """
    if feedback not in FEEDBACKS:
        raise ValueError(f"feedback: found {feedback!r}, expected one of {', '.join(FEEDBACKS)}")
    if num_samples < 1:
        raise ValueError(f"num_samples: found {num_samples}, expected at least 1")
    past = jnp.asarray(_lag_columns("history", history))
    given = (
        jnp.zeros((controls, 0))
        if isinstance(controls, int)
        else jnp.asarray(_lag_columns("controls", controls))
    )
    future = None if y_future is None else jnp.asarray(_lag_columns("y_future", y_future))
    program = _simulator(fit.model, fit.guide, feedback, num_samples)
    paths = {name: np.asarray(value) for name, value in program(key, fit.params, past, given, future).items()}
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite paths, which are told of next
        mean, variance = paths["mean"].mean(0), paths["variance"].mean(0) + paths["mean"].var(0)
    warn_of_growth(paths["states"], "simulate_narx", "take other lags, or more rows to train on")
    return Forecast(mean, variance, paths["states"], paths["samples"], paths.get("log_density"))


@lru_cache(maxsize=32)
def _simulator(
    model: Callable[..., Any], guide: Callable[..., Any], feedback: str, num_samples: int
) -> Callable[..., dict[str, Array]]:
    def program(
        key: Array, params: Parameters, history: Array, controls: Array, future: Array | None
    ) -> dict[str, Array]:
        lags, outputs = history.shape
        dims = params["gp/inducing"].shape[1]
        table = _table(controls, dims - lags * outputs)
        if future is not None and future.shape != (len(table), outputs):
            raise ValueError(f"y_future: found shape {future.shape}, expected ({len(table)}, {outputs})")

        def one(key: Array) -> dict[str, Array]:
            key_q, key_f, key_y = jax.random.split(key, 3)
            function, noise = _function(
                key_q, model, guide, params, jnp.zeros((1, dims)), feedback == "means"
            )
            noise = jnp.broadcast_to(noise, (outputs,))
            walk = _mean_path if feedback == "means" else _drawn_path
            path = walk(key_f, key_y, function, noise, history[::-1], table)
            if future is not None:
                likely = dist.Normal(path["mean"], jnp.sqrt(path["variance"])).log_prob(
                    jnp.nan_to_num(future)
                )
                path["log_density"] = jnp.where(jnp.isnan(future), 0.0, likely).sum(1)
            return path

        paths = 1 if feedback == "means" else num_samples
        draws = jax.lax.map(one, jax.random.split(key, paths))
        if future is not None:
            draws["log_density"] = logsumexp(draws["log_density"], axis=0) - jnp.log(float(paths))
        result: dict[str, Array] = draws
        return result

    return compiled(program)


def _drawn_path(
    key_f: Array, key_y: Array, function: SparseGP, noise: Array, recent: Float[Array, "L P"], table: Array
) -> dict[str, Array]:
    """One function, met place by place, and noise that is fed back with it."""
    shape = len(table), noise.shape[0]
    memory = FunctionPath.empty(function, shape[0], jax.random.normal(key_f, shape, recent.dtype))
    shocks = jnp.sqrt(noise) * jax.random.normal(key_y, shape, recent.dtype)

    def step(
        carried: tuple[Array, FunctionPath], turn: Any
    ) -> tuple[tuple[Array, FunctionPath], tuple[Array, Array]]:
        recent, memory = carried
        control, shock = turn
        value, memory = memory.meet(function, jnp.concatenate([recent.ravel(), control])[None])
        y = value + shock
        return (jnp.concatenate([y[None], recent[:-1]]), memory), (value, y)

    values, samples = jax.lax.scan(step, (recent, memory), (table, shocks))[1]
    return {"states": values, "samples": samples, "mean": values, "variance": jnp.broadcast_to(noise, shape)}


def _mean_path(
    key_f: Array, key_y: Array, function: SparseGP, noise: Array, recent: Float[Array, "L P"], table: Array
) -> dict[str, Array]:
    """Means fed back, u integrated out."""

    def step(recent: Array, control: Array) -> tuple[Array, tuple[Array, Array]]:
        with block():
            marginal = function(jnp.concatenate([recent.ravel(), control])[None])
        mean, variance = marginal.mean[0], marginal.variance[0]
        return jnp.concatenate([mean[None], recent[:-1]]), (mean, variance)

    means, variances = jax.lax.scan(step, recent, table)[1]
    total = variances + noise
    samples = means + jnp.sqrt(total) * jax.random.normal(key_y, means.shape, means.dtype)
    return {"states": means, "samples": samples, "mean": means, "variance": total}


def _table(controls: Float[Array, "rows C"], dims: int) -> Float[Array, "H KC"]:
    """The lags of controls at each step ahead."""
    rows, columns = controls.shape
    lags = dims // columns if columns else 0
    if dims < 0 or lags * columns != dims or (columns and not 0 < lags <= rows):
        raise ValueError(
            f"history: found {dims} inputs of f left for controls of shape ({rows}, {columns}); give the L outputs "
            "before the first step, and the controls of the H steps behind the K − 1 before them"
        )
    if not columns:
        return controls
    result: Array = _lags(controls, np.arange(lags - 1, rows)[:, None] - np.arange(lags))
    return result


def _function(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Array,
    moments: bool,
) -> tuple[SparseGP, Array]:
    """f with a draw of u, or its moments, and the variance of the noise."""
    key_guide, key_model = jax.random.split(key)
    drawn = trace(substitute(seed(guide, key_guide), params)).get_trace(x)
    sites = trace(substitute(seed(replayed(model, drawn), key_model), params)).get_trace(x)
    emission = emission_of(sites["y"]["fn"]) if "y" in sites else None
    if emission is None or not isinstance(emission.likelihood, GaussianNoise):
        raise TypeError(
            "model: found no GP with Gaussian noise at site 'y'; take gp_narx or sparse_gp_regression"
        )
    function, noise = emission.marginal.function, emission.likelihood.variance
    if not moments:
        return function, noise
    known = moments_of(drawn[f"{function.name}/u"]["fn"])
    if known is None:
        raise TypeError("guide: found a q(u) that is not Gaussian; take feedback='draws'")
    return replace(function, u=known), noise


def _lags(values: Any, rows: np.ndarray) -> Any:
    """The rows (N, lags) of a table, side by side."""
    return values[rows].reshape(len(rows), rows.shape[1] * values.shape[1])


def _lag_columns(name: str, value: ArrayLike) -> np.ndarray:
    array = np.asarray(value, float)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise ValueError(f"{name}: found shape {array.shape}, expected two dimensions, one row per step")
    return array
