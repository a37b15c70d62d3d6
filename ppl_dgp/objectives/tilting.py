r"""Probabilities of discrete latents, as derivatives of the logarithm of their sum.

With each p(z) multiplied by e^{τ(z)}, the derivative of log Σ_z e^{τ(z)} w(z) in τ(k) at τ = 0 is w(k)/Σ_z w(z): of
whatever sum an objective takes, over sites of rows, of all rows, or along a chain (Eisner 2016), it is the share of
each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.objectives.enumeration import discrete_latents, supports_of


class TiltedSites(Messenger):
    """Multiplies the probabilities of discrete sites by e^τ.

    :param tilts: τ of each site, its values last.
    """

    def __init__(self, tilts: Mapping[str, Float[Array, "*batch K"]]) -> None:
        super().__init__()
        self.tilts = tilts

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.tilts:
            msg["fn"] = _Tilted(msg["fn"], self.tilts[msg["name"]])


class _Tilted(dist.Distribution):
    """A discrete distribution times e^τ, not normalised."""

    has_enumerate_support = True

    def __init__(self, base: dist.Distribution, tilt: Float[Array, "*batch K"]) -> None:
        self.base, self.tilt = base, tilt
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base.support

    def enumerate_support(self, expand: bool = True) -> Array:
        values: Array = unwrap(self.base).enumerate_support(expand)
        return values

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        draw: Array = self.base.sample(key, sample_shape)
        return draw

    def log_prob(self, value: Array) -> Array:
        chosen = value[..., None] == self.enumerate_support(False).ravel()
        log_density: Array = self.base.log_prob(value) + jnp.where(chosen, self.tilt, 0.0).sum(-1)
        return log_density


def untilted(model: Trace) -> dict[str, Float[Array, "*batch K"]]:
    """τ = 0 of each discrete latent of a model, given a run of it."""
    supports = supports_of(discrete_latents(model), model)
    return {
        name: jnp.zeros((*jnp.shape(model[name]["value"]), len(support)))
        for name, support in supports.items()
    }
