"""Pictures of a latent variable model: which dimensions it uses, where its rows lie, what it decodes, what views share.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state. Latent
dimensions count from 0 in arguments and from 1 in what is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _panel, shown_names
from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.collections import EllipseCollection
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: ellipses beyond this number would hide the points
MOST_ELLIPSES = 500
MOST_CLASSES = 20
#: a second sign of the class where colours are many
MARKERS = "os^Dv"
#: a dimension with less than this share of the largest relevance is off
THRESHOLD = 0.01


def plot_relevance(
    relevance: ArrayLike, *, names: Sequence[str] | None = None, axes: Axes | None = None
) -> Figure:
    """A bar for each latent dimension's relevance, as it is given and in that order; grey below 1 % of the largest.

    :param relevance: (Q,), not negative: absolute, or shares of the largest.
    :param names: of the Q dimensions, "latent 1", … by default.
    :raises ValueError: if the relevance is not (Q,) and not negative, or names are not Q.
    """
    heights = _relevance(relevance, 1)
    count = len(heights)
    figure, panel = _panel(axes, (min(max(3.6, 1.2 + 0.55 * count), 12.0), 3.0))
    level = THRESHOLD * heights.max()
    panel.bar(np.arange(count), heights, 0.7, color=[COLOURS[0] if h > level else FAINT for h in heights])
    panel.axhline(level, color=FAINT, linewidth=0.8, linestyle="--", label="1 % of the largest")
    _name_ticks(panel, count, names)
    for tick, height in zip(panel.get_xticklabels(), heights, strict=True):
        tick.set_color(INK if height > level else FAINT)
    panel.set(ylabel="relevance", xlim=(-0.6, count - 0.4))
    panel.set_ylim(bottom=0.0)
    # above the panel: bars may reach its top anywhere
    panel.legend(
        frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1
    )
    return figure


def plot_latents(
    mean: ArrayLike,
    scale: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    dimensions: Sequence[int] | None = None,
    relevance: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    deviations: float = 1.0,
    axes: Axes | None = None,
) -> Figure:
    """Rows in two of their latent dimensions, coloured by class, with faint ellipses of their uncertainty.

    One dimension is drawn over the row number, with bars for ellipses. Where rows are many, 500 of them, evenly spaced,
    keep their ellipse.

    :param mean: (N, Q), means of q(x_n).
    :param scale: (N, Q) standard deviations, or (N, Q, Q) lower Cholesky factors of the covariances.
    :param labels: (N,) classes, integers or strings, at most 20.
    :param dimensions: the two to draw, or the one; else the two of largest ``relevance`` (Q,), the largest first, else
        the first two.
    :param names: of the Q dimensions, "latent 1", … by default.
    :param deviations: half axes of the ellipses, in standard deviations.
    :raises ValueError: if shapes do not agree, classes are more than 20, or there is no such dimension.
    """
    centres = np.asarray(mean, float)
    if centres.ndim != 2 or 0 in centres.shape:
        raise ValueError(
            f"mean: found shape {centres.shape}, expected (N, Q), one row of latents per datum; reshape it"
        )
    rows, width = centres.shape
    shown = _dimensions(width, dimensions, relevance)
    titles = shown_names("names", names, width, "latent")
    classes, member = _classes(labels, rows)
    covariance = None if scale is None else _latent_covariance(scale, rows, width)[:, shown][:, :, shown]
    beside = labels is not None or covariance is not None
    figure, panel = _panel(axes, (6.4 if beside else 5.4, 4.8))
    across = np.arange(1, rows + 1) if len(shown) == 1 else centres[:, shown[0]]
    points = np.stack([across, centres[:, shown[-1]]], 1)
    colours = _colours(len(classes))
    if covariance is not None:
        kept = np.unique(np.linspace(0, rows - 1, min(rows, MOST_ELLIPSES)).round().astype(int))
        drawn = [colours[which] for which in member[kept]]
        _uncertainty(panel, points[kept], deviations, covariance[kept], drawn)
    size = 22 if rows <= 300 else 9
    handles = []
    for which, name in enumerate(classes):
        marker = "o" if len(classes) <= len(COLOURS) else MARKERS[which % len(MARKERS)]
        here = points[member == which]
        panel.scatter(
            here[:, 0], here[:, 1], s=size, marker=marker, color=colours[which], alpha=0.75, linewidth=0,
            label=str(name), zorder=3,
        )  # fmt: skip
        handles.append(
            Line2D([], [], color=colours[which], marker=marker, linestyle="", markersize=5, label=str(name))
        )
    panel.set_xlabel("row" if len(shown) == 1 else titles[shown[0]])
    panel.set_ylabel(titles[shown[-1]])
    if labels is None:
        handles = []
    if covariance is not None:
        name, sign = f"± {deviations:g} deviations", "o" if len(shown) == 2 else "|"
        handles.append(
            Line2D([], [], color=FAINT, marker=sign, linestyle="", markersize=11, alpha=0.4, label=name)
        )
    if beside:
        # beside the panel: points lie everywhere inside
        panel.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small",
            handletextpad=0.3,
        )  # fmt: skip
    return figure


def plot_grid(
    decoded: ArrayLike,
    image_shape: tuple[int, ...],
    *,
    extent: tuple[float, float, float, float] | None = None,
    names: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """What a grid of two latents decodes to, as one mosaic of G × H images, all on one scale of grey.

    :param decoded: (G, H, P) means of y: ``decoded[g, h]`` at the g-th value of the first latent, drawn from left to
        right, and the h-th of the second, from bottom to top.
    :param image_shape: (height, width) of an image, or (height, width, 3) with colours from 0 to 1; P is its product.
    :param extent: the first and last value of the first latent, then of the second, for the labels of the axes.
    :param names: of the two latents, "latent 1" and "latent 2" by default.
    :raises ValueError: if the shapes do not agree.
    """
    tiles = np.asarray(decoded, float)
    colour = len(image_shape) == 3 and image_shape[2] == 3
    if not colour and len(image_shape) != 2:
        raise ValueError(
            f"image_shape: found {tuple(image_shape)}, expected (height, width) or (height, width, 3); "
            "give that of one row of y"
        )
    pixels = int(np.prod(image_shape))
    if tiles.ndim != 3 or 0 in tiles.shape or tiles.shape[2] != pixels:
        raise ValueError(
            f"decoded: found shape {tiles.shape}, expected (G, H, {pixels}) for images of {tuple(image_shape)}; "
            "reshape the grid's rows to it"
        )
    titles = shown_names("names", names, 2, "latent")
    if extent is not None:
        if len(extent) != 4:
            raise ValueError(
                f"extent: found {len(extent)} numbers, expected 4; give the ends of one latent, then of the other"
            )
        ends = (extent[:2], extent[2:])
        titles = [
            f"{title}, from {low:.3g} to {high:.3g}".replace("-", "−")
            for title, (low, high) in zip(titles, ends, strict=True)
        ]
    across, up = tiles.shape[:2]
    height, width = image_shape[:2]
    # (h from the top, row of pixels, g, column of pixels)
    images = tiles.reshape(across, up, height, width, -1)[:, ::-1].transpose(1, 2, 0, 3, 4)
    mosaic = images.reshape(up * height, across * width, -1)
    shape = np.array([across * width, up * height]) / max(across * width, up * height)
    figure, panel = _panel(axes, (0.4 + 6.0 * max(shape[0], 0.3), 0.4 + 6.0 * max(shape[1], 0.3)))
    panel.imshow(np.clip(mosaic, 0, 1) if colour else mosaic[..., 0], cmap="gray", interpolation="nearest")
    # imshow's pixels have their centres at whole numbers
    for cut in range(1, across):
        panel.axvline(cut * width - 0.5, color="white", linewidth=0.6)
    for cut in range(1, up):
        panel.axhline(cut * height - 0.5, color="white", linewidth=0.6)
    panel.set(xticks=[], yticks=[], xlabel=titles[0], ylabel=titles[1])
    panel.spines[:].set_visible(False)
    return figure


def plot_views(
    relevance: ArrayLike,
    names: Sequence[str] | None = None,
    *,
    shared: ArrayLike | None = None,
    threshold: float = THRESHOLD,
    axes: Axes | None = None,
) -> Figure:
    """Each view's relevance of the shared latents, bars grouped by dimension, and beneath which views use it.

    Bars are shares of the view's largest. A dimension is "shared" by all views, or by those named, "private to" one, or
    "off".

    :param relevance: (V, Q), not negative: of Q latent dimensions in V views.
    :param names: of the V views, "view 1", … by default.
    :param shared: (V, Q) booleans, which view uses which dimension; by default where it is above the threshold.
    :param threshold: the share of a view's largest relevance above which a dimension counts.
    :raises ValueError: if the relevance is not (V, Q) and not negative, or ``shared`` or names do not go with it.
    """
    found = _relevance(relevance, 2)
    views, count = found.shape
    if not 0.0 <= threshold < 1.0:
        raise ValueError(f"threshold: found {threshold}, expected a share from 0 to below 1; 0.01 is usual")
    largest = found.max(1, keepdims=True)
    shares = found / np.where(largest > 0.0, largest, 1.0)
    used = shares > threshold if shared is None else np.asarray(shared, bool)
    if used.shape != found.shape:
        raise ValueError(
            f"shared: found shape {used.shape}, expected {found.shape} as the relevance; give a row per view"
        )
    titles = shown_names("names", names, views, "view")
    colours = _colours(views)
    room = max(0.95, 0.3 * views, 0.085 * max(map(len, titles)))
    figure, panel = _panel(axes, (max(4.4, 2.0 + room * count), 3.6))
    width = 0.8 / views
    handles: list[Any] = []
    for view in range(views):
        offset = (view - (views - 1) / 2) * width
        bars = panel.bar(
            np.arange(count) + offset, shares[view], 0.92 * width, color=colours[view], label=titles[view]
        )
        handles.append(bars)
    if shared is None:
        label = f"{100 * threshold:.3g} % of the largest"
        handles.append(panel.axhline(threshold, color=FAINT, linewidth=0.8, linestyle="--", label=label))
    roles = [_role(used[:, q], titles) for q in range(count)]
    panel.set_xticks(np.arange(count), [f"{q + 1}\n{role}" for q, role in enumerate(roles)], fontsize="small")
    for q, tick in enumerate(panel.get_xticklabels()):
        alone = used[:, q].sum() == 1
        plain = INK if used[:, q].any() else FAINT
        tick.set_color(colours[int(used[:, q].argmax())] if alone and views > 1 else plain)
    panel.tick_params(axis="x", length=0)
    panel.set(xlabel="latent", ylabel="relevance,\nshare of the view's largest", xlim=(-0.6, count - 0.4))
    panel.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small"
    )
    return figure


def _role(used: np.ndarray, views: Sequence[str]) -> str:
    who = [name for name, uses in zip(views, used, strict=True) if uses]
    if not who:
        return "off"
    if len(who) == len(views):
        return "shared"
    return f"private to\n{who[0]}" if len(who) == 1 else "shared by\n" + ",\n".join(who)


def _uncertainty(
    panel: Axes, points: np.ndarray, deviations: float, covariance: np.ndarray, colours: list[str]
) -> None:
    """Ellipses, or bars where the covariance is of one dimension."""
    reach = deviations * np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    if covariance.shape[1] == 1:
        low, high = points[:, 1] - reach[:, 0], points[:, 1] + reach[:, 0]
        panel.vlines(points[:, 0], low, high, colors=colours, alpha=0.4, linewidth=0.8, zorder=1)
        return
    variances, directions = np.linalg.eigh(covariance)
    lengths = 2.0 * deviations * np.sqrt(np.maximum(variances, 0.0))
    # eigh sorts upwards: the second is the longer axis
    angles = np.degrees(np.arctan2(directions[:, 1, 1], directions[:, 0, 1]))
    ellipses = EllipseCollection(
        lengths[:, 1], lengths[:, 0], angles, units="xy", offsets=points, offset_transform=panel.transData,
        facecolors=colours, edgecolors=colours, alpha=0.15 if len(points) <= 200 else 0.07, linewidths=0.5, zorder=1,
    )  # fmt: skip
    panel.add_collection(ellipses)
    # the collection's own limits are those of the centres
    panel.update_datalim(np.concatenate([points - reach, points + reach]))
    panel.autoscale_view()


def _dimensions(width: int, dimensions: Sequence[int] | None, relevance: ArrayLike | None) -> list[int]:
    if dimensions is not None:
        chosen = [int(d) for d in dimensions]
        different = len(set(chosen)) == len(chosen) and set(chosen) <= set(range(width))
        if len(chosen) not in (1, 2) or not different:
            raise ValueError(
                f"dimensions: found {tuple(chosen)}, expected one or two different ones from 0 to {width - 1}; "
                "the first column of mean is 0"
            )
        return chosen
    if relevance is None:
        return list(range(min(width, 2)))
    found = _relevance(relevance, 1)
    if len(found) != width:
        raise ValueError(
            f"relevance: found {len(found)} values, expected {width}, one per column of mean; give those of this fit"
        )
    return [int(d) for d in np.argsort(-found, kind="stable")[:2]]


def _latent_covariance(scale: ArrayLike, rows: int, width: int) -> np.ndarray:
    found = np.asarray(scale, float)
    if found.shape == (rows, width):
        result: np.ndarray = np.square(found)[:, :, None] * np.eye(width)
        return result
    if found.shape == (rows, width, width):
        result = found @ found.transpose(0, 2, 1)
        return result
    raise ValueError(
        f"scale: found shape {found.shape}, expected {(rows, width)} standard deviations or {(rows, width, width)} "
        "Cholesky factors, as mean has rows; leave it out to draw points alone"
    )


def _classes(labels: ArrayLike | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The classes in their order, and of each row the number of its class; one class without labels."""
    if labels is None:
        return np.array(["rows"]), np.zeros(rows, int)
    found = np.asarray(labels)
    if found.shape != (rows,):
        raise ValueError(
            f"labels: found shape {found.shape}, expected ({rows},), a class per row of mean; reshape or cut them"
        )
    classes, member = np.unique(found, return_inverse=True)
    if len(classes) > MOST_CLASSES:
        raise ValueError(
            f"labels: found {len(classes)} classes, expected at most {MOST_CLASSES} that colours can tell apart; "
            "merge some or leave labels out"
        )
    return classes, member


