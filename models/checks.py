"""Settings of the wrong kind are refused when a model is made, before anything is compiled."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterable
from operator import index
from typing import Any

import numpy as np
from jaxtyping import Array, Float


def checked_whole(**settings: Any) -> dict[str, int]:
    """Whole numbers of at least 1, by name.

    :raises ValueError: for anything else.
    """
    checked = {}
    for name, value in settings.items():
        try:
            checked[name] = index(value)
        except TypeError:
            checked[name] = 0
        if checked[name] < 1 or isinstance(value, bool | np.bool_):
            raise ValueError(f"{name}: found {value!r}, expected a whole number, at least 1")
    return checked


def positive(**settings: Any) -> None:
    """Refuse, by a ValueError, what is no positive and finite number."""
    for name, value in settings.items():
        if not is_real(value) or not 0.0 < float(value) < math.inf:
            raise ValueError(f"{name}: found {value!r}, expected a positive number")


def at_least_zero(**settings: Any) -> None:
    """Refuse, by a ValueError, what is negative, or no finite number."""
    for name, value in settings.items():
        if not is_real(value) or not 0.0 <= float(value) < math.inf:
            raise ValueError(f"{name}: found {value!r}, expected a number of at least 0")


def checked_flag(name: str, value: Any) -> bool:
    """True or False.

    :raises ValueError: for anything else.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: found {value!r}, expected True or False")
    return bool(value)


def choice(name: str, value: Any, known: Collection[str]) -> None:
    """Refuse, by a ValueError, what is none of the names known."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: found {value!r}, expected one of {', '.join(known)}")


def whole_sequence(name: str, values: Any, expected: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, in a row.

    :raises ValueError: for anything else.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}: found {values!r}, expected {expected}; write ({values!r},) for one")
    checked = []
    for value in values:
        try:
            checked.append(checked_whole(value=value)["value"])
        except ValueError:
            raise ValueError(f"{name}: found {value!r}, expected {expected}, each at least 1") from None
    return tuple(checked)


def checked_groups(name: str, groups: Any) -> tuple[tuple[int, ...], ...] | None:
    """Groups of columns, each of distinct whole numbers of at least 0; None if there are none.

    :raises ValueError: for anything else.
    """
    if groups is None:
        return None
    expected = "a sequence of groups of columns, such as ((0,), (1, 2)), counted from 0"
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ValueError(f"{name}: found {groups!r}, expected {expected}")
    checked = []
    for group in groups:
        try:
            columns = tuple(index(column) for column in group)
        except TypeError:
            raise ValueError(f"{name}: found {group!r}, expected {expected}") from None
        if not columns or min(columns) < 0 or len(set(columns)) < len(columns):
            raise ValueError(f"{name}: found {group!r}, expected {expected}, each column once")
        checked.append(columns)
    if not checked:
        raise ValueError(f"{name}: found none, expected {expected}")
    return tuple(checked)


def state_prior(initial: Any) -> tuple[float, float]:
    """Mean and positive variance of a first state.

    :raises ValueError: for anything else.
    """
    pair = tuple(initial) if isinstance(initial, Iterable) and not isinstance(initial, str) else ()
    if len(pair) != 2 or not all(map(is_real, pair)) or not pair[1] > 0.0:
        raise ValueError(f"initial: found {initial}, expected a mean and a positive variance of x_0")
    return pair


def is_real(value: Any) -> bool:
    """Whether it is a real number; True and False are not."""
    plain = isinstance(value, numbers.Real | np.number) and not isinstance(value, bool | np.bool_)
    return plain or (getattr(value, "shape", None) == () and np.dtype(value.dtype).kind in "fiu")


def frozen_array(
    name: str, value: Any, ndim: int, expected: str
) -> Float[np.ndarray, "..."] | Float[Array, "..."]:
    """Numbers in an array that nobody can change under a model's feet.

    :raises ValueError: where there are other than numbers, or ``ndim`` axes of them.
    """
    if isinstance(value, Array):
        array: Any = value
    else:
        try:
            array = np.array(value, dtype=None if isinstance(value, np.ndarray) else float)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: found {value!r}, expected {expected}") from None
        array.setflags(write=False)
    if array.ndim != ndim or array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: found shape {array.shape} of {array.dtype}, expected {expected}")
    return array if array.dtype.kind == "f" else frozen_array(name, np.asarray(array, float), ndim, expected)
