"""Features that are words or dates, as numbers: a column of 0 and 1 for each category, days for dates.

What was found of one table is kept, so that the rows of others are told in the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ppl_dgp.messages import DataError, listing

#: the unit of dates
DATE_UNIT = "days since 1970-01-01 (UTC)"
#: what to do about a column that cannot be used
LEAVE_OUT = "leave it out with --ignore {}"
#: categories that a column may have
MOST_CATEGORIES = 50
_DAY = np.timedelta64(1, "D")
#: dates that are not ISO's; two of one line are the same text by the custom of two countries
_FORMATS = (
    ("%d.%m.%Y", None),
    ("%d.%m.%Y %H:%M", None),
    ("%d.%m.%Y %H:%M:%S", None),
    ("%Y/%m/%d", None),
    ("%Y/%m/%d %H:%M", None),
    ("%Y/%m/%d %H:%M:%S", None),
    ("%d/%m/%Y", "%m/%d/%Y"),
    ("%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"),
    ("%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S"),
)


@dataclass(frozen=True)
class Encoding:
    """Which features of a table are words, with their categories in the order of their columns, and which are dates."""

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: tuple[str, ...] = ()

    @classmethod
    def of(cls, frame: pd.DataFrame, name: str, remedy: str = LEAVE_OUT) -> Encoding:
        """That of the columns of ``frame``.

        :param remedy: for a column that cannot be used, which stands in it as {}.
        :raises DataError: for words that are no categories, or dates that may be read in two ways.
        """
        categories, dates = {}, []
        for column in frame.columns:
            series = frame[column]
            if days_of(series, name, remedy) is not None:
                dates.append(str(column))
            elif _is_words(series):
                categories[str(column)] = _categories(series, name, remedy)
        return cls(categories, tuple(dates))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was made of which column, a sentence each."""
        words = (
            f"{column} has {len(known)} categories, a column of 0 and 1 for each: {listing(list(known), 10)}"
            for column, known in self.categories.items()
        )
        return (*words, *(f"{column} is a date, in {DATE_UNIT}" for column in self.dates))

    def columns(self, name: str) -> list[str]:
        """The columns that stand for the column ``name``."""
        known = self.categories.get(name)
        return [name] if known is None else [f"{name}={category}" for category in known]

    def sources(self, features: Sequence[str]) -> list[str]:
        """The columns of a table that these features are made of, each once."""
        made = {made: name for name in self.categories for made in self.columns(name)}
        return list(dict.fromkeys(made.get(feature, feature) for feature in features))

    def apply(self, frame: pd.DataFrame, name: str) -> pd.DataFrame:
        """The columns of ``frame`` with words and dates as numbers, missing entries NaN, others as they are.

        :raises DataError: for a category that is not among the known ones, or what is no date.
        """
        columns: dict[str, Any] = {}
        for column in map(str, frame.columns):
            series = frame[column]
            found: list[Any]
            if column in self.categories:
                found = _indicators(series, self.categories[column], name)
            elif column in self.dates:
                days = _days(series, name)
                if days is None:
                    dates = pd.to_datetime(series.map(str), format="ISO8601", errors="coerce", utc=True)
                    row = int((series.notna() & dates.isna()).to_numpy().argmax())
                    raise DataError(
                        f"column {column!r} of {name} is not a date (row {row} holds "
                        f"{str(series.iloc[row])[:40]!r}): the model was fitted on dates, write them as 2024-12-31"
                    )
                found = [days]
            else:
                found = [series]
            for made, values in zip(self.columns(column), found, strict=True):
                if made in columns or (made != column and made in frame.columns):
                    raise DataError(
                        f"{name} has a column {made!r}, as the category of {column!r} is called: rename it"
                    )
                columns[made] = values
        return pd.DataFrame(columns, index=frame.index)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "categories": {name: list(known) for name, known in self.categories.items()},
            "dates": list(self.dates),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Encoding:
        """The inverse of ``to_json``. Raises KeyError, TypeError or ValueError if ``values`` is not of it."""
        words, dates = values["categories"], values["dates"]
        if not isinstance(words, dict) or not all(
            isinstance(known, list) for known in (dates, *words.values())
        ):
            raise TypeError
        texts = [*words, *dates, *(category for known in words.values() for category in known)]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
        "".join(texts).encode()  # a half of a surrogate pair can be neither shown nor written
        return cls({name: tuple(known) for name, known in words.items()}, tuple(dates))


