"""What a predictive density is judged by, the same for every library: NumPy and SciPy alone.

A predictive density of N rows is a mixture of S Gaussians for each, of equal weight: means and variances (S, N, P), on
the scale of training, whose ``scale`` (P,) the targets were divided by. What is said is in the units of the targets.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

#: nominal probabilities of the central intervals that calibration looks at
CENTRAL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def of_mixture(
    means: np.ndarray, variances: np.ndarray, y: np.ndarray, scale: np.ndarray
) -> dict[str, float]:
    """``test_log_density``, ``rmse``, ``calibration`` and ``coverage95`` of a mixture at targets (N, P)."""
    each = -0.5 * np.log(2.0 * np.pi * variances) - 0.5 * np.square(y - means) / variances
    density = np.logaddexp.reduce(each.sum(-1), 0) - np.log(len(each)) - np.log(scale).sum()
    below = ndtr((y - means) / np.sqrt(variances)).mean(0)
    found = {"test_log_density": float(density.mean())}
    found["rmse"] = float(np.sqrt(np.mean(np.square((means.mean(0) - y) * scale))))
    return found | of_shares([float(np.mean(np.abs(2.0 * below - 1.0) <= level)) for level in CENTRAL])


def of_shares(shares: list[float]) -> dict[str, float]:
    """``calibration`` and ``coverage95`` of the shares of targets that lie inside the ``CENTRAL`` intervals.

    Calibration is the mean distance of a share from its nominal probability, over those up to 0.9.
    """
    apart = [abs(share - level) for share, level in zip(shares, CENTRAL, strict=True)]
    return {"calibration": float(np.mean(apart[:-1])), "coverage95": shares[-1]}
