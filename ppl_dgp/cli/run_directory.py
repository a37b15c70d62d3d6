"""A run directory: what a fit was asked, what it found, and how to load it again. Every file is written whole.

``config.json`` (settings, data, standardisation, results), ``parameters/`` (safetensors), ``checkpoint/`` (the state of
training), ``predictions.csv``, ``posterior.nc``, ``figures/``; of a gplvm also ``latents.csv`` and ``filled.csv``,
of a gpssm ``states.csv``. ``in-use.lock`` is locked by the process that works on it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ppl_dgp import checkpoint
from ppl_dgp.checkpoint import LOCK, UNFINISHED
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.settings import Settings
from ppl_dgp.data import DataError, Standardiser
from ppl_dgp.data.encoding import Encoding
from ppl_dgp.data.labels import Label

RUN_FORMAT = 1
CONFIG = "config.json"
STATUSES = ("training", "interrupted", "done")


@dataclass(frozen=True)
class Record:
    """Contents of ``config.json``. ``status`` is training, interrupted or done; ``result`` is empty until done."""

    settings: Settings
    source: str
    fingerprint: str
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    x_units: Standardiser
    y_units: Standardiser
    num_train: int
    num_test: int
    status: str = "training"
    result: dict[str, Any] = field(default_factory=dict)
    #: what the source calls its sequences, of a series
    sequences: tuple[str, ...] = ()
    #: the date of the last step of each, in days, of a series whose steps have dates and differ in length
    ends: tuple[tuple[float, ...], ...] = ()
    #: of classes, sorted, which the target's numbers count
    labels: tuple[Label, ...] = ()
    #: which features were words or dates
    encoding: Encoding = field(default_factory=Encoding)
    #: how the source was read, and what was left out, a sentence each
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int | None:
        """C, None where the targets are numbers."""
        return len(self.labels) or None

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": RUN_FORMAT,
            "status": self.status,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "features": list(self.feature_names),
            "targets": list(self.target_names),
            "sequences": list(self.sequences),
            "ends": list(self.ends),
            "labels": list(self.labels),
            "encoding": self.encoding.to_json(),
            "notes": list(self.notes),
            "train_rows": self.num_train,
            "test_rows": self.num_test,
            "settings": self.settings.to_json(),
            "standardise": {"x": self.x_units.to_dict(), "y": self.y_units.to_dict()},
            "result": self.result,
        }


def fresh_folder(out: str | None, stem: str, remedy: str) -> Path:
    """The folder to write, not yet made: ``out`` if it is free, else the first free ``runs/STEM-NUMBER``."""
    if out is None:
        number = 1
        safe = re.sub(r"[^\w.-]+", "-", stem)
        while (folder := Path("runs") / f"{safe}-{number}").exists():
            number += 1
        return folder
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out {out!r} is a file", "name a directory that is empty or does not exist")
    if folder.is_dir() and not all(map(_left_by_the_dead, folder.iterdir())):
        raise BadInput(f"--out {out!r} is not empty", remedy)
    return folder


def _left_by_the_dead(entry: Path) -> bool:
    """Whether it is what a run that was killed before it was recorded leaves."""
    return entry.name == LOCK or entry.name.endswith(UNFINISHED)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run directory, made if need be; what a run that was killed had begun to write is removed.

    :raises CheckpointError: if another process holds it.
    """
    with checkpoint.alone_in(folder):
        for begun in (*folder.glob(f".*{UNFINISHED}"), *folder.glob(f"figures/.*{UNFINISHED}")):
            shutil.rmtree(begun, ignore_errors=True)
        yield


def read(folder: Path) -> Record:
    """The record of a run directory. Raises BadInput if it is none, or damaged."""
    path = folder / CONFIG
    if not folder.is_dir() or not path.is_file():
        raise BadInput(
            f"{str(folder)!r} is not a run directory (it has no {CONFIG})",
            "give one that 'ppl-dgp fit' wrote",
        )
    check_links(folder)
    try:
        values = checkpoint.parsed_json(path.read_text(encoding="utf-8"))
        if values["format"] != RUN_FORMAT:
            raise ValueError
        record = Record(
            settings=Settings.from_json(values["settings"]),
            source=_text(values["source"]),
            fingerprint=_text(values["fingerprint"]),
            feature_names=_texts(values["features"]),
            target_names=_texts(values["targets"]),
            x_units=Standardiser.from_dict(values["standardise"]["x"]),
            y_units=Standardiser.from_dict(values["standardise"]["y"]),
            num_train=_count(values["train_rows"]),
            num_test=_count(values["test_rows"]),
            status=_text(values["status"]),
            result=dict(values["result"]),
            sequences=_texts(values.get("sequences", [])),
            ends=tuple(map(_finite, values.get("ends", []))),
            labels=_labels(values.get("labels", [])),
            encoding=Encoding.from_json(values.get("encoding", {"categories": {}, "dates": []})),
            notes=_texts(values.get("notes", [])),
        )
        if record.status not in STATUSES or not all(map(_is_plain, record.result.values())):
            raise ValueError
        lengths = len(record.x_units.mean), len(record.y_units.mean)
        if lengths != (len(record.feature_names), len(record.target_names)):
            raise ValueError
        if record.ends and len(record.ends) != len(record.sequences):
            raise ValueError
        if record.settings.of_classes != (len(record.labels) > 1):
            raise ValueError
        if record.settings.label_order is None and list(record.labels) != sorted(record.labels):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, DataError):
        raise BadInput(
            f"run directory {str(folder)!r} is damaged ({CONFIG} is not what 'ppl-dgp fit' wrote)",
            "restore it from a copy, or fit again",
        ) from None
    return record


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError
    "".join(map(_text, values)).encode()  # a half of a surrogate pair can be neither shown nor written
    return tuple(values)


