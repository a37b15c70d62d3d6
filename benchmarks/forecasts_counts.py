"""Counts that were held out: Cox processes beside Poisson regressions; for :mod:`benchmarks.forecasts`.

``coal``: disasters in mines, in bins of one year; every event is held out with probability 1/2, which leaves Poisson
counts of the same rate on either side. ``hippocampus``: spikes of the eight cells that have most of them while a rat
runs on a linear track, in 50 bins of its place; blocks of ten seconds are held out with probability 1/2, and the time
in a bin is its exposure. Of the Cox process a bound is optimised, or u and the hyperparameters are drawn by NUTS, begun
at that optimum, under ``default_priors``. Polynomials have the degree, up to 10, whose AIC is lowest on what is known,
for each cell. The log density is the mean over bins and cells of log p(count), a posterior's averaged over 1000 draws.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.handlers import lift
from scipy.stats import poisson
from sklearn.linear_model import PoissonRegressor

from ppl_dgp import Fit, Guide, PowerEP, binned_counts_gp, default_priors, fit_lbfgs, fit_nuts
from ppl_dgp.fit.chains import SamplingWarning

MODELS = ("constant", "polynomial", "Cox process", "Cox process by NUTS")
CELLS, BINS, BLOCK, DEGREES = 8, 50, 10.0, 11
#: of polynomials: without it a rate goes to 0 where few were counted
RIDGE = 1e-3
#: seconds from the first position on in which the rat is on the track, and the least pixels/s that are running
ON_TRACK, RUNNING = (60.0, 840.0), 30.0
NUTS: dict[str, Any] = {
    "num_warmup": 500,
    "num_samples": 1000,
    "max_tree_depth": 8,
    "chain_method": "sequential",
}
MODELS_OF = {
    "coal": binned_counts_gp(25, exposure=True),
    "hippocampus": binned_counts_gp(25, num_outputs=CELLS, exposure=True),
}
Counts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def counted(data: Path, name: str, split: int) -> Counts:
    """Edges of bins (N + 1,), counts (N, P) and exposures (N,) that are known, the same of what is held out."""
    random = np.random.default_rng(split)
    if name == "coal":
        dates = np.load(data / "regression" / "coal_mining_events.npz")["dates"]
        edges = np.arange(np.floor(dates.min()), np.ceil(dates.max()) + 1.0)
        held = random.uniform(size=len(dates)) < 0.5
        known, new = (np.histogram(dates[part], edges)[0][:, None] for part in (~held, held))
        # half of the events in each part, so half of the time
        return edges, known, np.full(len(known), 0.5), new, np.full(len(known), 0.5)
    when, place, cells, times = running(data)
    edges = np.linspace(*np.quantile(place, (0.005, 0.995)), BINS + 1)
    held = random.uniform(size=int(when.max() / BLOCK) + 1) < 0.5
    at = np.interp(times, when, place)
    step = np.median(np.diff(when))
    parts: list[np.ndarray] = []
    for side in (~held, held):
        seen, fired = side[(when / BLOCK).astype(int)], side[(times / BLOCK).astype(int)]
        columns = [np.histogram(at[fired & (cells == cell)], edges)[0] for cell in range(CELLS)]
        parts += [np.stack(columns, 1), np.histogram(place[seen], edges)[0] * step]
    return edges, *parts  # type: ignore[return-value]


def running(data: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times and places along the track while it runs, and spikes then: their cells, 0 the busiest, and times."""
    file = np.load(data / "neural" / "hippocampus_linear_track.npz")
    when, first = np.unique(file["position_time"], return_index=True)
    where = np.stack([file["position_x"][first], file["position_y"][first]], 1).astype(float)
    when, times = when - when[0], file["spike_time"] - when[0]
    there = (when > ON_TRACK[0]) & (when < ON_TRACK[1])
    when, where = when[there], where[there]
    centred = where - where.mean(0)
    place = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    window = np.ones(31) / 31.0
    smooth = np.convolve(place, window, "same")
    fast = np.abs(np.gradient(smooth, when)) > RUNNING
    inside = (times > when[0]) & (times < when[-1])
    times, unit = times[inside], file["spike_unit"][inside]
    while_fast = np.interp(times, when, fast.astype(float)) > 0.5
    times, unit = times[while_fast], unit[while_fast]
    busiest = np.argsort(-np.bincount(unit), kind="stable")[:CELLS]
    kept = np.isin(unit, busiest)
    cells = np.argmax(unit[kept, None] == busiest, 1)
    return when[fast], place[fast], cells, times[kept]


