"""Settings as JSON: rules, kernels, likelihoods, objectives and models that are values, recursively, and back.

A frozen dataclass is its public name and its fields, another object of this package its name and the arguments it was
made with, a class or function a name; arrays go into a table beside the JSON. Nothing is pickled, and what is decoded
comes from this package's models and inference: a name that leads out of them is refused. A public name is that in
``ppl_dgp`` where there is one, so that files outlive moves between modules.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

PACKAGE = "ppl_dgp"
#: where names of classes and functions may lead; NumPyro's for ``Trace_ELBO`` and its AutoGuides. Importing a module of
#: these does nothing else
ROOMS = (
    "expectations", "fit", "gp", "guides", "kernels", "likelihoods", "models", "numerics", "objectives", "state_space",
)  # fmt: skip
HOMES = (*(f"ppl_dgp.{room}" for room in ROOMS), "numpyro.infer")


class EncodingError(ValueError):
    """A value that has no JSON form, or a JSON form that has no value; the message is one line."""


class Encoder:
    """Encodes values; ``arrays`` is the table of those met, by names that say where.

    :param known: objects that are given again when decoding, by name: a model that cannot be encoded, say.
    """

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.known = dict(known or {})
        self.arrays: dict[str, np.ndarray] = {}

    def __call__(self, value: Any, place: str) -> Any:
        """The JSON form of a value that stands at ``place``, such as "model/kernel".

        :raises EncodingError: if it is none of what is named above.
        """
        for name, given in self.known.items():
            if value is given:
                return {"given": name}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, place)
        if isinstance(value, tuple):
            return {"tuple": [self(item, f"{place}/{number}") for number, item in enumerate(value)]}
        if isinstance(value, list):
            return [self(item, f"{place}/{number}") for number, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {
                "dict": {self._key(key, place): self(item, f"{place}/{key}") for key, item in value.items()}
            }
        if isinstance(value, type) or inspect.isfunction(value):
            return {"name": public_name(value, place)}
        return self._object(value, place)

    def _array(self, value: Any, place: str) -> dict[str, str]:
        kind = "jax" if isinstance(value, jax.Array) else "numpy"
        if kind == "jax" and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise EncodingError(f"{place}: found a random key, expected none; it has no place in a fit")
        self.arrays[place] = np.array(value, order="C")
        return {kind: place}

    def _key(self, key: Any, place: str) -> str:
        if not isinstance(key, str):
            raise EncodingError(f"{place}: found the key {key!r}, expected text")
        return key

    def _object(self, value: Any, place: str) -> dict[str, Any]:
        name = public_name(type(value), place)
        arguments = {argument: get(value) for argument, get in _arguments(type(value), place).items()}
        return {
            "type": name,
            "arguments": {
                argument: self(item, f"{place}/{argument}") for argument, item in arguments.items()
            },
        }


class Decoder:
    """Makes the values again that an :class:`Encoder` saw.

    :param arrays: its table.
    :param known: the objects that it was told of, by the same names.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], known: Mapping[str, Any] | None = None) -> None:
        self.arrays, self.known = arrays, dict(known or {})

    def __call__(self, form: Any) -> Any:
        """The value of a JSON form.

        :raises EncodingError: for a form that no encoder writes, or a name that leads to nothing in this package.
        """
        if form is None or isinstance(form, bool | int | float | str):
            return form
        if isinstance(form, list):
            return [self(item) for item in form]
        match form:
            case {"given": str(name)}:
                if name not in self.known:
                    raise EncodingError(f"{name}: found none, expected one; pass {name}=")
                return self.known[name]
            case {"float": str(text)}:
                if text not in ("nan", "inf", "-inf"):
                    raise EncodingError(f"found the float {text[:80]!r}, expected nan, inf or -inf")
                return float(text)
            case {"numpy": str(place)} if place in self.arrays:
                return self.arrays[place]
            case {"jax": str(place)} if place in self.arrays:
                return as_saved(self.arrays[place])
            case {"tuple": list(items)}:
                return tuple(self(item) for item in items)
            case {"dict": dict(items)}:
                return {key: self(item) for key, item in items.items()}
            case {"name": str(name)}:
                return name_of_value(name)
            case {"type": str(name), "arguments": dict(arguments)}:
                return self._object(name, arguments)
        raise EncodingError(f"found {str(form)[:80]!r}, expected the form of a value")

    def _object(self, name: str, arguments: dict[str, Any]) -> Any:
        kind = name_of_value(name)
        if not isinstance(kind, type):
            raise EncodingError(f"{name}: found a {type(kind).__name__}, expected a class")
        if unknown := sorted(arguments.keys() - _arguments(kind, name).keys()):
            raise EncodingError(
                f"{name}: found the settings {unknown}, which it does not have; read the file with the version of "
                "ppl_dgp that wrote it"
            )
        return kind(**{argument: self(form) for argument, form in arguments.items()})


def as_saved(array: ArrayLike) -> jax.Array:
    """An array of JAX in the precision it was saved in, whatever the current one."""
    with jax.enable_x64(True):
        return jnp.array(array)


def public_name(thing: Any, place: str) -> str:
    """The name of a class or function: that in ``ppl_dgp`` if it is public there, else module and name.

    :raises EncodingError: if it is not of this package, or no name leads to it.
    """
    module, qualified = thing.__module__ or "", thing.__qualname__
    package = sys.modules[PACKAGE]
    if not _at_home(module):
        raise EncodingError(
            f"{place}: found {module}.{qualified}, which is not of ppl_dgp's models or inference, expected settings "
            "that a file can hold; pass the model (and guide) to Fit.load"
        )
    if qualified in package.__all__ and getattr(package, qualified) is thing:
        return str(qualified)
    if "<" in qualified or getattr(sys.modules.get(module), qualified, None) is not thing:
        raise EncodingError(
            f"{place}: found {module}.{qualified}, which no name leads to, expected a class or function of a module; "
            "pass the model (and guide) to Fit.load"
        )
    return f"{module}:{qualified}"


def name_of_value(name: str) -> Any:
    """The class or function of a name that :func:`public_name` gave.

    :raises EncodingError: if there is none, or the name leads out of this package.
    """
    module, _, attribute = name.rpartition(":")
    if module and not _at_home(module):
        raise EncodingError(
            f"{name}: found a name outside ppl_dgp's models and inference, expected one of theirs; do not trust the "
            "file"
        )
    try:
        thing = getattr(import_module(module or PACKAGE), attribute)
    except (ImportError, AttributeError):
        raise EncodingError(
            f"{name}: found no such name, expected a class or function of ppl_dgp; read the file with the version "
            "that wrote it"
        ) from None
    if not (isinstance(thing, type) or inspect.isfunction(thing)) or not _at_home(thing.__module__):
        raise EncodingError(
            f"{name}: found no class or function of ppl_dgp, expected one; do not trust the file"
        )
    return thing


def _at_home(module: str) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in HOMES)


def _arguments(kind: type, place: str) -> dict[str, Callable[[Any], Any]]:
    """What an object of a class was made with, each by what reads it from the object."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    else:
        parameters = inspect.signature(kind).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {name: _reader(name, place) for name in names}


def _reader(name: str, place: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            asked: dict[str, Any] = getattr(value, "asked", {})
            return asked[name] if name in asked else getattr(value, name)
        except AttributeError:
            raise EncodingError(
                f"{place}: found {type(value).__name__}, which does not keep its argument {name!r}, expected a "
                "dataclass; make it one"
            ) from None

    return read
