"""Rules for latents without a GP in front: a GPLVM's x_n, and the first state of a trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters
from ppl_dgp.numerics.gaussian import Gaussian


def per_datum(name: str, initial: Callable[[], Array], size: int, event_dim: int, **kwargs: Any) -> Array:
    """A parameter with a row per datum, started from what the rows at hand give; other rows start at their mean.

    :param name: of the ``numpyro.param`` site.
    :param initial: gives the start of the rows at hand, (B, …).
    :param size: N, the rows of the whole data set.
    :param event_dim: the dimensions of one row's value.
    :param kwargs: what ``numpyro.param`` takes, such as ``constraint``.
    """

    def start(_key: Array) -> Array:
        value = initial()
        if value.shape[0] == size:
            return value
        return jnp.broadcast_to(value.mean(0), (size, *value.shape[1:]))

    parameter: Array = numpyro.param(name, start, event_dim=event_dim, **kwargs)
    return parameter


def per_datum_spread(name: str, size: int, start: Callable[[], Array], full: bool) -> Array:
    """Per-datum scales ``name_scale``, started at given deviations: (B, Q), or lower Cholesky factors (B, Q, Q)."""
    if not full:
        return per_datum(f"{name}_scale", start, size, 1, constraint=constraints.positive)
    diagonal = lambda: jax.vmap(jnp.diag)(start())
    return per_datum(f"{name}_scale", diagonal, size, 2, constraint=constraints.lower_cholesky)


def gaussian(h: Gaussian) -> dist.Distribution:
    """The normal distribution with given moments, batch (B,), event (Q,)."""
    if h.diagonal:
        return dist.Normal(h.mean, h.scale).to_event(1)
    return dist.MultivariateNormal(h.mean, scale_tril=h.scale)


@dataclass(frozen=True)
class Latent:
    """A latent without a GP in front, such as a GPLVM's x_n: its prior, batch (B,), event (Q,).

    :param start: where q begins, means and deviations (B, Q); the prior's own if None.
    """

    prior: dist.Distribution
    start: Callable[[], Gaussian] | None = None

    def begin(self) -> Gaussian:
        """Where q begins."""
        if self.start is not None:
            return self.start()
        shape = self.prior.shape()
        deviation = jnp.sqrt(jnp.broadcast_to(self.prior.variance, shape))
        return Gaussian(jnp.broadcast_to(self.prior.mean, shape).astype(deviation.dtype), deviation)


class LatentRule:
    """q(x_n) of a latent without a GP in front; all of its state is in the parameters that ``declare`` makes."""

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        """The rule's ``numpyro.param`` calls, for ``size`` rows; returns the rows at hand.

        :param datum: what is observed of the rows at hand; only amortised rules look at it.
        """
        raise NotImplementedError

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        """q(x_n), batch (B,), event (Q,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianLatent(LatentRule):
    """q(x_n) = N(M_n, S_n): what a hidden rule takes if it does not say otherwise.

    :param full: whether S_n is full over the dimensions.
    """

    full: bool = False

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        return {
            "loc": per_datum(f"{name}_loc", lambda: latent.begin().mean, size, 1),
            "scale": per_datum_spread(name, size, lambda: latent.begin().scale, self.full),
        }

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return gaussian(Gaussian(params["loc"], params["scale"]))


@dataclass(frozen=True)
class PriorLatent(LatentRule):
    """q(x_n) = p(x_n), of which nothing is learnt."""

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        return {}

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return latent.prior


@dataclass(frozen=True)
class PointLatent(LatentRule):
    """q(x_n) a point."""

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        return {"loc": per_datum(f"{name}_loc", lambda: latent.begin().mean, size, 1)}

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return dist.Delta(params["loc"], event_dim=1)
