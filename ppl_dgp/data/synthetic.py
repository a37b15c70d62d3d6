"""One-dimensional regression problems drawn from a known function.

Each has ``num_rows`` training rows with x ~ U(-1.5, 1.5), then 321 test rows at equidistant x on [-1.5, 1.5],
both with Gaussian noise: y = f(x) + noise * N(0, 1). The table offered one split, training rows first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppl_dgp.data.table import MIN_ROWS, Table
from ppl_dgp.messages import DataError

NUM_TEST = 321


def step(num_rows: int = 100, seed: int = 0) -> Table:
    """The step f(x) = 1[x > 0] with noise of standard deviation 0.05: the deep GP's standard test."""
    return _draw("step", lambda x: (x > 0).astype(np.float64), 0.05, num_rows, seed)


def sinusoids(num_rows: int = 100, seed: int = 0) -> Table:
    """A sum of two sinusoids, f(x) = sin(3x) + sin(7x) / 2, with noise of standard deviation 0.1."""
    return _draw("sinusoids", lambda x: np.sin(3 * x) + 0.5 * np.sin(7 * x), 0.1, num_rows, seed)


def periodic(num_rows: int = 100, seed: int = 0) -> Table:
    """One sinusoid of period 0.75, f(x) = sin(2 pi x / 0.75), with noise of standard deviation 0.1."""
    return _draw("periodic", lambda x: np.sin(2 * np.pi * x / 0.75), 0.1, num_rows, seed)


def _draw(name: str, f: Callable[[np.ndarray], np.ndarray], noise: float, num_rows: int, seed: int) -> Table:
    if num_rows < MIN_ROWS:
        raise DataError(f"num_rows: found {num_rows} for {name}, expected at least {MIN_ROWS}; ask for more")
    if seed < 0:
        raise DataError(
            f"seed: found {seed}, expected a whole number of at least 0; change it or leave it out"
        )
    rng = np.random.default_rng(seed)
    half = NUM_TEST // 2
    grid = 1.5 * np.arange(-half, half + 1) / half
    x = np.concatenate([rng.uniform(-1.5, 1.5, num_rows), grid])
    y = f(x) + noise * rng.standard_normal(len(x))
    return Table(
        X=x[:, None],
        y=y[:, None],
        feature_names=("x",),
        target_names=("y",),
        train=(np.arange(num_rows),),
        test=(np.arange(num_rows, len(x)),),
        name=name,
    )
