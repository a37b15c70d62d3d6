"""Containment: where a richer rule is a poorer one, declared by the richer rule itself (docs/design.md, 4).

The values that a :class:`Containment` gives are of the parameters by the last part of their names, ``shrinkage`` for
``layer1/h_shrinkage``. What it does not name has the poorer rule's value, or the richer rule's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ppl_dgp.gp.contract import Parameters


@dataclass(frozen=True)
class Containment:
    """What makes the richer rule the poorer.

    :param values: of the richer rule's parameters, each from its start and what is around it: of a hidden rule the
        model's own step, of an inducing rule the parameters of its site.
    :param translate: the poorer rule's parameters in the richer rule's terms, given the site's name, that of the
        inducing site before it, and all parameters.
    :param absorbed: by a parameter of the poorer hidden rule that the richer may lack at a site: what takes its place
        there, parameters from those of the site, by the last part of their names, and the model's own step.
    """

    values: Mapping[str, Callable[[Array, Any], Array]] = field(default_factory=dict)
    translate: Callable[[str, str | None, Parameters], Parameters] = lambda site, before, params: dict(params)
    absorbed: Mapping[str, Callable[[Parameters, Any], Parameters]] = field(default_factory=dict)


def at_zero(start: Array, around: Any) -> Array:
    """0, in the shape of where the parameter starts."""
    return jnp.zeros_like(start)


def at_one(start: Array, around: Any) -> Array:
    """1, in the shape of where the parameter starts."""
    return jnp.ones_like(start)
