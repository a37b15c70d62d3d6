"""Figures of merit in the units of the data, and the table of predictions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.stats import norm

from ppl_dgp.data import Standardiser
from ppl_dgp.fit.advice import held_out_advice
from ppl_dgp.prediction.predict import Prediction


def nats_per_row(units: Standardiser) -> float:
    """Σ_p log s_p: what a row's log density loses on the way from standardised to original units."""
    return float(np.log(units.scale).sum())


def in_units(prediction: Prediction, units: Standardiser) -> Prediction:
    """A prediction of standardised targets in the units of the data."""
    squared = np.square(units.scale)
    density = prediction.log_density
    return dataclasses.replace(
        prediction,
        f_mean=units.inverse(prediction.f_mean),
        f_variance=prediction.f_variance * squared,
        mean=units.inverse(prediction.mean),
        variance=prediction.variance * squared,
        quantiles=None if prediction.quantiles is None else units.inverse(prediction.quantiles),
        samples=None if prediction.samples is None else units.inverse(prediction.samples),
        log_density=None if density is None else density - nats_per_row(units),
    )


def metrics(prediction: Prediction | None, y: Float[np.ndarray, "N P"] | None) -> dict[str, float | None]:
    """Mean log density per row, RMSE and coverage of the 95 % interval against ``y``, both in original units.

    None throughout where there is nothing to compare with.
    """
    from ppl_dgp.diagnostics.scores import scores

    if prediction is None or y is None:
        return dict.fromkeys(("test_log_density", "test_rmse", "coverage95"))
    return {name: finite(value) for name, value in scores(prediction, y).items()}


def finite(value: Any) -> float | None:
    """A Python float, None where it is no finite number: JSON has no other way to say it."""
    number = float(value)
    return number if math.isfinite(number) else None


def prediction_frame(
    prediction: Prediction,
    y: Float[np.ndarray, "N P"] | None,
    target_names: Sequence[str],
    rows: Int[np.ndarray, " N"],
) -> pd.DataFrame:
    """One line per row: its number, and for each target value, mean, sd, 95 % interval and median."""
    assert prediction.quantiles is not None
    columns: dict[str, np.ndarray] = {"row": np.asarray(rows)}
    for p, name in enumerate(target_names):
        if y is not None:
            columns[name] = y[:, p]
        columns[f"{name}_mean"] = prediction.mean[:, p]
        columns[f"{name}_sd"] = np.sqrt(prediction.variance[:, p])
        for label, values in zip(("lower95", "median", "upper95"), prediction.quantiles, strict=True):
            columns[f"{name}_{label}"] = values[:, p]
    if prediction.log_density is not None:
        columns["log_density"] = prediction.log_density
    return pd.DataFrame(columns)


def of_held_out(
    y: Float[np.ndarray, "N P"], units: Standardiser, measures: dict[str, Any], model: str
) -> tuple[str, ...]:
    """Advice on predictions of held-out ``y``, beside the mean and variance of the training rows, its ``units``."""
    density, coverage = measures.get("test_log_density"), measures.get("coverage95")
    if density is None or coverage is None:
        return ()
    there = ~np.isnan(y)
    each = np.where(there, norm.logpdf(units.transform(y)) - np.log(units.scale), 0.0)
    remedy = (
        "take another --hidden, or choose_by_simulation"
        if model == "gpssm"
        else "take another model or kernel"
    )
    mean = float(each.sum(1)[there.any(1)].mean())
    return held_out_advice(coverage, density, mean, int(there.sum()), remedy, too_wide=False)
