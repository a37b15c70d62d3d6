"""Which value each discrete latent of a trained model has, given the data: probabilities, and joint draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.fit.result import checked_data
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import PowerEP
from ppl_dgp.objectives.enumeration import supports_of
from ppl_dgp.objectives.tilting import TiltedSites, untilted
from ppl_dgp.prediction.posterior_path import check_number

#: −τ of the values that a site has not
RULED_OUT = 1e6


@takes_fit
def responsibilities(
    key: Array,
    fit: Posterior,
    x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
    y: Array | np.ndarray,
    *,
    num_samples: int = 100,
) -> dict[str, np.ndarray]:
    """p(z = k | y) of each discrete latent that an objective sums out, by the name of its site.

    Of a site of the rows (N, K), of one outside the data plate (K,), in the order of its values; each site's own, the
    others summed out. They are those given u and the hidden layers, averaged over draws of q, with f given u integrated
    out (FITC). Of the regimes of ``switching_gpssm``, which are no sites, see ``regime_probabilities``.

    :param key: the same key gives the same draws.
    :param fit: of a model with discrete latents.
    :param x: as trained on; None for a model without inputs.
    :param y: as trained on.
    :param num_samples: draws of q.
    :raises ValueError: if the model has no discrete latent, for no draws, data that cannot be used, or where the sum
        would be refused.
    """
    return _by_site(_responsibility_program, key, fit, x, y, num_samples)


@lru_cache(maxsize=32)
def _responsibility_program(
    model: Callable[..., Any], guide: Callable[..., Any], num_samples: int
) -> Callable[..., dict[str, Array]]:
    def program(key: Array, params: Parameters, x: Array | None, y: Array) -> dict[str, Array]:
        tilts, _, shares_at = _shares(key, model, guide, params, x, y)
        one = lambda key: shares_at(tilts, key)
        draws: dict[str, Array] = jax.lax.map(one, jax.random.split(key, num_samples))
        return {name: shares.mean(0) for name, shares in draws.items()}

    return compiled(program)


@takes_fit
def discrete_draws(
    key: Array,
    fit: Posterior,
    x: Float[Array, "N D"] | Float[np.ndarray, "N D"] | None,
    y: Array | np.ndarray,
    *,
    num_samples: int = 100,
) -> dict[str, np.ndarray]:
    """Joint draws of all discrete latents that an objective sums out, by the name of their sites: values, not numbers.

    Of a site of the rows (S, N), of one outside the data plate (S,). Each of S draws has its own u and hidden layers
    from q, and p(z | y) given these, f given u integrated out (FITC): one site after another is drawn from its
    probabilities given those before it, exactly, so that the states of a chain follow each other as they should, where
    ``responsibilities`` says of each alone. A draw costs as many of its gradients as there are sites.

    :param key: the same key gives the same draws.
    :param fit: of a model with discrete latents.
    :param x: as trained on; None for a model without inputs.
    :param y: as trained on.
    :param num_samples: S.
    :raises ValueError: as ``responsibilities``.
    """
    return _by_site(_draws_of_discrete, key, fit, x, y, num_samples)


@lru_cache(maxsize=32)
def _draws_of_discrete(
    model: Callable[..., Any], guide: Callable[..., Any], num_samples: int
) -> Callable[..., dict[str, Array]]:
    def program(key: Array, params: Parameters, x: Array | None, y: Array) -> dict[str, Array]:
        tilts, supports, shares_at = _shares(key, model, guide, params, x, y)

        def one(key: Array) -> dict[str, Array]:
            key_q, key_z = jax.random.split(key)

            def step(number: Array, tilts: dict[str, Array]) -> dict[str, Array]:
                # p(z_j | z_<j, y), as u and h are those of one key
                shares = shares_at(tilts, key_q)
                key_site = jax.random.fold_in(key_z, number)
                return {
                    name: jnp.where(number == place, _drawn_tilt(key_site, shares[name]), tilt)
                    for place, (name, tilt) in enumerate(tilts.items())
                }

            ended = jax.lax.fori_loop(0, len(tilts), step, tilts)
            return {name: supports[name][tilt.argmax(-1)] for name, tilt in ended.items()}

        draws: dict[str, Array] = jax.lax.map(one, jax.random.split(key, num_samples))
        return draws

    return compiled(program)


def _by_site(
    program: Callable[..., Any], key: Array, fit: Posterior, x: Any, y: Any, num_samples: int
) -> dict[str, np.ndarray]:
    """What a program of so many draws says of each site at these rows."""
    check_number("num_samples", num_samples)
    rows = [None if each is None else jnp.asarray(each) for each in (x, y)]
    checked_data(x, y, fit.model)
    found = program(fit.model, fit.guide, num_samples)(key, fit.params, *rows)
    return {name: np.asarray(values) for name, values in found.items()}


def _drawn_tilt(key: Array, shares: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
    """τ that leaves one value of each entry, drawn by its probability; of what is masked all are alike."""
    values = shares.shape[-1]
    shares = jnp.where(shares.sum(-1, keepdims=True) > 0.5, shares, 1.0 / values)
    chosen = jax.random.categorical(key, jnp.log(jnp.maximum(shares, 0.0)))
    return jnp.where(jnp.arange(values) == chosen[..., None], 0.0, -RULED_OUT).astype(shares.dtype)


def _shares(
    key: Array,
    model: Callable[..., Any],
    guide: Callable[..., Any],
    params: Parameters,
    x: Array | None,
    y: Array,
) -> tuple[dict[str, Array], dict[str, Array], Callable[[dict[str, Array], Array], dict[str, Array]]]:
    """τ = 0 of each discrete latent, its values, and its probabilities at some τ and the draw of q of a key."""
    run = trace(substitute(seed(model, key), params)).get_trace(x, y)
    tilts = untilted(run)
    if not tilts:
        raise ValueError(
            "fit: found a model without discrete latents, expected one such as mixture_of_functions"
        )

    def log_sum(tilts: dict[str, Array], key: Array) -> Array:
        with TiltedSites(tilts):
            return -PowerEP(1.0, num_particles=1).loss(key, params, model, guide, x, y)

    return tilts, supports_of(list(tilts), run), jax.grad(log_sum)
