r"""Stationary kernels, functions of the scaled squared distance

.. math:: r^2(x, z) = \sum_d (x_d - z_d)^2 / \ell_d^2

which is computed by one matrix product, so no N x M x D array is ever formed. Derivatives of every order are
those of the exact :math:`r^2`, also at zero distance. Source: Rasmussen & Williams (2006), chapter 4.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.kernels.kernel import (
    ActiveDims,
    Kernel,
    Lengthscale,
    Scalar,
    checked,
    checked_dims,
    checked_variance,
    constant_diag,
    per_dimension,
    select,
)
from ppl_dgp.numerics.linalg import squared_distance


@dataclass(frozen=True, eq=False)
class Stationary(Kernel):
    r"""variance · correlation(r²), for kernels of one's own: a subclass gives ``correlation``, a smooth function of r².

    variance: σ², scalar. lengthscale: ℓ, scalar or one for each active dimension. active_dims: columns used. Further
    values are fields of a frozen dataclass. The number below keeps the derivative of the root at zero distance finite.

    >>> class Matern72(Stationary):
    ...     def correlation(self, r2):
    ...         s = jnp.sqrt(7.0 * r2 + 1e-12)
    ...         return (1.0 + s + 0.4 * s**2 + s**3 / 15.0) * jnp.exp(-s)
    >>> float(Matern72(2.0, 0.5).diag(jnp.zeros((1, 3)))[0])
    2.0
    """

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True}, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "active_dims", checked_dims(self.active_dims))

    @abstractmethod
    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """The correlation at scaled squared distance r²; 1 at r² = 0."""

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        variance = checked_variance(self.variance)
        x, z = self.scale(x), self.scale(z)
        return variance * self.correlation(squared_distance(x, z))

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return constant_diag(self.variance, self.scale(x))

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N A"]:
        """The active columns of x in units of the lengthscale."""
        x = select(x, self.active_dims)
        return x / per_dimension("lengthscale", self.lengthscale, x.shape[1])


@register_dataclass
@dataclass(frozen=True, eq=False)
class RBF(Stationary):
    r"""Squared exponential kernel :math:`\sigma^2 \exp(-r^2/2)`.

    variance: σ², scalar. lengthscale: ℓ, scalar or one for each active dimension. active_dims: columns used.
    """

    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern12(Stationary):
    r"""Exponential kernel :math:`\sigma^2 \exp(-r)`; its subgradient at zero distance is taken as 0."""

    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern12(r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern32(Stationary):
    r"""Matern kernel with smoothness 3/2, :math:`\sigma^2 (1 + \sqrt3 r) \exp(-\sqrt3 r)`."""

    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern32(3.0 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern52(Stationary):
    r"""Matern kernel with smoothness 5/2, :math:`\sigma^2 (1 + \sqrt5 r + 5r^2/3) \exp(-\sqrt5 r)`."""

    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern52(5.0 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class RationalQuadratic(Stationary):
    r"""Scale mixture of ``RBF`` kernels, :math:`\sigma^2 (1 + r^2/2\alpha)^{-\alpha}`, scalar alpha > 0."""

    alpha: Scalar

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        alpha = checked("alpha", self.alpha, ())
        return jnp.exp(-alpha * jnp.log1p(r2 / (2.0 * alpha)))


@register_dataclass
@dataclass(frozen=True, eq=False)
class Periodic(Stationary):
    r"""Periodic kernel :math:`\sigma^2 \exp\big(-2 \sum_d \sin^2(\pi (x_d - z_d)/p_d) / \ell_d^2\big)`.

    period: p in units of x, scalar or one for each active dimension. It is an ``RBF`` on the circle (cos, sin),
    where squared distances are 4 sin²(π (x − z)/p). Source: MacKay (1998).
    """

    period: Lengthscale

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * r2)

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N A"]:
        """The active columns of x on circles of radius 1/ℓ: twice as many columns."""
        x = select(x, self.active_dims)
        angle = 2.0 * jnp.pi * x / per_dimension("period", self.period, x.shape[1])
        lengthscale = per_dimension("lengthscale", self.lengthscale, x.shape[1])
        return jnp.concatenate([jnp.cos(angle) / lengthscale, jnp.sin(angle) / lengthscale], axis=1)


# The Matern family in t = 2ν r², each the derivative of the next: smooth in t up to their order at t = 0.


@jax.custom_jvp
def _matern12(t: Float[Array, "N M"]) -> Float[Array, "N M"]:
    # e^{−√t}
    return jnp.exp(-jnp.sqrt(t))


@_matern12.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Array, Array]:
    (t,), (dt,) = primals, tangents
    value = _matern12(t)
    # d e^{−√t}/dt = −e^{−√t} / 2√t, taken as 0 at t = 0
    root = jnp.sqrt(jnp.where(t > 0.0, t, 1.0))
    return value, jnp.where(t > 0.0, -value / (2.0 * root), 0.0) * dt


@jax.custom_jvp
def _matern32(t: Float[Array, "N M"]) -> Float[Array, "N M"]:
    # (1 + √t) e^{−√t}
    root = jnp.sqrt(t)
    return (1.0 + root) * jnp.exp(-root)


@_matern32.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Array, Array]:
    (t,), (dt,) = primals, tangents
    # d/dt = −e^{−√t}/2
    return _matern32(t), -0.5 * _matern12(t) * dt


@jax.custom_jvp
def _matern52(t: Float[Array, "N M"]) -> Float[Array, "N M"]:
    # (1 + √t + t/3) e^{−√t}
    root = jnp.sqrt(t)
    return (1.0 + root + t / 3.0) * jnp.exp(-root)


@_matern52.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Array, Array]:
    (t,), (dt,) = primals, tangents
    # d/dt = −(1 + √t) e^{−√t}/6
    return _matern52(t), -_matern32(t) * dt / 6.0
