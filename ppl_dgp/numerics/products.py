"""Products of matrices in the precision of their factors, on accelerators too.

XLA multiplies numbers of 32 bits by NVIDIA's tensor cores with 10 bits of their 23 (TF32), by TPUs with 7, unless it is
told otherwise. The covariance of a Gaussian process is a difference of such products, of which little is left then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import jax

_Function = TypeVar("_Function", bound=Callable[..., Any])


def whole_products() -> AbstractContextManager[Any]:
    """What is traced within multiplies in full; another ``jax_default_matmul_precision`` of the user's stands."""
    if jax.default_matmul_precision.value is not None:
        return nullcontext()
    context: AbstractContextManager[Any] = jax.default_matmul_precision("highest")
    return context


def multiplying_in_full(function: _Function) -> _Function:
    """A function within :func:`whole_products`."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with whole_products():
            return function(*args, **kwargs)

    same: Any = run
    return same  # type: ignore[no-any-return]
