"""A run directory: what a fit was asked, what it found, and how to load it again. Every file is written whole.

``config.json`` (settings, data, standardisation, results), ``parameters/`` (safetensors), ``checkpoint/`` (the state of
training), ``predictions.csv``, ``posterior.nc``, ``figures/*.png``; of a gplvm also ``latents.csv`` and ``filled.csv``,
of a gpssm ``states.csv``. ``in-use.lock`` is locked by the process that works on it.
"""

from __future__ import annotations

import json
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

RUN_FORMAT = 1
CONFIG = "config.json"


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
    try:
        values = json.loads(path.read_text())
        if values["format"] != RUN_FORMAT:
            raise ValueError
        record = Record(
            settings=Settings.from_json(values["settings"]),
            source=str(values["source"]),
            fingerprint=str(values["fingerprint"]),
            feature_names=tuple(map(str, values["features"])),
            target_names=tuple(map(str, values["targets"])),
            x_units=Standardiser.from_dict(values["standardise"]["x"]),
            y_units=Standardiser.from_dict(values["standardise"]["y"]),
            num_train=int(values["train_rows"]),
            num_test=int(values["test_rows"]),
            status=str(values["status"]),
            result=dict(values["result"]),
            sequences=tuple(map(str, values.get("sequences", ()))),
        )
        lengths = len(record.x_units.mean), len(record.y_units.mean)
        if lengths != (len(record.feature_names), len(record.target_names)):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError, DataError):
        raise BadInput(
            f"run directory {str(folder)!r} is damaged ({CONFIG} is not what 'ppl-dgp fit' wrote)",
            "restore it from a copy, or fit again",
        ) from None
    return record


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


def load_parameters(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inverse of ``save_parameters``. Raises BadInput or CheckpointError if nothing sound is there."""
    if not (folder / "parameters").is_dir():
        raise BadInput(
            f"run directory {str(folder)!r} holds no parameters yet",
            "finish it with 'ppl-dgp fit ... --resume'",
        )
    state, _ = checkpoint.load(folder / "parameters")
    halves: dict[str, dict[str, Any]] = {"params": {}, "training": {}}
    for name, value in state.items():
        half, _, rest = name.partition("/")
        halves.setdefault(half, {})[rest] = value
    return halves["params"], halves["training"]
