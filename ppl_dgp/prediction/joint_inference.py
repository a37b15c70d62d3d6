r"""Latents of new rows under a Gaussian process prior: inferred together, for what is known of one says much of others.

Of latents x ~ N(m, C) over the K rows at hand, each dimension by itself, C from the prior function under its q(u) and
its noise, the posterior that maximises the bound has the form (Opper & Archambeau 2009)

.. math::
    q(x) = N(m + L w, S), \quad S = (C^{-1} + \mathrm{diag}(λ))^{-1}, \quad C = LL^T,

so that K means and K precisions are learnt for each dimension and not K² covariances. Damianou, Titsias & Lawrence
(2011) infer new sequences so. O(K³) a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import LATENT_SITE, LOC_SUFFIX, SCALE_SUFFIX, Model, Parameters, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.guides import Guide
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.prediction.local_inference import CANDIDATES, nearest_row, trained
from ppl_dgp.prediction.predictive_trace import model_sites, target_emission

#: draws of a row's latents in a step's estimate of the bound
DRAWS = 4
#: variance at which a row without any observed entry starts to say something of its latents: nothing
VAGUE = 1e6
#: variance at which others start, where the guide has none for training rows
NEAR = 1e-2


def site_with_prior(key: Array, fit: Posterior, x: np.ndarray) -> str | None:
    """The model's one hidden site, if a function of known inputs is its prior.

    A latent ``x`` under any rule, a hidden layer where the guide has a mean and a scale for each row: rules that follow
    the layer's function have nothing of a row's own.
    """
    found: list[str] = []

    def look(params: Parameters) -> None:
        sites = model_sites(key, fit.model, fit.guide, params, jnp.asarray(x))
        hidden = {n: s for n, s in sites.items() if s["type"] == "sample" and role_of(s).hidden}
        for name, site in hidden.items():
            emission = emission_of(site["fn"])
            if len(hidden) == 1 and emission is not None and isinstance(emission.likelihood, GaussianNoise):
                found.append(name)

    jax.eval_shape(look, fit.params)
    if not found or (found[0] != LATENT_SITE and not _has_rows(fit.params, found[0])):
        return None
    return found[0]


def _has_rows(params: Parameters, site: str) -> bool:
    """Whether a guide has a mean and a deviation for each row and dimension."""
    loc, scale = params.get(site + LOC_SUFFIX), params.get(site + SCALE_SUFFIX)
    return loc is not None and scale is not None and loc.shape == scale.shape


@lru_cache(maxsize=16)
def infer_jointly(
    model: Model, guide: Guide, site: str, steps: int, learning_rate: float
) -> Callable[..., tuple[dict[str, Gaussian], Parameters]]:
    """The rows' q under the bound, all else as fitted, as one compiled program."""

    def program(key: Array, params: Parameters, x: Array, y: Array) -> tuple[dict[str, Gaussian], Parameters]:
        def run(key: Array, latents: Array, inputs: Array) -> dict[str, Any]:
            return model_sites(key, model, guide, params, inputs, values={site: latents})

        mean, covariance = _prior(model_sites(key, model, guide, params, x)[site]["fn"])
        own_parameters = _has_rows(params, site)
        known = params[site + LOC_SUFFIX] if own_parameters else mean
        candidates = known[:: -(-len(known) // CANDIDATES)]
        lower = cholesky(covariance)[0]

        def posterior(free: Parameters) -> tuple[Float[Array, "K Q"], Float[Array, "K Q"], Array]:
            """Means and variances of the rows, and the divergence from the prior."""
            root = jnp.exp(0.5 * free["log_precision"].T)
            inner = root[:, :, None] * covariance * root[:, None, :] + jnp.eye(len(x))
            factor = jnp.linalg.cholesky(inner)
            half = jax.scipy.linalg.solve_triangular(factor, root[:, :, None] * covariance, lower=True)
            variance = jnp.diagonal(covariance, axis1=1, axis2=2) - jnp.square(half).sum(1)
            inverse = jax.scipy.linalg.solve_triangular(
                factor, jnp.broadcast_to(jnp.eye(len(x)), factor.shape), lower=True
            )
            log_det = 2.0 * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum()
            white = free["white"].T
            divergence = log_det + jnp.square(inverse).sum() - white.size + jnp.square(white).sum()
            at = mean + jnp.einsum("qkj,qj->kq", lower, white)
            return at, jnp.maximum(variance.T, 1e-12), 0.5 * divergence

        def loss(free: Parameters, key: Array) -> Array:
            at, variance, divergence = posterior(free)

            def density(key: Array) -> Array:
                key_draw, key_run = jax.random.split(key)
                h = at + jnp.sqrt(variance) * jax.random.normal(key_draw, at.shape, at.dtype)
                value: Array = target_emission(run(key_run, h, x)).tempered(y, 0.0).sum()
                return value

            result: Array = divergence - jax.vmap(density)(jax.random.split(key, DRAWS)).mean()
            return result

        there = ~jnp.isnan(y) if jnp.issubdtype(y.dtype, jnp.floating) else jnp.ones(y.shape, bool)
        decoded = target_emission(
            run(key, candidates, jnp.broadcast_to(x[:1], (len(candidates), x.shape[1])))
        ).mean
        start, vague = mean, jnp.full(mean.shape, VAGUE)
        if decoded.shape[1] == y.shape[1]:  # not probabilities of classes
            own = target_emission(run(key, mean, x)).mean
            nearest, nearer = nearest_row(y, own, decoded)
            start = jnp.where(nearer[:, None], candidates[nearest], mean)
            near = jnp.square(params[site + SCALE_SUFFIX]).mean(0) if own_parameters else NEAR
            vague = jnp.where(there.any(1, keepdims=True), near, VAGUE)
        # a regression under the prior on where the rows by themselves would be
        noisy = covariance + jax.vmap(jnp.diag)(vague.T)
        shift = jnp.einsum(
            "qkj,qj->qk", covariance, jnp.linalg.solve(noisy, (start - mean).T[..., None])[..., 0]
        )
        white = jax.scipy.linalg.solve_triangular(lower, shift[..., None], lower=True)[..., 0].T
        free = {"white": white, "log_precision": -jnp.log(vague)}
        at, variance, _ = posterior(trained(loss, free, key, steps, learning_rate))
        q = Gaussian(at, jnp.sqrt(variance))
        return {site: q}, {site + LOC_SUFFIX: q.mean, site + SCALE_SUFFIX: q.scale} if own_parameters else {}

    return compiled(program)


def _prior(noisy: Any) -> tuple[Float[Array, "K Q"], Float[Array, "Q K K"]]:
    """Mean and covariance over the rows of a hidden site, its noise included."""
    emission = emission_of(noisy)
    assert emission is not None and isinstance(emission.likelihood, GaussianNoise)
    mean, covariance = emission.marginal.joint()
    noise = jnp.broadcast_to(emission.likelihood.variance, mean.shape)
    return mean, covariance + jax.vmap(jnp.diag)(noise.T)
