"""How well probabilities of classes predict labels that are known: accuracy, log density, calibration, confusion."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Num

#: bins of confidence, of equal width
BINS = 15


def class_scores(
    probabilities: Float[np.ndarray, "N C"],
    labels: Num[np.ndarray, " N"],
    log_density: Float[np.ndarray, " N"] | None = None,
) -> dict[str, float]:
    """``test_log_density`` (mean per row), ``test_accuracy`` and ``test_calibration_error`` of labels 0 … C − 1.

    The last is the expected calibration error (Naeini et al. 2015): the mean distance of accuracy and confidence, the
    probability of the likeliest class, over fifteen bins of confidence.

    :param log_density: of each label, where it is known better than by the logarithm of its probability.
    """
    codes = labels.astype(int)
    if log_density is None:
        log_density = np.log(probabilities[np.arange(len(codes)), codes])
    _, confidence, share, count = reliability(probabilities, labels)
    return {
        "test_log_density": float(log_density.mean()),
        "test_accuracy": float((probabilities.argmax(1) == codes).mean()),
        "test_calibration_error": float(np.abs(confidence - share) @ count / len(codes)),
    }


def reliability(
    probabilities: Float[np.ndarray, "N C"], labels: Num[np.ndarray, " N"], bins: int = BINS
) -> tuple[Int[np.ndarray, " B"], Float[np.ndarray, " B"], Float[np.ndarray, " B"], Int[np.ndarray, " B"]]:
    """Of each bin of confidence with rows in it: its number, the mean confidence, the accuracy, and how many rows."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels.astype(int)
    place = np.clip((confidence * bins).astype(int), 0, bins - 1)
    number, inverse, count = np.unique(place, return_inverse=True, return_counts=True)
    sums = [np.bincount(inverse, each, len(number)) for each in (confidence, right)]
    return number, sums[0] / count, sums[1] / count, count


def confusion_counts(
    probabilities: Float[np.ndarray, "N C"], labels: Num[np.ndarray, " N"]
) -> Int[np.ndarray, "C C"]:
    """How many rows of each class (down) were predicted to be of which (across)."""
    counts = np.zeros((probabilities.shape[1],) * 2, int)
    np.add.at(counts, (labels.astype(int), probabilities.argmax(1)), 1)
    return counts
