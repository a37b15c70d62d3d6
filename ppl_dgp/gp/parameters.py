"""Parameters that come from elsewhere: each that a program asks for has to be there, and none that it does not know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from numpyro.handlers import lift
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import INDUCING_SUFFIX, Parameters
from ppl_dgp.numerics.compatibility import is_traced


class ParameterCheck(Messenger):
    """Around runs of programs at given parameters: notes the names they declare, and refuses what is not given.

    :param params: constrained, by name.
    :param argument: that they were given as, for errors.
    :raises ValueError: from within a run, for a parameter that is missing, or has another shape than the program's.
    """

    def __init__(self, params: Parameters, argument: str = "params") -> None:
        super().__init__()
        self.params, self.argument = params, argument
        self.declared: set[str] = set()
        self.sites: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample":
            self.sites.add(msg["name"])
        if msg["type"] != "param":
            return
        name = msg["name"]
        self.declared.add(name)
        if name not in self.params:
            raise ValueError(
                f"{self.argument}: found no {name!r}, which the program has; {_nearest(name, self.params)}"
            )
        # a start that is made from a key has no shape yet; NumPyro 0.21 gives the function that makes it
        known = msg["args"] and msg["args"][0] is not None and not callable(msg["args"][0])
        expected = jnp.shape(msg["args"][0]) if known else None
        if expected is not None and jnp.shape(self.params[name]) != expected:
            raise ValueError(
                f"{self.argument}: found {name!r} of shape {jnp.shape(self.params[name])}, expected {expected}; give "
                "the parameters of a fit of this model and guide"
            )

    def check_known(self) -> None:
        """Refuse what belongs to no site and no function of the programs; call it when they have run.

        What a guide holds for training rows alone is not declared at new ones, but bears the name of one.
        """
        functions = {site.removesuffix("u") for site in self.sites if site.endswith(INDUCING_SUFFIX)}
        owners = (*self.sites, *self.declared, *functions)
        for name in self.params:
            if not any(name.startswith(owner) for owner in owners):
                raise ValueError(
                    f"{self.argument}: found {name!r}, which the program does not have; "
                    f"{_nearest(name, self.declared)}"
                )


def check_starting_values(
    start: Mapping[str, Any], expected: Mapping[str, Any], bijections: Mapping[str, Any]
) -> None:
    """Refuse, by a ValueError, parameters to start from that a program does not have, or cannot start from.

    :param start: constrained parameters, by name; not all need be there.
    :param expected: what has the shapes of all.
    :param bijections: NumPyro's, by name.
    """
    for name, value in start.items():
        if name not in expected:
            raise ValueError(
                f"start: found {name!r}, which the program does not have; {_nearest(name, expected)}"
            )
        shape = jnp.shape(expected[name])
        if jnp.shape(value) != shape:
            raise ValueError(f"start: found {name!r} of shape {jnp.shape(value)}, expected {shape}")
        if is_traced(value):
            continue
        with jax.ensure_compile_time_eval():
            inverse = np.asarray(bijections[name].inv(jnp.asarray(value))) if name in bijections else value
        if not np.isfinite(np.asarray(inverse)).all():
            inside = bijections[name].codomain if name in bijections else constraints.real
            raise ValueError(
                f"start: found a value of {name!r} that is not finite, or outside of {inside}, which it has to obey"
            )


def check_lifted(model: Any, sites: Collection[str], others: Collection[str] = ()) -> None:
    """Refuse, by a ValueError, priors that ``numpyro.handlers.lift`` is given for sites which the model does not have.

    NumPyro passes over them, and such a parameter stays without a prior.

    :param sites: the names of those of one run of the model.
    :param others: names that may be meant.
    """
    while isinstance(model, Messenger):
        priors = model.prior if isinstance(model, lift) and isinstance(model.prior, dict) else {}
        for name in priors:
            if name not in sites:
                known = {*sites, *others}
                raise ValueError(
                    f"prior: found {name!r}, which the model does not have; {_nearest(name, known)}"
                )
        model = model.fn


def check_of_model(argument: str, other: Any, model: Any, remedy: str) -> None:
    """Refuse, by a ValueError, what was made of another model of the zoo: its sites may have the same names and shapes.

    A model is looked at below its handlers (``lift``); functions that users write are not told apart.
    """
    found, expected = _without_handlers(other), _without_handlers(model)
    if is_dataclass(found) and is_dataclass(expected) and found != expected:
        raise ValueError(
            f"{argument}: found one of {found!r}, expected one of the model, {expected!r}; {remedy}"
        )


def _without_handlers(model: Any) -> Any:
    while isinstance(model, Messenger):
        model = model.fn
    return model


def _nearest(name: str, known: Collection[str]) -> str:
    """A remedy: the names most like it."""
    near = get_close_matches(name, known, 3, 0.5)
    if near:
        return f"the nearest of those given or declared are {_listed(near)}"
    few = sorted(known)[:6]
    return f"there are {_listed(few)}{' …' if len(known) > len(few) else ''}" if few else "there are none"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