def _finite(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise TypeError
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise ValueError
    return tuple(map(float, values))


def _labels(values: Any) -> tuple[Label, ...]:
    """Labels, all words or all numbers, no two the same."""
    if not isinstance(values, list) or not values:
        return _texts(values)
    if isinstance(values[0], str):
        labels: tuple[Label, ...] = _texts(values)
    elif all(type(value) in (int, float) and math.isfinite(value) for value in values):
        labels = tuple(values)
    else:
        raise TypeError
    if len(set(labels)) != len(labels):
        raise ValueError
    return labels


def _count(value: Any) -> int:
    if not checkpoint.is_count(value):
        raise TypeError
    return value


def _is_plain(value: Any) -> bool:
    """Whether it is what results are: a number, text, nothing, or a list of those."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, float | int | str)


def check_links(folder: Path) -> None:
    """Raise BadInput if a link in a directory leads out of it or nowhere, or is a pipe or device without end."""
    home = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in sorted(folders + files):
            path = Path(place) / name
            if path.is_symlink():
                try:
                    found = path.resolve(strict=True).is_relative_to(home)
                except (OSError, RuntimeError):  # nothing there, or a circle
                    found = False
                what = "a link that leads out of it"
            else:
                found, what = path.is_file() or path.is_dir() or not path.exists(), "no plain file"
            if not found:
                raise BadInput(
                    f"{str(folder)!r} holds {str(path.relative_to(folder))!r}, {what}",
                    "put in its place what it stands for, or fit again",
                )


def check_same_data(folder: Path, earlier: Record | None, record: Record) -> None:
    """Raise BadInput if the run that is to go on was fitted on other data."""
    if earlier is not None and earlier.fingerprint != record.fingerprint:
        raise BadInput(
            f"run directory {str(folder)!r} was fitted on other data than {record.source!r}",
            "resume with the source it was made of, or choose another --out",
        )


def write(folder: Path, record: Record) -> None:
    """Make the folder if need be and write or replace its ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record.to_json(), indent=1, allow_nan=False)
    place(folder / CONFIG, lambda path: path.write_text(text + "\n"))


def place(path: Path, make: Callable[[Path], object]) -> None:
    """Let ``make`` write a file of a temporary name beside ``path``, then move it there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED))
    try:
        make(scratch / path.name)
        os.replace(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def save_parameters(folder: Path, params: dict[str, Any], training: dict[str, np.ndarray]) -> None:
    """The fitted parameters and, for a model that predicts from them, the standardised training rows."""
    checkpoint.save(folder / "parameters", {"params": params, "training": training}, {})


def foreign_parameters(folder: Path, cause: object) -> BadInput:
    """The error of parameters that are not those of a fit under the run's settings."""
    return BadInput(
        f"run directory {str(folder)!r} holds parameters of something else ({cause})",
        "restore it from a copy, or fit again",
    )


def training_rows(
    folder: Path, record: Record, training: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The rows and targets that a gp or gpssm predicts from, None of others. Raises BadInput if they cannot be it."""
    if record.settings.model not in ("gp", "gpssm"):
        return None
    of_sequences = len(record.sequences) > 1  # their numbers are a column of the rows
    widths = {"x": len(record.feature_names) + of_sequences, "y": len(record.target_names)}
    found = {name: np.asarray(training.get(name, np.empty(0))) for name in widths}
    for name, array in found.items():
        shape, missing = (record.num_train, widths[name]), name == "y" and record.settings.model == "gpssm"
        sound = array.shape == shape and array.dtype.kind == "f"
        if not sound or not (np.isfinite(array) | (missing & np.isnan(array))).all():
            raise foreign_parameters(folder, f"training/{name} is not finite numbers of shape {shape}")
    return found["x"], found["y"]


def load_parameters(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inverse of ``save_parameters``. Raises BadInput or CheckpointError if nothing sound is there."""
    if not (folder / "parameters").is_dir():
        raise BadInput(
            f"run directory {str(folder)!r} holds no parameters yet",
            "finish it with 'ppl-dgp fit ... --resume'",
        )
    state, _ = checkpoint.load(folder / "parameters")
    for name, value in state.items():
        if name.startswith("params/") and not np.isfinite(np.asarray(value)).all():
            raise foreign_parameters(folder, f"{name.removeprefix('params/')!r} is not finite")
    halves: dict[str, dict[str, Any]] = {"params": {}, "training": {}}
    for name, value in state.items():
        half, _, rest = name.partition("/")
        halves.setdefault(half, {})[rest] = value
    return halves["params"], halves["training"]
