"""Functions over several new rows at once: joint draws of f, and its mean and covariance, exact within each layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Model, Parameters, role_of
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.prediction.exact import exact_joint, is_exact
from ppl_dgp.prediction.predictive_trace import model_sites, target_emission


@takes_fit
def sample_functions(
    key: Array,
    fit: Posterior,
    x: ArrayLike,
    num_samples: int = 10,
    *,
    prior: bool = False,
) -> Float[Array, "S N P"]:
    """Joint draws of f at the rows of x: each layer's function is drawn jointly over the rows, hidden noise included.

    O(N³) per layer: meant for up to a few thousand rows.

    :param fit: as in :func:`predict`.
    :param x: inputs (N, D), in the units of training.
    :param num_samples: S.
    :param prior: whether functions are drawn from the prior, at the fit's hyperparameters, instead of the posterior.
    """
    draws = sample_layers(key, fit, x, num_samples, prior=prior)
    return draws[list(draws)[-1]]


@takes_fit
def sample_layers(
    key: Array,
    fit: Posterior,
    x: ArrayLike,
    num_samples: int = 10,
    *,
    prior: bool = False,
) -> dict[str, Float[Array, "S N Q"]]:
    """Draws that go through the layers: each hidden layer's outputs at the rows of x, its noise included, and f.

    By the names of the functions, in the model's order; the last is f, the same draws as :func:`sample_functions`.

    :param fit: as in :func:`predict`.
    :param x: inputs (N, D), in the units of training.
    :param num_samples: S.
    :param prior: as in :func:`sample_functions`.
    :raises TypeError: where several functions stand side by side at y, or a hidden layer's noise is not Gaussian.
    """
    x = jnp.asarray(x)
    if is_exact(fit):
        mean, covariance = exact_joint(fit, x, prior=prior)
        noise = jax.random.normal(key, (num_samples, *mean.shape), mean.dtype)
        return {"gp": mean + jnp.einsum("nm,smp->snp", cholesky(covariance)[0], noise)}

    names: list[str] = []

    def one(sample_key: Array) -> list[Array]:
        key_run, key_last = jax.random.split(sample_key)
        sites = model_sites(key_run, fit.model, fit.guide, fit.params, x, joint_rows=True, prior=prior)
        last = _one_function(target_emission(sites)).marginal
        hidden = [site for site in sites.values() if site["type"] == "sample" and role_of(site).hidden]
        # a program that is mapped would sort them
        names[:] = [*(_layer_name(site) for site in hidden), " + ".join(last.functions)]
        return [*(site["value"] for site in hidden), last.draw(key_last)]

    draws = jax.lax.map(one, jax.random.split(key, num_samples))
    return dict(zip(names, draws, strict=True))


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

    program = _moments_program(fit.model, fit.guide, num_samples)
    result: tuple[Array, Array] = program(key, fit.params, x)
    return result


@lru_cache(maxsize=16)
def _moments_program(model: Model, guide: Model, num_samples: int) -> Callable[..., tuple[Array, Array]]:
    """Compiled once for inputs of one shape, as partial dependences ask for them column by column."""

    def moments(key: Array, params: Parameters, x: Array) -> tuple[Array, Array]:
        def one(sample_key: Array) -> tuple[Array, Array]:
            sites = model_sites(sample_key, model, guide, params, x, joint_rows=True)
            return _one_function(target_emission(sites)).marginal.joint()

        means, covariances = jax.lax.map(one, jax.random.split(key, num_samples))
        centre = means.mean(0)
        spread = means - centre
        return centre, covariances.mean(0) + jnp.einsum("snp,smp->pnm", spread, spread) / num_samples

    return compiled(moments)


def _layer_name(site: dict[str, Any]) -> str:
    """Of the function whose outputs a hidden site holds; of the site where there is none."""
    emission = emission_of(site["fn"])
    return str(site["name"]) if emission is None else " + ".join(emission.marginal.functions)


def _one_function(emission: Emission) -> Emission:
    if len(emission.parts) > 1:
        raise TypeError(
            f"model: found {len(emission.parts)} functions side by side at 'y', expected one; use predict(), which "
            "gives the marginals of them all"
        )
    return emission
