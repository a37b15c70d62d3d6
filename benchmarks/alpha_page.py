"""The page of benchmarks/power_ep.py: docs/which-alpha.md and its figures, from the CSVs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from benchmarks.folding import folded

HERE, DOCS = Path("benchmarks"), Path("docs")
SWEEP, REGRESSION = HERE / "alpha-sweep.csv", HERE / "alpha-regression.csv"
CLASSIFICATION, DEEP = HERE / "alpha-classification.csv", HERE / "alpha-deep.csv"
DIGITS, CALIBRATION = HERE / "alpha-digits.csv", HERE / "alpha-calibration.csv"
OBJECTIVES = HERE / "alpha-objectives.csv"
PAGE, MARK = DOCS / "which-alpha.md", "<!-- tables -->"
Lines = list[str]


def page(_: argparse.Namespace) -> None:
    """Write tables and figures; the verdict before its marker is kept."""
    text = PAGE.read_text() if PAGE.exists() else f"# Which α?\n\n{MARK}\n"
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    parts = {
        SWEEP: drawn,
        REGRESSION: tables,
        CLASSIFICATION: classes,
        DEEP: deep,
        DIGITS: digits,
        OBJECTIVES: energies,
    }
    for path, part in parts.items():
        if path.exists():
            lines += part(pd.read_csv(path))
    PAGE.write_text(folded("\n".join(lines).rstrip() + "\n"))


def drawn(table: pd.DataFrame) -> Lines:
    """SMSE, SMLL and the energy's excess over the exact evidence, against M."""
    exact, sparse = table[table.inducing == 0].set_index("split"), table[table.inducing > 0].copy()
    measures = {"smse": "SMSE", "smll": "SMLL"}
    if len(exact):
        sparse["excess"] = exact.nlml.reindex(sparse.split).to_numpy() - sparse.nlml.to_numpy()
        measures["excess"] = "energy − exact evidence, nats"
    figure = Figure(figsize=(3.6 * len(measures), 3.3), layout="constrained")
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for panel, (measure, label) in zip(panels, measures.items(), strict=True):
        for alpha, group in sparse.groupby("alpha"):
            means = group.groupby("inducing")[measure].mean()
            panel.plot(means.index, means, "o-", color=shade(alpha), label=f"α = {alpha:g}", markersize=3)
        if len(exact):
            level = 0.0 if measure == "excess" else exact[measure].mean()
            panel.axhline(level, color="0.5", linestyle="--", linewidth=1, label="exact GP")
        panel.set(xscale="log", xlabel="M", ylabel=label)
        panel.set_xticks(sorted(sparse.inducing.unique()), [str(m) for m in sorted(sparse.inducing.unique())])
        panel.minorticks_off()
        panel.spines[["top", "right"]].set_visible(False)
    if len(measures) == 3:
        panels[2].set_yscale("symlog", linthresh=10)
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(DOCS / "which-alpha-drawn.png", dpi=130)
    lines = [
        "## Functions drawn from a GP",
        "",
        f"{table.split.nunique()} functions in five dimensions, 500 rows to train.",
        "",
    ]
    lines += ["![SMSE, SMLL and energy against M](which-alpha-drawn.png)", ""]
    return lines + pivots(sparse, list(measures), "inducing", "M")


def tables(table: pd.DataFrame) -> Lines:
    """Win rates and ranks over all sets, splits and M."""
    lines = ["## Tables of numbers", ""]
    about = table[table.set != "kin8nm"]
    sets = ", ".join(about.set.unique())
    lines += [
        f"{sets}: {about.split.nunique()} splits, M = {', '.join(map(str, sorted(about.inducing.unique())))}.",
        "",
    ]
    if len(about):
        ranks(about)
        lines += ["![Win rates and mean ranks](which-alpha-ranks.png)", ""]
    lines += ["| set | M | α | SMSE | SMLL | energy | noise | converged |", "|---" * 8 + "|"]
    for (name, number, alpha), group in table.groupby(["set", "inducing", "alpha"], sort=False):
        mean = group[["smse", "smll", "nlml", "noise"]].mean()
        cells = [
            name,
            number,
            f"{alpha:g}",
            f"{mean.smse:.4f}",
            f"{mean.smll:.3f}",
            f"{-mean.nlml:.0f}",
            f"{mean.noise:.3g}",
            f"{group.converged.sum()} of {len(group)}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def ranks(table: pd.DataFrame) -> None:
    """How often one α beats another, over data set, split and M, and the mean rank of each."""
    figure = Figure(figsize=(9.0, 6.2), layout="constrained")
    panels = figure.subplots(2, 2, width_ratios=(1.2, 1.0))
    for line, measure in enumerate(("smse", "smll")):
        wide = table.pivot_table(index=["set", "split", "inducing"], columns="alpha", values=measure)
        alphas, values = list(wide.columns), wide.to_numpy()
        wins = 100.0 * (values[:, :, None] < values[:, None, :]).mean(0)
        np.fill_diagonal(wins, np.nan)
        left, right = panels[line]
        left.imshow(wins, vmin=0, vmax=100, cmap="RdBu")
        names = [f"{alpha:g}" for alpha in alphas]
        for row in range(len(names)):
            for column in range(len(names)):
                if row != column:
                    dark = abs(wins[row, column] - 50) > 30
                    left.text(column, row, f"{wins[row, column]:.0f}", ha="center", va="center", fontsize=9,
                              color="white" if dark else "black")  # fmt: skip
        left.set_xticks(range(len(names)), names)
        left.set_yticks(range(len(names)), names)
        left.set(xlabel="than this α", ylabel="better is this α", title=f"{measure.upper()}: wins, %")
        order = values.argsort(1).argsort(1) + 1.0
        error = order.std(0) / np.sqrt(len(order))
        right.errorbar(names, order.mean(0), 2.0 * error, fmt="o", color="C0")
        right.set(xlabel="α", ylabel="mean rank", title=f"{measure.upper()}: mean rank (1 is best)")
        right.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "which-alpha-ranks.png", dpi=130)


