"""Latents of new rows: q of their own, the rest of a fit frozen; densities of rows; which dimensions count.

The posterior of a new row's latents is found by its network where the guide has one (``Amortised``), else by optimising
the row's own parameters under the fitted q(u) (Titsias & Lawrence 2010, section 3; Bui 2017, 3.7): rows may lack
entries, and many are found at once, for under q(u) they do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.handlers import substitute

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.fit.result import checked_data
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.guides import Amortised, Guide
from ppl_dgp.guides.latents import gaussian
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.prediction.joint_inference import infer_jointly, site_with_prior
from ppl_dgp.prediction.local_inference import bound_of_rows, candidates, fold_in
from ppl_dgp.prediction.predictive_trace import blocks, drawn, model_sites


def _site_above(site: str) -> tuple[bool, str]:
    """Sorts a row's own latents before the layers above them."""
    return "/" in site, site


@dataclass(frozen=True)
class Latents:
    """q of the hidden sites at K rows: ``sites`` by name, and the rows' own parameters.

    ``mean`` (K, Q) and ``scale`` (K, Q), or lower factors (K, Q, Q), NumPy arrays, are those of the row's own latent,
    ``x`` or ``z``; layers above it have paths for names, ``layer1/h``.
    """

    sites: Mapping[str, Gaussian]
    params: Mapping[str, Array]

    @property
    def mean(self) -> Float[np.ndarray, "K Q"]:
        return np.asarray(self._first.mean)

    @property
    def scale(self) -> np.ndarray:
        return np.asarray(self._first.scale)

    @property
    def variance(self) -> Float[np.ndarray, "K Q"]:
        """Of each coordinate."""
        # NumPy, for JAX would round to 32 bits where these are its default
        squares = np.square(self.scale)
        result: np.ndarray = squares if squares.ndim == 2 else squares.sum(-1)
        return result

    @property
    def _first(self) -> Gaussian:
        return self.sites[min(self.sites, key=_site_above)]


@takes_fit
def infer_latents(
    key: Array,
    fit: Posterior,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int = 300,
    learning_rate: float = 0.05,
    batch_size: int = 500,
) -> Latents:
    """q of the latents of K rows given what is observed of them, NaN where nothing is.

    Latents with a Gaussian process prior over known inputs, as of :func:`ppl_dgp.models.dynamical_gplvm`, are inferred
    together, for the prior ties them: what is known of one time says much of its neighbours. Others do not depend on
    each other. An encoder answers at once; otherwise the rows' own parameters are trained by Adam under the bound
    (α = 0), q(u) and all else as fitted, from the better of where the model starts them and the q of the training row
    that explains the row best; means move in units of their spread over training rows.

    :param fit: of a model with latents, its guide a ``Guide``.
    :param x: inputs (K, D) where the model has any, else None.
    :param y: (K, P), in the units of training; NaN for missing entries where the model was made with ``missing=True``.
    :param steps, learning_rate: of Adam, its rate falling to 0; of a latent in those units.
    :param batch_size: rows at a time; where they are inferred together the most rows, at O(K³) a step.
    :raises TypeError: if the guide is not a ``Guide``.
    :raises ValueError: for more rows than can be inferred together, rows that cannot be used, or a model without
        hidden sites.
    """
    if not isinstance(fit.guide, Guide):
        raise TypeError(
            f"fit: found the guide {type(fit.guide).__name__}, expected a Guide, whose rules know new rows"
        )
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1")
    rows, targets = _new_rows(x, y, fit)
    rule = fit.guide.latent_rule
    if isinstance(rule, Amortised) and not rule.missing and np.isnan(targets.astype(float)).any():
        raise ValueError(
            "y: found missing entries, NaN, but the encoder was made without missing='mask'; fill them in"
        )
    if (site := site_with_prior(key, fit, rows[:1])) is not None:
        return _inferred_jointly(key, fit, site, rows, targets, steps, learning_rate, batch_size)
    program = fold_in(
        fit.model, fit.guide, bound_of_rows(getattr(fit, "objective", None)), steps, learning_rate
    )
    starts = candidates(key, fit, jnp.asarray(rows[:1]), jnp.asarray(targets[:1]))
    with one_blas_thread():
        pieces = [program(key, fit.params, starts, *block) for _, block in blocks(batch_size, rows, targets)]
    return Latents(*_joined(pieces, len(targets)))


