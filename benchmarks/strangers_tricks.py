"""What somebody would do who knows a kind of file: absurd shapes and counts, bombs, pickles, names that lead out."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.strangers_files import ABSURD, ROWS, Random, mutated_json

#: bytes that a small file expands to
EXPANDED = 3 * 2**29


class Payload:
    """Unpickled, it makes a file where none may be."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ../outside/executed; touch outside/executed",)


def make_bombs(folder: Path) -> None:
    """Write to ``folder`` small files that expand to ``EXPANDED`` bytes."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rows, block = EXPANDED // 16, bytes(2**24)
    for name, method in (("deflate", zipfile.ZIP_DEFLATED), ("bzip2", zipfile.ZIP_BZIP2)):
        with zipfile.ZipFile(folder / f"{name}.npz", "w", method, compresslevel=1) as archive:
            with archive.open("y.npy", "w") as member:
                np.save(member, np.arange(float(rows // 2**20)))
            with archive.open("X.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(
                    member, {"descr": "<f8", "fortran_order": False, "shape": (rows, 2)}
                )
                for _ in range(EXPANDED // len(block)):
                    member.write(block)
    same = pa.table({name: np.ones(2**20) for name in "aby"})
    for name, groups in (
        ("groups", 8),
        ("many", EXPANDED // 2**20 // 24),
    ):  # the first only as a whole too large
        with pq.ParquetWriter(folder / f"{name}.parquet", same.schema) as writer:
            if name == "groups":
                for _ in range(groups):
                    writer.write_table(same)
            else:  # one row group
                writer.write_table(pa.concat_tables([same] * groups), row_group_size=2**27)
    with h5py.File(folder / "fill.nc", "w") as file:  # nothing of it is stored
        file.create_dataset(
            "posterior/mu", shape=(EXPANDED // 8,), dtype="f8", chunks=(2**20,), fillvalue=1.0
        )


def csv(data: bytes, rng: Random, bombs: Path) -> bytes:
    """Text that is hardly a table."""
    head, _, body = data.partition(b"\n")
    return [
        lambda: data.replace(b"0", b"9" * int(rng.choice([400, 5000, 10**5])), 3),
        lambda: data.replace(b".", rng.choice([b"e999", b"NaN", b"inf", b"1e400.", b"\x00", b"0x", b"-"]), 5),
        lambda: b",".join(b"c%d" % n for n in range(2000)) + b"\n" + b",".join([b"1"] * 2000) + b"\n" + data,
        lambda: head + b'\n"' + body,
        lambda: head.replace(b"a", rng.choice([b"../../x", b'"two\nlines"', b"\x1b[2J", b"[/red]"])) + b"\n" + body,
        lambda: data.decode().encode(str(rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7"]))),
        lambda: head + b"\n" + body.replace(b"\n", b"\r", int(rng.integers(1, 9))),
        lambda: head + b"\n" + body.replace(b",", rng.choice([b";", b"\t", b",,", b"\0,", b'","']), 7),
        lambda: data.replace(b"-", rng.choice([b"=cmd|' /C calc'!A0", b"2020-01-01", b"1+2j", b"True", b"\xff\xfe"])),
        lambda: (b"[" * 10**5) + data,
        lambda: head + b"\n",
        lambda: data + body.splitlines()[0] * 3 + b"\n" + b"1e308,1e308,1e308\n" * 3,
    ][int(rng.integers(12))]()  # fmt: skip


def parquet(data: bytes, rng: Random, bombs: Path) -> bytes:
    """Types, metadata and counts that no table of numbers has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (choice := int(rng.integers(8))) == 0:
        return (bombs / str(rng.choice(["groups.parquet", "many.parquet"], p=[0.1, 0.9]))).read_bytes()
    if choice < 3:  # the footer alone
        length = struct.unpack("<I", data[-8:-4])[0]
        footer = bytearray(data[-8 - length :])
        for _ in range(int(rng.integers(1, 6))):
            footer[int(rng.integers(len(footer)))] = int(rng.integers(256))
        return data[: -8 - length] + bytes(footer)
    numbers = pa.array(np.arange(float(ROWS)))
    odd = {
        "list": pa.array([[1.0]] * ROWS),
        "struct": pa.array([{"a": 1}] * ROWS),
        "binary": pa.array([pickle.dumps(Payload())] * ROWS),
        "time": pa.array([2**62] * ROWS, pa.timestamp("us")),
        "decimal": pa.array([None] * ROWS, pa.decimal256(70, 3)),
        "classes": pa.array(["1e999"] * ROWS).dictionary_encode(),
        "half": pa.array(np.ones(ROWS, np.float16)),
        "nothing": pa.nulls(ROWS),
        "flags": pa.array([True, None] * (ROWS // 2)),
        "large": pa.array([2**64 - 1] * ROWS, pa.uint64()),
    }
    name = str(rng.choice(["a", "..", "two\nlines", "a\0b", "", "y", "__index_level_0__"]))
    table = pa.table([numbers, odd[str(rng.choice(list(odd)))], numbers], ["b", name, "y"])
    pandas = json.dumps({"index_columns": ["b"], "columns": [], "column_indexes": [], "pandas_version": "9"})
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload()),
    }
    if choice == 3:
        field = pa.field("b", pa.float64(), metadata=extension)
        table = table.cast(pa.schema([field, *list(table.schema)[1:]]))
    elif choice < 6:
        text = rng.choice([mutated_json(pandas, rng), pandas.replace('["b"]', '["../x"]')])
        table = table.replace_schema_metadata({b"pandas": str(text).encode(errors="surrogatepass")})
    out = io.BytesIO()
    pq.write_table(table, out, store_schema=bool(rng.integers(2)))
    return out.getvalue()


