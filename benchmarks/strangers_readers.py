"""How files from strangers are read: by everything in this package that takes their kind, and by the command line."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

#: seconds a case may take in process, and through the command line
BUDGET = {"process": 60.0, "command": 240.0}
OWN_PROCESS = 10  # every so many cases of the command line


def read(kind: str, path: Path) -> None:
    """Read a file, or a run directory and write to it as a fit does that goes on, by everything that takes its kind."""
    from ppl_dgp import data
    from ppl_dgp.data.table import Standardiser

    source, errors = str(path), []
    readers: list[Any] = []
    if path.is_dir():
        readers = [lambda: _run(path)]
    elif kind == "netcdf":
        from ppl_dgp.diagnostics import load_arviz

        readers = [lambda: load_arviz(path)]
    elif path.suffix == ".safetensors":
        from ppl_dgp.fit import Fit

        readers = [lambda: repr(Fit.load(path))]
    if kind in ("csv", "parquet", "npz"):

        def table() -> None:
            found = data.load_table(source)
            units = (Standardiser.fit(found.X), Standardiser.fit(found.y))
            _finite(found.X, found.y, *(part for unit in units for part in (unit.mean, unit.scale)))

        readers = [table, lambda: data.load_columns(source), lambda: data.load_series(source)]
        readers.append(lambda: _finite(data.load_rows(source, ["a", "b"], ["y"])[0]))
    if kind in ("npy", "parquet"):

        def rows() -> None:
            opened = data.open_rows(source).standardised()
            opened.fingerprint()
            _finite(next(opened.batches([0], 4))[0])

        readers.append(rows)
    for reader in readers:
        try:
            reader()
        except Exception as error:
            errors.append(error)
    wrong = [error for error in errors if not _is_refusal(error)]
    if wrong or len(errors) == len(readers):  # one that takes the file is enough to have loaded it
        raise (wrong or errors)[0]


def _finite(*arrays: np.ndarray) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise AssertionError("values that are not finite were taken")


def _run(folder: Path) -> None:
    from ppl_dgp import checkpoint
    from ppl_dgp.cli import run_directory
    from ppl_dgp.cli.app import _print_record

    record = run_directory.read(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        _print_record(str(folder), record)
    params, training = run_directory.load_parameters(folder)
    saved = folder / "checkpoint"
    checkpoint.read_meta(saved)
    state, meta = checkpoint.load(saved)
    with checkpoint.alone_in(saved):
        checkpoint.save(saved, state, meta)
    run_directory.save_parameters(folder, params, training)
    run_directory.place(folder / "figures" / "losses.png", lambda path: path.write_bytes(b""))
    run_directory.write(folder, record)


def _is_refusal(error: BaseException) -> bool:
    """Whether an error is one line of those kinds that readers promise, or the system's of a file that is written."""
    from ppl_dgp.checkpoint import CheckpointError
    from ppl_dgp.cli.errors import BadInput
    from ppl_dgp.data import DataError

    text = str(error)
    return (
        isinstance(error, (DataError, CheckpointError, BadInput, OSError)) and bool(text) and "\n" not in text
    )


def in_process(kind: str, path: Path) -> tuple[str, str]:
    """How reading ends: "loaded", "refused", or what is wrong with it."""
    try:
        read(kind, path)
    except Exception as error:
        ended = "refused" if _is_refusal(error) else "wrong error"
        return ended, f"{type(error).__name__}: {error}"
    return "loaded", ""


def command_of(kind: str, number: int, path: Path, valid: Path) -> list[str]:
    """A command that takes the file, and as little else as can be."""
    run, rows, out = str(valid / "run" / "0"), str(valid / "csv" / "0.csv"), str(path.parent / "out")
    tiny = ["--steps", "1", "--quiet", "--out", out]
    if path.is_dir():
        resume = ["fit", rows, "--resume", "--quiet", "--out", str(path)]
        return [["show", str(path)], ["predict", str(path), rows, "--quiet"], resume][number % 3]
    if kind == "npy" or (kind == "parquet" and number % 5 == 0):
        return ["fit", str(path), "--stream", "--model", "sparse-gp", "--inducing", "2", *tiny]
    if kind in ("csv", "parquet", "npz", "netcdf") and number % 5:
        return ["predict", run, str(path), "--quiet"]
    return ["fit", str(path), "--model", "gp", *tiny]


def through_command_line(kind: str, number: int, path: Path, valid: Path) -> tuple[str, str]:
    """How the command ends: "loaded" with exit code 0, "refused" with 2 and one line, or what is wrong with it."""
    command = command_of(kind, number, path, valid)
    if number % OWN_PROCESS == 0:
        run = [sys.executable, "-m", "ppl_dgp.cli", *command]
        ended = subprocess.run(
            run, capture_output=True, text=True, errors="replace", timeout=BUDGET["command"]
        )
        code, said = ended.returncode, ended.stderr
    else:
        from ppl_dgp.cli import main

        error = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
            try:
                code = main(command)
            except Exception as wrong:
                code, detail = 1, f"Traceback: {type(wrong).__name__}: {wrong}"
                error.write(detail)
        said = error.getvalue()
    lines = said.strip().splitlines()
    detail = f"{command[0]}: exit code {code}: {' '.join((lines or [''])[-1].split())}"
    if code == 0 and "Traceback" not in said:
        return "loaded", detail
    if code == 2 and len(lines) == 1 and lines[0].startswith("ppl-dgp: error: "):
        return "refused", detail
    return "wrong end", detail
