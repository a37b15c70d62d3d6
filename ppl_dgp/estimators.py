"""Sparse and deep GP regression as scikit-learn estimators.

The model, guide and objective are those of `sparse_gp_regression` (Titsias 2009; Hensman et al. 2013) and
`deep_gp` (Salimbeni and Deisenroth 2017) under the ELBO or a divergence of `alpha`; features and targets are
standardised inside, and everything that comes out is in the units that went in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import ELBO
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ppl_dgp.data import Standardiser
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES, Guide
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.models.parts import named_kernel
from ppl_dgp.objectives import OBJECTIVES
from ppl_dgp.predict import Prediction, predict

_Own = TypeVar("_Own", bound="_Regressor")


@dataclass(kw_only=True, eq=False, repr=False)
class _Regressor(RegressorMixin, BaseEstimator):
    """What the two estimators share: standardised rows to `fit_svi`, predictions back to the data's units.

    Settings are dataclass fields, from which scikit-learn reads its parameters; `fit` is what checks them.
    """

    kernel: str = "rbf"
    num_inducing: int = 100
    inducing_rule: str = "full-rank"
    objective: str = "power-ep"
    alpha: float = 0.0
    num_particles: int | None = None
    steps: int = 2000
    batch_size: int | None = None
    learning_rate: float = 0.01
    num_samples: int = 1
    random_state: Any = None

    def _layers(self) -> tuple[tuple[int, ...], str | None]:
        """Widths and rule of the hidden layers."""
        return (), None

    def fit(self: _Own, X: Any, y: Any) -> _Own:
        """Train on N rows.

        Args:
            X: features (N, D), finite. y: targets (N,) or (N, P), finite.

        Returns the estimator, with the constrained parameters as `params_` and the loss trace as `losses_`.

        Raises ValueError for data or settings that cannot be used, naming them; FitError if training fails.
        """
        rows, targets = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64, ensure_min_samples=2
        )
        self.single_output_ = targets.ndim == 1
        columns = np.asarray(targets, np.float64).reshape(len(rows), -1)
        self.x_units_, self.y_units_ = Standardiser.fit(rows), Standardiser.fit(columns)
        # at most one inducing point per row: small tables are no error here
        self.num_inducing_ = min(self.num_inducing, len(rows))
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        model, guide, objective = self._program(columns.shape[1])
        fitted = fit_svi(
            jax.random.key(self._seed),
            model,
            guide,
            objective,
            self.x_units_.transform(rows),
            self.y_units_.transform(columns),
            steps=self.steps,
            batch_size=None if self.batch_size is None else min(self.batch_size, len(rows)),
            learning_rate=self.learning_rate,
        )
        self.params_ = {name: np.asarray(value) for name, value in fitted.params.items()}
        self.losses_ = fitted.losses[fitted.best]
        self.n_iter_ = fitted.steps
        return self

    def _program(self, num_outputs: int) -> tuple[Callable[..., Any], Guide, ELBO]:
        rules = self.kernel, self.inducing_rule, self.objective, self.alpha, self.num_particles
        return _program(*self._layers(), self.num_inducing_, num_outputs, *rules)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictive mean of y at K rows, in the targets' units, (K,) or (K, P) as y was.

        Args:
            X: features (K, D). return_std: also give the standard deviation of y, noise included.

        Raises NotFittedError before `fit`; ValueError for rows that cannot be used.
        """
        found = self.predict_distribution(X)
        mean = self.y_units_.inverse(found.mean)
        deviation = np.sqrt(found.variance) * self.y_units_.scale
        if self.single_output_:
            mean, deviation = mean[:, 0], deviation[:, 0]
        return (mean, deviation) if return_std else mean

    def predict_distribution(self, X: Any, levels: Sequence[float] = ()) -> Prediction:
        """The whole `Prediction` at K rows, in standardised units (`y_units_` takes them back)."""
        check_is_fitted(self, "params_")
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        model, guide, _ = self._program(len(self.y_units_.mean))
        params = {name: jnp.asarray(value) for name, value in self.params_.items()}
        x = jnp.asarray(self.x_units_.transform(rows))
        key = jax.random.key(self._seed + 1)
        # a row's prediction must not depend on the rows beside it: that is scikit-learn's contract
        settings: dict[str, Any] = dict(num_samples=self.num_samples, levels=tuple(levels), row_by_row=True)
        return predict(key, model, guide, params, x, **settings)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = False
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class SparseGPRegressor(_Regressor):
    """Sparse variational GP regression for tables of any length.

    Args:
        kernel: rbf, matern12, matern32, matern52, rational-quadratic, periodic, linear or constant, or several
            with + and * between, such as rbf+linear.
        num_inducing: inducing points M; fewer where there are fewer rows.
        inducing_rule: of q(u): full-rank, diagonal or low-rank covariance, or across-outputs; of a deep GP also
            layer-chain or coupled.
        objective: power-ep or black-box-alpha. alpha: 0 (the ELBO) to 1.
        num_particles: draws per step; 1 at alpha 0, else 8, if None.
        steps: of Adam, at `learning_rate`. batch_size: rows per step; all if None.
        num_samples: draws that a prediction averages over.
        random_state: seed of the training and of predictions.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> SparseGPRegressor(num_inducing=20, steps=2).fit(X[:40], y[:40]).predict(X[:3]).shape
    (3,)
    """


@dataclass(kw_only=True, eq=False, repr=False)
class DeepGPRegressor(_Regressor):
    """Deep GP regression: for steps, changing lengthscales and features that have to be learnt.

    Args:
        widths: outputs of each hidden layer.
        hidden: mean-field, markov, conditional, conditional-tied, conditional-free, conditional-across,
            doubly-stochastic, moment-matched, nested-compression or amortised.
        kernel, num_inducing, inducing_rule, objective, alpha, num_particles, steps, batch_size, learning_rate,
            num_samples, random_state: as in `SparseGPRegressor`, the first three for every layer.
    """

    widths: Sequence[int] = (2,)
    hidden: str = "doubly-stochastic"
    steps: int = 5000
    num_samples: int = 100

    def _layers(self) -> tuple[tuple[int, ...], str | None]:
        return tuple(self.widths), self.hidden


@lru_cache(maxsize=16)
def _program(
    widths: tuple[int, ...],
    hidden: str | None,
    num_inducing: int,
    num_outputs: int,
    kernel: str,
    inducing_rule: str,
    objective: str,
    alpha: float,
    num_particles: int | None,
) -> tuple[Callable[..., Any], Guide, ELBO]:
    """Model, guide and objective: the same for the same settings, so that a second fit compiles nothing."""
    kind = named_kernel(str(kernel))
    inducing = _named("inducing_rule", inducing_rule, INDUCING_RULES)
    divergence = _named("objective", objective, OBJECTIVES)(alpha, num_particles)
    if hidden is None:
        model = sparse_gp_regression(num_inducing, num_outputs=num_outputs, kernel=kind)
        return model, Guide(model, inducing=inducing), divergence
    model = deep_gp(widths, num_inducing, num_outputs=num_outputs, kernel=kind)
    return model, Guide(model, hidden=_named("hidden", hidden, HIDDEN_RULES), inducing=inducing), divergence


def _named(argument: str, value: str, choices: dict[str, Any]) -> Any:
    if value not in choices:
        raise ValueError(f"{argument} is {value!r}, expected one of {', '.join(choices)}; change it")
    return choices[value]
