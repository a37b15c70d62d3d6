"""Checks of an objective: its limit at α = 0, the evidence it may not exceed, minibatches, slopes, precision."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import ELBO

from ppl_dgp.guides import Conditional, DoublyStochastic, Guide
from ppl_dgp.testing import trials
from ppl_dgp.testing.oracles import in_32_bits, mean_and_error, slope_and_difference
from ppl_dgp.testing.report import (
    CheckReport,
    CheckRow,
    at_most_row,
    collected,
    equal_row,
    failed_row,
    finite_row,
    skipped_row,
)

#: estimates of an objective on the toy
ESTIMATES = 4000
_KEY: Any = np.asarray([0, 6], np.uint32)
NO_BOUND = "it does not say that it is a bound; give is_bound=True if it is"
NO_ALPHA = "it has no at_alpha(alpha)"


def check_objective(
    objective: ELBO, is_bound: bool | None = None, only: Collection[str] | None = None
) -> CheckReport:
    """Limit at α = 0, evidence, minibatches and gradients of an objective, a NumPyro ``ELBO`` with a ``loss``.

    It is tried on a conjugate toy without GPs whose evidence is −4.787, on sparse GP regression, and on a deep GP.

    :param objective: with its α and its particles; ``at_alpha(alpha)`` gives another α, where it has that.
    :param is_bound: whether it claims to lie below the evidence; as its ``is_bound`` says, if not given.
    :param only: the names of the checks to make; all if not given.
    :returns: a report; ``print`` it, or call its ``raise_for_failure()``.
    :raises TypeError: if it has no ``loss``.
    """
    if not callable(getattr(objective, "loss", None)):
        raise TypeError(
            f"objective: found {objective!r}, expected an ELBO with loss(key, params, model, guide, …)"
        )
    if is_bound is None:
        is_bound = bool(getattr(objective, "is_bound", False))
    with jax.enable_x64(True):
        trial = _Trial(objective, is_bound)
        return collected(
            f"check_objective({type(objective).__name__})",
            [
                ("α = 0 is the ELBO", trial.elbo),
                ("α → 0 tends to the ELBO", trial.limit),
                ("toy: below the evidence", lambda: trial.below_toy("toy: below the evidence", False)),
                (
                    "toy: below it at the posterior of θ",
                    lambda: trial.below_toy("toy: below it at the posterior of θ", True),
                ),
                ("regression: below the evidence", trial.below_regression),
                ("toy: minibatches at α = 0", trial.toy_minibatches),
                ("regression: minibatches", trial.minibatches),
                ("rows in another order", trial.order),
                ("toy: gradient at a fixed key", trial.toy_gradient),
                ("regression: gradient at a fixed key", trial.gradient),
                ("two layers: finite loss and gradient", trial.deep),
                ("32 bits near 64", trial.single_precision),
            ],
            only,
        )


class _Trial:
    """An objective on the toy and on regression, at parameters that are nowhere special."""

    def __init__(self, objective: Any, is_bound: bool) -> None:
        self.objective, self.is_bound = objective, is_bound
        self.targets = jnp.asarray(trials.TOY_TARGETS)
        self.x, self.y = jnp.asarray(trials.INPUTS), jnp.asarray(trials.TARGETS)
        self.guide = Guide(trials.regression, hidden=DoublyStochastic())

    def _at(self, alpha: float) -> Any | None:
        """The objective at another α, None where it knows of none."""
        return self.objective.at_alpha(alpha) if hasattr(self.objective, "at_alpha") else None

    @property
    def alpha(self) -> float | None:
        alpha = getattr(self.objective, "alpha", None)
        return float(alpha) if isinstance(alpha, int | float) else None

    def _estimates(self, objective: Any, at_posterior: bool = False) -> np.ndarray:
        """Independent values on the toy, (S,)."""
        if objective is self.objective:
            run = self._toy_runs
        else:
            run = _toy_program(objective)
        return np.asarray(run(jax.random.split(_KEY, ESTIMATES), trials.toy_parameters(at_posterior)))

    @cached_property
    def _toy_runs(self) -> Any:
        return _toy_program(self.objective)

    def elbo(self) -> CheckRow:
        check = "α = 0 is the ELBO"
        at_zero = self._at(0.0)
        if at_zero is None:
            return skipped_row(check, NO_ALPHA)
        average, error = mean_and_error(self._estimates(at_zero))
        return equal_row(check, average, trials.toy_elbo(), error, note="5 standard errors")

    def limit(self) -> CheckRow:
        check, alpha = "α → 0 tends to the ELBO", 1e-3
        near = self._at(alpha)
        if near is None:
            return skipped_row(check, NO_ALPHA)
        average, error = mean_and_error(self._estimates(near))
        # ½ α times the variance of the log weights, which is of order 10
        return equal_row(check, average, trials.toy_elbo(), error + 20.0 * alpha, note="5 standard errors")

    def below_toy(self, check: str, at_posterior: bool) -> CheckRow:
        if not self.is_bound:
            return skipped_row(check, NO_BOUND)
        average, error = mean_and_error(self._estimates(self.objective, at_posterior))
        return at_most_row(check, average, trials.toy_evidence(), error, "5 standard errors")

    def below_regression(self) -> CheckRow:
        check = "regression: below the evidence"
        if not self.is_bound:
            return skipped_row(check, NO_BOUND)
        # above α = 0, and where an objective has none, that of FITC
        evidence = trials.regression_evidence(1.0 if self.alpha is None else self.alpha)
        losses, best = self._losses, self._best
        run = jax.jit(jax.vmap(lambda key: -losses(key, best, self.x, self.y)[0]))
        average, error = mean_and_error(run(jax.random.split(_KEY, 2000)))
        return at_most_row(check, average, evidence, error + 1e-6, "at the best q(u), 5 standard errors")

    @cached_property
    def _best(self) -> dict[str, Any]:
        """Parameters of regression with the posterior of the whitened u under noise alone."""
        _, _, weights = trials.dense_matrices()
        precision = np.eye(weights.shape[1]) + weights.T @ weights / trials.NOISE
        mean = np.linalg.solve(precision, weights.T @ (trials.TARGETS - trials.INPUTS)[:, 0]) / trials.NOISE
        return {
            "f/u_loc": jnp.asarray(mean)[None],
            "f/u_scale": jnp.linalg.cholesky(jnp.linalg.inv(jnp.asarray(precision)))[None],
        }

    @cached_property
    def _params(self) -> dict[str, Any]:
        return trials.moved_parameters(self.guide, trials.regression, self.x, self.y)

    @cached_property
    def _losses(self) -> Any:
        """Loss of regression and its gradient, compiled."""
        loss = lambda key, q, x, y, **rows: self.objective.loss(
            key, q, trials.regression, self.guide, x, y, **rows
        )
        return jax.jit(jax.value_and_grad(loss, 1), static_argnames="size")

    def toy_minibatches(self) -> CheckRow:
        check = "toy: minibatches at α = 0"
        at_zero = self._at(0.0)
        if at_zero is None:
            return skipped_row(check, NO_ALPHA)
        run = jax.jit(
            jax.vmap(
                lambda key, params, index: (
                    -at_zero.loss(
                        key,
                        params,
                        trials.toy_model,
                        trials.toy_guide,
                        self.targets[index],
                        index=index,
                    )
                ),
                (0, None, None),
            )
        )
        keys = jax.random.split(_KEY, ESTIMATES)
        values = [np.asarray(run(keys, trials.toy_parameters(), jnp.asarray([n]))) for n in range(3)]
        average, error = mean_and_error(np.mean(values, 0))
        return equal_row(check, average, trials.toy_elbo(), error, note="5 standard errors")

    def minibatches(self) -> CheckRow:
        """There is nothing to draw but u, at a fixed key: all index sets average to the whole."""
        whole = float(self._losses(_KEY, self._params, self.x, self.y)[0])
        parts = []
        for pair in combinations(range(len(self.x)), 2):
            i = jnp.asarray(pair)
            parts.append(
                float(self._losses(_KEY, self._params, self.x[i], self.y[i], index=i, size=len(self.x))[0])
            )
        return self._same("regression: minibatches", float(np.mean(parts)), whole)

    def _same(self, check: str, value: float, expected: float) -> CheckRow:
        """A row for losses that are equal, within the error of one estimate where u is drawn per row."""
        if abs(value - expected) <= 1e-8 * max(1.0, abs(expected)):
            return equal_row(check, value, expected, 1e-8, 1e-8)
        params, losses = self._params, self._losses
        run = jax.jit(jax.vmap(lambda key: losses(key, params, self.x, self.y)[0]))
        spread = float(np.std(np.asarray(run(jax.random.split(_KEY, 64)))))
        # without draws there is no spread, and the row fails
        return equal_row(check, value, expected, 4.0 * spread + 1e-8, note="4 deviations of one estimate")

    def order(self) -> CheckRow:
        order = jnp.asarray([3, 0, 5, 1, 4, 2])
        value = float(self._losses(_KEY, self._params, self.x[order], self.y[order])[0])
        whole = float(self._losses(_KEY, self._params, self.x, self.y)[0])
        return self._same("rows in another order", value, whole)

    def toy_gradient(self) -> CheckRow:
        loss = lambda q: self.objective.loss(
            jnp.asarray(_KEY), q, trials.toy_model, trials.toy_guide, self.targets
        )
        slopes, differences, errors = slope_and_difference(loss, trials.toy_parameters())
        return equal_row("toy: gradient at a fixed key", slopes, differences, 1e-5 + 5.0 * errors, 1e-5)

    def gradient(self) -> CheckRow:
        slopes, differences, errors = slope_and_difference(
            lambda q: self._losses(_KEY, q, self.x, self.y)[0],
            self._params,
            1e-5,
            lambda q: self._losses(_KEY, q, self.x, self.y)[1],
        )
        return equal_row(
            "regression: gradient at a fixed key", slopes, differences, 1e-5 + 5.0 * errors, 1e-5
        )

    def deep(self) -> CheckRow:
        guide = Guide(trials.two_layers, hidden=Conditional())
        params = trials.moved_parameters(guide, trials.two_layers, self.x, self.y)
        loss = jax.value_and_grad(
            lambda q: self.objective.loss(jnp.asarray(_KEY), q, trials.two_layers, guide, self.x, self.y)
        )
        return finite_row(
            "two layers: finite loss and gradient", jax.jit(loss)(params), "entries that are not"
        )

    def single_precision(self) -> CheckRow:
        wide = self._losses(_KEY, self._params, self.x, self.y)[0]
        arguments = in_32_bits((self._params, self.x, self.y))
        with jax.enable_x64(False):
            narrow = self._losses(_KEY, *arguments)[0]
        if narrow.dtype != jnp.float32:
            return failed_row(
                "32 bits near 64", f"found {narrow.dtype} of 32-bit arguments, expected float32"
            )
        if abs(float(narrow) - float(wide)) <= 1e-2:
            return equal_row("32 bits near 64", narrow, wide, 1e-2)
        # keys give other draws in 32 bits
        return self._same("32 bits near 64", float(narrow), float(wide))


def _toy_program(objective: Any) -> Any:
    """Values of an objective on the toy, by key, compiled."""
    loss = lambda key, params: (
        -objective.loss(key, params, trials.toy_model, trials.toy_guide, jnp.asarray(trials.TOY_TARGETS))
    )
    return jax.jit(jax.vmap(loss, (0, None)))
