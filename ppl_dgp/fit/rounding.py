"""How many nats of a loss are rounding: a descent cannot see less, whatever its last step foresees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from ppl_dgp.fit.convergence import Convergence
from ppl_dgp.fit.program import split_key
from ppl_dgp.gp.contract import Parameters

#: points beside the last one, and by how many units in the last place they are beside it
POINTS, PLACES = 3, 8.0


def beside_rounding(
    known: Convergence,
    params: Parameters,
    loss: Callable[[Parameters], float],
    value: float,
    key: Shaped[Array, "..."],
) -> Convergence:
    """What is known, the gap no less than the loss differs at points that are the same but for rounding.

    :param params: unconstrained parameters.
    :param loss: in nats, of such.
    :param value: that of ``params``.
    """
    found = [loss(_beside(params, each)) for each in split_key(jax.random.fold_in(key, 2), POINTS)]
    rough = float(np.abs(np.array(found) - value).max())
    rough = rough if np.isfinite(rough) else np.inf
    return replace(known, gap=max(known.gap, rough), error=max(known.error, rough))


def _beside(params: Parameters, key: Shaped[Array, "..."]) -> Parameters:
    def moved(leaf: Array, key: Shaped[Array, "..."]) -> Array:
        unit = PLACES * jnp.finfo(leaf.dtype).eps * jnp.maximum(1.0, jnp.abs(leaf))
        return leaf + unit * jax.random.rademacher(key, leaf.shape, leaf.dtype)

    keys = split_key(key, len(params))
    return {name: moved(leaf, each) for (name, leaf), each in zip(params.items(), keys, strict=True)}
