"""Pictures of a fit: with error bars, its losses, its calibration, its predictions.

Every function returns a matplotlib ``Figure`` that belongs to nobody else (no pyplot state): save it with
``save_figure(figure, path)``, or draw into axes of your own with ``axes=``. Names of columns, with their units in them,
come in by ``label`` or ``labels``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _legend, _panel, plain_label
from ppl_dgp.extras import needed_for
from ppl_dgp.fit import Fit
from ppl_dgp.fit.annealing import rates
from ppl_dgp.prediction.predict import Prediction

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    :param labels: of the input and of the target.
    :raises ValueError: if the inputs are not a line, or do not fit the prediction.
    :raises TypeError: for a prediction that is none.
    """
    if not isinstance(prediction, Prediction):
        raise TypeError(
            f"prediction: found {type(prediction).__name__}, expected a Prediction; pass fit.predict(key, x_new)"
        )
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
    panel.set(xlabel=plain_label(labels[0]), ylabel=plain_label(labels[1]), xlim=(line.min(), line.max()))
    _legend(panel)
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
        one = f"median of {window} steps" if window > 1 else "loss"
        label = f"restart {restart + 1}" if len(traces) > 1 else one
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
    undone = [phase for phase in annealed if not phase.kept]
    with_rivals = [phase for phase in annealed if phase.rivals]
    for phase in annealed:
        if phase.rivals:
            given_up = "restarts given up" if phase is with_rivals[0] else None
            panel.plot(
                [phase.end] * len(phase.rivals), phase.rivals, "x", color=FAINT, markersize=5, label=given_up
            )
        if not phase.kept:
            name = "undone" if phase is undone[0] else None
            panel.axvspan(phase.begin, phase.end, color=INK, alpha=0.08, linewidth=0, label=name)
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


def plot_calibration(
    prediction: Prediction, y: ArrayLike, *, label: str = "rows", axes: Axes | None = None
) -> Figure:
    """Share of observations inside each central interval against its nominal probability; calibrated is the diagonal.

    From draws of y where the prediction holds ``samples``, else from a Gaussian with its mean and variance. The grey
    band is where 95 % of calibrated models of as many independent rows would lie.

    :param y: observed (N, P) or (N,), NaN where an entry is missing.
    :param label: what it is that lies inside.
    """
    targets = _plotted_targets(y, prediction)
    there = ~np.isnan(targets)
    figure, panel = _panel(axes, (4.4, 4.2))
    if prediction.samples is not None:
        below = (prediction.samples < targets).mean(0)[there]
    else:
        below = ndtr((targets - prediction.mean) / np.sqrt(prediction.variance))[there]
    nominal = np.linspace(0.0, 1.0, 101)
    # inside the central interval of probability p where |2 F(y) − 1| ≤ p
    found = (np.abs(2.0 * below.ravel() - 1.0) <= nominal[:, None]).mean(1)
    spread = 1.96 * np.sqrt(nominal * (1.0 - nominal) / there.any(1).sum())
    around = nominal - spread, nominal + spread
    panel.fill_between(
        nominal, *around, color=FAINT, alpha=0.25, linewidth=0, label="95 % of calibrated fits"
    )
    panel.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    panel.plot(nominal, found, color=COLOURS[0], linewidth=2.0, label="this fit")
    panel.set(
        xlabel="nominal probability of the interval", ylabel=f"share of {plain_label(label)} inside",
        xlim=(0, 1), ylim=(0, 1), aspect="equal",
    )  # fmt: skip
    _legend(panel)
    return figure


def plot_predicted(
    prediction: Prediction, y: ArrayLike, *, column: int = 0, label: str = "y", axes: Axes | None = None
) -> Figure:
    """Predicted against observed with bars of 1.96 standard deviations (up to 500 rows), and the line of equality.

    :param y: observed (N, P) or (N,), NaN where an entry is missing.
    :param column: which of the P targets, and ``label`` what it is called.
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
    panel.plot(ends, ends, color=FAINT, linewidth=1.0, linestyle="--", zorder=1, label="equal")
    if observed.size <= 500:
        panel.errorbar(
            observed, mean, 1.96 * deviation, fmt="none", ecolor=COLOURS[0], alpha=0.25, linewidth=0.8,
            label="± 1.96 deviations",
        )  # fmt: skip
    size = 4.0 if observed.size <= 500 else 1.8
    panel.plot(
        observed, mean, "o", color=COLOURS[0], markersize=size, alpha=0.6, markeredgewidth=0, label="rows"
    )
    name = plain_label(label)
    panel.set(xlabel=f"observed {name}", ylabel=f"predicted {name}", xlim=ends)
    # where there is room beside the diagonal
    panel.legend(frameon=False, fontsize="small", loc="upper left")
    return figure


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
