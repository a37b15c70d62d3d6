"""Transitions with a kink, and how well a fit has found one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_dgp.prediction.forecast import transition_moments


def broken_line(x: Any) -> Any:
    """Bui 2017, 3.8.1."""
    return np.where(x < 4.0, x + 1.0, 21.0 - 4.0 * x)


def smooth_kink(x: Any) -> Any:
    """Ialongo et al. 2019."""
    return 0.8 + (x + 0.2) * (1.0 - 5.0 / (1.0 + np.exp(-2.0 * x)))


def scores_of_function(
    f: Callable[[Any], Any], fit: Any, y: np.ndarray, states: np.ndarray
) -> tuple[float, float]:
    """RMSE and mean log density of f on a grid of where the states were."""
    grid = np.linspace(*np.quantile(states, [0.01, 0.99]), 200)[:, None]
    mean, variance = map(np.asarray, transition_moments(fit, None, y, grid))
    error = f(grid) - mean
    density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * np.square(error) / variance
    return float(np.sqrt(np.mean(np.square(error)))), float(density.mean())