def classes(table: pd.DataFrame) -> Lines:
    lines = [
        "## Classes",
        "",
        "Means over splits, of digits one. Tied factors by L-BFGS until converged, at most 3 200 iterations; sites: "
        "power EP by iteration, 300 steps from there. To gain: the median, in nats.",
        "",
    ]
    columns = (
        "set",
        "method",
        "α",
        "energy",
        "test error",
        "minus log density",
        "to gain",
        "converged",
        "seconds",
    )
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for (name, method, alpha), group in table.groupby(["set", "method", "alpha"]):
        mean = group[["energy", "error", "nll", "seconds"]].mean()
        cells = [name, method, f"{alpha:g}", f"{mean.energy:.1f}", f"{mean.error:.3f}", f"{mean.nll:.3f}",
                 f"{group.gap.median():.2g}", f"{group.converged.sum()} of {len(group)}",
                 f"{mean.seconds:.0f}"]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def deep(table: pd.DataFrame) -> Lines:
    lines = [
        "## Deep GPs",
        "",
        f"Tied factors, moments through the layers; {table.seed.nunique()} seeds, means. To gain: the median, in nats.",
        "",
    ]
    columns = ("set", "layers", "α", "energy", "test log density", "RMSE", "noise", "to gain", "converged")
    lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for (name, layers, alpha), group in table.groupby(["set", "layers", "alpha"], sort=False):
        mean = group[["energy", "test_log_density", "rmse", "noise"]].mean()
        cells = [name, layers, f"{alpha:g}", f"{mean.energy:.1f}", f"{mean.test_log_density:.3f}", f"{mean.rmse:.4f}",
                 f"{mean.noise:.2g}", f"{group.gap.median():.2g}",
                 f"{group.converged.sum()} of {len(group)}"]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def digits(table: pd.DataFrame) -> Lines:
    lines = ["## Ten digits by a deep GP", "", "Two layers, robust-max, M = 100; the bound (α = 0).", ""]
    lines += [
        "| hidden width | steps | rows a step | test accuracy | minus log density | seconds |",
        "|---" * 6 + "|",
    ]
    for row in table.itertuples(index=False):
        lines.append(
            f"| {row.width} | {row.steps} | {row.batch} | {row.accuracy:.4f} | {row.nll:.3f} | {row.seconds} |"
        )
    if not CALIBRATION.exists():
        return [*lines, ""]
    found = pd.read_csv(CALIBRATION)
    figure = Figure(figsize=(4.2, 3.8), layout="constrained")
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    # Agresti and Coull's 95 % interval, which a share of 0 or 1 has too
    rows = found.rows + 4.0
    centre = (found.accuracy * found.rows + 2.0) / rows
    reach = 2.0 * np.sqrt(centre * (1.0 - centre) / rows)
    ends = np.clip([centre - reach, centre + reach], 0.0, 1.0)
    bars = np.abs(ends - found.accuracy.to_numpy())
    panel.errorbar(found.confidence, found.accuracy, bars, fmt="o", color="C0", markersize=4)
    for row in found.itertuples(index=False):
        panel.annotate(
            str(row.rows), (row.confidence, row.accuracy), (5, 3), textcoords="offset points", fontsize=7
        )
    panel.set(
        xlabel="probability of the likeliest class",
        ylabel="share that is right",
        xlim=(0, 1.02),
        ylim=(-0.05, 1.08),
    )
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "which-alpha-calibration.png", dpi=130)
    note = "![Calibration: numbers are rows](which-alpha-calibration.png)"
    return [*lines, "", note, ""]


def energies(table: pd.DataFrame) -> Lines:
    """The three objectives against α."""
    figure = Figure(figsize=(8.0, 3.3), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, measure, title in zip(
        panels, ("held", "best"), ("at the best q(u) of the bound", "each at its own best"), strict=True
    ):
        for place, (name, group) in enumerate(table.groupby("objective", sort=False)):
            panel.plot(group.alpha, group[measure], "o-", color=f"C{place}", markersize=3, label=name)
        panel.axhline(
            table.evidence.iloc[0], color="0.3", linestyle="--", linewidth=1, label="exact evidence"
        )
        panel.set(xlabel="α", ylabel="nats", title=title)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(DOCS / "which-alpha-objectives.png", dpi=130)
    text = (
        "One layer, 20 rows, M = 6: at α = 0 all three are the ELBO. PowerEP stays below the evidence of a model, at "
        "α = 1 FITC's, which here lies 0.02 nats above the exact GP's (dashed); the other two are energies, and can "
        "exceed every evidence."
    )
    return [
        "## Three objectives, one α",
        "",
        text,
        "",
        "![The three against α](which-alpha-objectives.png)",
        "",
    ]


def pivots(table: pd.DataFrame, measures: list[str], by: str, label: str) -> Lines:
    """A row per α and measure, a column per M."""
    numbers = sorted(table[by].unique())
    lines = [
        "| | α | " + " | ".join(f"{label} = {number}" for number in numbers) + " |",
        "|---" * (2 + len(numbers)) + "|",
    ]
    for measure in measures:
        wide = table.pivot_table(index="alpha", columns=by, values=measure)
        for alpha, row in wide.iterrows():
            form = ".1f" if measure == "excess" else ".4f"
            cells = [
                measure if measure == "excess" else measure.upper(),
                f"{alpha:g}",
                *(f"{v:{form}}" for v in row),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def shade(alpha: float) -> Any:
    return colormaps["viridis"](0.9 * alpha)
