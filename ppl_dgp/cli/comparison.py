"""`compare`: the same data under several models, guides and objectives, each a run directory of its own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.commands import Task, load_task, record_of, run
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.diagnostics.compare import tabulate

UNUSED_BY_SPARSE = ("hidden",)
UNUSED_BY_EXACT = ("hidden", "inducing_rule", "objective", "alpha")


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
    for name, record in records.items():
        place = folder / name.replace(" ", "_").replace("=", "")
        alpha = float("nan") if record.settings.model == "gp" else record.settings.alpha
        rows[name.partition(" alpha=")[0], alpha] = partial(_row, place, record, task, progress)
    comparison = tabulate(rows, say)
    table = comparison.table.set_index(pd.Index(list(records), name="fit")).drop(columns=["fit", "alpha"])
    run_directory.place(folder / "comparison.csv", table.to_csv)
    run_directory.place(folder / "comparison.png", partial(comparison.figure().savefig, dpi=120))
    return folder, table


def _row(place: Path, record: Record, task: Task, progress: bool) -> dict[str, Any]:
    """The measures of a run: of one that is done as they are, else after it was made or continued."""
    before = run_directory.read(place) if place.exists() else None
    if before is not None and (before.fingerprint, before.settings) != (record.fingerprint, record.settings):
        raise BadInput(
            f"{str(place)!r} was made of other data or settings",
            "resume with the same, or name another --out",
        )
    if before is not None and before.status == "done":
        return before.result
    return run(place, record, task, before is not None, progress).result
