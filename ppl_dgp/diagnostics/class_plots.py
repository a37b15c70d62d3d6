"""Pictures of predicted classes: which were taken for which, and whether their probabilities are to be believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from ppl_dgp.diagnostics.class_measures import BINS, reliability
from ppl_dgp.diagnostics.figures import COLOURS, FAINT, ON_DARK, ON_LIGHT, _panel, _rows_above, plain_label
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

#: classes whose counts are written, and whose labels are; of more the colours, and some of the labels
WRITTEN, NAMED = 20, 40
#: letters of a label
LETTERS = 14


def plot_confusion(
    counts: Int[np.ndarray, "C C"], labels: Sequence[Any], *, label: str = "label", axes: Axes | None = None
) -> Figure:
    """Rows by observed (down) and predicted label (across): how many, and in colour the share of those observed.

    :param counts: from ``confusion_counts``.
    :param labels: C of them, in the order of the counts.
    :param label: the name of what they are labels of.
    :raises ValueError: if there are not as many labels as classes.
    """
    classes = len(counts)
    if len(labels) != classes:
        raise ValueError(f"labels: found {len(labels)}, expected {classes}, one for each class")
    side = 2.6 + 0.42 * min(classes, WRITTEN)
    figure, panel = _panel(axes, (side + 0.6, side))
    panel.spines[["left", "bottom"]].set_visible(False)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    shades = LinearSegmentedColormap.from_list("shares", ["white", COLOURS[0]])
    picture = panel.imshow(shares, cmap=shades, vmin=0.0, vmax=1.0)
    if classes <= WRITTEN:
        for i, j in np.argwhere(counts > 0):
            colour = ON_DARK if shares[i, j] > 0.55 else ON_LIGHT
            panel.text(j, i, str(counts[i, j]), ha="center", va="center", color=colour, fontsize="small")
    places = np.arange(0, classes, -(-classes // NAMED))
    names = [plain_label(labels[int(place)], LETTERS) for place in places]
    upright = classes > 6 or max(map(len, names)) > 6
    panel.set_xticks(
        places, names, rotation=90 if upright and max(map(len, names)) > 2 else 0, fontsize="small"
    )
    panel.set_yticks(places, names, fontsize="small")
    panel.tick_params(length=0)
    panel.set(xlabel=f"predicted {plain_label(label)}", ylabel=f"observed {plain_label(label)}")
    bar = panel.figure.colorbar(picture, ax=panel, shrink=0.8, label="share of those observed")
    bar.outline.set_visible(False)
    return figure


def plot_reliability(
    probabilities: Float[np.ndarray, "N C"], labels: Num[np.ndarray, " N"], *, axes: Axes | None = None
) -> Figure:
    """The share of rows predicted rightly against the probability of their likeliest class; calibrated is the diagonal.

    Bars are where 95 % of calibrated models of as many independent rows would lie. Below, how many rows there are, bin
    by bin, unless it is drawn into axes of one's own.

    :param probabilities: of N rows.
    :param labels: observed, 0 … C − 1.
    """
    number, confidence, share, count = reliability(probabilities, labels)
    below = None
    if axes is None:
        figure = Figure(figsize=(4.4, 5.0), layout="constrained")
        panel, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        panel.spines[["top", "right"]].set_visible(False)
    else:
        figure, panel = _panel(axes, (4.4, 4.2))
    least = 1.0 / probabilities.shape[1]
    spread = 1.96 * np.sqrt(confidence * (1.0 - confidence) / count)
    low, high = np.maximum(confidence - spread, 0.0), np.minimum(confidence + spread, 1.0)
    panel.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    panel.vlines(
        confidence, low, high, color=FAINT, alpha=0.5, linewidth=5.0, label="95 % of calibrated fits"
    )
    panel.plot(confidence, share, "o-", color=COLOURS[0], markersize=4.5, linewidth=1.2, label="this fit")
    panel.set(xlabel="probability of the likeliest class", ylabel="share predicted rightly")
    panel.set(xlim=(max(0.0, least - 0.05), 1.02), ylim=(-0.02, 1.02))
    _rows_above(panel)
    if below is not None:
        panel.set_xlabel("")
        below.bar((number + 0.5) / BINS, count, 0.9 / BINS, color=COLOURS[0], alpha=0.5)
        below.set(xlabel="probability of the likeliest class", ylabel="rows")
        below.spines[["top", "right"]].set_visible(False)
    return figure
