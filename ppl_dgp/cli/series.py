"""``fit`` and ``predict`` of a state space model: its series, its states, its forecasts, its figures."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.artefacts import of_training, place_figures, write_posterior
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.programs import PREDICTION_DRAWS, Program, program_elbo
from ppl_dgp.cli.report import finite
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.task import Task
from ppl_dgp.data import Series, Standardiser, load_series, load_steps, split_series
from ppl_dgp.data.series_splits import steps
from ppl_dgp.data.table import standardise
from ppl_dgp.fit import Fit, Posterior
from ppl_dgp.prediction.forecast import Forecast, Smoothed, forecast, smooth
from ppl_dgp.prediction.rollout import LONGEST_PATH

WRITTEN = ("sequence", "step", "log_density")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SeriesTask(Task):
    """A series cut into steps to train on and steps after them."""

    series: Series

    def rows(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As ``Task.rows``; where there are several sequences, their numbers are the last column of the inputs."""
        u, y = super().rows(which)
        several = len(self.series.labels) > 1
        return np.column_stack([u, self.series.sequence[which]]) if several else u, y

    @property
    def ends(self) -> tuple[tuple[float, ...], ...]:
        """The dates of each sequence's last two steps to train on, in days, where dates tell the times of steps."""
        if self.series.days is None:
            return ()
        days, numbers = self.series.days[self.train_rows], self.series.sequence[self.train_rows]
        return tuple(tuple(days[numbers == s][-2:].tolist()) for s in range(len(self.series.labels)))

    def fingerprint(self) -> str:
        """SHA-256 of the series, of where its sequences begin and of which steps are trained on."""
        digest = hashlib.sha256(super().fingerprint().encode())
        digest.update(np.ascontiguousarray(self.series.sequence, dtype="<i8").tobytes())
        return digest.hexdigest()


def load_series_task(source: str, settings: Settings) -> SeriesTask:
    """The data of a fit. Raises DataError or BadInput."""
    asked = settings.target, settings.controls, settings.sequence_column, settings.step_column
    series = load_series(source, *asked, seed=settings.seed)
    table = series.table
    train_rows, test_rows = split_series(series, settings.split, settings.test_fraction)
    if reserved := sorted(set(WRITTEN) & set(table.target_names)):
        raise BadInput(
            f"{source} has a target named {reserved[0]!r}, as the tables that are written do", "rename it"
        )
    longest = int(np.bincount(series.sequence[train_rows]).max())
    if settings.window is not None and settings.window > longest:
        raise BadInput(
            f"--window is {settings.window} steps, more than the {longest} to train on of the longest sequence",
            f"lower it to at most {longest}, or leave it out",
        )
    y = table.y[train_rows]
    for name, column in zip(table.target_names, y.T, strict=True):
        if len(np.unique(column[~np.isnan(column)])) < 2:
            raise BadInput(
                f"target {name!r} of {table.name} has no two different values to train on",
                "choose another target, or a smaller --test-fraction",
            )
    timed = settings.step_column in table.feature_names
    units = _input_units(table.X[train_rows], timed), standardise(y)
    return SeriesTask(table, train_rows, test_rows, *units, series=series)


def _input_units(controls: Float[np.ndarray, "T C"], timed: bool) -> Standardiser:
    """Of the controls; of steps' times, the last, their mean is the unit, and 0 stays 0."""
    units = Standardiser.fit(controls)
    if not timed:
        return units
    mean, scale = units.mean.copy(), units.scale.copy()
    mean[-1], scale[-1] = 0.0, units.mean[-1]
    return Standardiser(mean, scale)


