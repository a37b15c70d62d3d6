r"""What is said of a state space model's trajectory: smoothed within the data, forecast beyond them, simulated anew.

A forecast goes on from what q says of the last state. Each path has one draw of u, and of what u leaves open f is by
default one function along the path, drawn as the path meets it,

.. math::
    f(x_{t}) \mid f(x_{1}) \dots f(x_{t-1}), u

(exact, O(H³) for H steps: a state that returns finds the same f), or drawn anew at each step, independently given u, as
the models of Doerr et al. (2018) and Ialongo et al. (2019) have it. Or no path is drawn, and the moments of a Gaussian
go on from step to step with u integrated out under q(u) at each, as if the steps shared no function (Bui 2017, 3.92).
Where rows were seen since, or the first rows of a new sequence, a path goes on from a particle of their filter.
Shapes: T steps of S sequences, Q state dimensions, C controls (K of them where x also numbers the sequences), P
outputs, H steps ahead, D draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.prediction.growth import warn_of_growth
from ppl_dgp.prediction.particle_forecast import DRAWN, averaged_over_draws, forecast_seen
from ppl_dgp.prediction.posterior_path import (
    PosteriorPath,
    check_ahead,
    check_number,
    columns_of,
    draw,
    series,
)
from ppl_dgp.prediction.rollout import onward, onward_moments, output_covariance

FUNCTIONS = (*DRAWN, "moments", "linearised")


@dataclass(frozen=True)
class Smoothed:
    """q of the states given all data, in units of the state: the slots of a sequence's x_0, x_1 … one after the other.

    ``mean`` and ``deviation`` (T + S, Q), of the draws; ``paths`` (D, T + S, Q); ``initial`` (S,), the slots of x_0.
    """

    mean: np.ndarray
    deviation: np.ndarray
    paths: np.ndarray
    initial: np.ndarray


@dataclass(frozen=True)
class Forecast:
    """What is known of the next H steps.

    ``states`` (D, H, Q) and ``samples`` (D, H, P) of y belong together draw by draw, and where they were drawn along
    paths the H steps of a draw do as well; ``mean`` and ``variance`` (H, P) of y; ``log_density`` (H,), the log of the
    mean over draws of p(y_h | draw), or of the Gaussian of the moments, where y was given.
    """

    mean: np.ndarray
    variance: np.ndarray
    states: np.ndarray
    samples: np.ndarray
    log_density: np.ndarray | None = None


@takes_fit
def smooth(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    *,
    num_samples: int = 200,
) -> Smoothed:
    """The states within the data, as q has them.

    :param fit: of a state space model, such as ``gpssm``.
    :param x: as trained on; None for no controls.
    :param y: as trained on.
    :raises ValueError: if the model has no trajectory.
    """
    check_number("num_samples", num_samples)
    paths, initial = map(
        np.asarray, _smoother(fit.model, fit.guide, num_samples)(key, fit.params, *series(x, y))
    )
    return Smoothed(paths.mean(0), paths.std(0), paths, initial)


@takes_fit
def forecast(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    controls: Float[Array, "H K"] | int,
    *,
    y_future: Array | None = None,
    sequence: int | None = -1,
    seen: tuple[Array | None, Array] | None = None,
    function: str = "path",
    num_samples: int = 200,
    num_particles: int = 500,
) -> Forecast:
    """The steps after the last of a sequence, from what q says of its end, under ``controls``.

    :param x: as trained on, with the numbers of sequences where there are several; None for no controls.
    :param y: as trained on.
    :param controls: those of the H steps ahead, or H where the model has none.
    :param y_future: what came, (H, P), NaN where it is not known; its log density at each step is then returned.
    :param sequence: which one, the last by default; None for a new one, from p(x_0).
    :param seen: controls (k, K), None for none, and outputs (k, P), NaN where missing, of k rows that were not trained
        on: what came after the training rows, or the first rows of a new sequence. The steps ahead are those behind
        them, and begin at the states, with the u, of the particle filter that saw them.
    :param function: "path", one draw of f held along each path; "independent", drawn anew at each step given u;
        "moments", the mean and covariance of each step's f(x) matched and carried on as a Gaussian;
        "linearised", f linearised at each mean instead, which is often too narrow. Of the last two ``mean``,
        ``variance`` and ``log_density`` are those of the moments, and ``states`` are drawn from each step's Gaussian,
        the steps independent. They begin at the moments of q's last state, those of the draws where q follows f.
    :param num_particles: of the filter of the rows ``seen``.
    :raises ValueError: if the model has no trajectory or not that sequence, for controls or y that do not fit it, or
        another ``function``; for moments also where f switches between regimes, where q(u) links outputs
        or layers, after rows ``seen``, or, as these do, where the guide draws anything besides u and the states.
    """
    if function not in FUNCTIONS:
        raise ValueError(f"function: found {function!r}, expected one of {', '.join(FUNCTIONS)}")
    check_number("num_samples", num_samples)
    data = series(x, y)
    given = jnp.zeros((controls, 0)) if isinstance(controls, int) else jnp.asarray(controls, float)
    check_ahead(fit.model, "controls", given)
    future = None if y_future is None else columns_of("y_future", y_future, given.shape[0], data[1].shape[1])
    if seen is not None:
        steps = forecast_seen(
            key, fit, data, seen, given, future, sequence, function, (num_samples, num_particles)
        )
    else:
        make = _along_paths if function in DRAWN else _by_moments
        program = make(fit.model, fit.guide, num_samples, function, sequence)
        steps = program(key, fit.params, *data, given, future)
    found = Forecast(**{name: np.asarray(value) for name, value in steps.items()})
    warn_of_growth(found.states)
    return found


@takes_fit
def simulate(
    key: Array, fit: Posterior, x: Array | None, y: Array, controls: Array | int, **settings: Any
) -> Forecast:
    """Free simulation of a new sequence from p(x_0): :func:`forecast`, with its settings but ``sequence``.

    With ``seen=(controls, y)``, its own first rows, it goes on from the state that they leave it in.
    """
    return forecast(key, fit, x, y, controls, sequence=None, **settings)


@takes_fit
def transition_function(fit: Posterior, x: Float[Array, "T C"] | None, y: Array) -> SparseGP:
    """The transition's f, of Q + C inputs, which offered the moments of q(u): ``f(inputs)`` is its marginal.

    For arguments see :func:`smooth`.

    :raises ValueError: if the model has no trajectory, where q(u) links outputs, or where the guide draws anything
        besides u and the states.
    """
    drawn = draw(jax.random.PRNGKey(0), fit.model, fit.guide, fit.params, *series(x, y))
    return drawn.integrated(drawn.trajectory.function)


@takes_fit
def transition_moments(
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    at: Float[Array, "B Q"],
    controls: Float[Array, "#B K"] | None = None,
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"]]:
    """Mean and variance of f at states, u integrated out under q(u); without the noise that a step adds.

    For the other arguments and errors see :func:`transition_function`.

    :param at: states, in their units.
    :param controls: one row for each state, or one for all; None where the model has none.
    :raises ValueError: also if states and controls are not the inputs of f.
    """
    given = jnp.zeros((1, 0)) if controls is None else controls
    beside = jnp.broadcast_to(given, (at.shape[0], given.shape[1]))
    marginal = transition_function(fit, x, y)(jnp.concatenate([at, beside], 1))
    return marginal.mean, marginal.variance


@lru_cache(maxsize=32)
def _smoother(model: Model, guide: Model, num_samples: int) -> Model:
    def program(key: Array, params: Parameters, x: Array, y: Array) -> tuple[Array, Array]:
        def one(key: Array) -> tuple[Array, Array]:
            drawn = draw(key, model, guide, params, x, y)
            return drawn.path, drawn.trajectory.layout.initial

        paths, initial = jax.lax.map(one, jax.random.split(key, num_samples))
        return paths, initial[0]

    return compiled(program)


@lru_cache(maxsize=32)
def _along_paths(model: Model, guide: Model, num_samples: int, function: str, sequence: int | None) -> Model:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Array, future: Array | None
    ) -> dict[str, Array]:
        def one(key: Array) -> dict[str, Array]:
            key_q, key_state, key_path, key_y = jax.random.split(key, 4)
            drawn = draw(key_q, model, guide, params, x, y)
            drawn.check_controls(controls)
            begin, regime = drawn.going_on(key_state, sequence)
            states = onward(key_path, drawn.trajectory, begin, controls, regime, held=function == "path")
            emission = drawn.emission
            ahead = Emission(
                emission.marginal.function(states), emission.likelihood, partly=future is not None
            )
            steps = {
                "states": states,
                "samples": ahead.sample(key_y),
                "mean": ahead.mean,
                "variance": ahead.variance,
            }
            if future is not None:
                steps["log_density"] = ahead.log_prob(future)
            return steps

        return averaged_over_draws(jax.lax.map(one, jax.random.split(key, num_samples)))

    return compiled(program)


@lru_cache(maxsize=32)
def _by_moments(model: Model, guide: Model, num_samples: int, function: str, sequence: int | None) -> Model:
    def program(
        key: Array, params: Parameters, x: Array, y: Array, controls: Array, future: Array | None
    ) -> dict[str, Array]:
        key_q, key_last, key_states, key_y = jax.random.split(key, 4)
        drawn = draw(key_q, model, guide, params, x, y)
        drawn.check_controls(controls)
        drawn.check_one_function()

        def paths() -> Float[Array, "D slots Q"]:
            one = lambda key: draw(key, model, guide, params, x, y).path
            result: Array = jax.lax.map(one, jax.random.split(key_last, num_samples))
            return result

        begin = _last_state(drawn, sequence, paths)
        begin = replace(begin, linearise=function == "linearised")
        f = drawn.integrated(drawn.trajectory.function)
        states = onward_moments(f, drawn.trajectory, begin, controls)

        g, likelihood = drawn.integrated(drawn.emission.marginal.function), drawn.emission.likelihood
        ahead = Emission(g(states), likelihood, partly=True)
        draws = jax.vmap(states.draw)(jax.random.split(key_states, num_samples))
        sample = lambda key, at: Emission(g(at), likelihood).sample(key)
        samples = jax.vmap(sample)(jax.random.split(key_y, num_samples), draws)
        steps = {"mean": ahead.mean, "variance": ahead.variance, "states": draws, "samples": samples}
        if future is not None and isinstance(likelihood, GaussianNoise):
            noise = jnp.broadcast_to(likelihood.variance, ahead.mean.shape)
            covariance = output_covariance(g, states) + jax.vmap(jnp.diag)(noise)
            steps["log_density"] = _gaussian_log_density(future, ahead.mean, covariance)
        elif future is not None:
            steps["log_density"] = ahead.log_prob(future)
        return steps

    return compiled(program)


def _last_state(
    drawn: PosteriorPath, sequence: int | None, paths: Callable[[], Float[Array, "D slots Q"]]
) -> Gaussian:
    """Moments (1, Q) of the state that moments go on from: in closed form, or those of draws where q follows f."""
    if sequence is None:
        result: Gaussian = jax.tree.map(lambda leaf: leaf[:1], drawn.trajectory.initial)
        return result
    q = drawn.q
    if isinstance(q, TrajectoryConditional) and not q.rule.depends_on.on_function:
        result = jax.tree.map(lambda leaf: leaf[drawn.last(sequence)][None], q.trained_moments())
        return result
    ends = paths()[:, drawn.last(sequence)]
    if ends.shape[0] <= ends.shape[1]:
        raise ValueError(
            f"num_samples: found {ends.shape[0]}, expected more than the {ends.shape[1]} dimensions of the state, "
            "whose covariance is that of the draws"
        )
    covariance = jnp.atleast_2d(jnp.cov(ends, rowvar=False))
    return Gaussian(ends.mean(0)[None], cholesky(covariance[None], 0.0)[0])


def _gaussian_log_density(
    y: Float[Array, "H P"], mean: Float[Array, "H P"], covariance: Float[Array, "H P P"]
) -> Float[Array, " H"]:
    """log N(y; mean, covariance) of the entries that are there."""
    there = ~jnp.isnan(y)
    # what is missing has an independent unit variance and lies at its mean
    matrix = jnp.where(there[:, :, None] & there[:, None, :], covariance, jnp.eye(y.shape[1], dtype=y.dtype))
    residual = jnp.where(there, y - mean, 0.0)
    whole = dist.MultivariateNormal(0.0, covariance_matrix=matrix).log_prob(residual)
    result: Array = whole + 0.5 * log(2.0 * pi) * (~there).sum(-1)
    return result
