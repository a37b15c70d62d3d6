"""Models as values: their settings are fields, so that a model prints, compares, hashes and pickles as what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ppl_dgp.kernels import Kernel
from ppl_dgp.likelihoods import Likelihood


class ZooModel(ABC):
    """A NumPyro model whose settings are the fields of a frozen dataclass.

    Subclasses are named in lower case, as NumPyro's ``plate`` and ``trace`` are, for they are used like functions:
    ``model = deep_gp((2,), 20)``, then ``model(x, y)``. Models of equal settings are equal, so that what is compiled
    for one serves the other; arrays are compared by their content, and functions are equal to themselves alone.
    """

    @abstractmethod
    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        """Run the program: inputs (B, D) and targets (B, P), rows ``index`` (B,) of a table of ``size`` rows."""

    def __repr__(self) -> str:
        shown = [
            f"{setting.name}={described(getattr(self, setting.name))}"
            for setting in settings_of(self)
            if not setting.kw_only or not _is_default(setting, getattr(self, setting.name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __getstate__(self) -> dict[str, Any]:
        return {setting.name: getattr(self, setting.name) for setting in settings_of(self)}

    @cached_property
    def _content(self) -> Hashable:
        return type(self), *(content(getattr(self, setting.name)) for setting in settings_of(self))

    def _settle(self, **settings: Any) -> None:
        """Put what a check has made of settings in their places; to be called by ``__post_init__`` alone."""
        for name, value in settings.items():
            object.__setattr__(self, name, value)


def settings_of(value: Any) -> tuple[Field[Any], ...]:
    """The fields of a dataclass, or of an instance of one."""
    return fields(value)


def content(value: Any) -> Hashable:
    """What a setting is equal by: arrays and the fields of dataclasses by content, the rest if need be by identity."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        numbers = np.asarray(value)
        return "array", numbers.shape, numbers.dtype.str, numbers.tobytes()
    if isinstance(value, tuple | list):
        return "sequence", *map(content, value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(content(getattr(value, setting.name)) for setting in settings_of(value))
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    return value  # type: ignore[no-any-return]


def described(value: Any) -> str:
    """A setting in one line: arrays by their shape, classes and functions by their names."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        return f"{float(value):g}" if value.ndim == 0 else f"array{value.shape}"
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Kernel | Likelihood) and is_dataclass(value):
        shown = [
            f"{setting.name}={described(getattr(value, setting.name))}"
            for setting in settings_of(value)
            if not _is_default(setting, getattr(value, setting.name))
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__.rpartition(".")[2])
    return " ".join(repr(value).split())


def _is_default(setting: Field[Any], value: Any) -> bool:
    return setting.default is not MISSING and content(setting.default) == content(value)
