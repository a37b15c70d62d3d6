"""What benchmarks of latent variable models share: standardised columns, and errors of nearest neighbours."""

from __future__ import annotations

import numpy as np
from sklearn.neighbors import NearestNeighbors

Array = np.ndarray


def nearest_errors(x: Array, labels: Array) -> int:
    """Rows whose nearest other row is of another class."""
    index = NearestNeighbors(n_neighbors=2).fit(x).kneighbors(x, return_distance=False)[:, 1]
    return int((labels[index] != labels).sum())


def standard(y: Array) -> tuple[Array, Array, Array]:
    """Columns that vary, standardised by the entries that are there; mean and scale of these columns."""
    mean, scale = np.nanmean(y, 0), np.nanstd(y, 0)
    kept = scale > 1e-6 * max(scale.max(), 1e-12)
    return (y[:, kept] - mean[kept]) / scale[kept], mean[kept], scale[kept]
