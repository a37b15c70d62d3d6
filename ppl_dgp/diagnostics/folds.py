"""Which rows each fold of a cross-validation trains on, and which it holds out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Int

from ppl_dgp.extras import needed_for
from ppl_dgp.fit.arguments import check_counts

Rows = Int[np.ndarray, " _"]
#: rows to train on and rows held out
Fold = tuple[Rows, Rows]


@runtime_checkable
class Splitter(Protocol):
    """One of scikit-learn's, such as ``KFold(10, shuffle=True)`` or ``StratifiedKFold(5)``."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterable[tuple[Any, Any]]:
        """Row numbers to train on and to hold out, of each fold."""


def folds_of(key: Array, folds: Any, x: np.ndarray, y: np.ndarray) -> list[Fold]:
    """The folds as row numbers in order.

    :param folds: K, drawn evenly by the key; a ``Splitter``; or pairs of row numbers.
    :raises ValueError: where a row is both trained on and held out, or held out more than once, or is none; for K
        outside 2 … N.
    """
    rows = len(y)
    if isinstance(folds, int | np.integer) and not isinstance(folds, bool):
        if not 2 <= folds <= rows:
            raise ValueError(
                f"folds: found {folds}, expected from 2 to the number of rows, {rows}; 5 or 10 are usual"
            )
        parts = [
            np.sort(part) for part in np.array_split(np.asarray(jax.random.permutation(key, rows)), folds)
        ]
        return [(np.setdiff1d(np.arange(rows), part), part) for part in parts]
    pairs = folds.split(x, y[:, 0] if y.shape[1] == 1 else y) if isinstance(folds, Splitter) else folds
    try:
        found = [(_rows(train, rows), _rows(test, rows)) for train, test in pairs]
    except TypeError as error:
        raise TypeError(
            f"folds: found {type(folds).__name__}, expected a number of folds, an object with split, or pairs of row "
            "numbers; 10 is usual"
        ) from error
    held: Rows = np.concatenate([test for _, test in found]) if found else np.zeros(0, int)
    if not len(held) or not all(len(train) and len(test) for train, test in found):
        raise ValueError("folds: found one without rows, expected some to train on and some held out in each")
    if any(len(np.intersect1d(train, test)) for train, test in found):
        raise ValueError(
            "folds: found a row that is trained on and held out in one fold; leave it in one of the two"
        )
    numbers, counts = np.unique(held, return_counts=True)
    if counts.max() > 1:
        raise ValueError(
            f"folds: found row {numbers[counts.argmax()]} held out {counts.max()} times, expected each once at most; "
            "cross-validate each repetition by itself"
        )
    return found


def forward_folds(
    num_rows: int, num_folds: int = 5, *, horizon: int | None = None, gap: int = 0, longest: int | None = None
) -> list[Fold]:
    """Folds of rows in the order of time: each trains on what came before the rows that it holds out, and on no other.

    :param num_rows: N, in order.
    :param num_folds: K, the last of which holds out the last rows.
    :param horizon: rows held out in each, N // (K + 1) if not given.
    :param gap: rows left out between those that are trained on and those held out.
    :param longest: of the rows to train on, at most the last so many; with it folds are of equal length, so that series
        train side by side too. If not given all that came before.
    :returns: row numbers to train on and to hold out, of each fold.
    :raises ValueError: for counts that leave the first fold nothing to train on.
    """
    check_counts(num_rows=(num_rows, 2), num_folds=(num_folds, 1), gap=(gap, 0))
    held = num_rows // (num_folds + 1) if horizon is None else horizon
    check_counts(horizon=(held, 1), longest=(1 if longest is None else longest, 1))
    first = num_rows - num_folds * held - gap
    if first < 1:
        raise ValueError(
            f"num_folds: found {num_folds} of {held} rows and a gap of {gap}, which leave {max(first, 0)} of "
            f"{num_rows} to train on first, expected at least 1; take fewer folds or a shorter horizon"
        )
    if num_folds == 1:  # which scikit-learn takes for a mistake
        train = np.arange(first)
        return [(train[-longest:] if longest else train, np.arange(num_rows - held, num_rows))]
    with needed_for("forward_folds"):
        from sklearn.model_selection import TimeSeriesSplit

    splitter = TimeSeriesSplit(num_folds, max_train_size=longest, test_size=held, gap=gap)
    return [(train, test) for train, test in splitter.split(np.zeros(num_rows))]


def _rows(numbers: Any, count: int) -> Rows:
    """Row numbers in order. Raises ValueError where they are none."""
    rows = np.asarray(numbers)
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        raise ValueError(
            f"folds: found {rows.dtype} of shape {rows.shape}, expected row numbers (n,); of a mask take "
            "numpy.flatnonzero"
        )
    if rows.size and not 0 <= rows.min() <= rows.max() < count:
        raise ValueError(f"folds: found rows {rows.min()} to {rows.max()}, expected from 0 to {count - 1}")
    found: Rows = np.unique(rows).astype(int)
    return found
