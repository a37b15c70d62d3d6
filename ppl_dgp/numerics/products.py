"""Products of matrices in the precision of their factors, on accelerators too.

XLA multiplies numbers of 32 bits by NVIDIA's tensor cores with 10 bits of their 23 (TF32), by TPUs with 7, unless it is
told otherwise. The covariance of a Gaussian process is a difference of such products, of which little is left then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax

_Function = TypeVar("_Function", bound=Callable[..., Any])


def multiplying_in_full(function: _Function) -> _Function:
    """A function whose products, as it is traced, are whole; what the user has set for JAX's stands.

    That is ``jax_default_matmul_precision``, where it is not None.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision(jax.default_matmul_precision.value or "highest"):
            return function(*args, **kwargs)

    same: Any = run
    return same  # type: ignore[no-any-return]
