"""Functions of NumPy and SciPy inside compiled programs, in the precision of their arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

Arrays = tuple[Shaped[np.ndarray, "..."], ...]

#: JAX copies arrays of up to 100 kB to the host at once, and larger ones by a thread of its pool. Where there is one
#: core that is the thread which waits for the copy, for ever: there they go in pieces of so many bytes
BYTES = 96_000


def on_host(function: Callable[..., Any], like: Any, *arguments: jax.Array) -> Any:
    """``function`` of NumPy arrays, its result or results of the shapes and types of ``like``, an array or several.

    It runs at once where the arguments are known, and is called back from inside of a program where they are not; there
    numbers of 64 bits go as words of 32, for the thread that calls the host knows nothing of 64 bits enabled in a
    context, and would halve them.
    """
    several = isinstance(like, tuple)
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (like if several else (like,))]

    def plain(*values: Any) -> Arrays:
        found = function(*map(np.asarray, values))
        return tuple(
            np.asarray(each, shape.dtype, order="C")
            for each, shape in zip(found if several else (found,), shapes, strict=True)
        )

    if not any(isinstance(value, jax.core.Tracer) for value in arguments):
        found = tuple(map(jnp.asarray, plain(*arguments)))
        return found if several else found[0]
    types = [np.dtype(value.dtype) for value in arguments]
    sizes = [value.shape for value in arguments]
    pieces = [_pieces(value) for value in arguments]

    def of_pieces(*parts: Any) -> Arrays:
        left, values = list(map(np.asarray, parts)), []
        for each, dtype, shape in zip(pieces, types, sizes, strict=True):
            mine, left = left[: len(each)], left[len(each) :]
            values.append(np.concatenate(mine).view(dtype).reshape(shape))
        return tuple(
            each.reshape(*each.shape, 1).view(np.uint32) if each.dtype.itemsize == 8 else each
            for each in plain(*values)
        )

    given = tuple(
        jax.ShapeDtypeStruct((*shape.shape, 2), np.uint32) if shape.dtype.itemsize == 8 else shape
        for shape in shapes
    )
    parts = [part for each in pieces for part in each]
    back = jax.pure_callback(of_pieces, given, *parts, vmap_method="sequential")
    found = tuple(
        jax.lax.bitcast_convert_type(each, shape.dtype) if shape.dtype.itemsize == 8 else each
        for each, shape in zip(back, shapes, strict=True)
    )
    return found if several else found[0]


def _pieces(value: jax.Array) -> list[jax.Array]:
    """The numbers of an array in a row, of 64 bits as words, where there is one core in short arrays."""
    flat = (jax.lax.bitcast_convert_type(value, jnp.uint32) if value.dtype.itemsize == 8 else value).ravel()
    most = BYTES // flat.dtype.itemsize if _cores() == 1 else flat.size
    return [flat[begin : begin + most] for begin in range(0, flat.size, most)] if flat.size else [flat]


def _cores() -> int:
    """Those that this process may use."""
    mine = getattr(os, "sched_getaffinity", None)  # which only Linux has
    return (os.cpu_count() or 1) if mine is None else len(mine(0))
