"""Pictures of what a fit depends on: inputs in the order of their weight, and how f goes along each of them.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _panel, plain_label, shown_names
from ppl_dgp.diagnostics.sensitivity import Dependence
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: inputs of a ranking, and panels in a row of dependences
MOST_RANKED, PANELS_IN_A_ROW = 30, 3


def plot_ranking(
    weights: ArrayLike,
    names: Sequence[str] | None = None,
    *,
    label: str = "1 / lengthscale, per standard deviation",
    axes: Axes | None = None,
) -> Figure:
    """Inputs in the order of their weight, the heaviest on top: automatic relevance determination, or what is given.

    :param weights: (D,), not negative: of standardised inputs 1/ℓ_d, what ``relevance`` gives of a first layer, or the
        ``importance`` of partial dependences. At most the thirty largest are shown.
    :param names: of the D inputs.
    :param label: what the weights are.
    :raises ValueError: for weights that are negative, no numbers or none, or names that are not D.
    """
    heights = np.asarray(weights, float)
    if heights.ndim != 1 or not heights.size or not (np.isfinite(heights) & (heights >= 0.0)).all():
        raise ValueError(
            f"weights: found shape {heights.shape}, expected (D,) finite numbers that are not negative"
        )
    titles = shown_names("names", names, heights.size, "input")
    order = np.argsort(-heights, kind="stable")[:MOST_RANKED]
    places = np.arange(len(order))[::-1]
    figure, panel = _panel(axes, (6.4, 1.0 + 0.28 * len(order)))
    panel.hlines(places, 0.0, heights[order], color=COLOURS[0], linewidth=2.0, alpha=0.6)
    panel.plot(heights[order], places, "o", color=COLOURS[0], markersize=6)
    panel.set_yticks(places, [titles[d] for d in order], fontsize="small")
    panel.set(xlabel=plain_label(label, 80), ylabel="input", ylim=(-0.6, len(order) - 0.4))
    panel.set_xlim(left=0.0)
    return figure


def plot_dependence(
    dependences: Sequence[Dependence],
    names: Sequence[str] | None = None,
    *,
    label: str = "y",
    output: int = 0,
    x: ArrayLike | None = None,
) -> Figure:
    """Partial dependence on each input: the average of f ± 2 standard deviations, and faintly single rows.

    All panels have one scale, so that flat is flat. What rows lie above the average by is drawn at its own height.

    :param dependences: from ``partial_dependence``.
    :param names: of the D inputs, with their units.
    :param label: of the target, with its unit.
    :param output: which of the P outputs.
    :param x: inputs (N, D): where rows are, as ticks below.
    :raises ValueError: without dependences, or for an output that is not there.
    """
    if not dependences:
        raise ValueError("dependences: found none, expected those of partial_dependence(...)")
    outputs = min(each.mean.shape[1] for each in dependences)
    if not 0 <= output < outputs:
        raise ValueError(f"output: found {output}, expected 0 to {outputs - 1}")
    columns = min(len(dependences), PANELS_IN_A_ROW)
    lines = -(-len(dependences) // columns)
    figure = Figure(figsize=(1.0 + 3.1 * max(columns, 1.6), 0.7 + 2.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for number, (panel, each) in enumerate(zip(panels, dependences, strict=False)):
        mean, band = each.mean[:, output], 2.0 * each.deviation[:, output]
        rows = each.rows[:: -(-len(each.rows) // 20), :, output].T
        panel.plot(each.values, rows, color=FAINT, alpha=0.45, linewidth=0.6)
        panel.plot([], [], color=FAINT, alpha=0.8, linewidth=0.6, label="mean of f, single rows")
        around = {"color": COLOURS[0], "alpha": 0.25, "linewidth": 0}
        panel.fill_between(each.values, mean - band, mean + band, label="± 2 deviations", **around)
        panel.plot(each.values, mean, color=COLOURS[0], linewidth=2.0, label="average of f")
        if x is not None:
            inputs = np.asarray(x, float)[:, each.column]
            low, high = each.values[0], each.values[-1]
            inputs = inputs[(inputs >= low) & (inputs <= high)]
            panel.plot(
                inputs, np.full(inputs.size, 0.015), "|", color=INK, alpha=0.4, markersize=6,
                transform=panel.get_xaxis_transform(), label="rows",
            )  # fmt: skip
        known = names is not None and each.column < len(names)
        title = names[each.column] if known and names is not None else f"input {each.column + 1}"
        panel.set(xlabel=plain_label(title), xlim=(each.values[0], each.values[-1]))
        panel.spines[["top", "right"]].set_visible(False)
        if number % columns == 0:
            panel.set_ylabel(plain_label(label))
    for panel in panels[len(dependences) :]:
        panel.set_axis_off()
    handles, titles = panels[0].get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside upper right", frameon=False, fontsize="small", ncols=4)
    return figure
