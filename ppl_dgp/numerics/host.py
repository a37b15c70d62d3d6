"""Functions of NumPy and SciPy inside compiled programs, in the precision of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

Arrays = tuple[Shaped[np.ndarray, "..."], ...]


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
    wide = [value.dtype.itemsize == 8 for value in arguments]
    types = [np.dtype(value.dtype) for value in arguments]

    def of_words(*words: Any) -> Arrays:
        values = [
            np.ascontiguousarray(each).view(dtype)[..., 0] if long else np.asarray(each)
            for each, long, dtype in zip(words, wide, types, strict=True)
        ]
        return tuple(
            each.reshape(*each.shape, 1).view(np.uint32) if each.dtype.itemsize == 8 else each
            for each in plain(*values)
        )

    words = [
        jax.lax.bitcast_convert_type(value, jnp.uint32) if long else value
        for value, long in zip(arguments, wide, strict=True)
    ]
    given = tuple(
        jax.ShapeDtypeStruct((*shape.shape, 2), np.uint32) if shape.dtype.itemsize == 8 else shape
        for shape in shapes
    )
    back = jax.pure_callback(of_words, given, *words, vmap_method="sequential")
    found = tuple(
        jax.lax.bitcast_convert_type(each, shape.dtype) if shape.dtype.itemsize == 8 else each
        for each, shape in zip(back, shapes, strict=True)
    )
    return found if several else found[0]
