"""Times from row to row of a series whose rows have dates, and whether they are equally far apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.data.encoding import days_of
from ppl_dgp.messages import DataError

#: by what share of a step equal ones may differ, as dates are rounded
ROUNDING = 1e-6
_UNITS = (("day", 1.0), ("hour", 1.0 / 24.0), ("minute", 1.0 / 1440.0), ("second", 1.0 / 86400.0))


def waits(
    days: Float[np.ndarray, " T"],
    sequence: Int[np.ndarray, " T"],
    column: str,
    name: str,
    ends: Sequence[float] | None = None,
) -> Float[np.ndarray, " T"]:
    """The days since the row before.

    :param days: the date of each row; those of a sequence follow each other.
    :param sequence: the number of each row's sequence.
    :param ends: of each sequence the date of the row before its first; by default the first row is a usual time, the
        median, after it.
    :raises DataError: for a row without a date, or one that is not after the row before.
    """
    if np.isnan(days).any():
        row = int(np.isnan(days).argmax())
        raise DataError(
            f"row {row} (counted from 0) of {name} has no date in step column {column!r}: fill it in"
        )
    begins = _begins(sequence)
    times = np.diff(days, prepend=days[:1])
    inside = np.delete(times, begins)
    if ends is not None:
        times[begins] = days[begins] - np.asarray(ends)[sequence[begins]]
    else:
        times[begins] = np.median(inside) if len(inside) else 1.0
    if (wrong := np.flatnonzero(times <= 0.0)).size:
        row = int(wrong[0])
        if row in begins:
            raise DataError(
                f"row {row} (counted from 0) of {name} is not after {_date(days[row] - times[row])}, the last step "
                "that was trained on: give the steps that come after it"
            )
        raise DataError(
            f"row {row} (counted from 0) of {name} is not after the row above it in step column {column!r}: sort the "
            "rows of each sequence by it"
        )
    return times


def equal_steps(days: Float[np.ndarray, " T"], sequence: Int[np.ndarray, " T"]) -> str | None:
    """How far apart rows are, in words, where they are equally far apart, in days or in months; else None."""
    times = np.delete(np.diff(days, prepend=days[:1]), _begins(sequence))
    if not len(times):
        return None
    if np.ptp(times) <= ROUNDING * times.max():
        return span(float(np.median(times)))
    dates = np.datetime64("1970-01-01") + np.floor(days).astype("timedelta64[D]")
    months = dates.astype("datetime64[M]")
    apart = np.delete(np.diff(months.astype(int), prepend=0), _begins(sequence))
    last = (dates + np.timedelta64(1, "D")).astype("datetime64[M]") != months
    alike = len(np.unique(dates - months.astype("datetime64[D]"))) == 1 or bool(last.all())
    if alike and apart[0] > 0 and (apart == apart[0]).all() and np.ptp(days % 1.0) <= ROUNDING:
        return "1 month" if apart[0] == 1 else f"{apart[0]} months"
    return None


def check_follows(
    days: Float[np.ndarray, " T"],
    sequence: Int[np.ndarray, " T"],
    ends: Sequence[Sequence[float]],
    column: str,
    name: str,
) -> None:
    """Refuse dates that do not go on from the ``ends`` of sequences in the steps between these.

    :param ends: of each sequence its last two dates, or its only one.
    """
    for number in np.unique(sequence):
        ahead, before = days[sequence == number], ends[number]
        joined = np.concatenate([before, ahead])
        if equal_steps(joined, np.zeros(len(joined), int)) is None:
            raise DataError(
                f"{name} goes on at {_date(ahead[0])} after {_date(before[-1])}, not in the equally long steps that "
                f"the model was fitted to: give every step after {_date(before[-1])}, also those of which nothing is "
                f"known but the controls, or leave {column!r} out where the rows are these"
            )


def check_waits(times: Float[np.ndarray, " T"], column: str, name: str) -> None:
    """Refuse times between rows that are not positive."""
    if (wrong := np.flatnonzero(times <= 0.0)).size:
        raise DataError(
            f"step column {column!r} of {name} is {times[wrong[0]]:g} in row {wrong[0]} (counted from 0): give the "
            "time since the row before, a positive number, of the first row of a sequence a usual one"
        )


def left_out(column: pd.Series, sequence: Int[np.ndarray, " T"], name: str) -> str:
    """The note of a column that is no target, control or sequence; of dates it says how far apart they are."""
    try:
        days = days_of(column, name)
    except DataError:  # dates that may be read in two ways
        days = None
    said = "" if days is None else _told(days, sequence, str(column.name))
    return f"left out column {column.name!r}, which is no target, control or sequence{said}"


def _told(days: Float[np.ndarray, " T"], sequence: Int[np.ndarray, " T"], column: str) -> str:
    """What dates that are left out say of the steps; nothing of those that do not go up along the rows."""
    times = np.delete(np.diff(days, prepend=days[:1]), _begins(sequence))
    if not len(times) or not (times > 0.0).all():  # NaN too
        return ""
    equal = equal_steps(days, sequence)
    if equal is not None:
        return f": its dates are {equal} apart, and steps count as equally long"
    return (
        f": its dates are {span(times.min())} to {span(times.max())} apart, but steps count as equally long; "
        f"--step-column {column} takes them as they are"
    )


def span(days: float) -> str:
    """A time in words, in the largest unit of which it is at least one."""
    unit, size = next((each for each in _UNITS if days >= each[1] * (1.0 - ROUNDING)), _UNITS[-1])
    number = float(f"{days / size:.4g}")
    return f"{number:g} {unit}{'s' * (number != 1.0)}"


def _date(days: float) -> str:
    moment = np.datetime64("1970-01-01") + np.timedelta64(round(86400 * days), "s")
    return str(moment).removesuffix("T00:00:00")


def _begins(sequence: Int[np.ndarray, " T"]) -> Int[np.ndarray, " S"]:
    return np.flatnonzero(np.diff(sequence, prepend=-1))
