"""What the machine can do: rates of the operations that a sparse layer is made of, and what a work takes at these."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from works import BATCH, TRAINED, inducing

#: rows, inducing points, outputs
B, M, P = 1000, 100, 8


def ceilings(dtype: str) -> dict[str, float]:
    """GFLOP/s of matmuls, triangular solves and factorisations, measured in a process of its own."""
    command = [sys.executable, str(Path(__file__)), dtype]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
    return {name: float(value) for name, value in (line.split("=") for line in lines)}


def floor(work: str, rates: dict[str, float]) -> float:
    """Milliseconds of the matmuls of one step at the measured rate; 0 for works that are not counted."""
    if work not in TRAINED:
        return 0.0
    m, total = inducing(work), 0.0
    for outputs in (*TRAINED[work], 1):
        # A = K L⁻ᵀ and diag(A S Aᵀ), and twice as much for derivatives, but of the latter with the gradient by hand
        total += 3 * 2 * BATCH * m * m + 2 * 2 * BATCH * m * m * outputs
        # S = L Lᵀ and its derivative
        total += 3 * 2 * m**3 * outputs
    return 1e3 * total / (1e9 * rates["matmul"])


def _measured() -> None:
    import jax
    import jax.numpy as jnp

    dtype = sys.argv[1]
    jax.config.update("jax_enable_x64", dtype == "float64")
    key = jax.random.PRNGKey(0)
    a, wide = jax.random.normal(key, (B, M), dtype), jax.random.normal(key, (M, P * M), dtype)
    matrix = jnp.eye(M, dtype=dtype) + wide @ wide.T
    lower = jnp.linalg.cholesky(matrix)
    works: dict[str, tuple[Callable[[], jax.Array], float]] = {
        "matmul": (lambda: product(a, wide), 2.0 * B * M * M * P),
        "solve": (lambda: solve(lower, a.T), float(B * M * M)),
        "cholesky": (lambda: factor(matrix), M**3 / 3.0),
    }
    product, factor = jax.jit(jnp.matmul), jax.jit(jnp.linalg.cholesky)
    solve = jax.jit(lambda lower, b: jax.scipy.linalg.solve_triangular(lower, b, lower=True))
    for name, (call, operations) in works.items():
        best = float("inf")
        for _ in range(200):
            before = time.perf_counter()
            jax.block_until_ready(call())
            best = min(best, time.perf_counter() - before)
        print(f"{name}={operations / best / 1e9:.1f}")


if __name__ == "__main__":
    _measured()
