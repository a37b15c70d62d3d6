"""The index arrays of splits that came with the data."""

from __future__ import annotations

import numpy as np

from ppl_dgp.messages import DataError

_Half = tuple[np.ndarray, ...]


def index_splits(
    train: np.ndarray | None, test: np.ndarray | None, num_rows: int, name: str
) -> tuple[_Half, _Half] | None:
    """Index arrays of each split; where only one half is given, the other is the rest of the rows."""
    if train is None and test is None:
        return None
    first = None if train is None else _indices(train, "train", num_rows, name)
    second = None if test is None else _indices(test, "test", num_rows, name)
    everything = np.arange(num_rows)
    if first is None:
        assert second is not None
        first = tuple(np.setdiff1d(everything, rows) for rows in second)
    if second is None:
        second = tuple(np.setdiff1d(everything, rows) for rows in first)
    if len(first) != len(second):
        raise DataError(
            f"{name} has {len(first)} splits in 'train' but {len(second)} in 'test': give as many in both"
        )
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        shared = np.intersect1d(a, b)
        if len(shared):
            raise DataError(
                f"row {shared[0]} of {name} is both in 'train' and in 'test' of split {number}: "
                "keep it in one of them"
            )
    return first, second


def _indices(array: np.ndarray, key: str, num_rows: int, name: str) -> _Half:
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise DataError(
            f"{key!r} of {name}: found {array.dtype} of shape {array.shape}, expected integer row numbers of "
            "shape (n,) or (splits, n); convert a mask with numpy.flatnonzero"
        )
    outside = array[(array < 0) | (array >= num_rows)]
    if outside.size:
        raise DataError(
            f"{key!r} of {name} holds row {outside.flat[0]}, out of range: "
            f"rows are counted from 0 to {num_rows - 1}"
        )
    return tuple(np.atleast_2d(array).astype(np.int64))
