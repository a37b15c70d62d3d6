"""What a model says before it has seen data beside what it says after: draws of the prior and of the posterior.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import COLOURS, INK, _legend, plain_label
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: draws that are drawn one by one
MOST_LINES = 30


def plot_prior_posterior(
    prior: ArrayLike,
    posterior: ArrayLike,
    line: ArrayLike | None = None,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    column: int = 0,
    labels: tuple[str, str] = ("x", "y"),
) -> Figure:
    """Draws from the prior on the left and from the posterior on the right, with the data, on one scale.

    Along a line of inputs as functions, at most thirty, on the band that holds 95 % of all. Without one, as for several
    inputs, each draw as the distribution of its values over the rows, beside that of the data: its share below.

    :param prior: (S, N, P), as of ``sample_functions(key, fit, x, prior=True)``, and ``posterior`` (R, N, P).
    :param line: (N,) inputs, or (N, 1).
    :param x: inputs of the data, (n,) or (n, 1); ``y`` (n,) or (n, P) goes with it, or stands alone without a line.
    :param column: which of the P targets.
    :param labels: of the input and of the target.
    :raises ValueError: for draws that do not fit the line, or are not of as many columns.
    """
    both = {"prior": np.asarray(prior, float), "posterior": np.asarray(posterior, float)}
    places = None if line is None else np.asarray(line, float).reshape(-1)
    for name, draws in both.items():
        if draws.ndim != 3 or not 0 <= column < draws.shape[2]:
            raise ValueError(f"{name}: found shape {draws.shape}, expected (S, N, P) with a column {column}")
        if places is not None and draws.shape[1] != places.size:
            raise ValueError(f"{name}: found {draws.shape[1]} rows, expected {places.size} as the line has")
    targets = None if y is None else np.asarray(y, float).reshape(np.shape(y)[0], -1)[:, column]
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    across, up = map(plain_label, labels)
    for panel, (name, draws) in zip(panels, both.items(), strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_title(name, fontsize="medium")
        panel.tick_params(labelleft=True)
        if places is None:
            _distributions(panel, draws[:, :, column], targets)
            panel.set(xlabel=up, ylabel="share of rows below", ylim=(0.0, 1.0))
        else:
            _functions(panel, places, draws[:, :, column])
            if x is not None and targets is not None:
                panel.plot(
                    np.asarray(x).reshape(-1), targets, "o", color=INK, markersize=3, alpha=0.7, label="data"
                )
            panel.set(xlabel=across, ylabel=up, xlim=(places.min(), places.max()))
    _legend(panels[1])
    return figure


def _lines(draws: np.ndarray) -> np.ndarray:
    """Some of the draws, evenly spaced."""
    chosen = np.linspace(0, len(draws) - 1, min(len(draws), MOST_LINES)).round().astype(int)
    lines: np.ndarray = draws[chosen]
    return lines


def _functions(panel: Axes, places: np.ndarray, draws: np.ndarray) -> None:
    order = np.argsort(places)
    low, high = np.quantile(draws[:, order], (0.025, 0.975), axis=0)
    panel.fill_between(
        places[order], low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="95 % of the draws"
    )
    for number, draw in enumerate(_lines(draws)):
        name = "draws" if number == 0 else None
        panel.plot(places[order], draw[order], color=COLOURS[0], alpha=0.4, linewidth=0.7, label=name)


def _distributions(panel: Axes, draws: np.ndarray, targets: np.ndarray | None) -> None:
    """Empirical distribution functions; of the draws with the band of their quantiles."""
    share = (np.arange(draws.shape[1]) + 0.5) / draws.shape[1]
    ordered = np.sort(draws, axis=1)
    low, high = np.quantile(ordered, (0.025, 0.975), axis=0)
    panel.fill_betweenx(
        share, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="95 % of the draws"
    )
    for number, draw in enumerate(_lines(ordered)):
        panel.plot(
            draw, share, color=COLOURS[0], alpha=0.4, linewidth=0.7, label="draws" if number == 0 else None
        )
    if targets is not None:
        seen = np.sort(targets[~np.isnan(targets)])
        panel.plot(seen, (np.arange(seen.size) + 0.5) / seen.size, color=INK, linewidth=1.6, label="data")
