"""Which value each discrete latent of a trained model has, given the data."""

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
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.objectives import PowerEP
from ppl_dgp.objectives.tilting import TiltedSites, untilted
from ppl_dgp.prediction.posterior_path import check_number


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
    :raises ValueError: if the model has no discrete latent, for no draws, or where the sum would be refused.
    """
    check_number("num_samples", num_samples)
    rows = [None if each is None else jnp.asarray(each) for each in (x, y)]
    found = _responsibility_program(fit.model, fit.guide, num_samples)(key, fit.params, *rows)
    return {name: np.asarray(shares) for name, shares in found.items()}


@lru_cache(maxsize=32)
def _responsibility_program(
    model: Callable[..., Any], guide: Callable[..., Any], num_samples: int
) -> Callable[..., dict[str, Array]]:
    def program(key: Array, params: Parameters, x: Array | None, y: Array) -> dict[str, Array]:
        tilts = untilted(trace(substitute(seed(model, key), params)).get_trace(x, y))
        if not tilts:
            raise ValueError(
                "fit: found a model without discrete latents, expected one such as mixture_of_functions"
            )

        def log_sum(tilts: dict[str, Array], key: Array) -> Array:
            with TiltedSites(tilts):
                return -PowerEP(1.0, num_particles=1).loss(key, params, model, guide, x, y)

        one = lambda key: jax.grad(log_sum)(tilts, key)
        draws: dict[str, Array] = jax.lax.map(one, jax.random.split(key, num_samples))
        return {name: shares.mean(0) for name, shares in draws.items()}

    return jax.jit(program)
