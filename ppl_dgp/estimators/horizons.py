"""The steps of a series: what y is indexed by, the labels of steps ahead, and the horizons that are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class Timeline:
    """What a series of ``size`` steps came as: "array", "series" or "frame", with an index of pandas or without."""

    kind: str
    size: int
    flat: bool
    index: Any = None
    name: Any = None

    @classmethod
    def of(cls, y: Any, size: int) -> Timeline:
        """That of a series of so many steps.

        :raises ValueError: for an index whose labels do not rise.
        """
        kind = {pd.Series: "series", pd.DataFrame: "frame"}.get(type(y), "array")
        index = None if kind == "array" else y.index
        named = index is None or index.dtype == object or pd.api.types.is_string_dtype(index)
        if index is not None and not named and not index.is_monotonic_increasing:
            raise ValueError(
                "y: found an index that does not rise, expected steps in their order; sort them by it"
            )
        return cls(kind, size, np.ndim(y) == 1, index, getattr(y, "name", None))

    def longer(self, y: Any, steps: int) -> Timeline:
        """With so many steps more, which bring their index if there is one.

        :raises ValueError: for an index that does not go on from this one.
        """
        if self.index is None:
            return replace(self, size=self.size + steps)
        new = y.index if isinstance(y, pd.Series | pd.DataFrame) else self.ahead(np.arange(1, steps + 1))
        if new[0] <= self.index[-1]:
            raise ValueError(
                f"y: found an index that begins at {new[0]}, expected one after {self.index[-1]}; give the steps that "
                "came after those seen"
            )
        return replace(self, size=self.size + steps, index=self.index.append(new))

    @property
    def cutoff(self) -> Any:
        """The label of the last step; its number where there are no labels."""
        return self.size - 1 if self.index is None else self.index[-1]

    def ahead(self, steps: Int[np.ndarray, " H"]) -> Any:
        """Labels of steps ahead: an index that has a rhythm goes on in it, of others they are numbers."""
        index = self.index
        if isinstance(index, pd.PeriodIndex):
            return pd.PeriodIndex([index[-1] + int(step) for step in steps], freq=index.freq)
        if isinstance(index, pd.DatetimeIndex):
            rhythm = index.freq or (
                pd.tseries.frequencies.to_offset(pd.infer_freq(index)) if self.size > 2 else None
            )
            if rhythm is not None:
                return pd.DatetimeIndex([index[-1] + int(step) * rhythm for step in steps])
        elif index is not None and self.size > 1 and np.issubdtype(index.dtype, np.integer):
            return pd.Index(index[-1] + steps * (index[-1] - index[-2]))
        return pd.Index(self.size - 1 + steps)

    def check_controls(self, X: Any, labels: Any) -> None:
        """Refuse controls whose index says that they are of other steps.

        :param labels: of the steps that they are for, up to as many rows as X has.
        :raises ValueError: for other labels; an index that pandas gives on its own, from 0, says nothing.
        """
        index = getattr(X, "index", None)
        if self.index is None or not isinstance(index, pd.Index) or len(labels) == 0:
            return
        if isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1):
            return
        if labels.dtype.kind != self.index.dtype.kind:  # numbers, of an index without rhythm
            wrong, expected = index[0] <= self.index[-1], f"one after {self.index[-1]}"
        else:
            wrong = list(index[: len(labels)]) != list(labels)
            expected = f"the steps {labels[0]} to {labels[-1]} in their order"
        if wrong:
            raise ValueError(
                f"X: found an index that begins at {index[0]}, expected {expected}; give their controls"
            )

    def dressed(
        self, values: Float[np.ndarray, "H P"], steps: Int[np.ndarray, " H"], names: list[Any]
    ) -> Any:
        """Numbers of steps ahead as y came: an array, a Series or a DataFrame, of one dimension or two."""
        if self.kind == "array":
            return values[:, 0] if self.flat else values
        if self.kind == "series":
            return pd.Series(values[:, 0], self.ahead(steps), name=self.name)
        return pd.DataFrame(values, self.ahead(steps), names)


def as_table(
    name: str, values: Any, *, missing: bool = False, rows: int | None = None, columns: int | None = None
) -> Float[np.ndarray, "T P"]:
    """Numbers (T, P) of what is (T,) or (T, P).

    :param missing: whether NaN stands for an entry that is missing; all else is finite.
    :raises ValueError: for another shape, or numbers that are none.
    """
    try:
        table = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: found what are no numbers, expected numbers; encode or drop other columns"
        ) from None
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"{name}: found shape {table.shape}, expected steps, or steps by columns, none empty; reshape it"
        )
    if np.isinf(table).any() or (not missing and np.isnan(table).any()):
        raise ValueError(f"{name}: found NaN or infinity, expected finite numbers; impute or drop them")
    for axis, expected in (("rows", rows), ("columns", columns)):
        found = table.shape[axis == "columns"]
        if expected is not None and found != expected:
            raise ValueError(f"{name}: found {found} {axis}, expected {expected}; give as many")
    return table


def checked_horizon(fh: Any) -> Int[np.ndarray, " H"]:
    """The steps of a horizon, counted from 1, the next.

    :raises ValueError: for steps that do not rise, or lie not ahead.
    """
    steps = np.atleast_1d(np.asarray(fh))
    if (
        steps.ndim != 1
        or steps.size == 0
        or steps.dtype.kind not in "iu"
        or steps[0] < 1
        or (np.diff(steps) < 1).any()
    ):
        raise ValueError(
            f"fh: found {fh!r}, expected rising whole numbers from 1, the next step; for five steps np.arange(1, 6)"
        )
    return steps.astype(int)
