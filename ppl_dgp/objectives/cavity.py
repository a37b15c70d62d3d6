"""Cavities of Gaussians, and the divergence that a power EP energy has for each of them (Bui 2017, 2.7 and 3.5)."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.primitives import Messenger

from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian, moments_of
from ppl_dgp.numerics.linalg import inverse_lower, lower_inverse_root
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio, log_det_ratio


def renyi_and_cavity(
    name: str, q: dist.Distribution, p: dist.Distribution, epsilon: Alpha
) -> tuple[Float[Array, "..."], dist.Distribution]:
    """Rényi's D_{1−ε}(q‖p) = −(1/ε) log ∫ q^{1−ε} p^ε, and the cavity ∝ q^{1−ε} p^ε; the KL and q itself at ε = 0.

    The divergence has the batch shape of q.

    :param name: of the site, for errors.
    :raises TypeError: if q and p are not Gaussian, or the same transform of Gaussians.
    """
    if isinstance(unwrap(q), dist.TransformedDistribution):
        inner_q, inner_p = unwrap(q), unwrap(p)
        if not isinstance(inner_p, dist.TransformedDistribution) or inner_q.transforms != inner_p.transforms:
            raise TypeError(_not_gaussian(name, q, p))
        shape = q.shape()
        divergence, cavity = renyi_and_cavity(
            name, _expanded(inner_q.base_dist, shape), _expanded(inner_p.base_dist, shape), epsilon
        )
        return divergence, dist.TransformedDistribution(cavity, inner_q.transforms)
    of_q, of_p = _gaussian(q), _gaussian(p)
    if of_q is None or of_p is None:
        raise TypeError(_not_gaussian(name, q, p))
    (mean, scale), (centre, unit) = of_q, of_p
    if scale.ndim == mean.ndim and unit.ndim == mean.ndim:
        value, m, s = _diagonal((mean - centre) / unit, scale / unit, epsilon)
        value = value.sum(tuple(range(-q.event_dim, 0)))
        normal = dist.Normal(centre + unit * m, unit * s).to_event(q.event_dim)
        return value, InducingGaussian(m, s) if isinstance(q, InducingGaussian) else normal
    # coordinates in which p is standard
    lower = _lower(unit, mean)
    whiten = inverse_lower(jnp.broadcast_to(lower, (*mean.shape, mean.shape[-1])))
    value, m, s = _full(_apply(whiten, mean - centre), whiten @ _lower(scale, mean), epsilon)
    value = value.sum(tuple(range(1 - q.event_dim, 0)))
    if isinstance(q, InducingGaussian):
        return value, InducingGaussian(m, s)
    cavity = dist.MultivariateNormal(centre + _apply(lower, m), scale_tril=lower @ s)
    return value, cavity.to_event(q.event_dim - 1)


def independent_cavity(
    name: str, q: dist.Distribution, p: dist.Distribution, epsilon: Alpha
) -> tuple[Float[Array, "..."], dist.Distribution]:
    """As :func:`renyi_and_cavity`, of a global latent.

    :raises ValueError: if its q is conditioned on another latent.
    """
    if given := getattr(q, "given", ()):
        raise ValueError(
            f"guide: found {name!r} conditioned on {given}, expected independent layers, whose cavities are known; "
            "take inducing=FullRank()"
        )
    return renyi_and_cavity(name, q, p, epsilon)


class Cavities(Messenger):
    """A guide with other distributions at some sites; it wraps the guide, to see what that samples."""

    def __init__(self, fn: Callable[..., Any], cavities: dict[str, dist.Distribution]) -> None:
        super().__init__(fn)
        self.cavities = cavities

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.cavities and msg["value"] is None:
            msg["fn"] = self.cavities[msg["name"]]


def is_gaussian(distribution: dist.Distribution) -> bool:
    """Whether :func:`renyi_and_cavity` knows it."""
    return _gaussian(distribution) is not None


def flat_cavity(h: Gaussian, copies: Float[Array, " T"], alpha: Alpha) -> tuple[Float[Array, " T"], Gaussian]:
    """What n tied factors are to a latent that has no prior of its own: a state x_t of a chain, t ≥ 1 (Bui 2017, 3.5).

    Each factor is the n-th root of q(x_t); the cavity lacks α of one. Returns the energy's term for each state, the
    entropy of q(x_t) at α = 0, and the cavities.

    :param h: q(x_t), means (T, Q), and deviations (T, Q) or lower Cholesky factors (T, Q, Q).
    :param copies: n_t, the factors that touch x_t: above alpha.
    """
    left = 1.0 - alpha / copies
    constant = 0.5 * (log(2.0 * pi) + log1p_ratio(-alpha / copies, jnp.ones_like(left)))
    scale = h.scale if h.diagonal else jnp.diagonal(h.scale, axis1=-2, axis2=-1)
    wider = 1.0 / jnp.sqrt(left)[:, None]
    cavity = Gaussian(h.mean, h.scale * (wider if h.diagonal else wider[..., None]))
    return jnp.log(scale).sum(-1) + h.mean.shape[-1] * constant, cavity


def _diagonal(mean: Array, scale: Array, epsilon: Alpha) -> tuple[Array, Array, Array]:
    """Divergence from N(0, 1), the cavity's mean and scale, of every coordinate."""
    variance = jnp.square(scale)
    spread = 1.0 + epsilon * (variance - 1.0)
    cavity = (1.0 - epsilon) * mean / spread
    value = 0.5 * mean * cavity - jnp.log(scale) + 0.5 * log1p_ratio(epsilon, variance - 1.0)
    return value, cavity, scale / jnp.sqrt(spread)


