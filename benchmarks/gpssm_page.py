"""The tables of docs/gpssm.md, from the CSVs that benchmarks/gpssm.py writes; what stands before its marker is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from gplvm_page import table

HERE, PAGE, MARK = Path("benchmarks"), Path("docs/gpssm.md"), "<!-- tables -->"
REPORTED = pd.DataFrame(
    {
        "set": ["actuator", "ballbeam", "drive", "dryer"],
        "PR-SSM, reported": [0.50, 0.07, 0.49, 0.14],
        "GP-NARX, reported": [0.63, 0.28, 0.70, 0.31],
        # the standard deviation of y in the training half, and the RMSE of its mean in the test half, in source units
        "unit": [1.4219, 0.062982, 0.68648, 0.83726],
        "training mean": [1.6301, 0.073308, 0.73459, 0.82410],
    }
)
Lines = list[str]


def page(_: argparse.Namespace) -> None:
    """Write the tables."""
    text = PAGE.read_text() if PAGE.exists() else f"# State space models\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    for name, part in {
        "recurrent": recurrent,
        "sysid": sysid,
        "neuron": neuron,
        "speed": speed,
    }.items():
        path = HERE / f"gpssm-{name}.csv"
        if path.exists():
            lines += part(pd.read_csv(path))
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def recurrent(frame: pd.DataFrame) -> Lines:
    """What it takes to train the model's own transition."""
    return ["## The model's own transition on the smooth kink", "", *table(frame)]


def sysid(frame: pd.DataFrame) -> Lines:
    """Mean over seeds beside what Doerr et al. report."""
    groups = frame.groupby(["method", "set"], sort=False)
    found = groups.agg(seeds=("seed", "count"), rmse=("rmse", "mean"), spread=("rmse", "std"),
                       log_density=("log_density", "mean"), seconds=("seconds", "mean")).reset_index()  # fmt: skip
    found = found.merge(REPORTED, on="set")
    found.insert(3, "rmse, source units", found["rmse"] * found.pop("unit"))
    about = (
        "Free simulation of the second half. `rmse`, `spread` and `log_density` are in standardised units; what is "
        "reported, and `training mean`, what forecasting that constant costs, in those of the source."
    )
    return ["## System identification", "", about, "", *table(found)]


def neuron(frame: pd.DataFrame) -> Lines:
    """Forecasts under currents that were not trained on."""
    pictures = [f"![{kind}](gpssm-neuron-approximate-{kind}.png)" for kind in ("step", "slope")]
    return ["## Hodgkin-Huxley", "", *table(frame), *pictures, ""]


def speed(frame: pd.DataFrame) -> Lines:
    """Milliseconds, and the ratio of the longer series to the shorter."""
    return ["## Cost of a step", "", *table(frame)]
