"""The Bayesian GPLVM as a scikit-learn transformer: tables with holes to latents, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import ELBO
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ppl_dgp.data.table import standardise
from ppl_dgp.estimators.estimator import warn_of_convergence
from ppl_dgp.estimators.trained import Trained
from ppl_dgp.fit import Fit, energy, fit_lbfgs, fit_svi
from ppl_dgp.guides import Amortised, Guide, HiddenRule, MeanField, PointEstimate
from ppl_dgp.messages import unknown_name
from ppl_dgp.models import gplvm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.prediction.latents import Latents, infer_latents, relevance, row_log_density
from ppl_dgp.prediction.predict import Prediction, predict

_Latent = TypeVar("_Latent", bound="GPLVM")
#: rules of the latents by name; the encoder sees which entries are there
LATENT_RULES: dict[str, HiddenRule] = {
    "mean-field": MeanField(),
    "mean-field-full": MeanField(full=True),
    "amortised": Amortised((64, 64), MeanField(), missing="mask"),
    "point-estimate": PointEstimate(),
}


@dataclass(kw_only=True, eq=False, repr=False)
class GPLVM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Trained):
    """Bayesian Gaussian process latent variable model (Titsias and Lawrence 2010); NaN is a missing entry.

    Columns are standardised inside, all else is in the units that went in. It works in 64 bits.

    :param latent: dimensions Q of the latent space; those that are not needed are switched off (``relevance_``).
    :param num_inducing: inducing points M; fewer where there are fewer rows.
    :param kernel: as in ``SparseGPRegressor``; other than rbf, linear, constant and their sums only for two latents.
    :param hidden: mean-field; mean-field-full, whose dimensions may be correlated, best where many entries are missing;
        amortised, an encoder, so that new rows cost nothing; or point-estimate, the GPLVM of 2005.
    :param noise: shared or per-column.
    :param start: pca or random.
    :param batch_size: rows per step of Adam; None trains on all rows by L-BFGS, with q(u) in closed form.
    :param steps, tolerance, learning_rate: of either, as in ``SparseGPRegressor``; the learning rate of Adam alone.
    :param budget: the most steps of "auto"; if None 3 000 of L-BFGS and 14 400 of Adam.
    :param num_samples: draws that an imputation averages over.
    :param random_state: seed.
    :ivar embedding_, embedding_std_: latents of the training rows, mean and standard deviation, (N, Q).
    :ivar relevance_: (Q,), the spread of each dimension in its lengthscales.
    :param progress: show a bar on standard error; where that is a terminal if None.
    :ivar fit_, elbo_, losses_, params_, n_iter_, converged_, gap_: as in ``SparseGPRegressor``; point estimates have no
        bound.

    >>> from sklearn.datasets import load_iris
    >>> X, _ = load_iris(return_X_y=True)
    >>> GPLVM(num_inducing=5, steps=2).fit(X[:20]).embedding_.shape
    (20, 2)
    """

    latent: int = 2
    num_inducing: int = 50
    kernel: Any = "rbf"
    hidden: str = "mean-field"
    noise: str = "shared"
    start: str = "pca"
    batch_size: int | None = None
    steps: int | str = "auto"
    tolerance: float | None = None
    budget: int | None = None
    learning_rate: float | None = None
    num_samples: int = 100
    random_state: Any = None
    progress: bool | None = None

    _double = True

    def fit(self: _Latent, X: Any, y: Any = None) -> _Latent:
        """Train on N rows.

        :param X: the table (N, P), NaN where an entry is missing; not all of a column.
        :param y: not used.
        :returns: the estimator.
        :raises ValueError: for data or settings that cannot be used, naming them.
        :raises FitError: if training fails.
        """
        rows = self._rows(X, reset=True)
        self.units_ = standardise(rows)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        # at most one inducing point per row: small tables are no error here
        self.num_inducing_ = min(self.num_inducing, len(rows))
        with jax.enable_x64(True):
            fitted = fit_latent(
                jax.random.key(self._seed),
                *self._program(),
                self.units_.transform(rows),
                steps=self.steps,
                tolerance=self.tolerance,
                budget=self.budget,
                batch_size=None if self.batch_size is None else min(self.batch_size, len(rows)),
                learning_rate=self.learning_rate,
                progress=self.progress,
            )
            self._keep(fitted, np.zeros((len(rows), 0)), self.units_.transform(rows))
            latents = embedding(fitted, self.units_.transform(rows))
        self.embedding_, self.embedding_std_ = latents.mean, np.sqrt(latents.variance)
        warn_of_convergence(self.steps, fitted)
        self.relevance_ = relevance(fitted, means=self.embedding_)
        self._n_features_out = self.latent
        return self

    def transform(self, X: Any, return_std: bool = False) -> Any:
        """Latents of K rows, (K, Q), each found by itself: by the encoder, or by optimisation under the fitted map.

        :param X: the table (K, P), NaN where an entry is missing.
        :param return_std: also give standard deviations (K, Q).
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for rows that cannot be used.
        """
        found = self._latents(X)
        return (found.mean, np.sqrt(found.variance)) if return_std else found.mean

    def impute(self, X: Any, return_std: bool = False) -> Any:
        """The table with its missing entries filled in by their predictive means, (K, P).

        :param X: as in ``transform``.
        :param return_std: also give the predictive standard deviations of the entries that were missing, 0 for those
            that were not.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: as ``transform`` does.
        """
        rows = self._rows(X)
        gaps = np.isnan(rows)
        found = self._decoded(dict(self._latents(rows).sites))
        filled = np.where(gaps, self.units_.inverse(found.mean), rows)
        deviation = np.where(gaps, np.sqrt(found.variance) * self.units_.scale, 0.0)
        return (filled, deviation) if return_std else filled

    def inverse_transform(self, Z: Any, return_std: bool = False) -> Any:
        """What latents (K, Q) decode to: predictive means (K, P), and with ``return_std`` standard deviations.

        :raises NotFittedError: before ``fit``.
        :raises ValueError: for latents of another number of dimensions.
        """
        check_is_fitted(self, "params_")
        at = np.asarray(Z, np.float64)
        if at.ndim != 2 or at.shape[1] != self.latent:
            raise ValueError(
                f"Z: found shape {at.shape}, expected (K, {self.latent}), points of the latent space"
            )
        with jax.enable_x64(True):
            points = Gaussian(jnp.asarray(at), jnp.zeros(at.shape))
        found = self._decoded({"x": points})
        mean = self.units_.inverse(found.mean)
        return (mean, np.sqrt(found.variance) * self.units_.scale) if return_std else mean

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """New rows, (n_samples, P): a latent from its prior, then what it decodes to, noise included."""
        check_is_fitted(self, "params_")
        with jax.enable_x64(True):
            key = jax.random.key(self._seed + 2)
            x = jnp.zeros((n_samples, 0))
            found = predict(key, self.fit_, x, num_samples=1, samples=True)
        assert found.samples is not None
        return self.units_.inverse(found.samples[0])

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of each of K rows in nats, (K,), of the entries that are there, in the table's units.

        :raises NotFittedError: before ``fit``.
        :raises ValueError: as ``transform`` does, and for point estimates, which have none.
        """
        rows = self._rows(X)
        found = self._latents(rows)
        with jax.enable_x64(True):
            targets = self.units_.transform(rows)
            density = row_log_density(jax.random.key(self._seed + 3), self.fit_, None, targets, latents=found)
        result: np.ndarray = density - np.where(np.isnan(rows), 0.0, np.log(self.units_.scale)).sum(1)
        return result

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of ``score_samples``."""
        return float(self.score_samples(X).mean())

    def _rows(self, X: Any, reset: bool = False) -> np.ndarray:
        if not reset:
            check_is_fitted(self, "params_")
        return np.asarray(
            validate_data(
                self,
                X,
                reset=reset,
                dtype=np.float64,
                ensure_all_finite="allow-nan",
                ensure_min_samples=2 if reset else 1,
            )
        )

    def _latents(self, X: Any) -> Latents:
        rows = self._rows(X)
        with jax.enable_x64(True):
            return infer_latents(jax.random.key(self._seed + 1), self.fit_, None, self.units_.transform(rows))

    def _decoded(self, latents: dict[str, Gaussian]) -> Prediction:
        with jax.enable_x64(True):
            settings: dict[str, Any] = dict(num_samples=self.num_samples, latents=latents, row_by_row=True)
            key = jax.random.key(self._seed + 1)
            return predict(key, self.fit_, None, **settings)

    def _program(self) -> tuple[Callable[..., Any], Guide]:
        names = self.kernel, self.hidden, self.noise, self.start
        return latent_program(self.n_features_in_, self.latent, self.num_inducing_, *names)

    def _objective_of_bound(self) -> ELBO:
        if isinstance(LATENT_RULES[self.hidden], PointEstimate):
            raise AttributeError(
                "elbo_: found point estimates of the latents, expected a q of them; take losses_"
            )
        return _BOUND

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def latent_program(
    num_outputs: int, latent: int, num_inducing: int, kernel: Any, hidden: str, noise: str, start: str
) -> tuple[Callable[..., Any], Guide]:
    """Model and guide: equal for equal settings, so that a second fit compiles nothing.

    :raises ValueError: for a name that is unknown.
    """
    if hidden not in LATENT_RULES:
        raise unknown_name(f"hidden: found {hidden!r}", str(hidden), LATENT_RULES)
    if noise not in ("shared", "per-column"):
        raise ValueError(f"noise: found {noise!r}, expected shared or per-column; change it")
    model = gplvm(
        num_outputs,
        latent,
        num_inducing,
        kernel=kernel,
        noise=None if noise == "shared" else noise,
        start=start,
        missing=True,
    )
    return model, Guide(model, hidden=LATENT_RULES[hidden])


_COLLAPSED, _BOUND = Collapsed(), PowerEP(0.0, propagation="moments")


def fit_latent(
    key: jax.Array,
    model: Callable[..., Any],
    guide: Guide,
    y: np.ndarray,
    *,
    steps: int | str = "auto",
    batch_size: int | None = None,
    learning_rate: float | None = None,
    budget: int | None = None,
    **settings: Any,
) -> Fit:
    """Train on a standardised table: q(u) in closed form by L-BFGS, or by Adam on minibatches.

    ``settings`` are those that both fits have: ``tolerance``, ``progress``, ``checkpoint``, ``resume``.
    """
    settings |= {"steps": steps} | ({} if budget is None else {"budget": budget})
    if batch_size is None:
        return fit_lbfgs(key, model, None, y, guide=guide, objective=_COLLAPSED, **settings)
    settings |= {"batch_size": batch_size, "learning_rate": learning_rate}
    return fit_svi(key, model, guide, _BOUND, None, y, **settings)


def as_fit(model: Callable[..., Any], guide: Guide, params: Mapping[str, Any]) -> Fit:
    """Parameters that were kept, as those of a fit by the closed-form bound."""
    values = {name: jnp.asarray(value) for name, value in params.items()}
    about: dict[str, Any] = dict(seconds=0.0, steps=0, rejected_steps=0, best=0, fingerprint="")
    stacked = {name: value[None] for name, value in values.items()}
    return Fit(model, guide, values, _COLLAPSED, np.zeros((1, 0)), restart_params=stacked, **about)


def bound(fitted: Fit, y: np.ndarray) -> float | None:
    """The bound of all rows in nats; None for points, whose objective is none."""
    if isinstance(fitted.guide.hidden, PointEstimate):  # type: ignore[attr-defined]
        return None
    return energy(jax.random.key(0), fitted, None, y, objective=_BOUND)


def embedding(fitted: Fit, y: np.ndarray) -> Latents:
    """The latents of the rows that it was trained on, as trained."""
    params = fitted.params
    if "x_loc" not in params:  # an encoder
        return infer_latents(jax.random.key(0), fitted, None, y)
    loc = params["x_loc"]
    scale = params.get("x_scale", jnp.zeros_like(loc))
    return Latents(
        {"x": Gaussian(loc, scale)}, {name: params[name] for name in params if name.startswith("x_")}
    )
