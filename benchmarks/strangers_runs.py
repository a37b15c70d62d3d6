"""One case of a kind: a file, or a run directory, made of valid ones and then mutated."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np

from benchmarks.strangers_files import ENDINGS, KINDS, Random, mutated, mutated_json
from benchmarks.strangers_tricks import TRICKS

SEED = 0
CONFIG, INDEX = "config.json", "checkpoint.json"


def make_case(kind: str, number: int, valid: Path, case: Path, for_commands: bool = False) -> Path:
    """The mutated file or run directory, a function of the numbers alone, in ``case``; one that a command reads."""
    rng = np.random.default_rng([SEED, KINDS.index(kind), number])
    case.mkdir()
    if kind == "run":
        return _run(rng, valid, case / "run")
    if kind == "json":
        return _json(rng, valid, case, for_commands)
    if kind == "safetensors" and (for_commands or rng.integers(3) == 0):
        # the arrays of a run, with the digest of what they are
        folder = _copied_run(rng, valid, case / "run")
        part = folder / str(rng.choice(["parameters", "checkpoint"]))
        state = next(part.glob("state-*"))
        _replaced_state(part, _mutated(kind, state.read_bytes(), rng, valid))
        return folder
    sources = _files(valid, kind)
    ending = ENDINGS.get(kind, kind)
    if kind == "netcdf" and for_commands:  # of which none reads netCDF
        ending = str(rng.choice([ending, "csv", "parquet", "npz"]))
    path = case / f"0.{ending}"
    path.write_bytes(_mutated(kind, sources[int(rng.integers(len(sources)))], rng, valid))
    return path


def _mutated(kind: str, data: bytes, rng: Random, valid: Path) -> bytes:
    if rng.integers(2):
        return TRICKS[kind](data, rng, valid / "bombs")
    foreign = [each for other in KINDS[:6] if other != kind for each in _files(valid, other)]
    return mutated(data, rng, _files(valid, kind), foreign)


def _files(valid: Path, kind: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((valid / kind).iterdir())]


def _copied_run(rng: Random, valid: Path, folder: Path) -> Path:
    shutil.copytree(valid / "run" / str(rng.integers(2)), folder)
    return folder


def _replaced_state(part: Path, content: bytes) -> None:
    """Another state of a checkpoint, promised by its index."""
    index = json.loads((part / INDEX).read_text())
    index["sha256"] = hashlib.sha256(content).hexdigest()
    (part / index["data"]).write_bytes(content)
    (part / INDEX).write_text(json.dumps(index))


def _json(rng: Random, valid: Path, case: Path, for_commands: bool) -> Path:
    """The settings of a run, the index of a state, or what the header of a fit says."""
    if rng.integers(3) == 0 and not for_commands:
        fits = _files(valid, "safetensors")
        data = fits[int(rng.integers(len(fits)))]
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + length])
        (entry,) = header["__metadata__"]
        header["__metadata__"][entry] = mutated_json(header["__metadata__"][entry], rng)
        encoded = json.dumps(header).encode()
        path = case / "0.safetensors"
        path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])
        return path
    folder = _copied_run(rng, valid, case / "run")
    place = folder / str(rng.choice([CONFIG, CONFIG, f"parameters/{INDEX}", f"checkpoint/{INDEX}"]))
    if rng.integers(4) == 0:
        data = mutated(place.read_bytes(), rng, [place.read_bytes()], _files(valid, "csv"))
    else:
        data = mutated_json(place.read_text(), rng).encode(errors="surrogatepass")
    place.write_bytes(data)
    return folder


def _run(rng: Random, valid: Path, folder: Path) -> Path:
    """A run directory with one or two things in it that nobody would put there."""
    _copied_run(rng, valid, folder)
    for _ in range(int(rng.choice([1, 1, 2]))):
        entries = sorted(path for path in folder.rglob("*"))
        if not entries:
            break
        entry = entries[int(rng.integers(len(entries)))]
        match int(rng.integers(10)):
            case 0 | 1 | 2:
                _linked(entry, folder, rng)
            case 3:
                _removed(entry)
            case 4:
                _removed(entry)
                entry.mkdir() if rng.integers(2) else os.mkfifo(entry)
            case 5 if entry.is_file():
                others = [path.read_bytes() for path in entries if path.is_file()]
                entry.write_bytes(mutated(entry.read_bytes(), rng, others, _files(valid, "npz")))
            case 6:
                index = folder / str(rng.choice(["parameters", "checkpoint"])) / INDEX
                if index.is_file() and isinstance(values := _as_json(index), dict):
                    outside = folder.parents[1] / "outside" / "kept.txt"
                    values["data"] = str(
                        rng.choice(["../../../outside/kept.txt", str(outside), "..", "", CONFIG])
                    )
                    values["sha256"] = hashlib.sha256(outside.read_bytes()).hexdigest()
                    index.write_text(json.dumps(values))
            case 7:  # what another run has there
                other = (
                    valid
                    / "run"
                    / str(rng.integers(2))
                    / str(rng.choice(["parameters", "checkpoint", CONFIG]))
                )
                place = folder / other.name
                _removed(place)
                shutil.copy(other, place) if other.is_file() else shutil.copytree(other, place)
            case 8:
                _odd_arrays(folder / str(rng.choice(["parameters", "checkpoint"])), rng)
            case 9:
                one, other = folder / "parameters", folder / "checkpoint"
                if one.is_dir() and other.is_dir():
                    one.rename(folder / "kept")
                    other.rename(one)
                    (folder / "kept").rename(other)
    return folder


def _as_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):  # mutated before
        return None


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _linked(entry: Path, folder: Path, rng: Random) -> None:
    """A link in the place of an entry, or beside it under a name that a writer will use."""
    outside = folder.parents[1] / "outside"
    targets = [
        outside / "kept.txt",
        outside,
        outside / "new",
        Path("/dev/zero"),
        folder,
        Path("/etc/passwd"),
        entry,
    ]
    target = targets[int(rng.integers(len(targets)))]
    names = [entry.name, entry.name, "in-use.lock", f".{INDEX}.{os.getpid()}", f".{entry.name}.{os.getpid()}"]
    place = entry.with_name(str(rng.choice(names)))
    if place.parent.is_dir():
        _removed(place)
        place.symlink_to(target)


def _odd_arrays(part: Path, rng: Random) -> None:
    """Arrays of other shapes, types and values than the fit's, well promised."""
    from safetensors.numpy import load, save

    try:
        values = json.loads((part / INDEX).read_text())
        arrays = load((part / values["data"]).read_bytes())
    except Exception:  # mutated before
        return
    if not arrays:
        return
    name = str(rng.choice(sorted(arrays)))
    array = arrays[name]
    match int(rng.integers(7)):
        case 0:
            arrays[name] = np.zeros((2, *array.shape), array.dtype)
        case 1:
            arrays[name] = np.full(array.shape, np.nan).astype(np.float64)
        case 2:
            arrays[name] = array.astype(str(rng.choice(["int8", "float32", "float16", "bool", "complex64"])))
        case 3:
            del arrays[name]
        case 4:
            arrays["../../outside/new"] = arrays.pop(name)
        case 5:
            arrays[name] = np.zeros((0,), array.dtype)
        case 6:
            arrays[name] = -np.abs(array.astype(np.float64)) * 1e300
    _replaced_state(part, save({each: np.ascontiguousarray(value) for each, value in arrays.items()}))