def _header(rng: Random) -> bytes:
    """What stands before the numbers of a ``.npy``: absurd, or no literal."""
    shape = rng.choice(
        ["(12, 3)", f"({10**12}, 3)", f"({2**63}, 2)", "(-3, 4)", "(0, 3)", f"(0, {2**62})", "12", "(12.0, 3)", "()",
         "(" + "1, " * 70 + ")", f"({2**31}, {2**31}, 4)", "(True, 36)", "__import__('os').system('touch executed')",
         "(" * 200 + ")" * 200, "12," * 5000, f"({2**27}, 3)"]
    )  # fmt: skip
    kind = rng.choice(
        ["'<f8'", "'|O'", "'<U1000000000'", "'V0'", "'<M8[s]'", "'<c16'", "'<f16'", "[('a', '<f8'), ('a', '<f8')]",
         "'|b1'", "[('a', '<f8', (1000000,))]", "'f8,O'", "'os.system'",
         "[('two\\nlines', '<f8'), ('y', '<f8')]", "None", "'<f2'"]
    )  # fmt: skip
    if rng.integers(2):
        shape = shape if rng.integers(2) else "(12, 3)"
        kind = "'<f8'" if shape != "(12, 3)" else kind
    text = f"{{'descr': {kind}, 'fortran_order': {rng.choice(['False', 'True', '3'])}, 'shape': {shape}, }}"
    body = text.encode().ljust(118) + b"\n"
    version = int(rng.choice([1, 2, 3, 9]))
    size = struct.pack("<H" if version == 1 else "<I", int(rng.choice([len(body), len(body), 0, 65535])))
    return b"\x93NUMPY" + bytes([version, 0]) + size + body


def npy(data: bytes, rng: Random, bombs: Path) -> bytes:
    """An absurd header, or objects, before numbers."""
    if rng.integers(8) == 0:
        out = io.BytesIO()
        np.save(out, np.array([[Payload()] * 3] * 2, dtype=object), allow_pickle=True)
        return out.getvalue()
    if rng.integers(8) == 0:
        return pickle.dumps(Payload(), int(rng.integers(6)))
    return _header(rng) + data[128:]


def npz(data: bytes, rng: Random, bombs: Path) -> bytes:
    """An archive of odd members, of names that lead out, or that expands a thousandfold."""
    if (choice := int(rng.integers(8))) == 0:
        return (bombs / str(rng.choice(["deflate.npz", "bzip2.npz"]))).read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = str(rng.choice(list(members)))
    if choice < 4:
        members[name] = npy(members[name], rng, bombs)
    elif choice == 4:
        leading = ["../X.npy", "/tmp/X.npy", "..\\..\\X.npy", "X.npy/", "two\nlines.npy", "con", "X"]
        members[str(rng.choice(leading))] = members.pop(name)
    elif choice == 5:
        members[str(rng.choice(["feature_names", "target_name", "train", "test"])) + ".npy"] = _header(rng)
    elif choice == 6:
        members[name] = rng.choice([b"", data, pickle.dumps(Payload()), b"\x93NUMPY"])
    out = io.BytesIO()
    method = int(rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]))
    with zipfile.ZipFile(out, "w", method) as archive:
        for each, content in members.items():
            archive.writestr(each, content)
    found = bytearray(out.getvalue())
    if choice == 7 and (at := found.find(b"PK\x01\x02")) >= 0:
        # sizes, method, flags, offset of a member as its directory has them
        place = at + int(rng.choice([8, 10, 16, 20, 24, 28, 42]))
        found[place : place + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31, 2**32 - 1, 99])))
    return bytes(found)


