"""``fit`` and ``predict`` of a latent variable model: its table, its results, its figures."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Shaped

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.artefacts import number_of_draws, of_training, place_figures
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.report import finite, in_units
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.task import Task
from ppl_dgp.data import Standardiser, load_columns, load_entries, split
from ppl_dgp.data.table import standardise
from ppl_dgp.estimators.latent import as_fit, bound, embedding
from ppl_dgp.fit import Fit
from ppl_dgp.prediction.latents import Latents, infer_latents, relevance, row_log_density
from ppl_dgp.prediction.predict import Prediction, predict

LATENT_DRAWS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class LatentTask(Task):
    """A table whose columns are all targets, and labels of its rows, where it has any."""

    labels: Shaped[np.ndarray, " N"] | None = None


def load_latent_task(source: str, settings: Settings) -> LatentTask:
    """The data of a fit. Raises DataError."""
    table, labels = load_columns(
        source, settings.target, settings.seed, features=settings.features, ignore=settings.ignore
    )
    train_rows, test_rows = split(table, settings.split, settings.test_fraction, settings.seed)
    if reserved := sorted({"row", "label", "log_density"} & set(table.target_names)):
        raise BadInput(
            f"{source} has a column named {reserved[0]!r}, as the tables that are written do", "rename it"
        )
    try:
        units = Standardiser(np.empty(0), np.empty(0)), standardise(table.y[train_rows])
    except ValueError as error:
        raise BadInput(
            f"{source}: {error}", "choose another --split or --seed, or a smaller --test-fraction"
        ) from None
    return LatentTask(table, train_rows, test_rows, *units, labels)


def evaluate_latents(folder: Path, record: Record, task: Task, fitted: Fit) -> dict[str, Any]:
    """The results of a fit; its latents, filled entries, posterior and figures are written."""
    assert isinstance(task, LatentTask)
    _, y = task.rows(task.train_rows)
    latents = embedding(fitted, y)
    counts = relevance(fitted, means=latents.mean)
    names = record.target_names
    labels = None if task.labels is None else task.labels[task.train_rows]
    rows = task.table.row_numbers(task.train_rows)
    frame = latent_frame(latents, rows, labels)
    run_directory.place(folder / "latents.csv", lambda path: frame.to_csv(path, index=False))
    raw = task.table.y[task.train_rows]
    if np.isnan(raw).any():
        filled = filled_frame(_decoded(fitted, latents, record), raw, names, rows)
        run_directory.place(folder / "filled.csv", lambda path: filled.to_csv(path, index=False))
    density = None
    if len(task.test_rows) and record.settings.hidden != "point-estimate":
        tested = task.table.y[task.test_rows]
        density = finite(_entry_log_density(fitted, tested, record).mean())
    observed, value = ~np.isnan(raw), bound(fitted, y)
    result = {
        # log p of the data = log p of the standardised data − Σ log s over its entries
        "elbo": None if value is None else finite(value - (observed @ np.log(task.y_units.scale)).sum()),
        "test_log_density": density,
        "missing": int((~observed).sum()),
        "relevance": [finite(count) for count in counts],
        "noise": finite(np.mean(fitted.params["likelihood/noise"])),
    }
    _write_posterior(folder, record, fitted, y)
    _write_latent_figures(folder, record.settings, fitted, latents, counts, labels)
    return result


def predict_latents(
    record: Record, model: Any, guide: Any, params: dict[str, Any], source: str, seed: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Latents and filled entries of the rows of ``source``, and their log density."""
    raw = load_entries(source, record.target_names, seed, record.encoding)
    with jax.enable_x64(record.settings.precision == "float64"):
        fitted = as_fit(model, guide, params)
        latents = _latents(fitted, raw, record)
        rows = np.arange(len(raw))
        frame = latent_frame(latents, rows, None)
        filled = filled_frame(_decoded(fitted, latents, record), raw, record.target_names, rows)
        density = None
        if record.settings.hidden != "point-estimate":
            frame["log_density"] = _entry_log_density(fitted, raw, record, latents)
            density = finite(frame["log_density"].mean())
    table = pd.concat([frame, filled.drop(columns="row")], axis=1)
    return table, {"rows": len(raw), "missing": int(np.isnan(raw).sum()), "log_density": density}