def _inferred_jointly(
    key: Array,
    fit: Posterior,
    site: str,
    rows: np.ndarray,
    targets: np.ndarray,
    steps: int,
    learning_rate: float,
    batch_size: int,
) -> Latents:
    if len(targets) > batch_size:
        raise ValueError(
            f"y: found {len(targets)} rows, expected at most batch_size={batch_size}, for the prior of {site!r} ties "
            "all of them; raise it, or pass each sequence by itself"
        )
    program = infer_jointly(fit.model, fit.guide, site, steps, learning_rate)
    with one_blas_thread():
        found = program(key, fit.params, jnp.asarray(rows), jnp.asarray(targets))
    return Latents(*found)


@takes_fit
def row_log_density(
    key: Array,
    fit: Posterior,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    latents: Latents | None = None,
    num_samples: int = 200,
    batch_size: int = 500,
) -> Float[np.ndarray, " K"]:
    """log p(y_n) of each row, missing entries left out, in nats: the log of the mean of p(y|x) p(x)/q(x) over draws.

    A lower bound in expectation, tight where q(x_n) is the posterior; u is integrated out for each draw by itself.
    Layers above the latents are drawn from the model's own conditionals.

    :param latents: of these rows; found by :func:`infer_latents` if not given.
    :raises ValueError: as :func:`infer_latents` does.
    """
    rows, targets = _new_rows(x, y, fit)
    known = infer_latents(key, fit, x, y) if latents is None else latents
    points = [
        name for name, site in known.sites.items() if "/" not in name and not np.asarray(site.scale).any()
    ]
    if points:
        raise ValueError(
            f"latents: found points at {points}, which have no density; take MeanField() for the latents"
        )
    program = _density(fit.model, fit.guide, num_samples)
    row_latents = {name: site for name, site in known.sites.items() if "/" not in name} or dict(known.sites)
    pieces = [program(key, fit.params, *block) for _, block in blocks(batch_size, rows, targets, row_latents)]
    return np.asarray(_joined(pieces, len(targets)))


@takes_fit
def relevance(
    fit: Posterior,
    layer: str = "gp",
    site: str = "x",
    means: Float[np.ndarray, "N Q"] | None = None,
) -> Float[np.ndarray, " Q"]:
    """How much each latent dimension matters to a layer: the spread of its values in lengthscales.

    The standard deviation over rows of E[x_nq], divided by ℓ_q; a dimension that is switched off has a long
    lengthscale, or values that are all alike. Of a composed kernel ℓ is that of the first factor that has any.

    :param fit: of a model with latents.
    :param layer: whose lengthscales they are measured by.
    :param site: of the latents.
    :param means: E[x_n] where rows have no parameters of their own (an encoder); 1/ℓ_q if there are neither.
    :raises KeyError: if the layer has no lengthscales.
    """
    params = fit.params
    names = sorted(n for n in params if n.startswith(f"{layer}/") and n.endswith("/lengthscale"))
    if not names:
        raise KeyError(f"layer: found no lengthscale of {layer!r} among {', '.join(sorted(params))}")
    lengthscale = np.asarray(params[names[0]])
    loc = params.get(f"{site}_loc") if means is None else means
    if loc is None:
        return np.asarray(1.0 / lengthscale)
    spread = np.asarray(loc).std(0)
    # inputs that are known stand in front of latents
    return np.asarray(spread / lengthscale[-len(spread) :])


def _new_rows(x: ArrayLike | None, y: ArrayLike, fit: Posterior) -> tuple[np.ndarray, np.ndarray]:
    targets = np.asarray(y)
    if targets.ndim != 2 or len(targets) == 0:
        raise ValueError(f"y: found shape {targets.shape}, expected (K, P) with at least one row")
    # with its parameters, which few rows could not start
    rows, _ = checked_data(x, targets, substitute(fit.model, fit.params), empty_columns=True)
    return np.asarray(rows), targets


def _joined(blocks: list[Any], count: int) -> Any:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *blocks)


@lru_cache(maxsize=16)
def _density(model: Model, guide: Model, num_samples: int) -> Callable[..., Array]:
    def program(key: Array, params: Parameters, x: Array, y: Array, latents: dict[str, Gaussian]) -> Array:
        def one(key: Array) -> Array:
            key_run, key_latents = jax.random.split(key)
            # a row's density must not depend on the rows beside it
            values = drawn(key_latents, latents, alike=True)
            sites = model_sites(key_run, model, guide, params, x, values=values)
            total = sites["y"]["fn"].log_prob(y)
            for name, value in values.items():
                total = total + sites[name]["fn"].log_prob(value) - gaussian(latents[name]).log_prob(value)
            result: Array = total
            return result

        return logsumexp(jax.lax.map(one, jax.random.split(key, num_samples)), 0) - jnp.log(
            float(num_samples)
        )

    return compiled(program)