def evaluate_series(
    folder: Path, record: Record, task: Task, program: Program, fitted: Fit
) -> dict[str, Any]:
    """The results of a fit; its states, forecasts, posterior and figures are written."""
    assert isinstance(task, SeriesTask)
    x, y = task.rows(task.train_rows)
    numbers = task.series.sequence
    key, data = jax.random.key(program.settings.seed + 3), (jnp.asarray(x), jnp.asarray(y))
    assert program.guide is not None
    smoothed = smooth(key, fitted, *data, num_samples=PREDICTION_DRAWS)
    states = states_frame(smoothed, numbers[task.train_rows], record.sequences)
    run_directory.place(folder / "states.csv", lambda path: states.to_csv(path, index=False))
    ahead: dict[int, Forecast] = {}
    measures: dict[str, float | None] = dict.fromkeys(("test_log_density", "test_rmse", "coverage95"))
    if len(task.test_rows):
        steps_ahead = (*task.raw(task.test_rows), numbers[task.test_rows])
        frame, measures, ahead = forecasts(record, program, fitted.params, (x, y), *steps_ahead)
        run_directory.place(folder / "predictions.csv", lambda path: frame.to_csv(path, index=False))
    observed, (value, error) = ~np.isnan(y), program_elbo(program, fitted, x, y)
    noise = np.broadcast_to(np.asarray(fitted.params["likelihood/noise"]).ravel(), y.shape[1:])
    result = {
        # log p of the data = log p of the standardised data − Σ log s over its entries
        "elbo": finite(value - (observed @ np.log(task.y_units.scale)).sum()),
        "elbo_se": finite(error),
        **measures,
        "missing": int((~observed).sum()),
        # of the states, which have units of their own, and of y in its units: variances
        "process_noise": [finite(variance) for variance in fitted.params["transition/noise"]],
        "observation_noise": [finite(variance) for variance in noise * np.square(task.y_units.scale)],
    }
    write_posterior(folder, program, fitted, x, y, record)
    _write_series_figures(folder, record.settings, task, fitted, smoothed, ahead)
    return result


