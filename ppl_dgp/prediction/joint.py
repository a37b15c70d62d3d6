"""Functions over several new rows at once: joint draws of f, and its mean and covariance, exact within each layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.emission import Emission
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.prediction.exact import exact_joint, is_exact
from ppl_dgp.prediction.predictive_trace import model_sites, target_emission


@takes_fit
def sample_functions(
    key: Array,
    fit: Posterior,
    x: ArrayLike,
    num_samples: int = 10,
) -> Float[Array, "S N P"]:
    """Joint draws of f at the rows of x: each layer's function is drawn jointly over the rows, hidden noise included.

    O(N³) per layer: meant for up to a few thousand rows.

    :param fit: as in :func:`predict`.
    :param x: inputs (N, D), in the units of training.
    :param num_samples: S.
    """
    x = jnp.asarray(x)
    if is_exact(fit):
        mean, covariance = exact_joint(fit, x)
        noise = jax.random.normal(key, (num_samples, *mean.shape), mean.dtype)
        return mean + jnp.einsum("nm,smp->snp", cholesky(covariance)[0], noise)

    def one(sample_key: Array) -> Array:
        key_run, key_last = jax.random.split(sample_key)
        sites = model_sites(key_run, fit.model, fit.guide, fit.params, x, joint_rows=True)
        return _one_function(target_emission(sites)).marginal.draw(key_last)

    result: Array = jax.lax.map(one, jax.random.split(key, num_samples))
    return result


def sample_targets(key: Array, fit: Posterior, x: ArrayLike, num_samples: int = 10) -> Float[Array, "S N P"]:
    """Joint draws of y at the rows of x: of f as :func:`sample_functions` draws it, then of the noise of each row.

    For arguments see :func:`sample_functions`.

    :raises TypeError: for functions side by side at ``y``, as :func:`joint_prediction` does.
    """
    rows = jnp.asarray(x)

    def one(sample_key: Array) -> Array:
        key_run, key_last, key_noise = jax.random.split(sample_key, 3)
        sites = model_sites(key_run, fit.model, fit.guide, fit.params, rows, joint_rows=True)
        emission = _one_function(target_emission(sites))
        f = emission.marginal.draw(key_last)
        targets: Array = emission.likelihood.sample(key_noise, f, jnp.zeros_like(f))
        return targets

    result: Array = jax.lax.map(one, jax.random.split(key, num_samples))
    return result


@takes_fit
def joint_prediction(
    key: Array,
    fit: Posterior,
    x: ArrayLike,
    num_samples: int = 100,
) -> tuple[Float[Array, "N P"], Float[Array, "P N N"]]:
    """Mean (N, P) and covariance (P, N, N) of f over the rows of x: a mixture over joint draws of the hidden layers.

    :param fit: as in :func:`predict`.
    :param x: inputs (N, D), in the units of training.
    :param num_samples: of the hidden layers.
    """
    x = jnp.asarray(x)
    if is_exact(fit):
        mean, covariance = exact_joint(fit, x)
        return mean, jnp.broadcast_to(covariance, (mean.shape[1], *covariance.shape))

    def one(sample_key: Array) -> tuple[Array, Array]:
        sites = model_sites(sample_key, fit.model, fit.guide, fit.params, x, joint_rows=True)
        return _one_function(target_emission(sites)).marginal.joint()

    means, covariances = jax.lax.map(one, jax.random.split(key, num_samples))
    centre = means.mean(0)
    spread = means - centre
    return centre, covariances.mean(0) + jnp.einsum("snp,smp->pnm", spread, spread) / num_samples


def _one_function(emission: Emission) -> Emission:
    if len(emission.parts) > 1:
        raise TypeError(
            f"model: found {len(emission.parts)} functions side by side at 'y', expected one; use predict(), which "
            "gives the marginals of them all"
        )
    return emission
