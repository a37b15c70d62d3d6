r"""Covariance functions as frozen pytrees: call one for the Gram matrix, ask its `diag` for the diagonal.

Stationary kernels are functions of the scaled squared distance

.. math:: r^2(x, z) = \sum_d (x_d - z_d)^2 / \ell_d^2

which is computed by one matrix product, so no N x M x D array is ever formed. Derivatives of every order are
those of the exact :math:`r^2`, also at zero distance. Parameters are leaves of the pytree, so they may be
traced, differentiated and mapped over; `active_dims` is static.
Source: Rasmussen & Williams (2006), chapter 4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.linalg import squared_distance

if TYPE_CHECKING:
    Scalar: TypeAlias = Float[Array, ""] | float
    Lengthscale: TypeAlias = Float[Array, ""] | Float[Array, " D"] | float
else:  # JAX rebuilds pytrees with batched leaves and placeholders: a call checks the shapes
    Scalar = Lengthscale = Any
ActiveDims: TypeAlias = tuple[int, ...] | None


class Kernel(ABC):
    """A covariance function. `+` and `*` make a `Sum` and a `Product`."""

    @abstractmethod
    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """The covariances k(x_n, z_m), in squared units of the function.

        Raises ValueError if the shapes of x, z, the parameters and `active_dims` do not fit each other.
        """

    @abstractmethod
    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        """The variances k(x_n, x_n), in squared units of the function; errors as for a call."""

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


class _Stationary(Kernel):
    """variance · correlation(r²). A subclass gives `correlation`, a smooth function of r²."""

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims

    def __post_init__(self) -> None:
        object.__setattr__(self, "active_dims", _checked_dims(self.active_dims))

    @abstractmethod
    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        """The correlation at scaled squared distance r²; 1 at r² = 0."""

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        variance = _variance(self.variance)
        x, z = self.scale(x), self.scale(z)
        return variance * self.correlation(squared_distance(x, z))

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return _constant_diag(self.variance, self.scale(x))

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N A"]:
        """The active columns of x in units of the lengthscale."""
        x = _select(x, self.active_dims)
        return x / _per_dimension("lengthscale", self.lengthscale, x.shape[1])


@register_dataclass
@dataclass(frozen=True, eq=False)
class RBF(_Stationary):
    r"""Squared exponential kernel :math:`\sigma^2 \exp(-r^2/2)`.

    variance: σ², scalar. lengthscale: ℓ, scalar or one for each active dimension. active_dims: columns used.
    """

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern12(_Stationary):
    r"""Exponential kernel :math:`\sigma^2 \exp(-r)`; its subgradient at zero distance is taken as 0."""

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern12(r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern32(_Stationary):
    r"""Matern kernel with smoothness 3/2, :math:`\sigma^2 (1 + \sqrt3 r) \exp(-\sqrt3 r)`."""

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern32(3.0 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Matern52(_Stationary):
    r"""Matern kernel with smoothness 5/2, :math:`\sigma^2 (1 + \sqrt5 r + 5r^2/3) \exp(-\sqrt5 r)`."""

    variance: Scalar
    lengthscale: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return _matern52(5.0 * r2)


@register_dataclass
@dataclass(frozen=True, eq=False)
class RationalQuadratic(_Stationary):
    r"""Scale mixture of `RBF` kernels, :math:`\sigma^2 (1 + r^2/2\alpha)^{-\alpha}`, scalar alpha > 0."""

    variance: Scalar
    lengthscale: Lengthscale
    alpha: Scalar
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        alpha = _known("alpha", self.alpha, ())
        return jnp.exp(-alpha * jnp.log1p(r2 / (2.0 * alpha)))


@register_dataclass
@dataclass(frozen=True, eq=False)
class Periodic(_Stationary):
    r"""Periodic kernel :math:`\sigma^2 \exp\big(-2 \sum_d \sin^2(\pi (x_d - z_d)/p_d) / \ell_d^2\big)`.

    period: p in units of x, scalar or one for each active dimension. It is an `RBF` on the circle (cos, sin),
    where squared distances are 4 sin²(π (x − z)/p). Source: MacKay (1998).
    """

    variance: Scalar
    lengthscale: Lengthscale
    period: Lengthscale
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def correlation(self, r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
        return jnp.exp(-0.5 * r2)

    def scale(self, x: Float[Array, "N D"]) -> Float[Array, "N A"]:
        """The active columns of x on circles of radius 1/ℓ: twice as many columns."""
        x = _select(x, self.active_dims)
        angle = 2.0 * jnp.pi * x / _per_dimension("period", self.period, x.shape[1])
        lengthscale = _per_dimension("lengthscale", self.lengthscale, x.shape[1])
        return jnp.concatenate([jnp.cos(angle) / lengthscale, jnp.sin(angle) / lengthscale], axis=1)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Linear(Kernel):
    r"""Homogeneous linear kernel :math:`\sigma^2 x^\top z`; add a `Constant` for a bias."""

    variance: Scalar
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "active_dims", _checked_dims(self.active_dims))

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = _pair(_select(x, self.active_dims), _select(z, self.active_dims))
        return _variance(self.variance) * jnp.matmul(x, z.T, precision="highest")

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        x = _select(x, self.active_dims)
        return _variance(self.variance) * jnp.sum(x**2, axis=1)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Constant(Kernel):
    r"""The same covariance :math:`\sigma^2` everywhere: a random offset."""

    variance: Scalar

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = _pair(_select(x, None), _select(z, None))
        variance = _variance(self.variance)
        return variance * jnp.ones((x.shape[0], z.shape[0]), x.dtype)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return _constant_diag(self.variance, _select(x, None))


@register_dataclass
@dataclass(frozen=True, eq=False)
class White(Kernel):
    r"""Independent noise: :math:`\sigma^2` where the rows x_n and z_m are equal, else 0."""

    variance: Scalar

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = _pair(_select(x, None), _select(z, None))
        equal = jnp.all(x[:, None, :] == z[None, :, :], axis=-1)
        return _variance(self.variance) * equal.astype(x.dtype)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return _constant_diag(self.variance, _select(x, None))


@register_dataclass
@dataclass(frozen=True, eq=False)
class Sum(Kernel):
    """The covariance of a sum of independent functions, k = left + right."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.left(x, z) + self.right(x, z)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.left.diag(x) + self.right.diag(x)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Product(Kernel):
    """The covariance of a product of independent functions with zero mean, k = left · right."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        return self.left(x, z) * self.right(x, z)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return self.left.diag(x) * self.right.diag(x)


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


def _select(x: Array, active_dims: ActiveDims) -> Array:
    if x.ndim != 2:
        raise ValueError(
            f"x has shape {x.shape}, expected (N, D): add an axis, or jax.vmap over leading ones."
        )
    if active_dims is None:
        return x
    if max(active_dims) >= x.shape[1]:
        raise ValueError(
            f"active_dims is {active_dims}, expected numbers below {x.shape[1]}, the columns of x."
        )
    return x[:, jnp.asarray(active_dims)]


def _pair(x: Array, z: Array) -> tuple[Array, Array]:
    if x.shape[1] != z.shape[1]:
        raise ValueError(f"z has {z.shape[1]} columns, expected {x.shape[1]} as in x: points of one space.")
    return x, z


def _constant_diag(variance: Scalar, x: Array) -> Array:
    return _variance(variance) * jnp.ones(x.shape[0], x.dtype)


def _variance(value: Scalar) -> Scalar:
    return _known("variance", value, (), zero_allowed=True)


def _per_dimension(name: str, value: Lengthscale, dims: int) -> Lengthscale:
    return _known(name, value, (dims,))


def _known(name: str, value: Lengthscale, shape: tuple[int, ...], zero_allowed: bool = False) -> Lengthscale:
    if jnp.shape(value) not in ((), shape):
        wanted = f"a scalar or {shape}, one for each active column" if shape else "a scalar"
        raise ValueError(f"{name} has shape {jnp.shape(value)}, expected {wanted}: jax.vmap over a batch.")
    # only plain numbers are known before tracing
    if isinstance(value, int | float) and not (value > 0 or (zero_allowed and value == 0)):
        raise ValueError(
            f"{name} is {value}, expected a {'non-negative' if zero_allowed else 'positive'} number."
        )
    return value


def _checked_dims(active_dims: ActiveDims) -> ActiveDims:
    if active_dims is None:
        return None
    dims = tuple(index(d) for d in active_dims)
    if not dims or min(dims) < 0 or len(set(dims)) < len(dims):
        raise ValueError(
            f"active_dims is {active_dims}, expected different numbers from 0 on: None takes all."
        )
    return dims
