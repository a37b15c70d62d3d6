"""Sparse, deep, additive and multi-output GP regression, and stacks, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_consistent_length, validate_data

from ppl_dgp.estimators.regression import _Regressor
from ppl_dgp.estimators.stacks import StackEstimator
from ppl_dgp.estimators.streams import _StreamRegressor
from ppl_dgp.guides import HiddenRule
from ppl_dgp.models import additive_gp, convolved_gp, multi_output_gp, stack
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(kw_only=True, eq=False, repr=False)
class SparseGPRegressor(_StreamRegressor):
    """Sparse variational GP regression for tables of any length.

    :param kernel: rbf, matern12, matern32, matern52, rational-quadratic, periodic, linear or constant, or several with
        + and * between, such as rbf+linear; or a class, a kernel or a function, as the models take them.
    :param likelihood: of the targets, None for Gaussian noise; a name such as student-t or poisson, or a class, a
        likelihood or a function, as the models take them. Targets of a likelihood that is not one of all real numbers
        are not standardised.
    :param num_inducing: inducing points M; fewer where there are fewer rows.
    :param inducing_rule: of q(u): full-rank, diagonal, low-rank or decoupled covariance, or across-outputs; of a deep
        GP also layer-chain, coupled or global.
    :param objective: power-ep or black-box-alpha.
    :param alpha: 0 (the ELBO) to 1.
    :param num_particles: draws per step; if None 1 at alpha 0, else 8, as of ``PowerEP``.
    :param steps: of Adam; "auto" goes on until the fit has converged or the budget is spent, of which a
        ``ConvergenceWarning`` tells.
    :param tolerance: nats left to gain that are as good as none; a thousandth of a nat a row, half a nat at least, if
        None.
    :param budget: of "auto", at most so many steps.
    :param learning_rate: 0.01 if None; with "auto" the first peak, of several the best if None.
    :param batch_size: rows per step; all if None.
    :param num_samples: draws that a prediction averages over.
    :param random_state: seed of the training and of predictions.
    :param progress: show a bar on standard error; where that is a terminal if None.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> SparseGPRegressor(num_inducing=20, steps=2).fit(X[:40], y[:40]).predict(X[:3]).shape
    (3,)
    """


@dataclass(kw_only=True, eq=False, repr=False)
class DeepGPRegressor(_StreamRegressor):
    """Deep GP regression: for steps, changing lengthscales and features that have to be learnt.

    :param widths: outputs of each hidden layer.
    :param hidden: mean-field, markov, conditional, conditional-markov, conditional-tied, conditional-free,
        conditional-across, doubly-stochastic, moment-matched, nested-compression or amortised.
    :param likelihood: as in ``SparseGPRegressor``.
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
class StackRegressor(StackEstimator, _Regressor):
    """Regression by a stack of GP layers, Bayesian layers, random features, networks and latents.

    :param blocks: from the features to y, as :class:`ppl_dgp.models.stack` takes them, kernels their own.
    :param num_inducing: the most inducing points of a GP layer; fewer where there are fewer rows.
    :param kernel: "rbf", of which nothing is made: blocks have their own.
    :param inducing_rule: also of the weights of Bayesian layers; diagonal is mean-field.
    :param hidden, likelihood, objective, alpha, num_particles, steps, tolerance, budget, batch_size, learning_rate,
        num_samples, random_state, progress: as in ``DeepGPRegressor``.

    >>> from sklearn.datasets import load_diabetes
    >>> from ppl_dgp import BayesianLayer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> network = StackRegressor(blocks=(BayesianLayer(5), BayesianLayer()), inducing_rule="diagonal", steps=2)
    >>> network.fit(X[:40], y[:40]).predict(X[:3]).shape
    (3,)
    """

    def _zoo_model(self) -> ZooModel:
        target = self._target()
        return stack(self._blocks(), num_outputs=target.columns, likelihood=target.likelihood)


