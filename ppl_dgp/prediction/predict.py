"""Prediction at new rows: the model's own conditionals given q(u), in batches (Salimbeni & Deisenroth 2017, eq. 17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import TARGET_SITE, Parameters, Propagation, role_of
from ppl_dgp.gp.representation import check_propagation
from ppl_dgp.guides import Guide
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian, moments_of
from ppl_dgp.objectives.enumeration import discrete_latents, value_combinations
from ppl_dgp.prediction.exact import exact_moments, exact_quantiles, is_exact
from ppl_dgp.prediction.predictive_trace import (
    SiteValues,
    blocks,
    check_latents,
    drawn,
    global_sites,
    model_sites,
    target_emission,
)
from ppl_dgp.prediction.quantiles import drawn_quantiles, has_gaussian_targets, mixture_quantiles

__all__ = [
    "Prediction", "drawn", "global_sites", "log_likelihood", "model_sites", "predict",
]  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What is known of f and y at N new rows, P columns; NumPy arrays in the units of the model's targets.

    Of a model of classes ``mean`` (N, C) are their probabilities (of two classes (N, 1), that of the second), with
    ``variance`` p(1 − p), and ``f_mean`` and ``f_variance`` those of the functions behind them.
    ``quantiles`` (K, N, P) at the requested ``levels``; ``samples`` (S, N, P) of y and ``log_density`` (N,), the log of
    the mean over draws of p(y_n | draw), where they were asked for.
    """

    f_mean: np.ndarray
    f_variance: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    levels: tuple[float, ...]
    quantiles: np.ndarray | None = None
    samples: np.ndarray | None = None
    log_density: np.ndarray | None = None


@takes_fit
def predict(
    key: Array,
    fit: Posterior,
    x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
    y: Array | np.ndarray | None = None,
    *,
    num_samples: int = 100,
    levels: Sequence[float] = (),
    samples: bool = False,
    row_by_row: bool = False,
    propagation: Propagation = "draws",
    latents: Mapping[str, Gaussian] | None = None,
    batch_size: int = 1000,
) -> Prediction:
    """Predict at the rows of x, the predictive a mixture over ``num_samples`` draws of the hidden layers.

    :param key: the same key gives the same draws.
    :param fit: of a model of the zoo, or of one like it with a site ``y`` made by ``noisy`` or ``observe``.
    :param x: inputs (N, D), in the units of training; None where there are none and the rows are those of ``latents``.
    :param y: targets (N, P); their log density is then returned.
    :param levels: quantiles of y wanted, each in (0, 1): under Gaussian noise those of the mixture, which of a single
        layer are a Gaussian's, else the least of ``num_samples`` draws of y that so many do not exceed.
    :param samples: whether to return draws of y, (S, N, P).
    :param row_by_row: whether every row meets the same draws, so that what is said of it depends on no other row, nor
        on their order; the ``samples`` of different rows then belong together in no other sense.
    :param propagation: "draws" of the hidden layers, or in their place "moments", "full-moments" or "linearised"
        (Bui 2017, 4.6): one Gaussian, exact in its moments for two layers, usually too wide or (linearised) too narrow.
    :param latents: by site, what is known of latents without a GP in front, as ``infer_latents`` finds it: means (N, Q)
        and deviations (N, Q), or lower factors (N, Q, Q). Others are drawn from their prior.
    :param batch_size: rows per compiled call: memory is of order ``num_samples`` · ``batch_size``.
    :raises ValueError: for x that is no matrix, without rows or not finite, for a level outside (0, 1), for a
        propagation that is unknown, or moments under a q(u) that links layers or outputs.
    """
    if x is None and not latents:
        raise ValueError("x: found None without latents, expected inputs (N, D), or latents of the rows")
    rows = np.zeros((len(next(iter((latents or {}).values())).mean), 0)) if x is None else np.asarray(x)
    _check_prediction(rows, levels, num_samples, batch_size)
    check_propagation(propagation)
    if propagation != "draws" and not (levels or samples) and _nothing_to_draw(fit, rows[:1]):
        num_samples = 1
    num_rows = rows.shape[0]
    targets = None if y is None else np.asarray(y).reshape(num_rows, -1)
    if is_exact(fit):
        return _predict_exact(
            key, fit, rows, targets, tuple(levels), num_samples if samples else 0, batch_size
        )
    program = prediction_program(
        fit.model, fit.guide, num_samples, tuple(levels), samples, row_by_row, propagation
    )
    known = dict(latents or {})
    if known and propagation != "draws":
        raise ValueError(f"propagation: found {propagation!r} beside latents, which are drawn; leave it out")
    for site, moments in known.items():
        if len(moments.mean) != num_rows:
            raise ValueError(
                f"latents: found {len(moments.mean)} rows of {site!r}, expected {num_rows} as x has"
            )
    results: list[dict[str, np.ndarray]] = []
    for begin, block in blocks(batch_size, rows, targets, known):
        result = program(jax.random.fold_in(key, 0 if row_by_row else begin), fit.params, *block)
        results.append({name: np.asarray(value) for name, value in result.items()})
    axis = {"quantiles": 1, "samples": 1}
    joined = {
        name: np.concatenate([piece[name] for piece in results], axis.get(name, 0)).take(
            np.arange(num_rows), axis.get(name, 0)
        )
        for name in results[0]
    }
    return Prediction(levels=tuple(levels), **joined)


