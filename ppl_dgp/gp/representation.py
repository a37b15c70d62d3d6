"""Representations of inducing outputs, hidden layers and functions: draws, or moments in their place.

A program offers a draw by a message of our own type; guide and objective may answer with moments, or with other draws
(docs/design.md, 1.2).
"""

from __future__ import annotations

from typing import Any, get_args

from jaxtyping import Array
from numpyro.primitives import apply_stack

from ppl_dgp.gp.contract import Propagation
from ppl_dgp.gp.numpyro_internals import handlers_in_force
from ppl_dgp.numerics.gaussian import Gaussian


def check_propagation(value: str) -> None:
    """Refuse what is no way of carrying h through the layers, by a ValueError."""
    if value not in get_args(Propagation):
        raise ValueError(f"propagation: found {value!r}, expected one of {', '.join(get_args(Propagation))}")


def offer(name: str, value: Array) -> Array | Gaussian:
    """Offer the draw of site ``name`` to guide and objective, who may answer with moments or per-datum draws.

    The message has a type of our own and no name, so that trace, replay and block pass it by; without an answer the
    draw itself comes back (docs/design.md, 1.2).
    """
    representation: Array | Gaussian = answered(value, type="offer", offered=name)
    return representation


def answered(value: Any, **about: Any) -> Any:
    """A value, or what a handler that knows messages of this type puts in its place."""
    if not handlers_in_force():
        return value
    message: dict[str, Any] = {
        **about, "fn": lambda: value, "args": (), "kwargs": {}, "value": None, "scale": None, "cond_indep_stack": [],
    }  # fmt: skip
    return apply_stack(message)["value"]
