"""Pictures of a fit: with error bars, layer by layer, its losses, its calibration, its predictions.

Every function returns a matplotlib ``Figure`` that belongs to nobody else (no pyplot state): save it with
``figure.savefig(path)``, or draw into axes of your own with ``axes=``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from ppl_dgp.diagnostics.layers import LayerMap
from ppl_dgp.extras import needed_for
from ppl_dgp.fit import Fit
from ppl_dgp.fit.annealing import rates
from ppl_dgp.prediction.predict import Prediction

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, told apart by colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT = "#333333", "#999999"
SHOWN_INPUTS = 4


def plot_fit(
    prediction: Prediction,
    x_new: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    samples: ArrayLike | None = None,
    column: int = 0,
    labels: tuple[str, str] = ("x", "y"),
    axes: Axes | None = None,
) -> Figure:
    """Mean and 95 % interval of y over one input, with the data and draws of the function.

    The interval is that of ``prediction.quantiles`` where levels 0.025 and 0.975 were asked for, else mean ± 1.96
    standard deviations.

    :param x_new: the (N,) or (N, 1) inputs of the prediction.
    :param x: inputs of the data, (n,) or (n, 1); ``y`` (n,) or (n, P) goes with it.
    :param samples: draws of f at ``x_new``, (S, N, P), from ``sample_functions``.
    :param column: which of the P targets.
    :raises ValueError: if the inputs are not a line, or do not fit the prediction.
    """
    line = _line("x_new", x_new)
    if line.size != prediction.mean.shape[0]:
        raise ValueError(
            f"x_new: found {line.size} rows, expected {prediction.mean.shape[0]} as in the prediction"
        )
    figure, panel = _panel(axes, (7.0, 4.2))
    order = np.argsort(line)
    mean = prediction.mean[order, column]
    deviation = np.sqrt(prediction.variance[order, column])
    low, high = mean - 1.96 * deviation, mean + 1.96 * deviation
    if prediction.quantiles is not None and {0.025, 0.975} <= set(prediction.levels):
        low, high = (prediction.quantiles[prediction.levels.index(p)][order, column] for p in (0.025, 0.975))
    panel.fill_between(line[order], low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="95 % of y")
    if samples is not None:
        draws = np.asarray(samples)[:, order, column]
        panel.plot(line[order], draws.T, color=COLOURS[0], alpha=0.35, linewidth=0.7)
        panel.plot([], [], color=COLOURS[0], alpha=0.6, linewidth=0.7, label="draws of f")
    panel.plot(line[order], mean, color=COLOURS[0], linewidth=2.0, label="mean")
    if x is not None and y is not None:
        targets = np.asarray(y).reshape(np.shape(y)[0], -1)[:, column]
        panel.plot(_line("x", x), targets, "o", color=INK, markersize=3.5, alpha=0.7, label="data", zorder=3)
    panel.set(xlabel=labels[0], ylabel=labels[1], xlim=(line.min(), line.max()))
    _legend(panel)
    return figure


def plot_layers(maps: Sequence[LayerMap]) -> Figure:
    """Each layer's input-output map with its inducing points, one row of panels per layer, one panel per input.

    A layer with one input is drawn as a line with a 95 % band of f, its rows as ticks below; one with several as its
    rows, seen along each of its first four inputs. Colours are outputs (six at most), open circles inducing points at
    (Z, E[u]).

    :param maps: from ``layer_maps``.
    :raises ValueError: if there are none.
    """
    if not maps:
        raise ValueError("maps: found none, expected those of layer_maps(...)")
    columns = max(min(layer.inputs.shape[1], SHOWN_INPUTS) for layer in maps)
    figure = Figure(figsize=(1.2 + 3.6 * max(columns, 1.4), 0.6 + 2.7 * len(maps)), layout="constrained")
    panels = figure.subplots(len(maps), columns, squeeze=False)
    for row, layer in enumerate(maps):
        shown = min(layer.inputs.shape[1], SHOWN_INPUTS)
        for d in range(columns):
            panel = panels[row, d]
            if d >= shown:
                panel.set_axis_off()
                continue
            _layer_panel(panel, layer, d)
            panel.spines[["top", "right"]].set_visible(False)
            several = layer.inputs.shape[1] > 1
            panel.set_xlabel(f"input {d + 1} of {layer.name}" if several else f"input of {layer.name}")
            if d == 0:
                panel.set_ylabel(f"output of {layer.name}")
        _legend(panels[row, 0])
    return figure


def plot_losses(losses: ArrayLike | Fit, *, axes: Axes | None = None) -> Figure:
    """The objective's loss at every step, faint, with its running median, restart by restart.

    The axis leaves out the heights of the first steps and of rare spikes where they dwarf the rest. Of a fit with
    ``steps="auto"`` the learning rate stands below, parts that were undone are grey, crosses are restarts that were
    given up, and a line is drawn where it was seen to have converged.

    :param losses: a fit, or losses (R, steps) or (steps,).
    :raises ValueError: if there is no step.
    """
    fit = losses if isinstance(losses, Fit) else None
    traces = np.atleast_2d(np.asarray(losses.losses if isinstance(losses, Fit) else losses, float))
    steps = traces.shape[1]
    if steps == 0:
        raise ValueError(f"losses: found shape {traces.shape}, expected at least one step; train first")
    annealed = () if fit is None else tuple(phase for phase in fit.phases if phase.kind != "part")
    below = None
    if annealed and axes is None:
        figure = Figure(figsize=(7.0, 4.4), layout="constrained")
        panel, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    else:
        figure, panel = _panel(axes, (7.0, 3.6))
    window = max(1, steps // 50)
    for restart, trace in enumerate(traces):
        colour = COLOURS[restart % len(COLOURS)]
        panel.plot(np.arange(1, steps + 1), trace, color=colour, alpha=0.25, linewidth=0.6)
        label = f"restart {restart + 1}" if len(traces) > 1 else f"median of {window} steps"
        panel.plot(*_running_median(trace, window), color=colour, linewidth=1.8, label=label)
    trials = [(phase.begin, (phase.end - phase.begin) // 4) for phase in annealed if phase.kind == "trial"]
    later = np.ones(steps, bool)
    for begin, count in trials or [(0, steps // 20)]:
        later[begin : begin + count] = False
    kept = traces[:, later][np.isfinite(traces[:, later])]
    if kept.size:
        low, high = kept.min(), np.quantile(kept, 0.995)
        margin = 0.05 * max(high - low, 1e-9)
        panel.set_ylim(low - margin, high + margin)
    panel.set(xlabel="step", ylabel="loss (nats)", xlim=(0, steps))
    for phase in annealed:
        panel.plot([phase.end] * len(phase.rivals), phase.rivals, "x", color=FAINT, markersize=5)
        if not phase.kept:
            panel.axvspan(phase.begin, phase.end, color=INK, alpha=0.08, linewidth=0)
    if fit is not None and annealed and fit.converged:
        panel.axvline(annealed[-1].end, color=COLOURS[1], linestyle="--", linewidth=1.2, label="converged")
    if below is not None:
        panel.set_xlabel("")
        below.semilogy(
            np.arange(annealed[0].begin, annealed[-1].end) + 1, rates(annealed), color=INK, linewidth=1.2
        )
        below.set(xlabel="step", ylabel="rate")
        below.spines[["top", "right"]].set_visible(False)
    _legend(panel)
    return figure


def plot_calibration(prediction: Prediction, y: ArrayLike, *, axes: Axes | None = None) -> Figure:
    """Share of observations inside each central interval against its nominal probability; calibrated is the diagonal.

    From draws of y where the prediction holds ``samples``, else from a Gaussian with its mean and variance. The grey
    band is where 95 % of calibrated models of as many independent rows would lie.

    :param y: observed (N, P) or (N,), NaN where an entry is missing.
    """
    targets = _plotted_targets(y, prediction)
    there = ~np.isnan(targets)
    figure, panel = _panel(axes, (4.4, 4.2))
    if prediction.samples is not None:
        below = (prediction.samples < targets).mean(0)[there]
    else:
        below = norm.cdf((targets - prediction.mean) / np.sqrt(prediction.variance))[there]
    nominal = np.linspace(0.0, 1.0, 101)
    # inside the central interval of probability p where |2 F(y) − 1| ≤ p
    found = (np.abs(2.0 * below.ravel() - 1.0) <= nominal[:, None]).mean(1)
    spread = 1.96 * np.sqrt(nominal * (1.0 - nominal) / there.any(1).sum())
    panel.fill_between(nominal, nominal - spread, nominal + spread, color=FAINT, alpha=0.25, linewidth=0)
    panel.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    panel.plot(nominal, found, color=COLOURS[0], linewidth=2.0, label="this fit")
    panel.set(
        xlabel="nominal probability", ylabel="share of rows inside", xlim=(0, 1), ylim=(0, 1), aspect="equal"
    )
    _legend(panel)
    return figure


def plot_predicted(
    prediction: Prediction, y: ArrayLike, *, column: int = 0, axes: Axes | None = None
) -> Figure:
    """Predicted against observed with bars of 1.96 standard deviations (up to 500 rows), and the line of equality.

    :param y: observed (N, P) or (N,), NaN where an entry is missing.
    :param column: which of the P targets.
    :raises ValueError: for a column without any entry.
    """
    observed = _plotted_targets(y, prediction)[:, column]
    there = ~np.isnan(observed)
    if not there.any():
        raise ValueError(
            f"y: found no entry in column {column}, expected at least one; choose another column"
        )
    observed, mean = observed[there], prediction.mean[there, column]
    deviation = np.sqrt(prediction.variance[there, column])
    figure, panel = _panel(axes, (4.6, 4.4))
    ends = np.array([min(observed.min(), mean.min()), max(observed.max(), mean.max())])
    ends = ends + np.array([-0.04, 0.04]) * max(np.ptp(ends), 1e-9)
    panel.plot(ends, ends, color=FAINT, linewidth=1.0, linestyle="--", zorder=1)
    if observed.size <= 500:
        panel.errorbar(
            observed, mean, 1.96 * deviation, fmt="none", ecolor=COLOURS[0], alpha=0.25, linewidth=0.8
        )
    size = 4.0 if observed.size <= 500 else 1.8
    panel.plot(observed, mean, "o", color=COLOURS[0], markersize=size, alpha=0.6, markeredgewidth=0)
    panel.set(xlabel="observed", ylabel="predicted", xlim=ends)
    return figure


def _layer_panel(panel: Axes, layer: LayerMap, d: int) -> None:
    outputs = min(layer.mean.shape[1], len(COLOURS))
    for p in range(outputs):
        colour, label = COLOURS[p], f"output {p + 1}" if layer.mean.shape[1] > 1 else "mean of f"
        if layer.grid is not None and layer.grid_mean is not None and layer.grid_deviation is not None:
            line, mean, band = layer.grid[:, 0], layer.grid_mean[:, p], 1.96 * layer.grid_deviation[:, p]
            panel.fill_between(line, mean - band, mean + band, color=colour, alpha=0.18, linewidth=0)
            panel.plot(line, mean, color=colour, linewidth=1.8, label=label)
            if p == 0:
                # where the rows enter, as ticks along the lower edge
                panel.plot(
                    layer.inputs[:, 0], np.full(len(layer.inputs), 0.015), "|", color=INK, alpha=0.5,
                    markersize=7, transform=panel.get_xaxis_transform(), label="rows",
                )  # fmt: skip
        else:
            rows = layer.inputs[:, d]
            panel.plot(rows, layer.mean[:, p], ".", color=colour, markersize=5, alpha=0.6, label=label)
        name = "inducing points" if p == outputs - 1 else None
        panel.plot(
            layer.inducing[:, d], layer.inducing_mean[:, p], "o", markerfacecolor="white", markeredgecolor=colour,
            markersize=4.5, markeredgewidth=1.1, label=name, zorder=3,
        )  # fmt: skip


def _panel(axes: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    if axes is None:
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return cast(Figure, axes.get_figure(root=True)), axes


def _legend(panel: Axes) -> None:
    panel.legend(frameon=False, fontsize="small")


def _line(name: str, values: ArrayLike) -> np.ndarray:
    found = np.asarray(values)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise ValueError(
            f"{name}: found shape {found.shape}, expected (N,) or (N, 1); plot_predicted shows any inputs"
        )
    return found


def _plotted_targets(y: ArrayLike, prediction: Prediction) -> np.ndarray:
    found = np.asarray(y)
    found = found.reshape(found.shape[0], -1)
    if found.shape != prediction.mean.shape:
        raise ValueError(
            f"y: found shape {np.shape(y)}, expected {prediction.mean.shape} as the prediction's mean"
        )
    return found


def _running_median(values: np.ndarray, window: int, most: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Middles of at most ``most`` windows, and the median of the finite values in each, NaN where there are none."""
    ends = np.unique(np.linspace(window, values.size, min(most, values.size - window + 1)).astype(int))
    windows = [values[end - window : end] for end in ends]
    finite = [piece[np.isfinite(piece)] for piece in windows]
    return ends - (window - 1) / 2, np.array([np.median(piece) if piece.size else np.nan for piece in finite])
