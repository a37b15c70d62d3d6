"""Parameters with a row per datum, in steps on minibatches: gradients, moves and states of the rows at hand alone.

An optimiser that sees all N rows goes on moving those whose gradient is 0 by momentum that is stale, and a step costs
O(N). Here the rows at hand are taken out of parameters and of the optimiser's state, updated as if there were no
others, and put back: O(B).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey
from jaxtyping import Array, Float, Int
from numpyro.distributions import Unit
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.primitives import Messenger

Update = Callable[..., tuple[SVIState, Float[Array, ""]]]


class RowsAtHand(Messenger):
    """Parameters whose values are of the rows at hand already, so that their plate takes none of them."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(None)
        self.names = names

    def process_message(self, msg: dict[str, Any]) -> None:
        """Without the dimensions of a row's value a plate leaves it as it is."""
        if msg["type"] == "param" and msg["name"] in self.names:
            msg["kwargs"] = {**msg["kwargs"], "event_dim": None}


class StandingForAll(Messenger):
    """Refuses a model whose minibatches count as if they were all rows: no observation in it is scaled.

    :param at_hand: B, rows of a minibatch, size: N.
    """

    def __init__(self, at_hand: int, size: int) -> None:
        super().__init__(None)
        self.at_hand, self.size = at_hand, size
        self.observed = self.scaled = False

    def process_message(self, msg: dict[str, Any]) -> None:
        """Outermost, so that plates have said already what a site counts for."""
        if msg["type"] == "sample" and msg["is_observed"] and not isinstance(msg["fn"], Unit):
            self.observed = True
            self.scaled |= msg["scale"] is not None

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        if kind is None and self.observed and not self.scaled and self.at_hand < self.size:
            raise ValueError(
                f"model: found minibatches of {self.at_hand} rows that count as if they were all {self.size}, expected "
                f"each row to count {self.size / self.at_hand:.3g} times; observe y inside data_plate(size or "
                "x.shape[0], index), or leave batch_size out"
            )


def update_rows(
    update: Update, svi: SVI, state: SVIState, x: Array, y: Array, index: Int[Array, " B"], size: int
) -> tuple[SVIState, Float[Array, ""]]:
    """``update(svi, state, x, y, index=index, size=size)``, in which the other N − B rows do not take part.

    :param index: the rows at hand, none twice.
    :param size: N.
    """
    names = per_datum_names(svi, state, x, y, index, size)
    if not names:
        with StandingForAll(len(index), size):
            return update(svi, state, x, y, index=index, size=size)

    def of_rows(path: tuple[Any, ...]) -> bool:
        return any(isinstance(key, DictKey) and key.key in names for key in path)

    taken = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf[index] if of_rows(path) else leaf, state.optim_state
    )
    if not _takes_rows(svi, taken, names, len(index)):
        return update(svi, state, x, y, index=index, size=size)
    with RowsAtHand(names):
        new, loss = update(svi, state._replace(optim_state=taken), x, y, index=index, size=size)
    put = lambda path, leaf, found: leaf.at[index].set(found, unique_indices=True) if of_rows(path) else found
    optim_state = jax.tree_util.tree_map_with_path(put, state.optim_state, new.optim_state)
    return new._replace(optim_state=optim_state), loss


def per_datum_names(
    svi: SVI, state: SVIState, x: Array, y: Array, index: Int[Array, " B"], size: int
) -> frozenset[str]:
    """The parameters with a row per datum: of which a plate takes those at hand."""
    params = svi.optim.get_params(state.optim_state)
    if (
        _needs_all_rows(state.optim_state)
        or len(index) == size
        or not any(leaf.shape[:1] == (size,) for leaf in params.values())
    ):
        return frozenset()
    found: set[str] = set()

    def look(params: dict[str, Array], key: Array) -> None:
        values = svi.constrain_fn(params)
        for program in (svi.guide, svi.model):
            sites = trace(substitute(seed(program, key), values)).get_trace(x, y, index=index, size=size)
            found.update(name for name, site in sites.items() if _has_rows(site, len(index), size))

    jax.eval_shape(look, params, state.rng_key)
    return frozenset(found)


def _takes_rows(svi: SVI, taken: Any, names: frozenset[str], at_hand: int) -> bool:
    """Whether an optimiser takes some rows of parameters and of its state for the whole: not if it holds them flat."""
    params = svi.optim.get_params(taken)
    if any(params[name].shape[0] != at_hand for name in names):
        return False
    try:
        after = jax.eval_shape(
            lambda slopes, state: svi.optim.update(slopes, state, value=0.0), params, taken
        )
    except (TypeError, ValueError):
        return False
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    return shapes(after) == shapes(taken)


def _needs_all_rows(optim_state: Any) -> bool:
    """Whether an optimiser's state says so."""
    says = lambda node: bool(getattr(node, "needs_all_rows", False))
    return any(map(says, jax.tree.leaves(optim_state, is_leaf=says)))


def _has_rows(site: dict[str, Any], at_hand: int, size: int) -> bool:
    """Whether a parameter has a row for each of ``size``, of which its plate takes those at hand."""
    event_dim = site["kwargs"].get("event_dim") if site["type"] == "param" else None
    if event_dim is None or site["value"].shape[:1] != (size,) or site["value"].ndim != event_dim + 1:
        return False
    return any(frame.dim == -1 and frame.size == at_hand for frame in site["cond_indep_stack"])
