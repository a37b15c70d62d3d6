"""What settings are equal by, so that fits of equal models and objectives share a compiled program."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from ppl_dgp.numerics.compatibility import is_traced


def content(value: Any) -> Hashable:
    """What a setting is equal by: arrays and the fields of dataclasses by content, the rest if need be by identity."""
    if isinstance(value, np.ndarray | jax.Array) and not is_traced(value):
        numbers = np.asarray(value)
        return "array", numbers.shape, numbers.dtype.str, numbers.tobytes()
    if isinstance(value, tuple | list):
        return "sequence", *map(content, value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(content(getattr(value, setting.name)) for setting in fields(value))
    try:
        hash(value)
    except TypeError:
        return "object", id(value)
    return value  # type: ignore[no-any-return]
