"""Settings of models, kernels and likelihoods as values: which they are, and how they print."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import jax
import numpy as np

from ppl_dgp.gp.features import InducingFeatures
from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.network_modules import is_module
from ppl_dgp.kernels import Kernel
from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.numerics.content import content


def settings_of(value: Any) -> tuple[Field[Any], ...]:
    """The fields of a dataclass, or of an instance of one."""
    return fields(value)


def described(value: Any) -> str:
    """A setting in one line: arrays by their shape, classes, functions and networks by their names."""
    if isinstance(value, np.ndarray | jax.Array) and not isinstance(value, jax.core.Tracer):
        return f"{float(value):g}" if value.ndim == 0 else f"array{value.shape}"
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Kernel | Likelihood | InducingFeatures | Mean) and is_dataclass(value):
        shown = [
            f"{setting.name}={described(getattr(value, setting.name))}"
            for setting in settings_of(value)
            if not is_default(setting, getattr(value, setting.name))
        ]
        return f"{type(value).__name__}({', '.join(shown)})"
    if is_module(value):
        return type(value).__name__
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__.rpartition(".")[2])
    return " ".join(repr(value).split())


def is_default(setting: Field[Any], value: Any) -> bool:
    """Whether a field has the value it has unless told."""
    return setting.default is not MISSING and content(setting.default) == content(value)
