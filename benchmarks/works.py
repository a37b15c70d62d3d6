"""The works of the bench: their data, sizes and names, which every contestant shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: hidden widths of the works that train on minibatches
TRAINED = {"svgp": (), "dgp2": (8,), "dgp3": (8, 8), "dgp5": (8, 8, 8, 8), "large": (8,)}
#: those that are a value and its gradient, or a step, on all the data
FULL = ("collapsed", "bgplvm", "exact", "gpssm", "windows")
WORKS = (*TRAINED, *FULL)
#: of which those that are run where nothing else is asked for: "large" is for a GPU
USUAL = tuple(work for work in WORKS if work != "large")
#: what other libraries have of them
OFFERED = {
    "gpytorch": (*TRAINED, "exact", "windows"),
    "gpflow": (*TRAINED, "collapsed", "bgplvm", "exact"),
    "gpjax": ("svgp", "collapsed", "exact"),
}
INDUCING = {"collapsed": 500, "bgplvm": 50, "gpssm": 50, "windows": 50, "large": 500}
ROWS = {"bgplvm": 1000, "gpssm": 1000, "windows": 1000, "exact": 2000, "large": 100_000}
LATENT, STATES = 10, 4
#: of the work "windows": so many steps each, so many of them at hand, under so many particles
LENGTH, WINDOWS, PARTICLES = 50, 16, 16


class Data(NamedTuple):
    """Inputs (N, D), without columns where there are none, and targets (N, P)."""

    x: np.ndarray
    y: np.ndarray


def data(work: str, dtype: str, rows: int | None = None) -> Data:
    """Drawn data of the work's size, or of another number of rows."""
    random, rows = np.random.default_rng(0), rows or ROWS.get(work, 7373)
    if work == "bgplvm":
        latent = random.normal(size=(rows, 3))
        y = np.tanh(latent @ random.normal(size=(3, 12))) + 0.1 * random.normal(size=(len(latent), 12))
        x = np.zeros((len(y), 0))
    elif work in ("gpssm", "windows"):
        turns = 0.1 * np.arange(rows)[:, None] * np.array([1.0, 1.3, 0.7, 2.0])
        y = np.sin(turns) + 0.1 * random.normal(size=turns.shape)
        x = np.zeros((len(y), 0))
    else:
        x = random.normal(size=(rows, 8))
        y = (
            np.sin(x @ random.normal(size=(8, 1)))
            + 0.3 * x[:, :1] * x[:, 1:2]
            + 0.1 * random.normal(size=(len(x), 1))
        )
    y = (y - y.mean(0)) / y.std(0)
    return Data(x.astype(dtype), y.astype(dtype))


def batch(work: str) -> int:
    """B."""
    return ROWS["large"] if work == "large" else 1000


def inducing(work: str) -> int:
    """M."""
    return INDUCING.get(work, 100)


def centres(given: Data, work: str) -> np.ndarray:
    """Inducing inputs, at rows."""
    return given.x[np.random.default_rng(0).choice(len(given.x), inducing(work), replace=False)]


def window_starts() -> np.ndarray:
    """Rows at which the windows at hand begin, inside the series."""
    return np.random.default_rng(0).integers(0, ROWS["windows"] - LENGTH, WINDOWS)
