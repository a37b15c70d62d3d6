"""What the machine can do: rates of the operations that a sparse layer is made of, and what a work takes at these."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.works import TRAINED, batch, inducing

#: outputs of the layer whose operations are measured
P = 8


class Ceilings(NamedTuple):
    """The device's name, GFLOP/s of matmuls, triangular solves and factorisations, and GB/s of what is copied."""

    device: str
    matmul: float
    solve: float
    cholesky: float
    copy: float

    def __str__(self) -> str:
        return (
            f"{self.device}: matmul {self.matmul:.0f} GFLOP/s, solve {self.solve:.0f}, Cholesky {self.cholesky:.0f}; "
            f"copy {self.copy:.1f} GB/s"
        )


def ceilings(dtype: str, work: str = "dgp2") -> Ceilings:
    """Those of a work's sizes, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed_ceiling", dtype, str(batch(work)), str(inducing(work))]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    device, *rates = subprocess.run(
        command, env=env, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return Ceilings(device, *map(float, rates))


def floor(work: str, rates: Ceilings) -> float:
    """Milliseconds of the matmuls of one step at the measured rate; 0 for works that are not counted."""
    if work not in TRAINED:
        return 0.0
    m, total = inducing(work), 0.0
    for outputs in (*TRAINED[work], 1):
        # A = K L⁻ᵀ and diag(A S Aᵀ), and twice as much for derivatives, but of the latter with the gradient by hand
        total += 3 * 2 * batch(work) * m * m + 2 * 2 * batch(work) * m * m * outputs
        # S = L Lᵀ and its derivative
        total += 3 * 2 * m**3 * outputs
    return 1e3 * total / (1e9 * rates.matmul)


def _measured() -> None:
    import jax
    import jax.numpy as jnp

    dtype, rows, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.config.update("jax_enable_x64", dtype == "float64")
    # a GPU's matmuls in 32 bits, not in the 19 of its tensor cores
    jax.config.update("jax_default_matmul_precision", "highest")
    key = jax.random.PRNGKey(0)
    a, wide = jax.random.normal(key, (rows, size), dtype), jax.random.normal(key, (size, P * size), dtype)
    matrix = jnp.eye(size, dtype=dtype) + wide @ wide.T
    lower, long = jnp.linalg.cholesky(matrix), jnp.ones(2**26 // jnp.dtype(dtype).itemsize, dtype)
    works: dict[str, tuple[Callable[[], jax.Array], float]] = {
        "matmul": (lambda: product(a, wide), 2.0 * rows * size * size * P),
        "solve": (lambda: solve(lower, a.T), float(rows * size * size)),
        "cholesky": (lambda: factor(matrix), size**3 / 3.0),
        "copy": (lambda: add(long), 2.0 * long.nbytes),
    }
    product, factor, add = jax.jit(jnp.matmul), jax.jit(jnp.linalg.cholesky), jax.jit(lambda x: x + 1)
    solve = jax.jit(lambda lower, b: jax.scipy.linalg.solve_triangular(lower, b, lower=True))
    print(jax.local_devices()[0].device_kind)
    for call, operations in works.values():
        jax.block_until_ready(call())  # compiles, of a GPU for longer than the loop lasts
        best, began = float("inf"), time.perf_counter()
        while time.perf_counter() - began < 5.0:
            before = time.perf_counter()
            jax.block_until_ready(call())
            best = min(best, time.perf_counter() - before)
        print(operations / best / 1e9)


if __name__ == "__main__":
    _measured()
