"""What all pictures have in common: colours, panels, legends, what an axis says, and the files that they become.

A name of a column may be anything that a table has; :func:`plain_label` makes of it what can stand beside an axis.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ppl_dgp.extras import needed_for

with needed_for("plotting"):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Okabe and Ito's colours, told apart by colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, FAINT = "#333333", "#999999"
#: on top of colours that are the same on any paper; a page changes paper and ink themselves
ON_LIGHT, ON_DARK = "#343434", "#fefefe"
#: dots per inch of what is drawn in dots
DPI = 200
#: letters of a name beside an axis
LETTERS_OF_AXIS = 40
#: by suffix, what a file says of itself beyond the picture: nothing that changes from one day to the next
METADATA: dict[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".png": {"Software": None},
}


def save_figure(figure: Figure, path: str | os.PathLike[str], *, dpi: float = DPI) -> None:
    """Write a figure as SVG, PDF or PNG, as the path's suffix says; the same figure gives the same file.

    Text stays text in SVG and PDF, so that it can be searched and edited.

    :param dpi: of a PNG, and of what is drawn in dots within an SVG or PDF.
    :raises ValueError: for another suffix.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise ValueError(f"path: found suffix {suffix!r}, expected {', '.join(METADATA)}; name one of them")
    # a salt makes identifiers repeatable
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "ppl_dgp", "pdf.fonttype": 42}
    with mpl.rc_context(style), warnings.catch_warnings():
        # names in scripts that the font lacks: in SVG the reader's fonts have them
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(path, dpi=dpi, metadata=METADATA[suffix])


def drawing(figure: Figure) -> str:
    """A figure as the text of an SVG."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "figure.svg"
        save_figure(figure, path)
        return path.read_text(encoding="utf-8")


def plain_label(text: object, most: int = LETTERS_OF_AXIS) -> str:
    """A name as an axis or a legend can show it: no mathematics, nothing that cannot be printed, not too long."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    shown = shown if len(shown) <= most else shown[: most - 1] + "…"
    # which matplotlib reads as mathematics
    return shown.replace("$", r"\$")


def shown_names(argument: str, names: Sequence[object] | None, count: int, usual: str) -> list[str]:
    """Names to be shown, as many as there are things; "usual 1", … without any.

    :raises ValueError: for another number of them.
    """
    if names is None:
        return [f"{usual} {number + 1}" for number in range(count)]
    if len(names) != count:
        raise ValueError(f"{argument}: found {len(names)}, expected {count}; give one per {usual}")
    return [plain_label(name) for name in names]


def _panel(axes: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    if axes is None:
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return cast(Figure, axes.get_figure(root=True)), axes


def _legend(panel: Axes) -> None:
    panel.legend(frameon=False, fontsize="small")


def _rows_above(panel: Axes) -> None:
    """A legend on top of the panel, whose inside is full."""
    panel.legend(
        frameon=False, fontsize="small", loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1, ncols=6,
        handlelength=1.6, columnspacing=1.2,
    )  # fmt: skip
