"""Rows of a known function with interactions, under noise that changes with an input, in parquet files; for ``scale``.

    y = 10 sin(π x₁ x₂) + 20 (x₃ − ½)² + 10 x₄ + 5 x₅ + (½ + 2 x₆) ε,   x uniform on [0, 1]ᴰ

The function is Friedman's (1991); the other D − 6 inputs say nothing. ``taxi`` has nine inputs, as the taxi trips of
the sources, ``year`` ninety, as the years of songs. The log density of the noise itself, −1.75 nats a row, is what no
method can pass.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

INPUTS = {"taxi": 9, "year": 90}
FILE_ROWS, GROUP_ROWS = 1_000_000, 65_536
#: rows that are judged, and the seed of them, which no file has
TEST_ROWS, TEST_SEED = 20_000, 2**31


def drawn(seed: int, rows: int, inputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (N, D) and targets (N,) in 32 bits, the function (N,) and the noise's standard deviation (N,)."""
    random = np.random.default_rng(seed)
    x = random.random((rows, inputs), np.float32)
    centre = 10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * np.square(x[:, 2] - 0.5)
    centre, deviation = centre + 10.0 * x[:, 3] + 5.0 * x[:, 4], 0.5 + 2.0 * x[:, 5]
    y = centre + deviation * random.standard_normal(rows, np.float32)
    return x, y.astype(np.float32), centre, deviation


def log_density(y: np.ndarray, centre: np.ndarray, deviation: np.ndarray) -> float:
    """Of Gaussians, the mean over rows."""
    each = -0.5 * np.log(2.0 * np.pi) - np.log(deviation) - 0.5 * np.square((y - centre) / deviation)
    return float(each.mean())


def noise_log_density(kind: str) -> float:
    """Of the rows that are judged, under the truth."""
    _, y, centre, deviation = judged(kind)
    return log_density(y, centre, deviation)


def judged(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are judged."""
    return drawn(TEST_SEED, TEST_ROWS, INPUTS[kind])


def written(folder: Path, kind: str, rows: int) -> Path:
    """The folder of a million rows a file, each written once; a file's number is its seed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = folder / kind / f"{rows}"
    place.mkdir(parents=True, exist_ok=True)
    names = [*(f"x{number}" for number in range(INPUTS[kind])), "y"]
    for number, begin in enumerate(range(0, rows, FILE_ROWS)):
        file = place / f"{number:04d}.parquet"
        if file.exists():
            continue
        x, y, _, _ = drawn(number, min(FILE_ROWS, rows - begin), INPUTS[kind])
        table = pa.table(dict(zip(names, [*x.T, y], strict=True)))
        partial = file.with_suffix(".partial")
        pq.write_table(table, partial, row_group_size=GROUP_ROWS, compression="none", use_dictionary=False)
        partial.replace(file)
    return place
