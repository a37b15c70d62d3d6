"""``fit`` and ``predict`` of classes: their table, their results, their figures."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.artefacts import (
    LAYER_ROWS,
    number_of_draws,
    of_training,
    place_figures,
    trust,
    write_posterior,
)
from ppl_dgp.cli.class_report import class_frame, class_metrics, class_probabilities
from ppl_dgp.cli.classes import IMAGE_MODELS, check_labels, strides_of
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.label_order import labels_in_order
from ppl_dgp.cli.programs import ELBO_DRAWS, PREDICTION_DRAWS, Program, predict_rows
from ppl_dgp.cli.report import finite
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.table_units import named_maps
from ppl_dgp.cli.targets import unscored_notes
from ppl_dgp.cli.task import Task
from ppl_dgp.data import Standardiser, load_table, split
from ppl_dgp.data.rows import load_numbered_rows
from ppl_dgp.estimators.estimator import PREDICTED_AT_ONCE
from ppl_dgp.estimators.images import rows_at_once, square_image, usual_patch
from ppl_dgp.fit import Fit
from ppl_dgp.fit.advice import labels_advice
from ppl_dgp.fit.result import mean_loss
from ppl_dgp.gp.patches import Patches
from ppl_dgp.models.convolutional_gp import IMAGES, OF_EACH
from ppl_dgp.prediction.predict import Prediction

#: values of kernels of patches that an evaluation computes, how many of them one in a hidden layer costs as much as,
#: with what is drawn there, and runs of the model in a joint draw
MOST_VALUES, OF_HIDDEN, RUNS_PER_DRAW = 8e9, 25, 11
#: draws fewer than which say nothing of a posterior
FEWEST_JOINT_DRAWS = 50
#: labels of numbers that are no whole ones, and yet classes
MOST_FRACTIONS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class ClassTask(Task):
    """A table of one target, whose entries count the labels of the table."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What reading left out, and labels that no row to train on has."""
        trained = np.unique(self.table.y[self.train_rows])
        unseen = [label for code, label in enumerate(self.table.labels) if code not in trained]
        told = f"{self.table.target_names[0]}: no row to train on has the label {', '.join(map(str, unseen))}"
        return (*self.table.notes, *([told] if unseen else []))

    def fingerprint(self) -> str:
        """SHA-256 of the table, its labels, and of which rows are trained on."""
        return hashlib.sha256(repr((super().fingerprint(), self.table.labels)).encode()).hexdigest()


