"""Rows to predict at: the columns that a model was fitted on, of another source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.data.encoding import Encoding
from ppl_dgp.data.gaps import complete, dropped_rows, held_complete
from ppl_dgp.data.labels import Label
from ppl_dgp.data.load import BUILT_INS, labelled_codes, numbers, read_source
from ppl_dgp.messages import DataError, listing


class NumberedRows(NamedTuple):
    """Rows of a source, and which of its rows they are.

    :param X: features, [N D].
    :param y: targets, [N P], or None where the source has none.
    :param notes: what was left out while reading, one sentence each.
    :param numbers: of each row in the source, [N], counted from 0.
    """

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, "N P"] | None
    notes: tuple[str, ...]
    numbers: Int[np.ndarray, " N"]


def load_rows(
    source: str,
    feature_names: Sequence[str],
    target_names: Sequence[str] = (),
    target: str | None = None,
    drop_missing: bool = False,
    seed: int = 0,
    *,
    target_gaps: bool = False,
    labels: Sequence[Label] = (),
    encoding: Encoding | None = None,
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, "N P"] | None, tuple[str, ...]]:
    """Rows to predict at: the named features of ``source``, and its targets where it has them all.

    Unlike in ``load_table``, one row is enough, columns may be constant and targets absent or wholly missing.

    :param source: as in ``load_table``.
    :param feature_names: the D columns wanted, in this order.
    :param target_names: the P target columns, in this order.
    :param target: for an ``.npz`` the name of the target array (default ``y``).
    :param drop_missing: leave out rows with a missing or infinite value instead of refusing them.
    :param seed: of the synthetic built-ins.
    :param target_gaps: take missing targets as NaN, also those of a whole column.
    :param labels: of a target of classes, whose positions are returned in its place.
    :param encoding: that of the table, where features are words or dates.
    :returns: (X [N D], y [N P] or None, notes), in the source's units.
    :raises DataError: for a source that cannot be read, a feature it lacks, or values that cannot be used.

    """
    read = source, feature_names, target_names, target, drop_missing, seed
    X, y, notes, _ = load_numbered_rows(*read, target_gaps=target_gaps, labels=labels, encoding=encoding)
    return X, y, notes


def load_numbered_rows(
    source: str,
    feature_names: Sequence[str],
    target_names: Sequence[str] = (),
    target: str | None = None,
    drop_missing: bool = False,
    seed: int = 0,
    *,
    target_gaps: bool = False,
    labels: Sequence[Label] = (),
    encoding: Encoding | None = None,
) -> NumberedRows:
    """As ``load_rows``, with the number that each row has in the source."""
    raw = read_source(source, target, seed, need_target=False, words=len(labels) > 0)
    name = source if source in BUILT_INS else Path(source).name
    source_columns = raw.features if raw.targets is None else pd.concat([raw.features, raw.targets], axis=1)
    source_columns = source_columns.loc[:, ~source_columns.columns.duplicated()]
    kinds = encoding or Encoding()
    wanted = kinds.sources(feature_names)
    for column in wanted:
        if column not in source_columns:
            raise DataError(
                f"{name} has no column {column!r}, which the model was fitted on; "
                f"it holds {listing([str(c) for c in source_columns.columns])}: give a table with those features"
            )
    X = numbers(kinds.apply(source_columns[wanted], name)[list(feature_names)], name)
    there = [c in source_columns and not source_columns[c].isna().all() for c in target_names]
    has_targets = bool(there) and (
        any(there) and all(c in source_columns for c in target_names) if target_gaps else all(there)
    )
    known = tuple(target_names) if has_targets else ()
    found = source_columns[list(known)]
    y = labelled_codes(found, name, labels)[0] if labels and has_targets else numbers(found, name)
    keep = complete(held_complete(X, y, target_gaps), (*feature_names, *known), name, drop_missing)
    if not keep.any():
        raise DataError(f"{name} has no row to predict at: give a table with at least one complete row")
    notes = raw.notes + (() if keep.all() else (dropped_rows(keep),))
    return NumberedRows(X[keep], y[keep] if has_targets else None, notes, np.flatnonzero(keep))
