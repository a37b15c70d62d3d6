"""Valid files of each kind that a stranger may hand over, and mutations that know nothing of the kind."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("csv", "parquet", "npz", "npy", "netcdf", "safetensors", "json", "run")
ENDINGS = {"netcdf": "nc"}
Random = np.random.Generator

#: rows of the tables, enough to be split and few enough to be fitted at once
ROWS = 12


def make_valid(folder: Path) -> None:
    """Write valid files of every kind to ``folder/KIND``, and run directories to ``folder/run``."""
    import h5py
    import pandas as pd

    from ppl_dgp.cli import main

    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 2)), rng.normal(size=(ROWS, 1))
    plain = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y[:, 0]})
    odd = plain.assign(a=np.arange(ROWS), b=np.where(np.arange(ROWS) == 3, np.nan, plain["b"]))
    rows = folder / "csv" / "0.csv"
    plain.to_csv(rows, index=False)
    odd.to_csv(folder / "csv" / "1.csv")
    plain.round(2).to_csv(folder / "csv" / "2.csv", index=False, quoting=1, lineterminator="\r\n")
    plain.to_parquet(folder / "parquet" / "0.parquet")
    odd.to_parquet(folder / "parquet" / "1.parquet", compression="gzip", row_group_size=5)
    plain.to_parquet(folder / "parquet" / "2.parquet", compression="zstd", index=False)
    np.savez(folder / "npz" / "0.npz", X=x, y=y[:, 0])
    split = {"train": np.arange(9), "test": np.arange(9, 12)}
    np.savez_compressed(folder / "npz" / "1.npz", X=x, y=y, feature_names=np.array(["a", "b"]), **split)
    np.savez(folder / "npz" / "2.npz", X=x.astype(np.float32), y=np.arange(ROWS), u=x[:, :1])
    np.save(folder / "npy" / "0.npy", np.hstack([x, y]))
    np.save(folder / "npy" / "1.npy", np.asfortranarray(np.hstack([x, y]).astype(np.float32)))
    table = np.zeros(ROWS, dtype=[("a", "<f8"), ("b", "<i4"), ("y", "<f4")])
    table["a"], table["b"], table["y"] = x[:, 0], np.arange(ROWS), y[:, 0]
    np.save(folder / "npy" / "2.npy", table)
    for number, choice in enumerate((["gp"], ["sparse-gp", "--inducing", "3"])):
        run = folder / "run" / str(number)
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(["fit", str(rows), "--model", *choice, "--steps", "2", "--quiet", "--out", str(run)])
        if code:
            raise SystemExit(code)
        shutil.copy(run / "posterior.nc", folder / "netcdf" / f"{number}.nc")
        for figure in list((run / "figures").iterdir())[1:]:
            figure.unlink()
    with h5py.File(folder / "netcdf" / "2.nc", "w", libver="latest") as file:
        file.create_dataset("posterior/mu", data=rng.normal(size=(1, 10)), compression="gzip")
    _save_fits(folder / "safetensors", x, y)


def _save_fits(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    import jax

    from ppl_dgp.fit import fit_svi
    from ppl_dgp.guides import Guide, MeanField
    from ppl_dgp.models import deep_gp, sparse_gp_regression
    from ppl_dgp.objectives import PowerEP

    sparse, deep = sparse_gp_regression(3), deep_gp((1,), 3, likelihood="student-t")
    for number, (model, guide, restarts) in enumerate(
        ((sparse, Guide(sparse), 1), (deep, Guide(deep, hidden=MeanField()), 2))
    ):
        fit = fit_svi(jax.random.key(0), model, guide, PowerEP(0.5), x, y, steps=2, restarts=restarts)
        fit.save(folder / f"{number}.safetensors")


def _bit_flips(data: bytearray, rng: Random, others: list[bytes]) -> None:
    for _ in range(rng.integers(1, 9)):
        data[_place(data, rng)] ^= 1 << int(rng.integers(8))


def _bytes_set(data: bytearray, rng: Random, others: list[bytes]) -> None:
    for _ in range(rng.integers(1, 4)):
        data[_place(data, rng)] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22]))


def _count_set(data: bytearray, rng: Random, others: list[bytes]) -> None:
    """A number of 4 or 8 bytes is absurd."""
    at, size = _place(data, rng), int(rng.choice([4, 8]))
    number = int(rng.choice([0, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**40]))
    data[at : at + size] = struct.pack("<Q", number)[:size]


def _truncated(data: bytearray, rng: Random, others: list[bytes]) -> None:
    del data[int(rng.integers(len(data))) :]


def _deleted(data: bytearray, rng: Random, others: list[bytes]) -> None:
    at = _place(data, rng)
    del data[at : at + int(rng.integers(1, 65))]


def _doubled(data: bytearray, rng: Random, others: list[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = data[at : at + int(rng.integers(1, 257))] * int(rng.integers(1, 4))


def _swapped(data: bytearray, rng: Random, others: list[bytes]) -> None:
    size = int(rng.integers(1, 17))
    one, other = _place(data, rng), _place(data, rng)
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def _spliced(data: bytearray, rng: Random, others: list[bytes]) -> None:
    """The beginning of this file, and the end of another valid one."""
    other = others[int(rng.integers(len(others)))]
    data[int(rng.integers(len(data))) :] = other[int(rng.integers(len(other))) :]


def _of_another_kind(data: bytearray, rng: Random, others: list[bytes]) -> None:
    """The header of another kind."""
    other = others[int(rng.integers(len(others)))]
    size = int(rng.choice([4, 8, 16, 64, 128]))
    data[:size] = other[:size]


def _noise(data: bytearray, rng: Random, others: list[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = rng.bytes(int(rng.integers(1, 129)))


def _place(data: bytearray, rng: Random) -> int:
    """Anywhere, or as often in what is a header or a footer in most kinds."""
    length = max(len(data), 1)
    near = min(length, 256)
    return int(rng.choice([rng.integers(length), rng.integers(near), length - 1 - rng.integers(near)]))


MUTATIONS: tuple[Callable[[bytearray, Random, list[bytes]], None], ...] = (
    _bit_flips, _bytes_set, _count_set, _truncated, _deleted, _doubled, _swapped, _spliced, _of_another_kind, _noise,
)  # fmt: skip


def mutated(data: bytes, rng: Random, same: list[bytes], foreign: list[bytes]) -> bytes:
    """One to three mutations of a valid file, beside others of its kind and files of other kinds."""
    found = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        if not found:
            break
        mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        mutation(found, rng, foreign if mutation is _of_another_kind else same)
    return bytes(found)


#: what stands in JSON where something else should
ABSURD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1.5, 1e308, 10**400, 2**63, -(2**31), 10**9, float("nan"), float("inf"), "", "x" * 10**5,
    "../../outside/kept.txt", "/etc/passwd", "..", ".", "a\0b", "\ud800", "two\nlines", "[/red]", "\x1b[2J", "nan",
    [], {}, [[]], [1, "a", None], {"a": 1}, {"given": "model"}, {"float": "x"}, {"float": "1e999"}, {"numpy": "losses"},
    {"name": "os:system"}, {"name": "ppl_dgp.cli.__main__:main"}, {"name": "ppl_dgp.checkpoint:replace_file"},
    {"type": "pathlib:Path", "arguments": {}}, {"type": "ppl_dgp.data.parquet:ParquetSource", "arguments": {}},
    {"type": "Fit", "arguments": {}}, {"type": "MeanField", "arguments": {"no": 1}}, {"tuple": 3}, {"dict": []},
)  # fmt: skip


def mutated_json(text: str, rng: Random) -> str:
    """JSON with one to three values, keys or levels replaced; the text itself may be absurd."""
    match int(rng.integers(12)):
        case 0:
            return '{"format": 1, "meta": ' + "[" * 10**5 + "]" * 10**5 + "}"
        case 1:
            return text.replace(": ", ": " + '{"a": ' * 2000, 1) + "}" * 2000
        case 2:
            return text.replace("1", "9" * int(rng.choice([400, 5000, 10**5])), 1)
        case 3:
            return str(
                rng.choice(["", "null", "[]", "3", '"text"', "{}", "\ufeff{}", "NaN", '{"format": 1}'])
            )
    tree = json.loads(text)
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        _edit(tree, rng)
    changed = json.dumps(tree)
    return changed.replace("{", '{"format": 1, ', 1) if rng.integers(20) == 0 else changed


def _edit(tree: Any, rng: Random) -> None:
    places: list[tuple[Any, Any]] = []
    levels = [tree]
    while levels:
        level = levels.pop()
        for key in level if isinstance(level, dict) else range(len(level)):
            places.append((level, key))
            if isinstance(level[key], dict | list):
                levels.append(level[key])
    if not places:
        return
    level, key = places[int(rng.integers(len(places)))]
    match int(rng.integers(6)):
        case 0:
            del level[key]
        case 1 if isinstance(level, dict):
            level[str(rng.choice(["..", "/", "a\0b", "", "__class__", "self"]))] = level.pop(key)
        case 2:
            other, place = places[int(rng.integers(len(places)))]
            level[key], other[place] = json.loads(json.dumps([other[place], level[key]]))
        case 3:
            value: Any = ABSURD[int(rng.integers(len(ABSURD)))]
            for _ in range(int(rng.choice([1, 10, 120, 400]))):
                value = [value] if rng.integers(2) else {"tuple": [value]}
            level[key] = value
        case _:
            level[key] = ABSURD[int(rng.integers(len(ABSURD)))]
