"""The page of benchmarks/trust.py: docs/which-to-trust.md and its figure, from benchmarks/trust.csv.

    python -m benchmarks.trust_page

What stands before the marker is kept. Guides are compared by PowerEP with hyperparameters that are points: KL of the
predictive densities, geometric means over the problems whose fits have converged. Correlations are of ranks, over the
converged fits of a problem whose hyperparameters are points, at all α: of the KL to the FITC model with what a user
without a reference has.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.references import FOLDER
from benchmarks.trust import CSV
from benchmarks.trust_again import CSV as AGAIN
from benchmarks.trust_again import again
from benchmarks.trust_cases import ALPHAS, DEEP, OF_ONE, SERIES
from benchmarks.trust_judged import NAMES, PREDICTORS, cell, judged, mean_correlations, rank_correlations

PAGE, FIGURE, MARK = Path("docs/which-to-trust.md"), Path("docs/which-to-trust.png"), "<!-- tables -->"
Lines = list[str]


def main() -> None:
    """Write the page and its figure."""
    table = pd.read_csv(CSV)
    text = PAGE.read_text() if PAGE.exists() else f"# Which approximation is to be trusted?\n\n{MARK}\n"
    PAGE.write_text(page(text, table, pd.read_csv(AGAIN)))
    figure(table).savefig(FIGURE, dpi=160)


def page(text: str, table: pd.DataFrame, other: pd.DataFrame) -> str:
    """The page, whose text above the marker is kept, of the rows and those of problems drawn again."""
    lines = [text.split(MARK)[0].rstrip(), "", MARK, ""]
    lines += [
        *points_or_draws(table),
        *guides(table),
        *correlations(table),
        *again(table, other),
        *references(),
    ]
    for problem, group in table.groupby("problem", sort=False):
        lines += fits(str(problem), group)
    return "\n".join(lines).rstrip() + "\n"


def references() -> Lines:
    """How the chains of each reference went."""
    lines = [
        "## References",
        "",
        "| problem | model | R-hat | effective draws | a minute | divergences | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(FOLDER.glob("*.npz")):
        about = json.loads(str(np.load(path)["about"]))
        name, kind = path.stem.rsplit("-", 1)
        r_hat, effective = max(about["r_hat"].values()), min(about["effective"].values())
        marked = "" if about["mixes"] else " (does not mix)"
        lines.append(
            f"| {name} | {kind} | {r_hat:.3f}{marked} | {effective:.0f} of {about['draws']} "
            f"| {60 * effective / about['seconds']:.0f} | {about['divergences']} | {about['seconds']:.0f} |"
        )
    return [*lines, ""]


def points_or_draws(table: pd.DataFrame) -> Lines:
    """Hyperparameters that are points, or have priors and a q, or are drawn, of one guide for each problem."""
    columns = {
        f"{how}, α = {alpha:g}": (objective, hyper, alpha)
        for how, objective, hyper in (
            ("points", "PowerEP", "points"),
            ("q", "PowerEP", "sampled"),
            ("SGHMC", "SGHMC", "sampled"),
        )
        for alpha in (0.0, 1.0)
    } | {"points, importance-weighted": ("ImportanceWeighted", "points", 1.0)}
    lines = [
        "## Hyperparameters: points, or draws",
        "",
        f"| problem, guide | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for problem, rows in table.groupby("problem", sort=False):
        guide = "conditional" if problem in DEEP + SERIES else "full-rank"
        cells = []
        for objective, hyper, alpha in columns.values():
            same = (rows.objective == objective) & (rows.hyper == hyper) & (rows.alpha == alpha)
            found = rows[same & (rows.rule.eq(guide) | rows.rule.isna()) & rows.kl_fitc.notna()]
            cells.append("" if found.empty else _kl(found.iloc[0]))
        if any(cells):
            lines.append(f"| {problem}, {guide} | {' | '.join(cells)} |")
    return [*lines, ""]


def _kl(row: pd.Series) -> str:
    """To FITC, in thousandths of a nat, with a star where a fit has not converged or chains have not mixed."""
    return f"{1000 * row.kl_fitc:.3g}" + ("" if str(row.converged) == "True" else "*")


def guides(table: pd.DataFrame) -> Lines:
    """Which guide, at which α: of single functions, of hidden layers, and of paths."""
    points = judged(table)
    points = points[points.objective == "PowerEP"]
    whole = points.groupby("problem").filter(lambda group: set(OF_ONE) <= set(group.rule))
    groups = {
        "One function": whole,
        "A hidden layer": points[points.problem.isin(DEEP)],
        "A path": points[points.problem.isin(SERIES)],
    }
    lines = ["## Guides and α", ""]
    for title, group in groups.items():
        if group.empty:
            continue
        problems = ", ".join(dict.fromkeys(group.problem))
        head = [f"{about}, α = {alpha:g}" for about in ("KL to FITC", "to dense") for alpha in ALPHAS]
        lines += [f"{title} ({problems}), in thousandths of a nat a place; numbers of fits in brackets:", ""]
        lines += [f"| guide | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
        for rule, rows in group.groupby("rule", sort=False):
            cells = [
                _mean_kl(rows[rows.alpha == alpha][kind])
                for kind in ("kl_fitc", "kl_dense")
                for alpha in ALPHAS
            ]
            lines.append(f"| {rule} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _mean_kl(found: pd.Series) -> str:
    found = found.dropna().astype(float)
    return "" if found.empty else f"{1000 * np.exp(np.log(found).mean()):.3g} ({len(found)})"


def correlations(table: pd.DataFrame) -> Lines:
    """Which diagnostic may be believed."""
    found = rank_correlations(table)
    if found.empty:
        return []
    lines = [
        "## Which diagnostic predicts the error",
        "",
        f"| problem | fits | {' | '.join(NAMES.values())} |",
        "|---" * 6 + "|",
    ]
    for problem, row in found.iterrows():
        lines.append(
            f"| {problem} | {row['fits']:.0f} | {' | '.join(f'{row[name]:.2f}' for name in NAMES)} |"
        )
    means = mean_correlations(found)
    cells = [f"{means['mean'][name]:.2f} ± {means['error'][name]:.2f}" for name in NAMES]
    return [*lines, f"| mean ± s.e. | | {' | '.join(cells)} |", ""]


def fits(problem: str, group: pd.DataFrame) -> Lines:
    """One row per fit of a problem, folded."""
    head = [
        "objective",
        "α",
        "rule",
        "hyperparameters",
        "KL to FITC",
        "KL to dense",
        "mean",
        "spread",
        "hidden",
        "k-hat",
        "ELBO",
        "s",
    ]
    lines = [
        f"<details><summary>{problem}</summary>",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    of_seeds = ["objective", "alpha", "rule", "hyper"]
    for key, rows in group.groupby(of_seeds, sort=False, dropna=False):
        known = rows[rows.kl_fitc.notna() | rows.kl_dense.notna()]
        about = ["" if pd.isna(each) else str(each) for each in key]
        if known.empty:
            lines.append(f"| {' | '.join(about)} | refused" + " |" * 8)
            continue
        # of several seeds the one with the highest bound
        row = known.loc[known.iw_bound.astype(float).fillna(0.0).idxmax()]
        star = "" if str(row.converged) in ("True", "nan") else "*"
        cells = [
            f"{row.kl_fitc:.4f}{star}",
            f"{row.kl_dense:.4f}",
            f"{row.mean_fitc:.2f}",
            f"{row.spread_fitc:+.2f}",
        ]
        cells += [cell(row.hidden_fitc), cell(row.khat), cell(row.elbo), f"{row.seconds:.0f}"]
        lines.append(f"| {' | '.join([*about, *cells])} |")
    return [*lines, "", "</details>", ""]


def figure(table: pd.DataFrame) -> Figure:
    """The KL of each fit against what a user has, problem by problem; fits beyond 3 nats are left out."""
    points = judged(table)
    drawn = Figure(figsize=(11.0, 3.4), layout="constrained")
    panels = drawn.subplots(1, len(PREDICTORS), sharey=True)
    for panel, name in zip(panels, PREDICTORS, strict=True):
        for number, (problem, group) in enumerate(points.groupby("problem", sort=False)):
            value = group[name].astype(float)
            # bounds of different problems have different zeros
            value = value if name == "khat" else value - value.max()
            panel.plot(value, group.kl_fitc, "o", ms=3.5, color=f"C{number}", label=problem)
        panel.set(
            xlabel=NAMES[name] + ("" if name == "khat" else "\nbelow the best"),
            yscale="log",
            ylim=(0.002, 2.0),
        )
        if name == "khat":
            panel.axvline(0.7, color="grey", linestyle=":", linewidth=1.0)
        else:
            panel.set_xscale("symlog", linthresh=1.0)
            panel.set(xlim=(-300.0, 0.3), xticks=[-100.0, -10.0, -1.0, 0.0])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("KL of predictive densities, nats")
    drawn.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=9,
        frameon=False,
        fontsize="small",
    )
    return drawn


if __name__ == "__main__":
    main()
