"""A source to series: the steps of one or several sequences in their order, with controls where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.data.files import Raw, read_frame, read_series_npz, select_targets
from ppl_dgp.data.gaps import enough
from ppl_dgp.data.load import BUILT_INS, checked_suffix, numbers, read_source
from ppl_dgp.data.messages import DataError, listing
from ppl_dgp.data.splits import index_splits
from ppl_dgp.data.table import MIN_ROWS, Table, split


@dataclass(frozen=True, eq=False)
class Series:
    """T steps of S sequences, one sequence after the other.

    :param table: its X the controls [T C], finite, C = 0 for none; its y [T P], NaN where an entry was not observed.
    :param sequence: the number of each step's sequence, from 0, [T].
    :param labels: what the source calls the S sequences.
    """

    table: Table
    sequence: Int[np.ndarray, " T"]
    labels: tuple[str, ...]


def load_series(
    source: str,
    target: str | None = None,
    controls: str | None = None,
    sequence_column: str | None = None,
    step_column: str | None = None,
    *,
    seed: int = 0,
) -> Series:
    """The series behind ``source``, in its own units, each row a step after the one above it.

    :param source: as in ``load_table``; an ``.npz`` is one sequence, its ``train`` and ``test`` time indices.
    :param target: what is observed, a column or several with commas between (default: the last that is nothing else);
        of an ``.npz`` the name of an array (default ``y``).
    :param controls: columns, with commas between (default: none); of an ``.npz`` the name of an array (default ``u``,
        if it has one).
    :param sequence_column: a column whose values name the sequences (default: all rows are one sequence).
    :param step_column: a column with the time since the row before, positive (default: all steps are as long); it
        is the last control.
    :param seed: of the synthetic built-ins.
    :returns: The series. Constant controls are left out, with a note, and so is every column that nothing names.
    :raises DataError: for any input that cannot be used, such as a control that is missing, an infinite value, or a
        sequence in pieces.

    """
    only_in_tables = {"sequence-column": sequence_column, "step-column": step_column}
    name, raw = _read_series(source, target, controls, only_in_tables, seed, need_target=True)
    notes, sequence = list(raw.notes), np.zeros(len(raw.features), int)
    labels: tuple[str, ...] = ("0",)
    if sequence_column is not None:
        sequence, labels = _numbered(raw.features, sequence_column, name)
    features, targets = raw.features, raw.targets
    if targets is None:
        asked = target, controls, sequence_column, step_column
        features, targets, unused = _series_columns(raw.features, *asked, name)
        notes += [f"left out column {column!r}, which is no target, control or sequence" for column in unused]
    u, y = _controls(features, name), _observed(targets, name)
    enough(len(y), name, notes)
    varies = (u != u[:1]).any(axis=0)
    if step_column is not None:
        _check_step_times(u[:, -1], step_column, name)
        if not varies[-1]:
            raise DataError(
                f"step column {step_column!r} of {name} is {u[0, -1]:g} in every row: leave --step-column out, for its "
                "steps are equally long"
            )
    notes += [
        f"dropped constant control {c!r}" for c, v in zip(features.columns, varies, strict=True) if not v
    ]
    if gaps := int(np.isnan(y).sum()):
        notes.append(f"{gaps} of {y.size} entries are missing ({100 * gaps / y.size:.1f} %)")
    halves = index_splits(raw.train, raw.test, len(y), name)
    table = Table(
        X=u[:, varies],
        y=y,
        feature_names=tuple(str(c) for c, v in zip(features.columns, varies, strict=True) if v),
        target_names=tuple(map(str, targets.columns)),
        train=halves[0] if halves else None,
        test=halves[1] if halves else None,
        notes=tuple(notes),
        name=name,
    )
    return Series(table, sequence, labels)


def load_steps(
    source: str,
    control_names: Sequence[str],
    target_names: Sequence[str],
    labels: Sequence[str],
    target: str | None = None,
    controls: str | None = None,
    sequence_column: str | None = None,
    step_column: str | None = None,
    *,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "H C"], Float[np.ndarray, "H P"] | None, Int[np.ndarray, " H"]]:
    """Steps that come after a series: controls, what was observed where ``source`` has all targets, and the sequences.

    :param source, target, controls, sequence_column, step_column, seed: as in ``load_series``; a source without the
        sequence column is of the only sequence, where there is no other.
    :param control_names, target_names, labels: of the series that these steps follow.
    :raises DataError: for a source that cannot be read, lacks a control, or has sequences that the series had not.

    """
    name, raw = _read_series(source, target, controls, {}, seed, need_target=False)
    columns = raw.features if raw.targets is None else pd.concat([raw.features, raw.targets], axis=1)
    for column in control_names:
        if column not in columns:
            raise DataError(
                f"{name} has no column {column!r}, a control that the model was fitted with; it holds "
                f"{listing([str(c) for c in columns.columns])}: give the controls of the steps to come"
            )
    if len(columns) == 0:
        raise DataError(f"{name} has no rows: give one for each step to come")
    sequence = np.zeros(len(columns), int)
    if sequence_column is not None and (sequence_column in columns or len(labels) > 1):
        numbered, step_labels = _numbered(columns, sequence_column, name)
        for label in step_labels:
            if label not in labels:
                raise DataError(
                    f"{name} has sequence {label!r}, which the model was not fitted to: choose from "
                    f"{listing(list(labels))}"
                )
        sequence = np.array([labels.index(label) for label in step_labels])[numbered]
    given = _controls(columns[list(control_names)], name)
    if step_column is not None:
        _check_step_times(given[:, -1], step_column, name)
    complete = all(column in columns for column in target_names)
    y = _observed(columns[list(target_names)], name) if complete else None
    return (
        given,
        None if y is None or np.isnan(y).all() else y,
        sequence,
    )


def _check_step_times(times: Float[np.ndarray, " T"], column: str, name: str) -> None:
    """Refuse times between rows that are not positive."""
    if (wrong := np.flatnonzero(times <= 0.0)).size:
        raise DataError(
            f"step column {column!r} of {name} is {times[wrong[0]]:g} in row {wrong[0]} (counted from 0): give the "
            "time since the row before, a positive number, of the first row of a sequence a usual one"
        )


def split_series(
    series: Series, number: int | None = None, test_fraction: float | int = 0.1
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Steps to train on and the steps after them, to forecast: (train, test) rows.

    A series that came with time indices gives its own split ``number`` (default 0). Of any other the last
    round(``test_fraction`` T) steps of each sequence, at least one, are for the test. ``test_fraction`` 0 leaves none.

    :raises DataError: for indices of which train are not the first steps and test those that follow; otherwise as
        ``split``.

    """
    table = series.table
    if table.train is not None and table.test is not None:
        train, test = split(table, number, test_fraction)
        both = np.concatenate([train, table.test[number or 0]])
        if len(train) < MIN_ROWS or not np.array_equal(both, np.arange(len(both))):
            raise DataError(
                f"'train' of {table.name} must be its first steps in order, at least {MIN_ROWS}, and 'test' those that "
                "follow: a forecast begins where training ends"
            )
        return train, test
    if number:
        raise DataError(f"split is {number}, but a series is split at one place alone: leave --split out")
    if not 0.0 <= test_fraction < 1.0:
        raise DataError(
            f"test fraction: found {test_fraction}, expected a number in [0, 1); 0 trains on every step"
        )
    lengths = np.bincount(series.sequence)
    held_out = np.maximum(1, np.round(test_fraction * lengths)).astype(int) * (test_fraction > 0)
    for label, length, train_length in zip(series.labels, lengths, lengths - held_out, strict=True):
        if train_length < MIN_ROWS:
            raise DataError(
                f"sequence {label!r} of {table.name}: found {length} steps, which leaves {train_length} to train on, "
                f"expected at least {MIN_ROWS}; lower the test fraction (0 for none) or give more steps"
            )
    tested = steps(series.sequence) >= (lengths - held_out)[series.sequence]
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def steps(sequence: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
    """The number of each row within its sequence, from 0, where the rows of each follow each other."""
    begins = np.flatnonzero(np.diff(sequence, prepend=-1))
    return np.arange(len(sequence)) - np.repeat(begins, np.diff(begins, append=len(sequence)))


def _read_series(
    source: str,
    target: str | None,
    controls: str | None,
    only_in_tables: Mapping[str, str | None],
    seed: int,
    need_target: bool,
) -> tuple[str, Raw]:
    """Name and columns: of an ``.npz`` controls and targets, of a table all columns, as features."""
    if source in BUILT_INS:
        raw = read_source(source, None, seed, need_target=True)
        # its own splits are of rows without order
        return source, Raw(pd.concat([raw.features, raw.targets], axis=1), None, notes=raw.notes)
    path = Path(source)
    if checked_suffix(source) == ".npz":
        for option, column in only_in_tables.items():
            if column is not None:
                raise DataError(
                    f"{path.name} is an .npz, which is one sequence of equal steps, and has no column {column!r}: "
                    f"leave --{option} out, or give a .csv or .parquet"
                )
        return path.name, read_series_npz(path, target, controls, need_target)
    frame, notes = read_frame(path)
    return path.name, Raw(frame, None, notes=notes)


def _series_columns(
    frame: pd.DataFrame,
    target: str | None,
    controls: str | None,
    sequence_column: str | None,
    step_column: str | None,
    name: str,
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Controls, targets, and the columns that are neither, nor name the sequences."""
    columns = list(frame.columns)
    given = [] if controls is None else [controls] if controls in columns else controls.split(",")
    control_names = list(dict.fromkeys(part.strip() for part in given))
    if step_column is not None:
        if step_column == sequence_column or step_column not in columns:
            raise DataError(
                f"step column: found {step_column!r} in {name}, expected a column that names no sequences: choose from "
                f"{listing(columns)}"
            )
        control_names = [column for column in control_names if column != step_column] + [step_column]
    for column in control_names:
        if column not in columns:
            raise DataError(
                f"{name} has no column {column!r} to be a control: choose from {listing(columns)}"
            )
    taken = {*control_names, sequence_column}
    rest = [column for column in columns if column not in taken]
    if target is None and not rest:
        raise DataError(
            f"{name} has no column left besides controls and sequences: give a table with one more"
        )
    targets = select_targets(rest if target is None else columns, target, name)
    if doubled := [column for column in targets if column in taken]:
        raise DataError(
            f"column {doubled[0]!r} of {name} is asked to be target and control or sequence: choose one"
        )
    return frame[control_names], frame[targets], [column for column in rest if column not in targets]


def _numbered(frame: pd.DataFrame, column: str, name: str) -> tuple[Int[np.ndarray, " T"], tuple[str, ...]]:
    """The number of each row's sequence, from 0, and what they are called."""
    if column not in frame:
        columns = listing([str(c) for c in frame.columns])
        raise DataError(f"{name} has no column {column!r} to name the sequences: choose from {columns}")
    if frame[column].isna().any():
        row = int(frame[column].isna().to_numpy().argmax())
        raise DataError(
            f"row {row} (counted from 0) of {name} names no sequence in column {column!r}: fill it in"
        )
    values = frame[column].to_numpy()
    begins = np.append(True, values[1:] != values[:-1])[: len(values)]
    labels = tuple(map(str, values[begins]))
    for label in labels:
        if labels.count(label) > 1:
            raise DataError(
                f"sequence {label!r} of {name} is in {labels.count(label)} pieces: sort the rows by column {column!r}, "
                "and keep the steps of each sequence in their order"
            )
    return np.cumsum(begins) - 1, labels


def _controls(frame: pd.DataFrame, name: str) -> Float[np.ndarray, "T C"]:
    values = numbers(frame, name)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        what = "missing (NaN)" if np.isnan(values[row, column]) else "infinite"
        raise DataError(
            f"row {row} (counted from 0), control {frame.columns[column]!r} of {name} is {what}: fill it in, for a "
            "control must be known at every step"
        )
    return values


def _observed(frame: pd.DataFrame, name: str) -> Float[np.ndarray, "T P"]:
    values = numbers(frame, name)
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(
            f"row {row} (counted from 0), column {frame.columns[column]!r} of {name} is infinite: fill in the value, "
            "or leave the entry empty if it is missing"
        )
    return values