def latent_frame(latents: Latents, rows: np.ndarray, labels: np.ndarray | None) -> pd.DataFrame:
    """One line per row: its number, its label, mean and sd of each latent dimension."""
    columns: dict[str, np.ndarray] = {"row": np.asarray(rows)}
    if labels is not None:
        columns["label"] = labels
    deviation = np.sqrt(latents.variance)
    for q in range(latents.mean.shape[1]):
        columns[f"latent{q + 1}_mean"], columns[f"latent{q + 1}_sd"] = latents.mean[:, q], deviation[:, q]
    return pd.DataFrame(columns)


def filled_frame(
    prediction: Prediction, raw: np.ndarray, names: tuple[str, ...], rows: np.ndarray
) -> pd.DataFrame:
    """One line per row: its entries, those that were missing by their predictive means, and the sds of these."""
    gaps = np.isnan(raw)
    filled = np.where(gaps, prediction.mean, raw)
    deviation = np.where(gaps, np.sqrt(prediction.variance), np.nan)
    columns = {"row": np.asarray(rows)}
    for p, name in enumerate(names):
        columns[name] = filled[:, p]
        if gaps[:, p].any():
            columns[f"{name}_sd"] = deviation[:, p]
    return pd.DataFrame(columns)


def _latents(fitted: Fit, raw: np.ndarray, record: Record) -> Latents:
    return infer_latents(
        jax.random.key(record.settings.seed + 1), fitted, None, record.y_units.transform(raw)
    )


def _entry_log_density(
    fitted: Fit, raw: np.ndarray, record: Record, latents: Latents | None = None
) -> np.ndarray:
    """Log density of the entries that are there, in the table's units."""
    latents = _latents(fitted, raw, record) if latents is None else latents
    key = jax.random.key(record.settings.seed + 2)
    density = row_log_density(key, fitted, None, record.y_units.transform(raw), latents=latents)
    return np.asarray(density - (~np.isnan(raw)) @ np.log(record.y_units.scale))


def _decoded(fitted: Fit, latents: Latents, record: Record) -> Prediction:
    key = jax.random.key(record.settings.seed + 3)
    settings: dict[str, Any] = dict(num_samples=LATENT_DRAWS, latents=latents.sites)
    return in_units(predict(key, fitted, None, **settings), record.y_units)


def _write_posterior(folder: Path, record: Record, fitted: Fit, y: np.ndarray) -> None:
    from ppl_dgp.diagnostics.arviz_api import write_netcdf
    from ppl_dgp.diagnostics.arviz_export import to_arviz

    key = jax.random.key(record.settings.seed + 4)
    coords = {"target": record.target_names}
    data = to_arviz(key, fitted, None, y, num_draws=number_of_draws(y.size), coords=coords)
    run_directory.place(folder / "posterior.nc", partial(write_netcdf, data))


def _write_latent_figures(
    folder: Path,
    settings: Settings,
    fitted: Fit,
    latents: Latents,
    counts: np.ndarray,
    labels: np.ndarray | None,
) -> None:
    from ppl_dgp.diagnostics.latent_plots import plot_latents, plot_relevance

    # numbers that hardly repeat are no classes
    classes = labels if labels is not None and len(np.unique(labels)) <= 20 else None
    scale = np.sqrt(latents.variance)
    figures = of_training(fitted) | {
        "relevance": plot_relevance(counts / counts.max()),
        "latents": plot_latents(latents.mean, scale if scale.any() else None, classes, relevance=counts),
    }
    place_figures(folder / "figures", settings, figures)
