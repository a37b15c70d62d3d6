"""How well a state space model forecasts a record, by the number of steps ahead: RMSE, log density, coverage, CRPS.

Every forecast begins at an origin along the record, with the state that a particle filter has of the rows before it;
one more, the free run, goes from the first origin to the end. Shapes: K horizons, P outputs, n rows of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Num
from scipy.stats import norm

from ppl_dgp.diagnostics.scores import crps, positive_scale
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.prediction.particle_forecast import OriginForecasts, forecast_origins

#: steps ahead that are scored unless told
HORIZONS: tuple[int, ...] = (1, 5, 20, 100)
#: of fewer draws no two have 95 % of further ones between them
FEWEST_DRAWS = 39


@dataclass(frozen=True, eq=False, repr=False)
class HorizonScores:
    """The scores of forecasts by horizon, in original units; arrays (K + 1,), the last entry that of the free run.

    ``horizons`` (K,) in steps, ``free_run`` the steps of the free run. ``rmse`` of the means, ``coverage95`` and
    ``crps`` are over all entries that came, ``log_density`` is the mean of nats per row, jointly over its outputs.
    ``entries`` are the numbers of those entries: long horizons have fewer origins. ``reference`` has the scores of the
    training rows' mean and variance, as one Gaussian for every row, at the same entries. Of no entries a score is NaN.
    """

    horizons: tuple[int, ...]
    free_run: int
    rmse: np.ndarray
    log_density: np.ndarray
    coverage95: np.ndarray
    crps: np.ndarray
    entries: np.ndarray
    reference: HorizonScores | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the K + 1 columns of scores."""
        return (*map(str, self.horizons), "free run")

    def summary(self) -> pd.DataFrame:
        """A row for each horizon and for the free run, a column for each score."""
        names = ("rmse", "log_density", "coverage95", "crps", "entries")
        table = pd.DataFrame({name: getattr(self, name) for name in names}, index=list(self.labels))
        return table.rename_axis("steps ahead")

    def __repr__(self) -> str:
        table = self.summary().to_string(float_format=lambda value: f"{value:.4g}")
        return f"{type(self).__name__}, a free run of {self.free_run} steps\n{table}"


@takes_fit
def horizon_scores(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    x_new: Float[Array, "n K"] | None,
    y_new: Array,
    *,
    horizons: Sequence[int] = HORIZONS,
    num_first: int = 0,
    num_origins: int = 50,
    num_samples: int = 200,
    num_particles: int = 500,
    sequence: int = -1,
    fresh: bool = False,
    function: str | None = None,
    target_scale: ArrayLike = 1.0,
) -> HorizonScores:
    """Forecasts of a record from origins along it, scored by the number of steps ahead and as a free run.

    One compiled program: a filter of O(n · N) particle steps, D paths of the longest horizon H from each of O origins,
    and D of the free run. A step of a path costs O(M²); one function held along a path of H steps adds O(H³). u is
    filtered with the states, and of a long record few of its draws are left: more particles keep more.

    :param fit: of a state space model, such as ``gpssm``.
    :param x: as trained on, with the numbers of sequences where there are several; None for no controls.
    :param y: as trained on.
    :param x_new: controls of the record's n rows; None for no controls.
    :param y_new: its outputs, (n, P) or (n,), on the scale of training, NaN where missing: these are not scored.
    :param horizons: numbers of steps ahead, rising.
    :param num_first: rows that are filtered before the first origin, in which a new record's state becomes known.
    :param num_origins: at most, spread evenly from the first to the last that the shortest horizon allows.
    :param num_samples: D, independent draws of each forecast.
    :param num_particles: N, of the filter.
    :param sequence: which one the record goes on from, the last by default.
    :param fresh: whether the record is a new sequence, from p(x_0).
    :param function: "path", one draw of f held along each path, or "independent", drawn anew at each step given u; by
        default the first for a free run of at most 300 steps, the second for a longer one.
    :param target_scale: standard deviation, scalar or (P,), by which the targets were divided.
    :raises ValueError: for horizons longer than the record, numbers out of range, a record that does not fit the
        training rows, a scale that is not positive, a model without a trajectory or one of classes, or a guide that
        draws anything besides u and the states.
    """
    scale = positive_scale(target_scale)
    if num_samples < FEWEST_DRAWS:
        raise ValueError(
            f"num_samples: found {num_samples}, expected at least {FEWEST_DRAWS}, for an interval of 95 % of them"
        )
    found = forecast_origins(
        key, fit, x, y, x_new, y_new,
        horizons=horizons, num_first=num_first, num_origins=num_origins, num_samples=num_samples,
        num_particles=num_particles, sequence=None if fresh else sequence, function=function,
    )  # fmt: skip
    return score_origins(found, np.asarray(y, float).reshape(len(y), -1), scale)


