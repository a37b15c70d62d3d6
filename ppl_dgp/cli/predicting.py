"""Command ``predict``: a run's model at the rows of another source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ppl_dgp.cli import labelled, latent, own_rows, run_directory, series
from ppl_dgp.cli.commands import program_of
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.programs import Program, predict_rows
from ppl_dgp.cli.report import in_units, metrics, prediction_frame
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.targets import check_support, unscored_notes, whole_targets
from ppl_dgp.cli.uses import OWN_ROWS, SEVERAL_TARGETS
from ppl_dgp.data import DataError
from ppl_dgp.data.rows import load_numbered_rows


def predict(
    folder: Path, source: str, target: str | None, drop_missing: bool, seed: int | None, say: Any
) -> tuple[Any, dict[str, Any]]:
    """Predictions of a run's model at the rows of ``source``, as a DataFrame, and figures where it has targets.

    :raises BadInput, CheckpointError, DataError: if the run or the rows cannot be used.
    """
    record = run_directory.read(folder)
    params, saved = run_directory.load_parameters(folder)
    training = run_directory.training_rows(folder, record, saved)
    if record.status != "done":
        say(f"note: the run in {str(folder)!r} was not finished; predictions are those of its fit so far")
    settings = record.settings
    program, rows_seed = program_of(record), settings.seed if seed is None else seed
    try:
        return _predicted(record, program, params, training, source, target, drop_missing, rows_seed, say)
    except (BadInput, DataError):
        raise
    except (ValueError, TypeError) as error:  # what predictions say of parameters that are not theirs
        raise run_directory.foreign_parameters(folder, error) from None


def _predicted(
    record: Record,
    program: Program,
    params: dict[str, Any],
    training: tuple[np.ndarray, np.ndarray] | None,
    source: str,
    target: str | None,
    drop_missing: bool,
    rows_seed: int,
    say: Any,
) -> tuple[Any, dict[str, Any]]:
    settings = record.settings
    if settings.model == "gplvm":
        return latent.predict_latents(record, program.model, program.guide, params, source, rows_seed)
    if settings.model == "gpssm":
        assert training is not None
        return series.predict_series(record, program, params, training, source, rows_seed)
    if record.labels:
        read = target, drop_missing, rows_seed
        return labelled.predict_classes(record, program, params, source, *read, say)
    x, y, notes, numbers = load_numbered_rows(
        source,
        record.feature_names,
        record.target_names,
        target=target,
        drop_missing=drop_missing,
        seed=rows_seed,
        target_gaps=True,
        encoding=record.encoding,
    )
    check_support(settings, record.target_names, y, source)
    scored = y if settings.model in SEVERAL_TARGETS else whole_targets(y)
    for note in (*notes, *unscored_notes(y, scored)):
        say(f"note: {note}")
    units = record.y_units
    if settings.model in OWN_ROWS:
        own_rows.check_rows(settings, record.feature_names, x)
        units = own_rows.units_at(settings, record.x_units, record.y_units, x)
    targets = None if y is None else units.transform(y)
    with jax.enable_x64(settings.precision == "float64"):
        standardised = predict_rows(program, params, record.x_units.transform(x), targets, training=training)
    prediction = in_units(standardised, units, y)
    if not (np.isfinite(prediction.mean).all() and np.isfinite(prediction.variance).all()):
        raise BadInput(
            f"predictions of a {settings.model} at {source} are not finite",
            "look for values far outside of those it was trained on, or fit again",
        )
    frame = prediction_frame(prediction, y, record.target_names, numbers)
    return frame, {"rows": len(x), **metrics(prediction, scored)}
