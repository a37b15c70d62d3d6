"""Text tables, ``.csv`` and ``.tsv``: the separator and the decimal sign that a file is written with."""

from __future__ import annotations

import csv
import re
from itertools import islice
from pathlib import Path

import pandas as pd

from ppl_dgp.messages import DataError

#: what may stand between columns, the first unless another cuts the lines better
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
#: lines that are looked at
LOOKED_AT = 30
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")


def read_text(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The columns of a text table, and notes on a separator that is no comma and a decimal sign that is no point.

    :raises DataError: where numbers stand in the place of names, or some have a comma and others a point.
    :raises ValueError: what pandas raises for a file that is no table, or no text.
    """
    separator = separator_of(path)
    frame, notes = _read(path, separator, "."), []
    if separator != ",":
        notes.append(f"columns are separated by {SEPARATORS[separator]}")
        if any(_has_decimal_commas(frame[column]) for column in frame.columns):
            frame = _read(path, separator, ",")
            _check_points(frame, path.name)
            notes.append("decimals follow a comma")
    names = [str(column) for column in frame.columns]
    counted = names == [str(number) for number in range(len(names))]
    if not counted and names and all(_is_number(name) for name in names):
        raise DataError(
            f"{path.name} has numbers where column names should be: put a line of names at its top"
        )
    return frame, tuple(notes)


def separator_of(path: Path) -> str:
    """The separator that cuts each of the first lines into as many columns, the most; a comma where none does.

    :raises UnicodeDecodeError: for what is no text.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = [line for line in islice(file, LOOKED_AT) if line.strip()]
    columns = {}
    for separator in SEPARATORS:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=separator, skipinitialspace=True)}
        except csv.Error:
            continue
        columns[separator] = widths.pop() if len(widths) == 1 else 1
    best = max(columns, key=columns.__getitem__, default=",")
    return best if columns.get(best, 1) > 1 else ","


def _read(path: Path, separator: str, decimal: str) -> pd.DataFrame:
    frame: pd.DataFrame = pd.read_csv(
        path,
        sep=separator,
        decimal=decimal,
        index_col=False,
        low_memory=False,
        # a tab is a space as well, and two of them an empty entry
        skipinitialspace=separator != "\t",
        encoding="utf-8-sig",
    )
    return frame


def _has_decimal_commas(column: pd.Series) -> bool:
    """Whether it is text of which every entry is a number, and one at least has a comma for its point."""
    if pd.api.types.is_numeric_dtype(column):
        return False
    entries = column.dropna().map(str)
    commas = entries.map(lambda text: _DECIMAL_COMMA.fullmatch(text) is not None)
    others = pd.to_numeric(entries[~commas], errors="coerce")
    return bool(commas.any() and others.notna().all())


def _check_points(frame: pd.DataFrame, name: str) -> None:
    """Raise DataError for a column of points beside one of decimal commas: 1.234 may be either number."""
    for column in frame.columns:
        entries = frame[column].dropna()
        if pd.api.types.is_numeric_dtype(entries) or not len(entries):
            continue
        parsed = pd.to_numeric(entries.map(str), errors="coerce").notna()
        if parsed.all():
            raise DataError(
                f"column {column!r} of {name} holds {str(entries.iloc[0])[:40]!r}, but others have a comma for their "
                "decimal point: write all numbers in one way, without separators of thousands"
            )


def _is_number(name: str) -> bool:
    try:
        float(
            re.sub(r"^(.*\..*|\d+)\.\d+$", r"\1", name)
        )  # read_csv adds .1 to the second of two equal names
    except ValueError:
        return False
    return True
