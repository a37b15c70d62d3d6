"""The sentences of docs/which-to-trust.md on problems whose rows were drawn a second time, beside the first.

Rows of the second draws ("chirp.1" is "chirp" with the seed 1) are in benchmarks/trust-again.csv, which
``python -m benchmarks.trust --measure --problems chirp.1,… --out benchmarks/trust-again.csv`` writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.reference_problems import family
from benchmarks.trust_cases import ALPHAS
from benchmarks.trust_judged import NAMES, cell, converged, judged, rank_correlations

CSV = Path("benchmarks/trust-again.csv")
#: what two fits of a pair have in common, which differ in their hyperparameters alone
PAIR = ["problem", "objective", "alpha", "rule", "seed"]


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Converged fits that differ in this alone: points, or a q of hyperparameters; what the q leaves of the KL."""
    found = converged(table)
    points, sampled = (found[found.hyper == hyper] for hyper in ("points", "sampled"))
    both = points.merge(sampled, on=PAIR, suffixes=("", "_q"))
    return both.assign(left=both.kl_fitc_q / both.kl_fitc)


def told(table: pd.DataFrame) -> dict[str, str]:
    """What the sentences say of one problem, by column."""
    points, both = judged(table), pairs(table)
    power = points[points.objective == "PowerEP"]
    weighted = points[points.objective == "ImportanceWeighted"]
    chains = table[(table.objective == "SGHMC") & (table.alpha == 1.0) & table.kl_fitc.notna()]
    others = converged(table[table.objective != "SGHMC"])
    deviation = lambda alpha: np.exp(power[power.alpha == alpha].spread_fitc.median())
    cells = {
        "nearer with a q": f"{(both.left < 1).sum()} of {len(both)}",
        "left of the KL": cell(both.left.median()),
        "deviation, α = 0": cell(deviation(0.0)),
        "α = 1": cell(deviation(1.0)),
    }
    for alpha in ALPHAS:
        cells[f"KL, {alpha:g}"] = _thousandths(power[power.alpha == alpha].kl_fitc.median())
    cells["importance-weighted"] = _thousandths(weighted.kl_fitc.median())
    cells["SGHMC, α = 1"] = _thousandths(chains.kl_fitc.median())
    cells["nearest other"] = _thousandths(others.kl_fitc.min())
    return cells


def again(table: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """Lines of the page: each problem that was drawn twice, first as it was drawn first."""
    twice = list(dict.fromkeys(family(name) for name in other.problem))
    both = pd.concat([table[table.problem.isin(twice)], other])
    order = [name for first in twice for name in dict.fromkeys(both.problem) if family(name) == first]
    rows = [(name, told(both[both.problem == name])) for name in order]
    correlations = rank_correlations(both)
    lines = [
        "## Drawn again",
        "",
        "Pairs of converged fits, points and a q of hyperparameters, of which the q is nearer, and the median of what",
        "it leaves of the KL. Of converged fits with points, medians: the deviation of f as a share of the right one,",
        "and the KL in thousandths of a nat.",
        "",
        f"| problem | {' | '.join(rows[0][1])} |",
    ]
    lines.append("|---" * (len(rows[0][1]) + 1) + "|")
    lines += [f"| {name} | {' | '.join(cells.values())} |" for name, cells in rows]
    lines += ["", f"| rank correlations | {' | '.join(NAMES.values())} |", "|---" * (len(NAMES) + 1) + "|"]
    for name in order:
        if name in correlations.index:
            found = correlations.loc[name]
            lines.append(f"| {name} | {' | '.join(f'{found[each]:.2f}' for each in NAMES)} |")
    return [*lines, ""]


def _thousandths(value: float) -> str:
    return "" if pd.isna(value) else f"{1000 * value:.3g}"