def _predict_exact(
    key: Array,
    fit: Posterior,
    x: np.ndarray,
    y: np.ndarray | None,
    levels: tuple[float, ...],
    num_samples: int,
    batch_size: int,
) -> Prediction:
    """The prediction of an exact GP, in closed form."""
    mean, f_variance, noise = exact_moments(fit, x, batch_size)
    variance = f_variance + noise
    deviation = np.sqrt(variance)
    quantiles = exact_quantiles(mean, variance, levels) if levels else None
    samples = None
    if num_samples:
        draws = np.asarray(jax.random.normal(key, (num_samples, *mean.shape), mean.dtype))
        samples = mean + deviation * draws
    density = None if y is None else np.asarray(norm.logpdf(y, mean, deviation).sum(-1))
    return Prediction(mean, f_variance, mean, variance, levels, quantiles, samples, density)


def _nothing_to_draw(fit: Posterior, x: np.ndarray) -> bool:
    """Whether moments of hidden layers and of every u leave nothing to chance."""
    guide = fit.guide
    if not isinstance(guide, Guide) or guide.others is not None:
        return False

    known_moments: list[bool] = []

    def look(values: Parameters) -> None:
        run = trace(substitute(seed(guide.with_model_hidden(), jax.random.PRNGKey(0)), values))
        for site in run.get_trace(jnp.asarray(x)).values():
            if site["type"] == "sample" and role_of(site).inducing:
                known_moments.append(
                    moments_of(site["fn"]) is not None and not getattr(site["fn"], "given", ())
                )

    jax.eval_shape(look, fit.params)
    return all(known_moments) and not guide.summed


@takes_fit
def log_likelihood(key: Array, fit: Posterior, x: ArrayLike, y: ArrayLike) -> Float[Array, " N"]:
    """log p(y_n | θ) at one draw of θ ~ q(θ) and of the hidden layers, all rows at once: what ArviZ's LOO averages.

    Discrete latents of the rows are summed out.
    """

    def run(values: Parameters) -> tuple[SiteValues, Float[Array, " N"]]:
        about = fit.model, fit.guide, fit.params, jnp.asarray(x)
        sites = model_sites(key, *about, values=values, shared_sample=True)
        emission = target_emission(sites)
        return sites, emission.log_prob(jnp.asarray(y).reshape(emission.shape()))

    sites, result = run({})
    discrete = [name for name in discrete_latents(sites) if name != TARGET_SITE]
    if not discrete:
        return result

    def joint(values: Parameters) -> Float[Array, " N"]:
        sites, log_p = run(values)
        for name in discrete:
            log_p = log_p + sites[name]["fn"].log_prob(sites[name]["value"])
        return log_p

    summed: Array = logsumexp(jax.vmap(joint)(value_combinations(discrete, sites)), axis=0)
    return summed


