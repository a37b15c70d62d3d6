"""``compare --html``: a comparison as one page of HTML, from what its directory holds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ppl_dgp.cli import html, run_directory
from ppl_dgp.cli.comparison import folder_of
from ppl_dgp.cli.report_page import advice, comparison_table, metrics_section, model_section, settings_section
from ppl_dgp.diagnostics.comparison import Comparison
from ppl_dgp.diagnostics.figures import drawing

#: what the figure shows
CAPTION = "Bounds of the log evidence, log density of what was held out, and how far q is to be trusted."


def write_comparison(
    out: Path, source: str, folder: Path, comparison: Comparison, table: pd.DataFrame
) -> None:
    """Write the page: the table, its figure, advice, and each fit with its model and metrics.

    :param table: by the names of the runs, whose directories are in ``folder``.
    """
    records = {str(name): run_directory.read(folder / folder_of(str(name))) for name in table.index}
    drawn, width = html.inline_svg(drawing(comparison.figure()), "comparison")
    told = [
        f"<h3>{html.text(name)}</h3>{advice(each)}"
        for name, each in records.items()
        if each.result.get("advice")
    ]
    fits = [
        (name, model_section(each) + metrics_section(each) + settings_section(each))
        for name, each in records.items()
    ]
    sections = [
        ("Comparison", comparison_table(table) + html.figure("comparison", drawn, CAPTION, width)),
        ("Advice", "".join(told) or "<p>Nothing is known to be wrong with these fits.</p>"),
        *fits,
    ]
    first = next(iter(records.values()))
    about = f"{first.num_train} rows to train on, {first.num_test} held out; the runs are in {folder}"
    title = f"{len(records)} fits of {Path(source).name or source}"
    content = html.page(title, sections, f"<p>{html.text(about)}</p>")
    run_directory.place(out, lambda path: path.write_text(content, encoding="utf-8"))
