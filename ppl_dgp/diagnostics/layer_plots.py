"""Pictures of the functions inside a model: each layer's map as a line, a field or rows, and draws that go through.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import (
    COLOURS,
    FAINT,
    INK,
    ON_DARK,
    ON_LIGHT,
    _legend,
    plain_label,
    shown_names,
)
from ppl_dgp.diagnostics.layers import LayerMap
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: panels side by side, and draws of which each has a line
MOST_PANELS, MOST_DRAWS = 4, 20
#: of the colours of a field: light and dark alike for the colour-blind, and readable in grey
FIELD = "cividis"


def plot_layers(maps: Sequence[LayerMap]) -> Figure:
    """Each layer's input-output map with its inducing points, one row of panels per layer.

    A layer with one input is drawn as a line with a 95 % band of f, its rows as ticks below. One with two is a field: a
    panel for each of its first four outputs, the mean in colour, dashed contours of the standard deviation. One with
    more is drawn as its rows, seen along each of its first four inputs. Colours of lines and rows are outputs (six at
    most), open circles inducing points at (Z, E[u]).

    :param maps: from ``layer_maps``.
    :raises ValueError: if there are none.
    """
    if not maps:
        raise ValueError("maps: found none, expected those of layer_maps(...)")
    columns = max(map(_columns, maps))
    width = 3.6 * max(columns, 1.4) + 0.8 * any(map(_is_field, maps))
    figure = Figure(figsize=(1.2 + width, 0.6 + 2.8 * len(maps)), layout="constrained")
    panels = figure.subplots(len(maps), columns, squeeze=False)
    for row, layer in enumerate(maps):
        for d in range(columns):
            panel = panels[row, d]
            if d >= _columns(layer):
                panel.set_axis_off()
            elif _is_field(layer):
                _field_panel(panel, layer, d)
            else:
                _layer_panel(panel, layer, d)
        if _is_field(layer):
            handles, _ = panels[row, 0].get_legend_handles_labels()
            handles.append(
                Line2D([], [], color=ON_DARK, linestyle="--", linewidth=0.9, label="deviation of f")
            )
            legend = panels[row, 0].legend(
                handles=handles, fontsize="x-small", facecolor=FAINT, labelcolor=ON_LIGHT, framealpha=0.9
            )
            legend.set_zorder(5)
        elif layer.grid is None:
            _legend_across(panels[row, 0])
        else:
            _legend(panels[row, 0])
    return figure


def _legend_across(panel: Axes) -> None:
    """Above the first of a row of panels full of points, as wide as the row."""
    panel.set_title(" ", fontsize="small")  # the height of it
    legend = panel.legend(
        frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1,
        ncols=len(COLOURS) + 1, handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
    legend.set_in_layout(False)  # which would make room for its width in the first panel


def plot_layer_draws(
    draws: Mapping[str, ArrayLike],
    line: ArrayLike,
    *,
    label: str = "x",
    names: Sequence[str] | None = None,
) -> Figure:
    """What becomes of a line of inputs on its way through the layers: draws of every layer's outputs, layer by layer.

    A row of panels per layer, a panel for each of its first four outputs: at most twenty draws as lines, the band that
    holds 95 % of all of them, their mean.

    :param draws: of each layer (S, N, Q), by its name, from ``sample_layers`` at N inputs along a line.
    :param line: (N,), what is written along the line: the one input, or the one that varies.
    :param label: its name, with its unit.
    :param names: of the last layer's outputs.
    :raises ValueError: without draws, or where they are not of the line's places.
    """
    if not draws:
        raise ValueError("draws: found none, expected those of sample_layers(...)")
    places = np.asarray(line, float).reshape(-1)
    order = np.argsort(places)
    arrays = {name: np.asarray(values, float) for name, values in draws.items()}
    for name, values in arrays.items():
        if values.ndim != 3 or values.shape[1] != places.size:
            raise ValueError(
                f"draws: found shape {values.shape} of {name!r}, expected (S, {places.size}, Q) along the line"
            )
    columns = min(MOST_PANELS, max(values.shape[2] for values in arrays.values()))
    figure = Figure(figsize=(1.2 + 3.6 * max(columns, 1.4), 0.6 + 2.4 * len(arrays)), layout="constrained")
    panels = figure.subplots(len(arrays), columns, squeeze=False)
    last = list(arrays)[-1]
    for row, (name, values) in zip(panels, arrays.items(), strict=True):
        given = names if name == last else None
        titles = shown_names("names", given, values.shape[2], f"{plain_label(name)}, output")
        for q, panel in enumerate(row):
            if q >= values.shape[2]:
                panel.set_axis_off()
                continue
            _draws_panel(panel, places[order], values[:, order, q])
            panel.set(xlabel=plain_label(label), ylabel=titles[q], xlim=(places.min(), places.max()))
    _legend(panels[0, 0])
    return figure


def _draws_panel(panel: Axes, places: np.ndarray, draws: np.ndarray) -> None:
    """Draws (S, N) as lines, on their band."""
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    panel.fill_between(
        places, low, high, color=COLOURS[0], alpha=0.18, linewidth=0, label="95 % of the draws"
    )
    shown = draws[np.linspace(0, len(draws) - 1, min(len(draws), MOST_DRAWS)).round().astype(int)]
    for number, draw in enumerate(shown):
        name = "draws" if number == 0 else None
        panel.plot(places, draw, color=COLOURS[0], alpha=0.45, linewidth=0.7, label=name)
    panel.plot(places, draws.mean(0), color=INK, linewidth=1.6, label="their mean")
    panel.spines[["top", "right"]].set_visible(False)


def _is_field(layer: LayerMap) -> bool:
    return layer.grid is not None and layer.inputs.shape[1] == 2


def _columns(layer: LayerMap) -> int:
    """Panels of a layer."""
    panels: int = layer.mean.shape[1] if _is_field(layer) else layer.inputs.shape[1]
    return min(panels, MOST_PANELS)


def _titles(layer: LayerMap) -> tuple[list[str], list[str]]:
    """What the axes say of inputs, and of outputs."""
    name, (inputs, outputs) = plain_label(layer.name), (layer.inputs.shape[1], layer.mean.shape[1])
    across = [f"input {d + 1} of {name}" if inputs > 1 else f"input of {name}" for d in range(inputs)]
    up = [f"output {p + 1} of {name}" if outputs > 1 else f"output of {name}" for p in range(outputs)]
    return (
        shown_names("input_names", layer.input_names, inputs, "input") if layer.input_names else across,
        shown_names("output_names", layer.output_names, outputs, "output") if layer.output_names else up,
    )


def _field_panel(panel: Axes, layer: LayerMap, p: int) -> None:
    """One output over two inputs."""
    assert layer.grid is not None and layer.grid_mean is not None and layer.grid_deviation is not None
    side = round(len(layer.grid) ** 0.5)
    first, second = layer.grid[::side, 0], layer.grid[:side, 1]
    # the second input runs fastest, and upwards
    mean, deviation = (each[:, p].reshape(side, side).T for each in (layer.grid_mean, layer.grid_deviation))
    # in dots, of which a drawing has one picture
    mesh = panel.pcolormesh(first, second, mean, cmap=FIELD, shading="gouraud", rasterized=True)
    if np.ptp(deviation) > 1e-9 * max(float(deviation.max()), 1e-300):
        contours = panel.contour(first, second, deviation, 4, colors=ON_DARK, linestyles="--", linewidths=0.9)
        panel.clabel(contours, fontsize="x-small", fmt="%.2g")
    panel.plot(*layer.inputs[:, :2].T, ".", color=COLOURS[1], markersize=3, alpha=0.8, label="rows")
    panel.plot(
        *layer.inducing[:, :2].T, "o", markerfacecolor="none", markeredgecolor=ON_DARK, markersize=4.5,
        markeredgewidth=1.1, label="inducing inputs", zorder=3,
    )  # fmt: skip
    inputs, outputs = _titles(layer)
    panel.set(xlabel=inputs[0], ylabel=inputs[1])
    figure = panel.get_figure(root=True)
    assert figure is not None
    figure.colorbar(mesh, ax=panel, label=f"mean of {outputs[p]}").outline.set_visible(False)


def _layer_panel(panel: Axes, layer: LayerMap, d: int) -> None:
    """All outputs over one input, a line where there is no other."""
    inputs, titles = _titles(layer)
    outputs = min(layer.mean.shape[1], len(COLOURS))
    for p in range(outputs):
        colour, label = COLOURS[p], titles[p] if layer.mean.shape[1] > 1 else "mean of f"
        if layer.grid is not None and layer.grid_mean is not None and layer.grid_deviation is not None:
            line, mean, band = layer.grid[:, 0], layer.grid_mean[:, p], 1.96 * layer.grid_deviation[:, p]
            around = "95 % of f" if p == 0 else None
            panel.fill_between(
                line, mean - band, mean + band, color=colour, alpha=0.18, linewidth=0, label=around
            )
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
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlabel(inputs[d])
    one = len(titles) == 1
    panel.set_ylabel(titles[0] if one else f"outputs of {plain_label(layer.name)}")