def predict_series(
    record: Record,
    program: Program,
    params: dict[str, Any],
    data: tuple[np.ndarray, np.ndarray],
    source: str,
    seed: int,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Forecasts of the steps after those trained on, under the controls of ``source``, and their log density."""
    settings = record.settings
    named = record.feature_names, record.target_names, record.sequences
    asked = settings.target, settings.controls, settings.sequence_column, settings.step_column
    u, y, sequence = load_steps(source, *named, *asked, seed=seed, encoding=record.encoding, ends=record.ends)
    with jax.enable_x64(settings.precision == "float64"):
        frame, measures, _ = forecasts(record, program, params, data, u, y, sequence)
    return frame, {"rows": len(u), **measures}


def states_frame(
    smoothed: Smoothed, sequence: Int[np.ndarray, " T"], labels: tuple[str, ...]
) -> pd.DataFrame:
    """One line per step: its sequence, its number there, mean and sd of each dimension of the state after it."""
    # every sequence has one slot more, of its x_0, before the others
    slots = np.arange(len(sequence)) + sequence + 1
    columns = {"sequence": np.array(labels)[sequence], "step": steps(sequence)}
    for q in range(smoothed.mean.shape[1]):
        columns[f"state{q + 1}_mean"] = smoothed.mean[slots, q]
        columns[f"state{q + 1}_sd"] = smoothed.deviation[slots, q]
    return pd.DataFrame(columns)


def forecasts(
    record: Record,
    program: Program,
    params: dict[str, Any],
    training: tuple[Float[np.ndarray, "T K"], Float[np.ndarray, "T P"]],
    controls: Float[np.ndarray, "H C"],
    y: Float[np.ndarray, "H P"] | None,
    sequence: Int[np.ndarray, " H"],
) -> tuple[pd.DataFrame, dict[str, float | None], dict[int, Forecast]]:
    """Each sequence going on from the end of its ``training``, which is standardised; all else in the source's units.

    Returns one line per step, where there is ``y`` its log density (the mean over steps), RMSE and coverage, and the
    forecast of each sequence.
    """
    assert program.guide is not None
    units, several = record.y_units, len(record.sequences) > 1
    of_training = training[0][:, -1] if several else np.zeros(len(training[0]))
    u, data = record.x_units.transform(controls), (jnp.asarray(training[0]), jnp.asarray(training[1]))
    pieces, ahead = [], {}
    for number in dict.fromkeys(sequence.tolist()):
        rows = np.flatnonzero(sequence == number)
        standardised = forecast(
            jax.random.fold_in(jax.random.key(program.settings.seed + 2), number),
            Posterior(program.model, program.guide, params),
            *data,
            jnp.asarray(u[rows]),
            y_future=None if y is None else jnp.asarray(units.transform(y[rows])),
            sequence=number,
            function="path" if len(rows) <= LONGEST_PATH else "independent",
            num_samples=PREDICTION_DRAWS,
        )
        came = None if y is None else y[rows]
        ahead[number] = _in_units(standardised, units, came)
        first = int((of_training == number).sum())
        place = {"sequence": record.sequences[number], "step": first + np.arange(len(rows))}
        pieces.append(pd.DataFrame(place | _forecast_columns(ahead[number], came, record.target_names)))
    frame = pd.concat(pieces, ignore_index=True)
    return frame, _measures(frame, record.target_names, y is not None), ahead


def _in_units(standardised: Forecast, units: Standardiser, y: Float[np.ndarray, "H P"] | None) -> Forecast:
    """A forecast in the units of the source; the density is of the entries of ``y`` that were observed."""
    density = standardised.log_density
    if density is not None and y is not None:
        observed = ~np.isnan(y)
        # nothing is known of a step at which nothing was observed
        density = np.where(observed.any(1), density - observed @ np.log(units.scale), np.nan)
    mean, variance = units.inverse(standardised.mean), standardised.variance * np.square(units.scale)
    samples = units.inverse(standardised.samples)
    return dataclasses.replace(
        standardised, mean=mean, variance=variance, samples=samples, log_density=density
    )


def _forecast_columns(
    prediction: Forecast, y: Float[np.ndarray, "H P"] | None, names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Observations, mean, sd and 95 % interval of each target, and the log density of what came."""
    low, high = np.quantile(prediction.samples, (0.025, 0.975), axis=0)
    columns = {}
    for p, name in enumerate(names):
        if y is not None:
            columns[name] = y[:, p]
        columns[f"{name}_mean"], columns[f"{name}_sd"] = (
            prediction.mean[:, p],
            np.sqrt(prediction.variance[:, p]),
        )
        columns[f"{name}_lower95"], columns[f"{name}_upper95"] = low[:, p], high[:, p]
    if prediction.log_density is not None:
        columns["log_density"] = prediction.log_density
    return columns


def _measures(frame: pd.DataFrame, names: tuple[str, ...], has_targets: bool) -> dict[str, float | None]:
    """Over the entries that were observed."""
    if not has_targets:
        return dict.fromkeys(("test_log_density", "test_rmse", "coverage95"))

    def of(ending: str) -> np.ndarray:
        return frame[[name + ending for name in names]].to_numpy()

    y = of("")
    observed = ~np.isnan(y)
    inside = (of("_lower95") <= y) & (y <= of("_upper95"))
    return {
        "test_log_density": finite(frame["log_density"].mean()),
        "test_rmse": finite(np.sqrt(np.square(y - of("_mean"))[observed].mean())),
        "coverage95": finite(inside[observed].mean()),
    }


def _write_series_figures(
    folder: Path,
    settings: Settings,
    task: SeriesTask,
    fitted: Fit,
    smoothed: Smoothed,
    ahead: dict[int, Forecast],
) -> None:
    """Losses, states, and of each target the first sequence with its forecast."""
    from ppl_dgp.diagnostics.series_plots import plot_series, plot_states

    figures = of_training(fitted) | {"states": plot_states(smoothed)}
    for number, prediction in list(ahead.items())[:1]:
        of_it = task.series.sequence == number
        past, future = (task.table.y[rows[of_it[rows]]] for rows in (task.train_rows, task.test_rows))
        for p, name in enumerate(task.table.target_names):
            figures[f"forecast-{p + 1}"] = plot_series(
                past, prediction, future, column=p, shown=2 * len(future), label=name
            )
    place_figures(folder / "figures", settings, figures)
