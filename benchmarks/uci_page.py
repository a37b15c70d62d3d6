"""The tables of docs/uci.md, from the CSVs that benchmarks/uci.py writes; what stands before its marker is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.folding import folded
from benchmarks.gplvm_page import table

PAGE, MARK = Path("docs/uci.md"), "<!-- tables -->"
CSV, THROUGHPUT = Path("benchmarks/uci.csv"), Path("benchmarks/uci-throughput.csv")
#: mean and deviation of the test log density over 20 splits, and the mean RMSE: 100 inducing inputs, 1 to 5 layers
REPORTED = {
    "boston": (
        ["−2.504 ± 0.204", "−2.458 ± 0.237", "−2.393 ± 0.187", "−2.382 ± 0.170", "−2.354 ± 0.130"],
        [2.982, 2.904, 2.804, 2.748, 2.678],
    ),
    "energy": (
        ["−1.421 ± 0.071", "−0.657 ± 0.124", "−0.534 ± 0.174", "−0.509 ± 0.189", "−0.455 ± 0.170"],
        [0.872, 0.460, 0.400, 0.393, 0.364],
    ),
    "kin8nm": (
        ["0.965 ± 0.017", "1.364 ± 0.022", "1.388 ± 0.027", "1.380 ± 0.027", "1.380 ± 0.024"],
        [0.088, 0.062, 0.061, 0.061, 0.061],
    ),
    "naval": (
        ["6.507 ± 0.389", "6.656 ± 0.990", "6.913 ± 0.396", "6.878 ± 0.383", "6.832 ± 0.467"],
        [0.0003, 0.0002, 0.0001, 0.0002, 0.0002],
    ),
    "protein": (
        ["−2.940 ± 0.008", "−2.783 ± 0.012", "−2.699 ± 0.013", "−2.692 ± 0.013", "−2.687 ± 0.014"],
        [4.572, 3.938, 3.677, 3.671, 3.660],
    ),
    "wine_red": (
        ["−0.951 ± 0.058", "−0.951 ± 0.069", "−0.948 ± 0.069", "−0.947 ± 0.067", "−0.947 ± 0.065"],
        [0.627, 0.627, 0.625, 0.624, 0.625],
    ),
}
BY = ["objective", "alpha", "particles", "steps", "batch", "bits"]
Lines = list[str]


def page(_: argparse.Namespace) -> None:
    """Write the tables."""
    text = PAGE.read_text() if PAGE.exists() else f"# Regression tables\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    for path, part in {CSV: accuracy, THROUGHPUT: throughput}.items():
        if path.exists():
            lines += part(pd.read_csv(path))
    PAGE.write_text(folded("\n".join(lines).rstrip() + "\n"))


def accuracy(frame: pd.DataFrame) -> Lines:
    """A table for each objective and length of training, mean ± deviation over splits beside what is reported."""
    lines = []
    for (objective, alpha, particles, steps, batch, bits), group in frame.groupby(BY, sort=False):
        name = (
            "the bound (α = 0)" if objective == "dsvi" else f"PowerEP, α = {alpha:g}, {particles} particles"
        )
        lines += [f"## {name}, {steps} steps of at most {batch} rows, {bits} bits", ""]
        found = []
        for (which, depth), part in group.groupby(["set", "depth"]):
            log_density, rmse = REPORTED[which][0][depth - 1], REPORTED[which][1][depth - 1]
            found.append({
                "set": which, "layers": depth, "splits": len(part),
                "log density": _spread(part.test_log_density), "reported": log_density,
                "RMSE": _spread(part.rmse), "RMSE, reported": f"{rmse:g}",
                "rejected steps": int(part.rejected_steps.sum()), "seconds a fit": float(part.seconds_each.mean()),
            })  # fmt: skip
        lines += table(pd.DataFrame(found))
    return lines


def _spread(values: pd.Series) -> str:
    deviation = f" ± {values.std():.3f}" if len(values) > 1 else ""
    return (
        f"{values.mean():.3g}"
        if abs(values.mean()) < 0.01
        else f"{values.mean():.3f}{deviation}".replace("-", "−")
    )


def throughput(frame: pd.DataFrame) -> Lines:
    """Fits per hour, together and one after another."""
    names = {"fits_per_hour": "fits per hour, together", "fits_per_hour_alone": "one after another"}
    return ["## Splits together", "", *table(frame.rename(columns=names))]
