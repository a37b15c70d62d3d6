"""Checks of a likelihood: its tempered expectations against quadrature of its own density, its draws, its slopes.

The density of y given f itself is what t_1 is where f is known, at variance 0; everything else is held against that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import constraints
from scipy.special import expit, logsumexp

from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.testing.kernels import NOT_A_PYTREE
from ppl_dgp.testing.oracles import (
    in_32_bits,
    in_64_bits,
    integral,
    is_pytree,
    mean_and_error,
    power_mean_over_normal,
    slope_and_difference,
)
from ppl_dgp.testing.report import (
    STANDARD_ERRORS,
    CheckReport,
    CheckRow,
    at_most_row,
    collected,
    equal_row,
    failed_row,
    finite_row,
    skipped_row,
)

#: rows (B, F) that it is tried on, points that a density is asked for at once, draws of y, and of f where a
#: likelihood has several
ROWS, POINTS, _DRAWS, FUNCTION_DRAWS = 4, 768, 100_000, 10_000
ALPHA_CHECKS = {0.0: "t_0 = E log p(y|f)", 0.5: "t_½ by quadrature", 1.0: "t_1 = log E p(y|f)"}


def check_likelihood(
    likelihood: Likelihood,
    accuracy: float = 1e-5,
    num_targets: int | None = None,
    only: Collection[str] | None = None,
) -> CheckReport:
    """Density, tempered expectations, gradients, draws and precision of a likelihood p(y | f).

    :param likelihood: with its values.
    :param accuracy: of the tempered expectations that it promises, relative to max(1, |t|).
    :param num_targets: P, the columns of y; the smallest number that it takes, if not given.
    :param only: the names of the checks to make; all if not given.
    :returns: a report; ``print`` it, or call its ``raise_for_failure()``.
    :raises TypeError: if it is no :class:`ppl_dgp.likelihoods.Likelihood`.
    :raises ValueError: if it takes no number of columns up to 9.
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood: found {likelihood!r}, expected an instance of ppl_dgp.likelihoods.Likelihood; "
            "Scalar(lambda f: dist.…) makes one of a distribution"
        )
    with jax.enable_x64(True):
        trial = _Trial(in_64_bits(likelihood), accuracy, num_targets or _smallest_number(likelihood))
        return collected(
            f"check_likelihood({type(likelihood).__name__})",
            [
                ("density sums to 1", trial.normalised),
                ("log_prob is the density", trial.log_prob),
                *[(name, lambda alpha=alpha: trial.tempered(alpha)) for alpha, name in ALPHA_CHECKS.items()],
                ("t_α → t_0 as α → 0", trial.limit),
                ("t_α does not fall as α rises", trial.monotone),
                ("α as an array", trial.traced_alpha),
                ("variance outside the logarithm", trial.outside),
                ("gradients finite, known f too", trial.finite_gradients),
                ("gradient in mean and variance", trial.gradient_in_moments),
                ("gradient in the parameters", trial.gradient_in_parameters),
                ("draws lie in the support", trial.support),
                ("mean of y, of draws", lambda: trial.moments("mean of y, of draws")),
                ("variance of y, of draws", lambda: trial.moments("variance of y, of draws")),
                ("32 bits near 64", trial.single_precision),
                ("rows alone, and axes in front", trial.broadcast),
            ],
            only,
        )


def _smallest_number(likelihood: Likelihood) -> int:
    for number in range(1, 10):
        try:
            likelihood.num_functions(number)
        except ValueError:
            continue
        return number
    raise ValueError(
        f"likelihood: found {type(likelihood).__name__}, which takes no 1 to 9 columns; give num_targets"
    )


