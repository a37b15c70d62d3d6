"""Representations of inducing outputs, hidden layers and functions: draws, or moments in their place.

A program offers a draw by a message of our own type; guide and objective may answer with moments, or with other draws
(docs/design.md, 1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from jaxtyping import Array
from numpyro.handlers import replay
from numpyro.primitives import Messenger, apply_stack

from ppl_dgp.gp.contract import Propagation, inducing_site, role_of
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


def offer_inducing(function: str, inducing: Any, behind: Any) -> Any:
    """Offer the inducing inputs of a function to a guide, who may put the draw of the function before in their place.

    :param behind: the function whose values this one's inputs are; None of a first one, whose inputs are its own.
    """
    if behind is None:
        return inducing
    return answered(inducing, type="inducing", function=function, behind=behind)


def pushed_inputs(behind: Any) -> Array:
    """The draw of a function at its inducing inputs, (M, P), as the inducing inputs of the next.

    :raises ValueError: where its u is carried as moments, or as a draw for each row.
    """
    if isinstance(behind.u, Gaussian) or behind.u.ndim != 2:
        raise ValueError(
            f"inducing: found moments or a draw for each row of u of {behind.name}, expected one draw, which is to be "
            "the next layer's inducing inputs; take PowerEP and propagation='draws'"
        )
    inputs: Array = behind.at_inducing().T
    return inputs


class Pushed(Messenger):
    """A model whose functions have the inducing inputs that they had in a run of its guide.

    :param sites: of that run.
    """

    def __init__(self, model: Callable[..., Any], sites: Mapping[str, Any]) -> None:
        super().__init__(model)
        samples = (site for site in sites.values() if site["type"] == "sample")
        self.pushed = {site["name"] for site in samples if role_of(site).pushed_from is not None}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "inducing" and inducing_site(msg["function"]) in self.pushed:
            msg["value"] = pushed_inputs(msg["behind"])


def replayed(model: Callable[..., Any], sites: Mapping[str, Any]) -> Callable[..., Any]:
    """A model at the values of a run of its guide, and at what that has put in the place of inducing inputs."""
    program: Callable[..., Any] = replay(Pushed(model, sites), sites)
    return program


def answered(value: Any, **about: Any) -> Any:
    """A value, or what a handler that knows messages of this type puts in its place."""
    if not handlers_in_force():
        return value
    message: dict[str, Any] = {
        **about, "fn": lambda: value, "args": (), "kwargs": {}, "value": None, "scale": None, "cond_indep_stack": [],
    }  # fmt: skip
    return apply_stack(message)["value"]