def polynomial(u: np.ndarray, known: np.ndarray, exposure: np.ndarray, degrees: int) -> np.ndarray:
    """The rate (N,) of the degree below ``degrees`` that AIC prefers."""
    best: tuple[float, np.ndarray] | None = None
    for degree in range(degrees):
        features = np.polynomial.legendre.legvander(u, degree)[:, 1:]
        if degree == 0:
            rate = np.full(len(u), known.sum() / exposure.sum())
        else:
            model = PoissonRegressor(alpha=RIDGE, max_iter=10_000, tol=1e-8, solver="newton-cholesky")
            model.fit(features, known / exposure, sample_weight=exposure)
            rate = model.predict(features)
        aic = 2.0 * (degree + 1) - 2.0 * poisson.logpmf(known, rate * exposure).sum()
        if best is None or aic < best[0]:
            best = aic, rate
    assert best is not None
    return best[1]


def fitted(data: Path, name: str, model_name: str, split: int) -> dict[str, Any]:
    """One row."""
    edges, known, exposure, new, exposure_new = counted(data, name, split)
    seen, asked = exposure > 0.0, (exposure > 0.0) & (exposure_new > 0.0)
    u = np.linspace(-1.0, 1.0, len(known))
    since = time.perf_counter()
    if not model_name.startswith("Cox process"):
        degrees = 1 if model_name == "constant" else DEGREES
        rates = [polynomial(u[seen], known[seen, p], exposure[seen], degrees) for p in range(known.shape[1])]
        rate = np.full(known.shape, np.nan)
        rate[seen] = np.stack(rates, 1)
        seconds = time.perf_counter() - since
        density = poisson.logpmf(new[asked], rate[asked] * exposure_new[asked, None])
        return {"log_density": density.mean(), "converged": True, "seconds": seconds}
    scaled = 10.0 * (edges - edges[0]) / (edges[-1] - edges[0])
    bins = lambda e: np.stack([scaled[:-1], scaled[1:], e], 1)
    model = MODELS_OF[name]
    settings = {"guide": Guide(model), "objective": PowerEP(0.0), "natural": True}
    x, y = bins(exposure)[seen], known[seen].astype(float)
    fit = fit_lbfgs(jax.random.key(split), model, x, y, **settings)
    if model_name == "Cox process by NUTS":
        fit = _drawn(jax.random.key(split), model, x, y, fit)
    seconds = time.perf_counter() - since
    rows = bins(exposure_new)[asked], new[asked].astype(float)
    found = fit.predict(jax.random.key(1), *rows, num_samples=1000)
    density = found.log_density.mean() / known.shape[1]
    if fit.chains is not None:
        return {
            "log_density": density,
            "converged": fit.chains.advice is None,
            "steps": fit.steps,
            "seconds": seconds,
        }
    return {
        "log_density": density, "bound": -fit.losses[fit.best, -1],
        "gap": fit.gap, "converged": fit.converged, "steps": fit.steps, "seconds": seconds,
    }  # fmt: skip


def _drawn(key: Any, model: Any, x: np.ndarray, y: np.ndarray, start: Fit) -> Fit:
    """Draws of u and of the hyperparameters."""
    lifted = lift(model, prior=default_priors(model, x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)  # the row says it
        fit = fit_nuts(key, lifted, x, y, start=start, **NUTS)
    print(fit.chains, file=sys.stderr, flush=True)
    return fit