def load_class_task(source: str, settings: Settings) -> ClassTask:
    """The data of a fit. Raises DataError or BadInput."""
    images = settings.model in IMAGE_MODELS
    read = settings.target, settings.drop_missing, settings.seed
    table = load_table(
        source,
        *read,
        of_classes=True,
        keep_constant=images,
        features=settings.features,
        ignore=settings.ignore,
    )
    (target,), labels = table.target_names, table.labels
    fractions = any(isinstance(label, float) for label in labels) and len(labels) > MOST_FRACTIONS
    if fractions or len(labels) > max(2, len(table.X) // 2):
        raise BadInput(
            f"target {target!r} of {table.name} has {len(labels)} labels in {len(table.X)} rows, which are no classes",
            "choose another --target, or a likelihood of numbers",
        )
    check_labels(settings, labels, target, table.name)
    table = labels_in_order(table, settings)
    labels = table.labels
    if taken := [str(label) for label in labels if f"p({label})" == target]:
        raise BadInput(f"target {target!r} is named as the probability of {taken[0]!r} will be", "rename it")
    if target in ("row", "log_density"):
        raise BadInput(f"target {target!r} is named as a column of the predictions", "rename it")
    train_rows, test_rows = split(table, settings.split, settings.test_fraction, settings.seed)
    codes = np.unique(table.y[train_rows])
    if len(codes) < 2:
        raise BadInput(
            f"target {target!r} of {table.name} has one label over the rows to train on, {labels[int(codes[0])]!r}",
            "choose another target, --split or --seed",
        )
    as_it_is = Standardiser(np.zeros(1), np.ones(1))
    x_units = (Standardiser.fit_alike if images else Standardiser.fit)(table.X[train_rows])
    return ClassTask(table, train_rows, test_rows, x_units, as_it_is)


def settled(settings: Settings, task: ClassTask) -> tuple[Settings, int | None]:
    """Settings with what labels and pixels decide, and of how many patches inducing ones are chosen.

    :raises BadInput: for images of other pixels than the table has, or patches that do not fit.
    """
    if settings.model not in IMAGE_MODELS:
        return settings, None
    pixels, image = task.table.X.shape[1], settings.image
    if image is None:
        image = square_image(pixels)
        if image is None:
            raise BadInput(
                f"{task.table.name} has {pixels} features, which are no square image",
                "give --image, height and width, and channels if there are several, such as --image 28,28,3",
            )
    elif int(np.prod(image)) != pixels:
        raise BadInput(
            f"--image is {','.join(map(str, image))}, {int(np.prod(image))} numbers, but {task.table.name} has "
            f"{pixels} features",
            "give height, width and channels whose product is that, and take out columns that are no pixels",
        )
    patch = settings.patch or usual_patch(image, strides_of(settings))
    likelihood = settings.likelihood
    if likelihood == "gaussian":  # not given
        likelihood = "bernoulli" if len(task.table.labels) == 2 else "robust-max"
    chosen = dataclasses.replace(settings, image=image, patch=patch, likelihood=likelihood)
    try:
        counts = [cut.count for cut in cuts_of(chosen)]
    except ValueError:
        sizes = f"{','.join(map(str, patch))}, but images are {','.join(map(str, image))}"
        deeper = " and hidden layers are smaller" if settings.model == "deep-convolutional-gp" else ""
        raise BadInput(
            f"--patch is {sizes}{deeper}",
            "give a smaller one" + (", or a smaller --stride" if deeper else ""),
        ) from None
    rows = len(task.train_rows)
    of_each = min(counts) if rows <= IMAGES // OF_EACH else min(OF_EACH, *counts)
    return chosen, min(rows, IMAGES) * of_each


def cuts_of(settings: Settings) -> tuple[Patches, ...]:
    """How patches are cut, layer by layer. Raises ValueError for patches that do not fit."""
    assert settings.image is not None and settings.patch is not None
    height, width, channels = (*settings.image, 1)[:3]
    h, w = settings.patch
    outputs = settings.widths if settings.model == "deep-convolutional-gp" else ()
    cuts = []
    for stride, next_channels in zip(strides_of(settings), (*outputs, 1), strict=True):
        cuts.append(Patches((height, width, channels), (h, w), settings.located, stride))
        (height, width), channels = cuts[-1].grid, next_channels
    return tuple(cuts)


def evaluate_classes(
    folder: Path, record: Record, task: ClassTask, program: Program, fitted: Fit
) -> dict[str, Any]:
    """The results of a fit; its predictions, posterior and figures are written."""
    x, y = task.rows(task.train_rows)
    draws, joint = _affordable(record.settings, len(x))
    result: dict[str, Any] = {"elbo": None, "elbo_se": None}
    if draws > 1:
        from ppl_dgp.diagnostics.khat import elbo

        key = jax.random.key(record.settings.seed + 1)
        bound, error = elbo(key, fitted, jnp.asarray(x), jnp.asarray(y), draws)
        result = {"elbo": finite(bound), "elbo_se": finite(error)}
    else:
        result["loss"] = finite(mean_loss(fitted.losses[:, -max(1, fitted.steps // 10) :])[fitted.best])
    tested = len(task.test_rows) > 0
    rows = task.test_rows if tested else task.train_rows
    prediction = _predicted_classes(program, fitted.params, *task.rows(rows))
    codes = task.table.y[rows][:, 0]
    frame = class_frame(prediction, record, codes, task.table.row_numbers(rows))
    run_directory.place(folder / "predictions.csv", lambda path: frame.to_csv(path, index=False))
    result |= class_metrics(prediction if tested else None, codes)
    if joint >= FEWEST_JOINT_DRAWS:
        result |= trust(program, fitted, x, y, 0.0, joint)
        write_posterior(folder, program, fitted, x, y, record, joint)
    _write_class_figures(folder, record, fitted, x, prediction, codes)
    return result


def predict_classes(
    record: Record,
    program: Program,
    params: dict[str, Any],
    source: str,
    target: str | None,
    drop_missing: bool,
    seed: int,
    say: Callable[[str], None],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Probabilities of the labels at the rows of ``source``, and figures of merit where it has labels.

    :raises BadInput, DataError: for rows that cannot be used, or a label that the run has not seen.
    """
    names = record.feature_names, record.target_names
    x, y, notes, numbers = load_numbered_rows(
        source, *names, target, drop_missing, seed,
        target_gaps=True, labels=record.labels, encoding=record.encoding,
    )  # fmt: skip
    for note in (*notes, *unscored_notes(y, y)):
        say(f"note: {note}")
    # a row without a label is predicted beside any
    stand_in = None if y is None else np.nan_to_num(y)
    with jax.enable_x64(record.settings.precision == "float64"):
        prediction = _predicted_classes(program, params, record.x_units.transform(x), stand_in)
    if not np.isfinite(prediction.mean).all():
        raise BadInput(
            f"predictions of a {record.settings.model} at {source} are not finite",
            "look for values far outside of those it was trained on, or fit again",
        )
    codes = None if y is None else y[:, 0]
    frame = class_frame(prediction, record, codes, numbers)
    return frame, {"rows": len(x), **class_metrics(prediction, codes)}


def of_held_out_labels(task: ClassTask, measures: dict[str, Any]) -> tuple[str, ...]:
    """Advice on predictions of held-out labels, beside the frequencies of the labels of the training rows."""
    density = measures.get("test_log_density")
    if density is None:
        return ()
    counts = np.bincount(task.table.y[task.train_rows][:, 0].astype(int), minlength=len(task.table.labels))
    tested = task.table.y[task.test_rows][:, 0].astype(int)
    # a label that was never seen is possible
    shares = (counts + 1.0) / (counts + 1.0).sum()
    return labels_advice(density, float(np.log(shares[tested]).mean()), len(tested))


def _predicted_classes(
    program: Program,
    params: dict[str, Any],
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N 1"] | None,
) -> Prediction:
    settings, batch = program.settings, PREDICTED_AT_ONCE
    if settings.model == "deep-convolutional-gp":
        assert settings.inducing is not None
        batch = rows_at_once(cuts_of(settings), settings.widths, settings.inducing, PREDICTION_DRAWS)
    return predict_rows(program, params, x, y, levels=(), batch_size=batch)


def _affordable(settings: Settings, rows: int) -> tuple[int, int]:
    """Draws of the bound, and joint draws of the posterior; of many images few, or none."""
    if settings.model not in IMAGE_MODELS:
        return ELBO_DRAWS, number_of_draws(rows)
    assert settings.inducing is not None
    *hidden, last = cuts_of(settings)
    places = sum(cut.count for cut in hidden)
    values = rows * (OF_HIDDEN * places * settings.inducing + last.count * (settings.inducing + last.count))
    bound = min(ELBO_DRAWS, int(MOST_VALUES // values))
    # once for k-hat and once for what is written
    return bound, min(number_of_draws(rows), int(MOST_VALUES // (2 * RUNS_PER_DRAW * values)))


def _write_class_figures(
    folder: Path,
    record: Record,
    fitted: Fit,
    x: Float[np.ndarray, "N D"],
    prediction: Prediction,
    codes: Float[np.ndarray, " K"],
) -> None:
    """Losses, hyperparameters, confusion, calibration, and but for images the layers."""
    from ppl_dgp.diagnostics import class_measures, class_plots, layer_plots, layers

    probabilities = class_probabilities(prediction)
    counts = class_measures.confusion_counts(probabilities, codes)
    features = record.feature_names if record.settings.model not in IMAGE_MODELS else ()
    figures = of_training(fitted, features) | {
        "confusion": class_plots.plot_confusion(counts, record.labels, label=record.target_names[0]),
        "calibration": class_plots.plot_reliability(probabilities, codes),
    }
    if record.settings.model not in IMAGE_MODELS:
        maps = layers.layer_maps(fitted, jnp.asarray(x[:LAYER_ROWS]))
        figures["layers"] = layer_plots.plot_layers(named_maps(maps, record))
    place_figures(folder / "figures", record.settings, figures)
