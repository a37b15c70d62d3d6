"""What regressors share: targets in units of their own, and what is said of them in these."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from ppl_dgp.data.table import Standardiser, standardise
from ppl_dgp.estimators.estimator import GPEstimator, Target
from ppl_dgp.estimators.scores import Scored
from ppl_dgp.fit.arguments import checked_levels
from ppl_dgp.models.classification import OF_CLASSES
from ppl_dgp.models.observation import is_of_real_targets
from ppl_dgp.prediction.exact import exact_quantiles
from ppl_dgp.prediction.joint import joint_prediction, sample_targets
from ppl_dgp.prediction.predict import Prediction

_R = TypeVar("_R", bound="_Regressor")
#: draws whose quantiles are taken, at least
QUANTILE_DRAWS = 1000


@dataclass(kw_only=True, eq=False, repr=False)
class _Regressor(Scored, RegressorMixin, GPEstimator):
    """Targets to standardised columns and back."""

    likelihood: Any = None

    def fit(self: _R, X: Any, y: Any, sample_weight: Any = None) -> _R:
        """Train on N rows.

        :param X: features (N, D), finite.
        :param y: targets (N,) or (N, P), finite.
        :param sample_weight: (N,), how often each row counts, as if it stood so often in the table; 0 leaves it out
            (see :mod:`ppl_dgp.objectives.row_weights`). At alpha 0 it is the power of the row's likelihood.
        :returns: the estimator, with the fit as ``fit_``, its constrained parameters as ``params_``, its loss trace as
            ``losses_`` and its bound as ``elbo_``, and whether it has ``converged_``, with the nats that it has yet to
            gain, ``gap_``.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        rows, columns = self._checked_rows(X, y)
        counted, weights = self._counted(rows, sample_weight)
        rows, columns = rows[counted], columns[counted]
        self._name_targets(y)
        if is_of_real_targets(self.likelihood) and (columns == columns[0]).all(0).any():
            warnings.warn(
                "y: found a column of one value, expected one that varies; its predictive deviation means nothing",
                stacklevel=2,
            )
        self.y_units_ = self._target_units(columns, weights)
        self._train(rows, self.y_units_.transform(columns), weights)
        return self

    def _target_units(self, columns: np.ndarray, weights: np.ndarray | None) -> Standardiser:
        """Mean and scale of each target; counts, fractions and the like mean nothing in other units."""
        if is_of_real_targets(self.likelihood):
            return standardise(columns, weights)
        ones = np.ones(columns.shape[1])
        return Standardiser(0.0 * ones, ones)

    def _checked_rows(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Features (N, D) and targets (N, P), both finite; how y came is kept."""
        settings: dict[str, Any] = dict(multi_output=True, y_numeric=True, dtype=np.float64)
        rows, targets = validate_data(
            self, X, y, reset=reset, ensure_min_samples=2 if reset else 1, **settings
        )
        if reset:
            self.single_output_ = targets.ndim == 1
        return rows, np.asarray(targets, np.float64).reshape(len(rows), -1)

    def _target(self) -> Target:
        if isinstance(self.likelihood, str) and self.likelihood in OF_CLASSES:
            raise ValueError(
                f"likelihood: found {self.likelihood!r}, which is one of classes; take SparseGPClassifier, "
                "DeepGPClassifier or StackClassifier"
            )
        return Target(columns=len(self.y_units_.mean), likelihood=self.likelihood)

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Predictive mean of y at K rows, in the targets' units, (K,) or (K, P) as y was.

        :param X: features (K, D).
        :param return_std: also give the standard deviation of y, noise included.
        :param return_cov: also give the covariance of y between the rows, noise included, (K, K) or (K, K, P) as
            scikit-learn's ``GaussianProcessRegressor`` does; O(K³).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used, both of the others together, or a covariance under a
            likelihood whose mean is not f itself.
        """
        if return_std and return_cov:
            raise ValueError(
                "return_cov: found True beside return_std=True, expected one of them; the deviations are the roots of "
                "the covariance's diagonal"
            )
        found = self.predict_distribution(X)
        mean = self.y_units_.inverse(found.mean)
        if return_cov:
            return self._shaped(mean), self._shaped(self._covariance(X, found), 2)
        deviation = np.sqrt(found.variance) * self.y_units_.scale
        return (self._shaped(mean), self._shaped(deviation)) if return_std else self._shaped(mean)

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.025, 0.5, 0.975)) -> np.ndarray:
        """Quantiles of y at K rows, noise included, in the targets' units, (K, L) or (K, P, L) as y was.

        Of one layer under Gaussian noise in closed form, of hidden layers those of a mixture over a thousand draws of
        them; under other noise of a thousand draws of y.

        :param X: features (K, D).
        :param quantiles: L levels, each in (0, 1).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows or levels that cannot be used.
        """
        levels = checked_levels("quantiles", quantiles, 0.975)
        if self.likelihood is None and self._layers()[1] is None and not self._links_outputs:
            found = self.predict_distribution(X)
            each = exact_quantiles(found.mean, found.variance, levels)
        else:
            number = max(self.num_samples, QUANTILE_DRAWS)
            each = np.asarray(self.predict_distribution(X, levels, num_samples=number).quantiles)
        return self._shaped(np.stack([self.y_units_.inverse(one) for one in each], -1))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of y at K rows, noise included, (K, n_samples) or (K, P, n_samples) as y was.

        What a draw says of different rows belongs together, as the values of one function do; O(K³).

        :param X: features (K, D).
        :param n_samples: number of draws.
        :param random_state: seed of the draws.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows or a number that cannot be used.
        """
        if not isinstance(n_samples, int | np.integer) or n_samples < 1:
            raise ValueError(f"n_samples: found {n_samples!r}, expected a whole number of at least 1")
        rows = self._inputs(X)
        key = jax.random.key(int(check_random_state(random_state).randint(2**31 - 1)))
        draws = np.asarray(sample_targets(key, self.fit_, rows, int(n_samples)))
        return self._shaped(np.moveaxis(self.y_units_.inverse(draws), 0, -1))

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each of K rows, all targets of a row together, (K,), in nats and in the targets' units.

        :param X: features (K, D).
        :param y: targets (K,) or (K, P), finite.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows or targets that cannot be used.
        """
        check_is_fitted(self, "fit_")
        columns = check_array(y, dtype=np.float64, ensure_2d=False, input_name="y")
        columns = columns.reshape(len(columns), -1)
        check_consistent_length(X, columns)
        if columns.shape[1] != len(self.y_units_.mean):
            raise ValueError(
                f"y: found {columns.shape[1]} columns, expected {len(self.y_units_.mean)}, as in training; give all"
            )
        found = self.predict_distribution(X, y=jnp.asarray(self.y_units_.transform(columns)))
        density: np.ndarray = np.asarray(found.log_density) - np.log(self.y_units_.scale).sum()
        return density

    def _shaped(self, values: np.ndarray, axis: int = 1) -> np.ndarray:
        """Numbers of P targets along an axis, as y was: without that axis where y was a vector."""
        return values.take(0, axis) if self.single_output_ else values

    def _covariance(self, X: Any, found: Prediction) -> np.ndarray:
        """Of y between the rows (K, K, P), in the targets' units."""
        if found.f_mean.shape != found.mean.shape or not np.allclose(found.f_mean, found.mean):
            raise ValueError(
                "return_cov: found a likelihood whose mean is not f, expected noise that is added to f; take sample_y, "
                "and the covariance of its draws"
            )
        _, covariance = joint_prediction(
            jax.random.key(self._seed + 1), self.fit_, self._inputs(X), self.num_samples
        )
        noise = found.variance - found.f_variance
        each = np.asarray(covariance) + np.stack([np.diag(column) for column in noise.T])
        result: np.ndarray = np.moveaxis(each, 0, -1) * np.square(self.y_units_.scale)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = False
        return tags