def _is_date(series: pd.Series) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(series))


def _is_words(series: pd.Series) -> bool:
    """Whether it is text, none of whose entries is a number: beside numbers a word is a slip."""
    if isinstance(series.dtype, pd.CategoricalDtype):  # parquet's way of keeping any text short, numbers too
        series = series.astype(object)
    if not (pd.api.types.is_object_dtype(series) or pd.api.types.is_string_dtype(series)):
        return False
    there = series.dropna()
    if (
        not len(there)
        or not there.map(lambda value: isinstance(value, str) or hasattr(value, "isoformat")).all()
    ):
        return False
    try:
        return bool(pd.to_numeric(there.map(str), errors="coerce").isna().all())
    except OverflowError:  # whole numbers of hundreds of digits, which are refused as numbers
        return False


def _categories(series: pd.Series, name: str, remedy: str) -> tuple[str, ...]:
    known = sorted(set(series.dropna().map(str)))
    if len(known) > min(MOST_CATEGORIES, max(2, len(series) // 2)):
        row = int(series.notna().to_numpy().argmax())
        raise DataError(
            f"column {series.name!r} of {name} is not numeric (row {row} holds {str(series.iloc[row])[:40]!r}), and "
            f"{len(known)} different words in {len(series)} rows are no categories: {remedy.format(series.name)}, or "
            "encode it as numbers"
        )
    return tuple(known)


def _indicators(series: pd.Series, known: Sequence[str], name: str) -> list[np.ndarray]:
    """For each category 1 where the entry is it, else 0, and NaN where there is none."""
    there = series.notna().to_numpy()
    words = series.map(str, na_action="ignore").to_numpy(dtype=object)
    strange = there & ~np.isin(words.astype(str), known)
    if strange.any():
        row = int(strange.argmax())
        raise DataError(
            f"row {row} (counted from 0), column {series.name!r} of {name} holds the category "
            f"{words[row][:40]!r}, but the model knows {listing(list(known), 10)}: leave such rows out"
        )
    return [np.where(there, (words == category).astype(float), np.nan) for category in known]


def days_of(series: pd.Series, name: str, remedy: str = LEAVE_OUT) -> np.ndarray | None:
    """Days since 1970 of a column of dates, NaN where an entry is missing; None of any other column.

    :param remedy: as of :meth:`Encoding.of`.
    :raises DataError: where day and month cannot be told apart.
    """
    return _days(series, name, remedy) if _is_date(series) or _is_words(series) else None


def _days(series: pd.Series, name: str, remedy: str = LEAVE_OUT) -> np.ndarray | None:
    """Days since 1970, NaN where an entry is missing; None where an entry is no date.

    :raises DataError: where day and month cannot be told apart.
    """
    there = series.dropna()
    if _is_date(series) or not len(there):
        return _as_days(pd.to_datetime(series, utc=True))
    texts = series.map(str, na_action="ignore")
    for first, second in (("ISO8601", None), *_FORMATS):
        ways = [_parsed(texts, way) for way in (first, second) if way is not None]
        found = [days for days in ways if days is not None]
        if len(found) == 2 and not np.array_equal(found[0], found[1], equal_nan=True):
            raise DataError(
                f"column {series.name!r} of {name} holds dates such as {there.iloc[0]!r}, of which day and month may "
                f"be either number: write them as 2024-12-31, or {remedy.format(series.name)}"
            )
        if found:
            return found[0]
    return None


def _parsed(texts: pd.Series, way: str) -> np.ndarray | None:
    dates = pd.to_datetime(texts, format=way, errors="coerce", utc=True)
    return _as_days(dates) if (dates.isna() == texts.isna()).all() else None


def _as_days(dates: pd.Series) -> np.ndarray:
    moments = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days: np.ndarray = (moments - np.datetime64("1970-01-01", "us")) / _DAY
    return np.where(np.isnat(moments), np.nan, days)
