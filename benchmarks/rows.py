"""The CSV of a benchmark that may be stopped: rows are added as they come, and what is there is not redone."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def append(path: Path, fields: Sequence[str], row: Sequence[object]) -> None:
    """Add a row at once, so that nothing is lost when stopped; the first brings the header."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(fields)
        writer.writerow(row)


def append_shown(path: Path, fields: Sequence[str], row: Mapping[str, object]) -> None:
    """The same of a row by its columns, and print it."""
    append(path, fields, [row[field] for field in fields])
    print(*(f"{field}={row[field]}" for field in fields), flush=True)


def done(path: Path, key: Sequence[str]) -> set[tuple[str, ...]]:
    """The values of the columns ``key``, as text, of the rows that are there."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[field] for field in key) for row in csv.DictReader(file)}


def numbers(text: str) -> list[int]:
    """Those that ``0-4`` or ``0,3,5`` names."""
    spans = [list(map(int, part.split("-"))) for part in text.split(",")]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


def read(path: Path) -> list[dict[str, str]]:
    """The rows that are there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, fields: Sequence[str], found: Sequence[Sequence[object] | dict[str, str]]) -> None:
    """All rows anew, the old file in place until the new one is whole."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(fields)
        for row in found:
            writer.writerow([row[field] for field in fields] if isinstance(row, dict) else row)
    partial.replace(path)
