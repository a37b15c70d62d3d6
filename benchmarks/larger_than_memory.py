"""A two-layer deep GP on rows that stay on disk: memory, and what the input costs.

    python -m benchmarks.larger_than_memory --rows 1e7

Writes the rows (8 inputs and a target, float32) to a temporary directory block by block, counts and standardises them
in a streaming pass, trains some hundred steps on minibatches, and prints the peak memory of the process beside the goal
of 2 GiB, and the share of the time of the steps that they waited for rows beside the goal of a tenth.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ppl_dgp import DoublyStochastic, Guide, PowerEP, deep_gp, fit_stream, fit_svi, open_rows

INPUTS = 8
FILE_ROWS = 1_000_000


def values(random: np.random.Generator, rows: int) -> np.ndarray:
    """Inputs and a target, (rows, 9) float32: a smooth function of the inputs with a step in it, and noise."""
    x = random.normal(size=(rows, INPUTS)).astype(np.float32)
    target = np.sin(x[:, 0] + x[:, 1]) + (x[:, 2] > 0) + 0.1 * random.normal(size=rows)
    return np.column_stack([x, target.astype(np.float32)])


def write(folder: Path, rows: int, kind: str, block: int) -> Path:
    """The rows on disk, never all of them in memory."""
    random = np.random.default_rng(0)
    if kind == "npy":
        file = folder / "rows.npy"
        array = np.lib.format.open_memmap(file, "w+", np.float32, (rows, INPUTS + 1))
        for begin in range(0, rows, block):
            array[begin : begin + block] = values(random, min(block, rows - begin))
        return file
    names = [*(f"x{i}" for i in range(INPUTS)), "y"]
    for number, begin in enumerate(range(0, rows, FILE_ROWS)):
        schema = pa.schema([(name, pa.float32()) for name in names])
        with pq.ParquetWriter(folder / f"{number:04d}.parquet", schema) as file:
            for at in range(begin, min(begin + FILE_ROWS, rows), block):
                part = values(random, min(block, begin + FILE_ROWS - at, rows - at))
                file.write_table(pa.table(dict(zip(names, part.T, strict=True)), schema=schema))
    return folder


def peak_gib() -> float:
    """The most memory that the process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--format", choices=("parquet", "npy"), default="parquet")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--block", type=int, default=65536)
    asked = parser.parse_args()
    rows = int(asked.rows)
    model = deep_gp((INPUTS,), 100)
    guide, objective = Guide(model, hidden=DoublyStochastic()), PowerEP(0.0)
    key = jax.random.key(0)
    settings = {"steps": asked.steps, "batch_size": asked.batch}
    times: list[tuple[int, float]] = []

    def note(step: int, losses: np.ndarray) -> None:
        times.append((step, time.perf_counter()))

    def step_seconds() -> float:
        """Without the first chunk, which compiles."""
        (first, began), (last, ended) = times[0], times[-1]
        times.clear()
        return (ended - began) / (last - first)

    with tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        source = write(Path(scratch), rows, asked.format, asked.block)
        wrote, begun = time.perf_counter() - begun, time.perf_counter()
        found = open_rows(source, block_rows=asked.block).standardised()
        passed = time.perf_counter() - begun
        print(
            f"{rows} rows x {INPUTS + 1} columns as {asked.format}: written in {wrote:.1f} s, pass {passed:.1f} s"
        )
        before = peak_gib()
        fit = fit_stream(key, model, guide, objective, found, on_chunk=note, **settings)
        streamed = step_seconds()
        print(f"peak memory {peak_gib():.2f} GiB, {before:.2f} before training (goal 2 GiB)")
        share = fit.input_seconds / (streamed * (asked.steps - 100))
        x, y, _ = found.sample()
    loss = fit.losses[0] / rows
    print(f"loss per row {loss[:20].mean():.3f} at first, {loss[-20:].mean():.3f} at last")
    fit_svi(key, model, guide, objective, x, y, on_chunk=note, **settings)
    alone = step_seconds()
    print(f"step {1e3 * streamed:.2f} ms; with {len(x)} rows in memory {1e3 * alone:.2f} ms")
    print(f"steps waited for rows {100 * share:.1f} % of their time (goal 10 %)")


if __name__ == "__main__":
    main()
