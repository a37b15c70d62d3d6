"""Sources of blocks of rows: ``.parquet`` files, ``.npy`` files that stay on disk, and functions that make batches.

A source knows its blocks by number, so that they can be read in any order, except for batches that come one after
another. Nothing is kept of a block that was read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppl_dgp.data.arrays import mapped
from ppl_dgp.data.files import reading, select_targets
from ppl_dgp.messages import DataError

#: number of the block, inputs (n, D) and targets (n, P), or (n,) for a single column
Block = tuple[int, np.ndarray, np.ndarray]


WINDOW = 8  # blocks in memory at a time


class BlockSource:
    """Blocks of rows with D inputs and P targets.

    :ivar name: for messages.
    :ivar feature_names, target_names: D and P names; both empty where nothing names the columns.
    :ivar sizes: rows of each block, None where only reading tells.
    :ivar in_order: whether blocks can only be read one after another.
    """

    name: str
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    in_order = False

    def read(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """The blocks of these numbers, all of them without; ascending ones where blocks come in order."""
        raise NotImplementedError


class ArraySource(BlockSource):
    """Inputs and targets in two arrays, or in one whose ``target`` columns are known by number or field name."""

    def __init__(self, x: np.ndarray, y: np.ndarray | None, target: Any, block_rows: int, name: str) -> None:
        self.name, self._block_rows = name, block_rows
        self._x, self._y = x, y
        if y is None:
            self._split(x, target)
        elif target is not None:
            raise DataError(f"target is {target!r} beside an array of targets: leave it out")
        elif len(x) != len(y):
            raise DataError(
                f"x of {name} has {len(x)} rows and y has {len(y)}: pass the targets of the same rows"
            )
        self.sizes = tuple(min(block_rows, len(x) - begin) for begin in range(0, len(x), block_rows))

    def _split(self, array: np.ndarray, target: Any) -> None:
        fields = array.dtype.names
        if fields is None and array.ndim != 2:
            raise DataError(
                f"{self.name}: found shape {array.shape}, expected rows and columns; give x and y, or reshape"
            )
        columns = list(fields or map(str, range(array.shape[1])))
        asked = (
            target if isinstance(target, str) or target is None else ",".join(map(str, np.atleast_1d(target)))
        )
        targets = select_targets(columns, asked, self.name)
        self.target_names = tuple(targets)
        self.feature_names = tuple(each for each in columns if each not in targets)

    def read(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """See ``BlockSource``."""
        assert self.sizes is not None
        for number in range(len(self.sizes)) if numbers is None else numbers:
            rows = slice(number * self._block_rows, (number + 1) * self._block_rows)
            x = self._x[rows]
            if self._y is not None:
                yield number, np.array(x), np.array(self._y[rows])
            elif x.dtype.names is not None:
                fields = self.feature_names, self.target_names
                one, other = (np.stack([x[name] for name in names], axis=1) for names in fields)
                yield number, one, other
            else:
                yield (
                    number,
                    x[:, list(map(int, self.feature_names))],
                    x[:, list(map(int, self.target_names))],
                )


class BatchSource(BlockSource):
    """Batches (x, y) in the order in which they come, the same at every pass; each is a block."""

    in_order = True

    def __init__(self, batches: Callable[[], Iterable[Any]]) -> None:
        self.name, self._batches = "the batches", batches

    def read(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """See ``BlockSource``."""
        wanted = None if numbers is None else iter(numbers)
        number = None if wanted is None else next(wanted, None)
        if wanted is not None and number is None:
            return
        for place, batch in enumerate(self._batches()):
            if wanted is not None and place != number:
                continue
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise DataError(
                    f"batch {place}: found a {type(batch).__name__}, expected a pair (x, y); yield pairs"
                )
            yield place, np.asarray(batch[0]), np.asarray(batch[1])
            if wanted is not None:
                number = next(wanted, None)
                if number is None:
                    return
        if wanted is not None:
            raise DataError(
                f"the batches ended before number {number}: a second pass must give what the first gave"
            )


def open_source(
    data: Any,
    target: str | int | Sequence[int] | None,
    block_rows: int,
    features: str | None = None,
    ignore: str | None = None,
) -> BlockSource:
    """The source that ``data`` is, as ``ppl_dgp.data.open_rows`` says."""
    path = Path(data) if isinstance(data, (str, os.PathLike)) else None
    if path is not None and (path.is_dir() or path.suffix.lower() == ".parquet"):
        if target is not None and not isinstance(target, str):
            raise DataError(f"target is {target!r}, but columns of a .parquet have names: give one of them")
        from ppl_dgp.data.parquet import ParquetSource  # an extra brings pyarrow

        return ParquetSource(path, target, features, ignore)
    for option, names in (("features", features), ("ignore", ignore)):
        if names is not None:
            raise DataError(
                f"{option}: found {names!r}, but only of a .parquet columns are read one by one; leave them out of the "
                "arrays"
            )
    if path is not None:
        if path.suffix.lower() == ".npy":
            return ArraySource(_mapped(path), None, target, block_rows, path.name)
        raise DataError(
            f"{str(path)!r} cannot be read block by block: give a .parquet file, a directory of them, or a .npy"
        )
    if isinstance(data, tuple) and len(data) == 2:
        name = data[0] if isinstance(data[0], (str, os.PathLike)) else "x"
        x, y = (_mapped(Path(e)) if isinstance(e, (str, os.PathLike)) else np.asarray(e) for e in data)
        return ArraySource(x, y, target, block_rows, Path(name).name)
    if isinstance(data, np.ndarray):
        return ArraySource(data, None, target, block_rows, "the array")
    if target is not None:
        raise DataError(f"target is {target!r}, but batches are pairs (x, y) already: leave it out")
    if isinstance(data, Iterator):
        raise DataError(
            "the batches are an iterator, which can be read but once: pass a function that makes it anew for each pass"
        )
    if callable(data):
        return BatchSource(data)
    if isinstance(data, Iterable):
        return BatchSource(lambda: data)
    raise DataError(
        f"a {type(data).__name__} is no source of rows: give a .parquet or .npy, a directory, arrays (x, y), or a "
        "function that makes batches"
    )


def _mapped(path: Path) -> np.ndarray:
    """A ``.npy`` that stays on disk."""
    array = reading(path, mapped)
    if array.ndim == 0:
        raise DataError(f"{path.name} holds a single number: give rows and columns")
    return array
