"""Checks of a rule for inducing outputs: its density, its draws, its KL, and what a bound is with it."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.kl import kl_divergence
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.guides import DoublyStochastic, Guide, InducingRule, Optimal
from ppl_dgp.objectives import PowerEP
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

_DRAWS = 40_000
_KEY: Any = np.asarray([0, 5], np.uint32)
SITES = ("layer1/u", "layer2/u")


def check_inducing_rule(rule: InducingRule, only: Collection[str] | None = None) -> CheckReport:
    """Density, moments, KL and bound of a rule for inducing outputs q(u).

    It is tried on the inducing outputs of a deep GP of two layers, and on sparse GP regression with a known evidence.

    :param rule: as a guide's ``inducing`` takes it.
    :param only: the names of the checks to make; all if not given.
    :returns: a report; ``print`` it, or call its ``raise_for_failure()``.
    :raises TypeError: if it is no :class:`ppl_dgp.guides.InducingRule`.
    """
    if not isinstance(rule, InducingRule):
        raise TypeError(f"rule: found {rule!r}, expected an instance of ppl_dgp.guides.InducingRule")
    with jax.enable_x64(True):
        trial = _Trial(rule)
        return collected(
            f"check_inducing_rule({type(rule).__name__})",
            [
                ("parameters bear the site's name", trial.names),
                ("log q is a density", trial.normalised),
                ("mean of u, of draws", trial.means),
                ("variance of u, of draws", trial.variances),
                ("covariance of u, of draws", trial.covariances),
                ("KL ≥ 0", trial.positive_kl),
                ("KL = E log q/p of draws", trial.kl_of_draws),
                ("bound ≤ Titsias' bound", lambda: trial.below(0.0)),
                ("bound at α = ½ ≤ power EP's energy", lambda: trial.below(0.5)),
                ("bound = its average over u", trial.averaged),
                ("minibatches average to the whole", trial.minibatches),
                ("gradients finite", trial.finite_gradients),
                ("gradient in the parameters", trial.gradient),
                ("32 bits near 64", trial.single_precision),
            ],
            only,
        )


class _Trial:
    """A rule in two guides, at parameters that are nowhere special."""

    def __init__(self, rule: InducingRule) -> None:
        self.rule = rule
        self.x, self.y = jnp.asarray(trials.INPUTS), jnp.asarray(trials.TARGETS)
        self.deep = Guide(trials.two_layers, hidden=DoublyStochastic(), inducing=rule)
        self.flat = Guide(trials.regression, hidden=DoublyStochastic(), inducing=rule)

    @cached_property
    def deep_params(self) -> dict[str, Any]:
        return trials.moved_parameters(self.deep, trials.two_layers, self.x, self.y)

    @cached_property
    def flat_params(self) -> dict[str, Any]:
        return trials.moved_parameters(self.flat, trials.regression, self.x, self.y)

    def _sites(self, key: Any, params: dict[str, Any]) -> dict[str, Any]:
        guide = substitute(seed(self.deep, key), data=params)
        sites = trace(guide).get_trace(self.x, self.y)
        return {name: sites[name] for name in SITES}

    @cached_property
    def qs(self) -> list[Any]:
        """q of each site."""
        return [site["fn"] for site in self._sites(_KEY, self.deep_params).values()]

    @cached_property
    def draws(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Of each site (S, P, M), and log q of all (S,)."""

        params = self.deep_params

        def one(key: Any) -> Any:
            sites = self._sites(key, params).values()
            values = [site["value"] for site in sites]
            return values, sum(site["fn"].log_prob(site["value"]) for site in sites)

        values, log_q = jax.jit(jax.vmap(one))(jax.random.split(_KEY, _DRAWS))
        return [np.asarray(value) for value in values], np.asarray(log_q)

    def names(self) -> CheckRow:
        check = "parameters bear the site's name"
        strangers = [name for name in self.deep_params if not name.startswith(tuple(f"{s}_" for s in SITES))]
        if strangers:
            return failed_row(check, f"found {strangers}, expected f'{{name}}_…': layers would share them")
        return CheckRow(check, 0.0, 0.0, 0.0, True, note="parameters that do not")

    def normalised(self) -> CheckRow:
        """E_q[r(u)/q(u)] = ∫ r = 1, with r a Gaussian of the draws' own moments, a little narrower."""
        values, log_q = self.draws
        flat = np.concatenate([value.reshape(_DRAWS, -1) for value in values], 1)
        difference = flat - flat.mean(0)
        covariance = 0.8 * np.cov(flat.T)
        quadratic = np.einsum("si,ij,sj->s", difference, np.linalg.inv(covariance), difference)
        log_r = -0.5 * quadratic - 0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1]
        average, error = mean_and_error(np.exp(log_r - log_q))
        return equal_row("log q is a density", average, 1.0, error, note="∫ q of draws, 5 standard errors")

    def means(self) -> CheckRow:
        return self._moment("mean of u, of draws", lambda value, centre: value, lambda q: q.mean)

    def variances(self) -> CheckRow:
        square = lambda value, centre: np.square(value - centre)
        return self._moment("variance of u, of draws", square, lambda q: q.variance)

    def _moment(self, check: str, of_draws: Any, of_q: Any) -> CheckRow:
        values, expected, errors = [], [], []
        for q, draws in zip(self.qs, self.draws[0], strict=True):
            average, error = mean_and_error(of_draws(draws, np.asarray(q.mean)))
            values.append(np.ravel(of_q(q)))
            expected.append(average.ravel())
            errors.append(error.ravel())
        value, average, slack = (np.concatenate(arrays) for arrays in (values, expected, errors))
        return equal_row(check, value, average, slack, note="5 standard errors")

    def covariances(self) -> CheckRow:
        check, values, expected, errors = "covariance of u, of draws", [], [], []
        for q, draws in zip(self.qs, self.draws[0], strict=True):
            moments = None if getattr(q, "given", ()) else q.moments
            if moments is None:
                continue
            difference = draws - np.asarray(q.mean)
            average, error = mean_and_error(difference[..., :, None] * difference[..., None, :])
            values.append(np.ravel(moments.covariance()))
            expected.append(average.ravel())
            errors.append(error.ravel())
        if not values:
            return skipped_row(check, "its u is drawn, not integrated out: it has no moments of each output")
        value, average, slack = (np.concatenate(arrays) for arrays in (values, expected, errors))
        return equal_row(check, value, average, slack, note="5 standard errors")

    @cached_property
    def kl(self) -> float | None:
        """The closed form, None where there is none."""
        try:
            priors = [dist.Normal(0.0, 1.0).expand(q.event_shape).to_event(2) for q in self.qs]
            return float(sum(kl_divergence(q, p) for q, p in zip(self.qs, priors, strict=True)))
        except NotImplementedError:
            return None

    def positive_kl(self) -> CheckRow:
        if self.kl is None:
            return skipped_row("KL ≥ 0", "no closed form is registered: objectives draw it")
        return at_most_row("KL ≥ 0", -self.kl, 0.0, 0.0, "minus the KL")

    def kl_of_draws(self) -> CheckRow:
        check = "KL = E log q/p of draws"
        if self.kl is None:
            return skipped_row(check, "no closed form is registered: objectives draw it")
        values, log_q = self.draws
        log_p = sum(-0.5 * np.square(v) - 0.5 * np.log(2 * np.pi) for v in _flattened(values))
        average, error = mean_and_error(log_q - log_p)
        return equal_row(check, self.kl, average, error, note="5 standard errors")

    @cached_property
    def losses(self) -> dict[float, Any]:
        """The loss of regression, compiled, by α."""

        def make(alpha: float) -> Any:
            objective = PowerEP(alpha, 1)
            return jax.jit(
                lambda q, x, y, **rows: objective.loss(
                    jnp.asarray(_KEY), q, trials.regression, self.flat, x, y, **rows
                ),
                static_argnames="size",
            )

        return {alpha: make(alpha) for alpha in (0.0, 0.5)}

    @cached_property
    def slopes(self) -> Any:
        """The gradient of the loss of regression at α = 0, compiled."""
        return jax.jit(jax.grad(lambda q: self.losses[0.0](q, self.x, self.y)))

    def below(self, alpha: float) -> CheckRow:
        check = "bound ≤ Titsias' bound" if alpha == 0.0 else "bound at α = ½ ≤ power EP's energy"
        value = -float(self.losses[alpha](self.flat_params, self.x, self.y))
        return at_most_row(check, value, trials.regression_energy(alpha), 1e-6)

    def averaged(self) -> CheckRow:
        """E_{q(u)} Σ_n E_{f|u} log p(y_n | f) − KL, u drawn from the guide."""

        params = self.flat_params

        def one(key: Any) -> Any:
            guide = substitute(seed(self.flat, key), data=params)
            site = trace(guide).get_trace(self.x, self.y)["f/u"]
            return site["value"], site["fn"].log_prob(site["value"])

        u, log_q = (np.asarray(a) for a in jax.jit(jax.vmap(one))(jax.random.split(_KEY, _DRAWS)))
        exact, low_rank, weights = trials.dense_matrices()
        left = np.diag(exact - low_rank)
        difference = (trials.TARGETS - trials.INPUTS)[:, 0] - u[:, 0] @ weights.T
        log_p = -0.5 * np.log(2 * np.pi * trials.NOISE) - 0.5 * (np.square(difference) + left) / trials.NOISE
        log_prior = (-0.5 * np.square(u) - 0.5 * np.log(2 * np.pi)).sum((1, 2))
        average, error = mean_and_error(log_p.sum(1) + log_prior - log_q)
        value = -float(self.losses[0.0](self.flat_params, self.x, self.y))
        return equal_row("bound = its average over u", value, average, error + 1e-6, note="5 standard errors")

    def minibatches(self) -> CheckRow:
        whole = float(self.losses[0.0](self.flat_params, self.x, self.y))
        pairs = [jnp.asarray(pair) for pair in combinations(range(len(self.x)), 2)]
        parts = [
            float(self.losses[0.0](self.flat_params, self.x[i], self.y[i], index=i, size=len(self.x)))
            for i in pairs
        ]
        return equal_row("minibatches average to the whole", np.mean(parts), whole, 1e-8, 1e-8)

    def finite_gradients(self) -> CheckRow:
        return finite_row("gradients finite", self.slopes(self.flat_params), "entries that are not")

    def gradient(self) -> CheckRow:
        check = "gradient in the parameters"
        if isinstance(self.rule, Optimal):
            return skipped_row(check, "Optimal() is set in closed form, not trained")
        loss = lambda q: self.losses[0.0](q, self.x, self.y)
        slopes, differences, errors = slope_and_difference(loss, self.flat_params, 1e-5, self.slopes)
        return equal_row(check, slopes, differences, 1e-5 + 5.0 * errors, 1e-5)

    def single_precision(self) -> CheckRow:
        # 32 bits have a larger jitter, and a loss of some nats
        wide = float(self.losses[0.0](self.flat_params, self.x, self.y))
        arguments = in_32_bits((self.flat_params, self.x, self.y))
        with jax.enable_x64(False):
            narrow = self.losses[0.0](*arguments)
        if narrow.dtype != jnp.float32:
            return failed_row(
                "32 bits near 64", f"found {narrow.dtype} of 32-bit arguments, expected float32"
            )
        return equal_row("32 bits near 64", narrow, wide, 1e-2, 1e-3)


def _flattened(values: list[np.ndarray]) -> list[np.ndarray]:
    """The coordinates of all sites, each (S,)."""
    return [column for value in values for column in value.reshape(len(value), -1).T]
