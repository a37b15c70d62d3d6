"""Estimators that learn from one batch after another and keep none: ``partial_fit``, by ``Stream``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ppl_dgp.estimators.classification import _Classifier
from ppl_dgp.estimators.estimator import GPEstimator
from ppl_dgp.estimators.regression import _Regressor
from ppl_dgp.fit import Fit
from ppl_dgp.fit.closed_bound import COLLAPSES
from ppl_dgp.guides import FullRank
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.streaming import Stream

_SR = TypeVar("_SR", bound="_StreamRegressor")
_SC = TypeVar("_SC", bound="_StreamClassifier")
#: steps of the fit to a batch unless told: of L-BFGS where q(u) is in closed form, else of Adam
CLOSED_STEPS, DRAWN_STEPS = 50, 500


@dataclass(kw_only=True, eq=False, repr=False)
class _Streamed(GPEstimator):
    """What is learnt from a batch, and what of those before."""

    def _begin(self, rows: np.ndarray, weights: np.ndarray | None) -> None:
        super()._begin(rows, weights)
        self._stream = None

    def _learn(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Learn from features (B, D) in their units and targets (B, P) as the model takes them."""
        first = self._stream is None
        model, guide, objective = self._estimator_program()
        closed = isinstance(objective, PowerEP) and guide.inducing == FullRank()
        closed = closed and getattr(model, COLLAPSES, False)
        steps = self.steps
        if isinstance(steps, str):
            steps = CLOSED_STEPS if closed else DRAWN_STEPS
        fitting: dict[str, Any] = {}
        if not closed:
            settings = {"learning_rate": self.learning_rate, "batch_size": self.batch_size}
            fitting = {name: value for name, value in settings.items() if value is not None}
            fitting |= {"batch_size": min(self.batch_size, len(rows))} if self.batch_size is not None else {}
        stream = Stream(
            jax.random.key(self._seed),
            model,
            Collapsed(objective.alpha) if closed else objective,
            guide=lambda remembering: replace(guide, model=remembering),
            steps=steps,
            start=None if first else {name: jnp.asarray(value) for name, value in self._stream.items()},
            progress=self.progress,
            **fitting,
        )
        energy = stream.update(self.x_units_.transform(rows), targets)
        before = np.empty(0) if first else self.losses_
        self._stream = {name: np.asarray(value) for name, value in stream.state.items()}
        params = {name: jnp.asarray(value) for name, value in stream.params.items() if "/memory/" not in name}
        losses = np.append(before, -energy)[None]
        about: dict[str, Any] = dict(seconds=0.0, rejected_steps=0, best=0, fingerprint="")
        stacked = {name: value[None] for name, value in params.items()}
        about |= {"losses": losses, "steps": losses.shape[1], "restart_params": stacked}
        self._keep(Fit(model, guide, params, objective, **about), rows, targets)
        self._trained_on = None


@dataclass(kw_only=True, eq=False, repr=False)
class _StreamRegressor(_Streamed, _Regressor):
    """A regressor that takes batches."""

    def partial_fit(self: _SR, X: Any, y: Any) -> _SR:
        """Learn from one more batch of rows, in memory that does not grow with their number.

        The first batch fixes the units in which features and targets are standardised, and at most how many inducing
        points there are; it should be like the others. Each batch is seen once: inducing inputs are chosen anew,
        hyperparameters and q(u) are fitted to it and to what is remembered of those before (Bui, Nguyen & Turner 2017;
        :class:`ppl_dgp.Stream`), by ``steps`` of L-BFGS where q(u) is in closed form, fifty if "auto", else of Adam,
        five hundred. ``losses_`` has minus the energy of each batch given those before it.

        :param X: features (B, D), finite.
        :param y: targets (B,) or (B, P), finite, as in the first batch.
        :returns: the estimator. ``fit`` forgets the batches.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        first = self._stream is None
        rows, columns = self._checked_rows(X, y, reset=first)
        if first:
            self._name_targets(y)
            self.y_units_ = self._target_units(columns, None)
            self._begin(rows, None)
        elif columns.shape[1] != len(self.y_units_.mean):
            raise ValueError(
                f"y: found {columns.shape[1]} columns, expected {len(self.y_units_.mean)}, as in the first batch; give "
                "them all"
            )
        self._learn(rows, self.y_units_.transform(columns))
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class _StreamClassifier(_Streamed, _Classifier):
    """A classifier that takes batches."""

    def partial_fit(self: _SC, X: Any, y: Any, classes: Any = None) -> _SC:
        """Learn from one more batch of rows, as ``SparseGPRegressor.partial_fit`` does.

        :param X: features (B, D), finite.
        :param y: labels (B,).
        :param classes: all labels that there will be; those of the first batch if not given, which is where it counts.
        :returns: the estimator.
        :raises ValueError: for data or settings that cannot be used, and labels that are not of ``classes``.
        :raises FitError: if training fails.
        """
        first = self._stream is None
        rows, labels = validate_data(
            self, X, y, reset=first, dtype=np.float64, ensure_min_samples=2 if first else 1
        )
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        if first:
            self.classes_ = np.unique(labels if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"classes: found one, {self.classes_.tolist()[0]!r}, expected at least two; name those of later "
                    "batches too"
                )
            self._name_targets(y)
            self._begin(rows, None)
        self._learn(rows, self._places(labels).reshape(-1, 1))
        return self
