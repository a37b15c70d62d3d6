"""What all the estimators share: settings, standardised rows to ``fit_svi``, rows to ``predict``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import ELBO
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ppl_dgp.data import Standardiser
from ppl_dgp.estimators.trained import Trained
from ppl_dgp.fit import Fit, fit_table
from ppl_dgp.fit.plan import BUDGET
from ppl_dgp.guides import (
    HIDDEN_RULES,
    INDUCING_RULES,
    Decoupled,
    Diagonal,
    FullRank,
    Guide,
    HiddenRule,
    InducingRule,
    LowRank,
)
from ppl_dgp.guides.names import named
from ppl_dgp.models import (
    deep_gp,
    deep_gp_classification,
    sparse_gp_classification,
    sparse_gp_regression,
)
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.objectives import OBJECTIVES, capabilities_of
from ppl_dgp.prediction.predict import Prediction, predict

#: draws of a prediction that cannot do without
FEWEST_PREDICTION_DRAWS = 100
#: rows that a prediction takes together
PREDICTED_AT_ONCE = 1000


@dataclass(frozen=True)
class Target:
    """What is predicted: P columns of numbers, or labels of C classes under a likelihood."""

    columns: int = 1
    classes: int | None = None
    likelihood: Any = None


@dataclass(kw_only=True, eq=False, repr=False)
class GPEstimator(Trained):
    """Settings are dataclass fields, from which scikit-learn reads its parameters; ``fit`` is what checks them."""

    kernel: Any = "rbf"
    num_inducing: int = 100
    inducing_rule: str | InducingRule = "full-rank"
    objective: str | ELBO = "power-ep"
    alpha: float = 0.0
    num_particles: int | None = None
    steps: int | str = "auto"
    tolerance: float | None = None
    budget: int = BUDGET
    batch_size: int | None = None
    learning_rate: float | None = None
    num_samples: int = 1
    random_state: Any = None
    progress: bool | None = None

    def _layers(self) -> tuple[tuple[int, ...], str | HiddenRule | None]:
        """Widths and rule of the hidden layers."""
        return (), None

    def _target(self) -> Target:
        """What ``fit`` has found the targets to be."""
        raise NotImplementedError

    def _units(self) -> Callable[..., Standardiser]:
        """How features are standardised: each column by itself, unless an estimator has its own."""
        return Standardiser.fit

    def _counted(self, rows: np.ndarray, sample_weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Which of the rows count at all, and of those how often each does, None if once.

        :raises ValueError: for weights that are negative, not one for each row, or all zero.
        """
        if sample_weight is None:
            return np.ones(len(rows), bool), None
        weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        counted = weights > 0.0
        # a table of one row has no scale
        if counted.sum() < 2:
            raise ValueError(
                f"sample_weight: found {int(counted.sum())} that are not zero weights, expected at least two; a row of "
                "weight 0 is left out"
            )
        weights = weights[counted]
        return counted, None if (weights == 1.0).all() else weights

    def _train(self, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Fit to features (N, D) in their units and targets (N, P) as the model takes them."""
        self._begin(rows, weights)
        model, guide, objective = self._estimator_program(weights)
        fitted = fit_table(
            jax.random.key(self._seed),
            model,
            guide,
            objective,
            self.x_units_.transform(rows),
            targets,
            steps=self.steps,
            tolerance=self.tolerance,
            budget=self.budget,
            batch_size=None if self.batch_size is None else min(self.batch_size, len(rows)),
            learning_rate=self.learning_rate,
            progress=self.progress,
        )
        self._keep(fitted, self.x_units_.transform(rows), targets)
        warn_of_convergence(self.steps, fitted)

    def _begin(self, rows: np.ndarray, weights: np.ndarray | None) -> None:
        """Units of the features, sizes and seed of a training that begins with these rows."""
        self.x_units_ = self._units()(rows, weights)
        # at most one inducing point per row: small tables are no error here
        self.num_inducing_ = min(self.num_inducing, len(rows))
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    def _estimator_program(self, weights: np.ndarray | None = None) -> tuple[Callable[..., Any], Guide, ELBO]:
        """Model, guide and objective: equal for equal settings, so that a second fit compiles nothing.

        :param weights: how often each row counts; once if None.
        :raises ValueError: for weights that the objective does not take.
        """
        rules: dict[str, Any] = {"inducing": named("inducing_rule", self.inducing_rule, INDUCING_RULES)}
        kind = named("objective", self.objective, OBJECTIVES)
        divergence = kind if isinstance(kind, ELBO) else kind(self.alpha, self.num_particles)
        if weights is not None:
            if not capabilities_of(divergence).weighs_rows:
                raise ValueError(
                    f"sample_weight: found weights for {type(divergence).__name__}, which takes none; take "
                    "objective='power-ep', or repeat the rows"
                )
            divergence = divergence.weighted(weights)
        model, (_, hidden) = self._zoo_model(), self._layers()
        if hidden is not None:
            rules["hidden"] = named("hidden", hidden, HIDDEN_RULES)
        return model, Guide(model, **rules), divergence

    def _zoo_model(self) -> ZooModel:
        """The model of what ``fit`` has found; a sparse or deep GP unless an estimator has its own."""
        target, (widths, hidden) = self._target(), self._layers()
        settings: dict[str, Any] = dict(kernel=self.kernel, likelihood=target.likelihood)
        if target.classes is None:
            settings["num_outputs"] = target.columns
            if hidden is None:
                return sparse_gp_regression(self.num_inducing_, **settings)
            return deep_gp(widths, self.num_inducing_, **settings)
        if hidden is None:
            return sparse_gp_classification(target.classes, self.num_inducing_, **settings)
        return deep_gp_classification(target.classes, widths, self.num_inducing_, **settings)

    def _rows_at_once(self, draws: int) -> int:
        """Rows that a prediction takes together."""
        return PREDICTED_AT_ONCE

    def _inputs(self, X: Any) -> np.ndarray:
        """Rows to predict at, standardised.

        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used.
        """
        check_is_fitted(self, "fit_")
        return self.x_units_.transform(validate_data(self, X, reset=False, dtype=np.float64))

    @property
    def _links_outputs(self) -> bool:
        """Whether q(u) links outputs or layers, so that u must be drawn."""
        rule = named("inducing_rule", self.inducing_rule, INDUCING_RULES)
        return not isinstance(rule, FullRank | Diagonal | LowRank | Decoupled)

    def predict_distribution(
        self, X: Any, levels: Sequence[float] = (), y: Any = None, num_samples: int | None = None
    ) -> Prediction:
        """The whole ``Prediction`` at K rows, of a regression in standardised units (``y_units_`` takes them back).

        :param levels: quantiles wanted.
        :param y: targets in the model's units, whose log density is wanted.
        :param num_samples: draws to average over; those of the setting of that name if not given, and a hundred at
            least where quantiles, or a q(u) that links outputs, cannot do without.
        """
        rows = self._inputs(X)
        # quantiles, and a q(u) that links outputs, need draws
        drawn = len(levels) > 0 or self._links_outputs
        number = max(self.num_samples, FEWEST_PREDICTION_DRAWS) if drawn else self.num_samples
        number = number if num_samples is None else num_samples
        # a row's prediction must not depend on the rows beside it: that is scikit-learn's contract
        settings: dict[str, Any] = dict(num_samples=number, levels=tuple(levels), row_by_row=True)
        settings["batch_size"] = self._rows_at_once(number)
        return predict(jax.random.key(self._seed + 1), self.fit_, jnp.asarray(rows), y, **settings)


def warn_of_convergence(steps: int | str, fitted: Fit) -> None:
    """Say, as scikit-learn does, that a fit which was to converge has not."""
    known = fitted.convergence
    if isinstance(steps, str) and known is not None and not known.converged:
        warnings.warn(
            f"{known.shown}, after {fitted.steps} steps; raise budget or tolerance, or give a number of steps",
            ConvergenceWarning,
            stacklevel=4,
        )
