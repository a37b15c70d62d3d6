"""Tables in ``.parquet`` files, whole or block by block, by pyarrow, which the extra ``data`` brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ppl_dgp.data.arrays import MOST_EXPANDED, check_expansion
from ppl_dgp.data.files import chosen_columns, reading, select_targets
from ppl_dgp.data.sources import WINDOW, Block, BlockSource
from ppl_dgp.extras import needed_for
from ppl_dgp.messages import DataError, listing

with needed_for("reading .parquet", "data"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq


def read_parquet(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All columns but those that pandas calls an index; nothing else is believed of what pandas wrote about them."""
    schema = pq.read_schema(path)
    for field in schema:
        if pa.types.is_nested(field.type):  # how long its lists are only reading tells
            raise DataError(
                f"column {field.name!r} of {path.name} is not numeric (it holds {field.type}): take it out"
            )
    # a text that is repeated is stored once
    texts = [field.name for field in schema if _is_text(field.type)]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
        check_expansion(path, sum(map(_expanded_size, groups)))
        table = file.read()
    for number, name in enumerate(table.column_names):
        column = table.column(number)
        if name in texts and pa.types.is_dictionary(column.type):
            lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
            check_expansion(path, sum(pc.sum(each).as_py() or 0 for each in lengths))
            table = table.set_column(number, name, column.cast(column.type.value_type))
    try:
        about = table.schema.pandas_metadata
        indices = about["index_columns"] if about else []
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("what pandas wrote about its columns is damaged") from None
    index = [name for name in indices if isinstance(name, str)] if isinstance(indices, list) else []
    kept = [number for number, name in enumerate(table.column_names) if name not in index]
    frame: pd.DataFrame = table.select(kept).to_pandas(ignore_metadata=True)
    return frame, ()


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _expanded_size(group: pq.RowGroupMetaData) -> int:
    """Bytes of a group of rows as 64-bit numbers."""
    rows: int = group.num_rows
    return 8 * rows * int(group.num_columns)


class ParquetSource(BlockSource):
    """A ``.parquet`` file, or all of a directory in the order of their names; a row group is a block."""

    def __init__(
        self, path: Path, target: str | None, features: str | None = None, ignore: str | None = None
    ) -> None:
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"directory {str(path)!r} holds no .parquet file: give one that does")
        self.name = path.name
        self._groups: list[tuple[Path, int]] = []
        sizes: list[int] = []
        columns: list[str] = []
        for file in files:
            found = reading(file, pq.ParquetFile)
            if not columns:
                columns = list(found.schema_arrow.names)
                rest = chosen_columns(columns, None, ignore, self.name)
                targets = select_targets(rest, target, self.name)
                chosen = chosen_columns(rest, features, None, self.name, targets)
            _check_columns(file, found.schema_arrow, columns, chosen)
            for group in range(found.num_row_groups):
                if count := found.metadata.row_group(group).num_rows:
                    size = _expanded_size(found.metadata.row_group(group))
                    check_expansion(file, size, MOST_EXPANDED // WINDOW)
                    self._groups.append((file, group))
                    sizes.append(count)
            found.close()
        self.target_names = tuple(targets)
        self.feature_names = tuple(each for each in chosen if each not in targets)
        self.sizes = tuple(sizes)

    def read(self, numbers: Sequence[int] | None = None) -> Iterator[Block]:
        """See ``BlockSource``."""
        for number in range(len(self._groups)) if numbers is None else numbers:
            path, group = self._groups[number]
            names = [*self.feature_names, *self.target_names]

            def load(file: Path, group: int = group, names: list[str] = names) -> pa.Table:
                with pq.ParquetFile(file) as opened:
                    return opened.read_row_group(group, columns=names)

            table = reading(path, load)
            x, y = (_stacked(table, names) for names in (self.feature_names, self.target_names))
            yield number, x, y


def _check_columns(file: Path, schema: pa.Schema, columns: list[str], chosen: list[str]) -> None:
    """Raise DataError unless the file has these columns, and numbers in those that are chosen."""
    if doubled := [name for name in schema.names if schema.names.count(name) > 1]:
        raise DataError(f"{file.name} has two columns named {doubled[0]!r}: rename one")
    for name in columns:
        if name not in schema.names:
            raise DataError(
                f"{file.name} has no column {name!r}, which the first file has; it holds {listing(schema.names)}: "
                "give every file the same columns"
            )
        kind = schema.field(name).type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if name in chosen and not numbers:
            raise DataError(
                f"column {name!r} of {file.name}: found {kind}, expected numbers; encode it, or leave it out by ignore"
            )
    if extra := [name for name in schema.names if name not in columns]:
        raise DataError(
            f"{file.name} has the column {extra[0]!r}, which the first file has not: give every file the same columns"
        )


def _stacked(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Columns side by side, NaN where one has no value."""
    columns = [table.column(name).to_numpy() for name in names]
    return np.stack(columns, axis=1) if columns else np.empty((table.num_rows, 0))