def _check_prediction(x: np.ndarray, levels: Sequence[float], num_samples: int, batch_size: int) -> None:
    if x.ndim != 2 or x.shape[0] == 0:
        raise ValueError(f"x: found shape {x.shape}, expected (N, D) with at least one row")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(f"x: found {x[row, column]} at row {row}, column {column}; remove or replace it")
    for level in levels:
        if not 0.0 < level < 1.0:
            raise ValueError(f"levels: found {level}, expected a number in (0, 1)")
    for name, value in (("num_samples", num_samples), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1")


@lru_cache(maxsize=32)
def prediction_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    num_samples: int,
    levels: tuple[float, ...],
    samples: bool,
    row_by_row: bool,
    propagation: Propagation,
) -> Callable[..., dict[str, Array]]:
    """One compiled block of rows: the mixture's moments, and on request quantiles, draws and log density."""

    def block(
        key: Array, params: Parameters, x: Array, y: Array | None, latents: dict[str, Gaussian]
    ) -> dict[str, Array]:
        def one(sample_key: Array) -> dict[str, Array]:
            key_run, key_y, key_latents = jax.random.split(sample_key, 3)
            values = drawn(key_latents, latents)
            sites = model_sites(key_run, model, guide, params, x, values=values, propagation=propagation)
            check_latents(latents, sites)
            emission = target_emission(sites)
            if unordered := [part for part in emission.parts if part.likelihood.unordered] if levels else []:
                raise ValueError(
                    f"levels: found {levels} for {type(unordered[0].likelihood).__name__}, whose classes have no order "
                    "and no quantiles; leave them out and read the probabilities in mean"
                )
            mean, variance = emission.mean, emission.variance
            marginals = [part.marginal for part in emission.parts]
            moments = {
                "f_mean": jnp.concatenate([marginal.mean for marginal in marginals], 1),
                "f_variance": jnp.concatenate([marginal.variance for marginal in marginals], 1),
                "mean": mean,
                "variance": variance,
            }
            if samples:
                moments["samples"] = emission.sample(key_y)
            if levels and not has_gaussian_targets(emission):
                moments["drawn"] = emission.sample(key_y)
            if y is not None:
                moments["log_density"] = emission.log_prob(y)
            return moments

        draws = jax.lax.map(one, jax.random.split(key, num_samples))
        result = {}
        for prefix in ("f_", ""):
            means, variances = draws[f"{prefix}mean"], draws[f"{prefix}variance"]
            result[f"{prefix}mean"] = means.mean(0)
            # law of total variance over the mixture
            result[f"{prefix}variance"] = variances.mean(0) + means.var(0)
        if levels:
            result["quantiles"] = (
                drawn_quantiles(draws["drawn"], levels)
                if "drawn" in draws
                else mixture_quantiles(draws["mean"], draws["variance"], levels)
            )
        if samples:
            result["samples"] = draws["samples"]
        if y is not None:
            result["log_density"] = logsumexp(draws["log_density"], axis=0) - jnp.log(float(num_samples))
        return result

    def rows(
        key: Array, params: Parameters, x: Array, y: Array | None, latents: dict[str, Gaussian]
    ) -> dict[str, Array]:
        def single(*row: Any) -> dict[str, Array]:
            return block(key, params, *jax.tree.map(lambda leaf: leaf[None], row))

        by_row = jax.vmap(single)(x, y, latents)
        first = {"quantiles": 1, "samples": 1}
        return {
            name: jnp.moveaxis(jnp.take(value, 0, 1 + first.get(name, 0)), 0, first.get(name, 0))
            for name, value in by_row.items()
        }

    return compiled(rows if row_by_row else block)
