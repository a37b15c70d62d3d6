"""Commands ``fit``, ``predict`` and ``show``, once their arguments are read."""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax

from ppl_dgp.checkpoint import INDEX
from ppl_dgp.cli import labelled, latent, run_directory, series
from ppl_dgp.cli.artefacts import trust, write_figures, write_posterior
from ppl_dgp.cli.errors import BadInput, Stopped
from ppl_dgp.cli.loading import load_task
from ppl_dgp.cli.names import OWN_SCALE
from ppl_dgp.cli.programs import Program, build, nested_start_of, predict_rows, program_elbo, train
from ppl_dgp.cli.report import (
    effort,
    finite,
    in_units,
    metrics,
    nats_of_units,
    of_held_out,
    prediction_frame,
    tightest_bound,
)
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.targets import check_meaning, counts_notes
from ppl_dgp.cli.task import Task
from ppl_dgp.cli.terms import explain_terms
from ppl_dgp.fit import Fit, Interrupted, JitterWarning
from ppl_dgp.fit.advice import advice_of, few_steps_advice

CONTINUE = "continue it with the same command and --resume"


def precision(settings: Settings) -> Settings:
    """The settings with their precision decided: 64 bits on a CPU, else 32, unless asked otherwise."""
    if settings.precision is not None:
        return settings
    # L-BFGS and long series gain from 64 bits anywhere
    double = settings.model in ("gplvm", "gpssm") or jax.default_backend() == "cpu"
    return dataclasses.replace(settings, precision="float64" if double else "float32")


def fit(
    source: str,
    settings: Settings,
    given: Collection[str],
    out: str | None,
    resume: bool,
    progress: bool,
    say: Any,
) -> tuple[Path, Record]:
    """Fit, evaluate and fill a run directory; ``given`` names the settings that were asked for explicitly.

    :raises BadInput: before anything is written, as are the errors of the data.
    :raises Stopped: after saving, when interrupted.
    """
    settings.check()
    earlier = None
    if resume:
        if out is None:
            raise BadInput("--resume is given without --out", "name the run directory to continue")
        folder = Path(out)
        earlier = run_directory.read(folder)
        settings = _continued(earlier.settings, settings, given)
    else:
        stem = f"{Path(source).stem}-{settings.model}"
        folder = run_directory.fresh_folder(
            out, stem, "name another directory, or continue its run with --resume"
        )
    task = load_task(source, settings)
    if not resume and settings.model not in ("gplvm", "gpssm"):
        check_meaning(settings, task.table, given)
    record = record_of(source, task, settings)
    run_directory.check_same_data(folder, earlier, record)
    if earlier is not None:
        record = dataclasses.replace(record, notes=earlier.notes)
    elif settings.model not in ("gplvm", "gpssm"):
        counts = counts_notes(settings, task.table, given)
        record = dataclasses.replace(record, notes=(*record.notes, *counts))
    for note in record.notes:
        say(f"note: {note}")
    say(f"fitting {settings.model} to {record.num_train} rows, writing to {folder}")
    return folder, run_program(folder, record, task, resume, progress, say)


def record_of(source: str, task: Task, settings: Settings) -> Record:
    """The record of a run not yet started, its settings resolved. Raises BadInput if they ask for too much."""
    patches = None
    if isinstance(task, labelled.ClassTask):
        settings, patches = labelled.settled(settings, task)
    return Record(
        settings=precision(settings).resolve(len(task.train_rows), len(task.table.target_names), patches),
        source=source,
        fingerprint=task.fingerprint(),
        feature_names=task.table.feature_names,
        target_names=task.table.target_names,
        x_units=task.x_units,
        y_units=task.y_units,
        num_train=len(task.train_rows),
        num_test=len(task.test_rows),
        sequences=task.series.labels if isinstance(task, series.SeriesTask) else (),
        ends=task.ends if isinstance(task, series.SeriesTask) else (),
        labels=task.table.labels,
        encoding=task.table.encoding,
        notes=task.notes,
    )


def run_program(
    folder: Path,
    record: Record,
    task: Task,
    resume: bool,
    progress: bool,
    say: Callable[[str], None] = lambda text: None,
    poorer: Path | None = None,
) -> Record:
    """Train and evaluate in ``folder``, in the precision of the settings.

    :param poorer: the directory of a run whose guide this one's contains: training begins at its optimum.
    :raises Stopped: when interrupted.
    """
    program = program_of(record)
    existed = folder.exists()
    with run_directory.held(folder), jax.enable_x64(record.settings.precision == "float64"):
        try:
            return _train_and_evaluate(folder, record, task, program, resume, progress, say, poorer, existed)
        except Interrupted as stop:
            raise Stopped(
                f"interrupted after {stop.fit.steps} steps; {str(folder)!r} holds the fit so far, {CONTINUE}"
            ) from None
        except KeyboardInterrupt:
            raise Stopped(f"interrupted; {str(folder)!r} holds what was done so far, {CONTINUE}") from None


def program_of(record: Record) -> Program:
    """The model, guide and objective of a run."""
    sequences, settings = max(1, len(record.sequences)), record.settings
    if settings.step_column not in record.feature_names:  # dates that are equally far apart
        settings = dataclasses.replace(settings, step_column=None)
    return build(settings, len(record.target_names), sequences, record.num_classes)


