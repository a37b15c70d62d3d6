"""Saved states: arrays as safetensors, what describes them as JSON, and a crash leaves the former state.

A checkpoint is a directory with ``checkpoint.json`` and one file of arrays that it names together with its
SHA-256. The arrays are written first; replacing ``checkpoint.json`` is the one atomic step that makes the new
state the current one. Nothing is pickled: reading a checkpoint runs no code of whoever wrote it.
"""

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey
from safetensors import SafetensorError
from safetensors.numpy import load as arrays_from_bytes
from safetensors.numpy import save as arrays_to_bytes

try:
    import fcntl
except ImportError:  # Windows has no such locks; there no directory is refused
    fcntl = None  # type: ignore[assignment]

CHECKPOINT_FORMAT = 2
INDEX = "checkpoint.json"
#: names of arrays, none of which leads out of the directory
DATA_FILE = re.compile(r"state-[0-9a-f]{16}\.safetensors")
LOCK = "in-use.lock"
#: how the names of files end that are being written
UNFINISHED = ".unfinished"


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or of another fit; the message is one line with the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def save(directory: str | os.PathLike[str], state: Any, meta: Mapping[str, Any]) -> None:
    """Write ``state`` (a pytree of arrays) and ``meta`` (JSON values) to ``directory``, atomically.

    Dtypes and shapes are kept; typed PRNG keys are stored as their raw uint32 words. A state saved there
    before is replaced only when the new one is complete on disk.

    :raises ValueError: if two leaves have the same name (``{"a/b": …}`` beside ``{"a": {"b": …}}``).
    :raises TypeError: if ``meta`` is not JSON.
    :raises OSError: if the directory cannot be written.
    """
    folder = Path(directory)
    arrays: dict[str, np.ndarray] = {}
    key_types: dict[str, str] = {}
    for name, leaf in _named_leaves(state):
        if name in arrays:
            raise ValueError(
                f"state: found two leaves of the name {name!r}, expected different names; rename one of them"
            )
        if _is_key(leaf):
            key_types[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.array(leaf, order="C")
    content = arrays_to_bytes(arrays)
    digest = hashlib.sha256(content).hexdigest()
    data_file = f"state-{digest[:16]}.safetensors"
    index = {
        "format": CHECKPOINT_FORMAT,
        "data": data_file,
        "sha256": digest,
        "prng_keys": key_types,
        "meta": dict(meta),
    }
    text = json.dumps(index, indent=1, allow_nan=False)
    folder.mkdir(parents=True, exist_ok=True)
    known = (folder / data_file).exists()
    replace_file(folder / data_file, content)
    try:
        replace_file(folder / INDEX, text.encode())
    except BaseException:
        if not known:  # no index names it, and the disk may be full
            (folder / data_file).unlink(missing_ok=True)
        raise
    # states before, and what processes that were killed had begun
    for pattern in ("state-*.safetensors", f".state-*{UNFINISHED}", f".{INDEX}.*{UNFINISHED}"):
        for old in folder.glob(pattern):
            if old.name != data_file:
                old.unlink(missing_ok=True)


def read_meta(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The ``meta`` saved in ``directory``, without reading the arrays.

    :raises CheckpointError: as ``load`` does.
    """
    meta: dict[str, Any] = _read_index(Path(directory))["meta"]
    return meta


def load(directory: str | os.PathLike[str], like: Any = None) -> tuple[Any, dict[str, Any]]:
    """Read what ``save`` wrote: ``(state, meta)``.

    ``like`` is a pytree of the structure, shapes and dtypes expected; the state comes back in that structure.
    Without it the state is a flat dictionary from names (path entries joined by ``/``) to arrays.

    :raises CheckpointError: if there is no checkpoint, if a file is damaged, or if it does not match ``like``.
    """
    folder = Path(directory)
    index = _read_index(folder)
    path = folder / index["data"]
    try:
        content = read_own(path)
    except OSError as error:
        raise _damaged(folder, f"{path.name} cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != index["sha256"]:
        raise _damaged(folder, f"{path.name} does not have the content that {INDEX} promises")
    saved: dict[str, Any] = {}
    try:
        arrays = arrays_from_bytes(content)
        with jax.enable_x64(True):  # read every dtype as it was saved, whatever the current default precision
            for name, value in arrays.items():
                kind = index["prng_keys"].get(name)
                saved[name] = (
                    jax.random.wrap_key_data(jnp.array(value), impl=kind) if kind else jnp.array(value)
                )
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, f"{path.name} does not hold arrays of a fit ({error})") from None
    return (saved if like is None else _arrange(folder, saved, like)), index["meta"]


def _arrange(folder: Path, saved: Mapping[str, Any], like: Any) -> Any:
    """The saved arrays in the structure of ``like``, each checked against the leaf it replaces."""
    expected = dict(_named_leaves(like))
    if differing := sorted(saved.keys() ^ expected.keys()):
        where = "only in the checkpoint" if differing[0] in saved else "missing from the checkpoint"
        raise _mismatch(folder, f"{differing[0]!r} is {where}")
    for name, leaf in expected.items():
        found, wanted = saved[name], leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise _mismatch(
                folder,
                f"{name!r}: found {found.dtype}{found.shape}, expected {wanted.dtype}{tuple(wanted.shape)}",
            )
    return jax.tree.unflatten(jax.tree.structure(like), [saved[name] for name in expected])


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Leaves in order, each with the entries of its path joined by ``/``."""
    return [
        ("/".join(map(_entry, path)) or "value", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _entry(entry: Any) -> str:
    match entry:
        case DictKey() | FlattenedIndexKey():
            return str(entry.key)
        case SequenceKey():
            return str(entry.idx)
        case GetAttrKey():
            result: str = entry.name
            return result
    return str(entry)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = parsed_json(read_own(folder / INDEX).decode())
        if index["format"] != CHECKPOINT_FORMAT:
            raise CheckpointError(
                f"checkpoint {folder}: found format {index['format']}, expected {CHECKPOINT_FORMAT}; "
                "read it with the version of ppl_dgp that wrote it"
            )
        if not isinstance(index["meta"], dict) or not isinstance(index["prng_keys"], dict):
            raise TypeError
        if not DATA_FILE.fullmatch(index["data"]) or not isinstance(index["sha256"], str):
            raise TypeError
        if not all(isinstance(kind, str) for kind in index["prng_keys"].values()):
            raise TypeError
    except OSError:
        raise CheckpointError(
            f"no checkpoint in {folder}: {INDEX} cannot be read; check the path, or start without resuming"
        ) from None
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError):
        raise _damaged(folder, f"{INDEX} is not what a checkpoint holds") from None
    return index


def parsed_json(text: str) -> Any:
    """The value of JSON that this package wrote, which is never nested deeply and has no number that is not finite.

    :raises ValueError: for any other text.
    """

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"found {digits}, expected a finite number")
        return value

    try:
        return json.loads(text, parse_float=number, parse_constant=number)
    except RecursionError:
        raise ValueError("found values nested too deeply, expected fewer levels") from None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON is a number of things that an integer of 64 bits holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def read_own(path: Path) -> bytes:
    """The content of a file of a saved state.

    :raises OSError: if it cannot be read, or is a pipe or a device, which may never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return path.read_bytes()


def replace_file(path: Path, content: bytes) -> None:
    """Write to a temporary name beside ``path``, flush to disk, and move it over ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        # what has that name was left behind, or is a link that would be followed
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _damaged(folder: Path, cause: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {folder} is damaged: {cause}; restore it from a copy, or start without resuming"
    )


def _mismatch(folder: Path, cause: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {folder} is of another fit: {cause}; use the model, guide and settings it was made with"
    )


def _opened_lock(path: Path) -> IO[str]:
    """The lock of a directory, made if need be; one that is a link would let another file be emptied."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        number = os.open(path, flags, 0o666)
        if stat.S_ISREG(os.fstat(number).st_mode):
            return os.fdopen(number, "r+", encoding="ascii", errors="replace")
        os.close(number)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise CheckpointError(
        f"checkpoint {path.parent}: found {path.name} to be a link or no plain file, expected one that a fit made; "
        "delete it"
    )


@contextmanager
def alone_in(directory: str | os.PathLike[str]) -> Iterator[IO[str] | None]:
    """Hold a directory, made if need be, as long as the context lasts; gives the file that is locked, if any is.

    :raises CheckpointError: if another fit holds it, of this process or another.
    :raises OSError: if it cannot be written.
    """
    if fcntl is None:
        yield None
        return
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    # the operating system gives a lock back when its process ends, however it ends
    with _opened_lock(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise CheckpointError(
                f"checkpoint: found {folder} in use by process {owner}, expected one fit at a time; give each its own "
                "directory, or wait until it has ended"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file
