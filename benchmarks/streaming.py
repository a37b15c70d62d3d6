"""A stream of 10⁶ rows through 100 inducing points, on one core: seconds, memory and error as the rows go by.

Rows (x, y) are drawn as they are asked for: y = f(x) + ε, f a smooth function of two inputs, ε of standard deviation
0.3. Hyperparameters are fitted to the first batch and held from then on, q(u) is in closed form and the inducing inputs
are chosen anew, greedily, for every batch. Memory must not grow: the run fails if the resident memory after any later
batch exceeds by more than 5 MiB the most that it was in the first tenth of the rows (compilation, which needs more than
either, left out). Usage: ``python -m benchmarks.streaming [rows]``; 64 bits, Linux.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

from ppl_dgp.models import sparse_gp_regression  # noqa: E402
from ppl_dgp.objectives import Collapsed  # noqa: E402
from ppl_dgp.streaming import Stream  # noqa: E402

BATCH, NOISE, INDUCING = 1000, 0.3, 100
GROWTH = 5.0


def function(x: np.ndarray) -> np.ndarray:
    """The truth, (N, 2) → (N, 1)."""
    return np.sin(2.0 * x[:, :1]) * np.cos(1.5 * x[:, 1:]) + 0.3 * x[:, :1]


def rows(total: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of new rows, ``total`` in all."""
    random = np.random.default_rng(seed)
    for first in range(0, total, BATCH):
        x = random.uniform(-3.0, 3.0, (min(BATCH, total - first), 2))
        yield x, function(x) + NOISE * random.standard_normal((len(x), 1))


def resident() -> float:
    """Memory in use now, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak() -> float:
    """The most so far, compilation included, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main(total: int) -> None:
    """Print a line at powers of ten and the verdict."""
    key = jax.random.PRNGKey(0)
    test = np.random.default_rng(1).uniform(-3.0, 3.0, (2000, 2))
    truth = function(test)
    begun = time.perf_counter()
    first = Stream(key, sparse_gp_regression(INDUCING), Collapsed(), steps=60)
    batches = rows(total)
    first.update(*next(batches))
    print(f"hyperparameters of the first {BATCH} rows: {time.perf_counter() - begun:.1f} s")
    stream = Stream(key, sparse_gp_regression(INDUCING), Collapsed(), start=first.state)
    print(f"{'rows':>9} {'rmse':>9} {'mean sd':>9} {'MiB':>9} {'rows/s':>9}")
    early, late, spent = 0.0, 0.0, 0.0
    marks = {BATCH * int(f) for f in (2, 10, 50, 100, 200, 500)} | {total}
    for x, y in batches:
        started = time.perf_counter()
        stream.update(x, y)
        # the first two batches of this stream compile
        spent += time.perf_counter() - started if stream.batches > 2 else 0.0
        if stream.rows in marks:
            prediction = stream.predict(key, test)
            rmse = np.sqrt(np.mean((prediction.f_mean - truth) ** 2))
            deviation = np.sqrt(prediction.f_variance).mean()
            speed = (stream.batches - 2) * BATCH / spent if spent else float("nan")
            print(f"{stream.rows:9d} {rmse:9.5f} {deviation:9.5f} {resident():9.1f} {speed:9.0f}", flush=True)
        if stream.rows <= max(total // 10, 3 * BATCH):
            early = max(early, resident())
        else:
            late = max(late, resident())
    grown = late - early
    size = sum(np.asarray(value).nbytes for value in stream.state.values()) / 1024.0
    print(f"{spent:.1f} s in updates; peak {peak():.0f} MiB, with compilation; the state is {size:.0f} KiB")
    print(f"memory grew by {grown:.1f} MiB after the first tenth")
    if grown > GROWTH:
        raise SystemExit(f"memory grew by {grown:.1f} MiB, expected at most {GROWTH} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