class _Trial:
    """A likelihood beside rows of moments (B, F) and of targets (B, P) that it has drawn itself."""

    def __init__(self, likelihood: Likelihood, accuracy: float, num_targets: int) -> None:
        self.likelihood, self.accuracy, self.num_targets = likelihood, accuracy, num_targets
        self.num_functions = likelihood.num_functions(num_targets)
        rng = np.random.default_rng(0)
        self.mean = jnp.asarray(0.8 * rng.normal(size=(ROWS, self.num_functions)))
        self.variance = jnp.asarray(rng.uniform(0.05, 1.0, (ROWS, self.num_functions)))
        self.y = jnp.asarray(jax.jit(likelihood.sample)(jax.random.PRNGKey(0), self.mean, self.variance))
        # what JAX does not see into is closed over
        seen = is_pytree(likelihood)
        given: Callable[[Any], Any] = lambda part: part if seen else likelihood
        whole = jax.jit(lambda part, y, m, v, alpha: given(part).tempered(y, m, v, alpha))
        summed = lambda moments, part, alpha: given(part).tempered(self.y, *moments, alpha).sum()
        total = jax.jit(summed)
        slopes = jax.jit(jax.grad(summed, (0, 1) if self._learnt else (0,), allow_int=True))
        shown: Callable[[Any], Any] = lambda part: part if seen else None
        # a program each for all that follows: compilation is what a check costs
        self._value = lambda part, *rows: whole(shown(part), *rows)
        self._sum = lambda moments, part, alpha: total(moments, shown(part), alpha)
        self._slopes = lambda moments, part, alpha: slopes(moments, shown(part), alpha)
        self._known = jax.jit(lambda y, f: likelihood.tempered(y, f, jnp.zeros_like(f), 1.0))

    @property
    def _learnt(self) -> bool:
        """Whether JAX sees numbers inside of it."""
        return is_pytree(self.likelihood) and bool(jax.tree.leaves(self.likelihood))

    @property
    def _elementwise(self) -> bool:
        """Whether each target has one function of its own."""
        return self.num_functions == self.num_targets == 1

    def t(self, alpha: float) -> np.ndarray:
        """t_α of all rows, (B, P)."""
        return np.asarray(
            self._value(self.likelihood, self.y, self.mean, self.variance, jnp.asarray(float(alpha)))
        )

    def density(self, y: Any, f: Any) -> np.ndarray:
        """log p(y|f), (K, P), of targets and functions (K, ·), in blocks of one size."""
        y, f = np.asarray(y), np.asarray(f)
        answers = []
        for start in range(0, len(f), POINTS):
            block = slice(start, start + POINTS)
            rest = ((0, POINTS - len(f[block])), (0, 0))
            log_p = self._known(np.pad(y[block], rest, mode="edge"), np.pad(f[block], rest, mode="edge"))
            answers.append(np.asarray(log_p)[: len(f[block])])
        return np.concatenate(answers)

    def normalised(self) -> CheckRow:
        check = "density sums to 1"
        if self.num_targets > 1:
            return skipped_row(check, "y has several columns; check the likelihood of each")
        support = self.likelihood.support
        total = self._total(support, np.asarray(self.mean[0]))
        if total is None:
            return skipped_row(check, f"no sum over the support {support} is known here")
        return equal_row(check, total, 1.0, max(1e-6, self.accuracy))

    def _total(self, support: Any, f: np.ndarray) -> float | None:
        """∫ p(y|f) dy, or the sum over all y; None where the support is none of those known."""

        def log_p(y: np.ndarray) -> np.ndarray:
            return self.density(y[:, None], np.broadcast_to(f, (len(y), len(f))))[:, 0]

        if support == constraints.boolean:
            return float(np.exp(log_p(np.arange(2))).sum())
        if isinstance(support, type(constraints.integer_interval(0, 1))):
            classes = np.arange(int(support.lower_bound), int(support.upper_bound) + 1)
            return float(np.exp(log_p(classes)).sum())
        if support == constraints.nonnegative_integer:
            return float(np.exp(log_p(np.arange(4000.0))).sum())
        if support == constraints.real:
            # y = sinh t reaches where heavy tails end
            return float(np.exp(integral(lambda t: log_p(np.sinh(t)) + np.log(np.cosh(t)), -30.0, 30.0)))
        if support in (constraints.positive, constraints.nonnegative):
            return float(np.exp(integral(lambda t: log_p(np.exp(t)) + t, -40.0, 40.0)))
        if support in (constraints.unit_interval, constraints.open_interval(0.0, 1.0)):
            jacobian = lambda t: -np.logaddexp(0.0, t) - np.logaddexp(0.0, -t)
            return float(np.exp(integral(lambda t: log_p(expit(t)) + jacobian(t), -30.0, 30.0)))
        return None

    def log_prob(self) -> CheckRow:
        check = "log_prob is the density"
        if not hasattr(self.likelihood, "log_prob"):
            return skipped_row(check, "it has no log_prob; its density is t_1 at variance 0")
        value = self.likelihood.log_prob(self.y, self.mean)
        return equal_row(check, value, self.density(self.y, self.mean), 1e-8, 1e-8)

    def tempered(self, alpha: float) -> CheckRow:
        value = self.t(alpha)
        expected, error = self._expected(alpha)
        slack = self.accuracy * np.maximum(1.0, np.abs(expected)) + error
        note = "" if self._elementwise else "against draws of f, 5 standard errors"
        return equal_row(ALPHA_CHECKS[alpha], value, expected, slack, note=note)

    def _expected(self, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        """t_α of each row from the density alone, (B, P), and how far off it may itself be."""
        if self._elementwise:
            moments = zip(np.asarray(self.mean)[:, 0], np.asarray(self.variance)[:, 0], strict=True)
            values = [
                power_mean_over_normal(self._of_row(row), mean, variance, alpha)
                for row, (mean, variance) in enumerate(moments)
            ]
            return np.asarray(values)[:, None], np.zeros((ROWS, 1))
        logs = self._logs_of_draws
        if alpha == 0.0:
            return mean_and_error(logs)
        centre = logsumexp(alpha * logs, axis=0) - np.log(len(logs))
        ratios = np.exp(alpha * logs - centre)
        return centre / alpha, STANDARD_ERRORS * ratios.std(0) / np.sqrt(len(logs)) / alpha

    @cached_property
    def _logs_of_draws(self) -> np.ndarray:
        """log p(y|f) at draws of f, (S, B, P)."""
        noise = np.random.default_rng(1).normal(size=(FUNCTION_DRAWS, *self.mean.shape))
        draws = (self.mean + np.sqrt(self.variance) * noise).reshape(-1, self.num_functions)
        y = np.broadcast_to(self.y, (FUNCTION_DRAWS, *self.y.shape)).reshape(-1, self.num_targets)
        return self.density(y, draws).reshape(FUNCTION_DRAWS, *self.y.shape)

    def _of_row(self, row: int) -> Callable[[np.ndarray], np.ndarray]:
        y = np.asarray(self.y)[row]
        return lambda f: self.density(np.broadcast_to(y, (len(f), 1)), f[:, None])[:, 0]

    def limit(self) -> CheckRow:
        """t_α − t_0 = ½ α Var log p + O(α²): two small α tell what is left at 0."""
        near = 2.0 * self.t(1e-7) - self.t(2e-7)
        at_zero = self.likelihood.tempered(self.y, self.mean, self.variance, 0.0)
        return equal_row("t_α → t_0 as α → 0", near, at_zero, self.accuracy + 1e-5, self.accuracy + 1e-5)

    def monotone(self) -> CheckRow:
        """Jensen: t_α is a power mean of p."""
        falls = -np.diff([self.t(alpha) for alpha in (0.0, 0.25, 0.5, 0.75, 1.0)], axis=0)
        return at_most_row("t_α does not fall as α rises", falls, 0.0, 2.0 * self.accuracy)

    def traced_alpha(self) -> CheckRow:
        """A traced α, as of a schedule, beside a number, which closed forms may answer."""
        exact = [
            jax.jit(lambda y, m, v, a=alpha: self.likelihood.tempered(y, m, v, a))(
                self.y, self.mean, self.variance
            )
            for alpha in (0.0, 1.0)
        ]
        return equal_row("α as an array", [self.t(0.0), self.t(1.0)], exact, self.accuracy, self.accuracy)

    def outside(self) -> CheckRow:
        """E_{m' ~ N(m, outside)} t_α(y; m', inside), over draws of m'."""
        inside, outside, alpha = 0.4 * self.variance, 0.6 * self.variance, 0.5
        value = jax.jit(lambda y, m, i, o: self.likelihood.tempered_outside(y, m, i, o, alpha))(
            self.y, self.mean, inside, outside
        )
        number = 1000
        noise = np.random.default_rng(2).normal(size=(number, *self.mean.shape))
        centres = (self.mean + jnp.sqrt(outside) * noise).reshape(-1, self.num_functions)
        y = jnp.broadcast_to(self.y, (number, *self.y.shape)).reshape(-1, self.num_targets)
        spread = jnp.broadcast_to(inside, noise.shape).reshape(centres.shape)
        values = self._value(self.likelihood, y, centres, spread, jnp.asarray(alpha))
        average, error = mean_and_error(np.asarray(values).reshape(number, *self.y.shape))
        slack = error + self.accuracy * np.maximum(1.0, np.abs(average))
        return equal_row("variance outside the logarithm", value, average, slack, note="5 standard errors")

    def finite_gradients(self) -> CheckRow:
        slopes = [
            self._slopes((self.mean, variance), self.likelihood, jnp.asarray(float(alpha)))
            for variance in (self.variance, jnp.zeros_like(self.variance))
            for alpha in ALPHA_CHECKS
        ]
        floating = [leaf for leaf in jax.tree.leaves(slopes) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return finite_row("gradients finite, known f too", floating, "entries that are not")

    def gradient_in_moments(self) -> CheckRow:
        alpha = jnp.asarray(0.5)
        slopes, differences, errors = slope_and_difference(
            lambda moments: self._sum(moments, self.likelihood, alpha),
            (self.mean, self.variance),
            1e-4,
            lambda moments: self._slopes(moments, self.likelihood, alpha)[0],
        )
        slack = max(1e-5, 10.0 * self.accuracy)
        return equal_row("gradient in mean and variance", slopes, differences, slack + 5.0 * errors, slack)

    def gradient_in_parameters(self) -> CheckRow:
        check = "gradient in the parameters"
        if not is_pytree(self.likelihood):
            return skipped_row(check, NOT_A_PYTREE)
        if not self._learnt:
            return skipped_row(check, "it has no parameters")
        moments, alpha = (self.mean, self.variance), jnp.asarray(0.5)
        slopes, differences, errors = slope_and_difference(
            lambda part: self._sum(moments, part, alpha),
            self.likelihood,
            1e-4,
            lambda part: self._slopes(moments, part, alpha)[1],
        )
        slack = max(1e-5, 10.0 * self.accuracy)
        return equal_row(check, slopes, differences, slack + 5.0 * errors, slack)

    def support(self) -> CheckRow:
        check = "draws lie in the support"
        try:
            self.likelihood.check(self._draws[:100])
        except ValueError as error:
            return failed_row(check, str(error))
        return CheckRow(check, 0.0, 0.0, 0.0, True, note="draws outside")

    @cached_property
    def _draws(self) -> Array:
        """Draws of y at the first row's moments, (S, P)."""
        rows = jnp.broadcast_to(self.mean[:1], (_DRAWS, self.num_functions))
        spread = jnp.broadcast_to(self.variance[:1], rows.shape)
        draws: Array = jax.jit(self.likelihood.sample)(jax.random.PRNGKey(4), rows, spread)
        return draws

    def moments(self, check: str) -> CheckRow:
        """Mean and variance of y, or of the indicators of its classes, against draws of it."""
        centre, spread = self.likelihood.moments(self.mean[:1], self.variance[:1])
        y = self._draws
        if centre.shape[-1] != y.shape[-1]:
            y = y == jnp.arange(centre.shape[-1])
        draws = np.asarray(y, float)
        if check.startswith("mean"):
            average, error = mean_and_error(draws)
            return equal_row(check, centre[0], average, error, note="5 standard errors")
        if not np.isfinite(np.asarray(spread)).all():
            return skipped_row(check, "y has no variance")
        average, error = mean_and_error(np.square(draws - np.asarray(centre[0])))
        return equal_row(check, spread[0], average, error, note="5 standard errors")

    def single_precision(self) -> CheckRow:
        check, floating = "32 bits near 64", jnp.issubdtype(self.y.dtype, jnp.floating)
        y = self.y.astype(jnp.float32) if floating else self.y
        single, values, expected = in_32_bits(self.likelihood), [], []
        for alpha in (0.0, 1e-3, 0.5, 1.0):
            moments = self.mean.astype(jnp.float32), self.variance.astype(jnp.float32)
            with jax.enable_x64(False):
                value = self._value(single, y, *moments, jnp.asarray(alpha, jnp.float32))
            if value.dtype != jnp.float32:
                return failed_row(check, f"found {value.dtype} of 32-bit arguments, expected float32")
            values.append(value)
            expected.append(self.t(alpha))
        return equal_row(check, values, expected, 1e-3, 1e-3)

    def broadcast(self) -> CheckRow:
        check, together, alpha = "rows alone, and axes in front", self.t(0.5), jnp.asarray(0.5)
        rows = self.y, self.mean, self.variance
        alone = [self._value(self.likelihood, *(row[n : n + 1] for row in rows), alpha) for n in range(2)]
        front = self._value(self.likelihood, *(jnp.stack([row, row]) for row in rows), alpha)
        expected = (1, self.num_targets), (2, *self.y.shape)
        if (alone[0].shape, front.shape) != expected:
            return failed_row(check, f"found shapes {alone[0].shape, front.shape}, expected {expected}")
        values = np.concatenate([*alone, *front])
        return equal_row(check, values, np.concatenate([together[:2], together, together]), 1e-9, 1e-9)