@dataclass(kw_only=True, eq=False, repr=False)
class AdditiveGPRegressor(_Regressor):
    """Sums of GPs of one feature each, or of a few: for effects that add up and are to be looked at.

    :param groups: of each term the columns of X that it is a function of; one term for each column if None.
    :param kernel: as in ``SparseGPRegressor``, for every term, which has its own values; or a sequence, one for each.
    :param num_inducing: inducing points of each term; fewer where there are fewer rows.
    :param likelihood, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget, batch_size,
        learning_rate, num_samples, random_state, progress: as in ``SparseGPRegressor``.
    :ivar explained_: (T, P), of each term the variance of its mean over the training rows, in the units in which a
        standardised target has variance 1; of counts and the like on the scale of their likelihood's link.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> AdditiveGPRegressor(num_inducing=5, steps=2).fit(X[:40, :3], y[:40]).explained_.shape
    (3, 1)
    """

    groups: Sequence[Sequence[int]] | None = None

    def _train(self, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        super()._train(rows, targets, weights)
        from ppl_dgp.diagnostics.layers import explained  # which brings Matplotlib

        functions = explained(self.fit_, jnp.asarray(self.x_units_.transform(rows))).values()
        # further functions are of the likelihood's noise
        self.explained_ = np.stack([each[: targets.shape[1]] for each in functions])

    def _zoo_model(self) -> ZooModel:
        target = self._target()
        settings: dict[str, Any] = dict(num_outputs=target.columns, likelihood=target.likelihood)
        return additive_gp(self.groups, self.num_inducing_, kernel=self.kernel, **settings)


@dataclass(kw_only=True, eq=False, repr=False)
class MultiOutputGPRegressor(_Regressor):
    """Targets that mix, or smooth, the same functions: what is known of one tells of the others.

    y is (N, P); NaN is an entry that was not observed, and the mean there is what the other targets say of it.
    ``score`` needs them all.

    :param num_latents: functions Q that the targets have in common.
    :param smoothed: whether every target sees them smoothed by a Gaussian of its own, for targets that are more or less
        sharp; the kernel is rbf then, or one of Convolved.
    :param likelihood: as in ``SparseGPRegressor``, None for Gaussian noise of a variance for each target; others at
        alpha 0.
    :param num_inducing: inducing points of each function; fewer where there are fewer rows.
    :param kernel, inducing_rule, objective, alpha, num_particles, steps, tolerance, budget, batch_size,
        learning_rate, num_samples, random_state, progress: as in ``SparseGPRegressor``.

    >>> from sklearn.datasets import load_linnerud
    >>> X, y = load_linnerud(return_X_y=True)
    >>> y[0, 1] = float("nan")
    >>> MultiOutputGPRegressor(num_inducing=5, steps=2).fit(X, y).predict(X[:4]).shape
    (4, 3)
    """

    num_latents: int = 2
    smoothed: bool = False

    def _checked_rows(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray]:
        of_rows: dict[str, Any] = dict(dtype=np.float64, ensure_min_samples=2)
        of_targets = of_rows | {"ensure_all_finite": "allow-nan", "ensure_2d": False}
        rows, targets = validate_data(self, X, y, validate_separately=(of_rows, of_targets))
        if targets.ndim != 2:
            raise ValueError(
                f"y: found shape {targets.shape}, expected (N, P), a column for each target; for one alone take "
                "SparseGPRegressor, or reshape it"
            )
        check_consistent_length(rows, targets)
        if (empty := np.isnan(targets).all(0)).any():
            raise ValueError(
                f"y: found no entry in column {int(empty.argmax())}, expected at least one; leave it out"
            )
        self.single_output_ = False
        return rows, targets

    def _zoo_model(self) -> ZooModel:
        target = self._target()
        sizes = target.columns, self.num_latents, self.num_inducing_
        if not self.smoothed:
            return multi_output_gp(*sizes, kernel=self.kernel, likelihood=target.likelihood)
        kernel = None if isinstance(self.kernel, str) else self.kernel
        if kernel is None and self.kernel != "rbf":
            raise ValueError(
                f"kernel: found {self.kernel!r} beside smoothed=True, expected 'rbf' or a Convolved; leave it out"
            )
        return convolved_gp(*sizes, kernel=kernel, likelihood=target.likelihood)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = False
        return tags
