"""The tables of docs/depth.md, from the CSVs of benchmarks.letters and benchmarks.depth; what stands before is kept.

python -m benchmarks.depth_page
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks import depth, letters
from benchmarks.gplvm_page import table

PAGE, MARK = Path("docs/depth.md"), "<!-- tables -->"
#: titles of what summaries have; "±" joins a difference and its error
SHOWN = {
    "letters": {
        "test_log_density": "held-out log density", "more": "more than the line above", "fewer": "by 500 draws",
        "coverage95": "coverage of 95 %", "bound": "bound, nats a row", "noise": "noise variance", "gap": "gap, nats",
        "converged": "converged", "fits": "fits", "steps": "steps", "seconds": "s",
    },
    "digits": {
        "bound": "bound, nats", "more": "more than the line above", "errors": "errors, layer by layer",
        "pixel_errors": "errors of pixels", "dims": "dimensions", "bent": "not linear", "gap": "gap, nats",
        "converged": "converged", "fits": "fits", "seconds": "s",
    },
    "motion": {
        "bound": "bound, nats", "more": "more than the line above", "rmse_body": "RMSE of the body",
        "nearest_body": "by the nearest frame", "rmse_legs": "RMSE of the legs",
        "nearest_legs": "by the nearest frame ", "gap": "gap, nats", "converged": "converged", "fits": "fits",
        "seconds": "s",
    },
}  # fmt: skip


def shown(summary: pd.DataFrame, titles: dict[str, str]) -> pd.DataFrame:
    """A summary with its lines' names in front, differences with their errors, and titles."""
    found = summary.copy()
    found["more"] = [
        "" if pd.isna(more) else f"{more:.4g} ± {error:.2g}"
        for more, error in zip(found.more, found.error, strict=True)
    ]
    return found[list(titles)].rename(columns=titles).reset_index()


def main() -> None:
    """Write the tables that there are."""
    lines = [PAGE.read_text().split(MARK)[0].rstrip(), "", MARK, ""]
    if letters.CSV.exists():
        found = pd.read_csv(letters.CSV)
        ink = f"The points themselves have {found.groupby('seed').ink.first().mean():.4g}."
        lines += ["## Letters", "", *table(shown(letters.summary(found), SHOWN["letters"])), ink, ""]
    for name, path in depth.CSV.items():
        if path.exists():
            summary = depth.summary(pd.read_csv(path))
            lines += [f"## {name.capitalize()}", "", *table(shown(summary, SHOWN[name]))]
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
