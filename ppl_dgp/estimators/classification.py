"""What classifiers share: labels of any kind, and the probabilities of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ppl_dgp.estimators.estimator import GPEstimator, Target
from ppl_dgp.estimators.scores import Scored

_C = TypeVar("_C", bound="_Classifier")


@dataclass(kw_only=True, eq=False, repr=False)
class _Classifier(Scored, ClassifierMixin, GPEstimator):
    """Labels of any kind to 0 … C − 1 and back."""

    likelihood: Any = None

    def fit(self: _C, X: Any, y: Any, sample_weight: Any = None) -> _C:
        """Train on N rows.

        :param X: features (N, D), finite.
        :param y: labels (N,), numbers or words, of at least two classes.
        :param sample_weight: (N,), how often each row counts, as in ``SparseGPRegressor``.
        :returns: the estimator, with the labels as ``classes_``, the fit as ``fit_``, its constrained parameters as
            ``params_``, its loss trace as ``losses_`` and its bound as ``elbo_``.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        counted, weights = self._counted(rows, sample_weight)
        rows, labels = rows[counted], labels[counted]
        self._name_targets(y)
        self.classes_, encoded = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y: found one class, {self.classes_[:1].tolist()[0]!r}, expected at least two; check how rows were cut"
            )
        self._train(rows, encoded.reshape(-1, 1), weights)
        return self

    def _target(self) -> Target:
        return Target(classes=len(self.classes_), likelihood=self.likelihood)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes at K rows, (K, C), in the order of ``classes_``.

        :param X: features (K, D).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used.
        """
        mean = self.predict_distribution(X).mean
        return np.concatenate([1.0 - mean, mean], axis=1) if mean.shape[1] == 1 else mean

    def _places(self, labels: np.ndarray) -> np.ndarray:
        """Of labels (K,) their places in ``classes_``.

        :raises ValueError: for one that is not there.
        """
        places = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if (wrong := self.classes_[places] != labels).any():
            raise ValueError(
                f"y: found {labels[wrong].tolist()[0]!r}, expected labels that were trained on, as in classes_; leave "
                "others out"
            )
        return places

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log probability of each of K labels, (K,), in nats.

        :param X: features (K, D).
        :param y: labels (K,), of those in ``classes_``.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows or labels that cannot be used.
        """
        labels = column_or_1d(y)
        places = self._places(labels)
        result: np.ndarray = np.log(self.predict_proba(X)[np.arange(len(labels)), places])
        return result

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest label at K rows, (K,).

        :param X: features (K, D).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        result: np.ndarray = self.classes_[likeliest]
        return result
