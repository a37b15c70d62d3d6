"""Reading text tables, ``.xlsx``, ``.parquet`` and ``.npz`` into columns with names, before any cleaning."""

from __future__ import annotations

import lzma
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from ppl_dgp.data.arrays import read_members
from ppl_dgp.data.spreadsheets import read_sheet
from ppl_dgp.data.text_files import read_text
from ppl_dgp.messages import DataError, listing, nearest_of

_T = TypeVar("_T")
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    tokenize.TokenError,
    pd.errors.ParserError,
    pd.errors.ParserWarning,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


@dataclass(frozen=True, eq=False)
class Raw:
    """Contents of a source: features, targets (None where it has none) and the index arrays of its splits."""

    features: pd.DataFrame
    targets: pd.DataFrame | None
    train: np.ndarray | None = None
    test: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def read_frame(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All columns of a table under stripped, unique names, and notes on how it was read and what was left out."""
    readers = {".parquet": _read_parquet, ".xlsx": read_sheet}
    frame, notes = reading(path, readers.get(path.suffix.lower(), read_text))
    frame.columns = pd.Index([str(column).strip() for column in frame.columns])
    if frame.columns.has_duplicates:
        name = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{path.name} has two columns named {name!r}: rename one")
    # what DataFrame.to_csv leaves of its row numbers is no feature
    first = frame.columns[0] if frame.shape[1] else ""
    if first.startswith("Unnamed: ") and np.array_equal(frame[first].to_numpy(), np.arange(len(frame))):
        left_out = "left out the first column: it has no name and counts the rows"
        return frame.drop(columns=first), (*notes, left_out)
    return frame, notes


def select_columns(
    frame: pd.DataFrame, features: str | None, ignore: str | None, source: str, kept: Sequence[str] = ()
) -> pd.DataFrame:
    """``frame`` with the columns of :func:`chosen_columns`."""
    return frame[chosen_columns(list(frame.columns), features, ignore, source, kept)]


def chosen_columns(
    columns: list[str], features: str | None, ignore: str | None, source: str, kept: Sequence[str] = ()
) -> list[str]:
    """``columns`` without what ``ignore`` names, or ``features`` and ``kept`` alone where the former are given.

    :param features, ignore: names with commas between.
    :param kept: columns that are no features, and stay.
    :raises DataError: for a column that is not there, or is asked for twice.
    """
    left_out = [] if ignore is None else named_columns(columns, ignore, source, "to be left out")
    if features is None:
        return [name for name in columns if name not in left_out]
    wanted = named_columns(columns, features, source, "to be a feature")
    for name in wanted:
        if name in kept or name in left_out:
            other = "the target" if name in kept else "to be left out"
            raise DataError(f"column {name!r} of {source} is to be a feature and {other}: name it once")
    return [*wanted, *kept]


def named_columns(columns: list[str], names: str, source: str, purpose: str) -> list[str]:
    """The columns that a comma list names, each once. Raises DataError for one that is not there."""
    found = [names] if names in columns else [part.strip() for part in names.split(",")]
    for name in found:
        if name not in columns:
            raise DataError(f"{source} has no column {name!r} {purpose}: {nearest_of(name, columns)}")
    return list(dict.fromkeys(found))


def select_targets(columns: list[str], target: str | None, source: str) -> list[str]:
    """The columns named by ``target`` (comma-separated); the last one where it is None."""
    if not columns:
        raise DataError(f"{source} has no columns: give a table with features and a target")
    if target is None:
        return columns[-1:]
    return named_columns(columns, target, source, "to be the target")


def read_npz(path: Path, target: str | None, need_target: bool = True, words: bool = False) -> Raw:
    """Arrays ``X`` and ``target`` (default ``y``), index arrays ``train`` and ``test``, names where there are any.

    :param words: whether the target may be text.
    """
    wanted = "y" if target is None else target
    if wanted in ("X", "train", "test"):
        raise DataError(f"array {wanted!r} of {path.name} cannot be the target: name another (default 'y')")
    arrays, array_names = reading(path, lambda file: read_members(file, ("X", wanted)))
    missing = [name for name in ("X", wanted) if name not in arrays and (name == "X" or need_target)]
    if missing:
        raise DataError(
            f"{path.name} has no array {' and no array '.join(map(repr, missing))}; "
            f"it holds {listing(array_names)}: "
            "store the features as 'X' [N D] and name the target's array (default 'y')"
        )
    features = _array_frame(path, "X", arrays["X"])
    targets = None
    if wanted in arrays:
        remedy = "store real numbers, or fit its classes (--likelihood robust-max)"
        targets = _array_frame(path, wanted, arrays[wanted], "biufU" if words else "biuf", remedy)
        if len(features) != len(targets):
            raise DataError(
                f"'X' of {path.name} has {len(features)} rows but {wanted!r} has {len(targets)}: "
                "both need one row per datum"
            )
        names = _column_names(arrays.get("target_name") if wanted == "y" else None, wanted, targets.shape[1])
        targets.columns = pd.Index([wanted] if names == [f"{wanted}0"] else names)
    names = _column_names(arrays.get("feature_names"), "x", features.shape[1])
    if targets is not None and set(names) & set(targets.columns):
        names = _column_names(None, "x", features.shape[1])
    features.columns = pd.Index(names)
    return Raw(features, targets, arrays.get("train"), arrays.get("test"))


def read_table_npz(path: Path, label: str | None) -> tuple[pd.DataFrame, np.ndarray | None]:
    """Array ``Y``, or ``X``, as columns, and the array ``label``, one for each row."""
    wanted = ("Y", "X") if label is None else ("Y", "X", label)
    arrays, array_names = reading(path, lambda file: read_members(file, wanted))
    name = next((candidate for candidate in ("Y", "X") if candidate in arrays), None)
    if name is None:
        raise DataError(
            f"{path.name} has no array 'Y' or 'X'; it holds {listing(array_names)}: store the table as 'Y' [N P]"
        )
    frame = _array_frame(path, name, arrays[name])
    frame.columns = pd.Index(_column_names(arrays.get("feature_names"), "y", frame.shape[1]))
    if label is None:
        return frame, None
    if label not in arrays:
        raise DataError(
            f"{path.name} has no array {label!r} to be the label; it holds {listing(array_names)}"
        )
    if arrays[label].shape != (len(frame),):
        raise DataError(
            f"array {label!r} of {path.name}: found shape {arrays[label].shape}, expected ({len(frame)},); "
            "give one label a row"
        )
    return frame, arrays[label]


def read_series_npz(path: Path, target: str | None, controls: str | None, need_target: bool = True) -> Raw:
    """Arrays of targets and of controls, with ``train`` and ``test``.

    :param target: name of an array (default ``y``).
    :param controls: name of an array (default ``u``, if there is one).
    """
    observed, driven = target or "y", controls or "u"
    if observed == driven:
        raise DataError(f"array {observed!r} of {path.name} is asked to be target and control: name two")
    arrays, array_names = reading(path, lambda file: read_members(file, (observed, driven)))
    needed = ([observed] if need_target else []) + ([driven] if controls else [])
    for name in needed if observed in arrays or driven in arrays else [observed]:
        if name not in arrays:
            raise DataError(
                f"{path.name} has no array {name!r}; it holds {listing(array_names)}: store what is observed as "
                "'y' [T P] and controls as 'u' [T C], or name the arrays"
            )
    frames = {name: _array_frame(path, name, arrays[name]) for name in (observed, driven) if name in arrays}
    lengths = {name: len(frame) for name, frame in frames.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{driven!r} and {observed!r} of {path.name} have {lengths} rows: both need one for each step"
        )
    for name, frame in frames.items():
        given = arrays.get("feature_names" if name == driven else "target_name")
        names = _column_names(given, name, frame.shape[1])
        frame.columns = pd.Index([name] if names == [f"{name}0"] else names)
    none = pd.DataFrame(index=range(next(iter(lengths.values()))))
    return Raw(frames.get(driven, none), frames.get(observed), arrays.get("train"), arrays.get("test"))


def reading(path: Path, reader: Callable[[Path], _T]) -> _T:
    """``reader(path)``, with everything that can go wrong with a file as a DataError."""
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, beside, 1)
        remedy = f"did you mean {near[0]!r}?" if near else "check the path"
        raise DataError(f"no file {str(path)!r}: {remedy}")
    if not path.is_file():
        raise DataError(f"{str(path)!r} is not a file: name one {path.suffix} file")
    if path.stat().st_size == 0:
        raise DataError(f"{path.name} is empty: give a file with data in it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return reader(path)
    except DataError:
        raise
    except pd.errors.EmptyDataError:
        raise DataError(f"{path.name} is empty: give a file with data in it") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path.name} is not in UTF-8, the only encoding that is read: save it again as UTF-8, in Excel as "
            '"CSV UTF-8"'
        ) from None
    except Exception as error:
        if not isinstance(error, (*_UNREADABLE, *_of_arrow())):
            raise
        reason = str(error).strip().rstrip(".").split("\n")[0] or type(error).__name__
        raise DataError(
            f"{path.name} cannot be read as {path.suffix.lower()[1:]} ({reason}): it is damaged or of "
            "another format, write it again"
        ) from error


def _of_arrow() -> tuple[type[Exception], ...]:
    """What pyarrow raises, which need not be there: as long as it is not imported it raises nothing."""
    pyarrow = sys.modules.get("pyarrow")
    return () if pyarrow is None else (pyarrow.ArrowException,)


def _read_parquet(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    from ppl_dgp.data.parquet import read_parquet  # an extra brings pyarrow

    return read_parquet(path)


def _array_frame(
    path: Path, name: str, array: np.ndarray, kinds: str = "biuf", remedy: str = "store real numbers"
) -> pd.DataFrame:
    if array.ndim not in (1, 2) or array.size == 0:
        raise DataError(
            f"{name!r} of {path.name}: found shape {array.shape}, expected (N,) or (N, columns); reshape it"
        )
    if array.dtype.kind not in kinds:
        raise DataError(f"{name!r} of {path.name} is not numeric (its type is {array.dtype}): {remedy}")
    return pd.DataFrame(array.reshape(len(array), -1))


def _column_names(given: np.ndarray | None, stem: str, count: int) -> list[str]:
    """The names the file gives, if they are ``count`` different strings; else stem0, stem1, ..."""
    if given is not None and given.dtype.kind == "U" and given.size == count == len(set(given.flat)):
        return [str(name) for name in given.flat]
    return [f"{stem}{number}" for number in range(count)]