def _colours(count: int) -> list[str]:
    """Okabe and Ito's where they suffice; ten and twenty others beyond."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    palette = colormaps["tab10" if count <= 10 else "tab20"]
    return [to_hex(palette(which % palette.N)) for which in range(count)]


def _relevance(values: ArrayLike, dims: int) -> np.ndarray:
    found = np.asarray(values, float)
    shape = "(Q,)" if dims == 1 else "(V, Q)"
    if found.ndim != dims or 0 in found.shape:
        remedy = "one number per latent dimension" if dims == 1 else "one row per view"
        raise ValueError(f"relevance: found shape {found.shape}, expected {shape}; give {remedy}")
    if not (found >= 0.0).all() or np.isinf(found).any():
        worst = found[~((found >= 0.0) & np.isfinite(found))][0]
        raise ValueError(
            f"relevance: found {worst}, expected finite numbers that are not negative; 1/lengthscale² is usual"
        )
    return found


def _name_ticks(panel: Axes, count: int, names: Sequence[str] | None) -> None:
    """A tick under each bar: the dimension's number, or its name, slanted where names are long."""
    panel.set_xlabel("latent")
    if names is None:
        panel.set_xticks(np.arange(count), [str(number + 1) for number in range(count)])
        return
    titles = shown_names("names", names, count, "latent")
    slanted = max(len(title) for title in titles) > 7
    panel.set_xticks(
        np.arange(count), titles, rotation=35 if slanted else 0, ha="right" if slanted else "center",
        rotation_mode="anchor" if slanted else None,
    )  # fmt: skip
