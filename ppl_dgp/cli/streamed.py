"""``fit_streamed`` on rows that stay on disk, in one process or in several that share them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import reduce
from pathlib import Path

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from ppl_dgp.checkpoint import INDEX
from ppl_dgp.cli import run_directory
from ppl_dgp.cli.artefacts import of_training, place_figures
from ppl_dgp.cli.classes import check_numbers
from ppl_dgp.cli.commands import CONTINUE, _continued, precision
from ppl_dgp.cli.errors import BadInput, Stopped
from ppl_dgp.cli.names import OWN_SCALE
from ppl_dgp.cli.programs import build, ending
from ppl_dgp.cli.report import effort, finite
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import DEFAULT_BATCH, Settings
from ppl_dgp.cli.targets import check_meaning
from ppl_dgp.data import BUILT_INS, RowSource, Table, load_table, open_rows
from ppl_dgp.data.column_statistics import ColumnStatistics
from ppl_dgp.fit import Interrupted, JitterWarning, fit_stream
from ppl_dgp.fit.result import mean_loss

#: rules without parameters for each datum
RULES = ("doubly-stochastic", "moment-matched", "nested-compression", "amortised")


def on_disk(source: str) -> bool:
    """Whether the source can only be read block by block: a directory, or a ``.npy``."""
    return source not in BUILT_INS and (Path(source).is_dir() or Path(source).suffix.lower() == ".npy")


def fit_streamed(
    source: str,
    settings: Settings,
    given: Collection[str],
    out: str | None,
    resume: bool,
    progress: bool,
    say: Callable[[str], None],
) -> tuple[Path, Record]:
    """Fit to all rows of the source, block by block, and fill a run directory, which of several processes one writes.

    Nothing is held out, and what needs all rows at once is not evaluated. Raises as ``ppl_dgp.cli.commands.fit``.
    """
    settings.check()
    first, several = jax.process_index() == 0, jax.process_count() > 1
    _check_streamed_settings(settings, given)
    if out is None and (several or resume):
        raise BadInput("--out is not given", "name the run directory, the same in every process")
    earlier = None
    if resume:
        assert out is not None
        folder = Path(out)
        earlier = run_directory.read(folder)
        settings = _continued(earlier.settings, settings, given)
    elif first:
        stem = f"{Path(source).stem}-{settings.model}"
        folder = run_directory.fresh_folder(
            out, stem, "name another directory, or continue its run with --resume"
        )
    else:
        folder = Path(str(out))
    rows, table = _opened(source, settings)
    record = _record(source, rows, settings)
    if table is not None:
        if not resume:
            check_meaning(settings, table, given)
        record = dataclasses.replace(record, encoding=table.encoding, notes=table.notes)
        for note in table.notes:
            say(f"note: {note}")
    run_directory.check_same_data(folder, earlier, record)
    say(f"fitting {settings.model} to {record.num_train} rows of {source}, writing to {folder}")
    alone = run_directory.held(folder) if first else nullcontext()
    with alone, jax.enable_x64(record.settings.precision == "float64"):
        try:
            return folder, _run_streamed(folder, record, rows, resume, progress and first, say, first)
        except Interrupted as stop:
            raise Stopped(
                f"interrupted after {stop.fit.steps} steps; {str(folder)!r} holds the fit so far, {CONTINUE}"
            ) from None


def _run_streamed(
    folder: Path,
    record: Record,
    rows: RowSource,
    resume: bool,
    progress: bool,
    say: Callable[[str], None],
    first: bool,
) -> Record:
    settings, saved = record.settings, folder / "checkpoint"
    assert settings.batch is not None
    if first:
        run_directory.write(folder, record)
    program = build(settings, len(record.target_names))
    assert program.guide is not None and program.objective is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # said below, as a note
        try:
            fitted = fit_stream(
                jax.random.key(settings.seed),
                program.model,
                program.guide,
                program.objective,
                rows,
                **ending(settings),
                batch_size=settings.batch,
                learning_rate=settings.learning_rate,
                restarts=settings.restarts,
                devices=jax.devices(),
                progress=progress,
                checkpoint=saved,
                resume=resume and (saved / INDEX).is_file(),
            )
        except Interrupted as stop:
            if first:
                run_directory.save_parameters(folder, stop.fit.params, {})
                run_directory.write(folder, dataclasses.replace(record, status="interrupted"))
            raise
    result = {
        "loss": finite(mean_loss(fitted.losses[:, -max(1, fitted.steps // 10) :])[fitted.best]),
        "input_seconds": finite(fitted.input_seconds),
        **effort(fitted),
        "advice": list(fitted.advice),
    }
    done = dataclasses.replace(record, status="done", result=result)
    if first:
        for advice in fitted.advice:
            say(f"note: {advice}")
        run_directory.save_parameters(folder, fitted.params, {})
        place_figures(folder / "figures", settings, of_training(fitted))
        run_directory.write(folder, done)
    return done


def _check_streamed_settings(settings: Settings, given: Collection[str]) -> None:
    """Raise BadInput for what needs all rows in memory."""
    if settings.model not in ("sparse-gp", "deep-gp"):
        raise BadInput(
            f"--model is {settings.model}, but rows are read block by block", "take sparse-gp or deep-gp"
        )
    check_numbers(settings)
    if settings.collapsed:
        raise BadInput(
            "--objective is collapsed, which needs all rows at once, but they are read block by block",
            "leave it out, or give a file that fits in memory, without --stream and --distributed",
        )
    if settings.likelihood in OWN_SCALE:
        raise BadInput(
            f"--likelihood is {settings.likelihood}, of numbers in their own units, but what is read block by block is "
            "standardised",
            "give a file that fits in memory, without --stream and --distributed",
        )
    if settings.model == "deep-gp" and settings.hidden not in RULES:
        raise BadInput(
            f"--hidden is {settings.hidden}, whose parameters grow with the rows, but those are read block by block",
            f"choose from {', '.join(RULES)}",
        )
    for name in ("split", "test_fraction"):
        if name in given:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} is given, but all rows are trained on", "keep test rows in a file of their own"
            )


def _opened(source: str, settings: Settings) -> tuple[RowSource, Table | None]:
    """The rows, standardised by a pass in which each process reads its part of them, and the table that was read whole.

    :raises BadInput, DataError: for what cannot be used.
    """
    table = None
    if on_disk(source) or Path(source).suffix.lower() == ".parquet":
        if settings.drop_missing:
            raise BadInput(
                "--drop-missing is given, but rows stay where they are", "leave such rows out of the files"
            )
        rows = open_rows(source, settings.target, features=settings.features, ignore=settings.ignore)
    else:
        read = settings.target, settings.drop_missing, settings.seed
        table = load_table(source, *read, features=settings.features, ignore=settings.ignore)
        rows = open_rows((table.X, table.y))
        rows.source.name, rows.source.feature_names = table.name, table.feature_names
        rows.source.target_names = table.target_names
    statistics = rows.moments(jax.process_index(), jax.process_count())
    if jax.process_count() > 1:
        with jax.enable_x64(True):
            all_of_them = process_allgather(dataclasses.astuple(statistics))
        count = jax.process_count()
        parts = [
            ColumnStatistics(*(np.asarray(field)[part] for field in all_of_them)) for part in range(count)
        ]
        statistics = reduce(ColumnStatistics.merged, parts)
    return rows.standardised(moments=statistics), table


def _record(source: str, rows: RowSource, settings: Settings) -> Record:
    devices = jax.device_count()
    usual = min(-(-DEFAULT_BATCH // devices), rows.count // devices) * devices
    settings = dataclasses.replace(precision(settings), test_fraction=0.0, batch=settings.batch or usual)
    if settings.batch is not None and settings.batch % devices:
        raise BadInput(
            f"--batch is {settings.batch}, not a multiple of the {devices} devices",
            "give as many rows to each",
        )
    assert rows.x_units is not None and rows.y_units is not None
    return Record(
        settings=settings.resolve(rows.count, len(rows.source.target_names)),
        source=source,
        fingerprint=rows.fingerprint(),
        feature_names=rows.source.feature_names,
        target_names=rows.source.target_names,
        x_units=rows.x_units,
        y_units=rows.y_units,
        num_train=rows.count,
        num_test=0,
    )
