"""The CSV of a benchmark that may be stopped: rows are added as they come, and what is there is not redone."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path


def append(path: Path, fields: Sequence[str], row: Sequence[object]) -> None:
    """Add a row at once, so that nothing is lost when stopped; the first brings the header."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(fields)
        writer.writerow(row)


def done(path: Path, key: Sequence[str]) -> set[tuple[str, ...]]:
    """The values of the columns ``key``, as text, of the rows that are there."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {tuple(row[field] for field in key) for row in csv.DictReader(file)}
