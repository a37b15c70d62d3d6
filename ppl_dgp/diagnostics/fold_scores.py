"""What a fit says of the rows that a fold holds out, row by row: of tables, of latent variable models, of series."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ppl_dgp.diagnostics.class_measures import class_scores
from ppl_dgp.diagnostics.scores import density_in_units, scores
from ppl_dgp.fit import Fit
from ppl_dgp.prediction.latents import row_log_density
from ppl_dgp.prediction.particle_filter import filter_forward
from ppl_dgp.prediction.predict import predict

RowsAndScores = tuple[Float[np.ndarray, " n"], dict[str, float]]


def row_scores(
    key: Array,
    fit: Fit,
    x: np.ndarray | None,
    y: np.ndarray,
    train: Int[np.ndarray, " _"],
    held: Int[np.ndarray, " n"],
    num_samples: int,
    target_scale: Any,
) -> RowsAndScores:
    """The log density of each row held out, NaN where nothing was observed, and the scores of all of them.

    :param x, y: all rows, in the units of training.
    :param target_scale: by which targets were divided; the log density is in units before that.
    :raises ValueError: of a model of series, for several sequences, or rows that do not follow each other.
    """
    if hasattr(fit.model, "num_sequences"):
        return _of_series(key, fit, x, y, train, held, num_samples, target_scale)
    targets = y[held]
    if x is None:
        density = row_log_density(key, fit, None, targets, num_samples=num_samples)
        found = density_in_units(density, targets, target_scale)
        return found, {"test_log_density": float(np.nanmean(found))}
    inputs = jnp.asarray(x[held])
    about: dict[str, Any] = {"num_samples": num_samples}
    try:
        prediction = predict(key, fit, inputs, targets, levels=(0.025, 0.975), **about)
    except ValueError as refusal:
        if not str(refusal).startswith("levels:"):
            raise
        prediction = predict(key, fit, inputs, targets, **about)
        assert prediction.log_density is not None
        return prediction.log_density, class_scores(prediction.mean, targets[:, 0], prediction.log_density)
    assert prediction.log_density is not None
    return density_in_units(prediction.log_density, targets, target_scale), scores(
        prediction, targets, target_scale
    )


def _of_series(
    key: Array,
    fit: Fit,
    x: np.ndarray | None,
    y: np.ndarray,
    train: Int[np.ndarray, " _"],
    held: Int[np.ndarray, " n"],
    num_samples: int,
    target_scale: Any,
) -> RowsAndScores:
    """Each step given all before it, by a particle filter that goes on from the last step trained on."""
    if getattr(fit.model, "num_sequences", 1) > 1:
        raise ValueError("model: found several sequences, expected one; take each out in a fold of your own")
    end = train[-1] + 1
    if len(train) != end - train[0] or held[0] < end:
        raise ValueError(
            "folds: found rows of a series that are not trained on in a row, or held out before these, expected steps "
            "and what came after them; take forward_folds(N)"
        )
    steps = np.arange(end, held[-1] + 1)
    # what lies between is not known
    came = np.where(np.isin(steps, held)[:, None], y[steps], np.nan)
    rows = lambda which: None if x is None else jnp.asarray(x[which])
    filtered = filter_forward(
        key,
        fit,
        rows(train),
        jnp.asarray(y[train]),
        rows(steps),
        jnp.asarray(came),
        num_particles=num_samples,
    )
    targets, place = y[held], held - end
    density = density_in_units(filtered.log_density[place], targets, target_scale)
    errors = (filtered.predicted_mean[place] - targets) * target_scale
    root = float(np.sqrt(np.nanmean(np.square(errors))))
    return density, {"test_log_density": float(np.nanmean(density)), "test_rmse": root}
