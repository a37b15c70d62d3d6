"""Classification by sparse and deep GPs and by stacks, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ppl_dgp.estimators.estimator import GPEstimator, Target
from ppl_dgp.estimators.stacks import StackEstimator
from ppl_dgp.guides import HiddenRule
from ppl_dgp.models import stack_classification
from ppl_dgp.models.zoo_model import ZooModel

_C = TypeVar("_C", bound="_Classifier")


@dataclass(kw_only=True, eq=False, repr=False)
class _Classifier(ClassifierMixin, GPEstimator):
    """Labels of any kind to 0 … C − 1 and back."""

    likelihood: Any = None

    def fit(self: _C, X: Any, y: Any) -> _C:
        """Train on N rows.

        :param X: features (N, D), finite.
        :param y: labels (N,), numbers or words, of at least two classes.
        :returns: the estimator, with the labels as ``classes_``, the constrained parameters as ``params_`` and the loss
            trace as ``losses_``.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_, encoded = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y: found one class, {self.classes_[0]!r}, expected at least two; check how rows were cut"
            )
        self._train(rows, encoded.reshape(-1, 1))
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

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest label at K rows, (K,).

        :param X: features (K, D).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used.
        """
        likeliest = self.predict_proba(X).argmax(axis=1)
        result: np.ndarray = self.classes_[likeliest]
        return result


@dataclass(kw_only=True, eq=False, repr=False)
class SparseGPClassifier(_Classifier):
    """Sparse variational GP classification for tables of any length, of two classes or several.

    :param likelihood: bernoulli (probit) or bernoulli-logit for two classes; robust-max or softmax for several; ordinal
        where the sorted labels have an order; or a class, a likelihood or a function, as the models take them. By
        default bernoulli for two, robust-max for more.
    :param kernel, num_inducing, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget,
        batch_size, learning_rate, num_samples, random_state: as in ``SparseGPRegressor``.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> SparseGPClassifier(num_inducing=10, steps=2).fit(X[:40], y[:40]).predict_proba(X[:3]).shape
    (3, 2)
    """


@dataclass(kw_only=True, eq=False, repr=False)
class DeepGPClassifier(_Classifier):
    """Deep GP classification: where the borders between classes are not of one lengthscale.

    :param widths: outputs of each hidden layer.
    :param hidden: as in ``DeepGPRegressor``.
    :param likelihood: as in ``SparseGPClassifier``.
    :param kernel, num_inducing, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget,
        batch_size, learning_rate, num_samples, random_state: as in ``SparseGPRegressor``, the first three for every
        layer.
    """

    widths: Sequence[int] = (2,)
    hidden: str | HiddenRule = "doubly-stochastic"
    num_samples: int = 100

    def _layers(self) -> tuple[tuple[int, ...], str | HiddenRule | None]:
        return tuple(self.widths), self.hidden


@dataclass(kw_only=True, eq=False, repr=False)
class StackClassifier(StackEstimator, _Classifier):
    """Classification by a stack of GP layers, Bayesian layers, random features, networks and latents.

    :param blocks, num_inducing, kernel, inducing_rule: as in ``StackRegressor``.
    :param likelihood: as in ``SparseGPClassifier``.
    :param hidden, objective, alpha, num_particles, steps, tolerance, budget, batch_size, learning_rate, num_samples,
        random_state: as in ``DeepGPRegressor``.

    >>> from sklearn.datasets import load_iris
    >>> from ppl_dgp import BayesianLayer
    >>> X, y = load_iris(return_X_y=True)
    >>> network = StackClassifier(blocks=(BayesianLayer(5), BayesianLayer()), inducing_rule="diagonal", steps=2)
    >>> network.fit(X, y).predict_proba(X[:4]).shape
    (4, 3)
    """

    def _zoo_model(self) -> ZooModel:
        target = self._target()
        assert target.classes is not None  # fit has counted them
        return stack_classification(self._blocks(), target.classes, likelihood=target.likelihood)
