"""Five gaps of twenty years in solar irradiance: points, Fourier features, exact; for :mod:`benchmarks.forecasts`.

After Gal & Turner (2015) and Hensman, Durrande & Solin (2018), who remove five such segments; the places of the gaps
are drawn anew for each split, apart from each other, and are of our own choice. Errors are in W/m².
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import constraints

from ppl_dgp import Fourier, Guide, data_plate, exact_gp_regression, fit_lbfgs, sparse_gp
from ppl_dgp.guides import Optimal
from ppl_dgp.kernels import Matern32, Matern52
from ppl_dgp.objectives import Collapsed

KINDS = ("exact", "points 50", "Fourier 51", "Fourier 101")
MODELS = tuple(f"{kernel} {kind}" for kernel in ("Matern52", "Matern32") for kind in KINDS)
GAPS, LENGTH, MARGIN = 5, 20, 0.3
#: variance, lengthscale (centuries) and noise to begin at
START = {"variance": 1.0, "lengthscale": 0.05, "noise": 0.1}


def table(data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Centuries from the first row on (N, 1), and W/m² (N,)."""
    file = np.load(data / "regression" / "solar_irradiance.npz")
    return (file["X"] - file["X"].min()) / 100.0, np.ravel(file["y"])


def missing(rows: int, split: int) -> np.ndarray:
    """Which rows are held out (N,): as if what is left were dealt to the six stretches around the gaps."""
    random = np.random.default_rng(split)
    left = rows - GAPS * LENGTH
    begins = np.sort(random.choice(left - 1, GAPS, replace=False) + 1) + LENGTH * np.arange(GAPS)
    held = np.zeros(rows, bool)
    for begin in begins:
        held[begin : begin + LENGTH] = True
    return held


@lru_cache
def model_of(name: str, end: float) -> Callable[..., Any]:
    """Regression on one input."""
    kernel_name, kind = name.split(" ", 1)
    kernel = {"Matern52": Matern52, "Matern32": Matern32}[kernel_name]
    if kind == "exact":
        return exact_gp_regression(kernel=kernel(START["variance"], START["lengthscale"]))
    size = int(kind.split()[1])

    def value(site: str, start: float) -> Any:
        return numpyro.param(site, jnp.asarray(start), constraint=constraints.positive)

    def model(x: Any, y: Any = None, index: Any = None, number: Any = None) -> Any:
        k = kernel(value("gp/variance", START["variance"]), value("gp/lengthscale", START["lengthscale"]))
        if kind.startswith("Fourier"):
            where = Fourier(-MARGIN, end + MARGIN, (size - 1) // 2)
        else:
            where = numpyro.param("gp/inducing", jnp.linspace(0.0, end, size)[:, None])
        f = sparse_gp("gp", k, where)
        with data_plate(number or x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(value("likelihood/noise", START["noise"])), obs=y)

    return model


def fitted(data: Path, _name: str, model_name: str, split: int) -> dict[str, Any]:
    """One row."""
    x, y = table(data)
    held = missing(len(x), split)
    centre, spread = y[~held].mean(), y[~held].std()
    known = ((y[~held] - centre) / spread)[:, None]
    model, key, since = model_of(model_name, float(x.max())), jax.random.key(split), time.perf_counter()
    start = {"likelihood/noise": jnp.asarray(START["noise"])}
    settings: dict[str, Any] = {"start": start}
    if "exact" not in model_name:
        settings |= {"guide": Guide(model, inducing=Optimal()), "objective": Collapsed()}
    fit = fit_lbfgs(key, model, x[~held], known, **settings)
    seconds = time.perf_counter() - since
    found = fit.predict(jax.random.key(1), x[held])
    mean, variance = np.ravel(found.mean) * spread + centre, np.ravel(found.variance) * spread**2
    error = y[held] - mean
    density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * error**2 / variance
    return {
        "rmse": np.sqrt(np.mean(error**2)), "log_density": density.mean(),
        "coverage95": np.mean(np.abs(error) < 1.96 * np.sqrt(variance)), "bound": -fit.losses[fit.best, -1],
        "gap": fit.gap, "converged": fit.converged, "steps": fit.steps, "seconds": seconds,
    }  # fmt: skip
