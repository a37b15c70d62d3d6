"""How well a fit predicts rows whose targets are known: log density, RMSE, coverage, CRPS."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

from ppl_dgp.diagnostics.draws import columns
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.prediction.predict import Prediction, predict


@takes_fit
def held_out_scores(
    key: Array,
    fit: Posterior,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
) -> dict[str, float]:
    """``test_log_density`` (mean per row), ``test_rmse`` and ``coverage95`` of a fit, in original units.

    :param x_test: rows (N, D) the fit has not seen, y_test (N, P) or (N,) their targets, on the scale of training.
    :param num_samples: of the hidden layers.
    :param target_scale: standard deviation, scalar or (P,), by which the targets were divided.
    :raises ValueError: for a scale that is not positive.
    """
    x, y, scale = jnp.asarray(x_test), columns(y_test), positive_scale(target_scale)
    prediction = predict(key, fit, x, y, num_samples=num_samples, levels=(0.025, 0.975))
    return scores(prediction, np.asarray(y), scale)


def scores(
    prediction: Prediction, y: Float[np.ndarray, "N P"], target_scale: ArrayLike = 1.0
) -> dict[str, float]:
    """``test_log_density``, ``test_rmse`` and ``coverage95`` of a prediction that has log density and quantiles.

    Where it has samples too, also ``test_crps``, the mean of :func:`crps`.

    :param prediction: its first and last quantiles bound the 95 % interval.
    :param y: the targets, on the scale of the prediction; all figures are over entries that are not NaN, the log
        density over rows that have one.
    :param target_scale: by which both were divided: the figures are in original units.
    :raises ValueError: if the prediction lacks log density or quantiles.
    """
    if prediction.log_density is None or prediction.quantiles is None:
        raise ValueError(
            "prediction: found no log density or quantiles, expected both; predict with y and levels"
        )
    low, high = prediction.quantiles[0], prediction.quantiles[-1]
    there = ~np.isnan(y)
    density = density_in_units(prediction.log_density, y, target_scale)
    found = {
        "test_log_density": float(density[there.any(1)].mean()),
        "test_rmse": float(np.sqrt(np.square((prediction.mean - y) * target_scale)[there].mean())),
        "coverage95": float(((low <= y) & (y <= high))[there].mean()),
    }
    if prediction.samples is not None:
        found["test_crps"] = float((crps(prediction.samples, y) * target_scale)[there].mean())
    return found


def sum_with_error(values: Float[np.ndarray, "*models N"]) -> tuple[Any, Any]:
    """Σ_n over the rows, along the last axis, and its standard error √(N Var), as if rows were independent."""
    return values.sum(-1), np.sqrt(values.shape[-1] * values.var(-1))


def density_in_units(
    log_density: Float[np.ndarray, " N"], y: Num[np.ndarray, "N P"], target_scale: ArrayLike
) -> Float[np.ndarray, " N"]:
    """The log density of targets before they were divided by a scale, NaN of rows without an entry."""
    there = ~np.isnan(y)
    # log |dy/dy'| of the change of units, per row
    jacobian = there @ np.log(np.broadcast_to(target_scale, y.shape[1:]))
    found: np.ndarray = np.where(there.any(1), log_density - jacobian, np.nan)
    return found


def crps(samples: Num[np.ndarray, "D *N"], y: Float[np.ndarray, "*N"]) -> Float[np.ndarray, "*N"]:
    r"""The continuous ranked probability score of D draws at what came, in its units, NaN where nothing did.

    .. math::
        \frac1D \sum_i |x_i - y| - \frac{1}{2 D (D - 1)} \sum_{ij} |x_i - x_j|, \quad
        \tfrac12 \sum_{ij} |x_i - x_j| = \sum_i (2 i - D - 1) \, x_{(i)}

    Fair: of independent draws its expectation is the score of their distribution, whatever D (Ferro 2014). The sum over
    pairs is one over sorted draws, O(D log D).

    :raises ValueError: for fewer than two draws.
    """
    number = samples.shape[0]
    if number < 2:
        raise ValueError(f"samples: found {number}, expected at least 2, for how far they lie apart counts")
    ranks = np.arange(1 - number, number, 2).reshape(-1, *(1,) * y.ndim)
    # the sum over ranks is 0: what is taken off all draws takes nothing off the sum but rounding
    centred = np.sort(samples, 0) - samples.mean(0)
    result: np.ndarray = np.abs(samples - y).mean(0) - (ranks * centred).sum(0) / (number * (number - 1))
    return result


def positive_scale(target_scale: ArrayLike) -> np.ndarray:
    """The scale as an array. Raises ValueError if it is not positive and finite."""
    scale = np.asarray(target_scale, float)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(
            f"target_scale: found {scale}, expected positive numbers; pass the targets' deviation"
        )
    return scale
