"""The figures, the netCDF file and k-hat of a fit, through the diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float
from matplotlib.figure import Figure

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.programs import Program
from ppl_dgp.cli.report import finite
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.settings import Settings
from ppl_dgp.cli.table_units import lengthscales_of_features, named_maps, ranking
from ppl_dgp.cli.uses import COUNT_LIKELIHOODS
from ppl_dgp.fit import Fit
from ppl_dgp.prediction.predict import Prediction

ROW_DRAWS = 400_000  # rows times draws of the posterior, about
LAYER_ROWS = 1000  # drawn in the picture of the layers, at most


def trust(
    program: Program,
    fitted: Fit,
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N P"],
    nats: float,
    num_draws: int | None = None,
) -> dict[str, float | None]:
    """k-hat of the guide's global sites, importance-weighted bound and LOO with their standard errors.

    The last two are total nats, ``nats`` less than in standardised units. All None for a model without latent sites,
    for which the log evidence is exact.
    """
    if program.guide is None:
        return dict.fromkeys(("khat", "iw_bound", "iw_bound_se", "loo", "loo_se"))
    from ppl_dgp.diagnostics.draws import joint_draws
    from ppl_dgp.diagnostics.khat import expected_log_density, importance_weighted, sites_khat

    key = jax.random.key(program.settings.seed + 3)
    draws = joint_draws(
        key,
        fitted,
        x,
        y,
        num_draws=num_draws or number_of_draws(len(x)),
        num_locals=8,
    )
    bound, bound_se = importance_weighted(draws.log_ratio)
    loo, loo_se, _ = expected_log_density(draws.log_likelihood)
    return {
        "khat": finite(sites_khat(draws)),
        "iw_bound": finite(bound - nats),
        "iw_bound_se": finite(bound_se),
        "loo": finite(loo - nats),
        "loo_se": finite(loo_se),
    }


def number_of_draws(num_rows: int) -> int:
    """Draws of the posterior to look at: fewer of long tables, whose every row counts in each."""
    return int(np.clip(ROW_DRAWS // num_rows, 50, 200))


def write_posterior(
    folder: Path,
    program: Program,
    fitted: Fit,
    x: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, "N P"],
    record: Record,
    num_draws: int | None = None,
) -> None:
    """``posterior.nc`` for ArviZ, in standardised units; of an exact GP its data and parameters."""
    from ppl_dgp.diagnostics.arviz_api import container, write_netcdf
    from ppl_dgp.diagnostics.arviz_export import convergence_attributes, to_arviz

    if program.guide is not None:
        key = jax.random.key(program.settings.seed + 4)
        num_draws = num_draws or number_of_draws(len(x))
        named = {"input": (record.feature_names, x), "target": (record.target_names, y)}
        # rows of models of their own kind have other columns than the table
        coords = {axis: names for axis, (names, table) in named.items() if len(names) == table.shape[1]}
        data = to_arviz(key, fitted, jnp.asarray(x), jnp.asarray(y), num_draws=num_draws, coords=coords)
    else:
        values = {name.replace("/", "."): np.asarray(value) for name, value in fitted.params.items()}
        constants = {
            name: ([f"{name}_dim_{axis}" for axis in range(value.ndim)], value)
            for name, value in values.items()
        }
        groups = {
            "observed_data": xr.Dataset({"y": (["row", "target"], y)}),
            "constant_data": xr.Dataset({"x": (["row", "input"], x), **constants}),
            "sample_stats": xr.Dataset({"loss": (["chain", "step"], fitted.losses)}),
        }
        about = {"inference_library": "ppl_dgp", "steps": fitted.steps}
        data = container(groups, about | convergence_attributes(fitted))
    run_directory.place(folder / "posterior.nc", partial(write_netcdf, data))


def place_figures(folder: Path, settings: Settings, figures: Mapping[str, Figure]) -> None:
    """NAME.svg in a folder, and as whatever else the settings say."""
    from ppl_dgp.diagnostics.figures import save_figure

    for suffix in settings.figures.split(","):
        for name, figure in figures.items():
            run_directory.place(folder / f"{name}.{suffix.strip()}", partial(save_figure, figure))


def write_figures(
    folder: Path,
    record: Record,
    program: Program,
    fitted: Fit,
    x: Float[np.ndarray, "N D"],
    data: tuple[Float[np.ndarray, "N D"], Float[np.ndarray, "N P"]],
    new: tuple[Float[np.ndarray, "K D"], Float[np.ndarray, "K P"]],
    prediction: Prediction,
) -> None:
    """The figures of a regression: losses, calibration, predicted against observed, layers, inputs by their weight.

    Over a single input the fit as well. ``x`` are the standardised training inputs; ``data``, ``new`` and the
    ``prediction`` at ``new`` are in original units.
    """
    from ppl_dgp.diagnostics import layer_plots, plots
    from ppl_dgp.diagnostics.layers import layer_maps
    from ppl_dgp.diagnostics.sensitivity_plots import plot_ranking

    column = int((~np.isnan(new[1])).any(0).argmax())
    features, target = record.feature_names, record.target_names[column]
    figures = of_training(fitted, features) | {
        "calibration": plots.plot_calibration(prediction, new[1]),
        "predicted": plots.plot_predicted(prediction, new[1], column=column, label=target),
    }
    if program.settings.likelihood in COUNT_LIKELIHOODS:
        del figures["calibration"]  # that of densities: whole numbers have intervals of few probabilities
    if x.shape[1] == 1:
        figures["fit"] = plots.plot_fit(
            prediction, new[0], *data, labels=(features[0], record.target_names[0])
        )
    if program.guide is not None and program.settings.model != "additive-gp":  # whose terms have a figure
        maps = layer_maps(fitted, jnp.asarray(x[:LAYER_ROWS]))
        figures["layers"] = layer_plots.plot_layers(named_maps(maps, record))
    weights = ranking(fitted.params, len(features))
    if weights is not None:
        figures["ranking"] = plot_ranking(weights, features)
    place_figures(folder / "figures", record.settings, figures)


def of_training(fitted: Fit, features: Sequence[str] = ()) -> dict[str, Figure]:
    """Losses, convergence where anything is known of it, and the hyperparameters if there are any."""
    from ppl_dgp.diagnostics import plots, training_plots
    from ppl_dgp.diagnostics.hyperparameters import summary

    figures = {"losses": plots.plot_losses(fitted)}
    if fitted.convergence is not None and any(phase.kept for phase in fitted.phases):
        figures["convergence"] = training_plots.plot_convergence(fitted)
    if (summary(fitted).index.get_level_values(0) != "training").any():
        names = {name: features for name in lengthscales_of_features(fitted.params, len(features))}
        figures["hyperparameters"] = training_plots.plot_hyperparameters(fitted, names=names)
    return figures
