"""Pictures of a state space model's transition: f of one state dimension as a curve, of two as a field of arrows.

As in :mod:`ppl_dgp.diagnostics.series_plots`; B states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _panel, _rows_above
from ppl_dgp.diagnostics.series_plots import _series_names
from ppl_dgp.extras import needed_for
from ppl_dgp.gp.features import places
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.prediction.forecast import Smoothed

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: on either side of what a grid is to hold, in its width
MARGIN = 0.1


def plot_transition(
    f: SparseGP,
    smoothed: Smoothed | None = None,
    *,
    controls: Sequence[float] = (),
    truth: Callable[[np.ndarray], ArrayLike] | None = None,
    span: tuple[float, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """The transition of a one-dimensional state: mean and ± 2 standard deviations of f.

    Open circles are at inducing inputs, dots are pairs (x_{t−1}, x_t) of smoothed means; where f meets the dashed
    diagonal a state stays where it is.

    :param f: from ``transition_function``.
    :param controls: the values at which C controls are held.
    :param truth: the function that the series was made with, (B,) to (B,).
    :param span: from which state to which; by default all of the smoothed means and inducing inputs.
    :raises ValueError: if the state has more than one dimension, or the controls are not those of f.
    """
    inducing = _state_inputs(f, 1, controls)
    before, after = _steps(smoothed)
    line = np.linspace(*(_span([inducing[:, 0], before[:, 0], after[:, 0]]) if span is None else span), 200)
    mean, deviation = _evaluated(f, line[:, None], controls)
    figure, panel = _panel(axes, (5.2, 4.4))
    panel.plot(line, line, color=FAINT, linewidth=1.0, linestyle="--", zorder=1, label="no move")
    low, high = mean[:, 0] - 2.0 * deviation[:, 0], mean[:, 0] + 2.0 * deviation[:, 0]
    panel.fill_between(line, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="± 2 deviations of f")
    if len(before):
        panel.plot(before[:, 0], after[:, 0], ".", color=INK, markersize=4, alpha=0.5, label="smoothed steps")
    panel.plot(line, mean[:, 0], color=COLOURS[0], linewidth=2.0, label="mean of f")
    if truth is not None:
        panel.plot(
            line, np.asarray(truth(line)), color=COLOURS[1], linewidth=1.4, linestyle="--", label="truth"
        )
    panel.plot(
        inducing[:, 0], _evaluated(f, inducing, controls)[0][:, 0], "o", markerfacecolor="white",
        markeredgecolor=COLOURS[0], markersize=5, markeredgewidth=1.1, label="inducing inputs", zorder=3,
    )  # fmt: skip
    # the truth may go where f has never been
    heights = _span([mean, after])
    panel.set(xlabel="state before", ylabel="state after", xlim=(line[0], line[-1]), ylim=heights)
    panel.legend(frameon=False, fontsize="small")
    return figure


def plot_vector_field(
    f: SparseGP,
    smoothed: Smoothed | None = None,
    *,
    controls: Sequence[float] = (),
    held: Mapping[int, float] | None = None,
    size: int = 18,
    names: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Where f moves two dimensions of a state: arrows along f(x) − x, fainter where f is less certain; smoothed paths.

    The arrows' lengths grow with the square root of the way, so that slow places are seen too, and compare with each
    other alone. Open circles are inducing inputs, a dot is a path's x_0.

    :param f: from ``transition_function``.
    :param controls: the values at which C controls are held.
    :param held: of a state of more than two dimensions, which but two are held at which value, counted from 0: paths
        and inducing inputs are then seen from along them.
    :param size: arrows along each side.
    :param names: of the two dimensions, "state 1" and "state 2" by default.
    :raises ValueError: if the state has not two dimensions that are not held, or the controls are not those of f.
    """
    fixed = dict(held or {})
    width = 2 + len(fixed)
    inputs = _state_inputs(f, width, controls)
    shown = [q for q in range(width) if q not in fixed]
    if len(shown) != 2:
        raise ValueError(f"held: found dimensions {sorted(fixed)}, expected {width - 2} of 0 to {width - 1}")
    inducing = inputs[:, shown]
    titles = [f"state {q + 1}" for q in shown] if names is None else _series_names(names, 2)
    means = np.zeros((0, 2)) if smoothed is None else smoothed.mean[:, shown]
    ends = [_span([inducing[:, q], means[:, q]]) for q in range(2)]
    sides = [np.linspace(low, high, size) for low, high in ends]
    grid = np.stack(np.meshgrid(*sides), -1).reshape(-1, 2)
    states = np.zeros((len(grid), width))
    states[:, shown], states[:, list(fixed)] = grid, list(fixed.values())
    mean, deviation = (each[:, shown] for each in _evaluated(f, states, controls))
    moves, uncertain = mean - grid, np.sqrt(np.square(deviation).mean(1))
    figure, panel = _panel(axes, (5.8, 4.6))
    # in units of the cells, of which the longest arrows cross one
    cells = np.array([side[1] - side[0] for side in sides])
    lengths = np.linalg.norm(moves / cells, axis=1)
    moves = moves / np.sqrt(np.maximum(lengths * lengths.max(), 1e-24))[:, None]
    arrows = panel.quiver(
        *grid.T,
        *moves.T,
        uncertain,
        cmap="Blues_r",
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.004,
        zorder=2,
    )
    # white arrows would not be seen
    arrows.set_clim(uncertain.min(), uncertain.min() + 1.35 * max(np.ptp(uncertain), 1e-12))
    bar = figure.colorbar(arrows, ax=panel, shrink=0.85, aspect=30, label="deviation of f")
    bar.outline.set_visible(False)
    bar.ax.set_ylim(uncertain.min(), uncertain.max())
    if smoothed is not None:
        for number, path in enumerate(np.split(means, smoothed.initial[1:])):
            name = "smoothed" if number == 0 else None
            panel.plot(*path.T, color=COLOURS[1], linewidth=0.9, alpha=0.7, label=name, zorder=3)
            panel.plot(*path[0], "o", color=COLOURS[1], markersize=5, zorder=4)
    panel.plot(
        *inducing.T, "o", markerfacecolor="white", markeredgecolor=INK, markersize=4.5, markeredgewidth=1.0,
        label="inducing inputs", linestyle="", zorder=4,
    )  # fmt: skip
    limits = [(low - cell, high + cell) for (low, high), cell in zip(ends, cells, strict=True)]
    panel.set(xlabel=titles[0], ylabel=titles[1], xlim=limits[0], ylim=limits[1])
    _rows_above(panel)
    return figure


