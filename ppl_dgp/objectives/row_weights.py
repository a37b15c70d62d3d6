"""Weights of rows: what an objective has of row n counts w_n times, as if the row stood w_n times in the table.

At α = 0 that is its likelihood to the power w_n. At α > 0 it is w_n (1/α) log E p(y_n | …)^α: w_n factors, each treated
with α, not one factor of the power w_n. A row's hidden variables count as often as its likelihood, for each copy would
have its own. A weight of 0 leaves the row out.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.objectives.site_roles import SiteRoles


def checked_weights(name: str, weights: Any) -> Float[np.ndarray, " N"] | None:
    """Weights of N rows, None where there are none.

    :param name: of the objective that they are given to.
    :raises TypeError: if they are traced, or no numbers.
    :raises ValueError: if they are no vector of finite numbers that are not negative, one of them positive.
    """
    if weights is None:
        return None
    if is_traced(weights) or np.asarray(weights).dtype.kind not in "fiub":
        raise TypeError(
            f"{name}: weights: found {type(weights).__name__}, expected numbers (N,), one for each row"
        )
    values = np.asarray(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0.0).any() or not (values > 0.0).any():
        raise ValueError(
            f"{name}: weights: found an array of shape {values.shape}, expected (N,), finite numbers, none negative "
            "and one of them positive; 0 leaves a row out"
        )
    return values


def check_weighable(name: str, roles: SiteRoles, powered: bool) -> None:
    """Refuse weights where rows have no terms of their own.

    :param powered: whether α is positive.
    :raises ValueError: for discrete latents that rows share, and for a trajectory at α > 0.
    """
    if roles.summed_outside:
        raise ValueError(
            f"{name}: weights: found the discrete latents {roles.summed_outside} outside the data plate, whose sum is "
            "of all rows together; leave the weights out"
        )
    if powered and roles.trajectories:
        raise ValueError(
            f"{name}: weights: found the trajectory {roles.trajectories[0]!r} at a positive alpha, whose steps are "
            "tempered one by one; take alpha=0, or leave them out"
        )


def weighted_rows(
    weights: Float[np.ndarray, " N"], roles: SiteRoles, group: str, rows: Float[Array, "*B"]
) -> Float[Array, " B"]:
    """The terms of the rows at hand times their weights.

    :raises ValueError: for data outside a data plate, or of another number of rows than there are weights.
    """
    size = 0 if group == "" else round(float(roles.scales[group]) * roles.plates[group].shape[0])
    if rows.ndim != 1 or size != len(weights):
        raise ValueError(
            f"weights: found {len(weights)}, expected one for each of the rows of a data plate, {size} of them; give "
            "as many"
        )
    found: Array = jnp.asarray(weights, rows.dtype)[roles.plates[group]] * rows
    return found
