"""Forecasts of the last fifth of a series: the fits that :mod:`benchmarks.forecasts` compares.

k = trend (RBF + Linear) + yearly (Periodic of one year x RBF) + medium (RBF) + noise, x in years from the middle of the
rows to train on, y standardised by them; of passengers their logarithm. All begin at values that the seed has
multiplied by exp(0.5 z), z ~ N(0, 1): the same for all models. scikit-learn has one further start of its own and keeps
the better of both.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import constraints
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from ppl_dgp import (
    Coupled,
    Fourier,
    Guide,
    PowerEP,
    data_plate,
    exact_gp_regression,
    fit_lbfgs,
    fit_svi,
    sparse_gp,
)
from ppl_dgp.kernels import RBF, Kernel, Linear, Matern52, Periodic

#: where hyperparameters begin, and the bounds that scikit-learn needs
STARTS = {
    "trend/variance": (1.0, 1e-4, 1e5), "trend/lengthscale": (30.0, 1.0, 1e4), "trend/slope": (0.01, 1e-8, 1e2),
    "year/variance": (0.1, 1e-6, 1e3), "year/smooth": (1.0, 0.05, 1e2), "year/decay": (30.0, 1.0, 1e4),
    "medium/variance": (0.01, 1e-7, 1e2), "medium/lengthscale": (1.0, 0.1, 1e2), "noise": (0.001, 1e-7, 1.0),
}  # fmt: skip
MODELS = ("scikit-learn exact", "exact", "sum, q of each", "sum, joint q", "sum, Fourier medium")
#: inducing points of trend, year and medium
INDUCING = {"co2": (20, 45, 60), "airline": (12, 31, 31)}
#: of "auto" under a joint q(u), whose steps draw
BUDGET = 30_000


@dataclass(frozen=True)
class Record:
    """A series, standardised: ``train`` rows, then those to forecast; ``truth`` (N,) in the units of the world."""

    x: np.ndarray
    y: np.ndarray
    truth: np.ndarray
    train: int
    centre: float
    spread: float
    logarithm: bool

    def scores(self, mean: np.ndarray, variance: np.ndarray) -> dict[str, float]:
        """RMSE and mean log density of the rows to forecast, given moments of the standardised y, in world units."""
        mean, variance = np.ravel(mean), np.ravel(variance)
        error = np.ravel(self.y)[self.train :] - mean
        density = -0.5 * np.log(2.0 * np.pi * variance * self.spread**2) - 0.5 * error**2 / variance
        point, truth = self.centre + self.spread * mean, self.truth[self.train :]
        if self.logarithm:
            density, point = density - np.log(truth), np.exp(point)
        inside = np.mean(np.abs(error) < 1.96 * np.sqrt(variance))
        rmse = float(np.sqrt(np.mean((truth - point) ** 2)))
        return {"rmse": rmse, "log_density": float(density.mean()), "coverage95": float(inside)}


def record(data: Path, name: str) -> Record:
    """The series ``co2`` or ``airline``."""
    file = np.load(
        data / "regression" / {"co2": "mauna_loa_co2.npz", "airline": "airline_passengers.npz"}[name]
    )
    truth = np.ravel(file["y"]).astype(float)
    train, logarithm = int(0.8 * len(truth)), name == "airline"
    y = np.log(truth) if logarithm else truth
    centre, spread = y[:train].mean(), y[:train].std()
    x = file["X"] - file["X"][:train].mean()
    return Record(x, ((y - centre) / spread)[:, None], truth, train, centre, spread, logarithm)


def starts(seed: int) -> dict[str, float]:
    """Where the hyperparameters begin."""
    random = np.random.default_rng(seed)
    return {name: start * np.exp(0.5 * random.normal()) for name, (start, _, _) in STARTS.items()}


def _value(name: str) -> Any:
    return numpyro.param(name, jnp.asarray(STARTS[name][0]), constraint=constraints.positive)


def trend() -> Kernel:
    """Of years to decades."""
    return RBF(_value("trend/variance"), _value("trend/lengthscale")) + Linear(_value("trend/slope"))


def year() -> Kernel:
    """Of the seasons, which change slowly."""
    return Periodic(_value("year/variance"), _value("year/smooth"), 1.0) * RBF(1.0, _value("year/decay"))


def exact_kernel(_dims: int) -> Kernel:
    """All terms."""
    return trend() + year() + RBF(_value("medium/variance"), _value("medium/lengthscale"))


EXACT = exact_gp_regression(kernel=exact_kernel)


def sum_of_terms(name: str, x: np.ndarray, fourier: bool) -> Callable[..., Any]:
    """trend(x) + year(x) + medium(x), each a sparse GP with a u of its own, points evenly over rows to train on."""
    ends = float(x.min()), float(x.max())
    points = [jnp.linspace(*ends, count)[:, None] for count in INDUCING[name]]
    margin = 0.25 * (ends[1] - ends[0])

    def model(x: Any, y: Any = None, index: Any = None, size: Any = None) -> Any:
        of_trend, of_year = sparse_gp("trend", trend(), points[0]), sparse_gp("year", year(), points[1])
        values = _value("medium/variance"), _value("medium/lengthscale")
        if fourier:  # on an interval that reaches beyond the rows to forecast
            features = Fourier(ends[0] - margin, ends[1] + 2.0 * margin, points[2].shape[0])
            medium = sparse_gp("medium", Matern52(*values), features)
        else:
            medium = sparse_gp("medium", RBF(*values), points[2])
        with data_plate(size or x.shape[0], index):
            total = of_trend(x) + of_year(x) + medium(x)
            return numpyro.sample("y", total.noisy(_value("noise")), obs=y)

    return model


def scikit(seed: int) -> GaussianProcessRegressor:
    """The same kernel and start."""
    begin = starts(seed)
    part = {name: (begin[name], STARTS[name][1:]) for name in STARTS}
    kernel = (
        sk.ConstantKernel(*part["trend/variance"]) * sk.RBF(*part["trend/lengthscale"])
        + sk.ConstantKernel(*part["trend/slope"]) * sk.DotProduct(0.0, "fixed")
        + sk.ConstantKernel(*part["year/variance"])
        * sk.ExpSineSquared(begin["year/smooth"], 1.0, STARTS["year/smooth"][1:], "fixed")
        * sk.RBF(*part["year/decay"])
        + sk.ConstantKernel(*part["medium/variance"]) * sk.RBF(*part["medium/lengthscale"])
        + sk.WhiteKernel(*part["noise"])
    )
    return GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=1, random_state=seed)


def fit_of(series: Record, name: str, model_name: str, seed: int) -> Any:
    """One of our fits."""
    x, y, key = series.x[: series.train], series.y[: series.train], jax.random.key(seed)
    begin: dict[str, Any] = {site: jnp.asarray(value) for site, value in starts(seed).items()}
    if model_name == "exact":
        begin = {f"gp/{site}": value for site, value in begin.items() if site != "noise"} | {
            "likelihood/noise": begin["noise"]
        }
        return fit_lbfgs(key, EXACT, x, y, start=begin)
    model = sum_of_terms(name, x, model_name == "sum, Fourier medium")
    objective = PowerEP(0.0)
    if model_name == "sum, joint q":
        guide = Guide(model, inducing=Coupled("full"))
        return fit_svi(key, model, guide, objective, x, y, start=begin, budget=BUDGET)
    return fit_lbfgs(key, model, x, y, guide=Guide(model), objective=objective, natural=True, start=begin)


def fitted(data: Path, name: str, model_name: str, seed: int) -> dict[str, Any]:
    """One row."""
    series, since = record(data, name), time.perf_counter()
    if model_name == "scikit-learn exact":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = scikit(seed).fit(series.x[: series.train], np.ravel(series.y[: series.train]))
        seconds = time.perf_counter() - since
        failed = [
            w for w in caught if issubclass(w.category, ConvergenceWarning) and "lbfgs" in str(w.message)
        ]
        mean, deviation = found.predict(series.x[series.train :], return_std=True)
        about = {"bound": found.log_marginal_likelihood_value_, "converged": not failed}
        return series.scores(mean, deviation**2) | about | {"seconds": seconds}
    fit = fit_of(series, name, model_name, seed)
    seconds = time.perf_counter() - since
    found = fit.predict(jax.random.key(1), series.x[series.train :], num_samples=200)
    about = {
        "bound": -np.mean(fit.losses[fit.best, -200:] if "joint" in model_name else fit.losses[fit.best, -1]),
        "converged": fit.converged, "gap": fit.gap, "steps": fit.steps, "seconds": seconds,
    }  # fmt: skip
    return series.scores(found.mean, found.variance) | about
