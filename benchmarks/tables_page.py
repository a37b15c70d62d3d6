"""The page of benchmarks/tables.py: docs/tables.md and its figures, from benchmarks/tables.csv.

    python -m benchmarks.tables_page

What stands before the marker is kept. Of a cell that was run with several budgets the last row counts. Differences are
from sparse-gp, what depth is to gain over, split by split, with the standard error of their mean. Ranks are of the mean
log densities of a set's splits, of fits that do not say that they have not converged, over the sets and splits that all
methods of a figure have, with the critical difference of Nemenyi's test at 5 % (Demšar 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import rankdata, studentized_range

from benchmarks.cells import ALONE
from benchmarks.folding import folded
from benchmarks.tables import CSV, SETS
from benchmarks.uci_page import REPORTED

PAGE, MARK = Path("docs/tables.md"), "<!-- tables -->"
RANKS, SECONDS = Path("docs/tables-ranks.png"), Path("docs/tables-seconds.png")
BASE = "sparse-gp"
#: fewest sets that a comparison of ranks is drawn for
FEWEST_SETS = 3
#: of axes of seconds
TICKS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
#: nats below the best that the figure of seconds goes
SHOWN = 3.0
Lines = list[str]


def main() -> None:
    """Write the page and its figures."""
    found = latest(pd.read_csv(CSV))
    PAGE.write_text(page(PAGE.read_text(), found))
    if (ranked := mean_ranks(found)) is not None:
        ranks_figure(*ranked).savefig(RANKS, dpi=160)
    seconds_figure(found).savefig(SECONDS, dpi=160)


def latest(table: pd.DataFrame) -> pd.DataFrame:
    """The row of each cell that counts."""
    return table.drop_duplicates(["set", "split", "method"], keep="last")


def page(text: str, found: pd.DataFrame) -> str:
    """The page anew, of which ``text`` is kept up to the marker."""
    found = latest(found)
    lines = [text.split(MARK)[0].rstrip(), "", MARK, "", *ranks_lines(mean_ranks(found))]
    lines += ["![seconds against quality](tables-seconds.png)", ""]
    for name in SETS:
        if (part := found[found.set == name]).shape[0]:
            lines += set_lines(name, part)
    return folded("\n".join(lines).rstrip() + "\n")


def set_lines(name: str, part: pd.DataFrame) -> Lines:
    """A set's methods, best first, beside what the sources report."""
    heads = ("RMSE", "calibration", "in 95 %")
    measures = lambda rows: (
        f"{rows.rmse.mean():.3g}",
        f"{rows.calibration.mean():.3f}",
        f"{100 * rows.coverage95.mean():.1f} %",
    )
    lines = method_lines(name, part, BASE, heads, measures)
    if name in REPORTED:
        density, rmse = REPORTED[name]
        told = ", ".join(f"{value} and {error:g}" for value, error in zip(density[:3], rmse[:3], strict=True))
        lines += [
            "",
            f"Reported for one, two and three layers, over 20 other splits (± their deviation), RMSE: {told}.",
        ]
    return [*lines, ""]


def method_lines(
    name: str,
    part: pd.DataFrame,
    base: str,
    heads: Sequence[str],
    measures: Callable[[pd.DataFrame], Sequence[str]],
) -> Lines:
    """A heading and a table of methods: their splits, log density, what of it is more than that of ``base``, split by
    split, then measures, whether fits have converged, and seconds.

    The best come first, by that difference, for a method may have run on the easier splits alone.
    """
    columns = ["method", "splits", "log density", f"less that of {base}", *heads, "converged", "seconds"]
    lines = [f"## {name}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    densities = part.pivot(index="split", columns="method", values="test_log_density")
    compared = densities.get(base, pd.Series(np.nan, densities.index))
    apart = densities.sub(compared, axis=0)
    # a method that shares no split with the base stands by its mean
    worth = apart.mean().fillna(densities.mean() - np.nan_to_num(compared.mean()))
    for method in worth.sort_values(ascending=False, kind="stable").index:
        rows = part[part.method == method].set_index("split")
        differences = apart[method].dropna() if method != base else pd.Series(dtype=float)
        said = rows.converged.dropna()
        converged = f"{sum(map(is_true, said))} of {len(rows)}" if len(said) else ""
        shown = with_error(rows.test_log_density), with_error(differences, sign=True)
        cells = [method, str(len(rows)), *shown, *measures(rows)]
        lines.append(f"| {' | '.join([*cells, converged, shown_seconds(rows)])} |")
    return lines


def shown_seconds(rows: pd.DataFrame) -> str:
    """The mean of those that count, empty where none does."""
    alone = rows.seconds[rows.beside <= ALONE]
    return f"{alone.mean():.3g}" if len(alone) else ""


def is_true(value: object) -> bool:
    """Of what a CSV has for a truth."""
    return str(value) == "True"


def with_error(values: pd.Series, sign: bool = False) -> str:
    """A mean and its standard error, empty for none."""
    if not len(values):
        return ""
    error = f" ± {values.sem():.3f}" if len(values) > 1 else ""
    return f"{values.mean():{'+' if sign else ''}.3f}{error}".replace("-", "−")


def mean_ranks(found: pd.DataFrame, base: str = BASE) -> tuple[pd.Series, int] | None:
    """Mean ranks of methods and the number of sets that all of them have; None for fewer sets than are compared.

    Of several choices the one with most methods times sets.
    """
    means = common_means(found, base)
    best: tuple[pd.Series, int] | None = None
    most = 0
    for count in range(len(means), FEWEST_SETS - 1, -1):
        sets = means.notna().sum(axis=1).sort_values(ascending=False, kind="stable").index[:count]
        common = means.loc[sets].dropna(axis=1)
        if common.shape[1] > 1 and common.size > most:
            ranks = np.array([rankdata(-row) for row in common.to_numpy()])
            best, most = (pd.Series(ranks.mean(0), common.columns).sort_values(), count), common.size
    return best


def common_means(found: pd.DataFrame, base: str) -> pd.DataFrame:
    """Mean log densities by set and method over the splits that ``base`` has, NaN where a method lacks one or
    its fit has not converged."""
    if "converged" in found:
        found = found[found.converged.astype(str) != "False"]
    wide = found.pivot_table(index=["set", "split"], columns="method", values="test_log_density")
    if base not in wide:
        return pd.DataFrame()
    by_set = wide[wide[base].notna()].groupby("set")
    return by_set.mean().where(by_set.count().eq(by_set.size(), axis=0))


def critical_difference(methods: int, sets: int) -> float:
    """Of mean ranks: beyond it two of so many methods differ at 5 % (Demšar 2006, section 3.2.2)."""
    quantile = float(studentized_range.ppf(0.95, methods, np.inf)) / np.sqrt(2.0)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6.0 * sets)))