def _steps(smoothed: Smoothed | None) -> tuple[np.ndarray, np.ndarray]:
    """Means of the states before and after each step."""
    if smoothed is None:
        return np.zeros((0, 1)), np.zeros((0, 1))
    after = np.setdiff1d(np.arange(len(smoothed.mean)), smoothed.initial)
    return smoothed.mean[after - 1], smoothed.mean[after]


def _state_inputs(f: SparseGP, width: int, controls: Sequence[float]) -> np.ndarray:
    """The states of the inducing inputs, of all outputs."""
    found, inputs = (f.u.mean if isinstance(f.u, Gaussian) else f.u).shape[-2], f.num_inputs
    if found != width:
        raise ValueError(
            f"f: found {found} state dimensions, expected {width}; other transitions have other pictures, of which "
            "plot_vector_field(held={…}) holds all dimensions but two"
        )
    if inputs != width + len(controls):
        raise ValueError(
            f"controls: found {len(controls)}, expected {inputs - width}, a value to hold each of them at"
        )
    return np.asarray(places(f.inducing)).reshape(-1, inputs)[:, :width]


def _evaluated(f: SparseGP, states: np.ndarray, controls: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of f."""
    held = np.broadcast_to(np.asarray(controls, float), (len(states), len(controls)))
    marginal = f(jnp.asarray(np.concatenate([states, held], 1)))
    return np.asarray(marginal.mean), np.sqrt(np.asarray(marginal.variance))


def _span(values: Sequence[np.ndarray]) -> tuple[float, float]:
    every = np.concatenate([np.ravel(each) for each in values])
    margin = MARGIN * max(float(np.ptp(every)), 1e-9)
    return float(every.min()) - margin, float(every.max()) + margin
