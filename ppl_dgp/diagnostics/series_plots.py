"""Pictures of a state space model's series: its states in time, what was observed and its forecast.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state. Shapes: T
steps of S sequences, Q state dimensions, C controls, P outputs, H steps ahead. State dimensions count from 1 in what is
written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _panel, _rows_above, plain_label
from ppl_dgp.extras import needed_for
from ppl_dgp.prediction.forecast import Forecast, Smoothed

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure


def plot_states(
    smoothed: Smoothed, truth: ArrayLike | None = None, *, names: Sequence[str] | None = None
) -> Figure:
    """Each state dimension in time, mean and ± 2 standard deviations; a panel for each, faint lines between sequences.

    :param truth: the states that the series was made with, (T + S, Q), or (T, Q) without the x_0. A latent state is
        that of the truth only where the model says what it means, as with an identity emission.
    :param names: of the Q dimensions, "state 1", … by default.
    :raises ValueError: if truth or names do not fit.
    """
    slots, width = smoothed.mean.shape
    titles = _series_names(names, width)
    pieces = np.split(np.arange(slots), smoothed.initial[1:])
    known = None if truth is None else _truth(truth, smoothed)
    figure = Figure(figsize=(7.5, 0.8 + 1.9 * width), layout="constrained")
    panels = figure.subplots(width, 1, sharex=True, squeeze=False)[:, 0]
    for q, panel in enumerate(panels):
        panel.spines[["top", "right"]].set_visible(False)
        for number, piece in enumerate(pieces):
            mean, band = smoothed.mean[piece, q], 2.0 * smoothed.deviation[piece, q]
            around, middle, true = ("± 2 deviations", "mean", "truth") if number == 0 else (None, None, None)
            panel.fill_between(
                piece, mean - band, mean + band, color=COLOURS[0], alpha=0.2, linewidth=0, label=around
            )
            panel.plot(piece, mean, color=COLOURS[0], linewidth=1.6, label=middle)
            if known is not None:
                panel.plot(
                    piece, known[piece, q], color=COLOURS[1], linewidth=1.0, linestyle="--", label=true
                )
            if number > 0:
                panel.axvline(piece[0] - 0.5, color=FAINT, linewidth=0.8)
        panel.set(ylabel=titles[q], xlim=(0, slots - 1))
    figure.align_ylabels(panels)
    panels[-1].set_xlabel("step" if len(pieces) == 1 else "step, sequence after sequence")
    _rows_above(panels[0])
    return figure


def plot_series(
    y: ArrayLike,
    forecast: Forecast,
    y_future: ArrayLike | None = None,
    *,
    column: int = 0,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    shown: int | None = None,
    label: str = "y",
    axes: Axes | None = None,
) -> Figure:
    """A series and the fan of its forecast: the median of the samples, and central bands of them.

    :param y: what was observed, (T, P) or (T,), NaN where it is missing; the forecast begins behind it.
    :param y_future: what came, (H, P) or (H,).
    :param column: which of the P outputs.
    :param levels: share of the samples in each band.
    :param shown: how many of the last observed steps are drawn, all by default.
    :raises ValueError: for a column that is not there, levels outside (0, 1), or steps that do not fit the forecast.
    """
    steps, outputs = forecast.mean.shape
    if not 0 <= column < outputs:
        raise ValueError(f"column: found {column}, expected 0 to {outputs - 1}, one of the outputs")
    if not levels or not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels: found {tuple(levels)}, expected shares of the samples in (0, 1)")
    series = _series_columns("y", y, outputs)
    start, ahead = series.shape[0], series.shape[0] + np.arange(1, steps + 1)
    first = 0 if shown is None else max(0, start - shown)
    samples = forecast.samples[:, :, column]
    figure, panel = _panel(axes, (7.5, 3.6))
    label = plain_label(label)
    for number, level in enumerate(sorted(levels, reverse=True)):
        low, high = np.quantile(samples, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        # opaque, so that the legend shows the shades of the picture
        shade = 1.0 - (0.18 + 0.42 * number / len(levels)) * (1.0 - np.array(to_rgb(COLOURS[0])))
        panel.fill_between(ahead, low, high, color=shade, linewidth=0, label=f"{100 * level:g} %")
    panel.plot(ahead, np.median(samples, 0), color=COLOURS[0], linewidth=1.8, label="median")
    seen = np.arange(first, start) + 1, series[first:, column]
    panel.plot(*seen, ".-", color=INK, markersize=3, linewidth=0.8, label=label)
    if y_future is not None:
        came = _series_columns("y_future", y_future, outputs)
        if came.shape[0] != steps:
            raise ValueError(
                f"y_future: found {came.shape[0]} rows, expected {steps}, one for each step ahead"
            )
        panel.plot(
            ahead,
            came[:, column],
            ".-",
            color=COLOURS[1],
            markersize=4,
            linewidth=0.8,
            label="what came",
            zorder=3,
        )
    panel.axvline(start + 0.5, color=FAINT, linewidth=0.8)
    panel.set(xlabel="step", ylabel=label, xlim=(first + 1, ahead[-1]))
    _rows_above(panel)
    return figure


def _series_names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is not None and len(names) != count:
        raise ValueError(f"names: found {len(names)}, expected {count}, one for each state dimension")
    return (
        [f"state {q + 1}" for q in range(count)] if names is None else [plain_label(name) for name in names]
    )


def _series_columns(name: str, values: ArrayLike, outputs: int) -> np.ndarray:
    found = np.asarray(values, float)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[1] != outputs:
        raise ValueError(
            f"{name}: found shape {np.shape(values)}, expected {outputs} columns as the forecast has"
        )
    return found


def _truth(truth: ArrayLike, smoothed: Smoothed) -> np.ndarray:
    """By slots, NaN for x_0 where it is not given."""
    found, (slots, width) = np.asarray(truth, float), smoothed.mean.shape
    found = found[:, None] if found.ndim == 1 else found
    sequences = len(smoothed.initial)
    if found.shape == (slots - sequences, width):
        after = np.setdiff1d(np.arange(slots), smoothed.initial)
        filled = np.full((slots, width), np.nan)
        filled[after] = found
        return filled
    if found.shape != (slots, width):
        raise ValueError(
            f"truth: found shape {np.shape(truth)}, expected {(slots, width)}, or {slots - sequences} rows without x_0"
        )
    return found
