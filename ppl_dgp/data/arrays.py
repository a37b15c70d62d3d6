"""Arrays of ``.npy`` and ``.npz`` files, and how much any file may expand to.

Shapes are held against the bytes that are there before memory is taken for them.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from ppl_dgp.messages import DataError

#: bytes in memory, and times the bytes of its file, that what is compressed may come to; beyond both it is refused
MOST_EXPANDED, MOST_RATIO = 2**27, 100
_ENCRYPTED = 0x1


def check_expansion(path: Path, size: int, most: int = MOST_EXPANDED) -> None:
    """Raise DataError if ``size`` bytes in memory are more than ``most`` and out of all proportion to the file."""
    stored = path.stat().st_size
    if size > max(most, MOST_RATIO * stored):
        raise DataError(
            f"{path.name}: found {size} bytes in memory out of a file of {stored}, expected at most {MOST_RATIO} times "
            "as many; if that is right, write it without compression"
        )


def mapped(path: Path) -> np.ndarray:
    """A ``.npy`` that stays on disk.

    :raises ValueError: if it is none, or its numbers are not those that its header promises.
    """
    with path.open("rb") as file:
        _check_header(file, path.stat().st_size)
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def read_members(path: Path, wanted: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays this program knows of an ``.npz``, and the names of all.

    :raises ValueError: if it is no such archive, or an array is not what its header promises.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("no archive of arrays, which numpy.savez writes")
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in dict.fromkeys((*wanted, "train", "test")):
            if name in members:
                arrays[name] = _member(path, archive, members[name])
        for name in ("feature_names", "target_name"):
            if name in members and name not in arrays:
                try:
                    arrays[name] = _member(path, archive, members[name])
                except ValueError:  # names are a courtesy: without them columns are numbered
                    continue
    return arrays, list(members)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.flag_bits & _ENCRYPTED:
        raise ValueError(f"{info.filename!r} is encrypted")
    check_expansion(path, info.file_size)
    with archive.open(info) as file:
        _check_header(file, info.file_size)
    with archive.open(info) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _check_header(file: IO[bytes] | io.BufferedIOBase, size: int) -> None:
    """Raise ValueError unless the header of a ``.npy`` promises the numbers that follow it, no more and no fewer."""
    version = np.lib.format.read_magic(file)
    # the third version differs from the second in the letters that names of fields may have
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, which would have to be unpickled")
    promised, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    # True is a whole number to NumPy's reader, but no length
    if promised != found or any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"its header promises {dtype} of shape {shape}, found {found} bytes of it")
