"""The tables of docs/gplvm.md, from the CSVs that benchmarks/gplvm.py writes; what stands before its marker is kept."""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

HERE, PAGE, MARK = Path("benchmarks"), Path("docs/gplvm.md"), "<!-- tables -->"
Lines = list[str]


def page(_: argparse.Namespace) -> None:
    """Write the tables and name the figures."""
    text = PAGE.read_text() if PAGE.exists() else f"# Latent variable models on real tables\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    for name, part in {
        "oil": oil, "missing": missing, "usps": usps, "motion": motion, "digits": digits,
    }.items():  # fmt: skip
        path = HERE / f"gplvm-{name}.csv"
        if path.exists():
            lines += part(pd.read_csv(path))
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def table(frame: pd.DataFrame) -> Lines:
    """As Markdown; what is not there is left empty."""
    rows = [["" if pd.isna(value) else f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
            for row in frame.itertuples(index=False)]  # fmt: skip
    return [
        "| " + " | ".join(row) + " |" for row in [list(frame.columns), ["---"] * frame.shape[1], *rows]
    ] + [""]


def oil(frame: pd.DataFrame) -> Lines:
    """Errors and bounds by start."""
    names = {
        "start": "start",
        "seed": "seed",
        "bound": "bound (nats)",
        "errors": "nearest-neighbour errors of 1000",
    }
    names |= {"kept": "dimensions above 2 % of the first", "seconds": "s"}
    picture = ["![oil flow](gplvm-oil.png)", "![relevance](gplvm-oil-relevance.png)", ""]
    return ["## Oil flow", "", *table(frame[list(names)].rename(columns=names)), *picture]


def missing(frame: pd.DataFrame) -> Lines:
    """RMSE and log density of the entries, a method a line."""
    lines = ["## Missing entries", ""]
    for name, group in frame.groupby("table", sort=False):
        found = {"method": group.method.unique()}
        for share, part in group.groupby("share"):
            by = part.set_index("method")
            for column, label in (("rmse", "RMSE"), ("log_density", "log density")):
                found[f"{100 * share:.0f} %: {label}"] = [by[column].get(m) for m in found["method"]]
        lines += [f"**{name}**", "", *table(pd.DataFrame(found))]
    return lines


def usps(frame: pd.DataFrame) -> Lines:
    """Per datum and amortised."""
    return ["## Handwritten digits by minibatches", "", *table(frame), "![USPS](gplvm-usps.png)", ""]


def motion(frame: pd.DataFrame) -> Lines:
    """Markers filled in."""
    filled = frame[frame.method != "gait errors"].drop(columns="seconds")
    return ["## Motion", "", *table(filled), "![gaits](gplvm-motion.png)", ""]


def digits(frame: pd.DataFrame) -> Lines:
    """One layer and two."""
    pictures = [f"![{n}](gplvm-digits-{n}{e}.png)" for n in ("gplvm", "deep-gplvm") for e in ("", "-grid")]
    return ["## scikit-learn's digits in two dimensions", "", *table(frame), *pictures, ""]
