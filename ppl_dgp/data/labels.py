"""Labels of classes, words or numbers, and the codes 0 … C − 1 that models take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from ppl_dgp.messages import DataError

Label = str | int | float
#: labels named in a message
SHOWN = 10


def encode_labels(
    column: pd.Series, source: str, known: Sequence[Label] | None = None
) -> tuple[Float[np.ndarray, " N"], tuple[Label, ...]]:
    """Codes of a column's labels, NaN where one is missing, and the labels in the order of their codes.

    :param column: numbers, words, or true and false, which are words.
    :param source: its name in messages.
    :param known: the labels in their order; by default those of the column, sorted.
    :raises DataError: for a label that is not among them.
    """
    values = _values(column)
    there = [value for value in values if _is_label(value)]
    if known is None:
        labels = tuple(sorted(set(there)))
    else:
        labels = tuple(known)
        if labels and isinstance(labels[0], str):
            values = [str(value) if _is_label(value) else value for value in values]
        else:  # beside a word numbers are words
            values = [_number_in(value) if isinstance(value, str) else value for value in values]
    codes = {label: float(code) for code, label in enumerate(labels)}
    for row, value in enumerate(values):
        if _is_label(value) and value not in codes:
            raise DataError(
                f"row {row} (counted from 0), column {str(column.name)!r} of {source} holds the label "
                f"{str(value)[:40]!r}, but the model knows {shown_labels(labels)}: leave such rows out, or the column"
            )
    encoded = [codes[value] if _is_label(value) else float(value) for value in values]
    return np.array(encoded, np.float64), labels


def shown_labels(labels: Sequence[Label]) -> str:
    """The labels for a message, the first ones if there are many."""
    text = ", ".join(map(str, labels[:SHOWN]))
    return text if len(labels) <= SHOWN else f"{text} and {len(labels) - SHOWN} more"


def _is_label(value: Label) -> bool:
    """Whether it is none of the numbers that stand for nothing."""
    return isinstance(value, str) or math.isfinite(value)


def _values(column: pd.Series) -> list[Label]:
    """The entries, NaN where one is missing: all numbers if they are, whole ones as such, else all words."""
    missing = column.isna()
    known = column[~missing].astype(object)
    words = known.map(str)
    values: list[Label] = list(words)
    if not known.map(lambda value: isinstance(value, bool | np.bool_ | complex)).any():
        try:
            parsed = pd.to_numeric(words, errors="coerce")
        except OverflowError:  # whole numbers of hundreds of digits
            parsed = pd.Series(np.nan, words.index)
        if parsed.notna().all():
            values = [_number(value) for value in parsed.tolist()]
    found: list[Label] = [math.nan] * len(column)
    for place, value in zip(np.flatnonzero(~missing.to_numpy()), values, strict=True):
        found[place] = value
    return found


def _number_in(text: str) -> Label:
    """A word as the number that it is, if it is one that is finite."""
    parsed = pd.to_numeric(pd.Series([text]), errors="coerce")[0]
    return _number(parsed.item()) if np.isfinite(parsed) else text


def _number(value: int | float) -> int | float:
    """A whole number as such, where a float holds it exactly."""
    return int(value) if isinstance(value, int) or (value.is_integer() and abs(value) < 2**53) else value
