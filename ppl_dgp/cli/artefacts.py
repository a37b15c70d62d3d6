"""The figures, the netCDF file and k-hat of a fit, through the diagnostics."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ppl_dgp.cli import run_directory
from ppl_dgp.cli.programs import Program
from ppl_dgp.fit import Fit
from ppl_dgp.predict import Prediction

LAYER_ROWS = 1000  # drawn in the picture of the layers, at most


def khat_of(
    program: Program, fitted: Fit, x: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N P"]
) -> float | None:
    """Pareto k-hat of the guide's global sites; None where nothing is latent."""
    return None


def write_figures(
    folder: Path,
    program: Program,
    fitted: Fit,
    x: Float[np.ndarray, "N D"],
    data: tuple[Float[np.ndarray, "N D"], Float[np.ndarray, "N P"]],
    new: tuple[Float[np.ndarray, "K D"], Float[np.ndarray, "K P"]],
    prediction: Prediction,
) -> None:
    """`figures/*.png`: losses, calibration, predicted against observed, layers, and the fit over a single input.

    `x` are the standardised training inputs; `data`, `new` and the `prediction` at `new` are in original units.
    """
    from ppl_dgp.diagnostics import plots
    from ppl_dgp.diagnostics.layers import layer_maps

    figures = {
        "losses": plots.plot_losses(fitted.losses),
        "calibration": plots.plot_calibration(prediction, new[1]),
        "predicted": plots.plot_predicted(prediction, new[1]),
    }
    if x.shape[1] == 1:
        figures["fit"] = plots.plot_fit(prediction, new[0], *data)
    if program.guide is not None:
        maps = layer_maps(program.model, program.guide, fitted.params, jnp.asarray(x[:LAYER_ROWS]))
        figures["layers"] = plots.plot_layers(maps)
    for name, figure in figures.items():
        run_directory.place(folder / "figures" / f"{name}.png", partial(figure.savefig, dpi=120))
