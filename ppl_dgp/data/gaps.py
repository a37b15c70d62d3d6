"""Rows that are not whole: which are left out, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppl_dgp.data.table import MIN_ROWS
from ppl_dgp.messages import DataError


def held_complete(X: np.ndarray, y: np.ndarray, target_gaps: bool) -> np.ndarray:
    """All entries that have to be finite, side by side; targets that may be missing stand there as 0."""
    return np.hstack([X, np.where(np.isnan(y), 0.0, y) if target_gaps else y])


def complete(values: np.ndarray, columns: Sequence[str], name: str, drop_missing: bool) -> np.ndarray:
    """Which rows are finite, [N] bool; a DataError names the first that is not unless it may be dropped."""
    finite = np.isfinite(values)
    keep: np.ndarray = finite.all(axis=1)
    if keep.all() or drop_missing:
        return keep
    row = int(keep.argmin())
    column = int(finite[row].argmin())
    what = "missing (NaN)" if np.isnan(values[row, column]) else "infinite"
    raise DataError(
        f"row {row} (counted from 0), column {columns[column]!r} of {name} is {what}; "
        f"rows like it: {(~keep).sum()}: "
        "fill in the values, or leave those rows out with drop_missing=True (--drop-missing)"
    )


def dropped_rows(keep: np.ndarray) -> str:
    """The note on rows that were left out."""
    count = int((~keep).sum())
    return f"dropped {count} row{'s' if count > 1 else ''} with missing or infinite values"


def enough(count: int, subject: str, notes: Sequence[str]) -> None:
    """Raise DataError for fewer rows than any fit needs."""
    if count < MIN_ROWS:
        after = f" ({notes[-1]})" if notes else ""
        raise DataError(
            f"{subject}: found {count} row{'' if count == 1 else 's'}{after}, "
            f"expected at least {MIN_ROWS}; give more"
        )
