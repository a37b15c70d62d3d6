"""What a report shows beyond the figures of its run: draws and dependences, made anew from parameters and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpyro.infer import Predictive

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.commands import program_of
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.programs import LEVELS
from ppl_dgp.cli.report import in_units
from ppl_dgp.cli.report_page import run_page
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.table_units import gives_targets, named_dependence, ranking
from ppl_dgp.diagnostics.figures import drawing
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.full_batch import no_latents

#: places along a line, draws, rows beside which draws stand, features that f is drawn along, and values of each
PLACES, DRAWS, ROWS, FEATURES, VALUES = 120, 100, 300, 6, 15
#: by how much a line goes beyond the rows, as a share of what they span
BEYOND = 0.3


def write_report(folder: Path, out: Path) -> None:
    """Write the page of a run.

    :raises BadInput, CheckpointError: if there is no run, it is not done, or what it holds is damaged.
    """
    record = run_directory.read(folder)
    if record.status != "done":
        raise BadInput(
            f"run directory {str(folder)!r} is not done ({record.status})",
            "finish it with 'ppl-dgp fit ... --resume'",
        )
    params, saved = run_directory.load_parameters(folder)
    training = run_directory.training_rows(folder, record, saved)
    try:
        with jax.enable_x64(record.settings.precision == "float64"):
            table, figures = _computed(folder, record, params, training)
            drawings = {name: drawing(each) for name, each in figures.items()}
            content = run_page(folder, record, params, table, drawings)
    except BadInput:
        raise
    except (ValueError, TypeError, KeyError) as error:
        # what predictions say of parameters that are not theirs
        raise run_directory.foreign_parameters(folder, error) from None
    run_directory.place(out, lambda path: path.write_text(content, encoding="utf-8"))


def _computed(
    folder: Path, record: Record, params: dict[str, Any], training: tuple[np.ndarray, np.ndarray] | None
) -> tuple[pd.DataFrame, dict[str, Figure]]:
    from ppl_dgp.diagnostics.hyperparameters import summary

    program = program_of(record)
    data = None if training is None else (jnp.asarray(training[0]), jnp.asarray(training[1]))
    guide = no_latents if program.guide is None else program.guide
    fit = Posterior(
        program.model, guide, {name: jnp.asarray(value) for name, value in params.items()}, data=data
    )
    if not gives_targets(record):
        return summary(fit), {}
    rows = training if record.settings.model == "gp" else _kept_rows(folder, record)
    if rows is None:
        return summary(fit), {}
    x, y = rows
    figures = {"prior": _before_and_after(fit, record, x, y)}
    if x.shape[1] == 1:
        figures["fit"] = _over_the_line(fit, record, x, y)
    figures |= _along(fit, record, x)
    return summary(fit), figures


def _over_the_line(fit: Posterior, record: Record, x: np.ndarray, y: np.ndarray) -> Figure:
    """The fit of one feature at more places than there are rows."""
    from ppl_dgp.diagnostics.plots import plot_fit
    from ppl_dgp.prediction.predict import predict

    line = _line(x[:, 0])[:, None]
    standardised = predict(jax.random.key(record.settings.seed + 2), fit, jnp.asarray(line), levels=LEVELS)
    data = record.x_units.inverse(x), record.y_units.inverse(y)
    labels = record.feature_names[0], record.target_names[0]
    prediction = in_units(standardised, record.y_units)
    return plot_fit(prediction, record.x_units.inverse(line), *data, labels=labels)


def _before_and_after(fit: Posterior, record: Record, x: np.ndarray, y: np.ndarray) -> Figure:
    """Functions over one feature, else the distribution of the targets at the rows; of the first target."""
    from ppl_dgp.diagnostics.predictive_plots import plot_prior_posterior
    from ppl_dgp.prediction.predict import predict

    key, units, labels = (
        jax.random.key(record.settings.seed + 5),
        record.y_units,
        (record.feature_names[0], record.target_names[0]),
    )
    if x.shape[1] == 1:
        line = _line(x[:, 0])[:, None]
        before, after = (
            np.asarray(fit.sample_functions(key, line, DRAWS, prior=prior)) for prior in (True, False)
        )
        at = record.x_units.inverse(line), record.x_units.inverse(x), units.inverse(y)
        return plot_prior_posterior(units.inverse(before), units.inverse(after), *at, labels=labels)
    some = np.unique(np.linspace(0, len(x) - 1, min(len(x), ROWS)).round().astype(int))
    at_rows = jnp.asarray(x[some])
    if fit.guide is no_latents:
        functions = np.asarray(fit.sample_functions(key, at_rows, DRAWS, prior=True))
        noise = np.sqrt(np.asarray(fit.params["likelihood/noise"]))
        prior = functions + noise * np.random.default_rng(record.settings.seed).normal(size=functions.shape)
    else:
        prior = np.asarray(Predictive(fit.model, params=fit.params, num_samples=DRAWS)(key, at_rows)["y"])
    posterior = predict(key, fit, at_rows, num_samples=DRAWS, samples=True).samples
    assert posterior is not None
    return plot_prior_posterior(
        units.inverse(prior), units.inverse(posterior), y=units.inverse(y[some]), labels=labels
    )


def _along(fit: Posterior, record: Record, x: np.ndarray) -> dict[str, Figure]:
    """Dependences on some features, the heaviest first, and draws that go through the layers along the heaviest."""
    from ppl_dgp.diagnostics.layer_plots import plot_layer_draws
    from ppl_dgp.diagnostics.sensitivity import partial_dependence
    from ppl_dgp.diagnostics.sensitivity_plots import plot_dependence, plot_ranking

    key, features, found = jax.random.key(record.settings.seed + 6), record.feature_names, {}
    target, raw = record.target_names[0], record.x_units.inverse(x[:ROWS])
    weights = ranking(fit.params, len(features))
    order = list(range(len(features))) if weights is None else np.argsort(-weights, kind="stable").tolist()
    heaviest = 0
    if x.shape[1] > 1:
        dependences = []
        for column in order[:FEATURES]:
            low, high = np.quantile(x[:, column], (0.02, 0.98))
            values = np.linspace(low, high, VALUES)
            one = partial_dependence(key, fit, x, column, values=values, num_rows=20, num_samples=10)
            dependences.append(named_dependence(one, record))
        dependences.sort(key=lambda each: -float(each.importance[0]))
        heaviest = dependences[0].column
        chosen = [features[each.column] for each in dependences]
        label = f"deviation of the partial dependence, in the units of {target}"
        found["importance"] = plot_ranking([each.importance[0] for each in dependences], chosen, label=label)
        found["dependence"] = plot_dependence(dependences, features, label=target, x=raw)
    if record.settings.model == "deep-gp":
        line = np.broadcast_to(np.median(x, axis=0), (PLACES, x.shape[1])).copy()
        line[:, heaviest] = _line(x[:, heaviest])
        draws = {name: np.asarray(each) for name, each in fit.sample_layers(key, line, DRAWS).items()}
        last = list(draws)[-1]
        draws[last] = record.y_units.inverse(draws[last])
        along = record.x_units.inverse(line)[:, heaviest]
        others = ", others at their medians" if x.shape[1] > 1 else ""
        label = f"{features[heaviest]}{others}"
        found["layer-draws"] = plot_layer_draws(draws, along, label=label, names=record.target_names)
    return found


def _line(values: np.ndarray) -> np.ndarray:
    margin = BEYOND * float(np.ptp(values))
    return np.linspace(values.min() - margin, values.max() + margin, PLACES)


def _kept_rows(folder: Path, record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """The standardised training rows, which the file for ArviZ holds; None without it."""
    from ppl_dgp.diagnostics.arviz_api import group, read_netcdf

    path = folder / "posterior.nc"
    if not path.is_file():
        return None
    data = read_netcdf(path)
    x, y = (
        np.asarray(group(data, name)[each]) for name, each in (("constant_data", "x"), ("observed_data", "y"))
    )
    y = y.reshape(len(y), -1)
    if x.shape != (record.num_train, len(record.feature_names)) or y.shape != (
        len(x),
        len(record.target_names),
    ):
        raise run_directory.foreign_parameters(folder, "posterior.nc is of other rows")
    return x, y
