"""The page of benchmarks/tables_missing.py: docs/tables-missing.md, from benchmarks/tables-missing.csv.

    python -m benchmarks.tables_missing_page

What stands before the marker is kept. Of a cell that was run several times the last row counts. Differences are from
the GPLVM, split by split, with the standard error of their mean.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.folding import folded
from benchmarks.tables_missing import CSV, SETS
from benchmarks.tables_page import MARK, Lines, latest, method_lines

PAGE, BASE = Path("docs/tables-missing.md"), "gplvm"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(), pd.read_csv(CSV)))


def page(text: str, found: pd.DataFrame) -> str:
    """The page anew, of which ``text`` is kept up to the marker."""
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    for share, part in found.groupby("share"):
        for name in SETS:
            if (rows := latest(part[part.set == name])).shape[0]:
                lines += set_lines(f"{name}, {share:.0%} held out", rows)
    return folded("\n".join(lines).rstrip() + "\n")


def set_lines(title: str, part: pd.DataFrame) -> Lines:
    """A set's methods, best first."""
    measures = lambda rows: (
        f"{rows.rmse.mean():.3f}",
        f"{rows.calibration.mean():.3f}",
        f"{100 * rows.coverage95.mean():.1f} %",
    )
    return [*method_lines(title, part, BASE, ("RMSE", "calibration", "in 95 %"), measures), ""]


if __name__ == "__main__":
    main()
