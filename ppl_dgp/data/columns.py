"""A source to the table of a latent variable model: all its columns alike, missing entries kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Shaped

from ppl_dgp.data.encoding import Encoding
from ppl_dgp.data.files import read_frame, read_table_npz, select_columns
from ppl_dgp.data.load import BUILT_INS, checked_suffix, numbers, read_source
from ppl_dgp.data.table import MIN_ROWS, Table
from ppl_dgp.messages import DataError, listing, nearest_of

#: what to do about a column of words
WORDS = "name it by --target as the labels of the rows, or leave it out with --ignore {}"


def load_columns(
    source: str,
    label: str | None = None,
    seed: int = 0,
    *,
    features: str | None = None,
    ignore: str | None = None,
) -> tuple[Table, Shaped[np.ndarray, " N"] | None]:
    """The table behind ``source`` with all its columns as targets, NaN where an entry is missing, and labels of its
    rows.

    :param source: as in ``load_table``; of an ``.npz`` the array ``Y``, or ``X``.
    :param label: a column (of an ``.npz`` an array) that is left out of the table and names the rows' classes.
    :param seed: of the synthetic built-ins.
    :param features: the columns of the table, with commas between (default: all but the label).
    :param ignore: columns that are left out.
    :returns: The table, its X without columns, and the labels or None. Constant columns and rows without any entry
        are left out, each with a note, and a note says how many entries are missing. Dates are days since 1970, as the
        table's ``encoding`` and its notes say.
    :raises DataError: for any input that cannot be used; infinite values are errors.

    """
    frame, labels, source_notes = _read_entries(source, label, seed)
    name = source if source in BUILT_INS else Path(source).name
    frame = select_columns(frame, features, ignore, name)
    encoding = Encoding.of(frame, name, WORDS)
    if encoding.categories:
        column = next(iter(encoding.categories))
        row = int(frame[column].notna().to_numpy().argmax())
        raise DataError(
            f"column {column!r} of {name} holds words, which are no entries (row {row} holds "
            f"{str(frame[column].iloc[row])[:40]!r}): {WORDS.format(column)}"
        )
    values, notes = numbers(encoding.apply(frame, name), name), [*source_notes, *encoding.notes]
    if values.shape[1] == 0:
        raise DataError(f"{name} has no column left besides the label: give a table with at least one more")
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(
            f"row {row} (counted from 0), column {frame.columns[column]!r} of {name} is infinite: fill in the value, "
            "or leave the entry empty if it is missing"
        )
    has_entry = ~np.isnan(values).all(axis=1)
    if not has_entry.all():
        notes.append(f"dropped {(~has_entry).sum()} rows without any entry")
        values = values[has_entry]
        labels = None if labels is None else labels[has_entry]
    if len(values) < MIN_ROWS:
        raise DataError(
            f"{name}: found {len(values)} rows with entries, expected at least {MIN_ROWS}; give more"
        )
    varies = np.array([len(np.unique(column[~np.isnan(column)])) > 1 for column in values.T])
    if not varies.any():
        raise DataError(f"every column of {name} is constant: give at least one that varies")
    notes += [f"dropped constant column {c!r}" for c, v in zip(frame.columns, varies, strict=True) if not v]
    values = values[:, varies]
    if gaps := int(np.isnan(values).sum()):
        notes.append(f"{gaps} of {values.size} entries are missing ({100 * gaps / values.size:.1f} %)")
    names = tuple(str(c) for c, v in zip(frame.columns, varies, strict=True) if v)
    table = Table(
        np.empty((len(values), 0)),
        values,
        (),
        names,
        notes=tuple(notes),
        name=name,
        encoding=encoding,
        source_rows=None if has_entry.all() else np.flatnonzero(has_entry),
    )
    return table, labels


def load_entries(
    source: str, names: Sequence[str], seed: int = 0, encoding: Encoding | None = None
) -> Float[np.ndarray, "N P"]:
    """Rows of the named columns of ``source``, NaN where an entry, or a whole column, is missing.

    :param encoding: that of the table, where columns are dates.
    :raises DataError: for a source that cannot be read, has none of the columns, or holds infinite values.

    """
    frame, _, _ = _read_entries(source, None, seed)
    name = source if source in BUILT_INS else Path(source).name
    present = [column for column in names if column in frame]
    if not present:
        raise DataError(
            f"{name} has none of the columns that the model was fitted on; it holds "
            f"{listing([str(c) for c in frame.columns])}: give a table with some of those"
        )
    encoded = (encoding or Encoding()).apply(frame[present], name)
    values = pd.DataFrame(numbers(encoded, name), columns=present).reindex(columns=list(names)).to_numpy()
    if np.isinf(values).any() or len(values) == 0:
        raise DataError(
            f"{name} has infinite values or no rows: fill them in, or leave missing entries empty"
        )
    return values


def _read_entries(
    source: str, label: str | None, seed: int
) -> tuple[pd.DataFrame, Shaped[np.ndarray, " N"] | None, tuple[str, ...]]:
    if source in BUILT_INS:
        raw = read_source(source, None, seed, need_target=True)
        frame, notes = pd.concat([raw.features, raw.targets], axis=1), raw.notes
    elif checked_suffix(source) == ".npz":
        frame, labels = read_table_npz(Path(source), label)
        return frame, labels, ()
    else:
        frame, notes = read_frame(Path(source))
    if label is None:
        return frame, None, notes
    if label not in frame:
        remedy = nearest_of(label, [str(c) for c in frame.columns])
        raise DataError(f"{source} has no column {label!r} to be the label: {remedy}")
    return frame.drop(columns=label), frame[label].to_numpy(), notes