def netcdf(data: bytes, rng: Random, bombs: Path) -> bytes:
    """Groups that contain themselves, links to other files, shapes without data, attributes that mean something."""
    import h5py

    if (choice := int(rng.integers(10))) == 0:
        return (bombs / "fill.nc").read_bytes()
    with h5py.File(io.BytesIO(data), "r") as valid:
        groups = list(valid)
    out = io.BytesIO(data)
    with h5py.File(out, "r+") as file:
        group = file[str(rng.choice(groups))]
        names = [name for name in group if isinstance(group[name], h5py.Dataset)]
        dataset = group[str(rng.choice(names))]
        match choice:
            case 1:
                group[str(rng.choice(["self", "deep"]))] = file if rng.integers(2) else h5py.SoftLink("/")
            case 2:
                group["out"] = h5py.ExternalLink(
                    str(rng.choice(["../outside/kept.txt", "/etc/passwd", "no"])), "/"
                )
            case 3:
                shape = [(10**6, 10**6), (2**40,), (10**9, 1), (2**60,)][int(rng.integers(4))]
                group.create_dataset(
                    "huge", shape=shape, dtype="f8", chunks=tuple(min(1000, n) for n in shape)
                )
            case 4:
                group.create_dataset("raw", shape=(20,), dtype="u1", external=[("outside/kept.txt", 0, 20)])
            case 5:
                for _ in range(400):
                    group = group.create_group("a")
            case 6:
                group.create_dataset("object", data=np.void(pickle.dumps(Payload())))
            case 7:
                group.move(
                    dataset.name.rpartition("/")[2], str(rng.choice([".. ", "a.b", "two\nlines", " "]))
                )
            case 8:
                del dataset.parent[dataset.name.rpartition("/")[2]]
            case 9:
                pass
        if choice in (6, 9):
            place = [file, group, dataset][int(rng.integers(3))] if dataset else file
            name = ["units", "coordinates", "_FillValue", "scale_factor", "calendar", "DIMENSION_LIST", "CLASS",
                    "created_at", "_Netcdf4Dimid", "dtype"][int(rng.integers(10))]  # fmt: skip
            value = [
                "days since 0000-99-99",
                "seconds since 1e30",
                "x y z",
                np.nan,
                "x" * 60_000,
                2**63,
                [1, 2],
                "datetime",
            ]
            place.attrs[name] = value[int(rng.integers(len(value)))]
    return out.getvalue()


def safetensors(data: bytes, rng: Random, bombs: Path) -> bytes:
    """Lengths, shapes, types and offsets of the header that do not fit its numbers, and JSON within JSON."""
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if (choice := int(rng.integers(7))) == 0:
        return struct.pack("<Q", int(rng.choice([0, 1, 2**31, 2**62, 2**63 - 1, length + 8]))) + data[8:]
    names = [name for name in header if name != "__metadata__"]
    name = str(rng.choice(names))
    match choice:
        case 1:
            header[name]["shape"] = ABSURD[int(rng.integers(len(ABSURD)))]
        case 2:
            header[name]["shape"] = [[2**40, 2**30], [0, 2**62], [-1, 4], [1] * 70, [2**64]][
                int(rng.integers(5))
            ]
        case 3:
            header[name]["dtype"] = str(
                rng.choice(["BF16", "F8_E4M3", "F16", "U64", "BOOL", "X", "C64", "I8"])
            )
        case 4:
            header[name]["data_offsets"] = [[0, 2**62], [-8, 8], [8, 0], [0, 8]][int(rng.integers(4))]
        case 5:
            header[str(rng.choice(["../../x", "/etc/passwd", "a\0b", "", "two\nlines"]))] = header.pop(name)
    text = mutated_json(json.dumps(header), rng) if choice == 6 else json.dumps(header)
    encoded = text.encode(errors="surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded + body


TRICKS: dict[str, Callable[[bytes, Random, Path], bytes]] = {
    "csv": csv, "parquet": parquet, "npz": npz, "npy": npy, "netcdf": netcdf, "safetensors": safetensors,
}  # fmt: skip
