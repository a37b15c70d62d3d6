"""What a covariance function is, sums and products of them, and the checks that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

if TYPE_CHECKING:
    Scalar: TypeAlias = Float[Array, ""] | float
    Lengthscale: TypeAlias = Float[Array, ""] | Float[Array, " D"] | float
else:  # JAX rebuilds pytrees with batched leaves and placeholders: a call checks the shapes
    Scalar = Lengthscale = Any
ActiveDims: TypeAlias = tuple[int, ...] | None


class Kernel(ABC):
    """A covariance function. ``+`` and ``*`` make a ``Sum`` and a ``Product``."""

    @abstractmethod
    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """The covariances k(x_n, z_m), in squared units of the function.

        :raises ValueError: if the shapes of x, z, the parameters and ``active_dims`` do not fit each other.
        """

    @abstractmethod
    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        """The variances k(x_n, x_n), in squared units of the function; errors as for a call."""

    def __add__(self, other: Kernel) -> Sum:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Kernel) -> Product:
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented


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


def select(x: Array, active_dims: ActiveDims) -> Array:
    """The active columns of x, all of them for None. Raises ValueError where there are no such."""
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


def pair(x: Array, z: Array) -> tuple[Array, Array]:
    """Both, if they have as many columns; ValueError if not."""
    if x.shape[1] != z.shape[1]:
        raise ValueError(f"z has {z.shape[1]} columns, expected {x.shape[1]} as in x: points of one space.")
    return x, z


def constant_diag(variance: Scalar, x: Array) -> Array:
    """The diagonal of a kernel whose variance is the same everywhere."""
    return checked_variance(variance) * jnp.ones(x.shape[0], x.dtype)


def checked_variance(value: Scalar) -> Scalar:
    """A variance, a non-negative scalar; ValueError if it is none."""
    return checked("variance", value, (), zero_allowed=True)


def per_dimension(name: str, value: Lengthscale, dims: int) -> Lengthscale:
    """A positive scalar, or one for each of ``dims`` active columns; ValueError if it is neither."""
    return checked(name, value, (dims,))


def checked(name: str, value: Lengthscale, shape: tuple[int, ...], zero_allowed: bool = False) -> Lengthscale:
    """The value, of no shape or of ``shape``, and positive; ValueError if it is not."""
    if jnp.shape(value) not in ((), shape):
        wanted = f"a scalar or {shape}, one for each active column" if shape else "a scalar"
        raise ValueError(f"{name} has shape {jnp.shape(value)}, expected {wanted}: jax.vmap over a batch.")
    # only plain numbers are known before tracing
    if isinstance(value, int | float) and not (value > 0 or (zero_allowed and value == 0)):
        raise ValueError(
            f"{name} is {value}, expected a {'non-negative' if zero_allowed else 'positive'} number."
        )
    return value


def checked_dims(active_dims: ActiveDims) -> ActiveDims:
    """Different column numbers, or None for all; ValueError for anything else."""
    if active_dims is None:
        return None
    dims = tuple(index(d) for d in active_dims)
    if not dims or min(dims) < 0 or len(set(dims)) < len(dims):
        raise ValueError(
            f"active_dims is {active_dims}, expected different numbers from 0 on: None takes all."
        )
    return dims
