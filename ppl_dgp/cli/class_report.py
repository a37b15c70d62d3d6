"""Figures of merit of predicted classes, and the table of their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.cli.report import finite
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.data.labels import Label
from ppl_dgp.prediction.predict import Prediction


def class_probabilities(prediction: Prediction) -> Float[np.ndarray, "N C"]:
    """Of every class, also where there are two and the prediction has those of the second alone."""
    mean = np.asarray(prediction.mean, np.float64)
    return np.concatenate([1.0 - mean, mean], 1) if mean.shape[1] == 1 else mean


def class_metrics(
    prediction: Prediction | None, codes: Float[np.ndarray, " N"] | None
) -> dict[str, float | None]:
    """Mean log density of labels, accuracy and calibration error, of rows with a label; None where there are none."""
    from ppl_dgp.diagnostics.class_measures import class_scores

    if prediction is None or codes is None or np.isnan(codes).all():
        return dict.fromkeys(("test_log_density", "test_accuracy", "test_calibration_error"))
    there, density = ~np.isnan(codes), prediction.log_density
    density = None if density is None else density[there]
    found = class_scores(class_probabilities(prediction)[there], codes[there], density)
    return {name: finite(value) for name, value in found.items()}


def class_frame(
    prediction: Prediction,
    record: Record,
    codes: Float[np.ndarray, " N"] | None,
    rows: Int[np.ndarray, " N"],
) -> pd.DataFrame:
    """One line per row: its number, its label if it is known, the likeliest, and the probability of each."""
    probabilities, (target,) = class_probabilities(prediction), record.target_names
    columns: dict[str, Any] = {"row": np.asarray(rows)}
    if codes is not None:
        columns[target] = _named(record.labels, codes)
    columns[f"{target}_predicted"] = _named(record.labels, probabilities.argmax(1))
    columns |= {f"p({label})": probabilities[:, code] for code, label in enumerate(record.labels)}
    if prediction.log_density is not None and codes is not None:
        columns["log_density"] = np.where(np.isnan(codes), np.nan, prediction.log_density)
    return pd.DataFrame(columns)


def _named(labels: tuple[Label, ...], codes: Any) -> pd.Series:
    return pd.Series([None if np.isnan(code) else labels[int(code)] for code in codes])
