"""Rows that need not fit in memory: counted and standardised in one pass, then drawn in shuffled epochs.

An epoch takes the blocks of a source in random order, a window of them at a time, and the rows of each window in
random order. What is drawn is a function of a seed and of how many rows came before, so that a fit can go on where it
stopped, and of the part of the rows that is asked for, so that several processes share them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from ppl_dgp.data.column_statistics import ColumnStatistics
from ppl_dgp.data.sources import WINDOW, Block, BlockSource, open_source
from ppl_dgp.data.table import MIN_ROWS, Standardiser
from ppl_dgp.messages import DataError

BLOCK_ROWS = 65536
SAMPLE_ROWS = 20_000

#: x (n, D), y (n, P), and the numbers of these rows in the source (n,)
Batch = tuple[Num[np.ndarray, "_ D"], Num[np.ndarray, "_ P"], Int[np.ndarray, " _"]]


def open_rows(
    data: Any,
    target: str | int | Sequence[int] | None = None,
    *,
    block_rows: int = BLOCK_ROWS,
    features: str | None = None,
    ignore: str | None = None,
) -> RowSource:
    """Rows of x and y that are read block by block whenever they are needed.

    :param data: a ``.parquet`` file or a directory of them, whose row groups are the blocks; a ``.npy`` that stays on
        disk, of numbers (N, K) or of a structured type; a pair (x, y) of such files or of arrays (N, D) and (N, P);
        or a function that returns an iterable of batches (x, y), the same at every call, or a list of them.
    :param target: the target columns: names with commas between for ``.parquet`` and structured ``.npy``, numbers from
        0 for other arrays; the last column unless told. Nothing for pairs.
    :param block_rows: rows of a block where the source has no blocks of its own.
    :param features: the columns of a ``.parquet`` that are features, names with commas between; all others than the
        targets unless told. Others are not read.
    :param ignore: its columns that are left out, likewise; the last of the others is the target unless told.
    :raises DataError: for a source that cannot be read or has no such columns. What is wrong with the values is found
        by the first pass over them.
    """
    if block_rows < 1:
        raise DataError(
            f"block_rows: found {block_rows}, expected a whole number of at least 1; change it or leave it out"
        )
    return RowSource(open_source(data, target, block_rows, features, ignore))


@dataclass(frozen=True)
class _Piece:
    """Rows ``begin`` to ``end`` of a block, the first of which is row ``first`` of the source."""

    block: int
    begin: int
    end: int
    first: int

    @property
    def count(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, eq=False)
class RowSource:
    """N rows of inputs and targets in blocks, in standardised units if there are any; make them by ``open_rows``."""

    source: BlockSource
    x_units: Standardiser | None = None
    y_units: Standardiser | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each block; batches are counted by a pass over them."""
        if self.source.sizes is not None:
            return self.source.sizes
        sizes = tuple(len(x) for _, x, _ in self._blocks())
        if not sizes:
            raise DataError(f"{self.source.name} hold no rows: give at least {MIN_ROWS}")
        return sizes

    @cached_property
    def count(self) -> int:
        """N. Raises DataError for fewer than two."""
        count = sum(self.sizes)
        if count < MIN_ROWS:
            raise DataError(
                f"{self.source.name}: found {count} rows, expected at least {MIN_ROWS}; give more"
            )
        return count

    def standardised(
        self, x: bool = True, y: bool = True, moments: ColumnStatistics | None = None
    ) -> RowSource:
        """The same rows with inputs, targets or both of zero mean and unit scale, as a pass over the source finds them.

        :param moments: those of an earlier pass.
        :raises DataError: for values that are not finite, and for targets that are constant.
        """
        statistics = self.moments() if moments is None else moments
        units = statistics.units()
        columns = self._width
        for p in range(columns, len(units.mean)):
            if y and statistics.low[p] == statistics.high[p]:
                names = self.source.target_names or tuple(map(str, range(len(units.mean) - columns)))
                raise DataError(
                    f"target {names[p - columns]!r} of {self.source.name} is constant: choose another"
                )
        halves = [
            Standardiser(units.mean[part], units.scale[part])
            for part in (slice(columns), slice(columns, None))
        ]
        rows = replace(
            self, x_units=halves[0] if x else self.x_units, y_units=halves[1] if y else self.y_units
        )
        rows.__dict__["sizes"] = self.sizes  # counted already
        return rows

    def moments(self, part: int = 0, parts: int = 1) -> ColumnStatistics:
        """Statistics of the columns of x and then y, in the units of the source, over part ``part`` of ``parts``."""
        statistics: ColumnStatistics | None = None
        pieces = {piece.block: piece for piece in self._pieces(part, parts)}
        for number, x, y in self._blocks(list(pieces)):
            piece = pieces[number]
            values = np.concatenate([x, y], axis=1, dtype=np.float64)[piece.begin : piece.end]
            block_statistics = ColumnStatistics.of(values)
            statistics = block_statistics if statistics is None else statistics.merged(block_statistics)
        assert statistics is not None
        return statistics

    def sample(self, most: int = SAMPLE_ROWS, dtype: Any = np.float64) -> Batch:
        """At most ``most`` rows, of blocks and within them at random, always the same, in the order of the source."""
        random = np.random.default_rng(0)
        pieces, chosen, rows = self._pieces(), [], 0
        for place in range(len(pieces)) if self.source.in_order else random.permutation(len(pieces)):
            if rows < most:
                chosen.append(pieces[place])
                rows += pieces[place].count
        chosen.sort(key=lambda piece: piece.first)
        drawn = self._joined(self._read(chosen, dtype))
        selection = np.sort(random.permutation(rows)[:most])
        return drawn[0][selection], drawn[1][selection], drawn[2][selection]

    def batches(
        self,
        seed: Sequence[int],
        size: int,
        *,
        dtype: Any = np.float64,
        begin: int = 0,
        window: int = WINDOW,
        part: int = 0,
        parts: int = 1,
    ) -> Iterator[Batch]:
        """Without end, ``size`` rows at a time of shuffled epochs one after another; each epoch has every row once.

        :param seed: whole numbers of which, with the epoch and the part, the order is a function.
        :param dtype: of x, and of y unless its columns are whole numbers that are not standardised.
        :param begin: how many rows were drawn before.
        :param window: blocks that are in memory at a time; the rows among them are shuffled. Batches, which come in
            their own order, are shuffled within a window alone.
        :param part, parts: draw from this share of the rows, one of so many that differ by one row at most.

        """
        pieces = self._pieces(part, parts)
        epoch, skip = divmod(begin, sum(piece.count for piece in pieces))
        pending: list[Batch] = []
        rows = 0
        for number in itertools.count(epoch):
            seeds = [*map(int, seed), part, number]
            for drawn in self._epoch(pieces, seeds, window, skip if number == epoch else 0, dtype):
                pending.append(drawn)
                rows += len(drawn[0])
                if rows < size:
                    continue
                joined, at = self._joined(pending), 0
                while rows - at >= size:
                    yield tuple(array[at : at + size] for array in joined)  # type: ignore[misc]
                    at += size
                pending, rows = [tuple(array[at:] for array in joined)], rows - at  # type: ignore[list-item]

    def fingerprint(self) -> str:
        """SHA-256 of the sizes, the units and the rows of the sample."""
        digest = hashlib.sha256(
            repr((self.sizes, self.source.feature_names, self.source.target_names)).encode()
        )
        for units in (self.x_units, self.y_units):
            digest.update(repr(None if units is None else units.to_dict()).encode())
        for array in self.sample():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _epoch(
        self, pieces: list[_Piece], seeds: list[int], window: int, skip: int, dtype: Any
    ) -> Iterator[Batch]:
        """The windows of an epoch, without its first ``skip`` rows."""
        order = np.arange(len(pieces))
        if not self.source.in_order:
            order = np.random.default_rng(seeds).permutation(order)
        # ascending in a window: in the window that holds all blocks no order of theirs is left
        windows = [
            [pieces[i] for i in np.sort(order[at : at + window])] for at in range(0, len(order), window)
        ]
        first = 0
        while skip >= (rows := sum(piece.count for piece in windows[first])):
            skip, first = skip - rows, first + 1
        stream = self._read([piece for blocks in windows[first:] for piece in blocks], dtype)
        for number, blocks in enumerate(windows[first:], start=first + 1):
            drawn = self._joined(list(itertools.islice(stream, len(blocks))))
            shuffled = np.random.default_rng([*seeds, number]).permutation(len(drawn[0]))[skip:]
            yield tuple(array[shuffled] for array in drawn)  # type: ignore[misc]
            skip = 0

    def _read(self, pieces: Sequence[_Piece], dtype: Any) -> Iterator[Batch]:
        """The rows of pieces, one piece after another, in the units of these rows."""
        for piece, (_, x, y) in zip(pieces, self._blocks([piece.block for piece in pieces]), strict=True):
            rows = slice(piece.begin, piece.end)
            numbers = np.arange(piece.first, piece.first + piece.count, dtype=np.int64)
            x = x[rows] if self.x_units is None else self.x_units.transform(x[rows].astype(np.float64))
            is_label = self.y_units is None and y.dtype.kind in "iub"
            y = y[rows] if self.y_units is None else self.y_units.transform(y[rows].astype(np.float64))
            yield x.astype(dtype, copy=False), y if is_label else y.astype(dtype, copy=False), numbers

    def _blocks(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """Blocks of the source, each checked."""
        sizes = None if self.source.sizes is None and numbers is None else self.sizes
        widths: tuple[int, int] | None = None
        for number, x, y in self.source.read(numbers):
            x, y = (array[:, None] if array.ndim == 1 else array for array in (x, y))
            where = f"block {number} of {self.source.name}"
            for name, array in (("x", x), ("y", y)):
                if array.dtype.kind not in "fiub" or array.ndim != 2:
                    raise DataError(
                        f"{name} of {where}: found {array.dtype} of shape {array.shape}, expected numbers of shape "
                        f"(rows, columns); encode or reshape it"
                    )
                if not np.isfinite(array).all():
                    row, column = np.argwhere(~np.isfinite(array))[0]
                    names = self.source.feature_names if name == "x" else self.source.target_names
                    label = f"column {names[column]!r}" if names else f"column {column} of {name}"
                    raise DataError(
                        f"row {row} (counted from 0), {label} of {where}: found {array[row, column]}, expected finite "
                        "numbers; fill them in or leave such rows out"
                    )
            if len(x) != len(y) or len(x) == 0 or (sizes is not None and len(x) != sizes[number]):
                before = (
                    ", expected as many of both" if sizes is None else f", expected {sizes[number]} of both"
                )
                raise DataError(
                    f"{where}: found {len(x)} rows of x and {len(y)} of y{before}; give at least one, "
                    "the same at every pass"
                )
            if widths is not None and widths != (x.shape[1], y.shape[1]):
                raise DataError(
                    f"{where} has {x.shape[1]} inputs and {y.shape[1]} targets, the blocks before it {widths[0]} and "
                    f"{widths[1]}: give every block the same columns"
                )
            widths = x.shape[1], y.shape[1]
            yield number, x, y

    def _pieces(self, part: int = 0, parts: int = 1) -> list[_Piece]:
        """The blocks, or what of them is in rows ⌊part N / parts⌋ to ⌊(part + 1) N / parts⌋."""
        if self.count < parts:
            raise DataError(f"{self.source.name} has {self.count} rows for {parts} parts: give more rows")
        begin, end = (self.count * at // parts for at in (part, part + 1))
        pieces, first = [], 0
        for block, size in enumerate(self.sizes):
            low, high = max(begin - first, 0), min(end - first, size)
            if low < high:
                pieces.append(_Piece(block, low, high, first + low))
            first += size
        return pieces

    @cached_property
    def _width(self) -> int:
        """D."""
        width: int = next(self._blocks([0]))[1].shape[1]
        return width

    @staticmethod
    def _joined(drawn: Iterator[Batch] | list[Batch]) -> Batch:
        x, y, numbers = zip(*drawn, strict=True)
        return np.concatenate(x), np.concatenate(y), np.concatenate(numbers)
