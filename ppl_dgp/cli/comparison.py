"""`compare`: the same data under several models, guides and objectives, each a run directory of its own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.commands import load_task, record_of, run
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.settings import Settings

UNUSED_BY_SPARSE = ("hidden",)
UNUSED_BY_EXACT = ("hidden", "inducing_rule", "objective", "alpha")
MEASURES = ("elbo", "iw_bound", "loo", "test_log_density", "test_rmse", "coverage95")
COLUMNS = (
    "elbo",
    "elbo_se",
    "iw_bound",
    "khat",
    "loo",
    "test_log_density",
    "test_rmse",
    "coverage95",
    "seconds",
    "parameters",
)


def combinations(base: Settings, lists: dict[str, Sequence[Any]]) -> dict[str, Settings]:
    """Every combination of the listed settings, under its name; what a model does not use is not varied."""
    found: dict[str, Settings] = {}
    for values in itertools.product(*lists.values()):
        choice = dict(zip(lists, values, strict=True))
        model = choice.get("model", base.model)
        unused = {"gp": UNUSED_BY_EXACT, "sparse-gp": UNUSED_BY_SPARSE}.get(model, ())
        choice |= {name: lists[name][0] for name in unused if name in lists}
        settings = dataclasses.replace(base, **choice)
        settings.check()
        varied = [name for name in lists if len(lists[name]) > 1 and name not in unused and name != "model"]
        parts = [model, *(f"alpha={choice[n]:g}" if n == "alpha" else str(choice[n]) for n in varied)]
        found.setdefault(" ".join(parts), settings)
    return found


def compare(
    source: str,
    base: Settings,
    lists: dict[str, Sequence[Any]],
    out: str | None,
    resume: bool,
    progress: bool,
    say: Any,
) -> tuple[Path, pd.DataFrame]:
    """Fit every combination and write `comparison.csv` and `comparison.png` beside their run directories.

    With `resume`, runs that are done are kept and the others continued. Raises as `fit` does.
    """
    settings = combinations(base, lists)
    if resume:
        if out is None:
            raise BadInput("--resume is given without --out", "name the directory to continue")
        folder = Path(out)
        if not folder.is_dir():
            raise BadInput(f"{out!r} is not a directory of runs", "leave --resume out to start one")
    else:
        stem = f"{Path(source).stem}-compare"
        folder = run_directory.fresh_folder(out, stem, "name another directory, or continue it with --resume")
    task = load_task(source, base)
    # all are checked before the first is fitted
    records = {name: record_of(source, task, each) for name, each in settings.items()}
    for note in task.table.notes:
        say(f"note: {note}")
    rows = {}
    for number, (name, record) in enumerate(records.items(), start=1):
        place = folder / name.replace(" ", "_").replace("=", "")
        before = run_directory.read(place) if place.exists() else None
        if before is not None and (before.fingerprint, before.settings) != (
            record.fingerprint,
            record.settings,
        ):
            raise BadInput(
                f"{str(place)!r} was made of other data or settings",
                "resume with the same, or name another --out",
            )
        if before is not None and before.status == "done":
            rows[name] = before.result
            continue
        say(f"{number} of {len(records)}: fitting {name}")
        rows[name] = run(place, record, task, before is not None, progress).result
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=list(COLUMNS))
    table.index.name = "fit"
    run_directory.place(folder / "comparison.csv", table.to_csv)
    run_directory.place(folder / "comparison.png", partial(_figure(table).savefig, dpi=120))
    return folder, table


def _figure(table: pd.DataFrame) -> Figure:
    """One panel per measure, one line per fit."""
    shown = [name for name in MEASURES if table[name].notna().any()]
    figure = Figure(figsize=(2.2 + 2.3 * len(shown), 1.2 + 0.35 * len(table)), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    heights = np.arange(len(table))[::-1]
    for panel, name in zip(panels, shown, strict=True):
        values = table[name].astype(float).to_numpy()
        error = table["elbo_se"].astype(float).to_numpy() if name == "elbo" else None
        panel.errorbar(values, heights, xerr=error, fmt="o", color="#0072B2")
        panel.set_yticks(heights, list(table.index))
        panel.set_title(name.replace("_", " "), fontsize="medium")
        panel.grid(axis="x", alpha=0.3)
        panel.locator_params(axis="x", nbins=4)
        panel.spines[["top", "right"]].set_visible(False)
        if name == "coverage95":
            panel.axvline(0.95, color="#999999", linestyle="--", linewidth=1.0)
    return figure
