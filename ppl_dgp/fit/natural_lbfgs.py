r"""L-BFGS that begins from the Fisher metric: natural gradients, corrected by the curvature that is seen on the way.

Nocedal & Wright 2006, algorithm 7.4, its first guess of the inverse Hessian not a multiple of the identity but F⁻¹ for
the Gaussian factors of q, whose Hessian at the optimum is F where the model is conjugate, and γ I for all other
parameters, γ = sᵀy / yᵀy of their last change (their equation 7.20). What it has to learn is then only how factors and
parameters depend on each other.

Far from the optimum a quadratic says little of q, and a whole step in natural parameters much. So the first steps of
the factors are these, and those of other parameters are gradients divided by their size, each to a point between here
and there that a line search finds. Their rates begin low: hyperparameters that run ahead of q end at a worse optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from ppl_dgp.fit.factors import GaussianFactors
from ppl_dgp.gp.contract import Parameters

NATURAL_STEPS = 15  # before L-BFGS
FIRST_RATE, RATE_GROWTH, LARGEST_RATE = (
    0.1,
    1.1,
    0.5,
)  # of these: factors move at once, as if the others stood still
MOVE_OF_OTHERS = 0.03  # of parameters beside the factors, in such a step
FORGETTING = 0.9  # of their squared gradients
MEMORY = 30  # pairs of steps and changes of the gradient that are kept
LINESEARCH_STEPS = 20


class NaturalMemory(NamedTuple):
    """Steps done and pairs kept, the last point and slope, and their last changes, the latest in the last row.

    ``squares`` are those of gradients, averaged over steps; ``others`` is γ.
    """

    turns: Int[Array, ""]
    pairs: Int[Array, ""]
    point: Float[Array, " K"]
    slope: Float[Array, " K"]
    steps: Float[Array, "memory K"]
    changes: Float[Array, "memory K"]
    squares: Float[Array, " K"]
    others: Float[Array, ""]


def natural_lbfgs(
    factors: GaussianFactors, unravel: Callable[[Array], Parameters]
) -> optax.GradientTransformationExtraArgs:
    """The optimiser of flat parameters, with optax's zoom line search.

    :param unravel: the parameters, by name, of a flat vector.
    """
    search = optax.scale_by_zoom_linesearch(LINESEARCH_STEPS, initial_guess_strategy="one")
    return optax.chain(_direction(factors, unravel), search)


def _direction(
    factors: GaussianFactors, unravel: Callable[[Array], Parameters]
) -> optax.GradientTransformation:
    def init(point: Array) -> NaturalMemory:
        rows, zero = jnp.zeros((MEMORY, point.size), point.dtype), jnp.zeros((), jnp.int32)
        nothing = jnp.zeros_like(point)
        return NaturalMemory(zero, zero, point, nothing, rows, rows, nothing, jnp.ones((), point.dtype))

    def update(slope: Array, state: NaturalMemory, point: Array | None = None) -> tuple[Array, NaturalMemory]:
        assert point is not None
        rest = _not_of(factors, unravel(point))
        stepped = _stepping(factors, unravel, point)
        state = _remembered(state, point, slope, rest)
        turns = state.turns.astype(point.dtype)

        def metric(gradient: Array) -> Array:
            # how a step begins: its derivative in the rate, at rate 0
            zero = jnp.zeros((), point.dtype)
            begins = jax.jvp(lambda rate: stepped(gradient, rate), (zero,), (jnp.ones_like(zero),))[1]
            scaled: Array = rest * state.others * gradient - begins
            return scaled

        # as long as there are no pairs, minus the natural gradient
        corrected = -_two_loops(metric, state, slope)
        rate = jnp.minimum(FIRST_RATE * RATE_GROWTH ** (turns - 1.0), LARGEST_RATE)
        size = jnp.sqrt(state.squares / (1.0 - FORGETTING**turns))
        whole = stepped(slope, rate) - rest * MOVE_OF_OTHERS * slope / jnp.where(size > 0.0, size, 1.0)
        # a step that leaves downhill along a curve may leave uphill along its chord
        begins = (state.turns <= NATURAL_STEPS) & (jnp.vdot(whole, slope) < 0.0)
        move = jnp.where(begins, whole, corrected)
        return move, state

    return optax.GradientTransformation(init, update)


def _remembered(state: NaturalMemory, point: Array, slope: Array, rest: Array) -> NaturalMemory:
    """The memory with the last step in it, if it was one of L-BFGS and the slope grew along it, and γ."""
    step, change = point - state.point, slope - state.slope
    curved = (state.turns > NATURAL_STEPS) & (jnp.vdot(step, change) > jnp.finfo(point.dtype).tiny)
    keep = lambda rows, row: jnp.where(curved, jnp.concatenate([rows[1:], row[None]]), rows)
    of_rest = rest * change
    along, size = jnp.vdot(step, of_rest), jnp.vdot(of_rest, of_rest)
    others = jnp.where(
        (state.turns > 0) & (along > 0.0), along / jnp.where(size > 0.0, size, 1.0), state.others
    )
    # while there is no pair: no further than in the first steps
    slope_size = jnp.linalg.norm(rest * slope)
    most = MOVE_OF_OTHERS * jnp.sqrt(rest.sum()) / jnp.where(slope_size > 0.0, slope_size, 1.0)
    return NaturalMemory(
        state.turns + 1,
        jnp.minimum(state.pairs + curved, MEMORY),
        point,
        slope,
        keep(state.steps, step),
        keep(state.changes, change),
        FORGETTING * state.squares + (1.0 - FORGETTING) * jnp.square(slope),
        jnp.where(state.pairs > 0, others, jnp.minimum(others, most)),
    )


def _two_loops(metric: Callable[[Array], Array], state: NaturalMemory, slope: Array) -> Array:
    """The inverse Hessian times the slope."""
    there = jnp.arange(MEMORY) >= MEMORY - state.pairs
    inner = jnp.einsum("mk,mk->m", state.steps, state.changes)
    weights = jnp.where(there, 1.0 / jnp.where(there, inner, 1.0), 0.0)
    pairs = state.steps, state.changes, weights

    def back(q: Array, pair: Any) -> tuple[Array, Array]:
        step, change, weight = pair
        share = weight * jnp.vdot(step, q)
        return q - share * change, share

    def forth(z: Array, turn: Any) -> tuple[Array, None]:
        (step, change, weight), share = turn
        return z + step * (share - weight * jnp.vdot(change, z)), None

    q, shares = jax.lax.scan(back, slope, pairs, reverse=True)
    found: Array = jax.lax.scan(forth, metric(q), (pairs, shares))[0]
    return found


def _stepping(
    factors: GaussianFactors, unravel: Callable[[Array], Parameters], point: Array
) -> Callable[[Array, Array], Array]:
    """How far a natural step of all factors leads from a point, as a function of a gradient and of the rate."""
    params = unravel(point)
    units = factors.units(params)

    def stepped(gradient: Array, rate: Array) -> Array:
        found, gradients = dict(params), unravel(gradient)
        for factor, unit in zip(factors.factors, units, strict=True):
            found |= factor.step(params, gradients, rate, jnp.inf, unit).params
        return ravel_pytree(found)[0] - point

    return stepped


def _not_of(factors: GaussianFactors, params: Parameters) -> Float[Array, " K"]:
    """1 for parameters of no factor, 0 for theirs."""
    taken = {name for factor in factors.factors for name in factor.names}
    marks = {name: jnp.full_like(leaf, name not in taken) for name, leaf in params.items()}
    return ravel_pytree(marks)[0]
