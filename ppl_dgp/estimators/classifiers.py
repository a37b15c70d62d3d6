"""Classification by sparse and deep GPs and by stacks, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppl_dgp.estimators.classification import _Classifier
from ppl_dgp.estimators.stacks import StackEstimator
from ppl_dgp.estimators.streams import _StreamClassifier
from ppl_dgp.guides import HiddenRule
from ppl_dgp.models import stack_classification
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(kw_only=True, eq=False, repr=False)
class SparseGPClassifier(_StreamClassifier):
    """Sparse variational GP classification for tables of any length, of two classes or several.

    :param likelihood: bernoulli (probit) or bernoulli-logit for two classes; robust-max or softmax for several; ordinal
        where the sorted labels have an order; or a class, a likelihood or a function, as the models take them. By
        default bernoulli for two, robust-max for more.
    :param kernel, num_inducing, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget,
        batch_size, learning_rate, num_samples, random_state, progress: as in ``SparseGPRegressor``.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> SparseGPClassifier(num_inducing=10, steps=2).fit(X[:40], y[:40]).predict_proba(X[:3]).shape
    (3, 2)
    """


@dataclass(kw_only=True, eq=False, repr=False)
class DeepGPClassifier(_StreamClassifier):
    """Deep GP classification: where the borders between classes are not of one lengthscale.

    :param widths: outputs of each hidden layer.
    :param hidden: as in ``DeepGPRegressor``.
    :param likelihood: as in ``SparseGPClassifier``.
    :param kernel, num_inducing, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget,
        batch_size, learning_rate, num_samples, random_state, progress: as in ``SparseGPRegressor``, the first three of
        every layer.
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
        random_state, progress: as in ``DeepGPRegressor``.

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
