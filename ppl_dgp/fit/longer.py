"""Where a fit to all steps of a series begins, from the parameters of a fit to the first of them.

From the usual start it may end at another optimum than the one whose simulations were judged.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, Shaped
from numpyro.infer import SVI, Trace_ELBO
from numpyro.optim import SGD

from ppl_dgp.fit.initial import initialise
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.guides import Guide
from ppl_dgp.state_space.sequences import layout, sequence_numbers

#: what ends the name of the held site of the states that a model begins at
BEGIN = "/begin"


def longer_start(
    key: Shaped[Array, "..."],
    model: Model,
    guide: Guide,
    params: Parameters,
    x: Float[Array, "T C"],
    y: Num[Array, "T P"],
    first: Bool[np.ndarray, " T"],
) -> Parameters | None:
    """Parameters for ``fit_series(start=…)`` on all steps, None where some others than held states are of single steps.

    The states that the model begins at are of a linear model of the data, and of another one with more of them, in
    other coordinates: of the steps that were there they are kept, the new ones are brought to their coordinates by
    least squares.

    :param params: constrained parameters of a fit to the ``first`` steps, of each sequence those it begins with.
    """
    svi = SVI(model, guide, SGD(1.0), Trace_ELBO())
    usual: Parameters = svi.get_params(initialise(svi, key, x, y))
    start = dict(params)
    for name, value in params.items():
        if np.shape(value) == np.shape(usual[name]):
            continue
        if not name.endswith(BEGIN):
            return None
        sequences = getattr(model, "num_sequences", 1)
        numbers = np.zeros(len(y)) if sequences == 1 else np.asarray(sequence_numbers(x))
        slots, earlier = (
            np.concatenate([where.after[chosen], where.initial])
            for where, chosen in (
                (layout(len(y), jnp.asarray(numbers), sequences), first),
                (layout(int(first.sum()), jnp.asarray(numbers[first]), sequences), slice(None)),
            )
        )
        start[name] = jnp.asarray(_onward(np.asarray(usual[name]), np.asarray(value), slots, earlier))
    return start


def _onward(
    states: Float[np.ndarray, "slots Q"],
    known: Float[np.ndarray, "earlier Q"],
    slots: Shaped[np.ndarray, " earlier"],
    earlier: Shaped[np.ndarray, " earlier"],
) -> Float[np.ndarray, "slots Q"]:
    """States in the coordinates of those that are known, which are ``earlier``'s rows at the ``slots``."""
    beside = np.column_stack([states, np.ones(len(states))])
    found: np.ndarray = beside @ np.linalg.lstsq(beside[slots], known[earlier], rcond=None)[0]
    found[slots] = known[earlier]
    return found
