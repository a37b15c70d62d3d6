"""What a check found: a row for each limit or identity, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

#: standard errors that an average of draws may be off by; keys are fixed, so that a row holds always or never
STANDARD_ERRORS = 5.0


class CheckFailed(AssertionError):
    """A part does not pass a limit that it has to pass."""


@dataclass(frozen=True)
class CheckRow:
    """One limit or identity.

    :param check: what is compared, in words.
    :param value: what the part gives, where it is worst.
    :param expected: what it should give there, a number behind = or ≤; None where the check was not made.
    :param tolerance: how far off it may be.
    :param holds: whether it is within it; None where the check was not made.
    :param note: why it was not made, or how the number came about.
    """

    check: str
    value: float | None
    expected: float | None
    tolerance: float | None
    holds: bool | None
    relation: str = "="
    note: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The rows of all checks of one part; printed, a table.

    :param part: what was checked.
    """

    part: str
    rows: tuple[CheckRow, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether no row fails; rows that were not made count for nothing."""
        return all(row.holds is not False for row in self.rows)

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the rows that fail."""
        return tuple(row.check for row in self.rows if row.holds is False)

    @property
    def not_made(self) -> tuple[str, ...]:
        """The names of the rows that could not be checked; the table says why."""
        return tuple(row.check for row in self.rows if row.holds is None)

    def __getitem__(self, check: str) -> CheckRow:
        """The row of a check.

        :raises KeyError: if there is no such row.
        """
        for row in self.rows:
            if row.check == check:
                return row
        raise KeyError(f"check: found {check!r}, expected one of {[row.check for row in self.rows]}")

    def __str__(self) -> str:
        header = ("check", "value", "expected", "tolerance", "holds")
        cells = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        made = sum(row.holds is not None for row in self.rows)
        held = sum(row.holds is True for row in self.rows)
        skipped = f", {len(self.rows) - made} not made" if made < len(self.rows) else ""
        return "\n".join([f"{self.part}: {held} of {made} checks hold{skipped}", *lines])

    def raise_for_failure(self) -> None:
        """Nothing, if all rows hold.

        :raises CheckFailed: with the table, if one does not.
        """
        if not self.passed:
            raise CheckFailed(str(self))


def _cells(row: CheckRow) -> tuple[str, str, str, str, str]:
    number = lambda value: "" if value is None else f"{value:.6g}"
    if row.holds is None:
        return row.check, "", "", "", f"not made: {row.note}"
    expected = "" if row.expected is None else f"{row.relation} {number(row.expected)}"
    answer = "yes" if row.holds else "NO"
    note = f" ({row.note})" if row.note else ""
    return row.check, number(row.value), expected, number(row.tolerance), answer + note


def equal_row(
    check: str, value: Any, expected: Any, absolute: Any = 0.0, relative: float = 0.0, note: str = ""
) -> CheckRow:
    """A row for arrays that are equal within ``absolute + relative · |expected|``; it shows the worst entry."""
    shapes = np.shape(value), np.shape(expected)
    try:
        value, expected, absolute = np.broadcast_arrays(
            np.asarray(value, float), np.asarray(expected, float), np.asarray(absolute, float)
        )
    except ValueError:
        return failed_row(check, f"found shape {shapes[0]}, expected {shapes[1]}")
    tolerance = absolute + relative * np.abs(expected)
    if value.size == 0:
        return skipped_row(check, "there is nothing to compare")
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.abs(value - expected) / np.maximum(tolerance, np.finfo(float).tiny)
    excess = np.where(value == expected, 0.0, np.where(np.isnan(excess), np.inf, excess))
    worst = np.unravel_index(int(np.argmax(excess)), value.shape)
    return CheckRow(
        check,
        float(value[worst]),
        float(expected[worst]),
        float(tolerance[worst]),
        bool(excess[worst] <= 1.0),
        note=note,
    )


def at_most_row(check: str, value: Any, bound: Any, tolerance: Any = 0.0, note: str = "") -> CheckRow:
    """A row for values that lie at or below a bound."""
    value, bound, tolerance = np.broadcast_arrays(
        np.asarray(value, float), np.asarray(bound, float), np.asarray(tolerance, float)
    )
    excess = value - bound - tolerance
    excess = np.where(np.isnan(excess), np.inf, excess)
    worst = np.unravel_index(int(np.argmax(excess)), value.shape)
    holds = bool(excess[worst] <= 0.0)
    return CheckRow(
        check, float(value[worst]), float(bound[worst]), float(tolerance[worst]), holds, "≤", note
    )


def finite_row(check: str, tree: Any, note: str = "") -> CheckRow:
    """A row for the number of entries that are not finite, which is to be 0."""
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]
    number = sum(int((~np.isfinite(leaf)).sum()) for leaf in leaves)
    return CheckRow(check, float(number), 0.0, 0.0, number == 0, note=note)


def failed_row(check: str, why: str) -> CheckRow:
    """A row for a check in which the part raised an error, or gave something of another kind."""
    return CheckRow(check, None, None, None, False, note=why)


def skipped_row(check: str, why: str) -> CheckRow:
    """A row for a check that cannot be made."""
    return CheckRow(check, None, None, None, None, note=why)


def collected(
    part: str, checks: Sequence[tuple[str, Callable[[], CheckRow]]], only: Collection[str] | None = None
) -> CheckReport:
    """The report of checks by name, each a function that returns a row.

    What a part raises is a row that fails: the checks after it are made all the same.

    :param only: the names of those to make; all if not given. The others stand in the table as not made.
    :raises ValueError: if there is no check of such a name.
    """
    unknown = [name for name in only or () if name not in dict(checks)]
    if unknown:
        raise ValueError(f"only: found {unknown}, expected names of {list(dict(checks))}")
    rows: list[CheckRow] = []
    for name, check in checks:
        if only is not None and name not in only:
            rows.append(skipped_row(name, "not asked for"))
            continue
        try:
            rows.append(check())
        except Exception as error:
            summary = " ".join(str(error).split())
            rows.append(failed_row(name, f"{type(error).__name__}: {summary[:160]}"))
    return CheckReport(part, tuple(rows))
