"""How far a guide is from the posterior: the ELBO, an importance-weighted bound, Pareto k-hat, LOO.

k-hat below 0.7: importance sampling from the guide would work, so its moments can be trusted or corrected; above, they
cannot be checked this way (Yao et al. 2018; Vehtari et al. 2024). k-hat and the importance-weighted bound are of the
t_1 (FITC) model that NumPyro sees; ``elbo`` is the α = 0 value, the variational bound of the exact model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ppl_dgp.diagnostics.arviz_api import pareto_smoothed
from ppl_dgp.diagnostics.draws import Draws, columns, inputs_of, joint_draws
from ppl_dgp.diagnostics.scores import sum_with_error
from ppl_dgp.fit import Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.energy import drawn_energies
from ppl_dgp.guides import HiddenRule
from ppl_dgp.objectives import PowerEP

#: fewer draws than this say nothing of a tail
FEWEST_TAIL_DRAWS = 25


@dataclass(frozen=True, eq=False)
class ParetoK:
    """``sites``: k-hat of the global sites θ, the locals averaged out; ``rows`` (N,): of q(h_n | θ), row by row."""

    sites: float
    rows: np.ndarray


@takes_fit
def elbo(
    key: Array, fit: Posterior, x: ArrayLike | None, y: ArrayLike, num_draws: int = 100
) -> tuple[float, float]:
    """The ELBO (α = 0, whatever objective was trained) in total nats over the rows, and its standard error.

    :param x: training inputs (N, D), all of them; y the targets (N, P) or (N,), in the units of training.
    :param num_draws: independent estimates averaged.
    :raises ValueError: for fewer than two draws.
    """
    if num_draws < 2:
        raise ValueError(f"num_draws: found {num_draws}, expected at least 2 for a standard error")
    program = _bound(fit.model, fit.guide, num_draws)
    values = np.asarray(program(key, dict(fit.params), jnp.asarray(inputs_of(x, y)), columns(y)))
    value, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(num_draws))
    # draws of a closed form differ by rounding alone
    return value, error if error > 10.0 * np.finfo(values.dtype).eps * abs(value) else 0.0


@takes_fit
def importance_weighted_bound(
    key: Array, fit: Posterior, x: ArrayLike | None, y: ArrayLike, num_draws: int = 200, num_locals: int = 8
) -> tuple[float, float]:
    """A lower bound, in expectation, of the log evidence of the t_1 (FITC) model, and its standard error; total nats.

    log (1/S) Σ_s p(θ_s)/q(θ_s) Π_n (1/K) Σ_k p(y_n, h_nk|θ_s)/q(h_nk|θ_s) (Burda et al. 2016, with locals of their
    own). It can lie above the evidence of the exact GP model, as FITC's can. The standard error is the delta method's
    and is not to be trusted where k-hat is above 0.7.

    :param num_draws: S.
    :param num_locals: K.
    """
    draws = joint_draws(key, fit, x, y, num_draws=num_draws, num_locals=num_locals)
    return importance_weighted(draws.log_ratio)


def importance_weighted(log_ratio: Float[np.ndarray, " S"]) -> tuple[float, float]:
    """log mean exp of the log ratios, and its standard error by the delta method."""
    if np.isnan(log_ratio).any():  # of a guide without a density, such as the draws of NUTS
        return float("nan"), float("nan")
    size = log_ratio.size
    value = float(np.logaddexp.reduce(log_ratio) - np.log(size))
    relative = np.exp(log_ratio - value)
    return value, float(relative.std(ddof=1) / np.sqrt(size)) if size > 1 else float("nan")


@takes_fit
def pareto_k(
    key: Array,
    fit: Posterior,
    x: ArrayLike | None,
    y: ArrayLike,
    num_draws: int = 400,
    num_locals: int = 8,
    local_draws: int = 1000,
) -> ParetoK:
    """Pareto k-hat of q(θ), the locals averaged out, and of q(h_n | θ) for every row.

    :param num_draws: of θ for k-hat of the global sites, each with ``num_locals`` draws of the locals.
    :param local_draws: of the locals for k-hat of the rows, spread over four draws of θ.
    :raises ValueError: for fewer than 25 draws of either.
    """
    for name, value in (("num_draws", num_draws), ("local_draws", local_draws)):
        if value < FEWEST_TAIL_DRAWS:
            raise ValueError(f"{name}: found {value}, expected at least {FEWEST_TAIL_DRAWS} to see a tail")
    key_theta, key_locals = jax.random.split(key)
    draws = joint_draws(key_theta, fit, x, y, num_draws=num_draws, num_locals=num_locals)
    inner = joint_draws(key_locals, fit, x, y, num_draws=4, num_locals=max(1, local_draws // 4))
    # p(h_n | y_n, θ) / q(h_n | θ), each θ's weights with mean one
    relative = inner.local_weights - inner.log_likelihood[:, None, :]
    return ParetoK(sites_khat(draws), _khat(relative.reshape(-1, relative.shape[-1]).T))


def sites_khat(draws: Draws) -> float:
    """k-hat of the weights p(y, θ)/q(θ) of draws at hand; −∞ where all weights are equal."""
    return float(_khat(draws.log_ratio[None])[0])


def expected_log_density(
    log_likelihood: Float[np.ndarray, "S N"],
) -> tuple[float, float, Float[np.ndarray, " N"]]:
    """LOO: Σ_n log p(y_n | y_−n) by Pareto-smoothed importance sampling, its standard error, k-hat of each row.

    :param log_likelihood: log p(y_n | θ_s), locals averaged out.
    """
    smoothed, khat = pareto_smoothed(-log_likelihood.T)
    rows = np.logaddexp.reduce(smoothed + log_likelihood.T, axis=-1)
    total, error = sum_with_error(rows)
    return float(total), float(error), khat


def _khat(log_weights: Float[np.ndarray, "R S"]) -> Float[np.ndarray, " R"]:
    centred = log_weights - log_weights.max(-1, keepdims=True)
    # not a number where q has no density
    found = np.where(np.isnan(centred).any(-1), np.nan, -np.inf)
    # equal weights have no tail: q is the posterior
    spread = np.ptp(centred, axis=-1) > 1e-10
    if spread.any():
        found[spread] = pareto_smoothed(centred[spread])[1]
    return found


@lru_cache(maxsize=32)
def _bound(model: Callable[..., Any], guide: Callable[..., Any], num_draws: int) -> Callable[..., Array]:
    rule = getattr(guide, "hidden", None)
    # the model's own conditional as moments is no bound beyond two layers: that of its q is that of draws
    cancels = isinstance(rule, HiddenRule) and rule.depends_on.on_model
    objective = PowerEP(0.0, num_particles=1, propagation="draws" if cancels else None)
    return drawn_energies(model, guide, objective, num_draws)
