"""What fills in missing entries without a GP: centres and variances of every entry of a table with NaN.

Each takes columns (N, P) standardised by the entries that are there. A method that knows no variance gets that of a
tenth of the entries, set aside and imputed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from ppl_dgp.models.latents import components

Array = np.ndarray
#: numbers of principal components that are tried
WIDTHS = (1, 2, 3, 5, 8, 10, 15, 20)
#: columns that one is predicted from, sweeps, and trees of a forest
NEAREST, SWEEPS, TREES = 30, 10, 100
#: of what is set aside; no split is numbered so, whose held-out entries would be the same draws
_ASIDE_SEED = 20_000_003


def by_means(y: Array) -> tuple[Array, Array]:
    """The column's mean and variance."""
    return np.zeros_like(y), np.ones_like(y)


def by_components(y: Array, seed: int = 0) -> tuple[Array, Array]:
    """Probabilistic PCA by EM, of as many components as predict a tenth of the entries best."""
    apart = aside(y)
    widths = [width for width in WIDTHS if width < min(y.shape)]
    scores = []
    for width in widths:
        centre, _ = _of_components(np.where(apart, np.nan, y), width, seed)
        scores.append(np.square(centre - y)[apart].mean())
    return _of_components(y, widths[int(np.argmin(scores))], seed)


def _of_components(y: Array, width: int, seed: int) -> tuple[Array, Array]:
    found = components(jax.random.key(seed), jax.numpy.asarray(y), width, missing=True)
    scores = np.asarray(found.scores(jax.numpy.asarray(y), True))
    axes, unit, spread = np.asarray(found.axes), np.asarray(found.unit), float(found.spread)
    seen = (~np.isnan(y)).astype(float)
    gram = np.einsum("np,pq,pr->nqr", seen, axes, axes, optimize=True) + spread * np.eye(width)
    covariance = spread * np.linalg.inv(gram)
    beyond = np.einsum("pq,nqr,pr->np", axes, covariance, axes, optimize=True)
    return np.asarray(found.centre) + unit * (scores @ axes.T), np.square(unit) * (spread + beyond)


def by_neighbours(y: Array) -> tuple[Array, Array]:
    """The mean of the five nearest rows."""
    return _with_residuals(y, lambda: KNNImputer(n_neighbors=5))


def by_iteration(y: Array, seed: int = 0) -> tuple[Array, Array]:
    """Bayesian ridge regressions of each column on its nearest, again and again."""
    return _with_residuals(
        y, lambda: IterativeImputer(max_iter=SWEEPS, n_nearest_features=NEAREST, random_state=seed)
    )


def by_forests(y: Array, seed: int = 0) -> tuple[Array, Array]:
    """The same by random forests of a hundred trees, as MissForest does (Stekhoven & Bühlmann 2012)."""
    forest = RandomForestRegressor(TREES, max_features="sqrt", random_state=seed, n_jobs=2)
    settings: dict[str, Any] = {"max_iter": SWEEPS, "n_nearest_features": NEAREST, "random_state": seed}
    return _with_residuals(y, lambda: IterativeImputer(forest, tol=0.01, **settings))


def _with_residuals(y: Array, imputer: Callable[[], Any]) -> tuple[Array, Array]:
    """Of a method that knows no variance that of what was set aside."""
    apart = aside(y)
    tried = imputer().fit_transform(np.where(apart, np.nan, y))
    variance = np.square(tried - y)[apart].mean()
    return imputer().fit_transform(y), np.full_like(y, variance)


def aside(y: Array) -> Array:
    """Which entries that are there are set aside, a tenth."""
    return (np.random.default_rng(_ASIDE_SEED).random(y.shape) < 0.1) & ~np.isnan(y)