def _full(mean: Array, lower: Array, epsilon: Alpha) -> tuple[Array, Array, Array]:
    """The same of N(m, L Lᵀ) from N(0, I): D = ½ mᵀm_cav − ½ log |S| + (1/2ε) log |I + ε(S − I)|."""
    identity = jnp.eye(mean.shape[-1], dtype=mean.dtype)
    beyond = lower @ jnp.swapaxes(lower, -1, -2) - identity
    # (1−ε) I + ε LᵀL has the determinant of I + ε(S − I), and S_cav = L (·)⁻¹ Lᵀ
    inner = (1.0 - epsilon) * identity + epsilon * jnp.swapaxes(lower, -1, -2) @ lower
    scale = lower @ lower_inverse_root(inner)
    root = lower_inverse_root(identity + epsilon * beyond)
    cavity = (1.0 - epsilon) * _apply(root, _apply(jnp.swapaxes(root, -1, -2), mean))
    log_det = jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)).sum(-1)
    spread = -2.0 * jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)).sum(-1)
    value = 0.5 * (mean * cavity).sum(-1) - log_det + 0.5 * log_det_ratio(epsilon, beyond, spread)
    return value, cavity, scale


def _gaussian(distribution: dist.Distribution) -> tuple[Array, Array] | None:
    """Mean (…, d), and deviations (…, d) or lower factors (…, d, d); None of what is not Gaussian."""
    inner, shape = unwrap(distribution), distribution.shape()
    if isinstance(inner, dist.LowRankMultivariateNormal):
        return jnp.broadcast_to(inner.loc, shape), jnp.linalg.cholesky(inner.covariance_matrix)
    moments = moments_of(inner)
    if moments is None:
        return None
    if moments.factor is not None:
        return moments.mean, jnp.linalg.cholesky(moments.covariance())
    scale = moments.scale
    return _floating(moments.mean, shape), _floating(scale, shape + scale.shape[moments.mean.ndim :])


def _floating(value: Any, shape: tuple[int, ...]) -> Array:
    # priors are written with whole numbers
    return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(value, float)), shape)


def _lower(scale: Array, mean: Array) -> Array:
    """Lower factors, of deviations too."""
    if scale.ndim > mean.ndim:
        return scale
    return scale[..., None] * jnp.eye(scale.shape[-1], dtype=scale.dtype)


def _apply(matrix: Array, vector: Array) -> Array:
    return jnp.einsum("...ij,...j->...i", matrix, vector)


def _expanded(base: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    return base.expand(shape[: len(shape) - base.event_dim]).to_event(len(shape) - base.event_dim)


def _not_gaussian(name: str, q: dist.Distribution, p: dist.Distribution) -> str:
    return (
        f"guide: found {type(unwrap(q)).__name__} beside the prior {type(unwrap(p)).__name__} at {name!r}, expected "
        "Gaussians (or one transform of Gaussians), whose cavities are known; take PowerEP or BlackBoxAlpha"
    )
