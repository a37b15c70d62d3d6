"""Plates of rows, and the wrappers that plates, masks and ``to_event`` put around a site's distribution."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import MaskedDistribution

from ppl_dgp.gp.contract import DATA_PLATE


def unwrap(distribution: dist.Distribution) -> dist.Distribution:
    """A site's distribution, freed of the wrappers that plates, masks and ``to_event`` put on."""
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def mask_of(distribution: dist.Distribution) -> Any:
    """The mask that ``handlers.mask`` put on a site's distribution: rows without it count for nothing. True if none."""
    mask: Any = True
    while isinstance(distribution, dist.ExpandedDistribution | MaskedDistribution):
        if isinstance(distribution, MaskedDistribution):
            mask = jnp.logical_and(mask, distribution._mask)
        distribution = distribution.base_dist
    return mask


def data_plate(size: int, index: Array | None = None, subsample_size: int | None = None) -> numpyro.plate:
    """The plate ``data`` over ``size`` rows; ``index`` (B,) names the rows at hand, ``subsample_size`` draws them."""
    if index is None:
        return numpyro.plate(DATA_PLATE, size, subsample_size)
    # a plate's indices come from a message like any other, so a substitution can answer it
    with numpyro.handlers.substitute(data={DATA_PLATE: index}):
        return numpyro.plate(DATA_PLATE, size, subsample_size=index.shape[0])
