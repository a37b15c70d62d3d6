"""Hodgkin and Huxley's neuron under pulses and a ramp of current, and then under one that was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

#: milliseconds between rows, rows trained on, rows to come, deviation of the noise in units of the training part
STEP, TRAINED, AHEAD, NOISE = 0.4, 500, 100, 0.05
#: what a piece of 40 ms begins at; the last one is a ramp
LEVELS = 0.0, 12.0, 0.0, 25.0, 6.0
UNSEEN: dict[str, Callable[[float], float]] = {"step": lambda t: 18.0, "slope": lambda t: 35.0 - 0.7 * t}


def neuron(current: Callable[[float], float], times: np.ndarray) -> np.ndarray:
    """V, m, h, n of Hodgkin & Huxley 1952 (mV, ms, uA/cm²), at rest to begin with."""

    def slope(t: float, state: np.ndarray) -> list[float]:
        v, m, h, n = state
        a_m = 1.0 if abs(v + 40.0) < 1e-6 else 0.1 * (v + 40.0) / (1.0 - np.exp(-0.1 * (v + 40.0)))
        a_n = 0.1 if abs(v + 55.0) < 1e-6 else 0.01 * (v + 55.0) / (1.0 - np.exp(-0.1 * (v + 55.0)))
        a_h, b_h = 0.07 * np.exp(-0.05 * (v + 65.0)), 1.0 / (1.0 + np.exp(-0.1 * (v + 35.0)))
        b_m, b_n = 4.0 * np.exp(-(v + 65.0) / 18.0), 0.125 * np.exp(-(v + 65.0) / 80.0)
        flow = 120.0 * m**3 * h * (v - 50.0) + 36.0 * n**4 * (v + 77.0) + 0.3 * (v + 54.4)
        return [current(t) - flow, a_m * (1 - m) - b_m * m, a_h * (1 - h) - b_h * h, a_n * (1 - n) - b_n * n]

    rest = [-65.0, 0.053, 0.596, 0.317]
    return solve_ivp(slope, (0.0, times[-1]), rest, "LSODA", times, rtol=1e-8, max_step=0.1).y.T


def given(name: str) -> Callable[[float], float]:
    """The current at a time, that of the training part and then one that was not seen."""

    def current(t: float) -> float:
        if t >= TRAINED * STEP:
            return UNSEEN[name](t - TRAINED * STEP)
        piece, within = divmod(t, 40.0)
        return LEVELS[int(piece)] + (0.5 * within if piece == 4 else 0.0)

    return current


class Records(NamedTuple):
    """States at all steps and the current half a step before them, by unseen current, as of the training part."""

    u: dict[str, np.ndarray]
    y: dict[str, np.ndarray]


def records() -> Records:
    """Those of the equations, without noise."""
    times = STEP * np.arange(TRAINED + AHEAD)
    # a row's control is what moved the state to where it is
    drives = {name: np.array([[given(name)(max(t - 0.5 * STEP, 0.0))] for t in times]) for name in UNSEEN}
    states = {name: neuron(given(name), times) for name in UNSEEN}

    def standard(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        first = found["step"][:TRAINED]
        return {name: (values - first.mean(0)) / first.std(0) for name, values in found.items()}

    return Records(standard(drives), standard(states))
