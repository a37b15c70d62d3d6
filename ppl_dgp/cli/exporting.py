"""Command ``export``: a run's predictor as a file that JAX alone can read, and a page of what goes in and comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export
from jaxtyping import Array, Float

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.commands import program_of
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.programs import LEVELS, PREDICTION_DRAWS
from ppl_dgp.cli.run_directory import Record, place
from ppl_dgp.data.encoding import DATE_UNIT
from ppl_dgp.extras import needed_for
from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.prediction.row_program import row_program

SUFFIX = ".jaxexport"
#: what the file runs on
PLATFORMS = ("cpu", "cuda")
#: models whose prediction is not of one row of features, and why
_OTHER_ROWS = {
    "gplvm": "infers latents of rows instead of predicting from features",
    "gpssm": "forecasts the steps after those that it was trained on",
    "gp-with-derivatives": "has units that depend on the row",
}


def export_predictor(folder: Path, out: Path) -> dict[str, Any]:
    """Write the predictor of a run to ``out``, and beside it a ``.json`` of what its columns are; returns the latter.

    :raises BadInput: if there is something already, the run has no such predictor.
    :raises MissingExtra: if flatbuffers is missing.
    """
    page = out.with_suffix(".json")
    if out.suffix != SUFFIX:
        raise BadInput(f"--out is {str(out)!r}", f"give a name that ends in {SUFFIX}")
    for path in (out, page):
        if path.exists():
            raise BadInput(f"--out: {str(path)!r} exists", "name a file that does not")
    with needed_for("export", "export"):
        import flatbuffers  # noqa: F401  by JAX
    record = run_directory.read(folder)
    model = record.settings.model
    if model in _OTHER_ROWS:
        raise BadInput(
            f"{str(folder)!r} is a run of a {model}, which {_OTHER_ROWS[model]}", "use ppl-dgp predict"
        )
    content = _exported(folder, record)
    about = description(record)
    place(out, lambda path: path.write_bytes(content))
    place(page, lambda path: path.write_text(json.dumps(about, indent=1, allow_nan=False) + "\n"))
    return about


def description(record: Record) -> dict[str, Any]:
    """What goes in, column by column, and what comes out, as plain values."""
    outputs = ["probabilities"] if record.labels else ["mean", "sd", "lower95", "median", "upper95"]
    return {
        "model": record.settings.model,
        "features": list(record.feature_names),
        **record.encoding.to_json(),
        "date_unit": DATE_UNIT,
        "targets": list(record.target_names),
        "labels": list(record.labels),
        "outputs": outputs,
    }


def _exported(folder: Path, record: Record) -> bytes:
    with jax.enable_x64(True):
        (rows,) = jax_export.symbolic_shape("n")
        shape = jax.ShapeDtypeStruct((rows, len(record.feature_names)), jnp.float64)
        traced = jax_export.export(
            jax.jit(multiplying_in_full(_predictor(folder, record))), platforms=PLATFORMS
        )
        return bytes(traced(shape).serialize())


def _predictor(folder: Path, record: Record) -> Callable[[Float[Array, "N D"]], dict[str, Array]]:
    """From rows in the units of the table to predictions in them, in 64 bits but for what the run computes in 32."""
    params, saved = run_directory.load_parameters(folder)
    training, program = run_directory.training_rows(folder, record, saved), program_of(record)
    data = None if training is None else (jnp.asarray(training[0]), jnp.asarray(training[1]))
    fit = Posterior(program.model, program.guide or no_latents, params, data=data)
    key = jax.random.key(record.settings.seed + 2)
    predict = row_program(key, fit, () if record.labels else LEVELS, PREDICTION_DRAWS)
    precision = jnp.dtype(record.settings.precision or "float64")
    x_units, y_units = record.x_units, record.y_units

    def predictor(x: Float[Array, "N D"]) -> dict[str, Array]:
        found = predict(((x - x_units.mean) / x_units.scale).astype(precision))
        found = {name: value.astype(jnp.float64) for name, value in found.items()}
        mean = found["mean"]
        if record.labels:
            return {"probabilities": jnp.concatenate([1.0 - mean, mean], 1) if mean.shape[1] == 1 else mean}
        low, median, high = found["quantiles"] * y_units.scale + y_units.mean
        deviation = jnp.sqrt(found["variance"]) * y_units.scale
        values = mean * y_units.scale + y_units.mean
        return {"mean": values, "sd": deviation, "lower95": low, "median": median, "upper95": high}

    return predictor
