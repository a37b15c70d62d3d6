"""A source, whatever it is, to a clean table: the one way in for data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from ppl_dgp.data.encoding import Encoding
from ppl_dgp.data.files import Raw, read_frame, read_npz, select_columns, select_targets
from ppl_dgp.data.gaps import complete, dropped_rows, enough, held_complete
from ppl_dgp.data.labels import Label, encode_labels
from ppl_dgp.data.splits import index_splits
from ppl_dgp.data.synthetic import periodic, sinusoids, step
from ppl_dgp.data.table import Table
from ppl_dgp.extras import needed_for
from ppl_dgp.messages import DataError, listing, nearest_of

_SYNTHETIC: dict[str, Callable[..., Table]] = {"step": step, "sinusoids": sinusoids, "periodic": periodic}
#: tables of scikit-learn, and how they are asked for there
_REAL: dict[str, dict[str, bool]] = {
    "diabetes": {"as_frame": True, "scaled": False},
    "linnerud": {"as_frame": True},
}
BUILT_INS: tuple[str, ...] = (*_REAL, *_SYNTHETIC)
#: what to do about a target of text
TEXT_REMEDY = (
    "encode it as numbers, or fit its classes: --likelihood robust-max (two of them: bernoulli) of a sparse-gp or "
    "deep-gp, or SparseGPClassifier"
)
SUFFIXES = (".csv", ".tsv", ".xlsx", ".parquet", ".npz")


def load_table(
    source: str,
    target: str | None = None,
    drop_missing: bool = False,
    seed: int = 0,
    *,
    target_gaps: bool = False,
    of_classes: bool = False,
    keep_constant: bool = False,
    features: str | None = None,
    ignore: str | None = None,
) -> Table:
    """The table behind ``source``, checked and in its own units.

    :param source: a built-in name (``BUILT_INS``) or the path of a ``.csv`` or ``.tsv``, whose separator and
        decimal sign are found, an ``.xlsx``, a ``.parquet`` or an ``.npz``.
    :param target: target column or, comma-separated, several (default: the last column); for an ``.npz`` the name of
        the target array (default ``y``), for a built-in some of its targets (default: all).
    :param drop_missing: leave out rows with a missing or infinite value instead of refusing them.
    :param seed: of the synthetic built-ins.
    :param target_gaps: keep rows that lack some of their targets, as NaN; those without any are left out.
    :param of_classes: take the target, which has to be one, for labels, words or numbers; ``y`` holds their positions
        among the sorted ``labels``.
    :param keep_constant: keep constant features, as the pixels at the border of images are.
    :param features: the columns to be features, with commas between (default: all that are no targets).
    :param ignore: columns that are neither.
    :returns: The table. Features of words are a column of 0 and 1 for each category, dates are days since 1970, as its
        ``encoding`` and its notes say. Constant features and, if asked for, incomplete rows are left out, each with a
        note; the index arrays of an ``.npz`` are those of the rows kept.
    :raises DataError: for any input that cannot be used.

    """
    raw = read_source(
        source, target, seed, need_target=True, words=of_classes, features=features, ignore=ignore
    )
    name = source if source in BUILT_INS else Path(source).name
    assert raw.targets is not None
    encoding = Encoding.of(raw.features, name)
    encoded = encoding.apply(raw.features, name)
    X = numbers(encoded, name)
    y, labels = (
        labelled_codes(raw.targets, name) if of_classes else (numbers(raw.targets, name, TEXT_REMEDY), ())
    )
    feature_names, target_names = tuple(encoded.columns), tuple(raw.targets.columns)
    notes = [*raw.notes, *encoding.notes]
    if X.shape[1] == 0:
        raise DataError(
            f"{name} has no feature left besides the target: give a table with at least one more column"
        )
    splits = index_splits(raw.train, raw.test, len(X), name)

    keep = complete(held_complete(X, y, target_gaps), feature_names + target_names, name, drop_missing)
    if not keep.all():
        notes.append(dropped_rows(keep))
    if target_gaps:
        empty = keep & np.isnan(y).all(axis=1)
        if count := int(empty.sum()):
            notes.append(f"dropped {count} row{'s' if count > 1 else ''} without any target")
        keep &= ~empty
        if gaps := int(np.isnan(y[keep]).sum()):
            notes.append(f"{gaps} of {y[keep].size} target entries are missing")
    if not keep.all():
        X, y = X[keep], y[keep]
        position = np.cumsum(keep) - 1
        if splits:
            train, test = (tuple(position[rows[keep[rows]]] for rows in half) for half in splits)
            splits = train, test
    enough(len(X), name, notes)
    for half in splits[0] if splits else ():
        enough(len(half), f"a training split of {name}", notes)

    if of_classes:  # of the rows kept
        present, y = np.unique(y, return_inverse=True)
        y, labels = y.reshape(-1, 1).astype(np.float64), tuple(labels[int(code)] for code in present)
    for column, varies in zip(target_names, columns_vary(y), strict=True):
        if not varies:
            raise DataError(f"target {column!r} of {name} is constant: choose a target that varies")
    varies = (X != X[0]).any(axis=0)
    if not varies.any():
        raise DataError(f"every feature of {name} is constant: give at least one that varies")
    varies |= keep_constant
    notes += [f"dropped constant feature {c!r}" for c, v in zip(feature_names, varies, strict=True) if not v]
    return Table(
        X=X[:, varies],
        y=y,
        feature_names=tuple(c for c, v in zip(feature_names, varies, strict=True) if v),
        target_names=target_names,
        train=splits[0] if splits else None,
        test=splits[1] if splits else None,
        notes=tuple(notes),
        name=name,
        labels=labels,
        encoding=encoding,
        source_rows=None if keep.all() else np.flatnonzero(keep),
    )


def checked_suffix(source: str) -> str:
    """The lower-case extension of a file that can be read. Raises DataError for others."""
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        what = f"extension {path.suffix!r} of {source!r}" if path.suffix else f"source {source!r}"
        near = "" if path.suffix else nearest_of(source, BUILT_INS).partition("choose")[0]
        raise DataError(
            f"unknown {what}: {near}give one of {', '.join(SUFFIXES)} or a built-in ({', '.join(BUILT_INS)})"
        )
    return suffix


def read_source(
    source: str,
    target: str | None,
    seed: int,
    need_target: bool,
    words: bool = False,
    features: str | None = None,
    ignore: str | None = None,
) -> Raw:
    """The columns behind a source, before any cleaning; ``words`` where the target of an ``.npz`` may be text."""
    path = Path(source)
    if source in BUILT_INS or checked_suffix(source) == ".npz":
        of_arrays = source not in BUILT_INS
        raw = read_npz(path, target, need_target, words) if of_arrays else _built_in(source, target, seed)
        kept = select_columns(raw.features, features, ignore, path.name)
        return dataclasses.replace(raw, features=kept)
    frame, notes = read_frame(path)
    if not need_target:
        return Raw(frame, None, notes=notes)
    # what is left out is no target either, though it stands last
    rest = select_columns(frame, None, ignore, path.name)
    targets = select_targets(list(rest.columns), target, path.name)
    chosen = select_columns(rest, features, None, path.name, targets)
    return Raw(chosen.drop(columns=targets), chosen[targets], notes=notes)


def _built_in(name: str, target: str | None, seed: int) -> Raw:
    train = test = None
    if name in _SYNTHETIC:
        table = _SYNTHETIC[name](seed=seed)
        features = pd.DataFrame(table.X, columns=list(table.feature_names))
        targets = pd.DataFrame(table.y, columns=list(table.target_names))
        assert table.train is not None and table.test is not None
        train, test = table.train[0], table.test[0]
    else:
        with needed_for(f"the table {name!r}", "data"):
            from sklearn import datasets  # which takes a second
        bunch = getattr(datasets, f"load_{name}")(**_REAL[name])
        features, targets = bunch.data, pd.DataFrame(bunch.target)
    columns = list(targets.columns)
    return Raw(
        features, targets[columns if target is None else select_targets(columns, target, name)], train, test
    )


def labelled_codes(
    targets: pd.DataFrame, name: str, known: Sequence[Label] | None = None
) -> tuple[Float[np.ndarray, "N 1"], tuple[Label, ...]]:
    """Codes of the labels of the one target there is to be, and the labels."""
    if targets.shape[1] != 1:
        listed = listing([str(column) for column in targets.columns])
        raise DataError(f"{name}: found the targets {listed}, expected one column of labels; name it")
    codes, labels = encode_labels(targets.iloc[:, 0], name, known)
    return codes[:, None], labels


def numbers(
    frame: pd.DataFrame, name: str, remedy: str = "encode it as numbers or take it out"
) -> Float[np.ndarray, "N D"]:
    """Columns as float64, missing entries NaN; a DataError names the first column that is no number."""
    columns = []
    for column in frame.columns:
        series = frame[column]
        if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_complex_dtype(series):
            columns.append(series.to_numpy(dtype=np.float64, na_value=np.nan))
            continue
        is_text = pd.api.types.is_object_dtype(series) or pd.api.types.is_string_dtype(series)
        try:
            parsed = pd.to_numeric(series, errors="coerce") if is_text else pd.Series(np.nan, series.index)
        except OverflowError:
            raise DataError(
                f"column {column!r} of {name} holds a whole number of hundreds of digits: encode it as numbers of 64 "
                "bits or take it out"
            ) from None
        wrong = (parsed.isna() & series.notna()).to_numpy()
        if wrong.any() or not is_text:
            row = int(wrong.argmax())
            example = f" (row {row} holds {str(series.iloc[row])[:40]!r})" if wrong.any() else ""
            raise DataError(f"column {column!r} of {name} is not numeric{example}: {remedy}")
        columns.append(parsed.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.stack(columns, axis=1) if columns else np.empty((len(frame), 0))


def columns_vary(values: Float[np.ndarray, "N P"]) -> list[bool]:
    """Whether each column has two different values, of the entries that are there."""
    return [len(np.unique(column[~np.isnan(column)])) > 1 for column in values.T]
