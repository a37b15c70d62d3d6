r"""Ensemble Kalman filter and smoother of a trajectory given u: Gaussian in each step, f and g whatever they are.

Members x^e stand for p(x_t | y_1 … y_t, u). One step of f and its noise takes them to the forecast, whose moments give
the predictive likelihood, and y_t what it leaves of them (Evensen 1994; Lin et al. 2024):

.. math::
    \hat p(y_t | y_{<t}, u) = N(y_t; \bar h, \; H^T P H + Ω + R), \quad h^e = g(x^e)

with P the covariance of the forecast, H the regression of h on x and Ω what that leaves over (of a linear emission H is
its matrix and Ω is 0). Given u the variance of f and the noise are known, so that P is not that of the members alone:

.. math::
    P = \mathrm{cov}_e\, m(x^e) + \mathrm{mean}_e\, D(x^e) + Q

with m and D the mean and variance of f | u. Then the members are drawn anew, with exactly the mean and covariance of
Kalman's update (Pham 2001). Where f and g are linear all of this is Kalman's filter, to rounding. Gradients pass from
step to step through these moments alone: through members that live on they grow without end where f is chaotic.
``update="perturbed"`` is the filter of Lin et al., all moments those of the members, each of which lives on and sees y
with noise of its own (Burgers et al. 1998): its likelihood is too low, by c / E nats, even where all is linear.

Shapes: T steps of S sequences, each from its own p(x_0), E members, Q state dimensions, P outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float
from numpyro.handlers import block

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import MarginalSum
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.state_space.trajectory import Trajectory

#: how members meet what was observed
UPDATES = ("redrawn", "perturbed")


@dataclass(frozen=True)
class ObservedSteps:
    """What is observed of a trajectory's states: y = g(x) + ε, ε ~ N(0, R) with R diagonal.

    :param function: g.
    :param variance: R's diagonal, of each step.
    :param y: whatever it holds where nothing was seen.
    :param seen: the entries that count.
    """

    function: SparseGP
    variance: Float[Array, "T P"]
    y: Float[Array, "T P"]
    seen: Bool[Array, "T P"]


def observed_steps(
    emission: Emission, y: Float[Array, "T P"], num_steps: int, mask: Any = True
) -> ObservedSteps:
    """The observations of a model's emission.

    :param y: NaN where an entry is missing, if the emission may lack entries.
    :param num_steps: T.
    :param mask: (T,), the rows that count; True for all.
    :raises ValueError: for another likelihood than Gaussian noise, several functions, or rows that are not the steps.
    """
    noise, marginal = emission.likelihood if len(emission.parts) == 1 else None, emission.parts[0].marginal
    if not isinstance(noise, likelihoods.Gaussian):
        found = "several" if noise is None else type(noise).__name__
        raise ValueError(
            f"likelihood: found {found}, expected one Gaussian noise, of which an ensemble Kalman filter has moments; "
            "take another guide and PowerEP"
        )
    if isinstance(marginal, MarginalSum) or y.shape[0] != num_steps:
        raise ValueError(
            f"model: found y of {y.shape[0]} rows from {sorted(marginal.functions)}, expected one function of the "
            f"states after {num_steps} steps; take another guide and PowerEP"
        )
    seen = jnp.ones(y.shape, bool) if mask is True else jnp.broadcast_to(mask[:, None], y.shape)
    if emission.partly:
        seen = seen & ~jnp.isnan(y)
    return ObservedSteps(marginal.function, jnp.broadcast_to(noise.variance, y.shape), y, seen)


class EnsembleDraws(NamedTuple):
    """Standard normal numbers: for x_0, the noise of a step, what a member sees of y, and to draw it anew."""

    initial: Float[Array, "S E Q"]
    steps: Float[Array, "T E Q"]
    observed: Float[Array, "T E P"]
    states: Float[Array, "T E Q"]


def ensemble_draws(key: Array, trajectory: Trajectory, outputs: int, members: int) -> EnsembleDraws:
    """What an ensemble needs of chance, all at once."""
    (steps, _), width = trajectory.controls.shape, trajectory.noise.shape[0]
    shapes = (trajectory.layout.num_sequences, width), (steps, width), (steps, outputs), (steps, width)
    keys, dtype = jax.random.split(key, 4), trajectory.noise.dtype
    return EnsembleDraws(
        *(
            jax.random.normal(key, (rows, members, columns), dtype)
            for key, (rows, columns) in zip(keys, shapes, strict=True)
        )
    )


class EnsembleFiltered(NamedTuple):
    """Members along the steps, and log p̂(y_t | y_1 … y_{t−1}), whose sum stands for the log evidence given u.

    ``before`` are those that a step begins at, ``through`` m of them, ``spread`` the mean over them of D + Q;
    ``forecast`` those after the step, and ``states`` those once y_t is known.
    """

    before: Float[Array, "T E Q"]
    through: Float[Array, "T E Q"]
    spread: Float[Array, "T Q"]
    forecast: Float[Array, "T E Q"]
    states: Float[Array, "T E Q"]
    log_predictive: Float[Array, " T"]


def check_ensemble(members: int, width: int | None = None, update: str = "redrawn") -> None:
    """Refuse, by a ValueError, an unknown update, or too few members for a covariance of Q dimensions."""
    if update not in UPDATES:
        raise ValueError(f"update: found {update!r}, expected one of {', '.join(UPDATES)}; change it")
    least = 2 if width is None else width + 1
    if isinstance(members, bool) or not isinstance(members, int) or members < least:
        why = (
            ""
            if width is None
            else f", more than the {width} dimensions of the state, whose covariance is theirs; raise it"
        )
        raise ValueError(f"members: found {members!r}, expected a whole number of at least {least}{why}")


def ensemble_filtered(
    trajectory: Trajectory,
    observed: ObservedSteps,
    draws: EnsembleDraws,
    update: str = "redrawn",
) -> EnsembleFiltered:
    """The filter, by a scan over the steps in which every sequence starts from members of its own p(x_0).

    Reparameterised: given the draws all is differentiable in f, g and the noises.

    :param trajectory: whose f offered a draw of u; all of its steps are at hand.
    :raises ValueError: for an ensemble with no more members than the state has dimensions.
    """
    perturbed, where = update == "perturbed", trajectory.layout
    check_ensemble(draws.steps.shape[1], trajectory.noise.shape[0], update)
    centre, scale = (value[:, None] for value in (trajectory.initial.mean, trajectory.initial.scale))
    initial = centre + scale * (draws.initial if perturbed else jax.vmap(_standardised)(draws.initial))

    def step(members: Array, turn: Any) -> tuple[Array, EnsembleFiltered]:
        (first, sequence, controls), (kicks, blurs, anew), (variance, y, seen) = turn
        before = jnp.where(first, initial[sequence], members)
        f = trajectory.at(before, jnp.broadcast_to(controls, (before.shape[0], *controls.shape))).marginal
        spread = f.variance + trajectory.noise_at(controls)
        kicks = jnp.sqrt(spread) * kicks
        forecast = f.mean + (kicks if perturbed else kicks - kicks.mean(0))
        mean, p = forecast.mean(0), covariance_of(forecast, forecast)
        root, _ = cholesky(p, 0.0)
        if not perturbed:
            p = covariance_of(f.mean, f.mean) + jnp.diag(spread.mean(0))

        with block():
            g = observed.function(forecast)
        # in units of the noise; what is missing depends on nothing
        unit = jnp.sqrt(variance + g.variance.mean(0))
        h = jnp.where(seen, g.mean / unit, 0.0)
        error = jnp.where(seen, (jnp.where(seen, y, 0.0) - g.mean.mean(0)) / unit, 0.0)
        half = solve_triangular(root, covariance_of(forecast, h), lower=True)
        slope = solve_triangular(root, half, lower=True, trans=1)
        beyond = jnp.eye(len(y), dtype=h.dtype) + covariance_of(h, h) - half.T @ half
        reach = p @ slope
        inverse = inverse_lower(jnp.linalg.cholesky(beyond + slope.T @ reach))
        gain = reach @ inverse.T @ inverse
        surprise = 0.5 * jnp.square(inverse @ error).sum() - jnp.log(jnp.diagonal(inverse)).sum()
        volume = jnp.where(seen, jnp.log(unit) + 0.5 * log(2.0 * pi), 0.0).sum()

        if perturbed:
            states = forecast + (error - (h - h.mean(0)) - jnp.where(seen, blurs, 0.0)) @ gain.T
        else:
            # Joseph's form
            keep = jnp.eye(len(p), dtype=p.dtype) - gain @ slope.T
            after, _ = cholesky(keep @ p @ keep.T + gain @ beyond @ gain.T, 0.0)
            states = mean + gain @ error + _standardised(anew) @ after.T
        record = before, f.mean, spread.mean(0), forecast, states, -surprise - volume
        return states, EnsembleFiltered(*record)

    steps = where.first, where.sequence, trajectory.controls
    turns = steps, draws[1:], (observed.variance, observed.y, observed.seen)
    filtered: EnsembleFiltered = jax.lax.scan(step, initial[0], turns)[1]
    return filtered


def ensemble_paths(
    trajectory: Trajectory, filtered: EnsembleFiltered, update: str = "redrawn"
) -> Float[Array, "slots E Q"]:
    """Members of p(x_0 … x_T | y, u), by one pass back: each is moved as far as the step after it was (an ensemble
    Rauch-Tung-Striebel smoother, Raanes 2016).

    x^e + J (x̃^e_{t+1} − x^e_{t+1}), J = cov(x_t, x_{t+1}) P⁻¹: where f and g are linear the members have Kalman's
    smoothed means, and draw the smoothed path but for what the E of them do not tell of its covariance.
    """
    ends = jnp.append(trajectory.layout.first[1:], True)

    def step(later: Array, turn: Any) -> tuple[Array, tuple[Array, Array]]:
        end, here = turn
        smoothed = jnp.where(end, here.states, later)
        reached = here.forecast if update == "perturbed" else here.through
        p = covariance_of(reached, reached)
        if update != "perturbed":
            p = p + jnp.diag(here.spread)
        inverse = inverse_lower(cholesky(p, 0.0)[0])
        gain = covariance_of(here.before, reached) @ inverse.T @ inverse
        before = here.before + (smoothed - here.forecast) @ gain.T
        return before, (before, smoothed)

    _, (before, states) = jax.lax.scan(step, filtered.states[-1], (ends, filtered), reverse=True)
    return trajectory.layout.path(before[trajectory.layout.beginning], states)


def covariance_of(a: Float[Array, "E A"], b: Float[Array, "E B"]) -> Float[Array, "A B"]:
    """Covariance over members, unbiased."""
    return (a - a.mean(0)).T @ (b - b.mean(0)) / (a.shape[0] - 1)


def _standardised(members: Float[Array, "E Q"]) -> Float[Array, "E Q"]:
    """The members with mean 0 and covariance I."""
    root, _ = cholesky(covariance_of(members, members), 0.0)
    return solve_triangular(root, (members - members.mean(0)).T, lower=True).T
