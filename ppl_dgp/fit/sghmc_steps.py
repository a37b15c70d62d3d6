"""A step of stochastic gradient Monte Carlo by :mod:`ppl_dgp.fit.dynamics`, and of the hyperparameters beside it.

With U = −log p(θ, y), estimated on a minibatch, the pace of a number is ε²/√(average square of ∇U/N), ε the
``step_size`` (Springenberg et al. 2016, whose averages forget the faster the more a slope is its average). V is the
variance of ∇U/N at one θ, between minibatches and draws of hidden layers; half the average square of the difference of
two, now and then, is an estimate of it. Of every chain the last W values are kept, and hyperparameters take steps of
Adam at one of them, drawn at random (Havasi et al. 2018, moving window Monte Carlo EM).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Num, Shaped
from numpyro.infer import SVI

from ppl_dgp.fit.dynamics import Dynamics, Motion
from ppl_dgp.fit.rows_at_hand import StandingForAll
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.numpyro_internals import bijections_of
from ppl_dgp.numerics.compatibility import compiled

#: least average square of a slope
LEAST_SQUARE = 1e-16
#: steps between two looks at what slopes scatter, and looks that are averaged
EVERY, LOOKS = 10, 50
#: between which ε is chosen, and the share of numbers that may need a smaller one
SMALLEST_STEP, LARGEST_STEP, BEYOND = 1e-3, 0.05, 0.02
#: steps over which slopes are averaged in the end
LONGEST_SPAN = 1000.0


class SamplerState(NamedTuple):
    """C chains side by side: trees of arrays (C, …) by parameter, unconstrained, but for what they share.

    ``thermostat`` (C,) is that of ``sgnht``. ``mean`` and ``square`` are averages of slopes over about ``span`` steps,
    ``scatter`` of their variance at one θ, ``window`` (C, W, …) the last values. ``learnt`` are unconstrained
    parameters that all chains share, ``adam`` the state of their optimiser. ``steps`` are counted; ``energy`` (C,) is U
    at the last step, in nats, ``rejected`` (C,) the steps that were not finite.
    """

    values: Parameters
    velocity: Parameters
    thermostat: Float[Array, " C"]
    mean: Parameters
    square: Parameters
    span: Parameters
    scatter: Parameters
    window: Parameters
    learnt: Parameters
    adam: Any
    steps: Int[Array, ""]
    energy: Float[Array, " C"]
    rejected: Int[Array, " C"]


@lru_cache(maxsize=16)
def learning_optimizer(rate: float, num_warmup: int) -> optax.GradientTransformation:
    """Adam of a rate that falls to 0 by the end of the warm-up."""
    return optax.adam(optax.cosine_decay_schedule(rate, num_warmup))


def beginning(values: Parameters, learnt: Parameters, window: int, optimizer: Any) -> SamplerState:
    """The state of chains at rest.

    :param values: (C, …). :param window: W, 0 where nothing is learnt.
    """
    zeros = lambda: jax.tree.map(jnp.zeros_like, values)
    repeated = lambda value: jnp.repeat(value[:, None], window, axis=1)
    chains = len(next(iter(values.values())))
    dtype = next(iter(values.values())).dtype
    return SamplerState(
        values, zeros(), jnp.ones(chains, dtype), zeros(), zeros(), jax.tree.map(jnp.ones_like, values), zeros(),
        jax.tree.map(repeated, values), learnt, optimizer.init(learnt), jnp.int32(0),
        jnp.zeros(chains, dtype), jnp.zeros(chains, jnp.int32),
    )  # fmt: skip


def build_energy(svi: SVI, size: int, in_batches: bool) -> Callable[..., Float[Array, ""]]:
    """``energy(values, learnt, key, x, y, index)``: an estimate of U/N for one chain.

    :param size: N. :param in_batches: whether ``index`` are the rows to look at, else all are.
    """
    bijections = bijections_of(svi)

    def energy(
        values: Parameters, learnt: Parameters, key: Array, x: Array, y: Array, index: Int[Array, " B"]
    ) -> Float[Array, ""]:
        params = svi.constrain_fn({**learnt, **values})
        rows, about = ((x[index], y[index]), {"index": index, "size": size}) if in_batches else ((x, y), {})
        with StandingForAll(len(rows[0]), size):
            total: Array = svi.loss.loss(key, params, svi.model, svi.guide, *rows, **about)
        # p is the density of unconstrained values
        for name, value in values.items():
            total = total - bijections[name].log_abs_det_jacobian(value, params[name]).sum()
        return total / size

    return energy


def build_advance(
    svi: SVI,
    size: int,
    batch_size: int | None,
    dynamics: Dynamics,
    optimizer: Any,
    settles: int | None,
    learns: bool,
) -> Callable[..., SamplerState]:
    """``advance(state, key, x, y, step_size, count)``: so many steps, compiled; the state is donated.

    :param settles: the step from which averages of slopes forget slowly, for a unit that follows the slope at hand
        would have chains spread too far; None where they are held, and what ``learns`` is whether chains share.
    """
    energy = build_energy(svi, size, batch_size is not None)
    of_chains = jax.vmap(jax.value_and_grad(energy), (0, None, 0, None, None, 0))
    at_values = lambda learnt, values, *rest: energy(values, learnt, *rest)
    of_learnt = jax.vmap(jax.grad(at_values), (None, 0, 0, None, None, 0))

    def scattered(state: SamplerState, slope: Parameters, key: Array, x: Array, y: Array) -> Parameters:
        """The average variance of slopes, with half the square of what another one differs."""
        key_rows, key_energy = jax.random.split(key)
        keys = jax.random.split(key_energy, len(state.energy))
        _, other = of_chains(state.values, state.learnt, keys, x, y, rows_of(key_rows, len(keys)))
        rate = jnp.maximum(1.0 / (state.steps // EVERY + 1.0), 1.0 / LOOKS)
        scatter: Parameters = jax.tree.map(
            lambda kept, one, two: jnp.nan_to_num((1.0 - rate) * kept + rate * jnp.square(one - two) / 2.0),
            state.scatter, slope, other,
        )  # fmt: skip
        return scatter

    def rows_of(key: Array, chains: int) -> Int[Array, "C B"]:
        return jax.random.randint(key, (chains, batch_size or 0), 0, size)

    def step(state: SamplerState, key: Array, x: Array, y: Array, step_size: Array) -> SamplerState:
        chains = len(state.energy)
        key_rows, key_energy, key_noise, key_learn = jax.random.split(key, 4)
        keys = jax.random.split(key_energy, chains)
        value, slope = of_chains(state.values, state.learnt, keys, x, y, rows_of(key_rows, chains))
        finite = _finite(value, slope)
        if settles is not None:
            again = jax.random.fold_in(key_noise, len(slope))
            look = lambda: scattered(state, slope, again, x, y)
            state = state._replace(
                scatter=jax.lax.cond(state.steps % EVERY == 0, look, lambda: state.scatter)
            )
        averages = _averages(state, slope, settles)
        pace = jax.tree.map(lambda square: _pace(step_size, square), averages[1])
        motion = dynamics.moved(Motion(*state[:3]), slope, pace, state.scatter, key_noise, size)
        # a step that is not finite is none
        new = jax.tree.map(
            lambda ours, old: jnp.where(_beside(finite, old), ours, old),
            (*motion, *averages),
            tuple(state[:6]),
        )
        window, learnt, adam = state.window, state.learnt, state.adam
        if settles is not None and learns:
            length = next(iter(window.values())).shape[1]
            place = state.steps % length
            window = jax.tree.map(lambda kept, last: kept.at[:, place].set(last), window, new[0])
            key_pick, key_rows, key_energy = jax.random.split(key_learn, 3)
            number = jax.random.randint(key_pick, (chains,), 0, length)
            picked = jax.tree.map(lambda kept: kept[jnp.arange(chains), number], window)
            keys = jax.random.split(key_energy, chains)
            slopes = of_learnt(learnt, picked, keys, x, y, rows_of(key_rows, chains))
            slopes = jax.tree.map(lambda slope: jnp.nan_to_num(slope, posinf=0.0, neginf=0.0).mean(0), slopes)
            change, adam = optimizer.update(slopes, adam)
            learnt = optax.apply_updates(learnt, change)
        energies = jnp.where(finite, value * size, state.energy)
        rejected = state.rejected + ~finite
        values, velocity, thermostat, mean, square, span = new
        return SamplerState(
            values, velocity, thermostat, mean, square, span, state.scatter, window, learnt, adam, state.steps + 1,
            energies, rejected,
        )  # fmt: skip

    def advance(
        state: SamplerState,
        key: Shaped[Array, "..."],
        x: Float[Array, "N D"],
        y: Num[Array, "N P"],
        step_size: Float[Array, ""],
        count: Int[Array, ""],
    ) -> SamplerState:
        turn = lambda i, state: step(state, jax.random.fold_in(key, i), x, y, step_size)
        result: SamplerState = jax.lax.fori_loop(0, count, turn, state)
        return result

    return compiled(advance, donate_argnums=0)


def _averages(state: SamplerState, slope: Parameters, settles: int | None) -> tuple[Parameters, ...]:
    """Averages of slopes and of their squares, and spans, after a step; as they are where ``settles`` is None."""
    if settles is None:
        return state.mean, state.square, state.span
    found = {}
    for name, g in slope.items():
        mean, square, span = state.mean[name], state.square[name], state.span[name]
        begins = state.steps == 0
        mean, square = jnp.where(begins, g, mean), jnp.where(begins, jnp.square(g), square)
        rate = 1.0 / (span + 1.0)
        quick = 1.0 + span * (1.0 - jnp.square(mean) / (square + LEAST_SQUARE))
        span = jnp.where(state.steps < settles, quick, jnp.minimum(span + 1.0, LONGEST_SPAN))
        found[name] = (1.0 - rate) * mean + rate * g, (1.0 - rate) * square + rate * jnp.square(g), span
    return tuple({name: parts[place] for name, parts in found.items()} for place in range(3))


def overwhelmed(state: SamplerState, step_size: float, dynamics: Dynamics, size: int) -> float:
    """The share of numbers whose slopes scatter more than the dynamics allow for, so that they spread too far."""
    beyond = [
        _pace(step_size, square) * state.scatter[name] > 2.0 * dynamics.too_much * dynamics.friction / size
        for name, square in state.square.items()
    ]
    return float(sum(map(jnp.sum, beyond)) / sum(part.size for part in beyond))


def largest_step(state: SamplerState, dynamics: Dynamics, size: int) -> float:
    """The largest ε, up to ``LARGEST_STEP``, at which scatter is a small share of nearly every number's noise."""
    allowed = [
        jnp.sqrt(square).ravel() / jnp.maximum(state.scatter[name].ravel(), LEAST_SQUARE)
        for name, square in state.square.items()
    ]
    least = jnp.quantile(jnp.concatenate(allowed), BEYOND)
    step = jnp.sqrt(2.0 * dynamics.most_scatter * dynamics.friction * least / size)
    return float(jnp.clip(step, SMALLEST_STEP, LARGEST_STEP))


def _pace(step_size: Array | float, square: Array) -> Array:
    return jnp.square(step_size) / jnp.sqrt(square + LEAST_SQUARE)


def _finite(value: Float[Array, " C"], slope: Parameters) -> Bool[Array, " C"]:
    flags = [
        jnp.isfinite(leaf).reshape(len(value), math.prod(leaf.shape[1:])).all(1) for leaf in slope.values()
    ]
    return jnp.isfinite(value) & jnp.stack(flags).all(0)


def _beside(flags: Bool[Array, " C"], leaf: Array) -> Array:
    return flags.reshape(-1, *[1] * (leaf.ndim - 1))
