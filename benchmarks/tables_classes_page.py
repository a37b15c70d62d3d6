"""The page of benchmarks/tables_classes.py: docs/tables-classes.md and its figure, from benchmarks/tables-classes.csv.

    python -m benchmarks.tables_classes_page

What stands before the marker is kept. Of a cell that was run several times the last row counts. Differences are from
the sparse GP, split by split, with the standard error of their mean; ranks as in ``benchmarks.tables_page``.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.folding import folded
from benchmarks.tables_classes import CSV, PIXELS, SETS
from benchmarks.tables_page import MARK, Lines, latest, mean_ranks, method_lines, ranks_figure, ranks_lines

PAGE, RANKS = Path("docs/tables-classes.md"), Path("docs/tables-classes-ranks.png")
BASE = "sparse-gp"


def main() -> None:
    """Write the page and its figure."""
    found = latest(pd.read_csv(CSV))
    PAGE.write_text(page(PAGE.read_text(), found))
    if (ranked := mean_ranks(found, BASE)) is not None:
        ranks_figure(*ranked).savefig(RANKS, dpi=160)


def page(text: str, found: pd.DataFrame) -> str:
    """The page anew, of which ``text`` is kept up to the marker."""
    found = latest(found)
    lines = [text.split(MARK)[0].rstrip(), "", MARK, "", *ranks_lines(mean_ranks(found, BASE), RANKS)]
    for name in (*SETS, *PIXELS):
        if (part := found[found.set == name]).shape[0]:
            lines += set_lines(name, part)
    return folded("\n".join(lines).rstrip() + "\n")


def set_lines(name: str, part: pd.DataFrame) -> Lines:
    """A set's methods, best first."""
    measures = lambda rows: (f"{100 * rows.error.mean():.1f} %", f"{rows.calibration_error.mean():.3f}")
    return [*method_lines(name, part, BASE, ("error", "calibration error"), measures), ""]


if __name__ == "__main__":
    main()