def _train_and_evaluate(
    folder: Path,
    record: Record,
    task: Task,
    program: Program,
    resume: bool,
    progress: bool,
    say: Callable[[str], None],
    poorer: Path | None,
    existed: bool,
) -> Record:
    earlier = run_directory.read(folder) if resume else None
    run_directory.write(folder, record)
    x, y = task.rows(task.train_rows)
    saved = folder / "checkpoint"
    training = {"x": x, "y": y} if program.guide is None or record.settings.model == "gpssm" else {}
    try:
        continued = resume and (saved / INDEX).is_file()
        start = None
        if poorer is not None and not continued:
            params, _ = run_directory.load_parameters(poorer)
            start = nested_start_of(program, run_directory.read(poorer).settings, params, x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)  # said below, as a note
            fitted = train(program, x, y, start=start, checkpoint=saved, resume=continued, progress=progress)
    except Interrupted as stop:
        # those of a warm start are another guide's
        if getattr(stop.fit.guide, "hidden", None) == getattr(program.guide, "hidden", None):
            run_directory.save_parameters(folder, stop.fit.params, training)
        run_directory.write(folder, dataclasses.replace(record, status="interrupted"))
        raise
    except Exception:
        if earlier is not None:  # as it was found
            run_directory.write(folder, earlier)
        elif not (saved / INDEX).is_file():  # nothing half-written; what was saved can be gone on with
            shutil.rmtree(folder, ignore_errors=True)
            if existed:
                folder.mkdir(exist_ok=True)
        raise
    run_directory.save_parameters(folder, fitted.params, training)
    done = finish(folder, record, task, program, fitted)
    for advice in done.result["advice"]:
        say(f"note: {advice}")
    return done


def finish(folder: Path, record: Record, task: Task, program: Program, fitted: Fit) -> Record:
    """Evaluate a fit on its rows and write everything of the run directory but the parameters."""
    if record.settings.model == "gplvm":
        measures = latent.evaluate_latents(folder, record, task, fitted)
    elif record.settings.model == "gpssm":
        measures = series.evaluate_series(folder, record, task, program, fitted)
    elif isinstance(task, labelled.ClassTask):
        measures = labelled.evaluate_classes(folder, record, task, program, fitted)
    else:
        measures = _evaluate(folder, record, task, program, fitted)
    bound = tightest_bound(task, measures)
    told = few_steps_advice(fitted)
    told += advice_of(fitted, khat=measures.get("khat"), bound=bound, onward="--resume")
    if isinstance(task, labelled.ClassTask):
        told += labelled.of_held_out_labels(task, measures)
    elif record.settings.likelihood not in OWN_SCALE:  # beside which a Gaussian is no measure
        units = task.units(task.test_rows)
        told += of_held_out(task.raw(task.test_rows)[1], units, measures, record.settings.model)
    done = dataclasses.replace(
        record, status="done", result=measures | effort(fitted) | {"advice": list(told)}
    )
    run_directory.write(folder, done)
    return done


def _evaluate(folder: Path, record: Record, task: Task, program: Program, fitted: Fit) -> dict[str, Any]:
    """The results of a regression; its predictions, posterior and figures are written."""
    x, y = task.rows(task.train_rows)
    bound, error = program_elbo(program, fitted, x, y)
    tested = len(task.test_rows) > 0
    rows = task.test_rows if tested else task.train_rows
    standardised = predict_rows(program, fitted.params, *task.rows(rows), training=(x, y))
    targets, nats = task.table.y[rows], float(nats_of_units(task.units(task.train_rows), y).sum())
    prediction = in_units(standardised, task.units(rows), targets)
    frame = prediction_frame(prediction, targets, record.target_names, task.table.row_numbers(rows))
    run_directory.place(folder / "predictions.csv", lambda path: frame.to_csv(path, index=False))
    result: dict[str, Any] = {
        # log p(y) of the data = log p of the standardised data − Σ log s over its entries
        "elbo": finite(bound - nats),
        "elbo_se": finite(error),
        **metrics(prediction if tested else None, targets),
        **trust(program, fitted, x, y, nats),
    }
    write_posterior(folder, program, fitted, x, y, record)
    write_figures(folder, record, program, fitted, x, task.raw(task.train_rows), task.raw(rows), prediction)
    if record.settings.model == "additive-gp":
        result |= explain_terms(folder, record, fitted, x)
    return result


#: settings that may differ where a run goes on
_GOING_ON = ("steps", "budget", "tolerance", "figures")


def _continued(earlier: Settings, asked: Settings, given: Collection[str]) -> Settings:
    """The settings of a run to go on with; of those given again only what ends it may differ."""
    for name in given:
        before, now = getattr(earlier, name), getattr(asked, name)
        if name not in _GOING_ON and before != now:
            option = name.replace("_", "-")
            raise BadInput(
                f"--{option} is {now} but the run to resume was made with {before}",
                f"leave --{option} out, or start a new run in another --out",
            )
    return dataclasses.replace(earlier, **{name: getattr(asked, name) for name in _GOING_ON if name in given})
