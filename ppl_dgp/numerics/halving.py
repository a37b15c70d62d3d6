"""Steps of a distribution whose rates are halved until what they lead to is a distribution, and near enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

STEP_HALVINGS = (
    30  # of a step that would leave a precision indefinite or q too far away; after these, no step
)
Moved = TypeVar("Moved")


def halved_until_near(
    attempt: Callable[[Array], tuple[Moved, Array]],
    rate: Float[Array, "*parts"],
    most: Float[Array, "*#parts"] | float,
) -> tuple[Moved, Float[Array, "*parts"], Int[Array, "*parts"]]:
    """What ``attempt`` finds at ``rate``, or at the first half, quarter, … of it that is near; at 0 after 30 halvings.

    :param attempt: gives at a rate where the step leads, and how far that is, NaN where it is no distribution.
    :param rate: one, or of parts that move on their own one for each.
    :param most: how far a step may lead.
    :returns: where it leads, how far that is, and how often the rate was halved.
    """

    def far(trial: Any) -> Array:
        found: Array = ~(trial[-1] <= most) & (trial[0] < STEP_HALVINGS)
        return found

    def halve(trial: Any) -> Any:
        again = far(trial)
        count = trial[0] + again
        rate = jnp.where(again, jnp.where(count < STEP_HALVINGS, 0.5 * trial[1], 0.0), trial[1])
        return count, rate, *attempt(rate)

    begin = jnp.zeros(rate.shape, jnp.int32), rate, *attempt(rate)
    count, _, moved, distance = jax.lax.while_loop(lambda trial: far(trial).any(), halve, begin)
    return moved, distance, count
