"""A picture of how well fits forecast, by the number of steps ahead.

As in :mod:`ppl_dgp.diagnostics.plots`, without pyplot state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK
from ppl_dgp.diagnostics.horizons import HorizonScores
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: scores of the panels, and what is written beside them
PANELS = {
    "rmse": "RMSE, in the units of y",
    "log_density": "log density, nats per row",
    "coverage95": "share in the 95 % interval",
    "crps": "CRPS, in the units of y",
}
FIT_MARKERS = "osD^vP"
#: where the panel of coverage begins at the latest
LEAST_SHARE = 0.6


def plot_horizons(scores: HorizonScores | Mapping[str, HorizonScores], *, reference: bool = True) -> Figure:
    """RMSE, log density, coverage and CRPS over the horizons, one line for each fit; the free run stands apart, last.

    :param scores: of one fit, or of several of one record and the same horizons, by name.
    :param reference: whether the training rows' mean and variance, as one Gaussian, are shown too, in grey.
    :raises ValueError: without scores, for more than six, or for other horizons or records.
    """
    several = {"forecast": scores} if isinstance(scores, HorizonScores) else dict(scores)
    if not 0 < len(several) <= len(COLOURS):
        raise ValueError(f"scores: found {len(several)}, expected those of 1 to {len(COLOURS)} fits")
    first = next(iter(several.values()))
    for name, each in several.items():
        if each.labels != first.labels or not np.array_equal(each.entries, first.entries):
            raise ValueError(
                f"scores: found horizons {each.labels} of {each.entries} entries in {name!r}, expected {first.labels} "
                f"of {first.entries} as the first has; score the same rows"
            )
    figure = Figure(figsize=(9.0, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).ravel()
    for (score, title), panel in zip(PANELS.items(), panels, strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25)
        if score == "coverage95":
            panel.axhline(0.95, color=INK, linewidth=0.8, linestyle=":")
        if reference and first.reference is not None:
            _line(panel, getattr(first.reference, score), FAINT, "", "mean of the training rows", "--")
        for number, (name, each) in enumerate(several.items()):
            _line(panel, getattr(each, score), COLOURS[number], FIT_MARKERS[number], name)
        panel.set_ylabel(title)
        if score == "coverage95":
            # a few entries more or less are not to look like much
            panel.set_ylim(min(panel.get_ylim()[0], LEAST_SHARE), 1.02)
        elif score != "log_density":
            panel.set_ylim(bottom=0.0)
    places = np.arange(len(first.labels))
    for panel in panels[2:]:
        panel.set_xticks(places, [*map(str, first.horizons), f"free run,\n{first.free_run} steps"])
        panel.set_xlabel("steps ahead")
        panel.set_xlim(-0.4, places[-1] + 0.4)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", frameon=False, fontsize="small", ncols=4)
    return figure


def _line(panel: Axes, values: np.ndarray, colour: str, marker: str, label: str, style: str = "-") -> None:
    """The horizons joined, the free run apart."""
    places = np.arange(len(values))
    settings: dict[str, Any] = {
        "color": colour,
        "marker": marker,
        "markersize": 5,
        "linestyle": style,
        "linewidth": 1.6,
    }
    panel.plot(places[:-1], values[:-1], label=label, **settings)
    if marker:
        panel.plot(places[-1:], values[-1:], **settings)
    else:
        panel.plot(places[-1] + np.array([-0.25, 0.25]), [values[-1]] * 2, **settings)
