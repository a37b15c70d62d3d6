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

from ppl_dgp.cli.task import Task
from ppl_dgp.data import Standardiser
from ppl_dgp.fit import Fit
from ppl_dgp.fit.advice import held_out_advice
from ppl_dgp.prediction.predict import Prediction


def nats_of_units(units: Standardiser, y: Float[np.ndarray, "N P"]) -> Float[np.ndarray, " N"]:
    """Σ_p log s_p over the entries of each row: what its log density loses on the way to original units."""
    lost: np.ndarray = np.where(np.isnan(y), 0.0, np.log(units.scale)).sum(1)
    return lost


def in_units(
    prediction: Prediction, units: Standardiser, y: Float[np.ndarray, "N P"] | None = None
) -> Prediction:
    """A prediction of standardised targets in the units of the data; its density is of the entries of ``y``."""
    squared = np.square(units.scale)
    density = prediction.log_density
    if density is not None and y is not None:
        # nothing is known of a row without entries
        density = np.where(np.isnan(y).all(1), np.nan, density - nats_of_units(units, y))
    return dataclasses.replace(
        prediction,
        f_mean=units.inverse(prediction.f_mean),
        f_variance=prediction.f_variance * squared,
        mean=units.inverse(prediction.mean),
        variance=prediction.variance * squared,
        quantiles=None if prediction.quantiles is None else units.inverse(prediction.quantiles),
        samples=None if prediction.samples is None else units.inverse(prediction.samples),
        log_density=density,
    )


def metrics(prediction: Prediction | None, y: Float[np.ndarray, "N P"] | None) -> dict[str, float | None]:
    """Mean log density per row, RMSE and coverage of the 95 % interval against ``y``, both in original units.

    Over the entries that were observed; None throughout where there is nothing to compare with.
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


def tightest_bound(task: Task, measures: dict[str, Any]) -> tuple[float, float] | None:
    """The greatest known bound of the log evidence in the units of training, and its standard error."""
    bounds = [measures[name] for name in ("elbo", "iw_bound") if measures.get(name) is not None]
    if not bounds:
        return None
    units = float(nats_of_units(task.units(task.train_rows), task.table.y[task.train_rows]).sum())
    return max(bounds) + units, measures.get("elbo_se") or 0.0


def effort(fitted: Fit) -> dict[str, Any]:
    """Time and steps of a fit."""
    running = max(fitted.seconds - fitted.compile_seconds, 1e-9)
    return {
        "seconds": finite(fitted.seconds),
        "steps": fitted.steps,
        "steps_per_second": finite(fitted.steps / running),
        "rejected_steps": fitted.rejected_steps,
        "converged": fitted.converged,
        "gap": finite(fitted.gap),
        "jitter": max(fitted.jitter.values(), default=None),
        "parameters": int(sum(np.size(value) for value in fitted.params.values())),
    }
