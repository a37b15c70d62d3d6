"""Which feature of an additive GP explains what: a number for each, and the figure ``terms``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ppl_dgp.cli.artefacts import LAYER_ROWS, place_figures
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.fit import Fit


def explain_terms(
    folder: Path, record: Record, fitted: Fit, x: Float[np.ndarray, "N D"]
) -> dict[str, list[float]]:
    """The figure is written, in the table's units; returns the share of each feature's term as ``explained``.

    A share is the variance of the term's mean over the rows beside that of the target, the mean over targets; what
    terms have in common belongs to none of them.
    """
    from ppl_dgp.diagnostics.layer_plots import plot_layers
    from ppl_dgp.diagnostics.layers import explained, layer_maps

    names, units, y_scale = record.feature_names, record.x_units, record.y_units.scale
    targets = len(y_scale)  # further functions are of the noise
    maps = []
    for d, layer in enumerate(layer_maps(fitted, jnp.asarray(x[:LAYER_ROWS]))):
        inputs = {
            name: getattr(layer, name) * units.scale[d] + units.mean[d]
            for name in ("inputs", "inducing", "grid")
        }
        outputs = {
            name: getattr(layer, name)[:, :targets] * y_scale
            for name in ("mean", "deviation", "inducing_mean", "grid_mean", "grid_deviation")
        }
        titles: dict[str, Any] = {
            "input_names": (names[d],),
            "output_names": tuple(f"term of {target}" for target in record.target_names),
        }
        maps.append(dataclasses.replace(layer, name=names[d], **titles, **inputs, **outputs))
    place_figures(folder / "figures", record.settings, {"terms": plot_layers(maps)})
    # the variance of every standardised target is 1
    variances = explained(fitted, jnp.asarray(x)).values()
    return {"explained": [float(each[:targets].mean()) for each in variances]}
