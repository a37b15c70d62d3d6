"""A series cut into steps to train on and the steps after them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from ppl_dgp.data.series import Series
from ppl_dgp.data.table import MIN_ROWS, split
from ppl_dgp.messages import DataError


def split_series(
    series: Series, number: int | None = None, test_fraction: float | int = 0.1
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Steps to train on and the steps after them, to forecast: (train, test) rows.

    A series that came with time indices gives its own split ``number`` (default 0). Of any other the last
    round(``test_fraction`` T) steps of each sequence, at least one, are for the test. ``test_fraction`` 0 leaves none.

    :raises DataError: for indices of which train are not the first steps and test those that follow; otherwise as
        ``split``.

    """
    table = series.table
    if table.train is not None and table.test is not None:
        train, test = split(table, number, test_fraction)
        both = np.concatenate([train, table.test[number or 0]])
        if len(train) < MIN_ROWS or not np.array_equal(both, np.arange(len(both))):
            raise DataError(
                f"'train' of {table.name} must be its first steps in order, at least {MIN_ROWS}, and 'test' those that "
                "follow: a forecast begins where training ends"
            )
        return train, test
    if number:
        raise DataError(f"split is {number}, but a series is split at one place alone: leave --split out")
    if not 0.0 <= test_fraction < 1.0:
        raise DataError(
            f"test fraction: found {test_fraction}, expected a number in [0, 1); 0 trains on every step"
        )
    lengths = np.bincount(series.sequence)
    held_out = np.maximum(1, np.round(test_fraction * lengths)).astype(int) * (test_fraction > 0)
    for label, length, train_length in zip(series.labels, lengths, lengths - held_out, strict=True):
        if train_length < MIN_ROWS:
            raise DataError(
                f"sequence {label!r} of {table.name}: found {length} steps, which leaves {train_length} to train on, "
                f"expected at least {MIN_ROWS}; lower the test fraction (0 for none) or give more steps"
            )
    tested = steps(series.sequence) >= (lengths - held_out)[series.sequence]
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def steps(sequence: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """The number of each row within its sequence, from 0, where the rows of each follow each other."""
    begins = np.flatnonzero(np.diff(sequence, prepend=-1))
    return np.arange(len(sequence)) - np.repeat(begins, np.diff(begins, append=len(sequence)))
