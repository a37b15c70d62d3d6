"""``compare``: the same data under several models, guides and objectives, each a run directory of its own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.artefacts import place_figures
from ppl_dgp.cli.classes import IMAGE_MODELS
from ppl_dgp.cli.commands import record_of, run_program
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.loading import load_task
from ppl_dgp.cli.names import MODELS
from ppl_dgp.cli.programs import contained
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.stacks import STACK
from ppl_dgp.cli.targets import check_meaning, counts_notes
from ppl_dgp.cli.task import Task
from ppl_dgp.cli.uses import OWN_ROWS, SEVERAL_TARGETS, STRICT, UNUSED, unused_defaults
from ppl_dgp.diagnostics.comparison import Comparison, tabulate


def combinations(base: Settings, lists: dict[str, Sequence[Any]]) -> dict[str, Settings]:
    """Every combination of the listed settings, under its name; what a model does not use is not varied."""
    fits: dict[str, Settings] = {}
    for name, why in (
        ("gplvm", "which predicts no target"),
        ("gpssm", "whose rows are the steps of a series"),
        *((name, "whose columns are more than features") for name in OWN_ROWS),
        *((name, "whose pixels are not standardised one by one, as features are") for name in IMAGE_MODELS),
    ):
        if name in (base.model, *lists.get("model", ())):
            raise BadInput(f"--model has {name}, {why}", "leave it out, and fit it by itself")
    for values in itertools.product(*lists.values()):
        choice = dict(zip(lists, values, strict=True))
        model = choice.get("model", base.model)
        if model not in MODELS:
            dataclasses.replace(base, model=model).check()
        unused = UNUSED[model]
        choice |= {name: lists[name][0] for name in unused if name in lists}
        settings = dataclasses.replace(base, **choice)
        if model in (*STRICT, STACK):  # what the others make use of; a kernel is the same for all
            kept = unused_defaults(settings)
            kept.pop("kernel", None)
            settings = dataclasses.replace(settings, **kept)
        elif STACK in lists.get("model", ()):
            settings = dataclasses.replace(settings, blocks=None)
        settings.check()
        varied = [name for name in lists if len(lists[name]) > 1 and name not in unused and name != "model"]
        parts = [model, *(f"alpha={choice[n]:g}" if n == "alpha" else str(choice[n]) for n in varied)]
        fits.setdefault(" ".join(parts), settings)
    return fits


def compare(
    source: str,
    base: Settings,
    lists: dict[str, Sequence[Any]],
    given: Collection[str],
    out: str | None,
    resume: bool,
    progress: bool,
    say: Any,
) -> tuple[Path, Comparison, pd.DataFrame]:
    """Fit every combination and write ``comparison.csv`` and its figure beside their run directories.

    A guide that contains others of the list begins at the optimum of the one with the highest ELBO, whose seconds come
    on top of its own. With ``resume``, runs that are done are kept and the others continued. Returns the directory, the
    comparison, and its table by the names of the runs. Raises as ``fit`` does.
    """
    settings = combinations(base, lists)
    if resume:
        if out is None:
            raise BadInput("--resume is given without --out", "name the directory to continue")
        folder = Path(out)
        if not folder.is_dir():
            raise BadInput(f"{out!r} is not a directory of runs", "leave --resume out to start one")
        run_directory.check_links(folder)
    else:
        stem = f"{Path(source).stem}-compare"
        folder = run_directory.fresh_folder(out, stem, "name another directory, or continue it with --resume")
    # entries may be missing where no model needs them all
    models = [candidate.model for candidate in settings.values()]
    strictest = next((name for name in models if name not in SEVERAL_TARGETS), models[0])
    task = load_task(source, dataclasses.replace(base, model=strictest))
    if not resume:
        check_meaning(base, task.table, given)
    # all are checked before the first is fitted
    records = {name: record_of(source, task, candidate) for name, candidate in settings.items()}
    for note in (*task.table.notes, *counts_notes(base, task.table, given)):
        say(f"note: {note}")
    finished: dict[str, dict[str, Any]] = {}

    def measured(name: str) -> dict[str, Any]:
        """The measures of a run, made after those it begins at."""
        if name not in finished:
            record = records[name]
            poorer = [
                candidate for candidate in records if contained(records[candidate].settings, record.settings)
            ]
            best = max(poorer, key=lambda candidate: _height(measured(candidate)), default=None)
            if best is not None:
                say(f"note: {name} begins at the optimum of {best}")
            beginning = None if best is None else folder / folder_of(best)
            finished[name] = _row(folder / folder_of(name), record, task, progress, beginning)
        return finished[name]

    rows = {}
    for name, record in records.items():
        alpha = float("nan") if record.settings.model == "gp" else record.settings.alpha
        rows[name.partition(" alpha=")[0], alpha] = partial(measured, name)
    with run_directory.held(folder):
        comparison = tabulate(rows, say)
        table = comparison.table.set_index(pd.Index(list(records), name="fit")).drop(columns=["fit", "alpha"])
        run_directory.place(folder / "comparison.csv", table.to_csv)
        place_figures(folder, base, {"comparison": comparison.figure()})
    return folder, comparison, table


def folder_of(name: str) -> str:
    """The directory of a run, within that of the comparison, by the run's name."""
    return name.replace(" ", "_").replace("=", "")


def _height(measures: dict[str, Any]) -> float:
    """The ELBO, the lowest of all where it is no finite number."""
    return float("-inf") if measures["elbo"] is None else measures["elbo"]


def _row(place: Path, record: Record, task: Task, progress: bool, poorer: Path | None) -> dict[str, Any]:
    """The measures of a run: of one that is done as they are, else after it was made or continued."""
    before = run_directory.read(place) if (place / run_directory.CONFIG).is_file() else None
    if before is not None and (before.fingerprint, before.settings) != (record.fingerprint, record.settings):
        raise BadInput(
            f"{str(place)!r} was made of other data or settings",
            "resume with the same, or name another --out",
        )
    if before is not None and before.status == "done":
        return before.result
    return run_program(place, record, task, before is not None, progress, poorer=poorer).result
