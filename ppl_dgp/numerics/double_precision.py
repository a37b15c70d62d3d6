"""Mixed precision: a part of a 32-bit computation in 64 bits, with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")


def in_double(function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)`` computed in 64 bits; what it returns has 32 again. Plainly called if nothing has 32.

    For differences of large numbers that nearly agree, as the variance that is left of kernel expectations. Arguments
    are pytrees; a gradient passes through their arrays, not through what ``function`` closes over, and in reverse only.
    """
    leaves, tree = jax.tree.flatten(arguments)
    # numbers of Python, and integers of NumPy, may be shapes
    traced = [isinstance(leaf, jax.Array) or _is_float32(leaf) for leaf in leaves]
    if not any(_is_float32(leaf) for leaf in leaves):
        return function(*arguments)

    def widened(*arrays: Any) -> T:
        remaining = iter(arrays)
        all_leaves = [
            next(remaining) if is_traced else leaf for leaf, is_traced in zip(leaves, traced, strict=True)
        ]
        return function(*_converted(jax.tree.unflatten(tree, all_leaves), jnp.float32, jnp.float64))

    @jax.custom_vjp
    def narrow(*arrays: Any) -> Any:
        with jax.enable_x64(True):
            return _converted(widened(*arrays), jnp.float64, jnp.float32)

    def forward(*arrays: Any) -> Any:
        with jax.enable_x64(True):
            return jax.vjp(lambda *values: _converted(widened(*values), jnp.float64, jnp.float32), *arrays)

    def backward(pull: Any, slope: Any) -> Any:
        with jax.enable_x64(True):
            return pull(slope)

    narrow.defvjp(forward, backward)
    return narrow(*(leaf for leaf, is_traced in zip(leaves, traced, strict=True) if is_traced))  # type: ignore[no-any-return]


def _is_float32(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and leaf.dtype == np.float32


def _converted(tree: Any, old: Any, new: Any) -> Any:
    def one(leaf: Any) -> Any:
        has_dtype = isinstance(leaf, jax.Array | np.ndarray) and leaf.dtype == old
        return jax.lax.convert_element_type(leaf, new) if has_dtype else leaf

    return jax.tree.map(one, tree)
