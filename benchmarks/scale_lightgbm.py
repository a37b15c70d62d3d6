"""LightGBM on the files of ``benchmarks.scale``, in the environment that `make bench-peers` builds.

    .venv-peers/bin/python -m benchmarks.scale_lightgbm FOLDER KIND TREES LEAVES

All rows are read into an array of 32 bits; all else but the number of leaves, 31, is LightGBM's default. One model of
the target, and one of the logarithm of the squared errors that it leaves on its own rows, of which there are too many
to be learnt by heart; the noise is scaled so that on the last 100 000 rows, which neither is trained on, errors are on
average what is said of them. A look has as many trees of both.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import others_since, work_so_far
from benchmarks.scale_rows import INPUTS, judged, log_density

SETTINGS: dict[str, Any] = {
    "objective": "regression", "learning_rate": 0.1, "num_threads": 2, "verbose": -1,
}  # fmt: skip
LOOKS = (25, 50, 100, 200, 400)
HELD = 100_000


def read(folder: Path, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows."""
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    count = sum(pq.read_metadata(file).num_rows for file in files)
    x, y = np.empty((count, inputs), np.float32), np.empty(count, np.float32)
    begin = 0
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                end = begin + len(batch)
                for column in range(inputs):
                    x[begin:end, column] = batch.column(column).to_numpy()
                y[begin:end] = batch.column(inputs).to_numpy()
                begin = end
    return x, y


def looks(folder: Path, kind: str, trees: int, leaves: int) -> Iterator[dict[str, Any]]:
    """Seconds, memory and quality with so many trees."""
    import lightgbm

    settings = SETTINGS | {"num_leaves": leaves}
    began, work = time.perf_counter(), work_so_far()
    x, y = read(folder, INPUTS[kind])
    reading = time.perf_counter() - began
    train = lightgbm.Dataset(x[:-HELD], y[:-HELD], params=settings).construct()
    before = time.perf_counter() - began

    def trained(target: np.ndarray) -> tuple[Any, list[float]]:
        times: list[float] = []
        since = time.perf_counter()
        train.set_label(target)
        model = lightgbm.train(
            settings, train, trees, callbacks=[lambda _: times.append(time.perf_counter() - since)]
        )
        return model, times

    mean, of_mean = trained(y[:-HELD])
    errors = np.square(y[:-HELD] - mean.predict(x[:-HELD]))
    noise, of_noise = trained(np.log(errors + 1e-6 * errors.mean()))
    at, targets, _, _ = judged(kind)
    for look in (look for look in LOOKS if look <= trees):
        said = lambda model, rows, look=look: model.predict(rows, num_iteration=look)
        left = np.square(y[-HELD:] - said(mean, x[-HELD:]))
        scale = np.mean(left / np.exp(said(noise, x[-HELD:])))
        centre, deviation = said(mean, at), np.sqrt(scale * np.exp(said(noise, at)))
        yield {
            "length": look, "seconds": before + of_mean[look - 1] + of_noise[look - 1], "reading": reading,
            "gibibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "test_log_density": log_density(targets, centre, deviation),
            "rmse": float(np.sqrt(np.mean(np.square(targets - centre)))), **others_since(work),
        }  # fmt: skip


def main() -> None:
    """Print a line of JSON for each look."""
    for look in looks(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])):
        print(json.dumps(look), flush=True)


if __name__ == "__main__":
    main()
