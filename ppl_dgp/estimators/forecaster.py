"""A forecaster of series: a Gaussian process state space model behind the verbs that forecasters have.

Their names, and what the horizon ``fh`` is, are sktime's, which is not needed: ``fit(y, X)``, ``predict(fh, X)``,
``predict_interval``, ``predict_quantiles``, ``predict_var``, ``update``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ppl_dgp.data.table import Standardiser, standardise
from ppl_dgp.estimators.estimator import warn_of_convergence
from ppl_dgp.estimators.horizons import Timeline, as_table, checked_horizon
from ppl_dgp.estimators.trained import Trained
from ppl_dgp.fit import fit_series
from ppl_dgp.fit.arguments import checked_levels
from ppl_dgp.fit.plan import BUDGET
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import HIDDEN_RULES, Guide, HiddenRule, Markov, MeanField
from ppl_dgp.guides.names import named
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import Forecast, forecast

_F = TypeVar("_F", bound="GPSSMForecaster")
#: steps along which one function is held at a cost that is affordable
LONGEST_HELD = 500
#: whose expectations have a closed form
CLOSED_KERNELS = {"rbf", "linear", "constant"}


@dataclass(kw_only=True, eq=False, repr=False)
class GPSSMForecaster(Trained):
    """Gaussian process state space model: forecasts of one or several series from a state that is not observed.

    Series and controls are standardised inside, all that comes out is in the units that went in; it works in 64 bits.
    What comes in as a Series or a DataFrame comes out as one, its index going on.

    :param latent: dimensions of the state; as many as there are series if None.
    :param num_inducing: inducing points of the transition; fewer where there are fewer steps.
    :param kernel: of the transition, as in ``SparseGPRegressor``.
    :param hidden: of q of the states: markov or mean-field, without draws, or one of those that follow f, conditional,
        conditional-markov or doubly-stochastic, which begin where markov ends.
    :param alpha: 0 (the ELBO) to 1.
    :param mean: of the transition: linear, identity or zero.
    :param emission: linear, identity or gp.
    :param start: where the states begin: linear, subspace or outputs.
    :param steps, tolerance, budget, learning_rate: as in ``SparseGPRegressor``.
    :param num_samples: paths that a forecast is made of.
    :param random_state: seed of the training and of forecasts.
    :param progress: show a bar on standard error; where that is a terminal if None.
    :ivar fit_, elbo_, params_, losses_, n_iter_, converged_, gap_: as in ``SparseGPRegressor``.
    :ivar cutoff_: the label of the last step that was seen.

    >>> import numpy as np
    >>> wave = np.sin(np.arange(30.0) / 3.0)
    >>> GPSSMForecaster(num_inducing=4, steps=2, num_samples=20).fit(wave).predict([1, 2, 3]).shape
    (3,)
    """

    latent: int | None = None
    num_inducing: int = 20
    kernel: Any = "rbf"
    hidden: str | HiddenRule = "markov"
    alpha: float = 0.0
    mean: str = "linear"
    emission: str = "linear"
    start: str = "linear"
    steps: int | str = "auto"
    tolerance: float | None = None
    budget: int = BUDGET
    learning_rate: float | None = None
    num_samples: int = 500
    random_state: Any = None
    progress: bool | None = None

    _pickles_rows, _double = True, True

    def fit(self: _F, y: Any, X: Any = None, fh: Any = None) -> _F:
        """Train on a series of T steps, one row after the other.

        :param y: (T,) or (T, P), NaN where an entry is missing.
        :param X: controls or other exogenous series (T, C), finite; None for none.
        :param fh: not used; a forecaster of sktime's may be given its horizon here.
        :returns: the forecaster.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        targets = as_table("y", y, missing=True)
        controls = None if X is None else as_table("X", X, rows=len(targets))
        self.timeline_ = Timeline.of(y, len(targets))
        if self.timeline_.index is not None:
            self.timeline_.check_controls(X, self.timeline_.index)
        self._name_targets(y)
        self.__dict__.pop("feature_names_in_", None)
        if X is not None and hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray([str(name) for name in X.columns], dtype=object)
        self._history = targets, controls
        self._train_series()
        return self

    def _train_series(self) -> None:
        targets, controls = self._history
        self.y_units_ = standardise(targets)
        self.x_units_ = None if controls is None else Standardiser.fit(controls)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.num_inducing_ = min(self.num_inducing, len(targets))
        with jax.enable_x64(True):
            model, guide, objective = self._series_program(targets.shape[1])
            x, y = self._controls(controls, len(targets)), self.y_units_.transform(targets)
            about: dict[str, Any] = {
                "tolerance": self.tolerance,
                "budget": self.budget,
                "progress": self.progress,
            }
            if self.learning_rate is not None:
                about["learning_rate"] = self.learning_rate
            given = None if controls is None else x
            fitted = fit_series(
                jax.random.key(self._seed), model, guide, objective, given, y, steps=self.steps, **about
            )
            self._keep(fitted, x, y)
        #: controls and outputs, standardised, of steps that were not trained on
        self._seen: tuple[np.ndarray, np.ndarray] | None = None
        self.cutoff_ = self.timeline_.cutoff
        warn_of_convergence(self.steps, fitted)

    def _series_program(self, outputs: int) -> tuple[Any, Guide, PowerEP]:
        """Model, guide and objective: equal for equal settings, so that a second fit compiles nothing."""
        model = gpssm(
            outputs,
            self.latent,
            self.num_inducing_,
            mean=self.mean,
            emission=self.emission,
            kernel=self.kernel,
            start=self.start,
            noise="per-column",
            missing=True,
        )
        rule = named("hidden", self.hidden, HIDDEN_RULES)
        parts = set(self.kernel.replace(" ", "").split("+")) if isinstance(self.kernel, str) else {"own"}
        closed = isinstance(rule, Markov | MeanField) and self.alpha == 0.0 and parts <= CLOSED_KERNELS
        return model, Guide(model, hidden=rule), CLOSED if closed else PowerEP(self.alpha)

    def predict(self, fh: Any, X: Any = None) -> Any:
        """Predictive means of steps ahead, (H,) or (H, P) as y was.

        :param fh: the steps, counted from the last that was seen: 1 is the next; a number or several, rising.
        :param X: controls of the steps ahead, (K, C), the first the next step's, up to the last of ``fh`` at least;
            None where there were none in ``fit``.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for a horizon or controls that cannot be used.
        """
        steps, found = self._ahead(fh, X)
        return self._dressed(self.y_units_.inverse(found.mean)[steps - 1], steps)

    def predict_var(self, fh: Any, X: Any = None) -> pd.DataFrame:
        """Predictive variances of y, noise included: a row for each step, a column for each series.

        For arguments see :meth:`predict`.
        """
        steps, found = self._ahead(fh, X)
        variance = (found.variance * np.square(self.y_units_.scale))[steps - 1]
        return pd.DataFrame(variance, self.timeline_.ahead(steps), self._names)

    def predict_quantiles(
        self, fh: Any, X: Any = None, alpha: float | Sequence[float] = (0.05, 0.95)
    ) -> pd.DataFrame:
        """Quantiles of y, noise included: a row for each step, columns (series, level).

        For other arguments see :meth:`predict`.

        :param alpha: a level or several, each in (0, 1).
        :raises ValueError: for a level outside (0, 1), too.
        """
        levels = checked_levels("alpha", alpha, 0.95)
        steps, found = self._ahead(fh, X)
        draws = self.y_units_.inverse(found.samples)[:, steps - 1]
        values = np.quantile(draws, levels, axis=0)  # (L, H, P)
        columns = pd.MultiIndex.from_product([self._names, levels])
        table = np.moveaxis(values, 0, -1).reshape(len(steps), -1)
        return pd.DataFrame(table, self.timeline_.ahead(steps), columns)

    def predict_interval(
        self, fh: Any, X: Any = None, coverage: float | Sequence[float] = 0.9
    ) -> pd.DataFrame:
        """Intervals that hold y with given probabilities, equal tails left out: columns (series, coverage, side).

        For other arguments see :meth:`predict`.

        :param coverage: a probability or several, each in (0, 1); ``side`` is lower or upper.
        :raises ValueError: for a coverage outside (0, 1), too.
        """
        given = checked_levels("coverage", coverage, 0.9)
        levels = [level for each in given for level in ((1.0 - each) / 2.0, (1.0 + each) / 2.0)]
        found = self.predict_quantiles(fh, X, levels)
        sides = [(each, side) for each in given for side in ("lower", "upper")]
        found.columns = pd.MultiIndex.from_tuples([(name, *side) for name in self._names for side in sides])
        return found

    def update(self: _F, y: Any, X: Any = None, update_params: bool = False) -> _F:
        """See the steps that came after those seen so far: forecasts go on from their end.

        :param y: (K,) or (K, P), NaN where an entry is missing.
        :param X: their controls (K, C); None where there were none in ``fit``.
        :param update_params: whether to train anew on all steps. Else nothing is learnt: a particle filter finds the
            state in which the new steps leave the series, which is cheap.
        :returns: the forecaster.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for data that do not go on from those of ``fit``.
        """
        check_is_fitted(self, "fit_")
        targets = as_table("y", y, missing=True, columns=len(self.y_units_.mean))
        controls = self._checked_controls(X, len(targets), exact=True)
        before = self._history
        longer = self.timeline_.longer(y, len(targets))
        if longer.index is not None:
            longer.check_controls(X, longer.index[-len(targets) :])
        both = None if controls is None else np.concatenate([before[1], controls])
        self._history = np.concatenate([before[0], targets]), both
        self.timeline_ = longer
        if update_params:
            self._train_series()
            return self
        new = self._controls(controls, len(targets)), self.y_units_.transform(targets)
        old = self._seen
        self._seen = (
            new if old is None else (np.concatenate([old[0], new[0]]), np.concatenate([old[1], new[1]]))
        )
        self.cutoff_ = self.timeline_.cutoff
        return self

    def _ahead(self, fh: Any, X: Any) -> tuple[np.ndarray, Forecast]:
        """The steps of a horizon, and the forecast of all up to the last, in standardised units."""
        check_is_fitted(self, "fit_")
        steps = checked_horizon(fh)
        size = int(steps[-1])
        controls = self._checked_controls(X, size)
        self.timeline_.check_controls(X, self.timeline_.ahead(np.arange(1, size + 1)))
        with jax.enable_x64(True):
            rows, targets = self._training("predict", ValueError)
            seen = None if self._seen is None else (jnp.asarray(self._seen[0]), jnp.asarray(self._seen[1]))
            ahead = size if controls is None else jnp.asarray(self._controls(controls, size))
            found = forecast(
                jax.random.key(self._seed + 1),
                self.fit_,
                rows,
                targets,
                ahead,
                seen=seen,
                function="path" if size <= LONGEST_HELD else "independent",
                num_samples=self.num_samples,
            )
        return steps, found

    def _controls(self, controls: np.ndarray | None, steps: int) -> np.ndarray:
        """Standardised controls (K, C), without columns where there are none."""
        if self.x_units_ is None or controls is None:
            return np.zeros((steps, 0))
        return self.x_units_.transform(controls)

    def _checked_controls(self, X: Any, steps: int, exact: bool = False) -> np.ndarray | None:
        """Controls of so many steps, or more if not ``exact``, where there were some in ``fit``."""
        if self.x_units_ is None:
            if X is not None:
                raise ValueError(
                    "X: found controls, expected None as in fit; leave them out, or fit with them"
                )
            return None
        if X is None:
            raise ValueError(
                f"X: found None, expected controls of {steps} steps, {len(self.x_units_.mean)} columns as in fit"
            )
        table = as_table("X", X, columns=len(self.x_units_.mean))
        if len(table) < steps or (exact and len(table) > steps):
            raise ValueError(f"X: found {len(table)} rows, expected {steps}, one for each step; give as many")
        return table[:steps]

    @property
    def _names(self) -> list[Any]:
        """Of the columns of y; of those that came without names their numbers."""
        known = getattr(self, "target_names_", None)
        return list(range(len(self.y_units_.mean))) if known is None else list(known)

    def _dressed(self, values: np.ndarray, steps: np.ndarray) -> Any:
        """Numbers (H, P) in the dress that y came in."""
        return self.timeline_.dressed(values, steps, self._names)
