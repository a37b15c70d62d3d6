"""From a fit to the first steps of a series to one to all of them, and back."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, Shaped
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
        slots, earlier = _slots(model, x, first)
        start[name] = jnp.asarray(_onward(np.asarray(usual[name]), np.asarray(value), slots, earlier))
    return start


def shorter_params(
    model: Model, params: Parameters, x: Float[Array, "T C"], first: Bool[np.ndarray, " T"]
) -> Parameters:
    """Parameters of a fit to all steps as those of one to the ``first``: of the held states those of these steps."""
    slots, earlier = _slots(model, x, first)
    held = {name: value for name, value in params.items() if name.endswith(BEGIN)}
    return {**params, **{name: value[slots[np.argsort(earlier)]] for name, value in held.items()}}


def _slots(
    model: Model, x: Float[Array, "T C"], first: Bool[np.ndarray, " T"]
) -> tuple[Int[np.ndarray, " slots"], Int[np.ndarray, " slots"]]:
    """Where the states of the first steps, and those before them, stand among all, and among their own."""
    sequences = getattr(model, "num_sequences", 1)
    numbers = np.zeros(len(first)) if sequences == 1 else np.asarray(sequence_numbers(x))
    whole = layout(len(first), jnp.asarray(numbers), sequences)
    own = layout(int(first.sum()), jnp.asarray(numbers[first]), sequences)
    together = lambda after, initial: np.concatenate([np.asarray(after), np.asarray(initial)])
    return together(whole.after[first], whole.initial), together(own.after, own.initial)


def _onward(
    states: Float[np.ndarray, "slots Q"],
    known: Float[np.ndarray, "earlier Q"],
    slots: Int[np.ndarray, " earlier"],
    earlier: Int[np.ndarray, " earlier"],
) -> Float[np.ndarray, "slots Q"]:
    """States in the coordinates of those that are known, which are ``earlier``'s rows at the ``slots``."""
    beside = np.column_stack([states, np.ones(len(states))])
    found: np.ndarray = beside @ np.linalg.lstsq(beside[slots], known[earlier], rcond=None)[0]
    found[slots] = known[earlier]
    return found
