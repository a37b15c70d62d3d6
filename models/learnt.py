"""The values of kernels and likelihoods as sites: which fields are learnt, where they start, what they may be.

A field of a kernel's or a likelihood's dataclass is learnt unless its ``metadata`` says ``static`` or ``learnt=False``,
or its type is ``int``, ``bool`` or ``str``. Beside these, ``metadata`` may give

    start           where the value begins in a class (else the field's default, else 1)
    constraint      a constraint of NumPyro (else positive)
    per_dimension   whether a kernel has one for each input dimension, as a field named lengthscale has
    site            another name of the site than the field's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.tree_util import register_dataclass
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.models.value import described, settings_of

Learnt = TypeVar("Learnt")
#: metadata that hold a field as it is
HELD_TYPES = ("int", "bool", "str", int, bool, str)


def learnt_fields(cls: type) -> list[Field[Any]]:
    """The fields whose values are learnt."""
    return [
        entry
        for entry in settings_of(cls)
        if not entry.metadata.get("static")
        and entry.metadata.get("learnt", True)
        and entry.type not in HELD_TYPES
    ]


def is_per_dimension(entry: Field[Any]) -> bool:
    """Whether a kernel has one such value for each of its input dimensions."""
    return entry.name == "lengthscale" or bool(entry.metadata.get("per_dimension"))


def class_with_sites(
    prefix: str,
    cls: Callable[..., Learnt],
    starts: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    shape: Callable[[Field[Any]], tuple[int, ...]] = lambda _: (),
    lazy: bool = False,
) -> Learnt:
    """An instance of ``cls``, or of a ``partial`` of it, its learnt fields the sites ``prefix/<field>``.

    :param starts: where fields start, or what gives it when that is asked for; it comes before what the class says.
        What gives it by the data has ``usual``, where they would start without; ``default_priors`` reads it.
    :param fixed: values that are not learnt.
    :param shape: of a field's value; a default that is an array keeps its own.
    :param lazy: whether starts are made when the sites are initialised, and not at every call.
    """
    arguments: dict[str, Any] = dict(fixed or {})
    bound = cls.keywords if isinstance(cls, partial) else {}
    for entry in learnt_fields(cls.func if isinstance(cls, partial) else cls):  # type: ignore[arg-type]
        if entry.name in arguments or entry.name in bound:
            continue
        start = (starts or {}).get(entry.name, class_start(entry))
        if start is None or isinstance(start, bool | str):
            continue
        initial = partial(_broadcast, start, shape(entry))
        usual = getattr(start, "usual", None)
        arguments[entry.name] = _site(prefix, entry, initial if lazy else initial(None), usual)
    return known_to_jax(cls(**arguments))


def says_where(entry: Field[Any]) -> bool:
    """Whether a class says where a field starts."""
    return "start" in entry.metadata or entry.default is not MISSING or entry.default_factory is not MISSING


def class_start(entry: Field[Any]) -> Any:
    """Where a field of a class starts: as its metadata say, else its default, else 1."""
    default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    return entry.metadata.get("start", 1.0 if default is MISSING else default)


def instance_with_sites(argument: str, prefix: str, value: Learnt) -> Learnt:
    """The same kernel or likelihood, its learnt fields the sites ``prefix/<field>`` that start at their values.

    :param argument: of the model, for errors.
    :raises ValueError: for a value that learning could not move, such as a variance of 0.
    """
    if not is_dataclass(value):
        return value
    values: dict[str, Any] = {}
    for entry in learnt_fields(type(value)):
        start = getattr(value, entry.name)
        if is_dataclass(start):
            values[entry.name] = instance_with_sites(argument, f"{prefix}/{entry.name}", start)
        elif not (start is None or callable(start) or isinstance(start, bool | str | tuple)):
            check_start(argument, value, entry, start)
            values[entry.name] = _site(prefix, entry, jnp.asarray(start, float))
    return known_to_jax(replace(value, **values)) if values else value  # type: ignore[type-var]


def check_start(argument: str, owner: Any, entry: Field[Any], start: Any) -> None:
    """Refuse, by a ValueError, a value outside of what it may be."""
    if isinstance(start, jax.core.Tracer):
        return
    constraint = entry.metadata.get("constraint", constraints.positive)
    with jax.ensure_compile_time_eval():
        inside = bool(np.all(constraint(jnp.asarray(start, float))))
    if not inside:
        raise ValueError(
            f"{argument}: found {entry.name}={described(start)} in {type(owner).__name__}, where learning cannot "
            "start; give another value, or a function that returns it to hold it"
        )


def known_to_jax(value: Learnt) -> Learnt:
    """The same, its class known to JAX as a pytree whose leaves are what is learnt, where nobody has said so yet."""
    cls = type(value)
    names = [entry.name for entry in learnt_fields(cls)] if is_dataclass(cls) else []
    if names and jax.tree_util.all_leaves([value]):
        fixed = [entry.name for entry in settings_of(cls) if entry.name not in names]
        register_dataclass(cls, data_fields=names, meta_fields=fixed)
    return value


def _site(prefix: str, entry: Field[Any], initial: Any, usual: float | None = None) -> Array:
    constraint = entry.metadata.get("constraint", constraints.positive)
    name = f"{prefix}/{entry.metadata.get('site', entry.name)}"
    told = {} if usual is None else {"usual": usual}
    value: Array = numpyro.param(name, initial, constraint=constraint, **told)
    return value


def _broadcast(start: Any, shape: tuple[int, ...], _key: Array | None) -> Array:
    value = jnp.asarray(start() if callable(start) else start, float)
    return jnp.broadcast_to(value, shape) if value.ndim <= len(shape) else value
