"""What is left of a training: the fit, its bound, and the road to ArviZ. Training rows are kept, but not pickled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.infer import ELBO
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ppl_dgp.fit import Fit
from ppl_dgp.fit.energy import energy_in_blocks
from ppl_dgp.objectives import PowerEP, capabilities_of

#: rows that the bound is taken of at a time, and draws that it is averaged over where hidden layers are drawn
BOUND_ROWS, BOUND_DRAWS = 10_000, 20
#: the fields of a fit that are parameters
_PARAMS = "params", "restart_params"


class Trained(BaseEstimator):
    """An estimator that keeps its fit, and until it is pickled the rows that it was trained on."""

    fit_: Fit
    _seed: int
    #: standardised inputs and targets, as the model takes them
    _trained_on: tuple[np.ndarray, np.ndarray] | None = None
    _bound: float | None = None
    #: the state of the stream of one that learns from batches
    _stream: Any = None
    #: whether a pickle has the rows
    _pickles_rows = False
    #: whether it works in 64 bits whatever the process does
    _double = False

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if not self._pickles_rows and "_trained_on" in state:
            state["_trained_on"] = None
        if isinstance(fitted := state.get("fit_"), Fit):
            # JAX's arrays would come back in the precision of the process that reads them
            about = {field.name: getattr(fitted, field.name) for field in dataclasses.fields(fitted)}
            state["fit_"] = {**about, **{name: _on_host(about[name]) for name in _PARAMS}}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if isinstance(about := self.__dict__.get("fit_"), dict):
            with self._precision():
                self.fit_ = Fit(**{**about, **{name: _on_device(about[name]) for name in _PARAMS}})

    def _precision(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(True) if self._double else nullcontext()

    def _objective_of_bound(self) -> ELBO:
        """The bound that ``elbo_`` is, of the rows as they were weighted."""
        objective: Any = self.fit_.objective
        bound: ELBO = objective.at_alpha(0.0) if capabilities_of(objective).takes_alpha else PowerEP(0.0)
        return bound

    def _keep(self, fitted: Fit, rows: np.ndarray, targets: np.ndarray) -> None:
        self.fit_, self._trained_on, self._bound = fitted, (rows, targets), None
        self.params_ = _on_host(fitted.params)
        self.losses_ = fitted.losses[fitted.best]
        self.n_iter_, self.gap_, self.converged_ = fitted.steps, fitted.gap, fitted.converged

    @property
    def elbo_(self) -> float:
        """The evidence lower bound of the training rows, α = 0, in total nats on standardised targets.

        Where hidden layers are drawn it is the mean of twenty draws, computed when it is asked for first; rows count as
        often as ``sample_weight`` has it.

        :raises AttributeError: before ``fit``, and of an estimator that was pickled before it was asked for.
        """
        if not hasattr(self, "fit_"):
            raise AttributeError("elbo_: found no fit, expected one; call fit(X, y) first")
        if self._bound is None:
            about: dict[str, Any] = {"block": BOUND_ROWS, "num_draws": BOUND_DRAWS}
            key, objective = jax.random.key(self._seed + 5), self._objective_of_bound()
            with self._precision():
                rows, targets = self._training("elbo_", AttributeError)
                self._bound = energy_in_blocks(key, self.fit_, rows, targets, objective, **about)
        return self._bound

    def to_arviz(self, **settings: Any) -> Any:
        """The fit as ArviZ's container, of the training rows, in standardised units.

        The columns of X and y have the names that they came with, if they came in a DataFrame.

        :param settings: of :func:`ppl_dgp.to_arviz`, such as ``num_draws``.
        :raises NotFittedError: before ``fit``.
        :raises ValueError: for an estimator that was pickled, which lacks the rows.
        """
        from ppl_dgp.diagnostics.arviz_export import to_arviz  # which brings ArviZ

        check_is_fitted(self, "fit_")
        names = {
            "input": getattr(self, "feature_names_in_", None),
            "target": getattr(self, "target_names_", None),
        }
        coords = {axis: list(known) for axis, known in names.items() if known is not None}
        coords |= settings.pop("coords", None) or {}
        key = jax.random.key(self._seed + 6)
        with self._precision():
            rows, targets = self._training("to_arviz", ValueError)
            return to_arviz(key, self.fit_, rows, targets, coords=coords, **settings)

    def _training(self, name: str, error: type[Exception]) -> tuple[Array, Array]:
        if self._trained_on is None:
            raise error(
                f"{name}: found no training rows, which an estimator that was pickled or learnt from batches does not "
                "keep, expected some; take fit_ and its verbs, with rows in standardised units"
            )
        rows, targets = self._trained_on
        return jnp.asarray(rows), jnp.asarray(targets)

    def _name_targets(self, y: Any) -> None:
        """Keep the names of the columns of y, where it has any."""
        named: Sequence[Any] | None = getattr(y, "columns", None)
        if named is None and getattr(y, "name", None) is not None:
            named = [y.name]
        self.__dict__.pop("target_names_", None)
        if named is not None and all(isinstance(name, str) for name in named):
            self.target_names_ = np.asarray(named, dtype=object)


def _on_host(values: Mapping[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in values.items()}


def _on_device(values: Mapping[str, np.ndarray]) -> dict[str, Array]:
    return {name: jnp.asarray(value) for name, value in values.items()}
