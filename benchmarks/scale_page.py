"""The page of benchmarks/scale.py: docs/scale.md and its figure, from benchmarks/scale.csv.

    python -m benchmarks.scale_page

What stands before the marker is kept. Of each contestant the first look that is within ``NEAR`` of the noise's log
density is shown, and the best; where none is near there is the best alone.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.cells import ALONE
from benchmarks.folding import folded
from benchmarks.scale import CSV
from benchmarks.scale_rows import INPUTS, noise_log_density
from benchmarks.tables_page import MARK, Lines, legend_below, mark_seconds

PAGE, FIGURE = Path("docs/scale.md"), Path("docs/scale.png")
#: of the noise's log density, within which next to nothing but noise is left
NEAR = 0.01
HEADS = (
    "contestant",
    "seconds",
    "of them reading",
    "steps or trees",
    "GiB",
    "log density",
    "below the noise's",
)


def main() -> None:
    """Write the page and its figure."""
    found = pd.read_csv(CSV)
    PAGE.write_text(page(PAGE.read_text(), found))
    figure(found).savefig(FIGURE, dpi=160)


def page(text: str, found: pd.DataFrame) -> str:
    """The page anew, of which ``text`` is kept up to the marker."""
    lines = [text.split(MARK)[0].rstrip(), "", MARK, "", "![seconds against what is left](scale.png)", ""]
    judged = found[found.gap.notna()]
    for (kind, rows), part in judged.groupby(["kind", "rows"], sort=False):
        lines += table_lines(kind, rows, part)
    lines += together_lines(found[found.milliseconds.notna()])
    return folded("\n".join(lines).rstrip() + "\n")


def table_lines(kind: str, rows: int, part: pd.DataFrame) -> Lines:
    """A heading and a table of contestants, the soonest near the noise first."""
    title = f"## {kind}: {shown_power(rows)} rows of {INPUTS[kind]} inputs"
    told = f"The noise's log density is {signed(noise_log_density(kind))}."
    lines = [title, "", told, "", f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    shown: list[tuple[float, str]] = []
    for contestant, looks in part.groupby("contestant", sort=False):
        best, near = looks.loc[looks.gap.idxmin()], looks[looks.gap <= NEAR]
        if len(near):
            shown.append((near.iloc[0].seconds, look_line(f"{contestant}, within 1 %", near.iloc[0])))
        if not len(near) or best.name != near.index[0]:
            shown.append(
                (float("inf") if not len(near) else best.seconds, look_line(f"{contestant}, best", best))
            )
    return [*lines, *(line for _, line in sorted(shown)), ""]


def look_line(title: str, look: pd.Series) -> str:
    """A row of the table."""
    alone = look.beside <= ALONE
    seconds = (f"{look.seconds:.0f}", f"{look.reading:.1f}") if alone else ("", "")
    cells = (title, *seconds, f"{look.length:.0f}", f"{look.gibibytes:.1f}")
    return f"| {' | '.join([*cells, signed(look.test_log_density), f'{look.gap:.1%}'.replace('%', ' %')])} |"


def together_lines(found: pd.DataFrame) -> Lines:
    """One process beside two."""
    if not len(found):
        return []
    lines = [
        "## Two processes on one machine",
        "",
        "| rows | processes | steps | ms a step | GiB each | loss a row |",
    ]
    lines += ["|" + "---|" * 6]
    for row in found.itertuples():
        processes = str(row.contestant).removeprefix("steps-")
        numbers = f"{row.length:.0f} | {row.milliseconds:.1f} | {row.gibibytes:.2f} | {row.loss:.6f}"
        lines.append(f"| {row.kind}, {shown_power(row.rows)} | {processes} | {numbers} |")
    return [*lines, ""]


def shown_power(rows: int) -> str:
    """10⁷ of 10 000 000."""
    exponent = len(f"{rows}") - 1
    if rows != 10**exponent:
        return f"{rows:,}".replace(",", " ")
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in f"{exponent}")


def signed(value: float) -> str:
    """Three digits after the point, with a minus."""
    return f"{value:.3f}".replace("-", "−")


def figure(found: pd.DataFrame) -> Figure:
    """For each table what is left to the noise's log density, against seconds."""
    judged = found[found.gap.notna()]
    groups = list(judged.groupby(["kind", "rows"], sort=False))
    drawn = Figure(figsize=(3.6 * len(groups) + 0.4, 3.4), layout="constrained")
    panels = drawn.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    names = sorted(judged.contestant.unique(), key=lambda name: (name.startswith("lightgbm"), name))
    for panel, ((kind, rows), part) in zip(panels, groups, strict=True):
        for number, name in enumerate(names):
            looks = part[part.contestant == name]
            if len(looks):
                panel.plot(
                    looks.seconds, 100 * looks.gap, marker="os^D"[number % 4], color=f"C{number}", label=name
                )
        panel.axhline(100 * NEAR, color="0.6", linewidth=0.8, linestyle="--")
        panel.set(xscale="log", yscale="log", title=f"{kind}, {shown_power(rows)} rows", xlabel="seconds")
    mark_seconds(panels[0], judged.seconds)
    panels[0].set_ylabel("% below the noise's log density")
    legend_below(drawn, panels)
    return drawn


if __name__ == "__main__":
    main()
