"""A source to series: the steps of one or several sequences in their order, with controls where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.data.encoding import Encoding, days_of
from ppl_dgp.data.files import Raw, read_frame, read_series_npz, select_targets
from ppl_dgp.data.gaps import enough
from ppl_dgp.data.load import BUILT_INS, checked_suffix, numbers, read_source
from ppl_dgp.data.splits import index_splits
from ppl_dgp.data.step_times import check_follows, check_waits, equal_steps, left_out, waits
from ppl_dgp.data.table import Table
from ppl_dgp.messages import DataError, listing, nearest_of

#: what to do about a control, or dates of steps, that cannot be used
CONTROLS = "take {} out of --controls"
DATES = "leave out --step-column {}"


@dataclass(frozen=True, eq=False)
class Series:
    """T steps of S sequences, one sequence after the other.

    :param table: its X the controls [T C], finite, C = 0 for none; its y [T P], NaN where an entry was not observed.
    :param sequence: the number of each step's sequence, from 0, [T].
    :param labels: what the source calls the S sequences.
    :param days: the dates of the steps, days since 1970, where they tell the times between them; else None.
    """

    table: Table
    sequence: Int[np.ndarray, " T"]
    labels: tuple[str, ...]
    days: Float[np.ndarray, " T"] | None = None


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
    :param step_column: a column with the time since the row before, positive, or with the dates of the rows, whose
        times are in days (default: all steps are as long); it is the last control, but for dates that are equally far
        apart, in days or months.
    :param seed: of the synthetic built-ins.
    :returns: The series. Controls of words are a column of 0 and 1 for each category, dates are days since 1970, as the
        table's ``encoding`` and its notes say. Constant controls are left out, with a note, and so is every column that
        nothing names; of dates among these the note says how far apart they are.
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
    asked = target, controls, sequence_column, step_column
    if targets is None:
        features, targets, unused = _series_columns(raw.features, *asked, name)
        notes += [left_out(raw.features[column], sequence, name) for column in unused]
    days = None
    if step_column is not None and (days := days_of(features[step_column], name, DATES)) is not None:
        times = waits(days, sequence, step_column, name)
        equal = equal_steps(days, sequence)
        if equal is None:
            features = features.assign(**{step_column: times})
            notes.append(f"{step_column} is a date, in days since the row before, of a first row the median")
        else:
            features, step_column = features.drop(columns=step_column), None
            notes.append(f"the dates of {asked[-1]} are {equal} apart: steps are equally long")
    encoding = Encoding.of(features, name, CONTROLS)
    features, notes = encoding.apply(features, name), [*notes, *encoding.notes]
    u, y = _controls(features, name), _observed(targets, name)
    enough(len(y), name, notes)
    varies = (u != u[:1]).any(axis=0)
    if step_column is not None:
        check_waits(u[:, -1], step_column, name)
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
        encoding=encoding,
    )
    return Series(table, sequence, labels, days)


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
    encoding: Encoding | None = None,
    ends: Sequence[Sequence[float]] = (),
) -> tuple[Float[np.ndarray, "H C"], Float[np.ndarray, "H P"] | None, Int[np.ndarray, " H"]]:
    """Steps that come after a series: controls, what was observed where ``source`` has all targets, and the sequences.

    :param source, target, controls, sequence_column, step_column, seed: as in ``load_series``; a source without the
        sequence column is of the only sequence, where there is no other.
    :param control_names, target_names, labels: of the series that these steps follow.
    :param encoding: that of the series' table.
    :param ends: of each sequence the dates of the last two steps before, in days, where ``step_column`` is of dates.
    :raises DataError: for a source that cannot be read, lacks a control, or has sequences that the series had not.

    """
    name, raw = _read_series(source, target, controls, {}, seed, need_target=False)
    columns = raw.features if raw.targets is None else pd.concat([raw.features, raw.targets], axis=1)
    kinds = encoding or Encoding()
    wanted = kinds.sources(control_names)
    for column in wanted:
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
                    f"{name} has sequence {label!r}, which the model was not fitted to: "
                    f"{nearest_of(label, labels)}"
                )
        sequence = np.array([labels.index(label) for label in step_labels])[numbered]
    chosen = columns[wanted]
    if ends and step_column is not None and step_column in columns:
        days = days_of(columns[step_column], name, DATES)
        if days is None:
            raise DataError(
                f"step column {step_column!r} of {name} holds no dates, but the model was fitted to dates: write "
                "them as 2024-12-31"
            )
        times = waits(days, sequence, step_column, name, [end[-1] for end in ends])
        if step_column in wanted:
            chosen = chosen.assign(**{step_column: times})
        else:
            check_follows(days, sequence, ends, step_column, name)
    given = _controls(kinds.apply(chosen, name)[list(control_names)], name)
    if step_column in control_names:
        assert step_column is not None
        check_waits(given[:, -1], step_column, name)
    complete = all(column in columns for column in target_names)
    y = _observed(columns[list(target_names)], name) if complete else None
    return (
        given,
        None if y is None or np.isnan(y).all() else y,
        sequence,
    )


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
                f"step column: found {step_column!r} in {name}, expected a column that names no sequences: "
                f"{nearest_of(step_column, columns)}"
            )
        control_names = [column for column in control_names if column != step_column] + [step_column]
    for column in control_names:
        if column not in columns:
            raise DataError(f"{name} has no column {column!r} to be a control: {nearest_of(column, columns)}")
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
        remedy = nearest_of(column, [str(c) for c in frame.columns])
        raise DataError(f"{name} has no column {column!r} to name the sequences: {remedy}")
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
    values = numbers(frame, name, "name a target of numbers with --target")
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(
            f"row {row} (counted from 0), column {frame.columns[column]!r} of {name} is infinite: fill in the value, "
            "or leave the entry empty if it is missing"
        )
    return values