def ranks_lines(ranked: tuple[pd.Series, int] | None, figure: Path = RANKS) -> Lines:
    """The mean ranks in words, and their figure."""
    if ranked is None:
        return []
    ranks, sets = ranked
    told = ", ".join(f"{method} {rank:.1f}" for method, rank in ranks.items())
    difference = critical_difference(len(ranks), sets)
    return [
        "## Mean ranks",
        "",
        f"Of {len(ranks)} methods by log density on {sets} sets: {told}. Critical difference {difference:.1f}.",
        "",
        f"![mean ranks]({figure.name})",
        "",
    ]


def ranks_figure(ranks: pd.Series, sets: int) -> Figure:
    """A line for each method at its mean rank, the critical difference as a bar from the best."""
    figure = Figure(figsize=(7.0, 1.1 + 0.3 * len(ranks)), layout="constrained")
    panel = figure.subplots()
    places = np.arange(len(ranks))
    width = critical_difference(len(ranks), sets)
    label = "not told apart from the best (Nemenyi, 5 %)"
    panel.axvspan(ranks.iloc[0], ranks.iloc[0] + width, color="0.92", label=label)
    figure.legend(loc="outside upper right", frameon=False, fontsize=8)
    colours = ["C0" if name.startswith(("deep-gp", "sparse-gp")) else "0.4" for name in ranks.index]
    panel.scatter(ranks, places, c=colours, zorder=3)
    panel.set_yticks(places, list(ranks.index))
    panel.invert_yaxis()
    panel.set_xlabel(f"mean rank by test log density, {sets} sets (ours in blue)")
    panel.grid(axis="x", color="0.9")
    return figure


def legend_below(figure: Figure, panels: Iterable[Any]) -> None:
    """One legend of all panels, each label once."""
    handles = {
        label: handle
        for panel in panels
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )


def mark_seconds(panel: Any, seconds: pd.Series) -> None:
    """Ticks of a logarithmic axis in plain numbers."""
    ticks = [tick for tick in TICKS if 0.5 * seconds.min() < tick < 2.0 * seconds.max()]
    panel.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks])
    panel.xaxis.minorticks_off()


def seconds_figure(found: pd.DataFrame) -> Figure:
    """Of each set that has several methods whose seconds count, seconds against the mean log density of
    those that have all of its splits; least squares left out."""
    splits = found.groupby(["set", "method"]).split.transform("nunique")
    found = found[splits == splits.groupby(found.set).transform("max")]
    timed = found[(found.beside <= ALONE) & (found.method != "linear")]
    sets = [name for name in SETS if timed[timed.set == name].method.nunique() > 1]
    columns = min(3, max(1, len(sets)))
    lines = -(-len(sets) // columns) or 1
    figure = Figure(figsize=(4.2 * columns, 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).ravel()
    methods = sorted(timed.method.unique())
    for panel, name in zip(panels, sets, strict=False):
        means = timed[timed.set == name].groupby("method")[["seconds"]].mean()
        means["test_log_density"] = found[found.set == name].groupby("method").test_log_density.mean()
        floor = means.test_log_density.max() - SHOWN
        for number, method in enumerate(methods):
            if method in means.index and means.test_log_density[method] >= floor:
                marker = "os^Dv<>pP*X"[number // 10 % 11]
                panel.scatter(*means.loc[method], color=f"C{number % 10}", marker=marker, label=method, s=28)
        panel.set(xscale="log", title=name, xlabel="seconds", ylabel="test log density")
        panel.tick_params(labelbottom=True)
        mark_seconds(panel, timed.seconds)
    for panel in panels[len(sets) :]:
        panel.set_axis_off()
    legend_below(figure, panels)
    return figure


if __name__ == "__main__":
    main()
