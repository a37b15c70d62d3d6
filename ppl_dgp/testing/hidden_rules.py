"""Checks of a rule for hidden variables: its density, its weight, and that what it gives is a bound.

Whatever q of a step depends on, its log weight log w_α obeys three limits over draws of h: E exp log w_1 = 1, for the
weight at α = 1 is p(h)/q(h) with f integrated out of both; E log w_0 ≤ 0, for it is minus a divergence; and w_α does
not fall as α rises, for it is a power mean over f.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI
from numpyro.optim import Adam

from ppl_dgp.guides import (
    Conditional,
    DependsOn,
    DoublyStochastic,
    Guide,
    HiddenRule,
    LinearConditional,
    Markov,
    MeanField,
)
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.guides.rule import is_linear, moments
from ppl_dgp.objectives import PowerEP
from ppl_dgp.testing import trials
from ppl_dgp.testing.oracles import (
    in_32_bits,
    integral,
    mean_and_error,
    power_mean_over_normal,
    slope_and_difference,
)
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

_DRAWS, ESTIMATES, STEPS, SITE = 40_000, 20_000, 400, "layer1/h"
_KEY: Any = np.asarray([0, 8], np.uint32)
#: what a rule may contain
POORER = {
    "MeanField": MeanField(),
    "Markov": Markov(),
    "Conditional": Conditional(),
    "DoublyStochastic": DoublyStochastic(),
}


def check_rule(rule: HiddenRule, only: Collection[str] | None = None) -> CheckReport:
    """Density, log weight, bound, gradients and containment of a rule for hidden variables.

    It is tried on a deep GP of two rows and two layers, whose evidence is known by quadrature.

    :param rule: as a guide's ``hidden`` takes it.
    :param only: the names of the checks to make; all if not given.
    :returns: a report; ``print`` it, or call its ``raise_for_failure()``.
    :raises TypeError: if it is no :class:`ppl_dgp.guides.HiddenRule`.
    """
    if not isinstance(rule, HiddenRule):
        raise TypeError(f"rule: found {rule!r}, expected an instance of ppl_dgp.guides.HiddenRule")
    with jax.enable_x64(True):
        trial = _Trial(rule)
        return collected(
            f"check_rule({type(rule).__name__})",
            [
                ("parameters bear the site's name", trial.names),
                ("q of a step is a density", trial.normalised),
                ("mean of h, of draws", lambda: trial.moment("mean of h, of draws")),
                ("variance of h, of draws", lambda: trial.moment("variance of h, of draws")),
                ("closed-form moments, of draws", trial.closed_moments),
                ("log weight by quadrature", trial.weight),
                ("E w = 1 at α = 1", trial.weight_at_one),
                ("E log w ≤ 0 at α = 0", trial.weight_at_zero),
                ("log w → its value at 0 as α → 0", trial.limit),
                ("log w does not fall as α rises", trial.monotone),
                ("trained: below the evidence", lambda: trial.below("trained: below the evidence")),
                ("elsewhere: below the evidence", lambda: trial.below("elsewhere: below the evidence")),
                ("α = ½: below FITC's evidence", lambda: trial.below("α = ½: below FITC's evidence")),
                ("minibatches average to the whole", trial.minibatches),
                ("gradients finite", trial.finite_gradients),
                ("gradient in the parameters", trial.gradient),
                ("32 bits near 64", trial.single_precision),
                *[(f"contains {name}", lambda name=name: trial.contained(name)) for name in POORER],
            ],
            only,
        )


class _Trial:
    """A rule in a guide of the two-row deep GP, trained and at parameters that are nowhere special."""

    def __init__(self, rule: HiddenRule) -> None:
        self.rule = rule
        self.x, self.y = jnp.asarray(trials.CHAIN_INPUTS), jnp.asarray(trials.CHAIN_TARGETS)
        self.guide = Guide(trials.chain, hidden=rule)
        self._weighers: dict[float, Any] = {}

    @cached_property
    def start(self) -> dict[str, Any]:
        return trials.moved_parameters(self.guide, trials.chain, self.x, self.y, step=0.0)

    @cached_property
    def params(self) -> dict[str, Any]:
        return trials.moved_parameters(self.guide, trials.chain, self.x, self.y)

    @cached_property
    def trained(self) -> dict[str, Any]:
        """After some steps, where a bound is near the evidence."""
        svi = SVI(trials.chain, self.guide, Adam(0.05), PowerEP(0.0, 4))
        return dict(svi.run(_KEY, STEPS, self.x, self.y, progress_bar=False).params)

    @cached_property
    def q(self) -> Any:
        """q of the hidden site given one draw of u, with the rule's parameters and the model's step."""
        sites = trace(substitute(seed(self.guide, _KEY), data=self.params)).get_trace(self.x, self.y)
        return sites[SITE]["fn"]

    def names(self) -> CheckRow:
        check = "parameters bear the site's name"
        sites = ("layer1/u_", "layer2/u_", f"{SITE}_")
        strangers = [name for name in self.start if not name.startswith(sites)]
        if strangers:
            return failed_row(check, f"found {strangers}, expected f'{{name}}_…': layers would share them")
        return CheckRow(check, 0.0, 0.0, 0.0, True, note="parameters that do not")

    @cached_property
    def _log_q(self) -> Callable[[np.ndarray], np.ndarray]:
        """log q of both rows at values (K,), (K, 2)."""
        conditional = self.q.conditional
        density = jax.jit(jax.vmap(lambda h: conditional.log_prob(jnp.broadcast_to(h, self.x.shape))))
        return lambda h: np.asarray(density(jnp.asarray(h)))

    def normalised(self) -> CheckRow:
        totals = [np.exp(integral(self._log_q_of(n), -30.0, 30.0)) for n in range(2)]
        return equal_row("q of a step is a density", totals, 1.0, 1e-6)

    def _log_q_of(self, n: int) -> Callable[[np.ndarray], np.ndarray]:
        """log q of one row."""
        density = self._log_q
        return lambda h: density(h)[:, n]

    @cached_property
    def draws(self) -> np.ndarray:
        """Of h given u, (S, 2)."""
        return np.asarray(self.q.conditional.sample(jnp.asarray(_KEY), (_DRAWS,)))[..., 0]

    def moment(self, check: str) -> CheckRow:
        """A moment of the density by quadrature, beside that of draws."""
        values, averages = [], []
        for n in range(2):
            mean = self._average(n, lambda h: h + 31.0) - 31.0
            if check.startswith("mean"):
                values.append(mean)
                averages.append(mean_and_error(self.draws[:, n]))
                continue
            around = mean
            values.append(self._average(n, lambda h, around=around: np.square(h - around) + 1e-300))
            averages.append(mean_and_error(np.square(self.draws[:, n] - mean)))
        average, error = (np.asarray(column) for column in zip(*averages, strict=True))
        return equal_row(check, values, average, error, note="5 standard errors")

    def _average(self, n: int, positive: Any) -> float:
        """E_q of a positive function of h, by quadrature."""
        density = self._log_q_of(n)
        return float(np.exp(integral(lambda h: density(h) + np.log(positive(h)), -30.0, 30.0)))

    def closed_moments(self) -> CheckRow:
        check = "closed-form moments, of draws"
        try:
            known = moments(self.rule, self.q.params, self.q.step, "moments")
        except TypeError as error:
            return skipped_row(check, str(error)[:120])
        averages = mean_and_error(self.draws)
        spreads = mean_and_error(np.square(self.draws - np.asarray(known.mean)[:, 0]))
        value = np.concatenate([np.asarray(known.mean)[:, 0], np.asarray(known.variance)[:, 0]])
        average, slack = (np.concatenate(pair) for pair in zip(averages, spreads, strict=True))
        return equal_row(check, value, average, slack, note="mean and variance, 5 standard errors")

    def _weights(self, alpha: float, h: Any) -> np.ndarray:
        """log w_α at values (K, 2)."""
        if alpha not in self._weighers:
            q = self.q
            self._weighers[alpha] = jax.jit(jax.vmap(lambda value: q.log_weight(value[:, None], alpha)))
        return np.asarray(self._weighers[alpha](jnp.asarray(h)))

    def weight(self) -> CheckRow:
        """(1/α) log ∫ q(f|h) (p(h|f)/q(h|f))^α df, or t_α(h) − log q(h) where f is not in q."""
        check, h, depends_on = "log weight by quadrature", self.draws[:3], self.rule.depends_on
        if depends_on.on_model:
            values = [self._weights(alpha, h) for alpha in (0.0, 0.5, 1.0)]
            return equal_row(check, values, 0.0, 1e-12, note="p and q are the same")
        if depends_on is DependsOn.F and not is_linear(self.rule):
            return skipped_row(check, "q(h | f) is known to its own log_weight alone")
        values, expected = [], []
        for alpha in (0.0, 0.5, 1.0):
            values.append(self._weights(alpha, h))
            expected.append([[self._integral(n, float(row[n]), alpha) for n in range(2)] for row in h])
        return equal_row(check, values, expected, 1e-6, 1e-6)

    def _integral(self, n: int, h: float, alpha: float) -> float:
        marginal, noise = self.q.step.marginal, trials.HIDDEN_NOISE
        mean, variance = float(marginal.mean[n, 0]), float(marginal.variance[n, 0])
        log_p = lambda f: _log_normal(h, f, noise)
        if self.rule.depends_on is not DependsOn.F:
            q = float(self._log_q(np.full(64, h))[0, n])
            return power_mean_over_normal(log_p, mean, variance, alpha) - q
        form: LinearConditional = self.rule.linear(self.q.params, self.q.step)
        assert form.function is not None
        c, offset = float(form.function[n, 0]), float(form.offset(self.q.step)[n, 0])
        s = float(form.noise.variance[n, 0])
        # q(f | h): of a product of Gaussians
        precision = 1.0 / variance + c**2 / s
        centre = (mean / variance + c * (h - offset) / s) / precision
        ratio = lambda f: log_p(f) - _log_normal(h, c * f + offset, s)
        return power_mean_over_normal(ratio, centre, 1.0 / precision, alpha)

    def weight_at_one(self) -> CheckRow:
        """E_q p/q = 1; from a wider Gaussian, where the weights of q's own draws have no variance."""
        centre, spread = self.draws.mean(0), 2.0 * self.draws.std(0)
        totals = []
        for n in range(2):

            def log_integrand(h: np.ndarray, n: int = n) -> np.ndarray:
                pairs = np.stack([h if k == n else np.full_like(h, centre[k]) for k in range(2)], 1)
                integrand: np.ndarray = self._log_q(h)[:, n] + self._weights(1.0, pairs)[:, n]
                return integrand

            low, high = centre[n] - 12.0 * spread[n] - 3.0, centre[n] + 12.0 * spread[n] + 3.0
            totals.append(np.exp(integral(log_integrand, low, high, 1e-8)))
        return equal_row("E w = 1 at α = 1", totals, 1.0, 1e-5, note="by quadrature over h")

    def weight_at_zero(self) -> CheckRow:
        average, error = mean_and_error(self._weights(0.0, self.draws))
        return at_most_row("E log w ≤ 0 at α = 0", average, 0.0, error + 1e-12, "5 standard errors")

    def limit(self) -> CheckRow:
        h = self.draws[:20]
        near = 2.0 * self._weights(1e-6, h) - self._weights(2e-6, h)
        return equal_row("log w → its value at 0 as α → 0", near, self._weights(0.0, h), 1e-6, 1e-6)

    def monotone(self) -> CheckRow:
        steps = [self._weights(alpha, self.draws[:200]) for alpha in (0.0, 0.25, 0.5, 1.0)]
        return at_most_row("log w does not fall as α rises", -np.diff(steps, axis=0), 0.0, 1e-9)

    @cached_property
    def loss(self) -> Any:
        """The loss at α = 0, and its gradient, compiled."""
        return jax.jit(jax.value_and_grad(self._loss(0.0, 1, self.guide), 1), static_argnames="size")

    def _loss(self, alpha: float, particles: int, guide: Guide) -> Any:
        objective = PowerEP(alpha, particles)
        return lambda key, q, x, y, **rows: objective.loss(key, q, trials.chain, guide, x, y, **rows)

    def _estimates(self, guide: Guide, params: Any, alpha: float = 0.0, particles: int = 1) -> np.ndarray:
        """Independent values of the objective, (S,)."""
        number = ESTIMATES // particles
        loss = self._loss(alpha, particles, guide)
        run = jax.jit(jax.vmap(lambda key, q: -loss(key, q, self.x, self.y), (0, None)))
        return np.asarray(run(jax.random.split(_KEY, number), params))

    def below(self, check: str) -> CheckRow:
        alpha, particles = (0.5, 20) if check.startswith("α") else (0.0, 1)
        params = self.params if check.startswith("elsewhere") else self.trained
        average, error = mean_and_error(self._estimates(self.guide, params, alpha, particles))
        return at_most_row(check, average, trials.chain_evidence(alpha), error, "5 standard errors")

    def minibatches(self) -> CheckRow:
        loss = self._loss(0.0, 1, self.guide)

        def one(key: Any, q: Any, i: Any) -> Any:
            return -loss(key, q, self.x[i], self.y[i], index=i, size=2)

        run, params = jax.jit(jax.vmap(one, (0, None, None))), self.params
        keys = jax.random.split(_KEY, ESTIMATES)
        parts = [np.asarray(run(keys, params, jnp.asarray([n]))) for n in range(2)]
        average, error = mean_and_error(np.mean(parts, 0))
        whole, slack = mean_and_error(self._estimates(self.guide, self.params))
        return equal_row(
            "minibatches average to the whole",
            average,
            whole,
            np.hypot(error, slack) + 1e-9,
            note="5 standard errors",
        )

    def finite_gradients(self) -> CheckRow:
        slopes = [self.loss(_KEY, q, self.x, self.y)[1] for q in (self.start, self.params)]
        return finite_row("gradients finite", slopes, "entries that are not")

    def gradient(self) -> CheckRow:
        slopes, differences, errors = slope_and_difference(
            lambda q: self.loss(_KEY, q, self.x, self.y)[0],
            self.params,
            1e-5,
            lambda q: self.loss(_KEY, q, self.x, self.y)[1],
        )
        return equal_row("gradient in the parameters", slopes, differences, 1e-5 + 5.0 * errors, 1e-5)

    def single_precision(self) -> CheckRow:
        """The log weight, for draws of 32 bits are others."""
        check, (params, step) = "32 bits near 64", (self.q.params, self.q.step)
        h = jnp.asarray(self.draws[:1].T)
        wide = [self.rule.log_weight(params, step, h, alpha) for alpha in (0.0, 1e-3, 0.5)]
        arguments, u = in_32_bits((self.params, self.x, self.y, h)), in_32_bits(self._u)
        with jax.enable_x64(False):
            guide = substitute(substitute(seed(self.guide, np.asarray(_KEY)), data=arguments[0]), data=u)
            q = trace(guide).get_trace(*arguments[1:3])[SITE]["fn"]
            narrow = [self.rule.log_weight(q.params, q.step, arguments[3], a) for a in (0.0, 1e-3, 0.5)]
        if any(value.dtype != jnp.float32 for value in narrow):
            return failed_row(check, "found float64 of 32-bit arguments, expected float32")
        return equal_row(check, narrow, wide, 1e-2, 1e-2)

    @property
    def _u(self) -> dict[str, Any]:
        sites = trace(substitute(seed(self.guide, _KEY), data=self.params)).get_trace(self.x, self.y)
        return {name: sites[name]["value"] for name in ("layer1/u", "layer2/u")}

    def contained(self, name: str) -> CheckRow:
        """At the start that it declares, a richer rule has the poorer one's bound."""
        check, other = f"contains {name}", POORER[name]
        if type(other) is type(self.rule):
            return skipped_row(check, "it is that rule itself")
        if self.rule.contains(other) is None:
            return skipped_row(check, "it does not claim to")
        poorer = Guide(trials.chain, hidden=other)
        params = trials.moved_parameters(poorer, trials.chain, self.x, self.y)
        start = nested_start(poorer, self.guide, params, self.x, self.y)
        value, error = mean_and_error(self._estimates(self.guide, start))
        average, slack = mean_and_error(self._estimates(poorer, params))
        return equal_row(check, value, average, np.hypot(error, slack) + 1e-6, note="5 standard errors")


def _log_normal(value: Any, mean: Any, variance: float) -> Any:
    return -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * np.square(value - mean) / variance
