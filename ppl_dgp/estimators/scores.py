"""Scores of estimators: scikit-learn's usual one, or the log density of what came, which also judges the spread."""

from __future__ import annotations

from typing import Any

import numpy as np

#: the usual score of scikit-learn, and the mean log density
SCORINGS = ("default", "log_density")


class Scored:
    """A ``score`` that may be of densities; before scikit-learn's mixin in the order of the bases."""

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each of K rows, (K,)."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, sample_weight: Any = None, scoring: str = "default") -> float:
        """How well y is predicted at K rows: R² of a regression and accuracy of a classification, or the log density.

        :param X: features (K, D).
        :param y: targets (K,) or (K, P), or labels.
        :param sample_weight: (K,), of the mean over rows.
        :param scoring: "default", or "log_density" for the mean log density of a row in nats, in the units of y.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used, or another ``scoring``.
        """
        if scoring not in SCORINGS:
            raise ValueError(f"scoring: found {scoring!r}, expected one of {', '.join(SCORINGS)}; change it")
        if scoring == "log_density":
            return float(np.average(self.log_density(X, y), weights=sample_weight))
        value: float = super().score(X, y, sample_weight)  # type: ignore[misc]
        return value


def log_density_score(estimator: Any, X: Any, y: Any) -> float:
    """The mean log density of a row in nats, as ``cross_val_score`` takes it: ``scoring=log_density_score``.

    :param estimator: one of this package's regressors or classifiers, fitted.
    :param X: features (K, D).
    :param y: targets (K,) or (K, P), or labels.
    :raises NotFittedError: before ``fit``.
    :raises ValueError: for rows that cannot be used.
    """
    return float(estimator.score(X, y, scoring="log_density"))