def score_origins(
    found: OriginForecasts, training: Float[np.ndarray, "T P"], scale: np.ndarray
) -> HorizonScores:
    """The scores of forecasts, and of the training rows' mean and variance in their place, times ``scale``."""
    pieces = [
        (
            found.came[:, k],
            found.mean[:, k],
            found.log_density[:, k],
            np.moveaxis(found.samples[:, :, k], 1, 0),
        )
        for k in range(len(found.horizons))
    ]
    pieces.append((found.free_came, found.free_mean, found.free_log_density, found.free_samples))
    reference = _collected(found, [_of_normal(came, training, scale) for came, *_ in pieces])
    return _collected(found, [_of_draws(*piece, scale) for piece in pieces], reference)


def _of_draws(
    y: Float[np.ndarray, "R P"],
    mean: Float[np.ndarray, "R P"],
    log_density: Float[np.ndarray, " R"],
    samples: Num[np.ndarray, "D R P"],
    scale: np.ndarray,
) -> dict[str, float]:
    """The scores of R forecasts."""
    # between these of D draws lie 95 % of further ones, on average
    low, high = np.quantile(samples, (0.025, 0.975), axis=0, method="weibull")
    return _scored(y, mean, log_density, (low <= y) & (y <= high), crps(samples, y), scale)


def _of_normal(
    y: Float[np.ndarray, "R P"], training: Float[np.ndarray, "T P"], scale: np.ndarray
) -> dict[str, float]:
    """The scores of the training rows' mean and variance as a forecast of every row."""
    mean, deviation = np.nanmean(training, 0), np.nanstd(training, 0)
    z = (y - mean) / deviation
    log_density = np.nansum(norm.logpdf(z) - np.log(deviation), 1)
    # Gneiting & Raftery (2007), after their equation 21
    score = deviation * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
    return _scored(y, np.broadcast_to(mean, y.shape), log_density, abs(z) <= norm.ppf(0.975), score, scale)


def _scored(
    y: Float[np.ndarray, "R P"],
    mean: Float[np.ndarray, "R P"],
    log_density: Float[np.ndarray, " R"],
    inside: Bool[np.ndarray, "R P"],
    score: Float[np.ndarray, "R P"],
    scale: np.ndarray,
) -> dict[str, float]:
    """Averages over the entries that came, and of log densities over their rows, in original units."""
    there = ~np.isnan(y)
    rows, errors = there.any(1), (mean - y) * scale
    # log |dy/dy'| of the change of units, of what came
    jacobian = there @ np.broadcast_to(np.log(scale), y.shape[1:])
    return {
        "rmse": float(np.sqrt(_mean(np.square(errors[there])))),
        "log_density": _mean((log_density - jacobian)[rows]),
        "coverage95": _mean(inside[there]),
        "crps": _mean((score * scale)[there]),
        "entries": float(there.sum()),
    }


def _mean(values: np.ndarray) -> float:
    """NaN of none, without a warning."""
    return float(values.mean()) if values.size else float("nan")


def _collected(
    found: OriginForecasts, scored: list[dict[str, float]], reference: HorizonScores | None = None
) -> HorizonScores:
    columns: dict[str, Any] = {name: np.array([each[name] for each in scored]) for name in scored[0]}
    columns["entries"] = columns["entries"].astype(int)
    return HorizonScores(found.horizons, len(found.free_came), **columns, reference=reference)
