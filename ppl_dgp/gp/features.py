r"""Inducing features: the linear functionals of f that are its inducing outputs u, in the place of values at points.

.. math::
    u_m = \mathcal{L}_m f, \quad k_u(x)_m = \mathcal{L}_m k(\cdot, x), \quad
    (K_{uu})_{mn} = \mathcal{L}_m \mathcal{L}'_n k

With these in the place of k(Z, x) and k(Z, Z) everything else of a sparse GP stays as it is (van der Wilk et al. 2020;
Lázaro-Gredilla & Figueiras-Vidal 2009). A functional of the first kind is applied to any function row by row, kernel
and mean alike, so that a new one is one method; the same objects are inputs, f(features) the marginals of the
functionals themselves: slopes or averages that were measured. Fourier features know their covariances in closed form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.means import Mean
from ppl_dgp.kernels import Kernel

#: a function of rows, (N, D) → (N, …), each of its rows a function of one of theirs
RowFunction: TypeAlias = Callable[[Array], Array]
if TYPE_CHECKING:
    Rows: TypeAlias = Float[Array, "M D"]
    Spans: TypeAlias = Float[Array, "M K D"]
    Weights: TypeAlias = Float[Array, "M K"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: __post_init__ and calls check the shapes
    Rows = Spans = Weights = Any


class InducingFeatures(ABC):
    """M linear functionals of a function of D inputs; a pytree, so that its arrays may be parameters."""

    #: as of inducing inputs (M, D) that all outputs share
    ndim = 2

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """M and D."""

    @abstractmethod
    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Covariance of f(x_n) and u_m."""

    @abstractmethod
    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        """Kuu."""

    @abstractmethod
    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """The functionals of a mean function."""

    @property
    def places(self) -> Float[Array, "M D"]:
        """Where they are, to be drawn; none (0, D) of functionals that are nowhere in particular."""
        return jnp.zeros((0, self.shape[1]))


class Functionals(InducingFeatures):
    """Functionals that can be applied to any function of rows. A subclass gives ``of`` and ``places``.

    >>> from dataclasses import dataclass
    >>> from jax.tree_util import register_dataclass
    >>> @register_dataclass
    ... @dataclass(frozen=True, eq=False)
    ... class Differences(Functionals):
    ...     points: Array
    ...     others: Array
    ...     def of(self, function):
    ...         return function(self.points) - function(self.others)
    ...     @property
    ...     def places(self):
    ...         return 0.5 * (self.points + self.others)
    >>> Differences(jnp.ones((3, 2)), jnp.zeros((3, 2))).shape
    (3, 2)
    """

    @abstractmethod
    def of(self, function: RowFunction) -> Array:
        """The functionals (M, …) of a function (N, D) → (N, …) that works on each row alone."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.places.shape  # type: ignore[return-value]

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        covariances: Array = self.of(lambda z: kernel(z, x)).T
        return covariances

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        return self.between(kernel, self)

    def between(self, kernel: Kernel, other: Array | InducingFeatures) -> Float[Array, "M K"]:
        """Covariance with values at points, or with other functionals."""
        covariances: Array = self.of(lambda z: cross(kernel, z, other))
        return covariances

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        """The diagonal of the covariance, in memory that is linear in M."""
        each = jax.tree.map(lambda leaf: leaf[:, None], self)
        variances: Array = jax.vmap(lambda one: one.covariance(kernel)[0, 0])(each)
        return variances

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        return self.of(mean)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Points(Functionals):
    """Values of f at ``points`` (M, D), for :class:`Joined`: alone they are inducing points, which is what to give."""

    points: Rows

    @property
    def places(self) -> Float[Array, "M D"]:
        return self.points

    def of(self, function: RowFunction) -> Array:
        return function(self.points)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Joined(Functionals):
    """Functionals of several kinds, one behind the other: values beside slopes, say.

    :raises ValueError: without parts, or for parts of different numbers of inputs.
    """

    parts: tuple[Functionals, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            raise ValueError(f"parts: found {self.parts!r}, expected a tuple of functionals")

    @property
    def places(self) -> Float[Array, "M D"]:
        return jnp.concatenate([part.places for part in self.parts])

    def of(self, function: RowFunction) -> Array:
        return jnp.concatenate([part.of(function) for part in self.parts])

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        return jnp.concatenate([part.variance(kernel) for part in self.parts])


@register_dataclass
@dataclass(frozen=True, eq=False)
class Derivatives(Functionals):
    r"""Slopes of f at ``points`` (M, D) along ``directions`` (M, D): :math:`u_m = d_m^\top \nabla f(x_m)`.

    Along a unit vector it is a partial derivative; :func:`gradients` makes all of them. The kernel has to be
    differentiable twice: of ``Matern12`` a slope has no variance.

    :raises ValueError: if the two have different shapes.
    """

    points: Rows
    directions: Rows

    def __post_init__(self) -> None:
        _check_alike("directions", self.directions, self.points)

    @property
    def places(self) -> Float[Array, "M D"]:
        return self.points

    def of(self, function: RowFunction) -> Array:
        slopes: Array = jax.jvp(function, (self.points,), (self.directions,))[1]
        return slopes


def gradients(points: Float[Array, "N D"]) -> Derivatives:
    """All D partial derivatives at each point, N·D of them: those of the first point first."""
    dims = points.shape[1]
    directions = jnp.tile(jnp.eye(dims, dtype=points.dtype), (points.shape[0], 1))
    return Derivatives(jnp.repeat(points, dims, 0), directions)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Averages(Functionals):
    r"""Weighted sums of f at points: :math:`u_m = \sum_k w_{mk} f(x_{mk})`, averages and integrals by quadrature.

    :func:`box_averages` makes averages over intervals, areas and their like.

    points: (M, K, D). weights: (M, K), of averages with a sum of 1.

    :raises ValueError: if their shapes do not fit.
    """

    points: Spans
    weights: Weights

    def __post_init__(self) -> None:
        shape = jnp.shape(self.points)
        if hasattr(self.points, "shape") and (len(shape) < 3 or jnp.shape(self.weights) != shape[:-1]):
            raise ValueError(
                f"weights: found shape {jnp.shape(self.weights)} beside points of shape {shape}, expected (M, K) and "
                "(M, K, D), a weight for each point"
            )

    @property
    def places(self) -> Float[Array, "M D"]:
        shares = jnp.abs(self.weights) / jnp.abs(self.weights).sum(1, keepdims=True)
        return jnp.einsum("mk,mkd->md", shares, self.points)

    def of(self, function: RowFunction) -> Array:
        size, each, dims = self.points.shape
        values = function(self.points.reshape(size * each, dims))
        return jnp.einsum("mk,mk...->m...", self.weights, values.reshape(size, each, *values.shape[1:]))


def box_averages(
    low: Float[Array, "M D"], high: Float[Array, "M D"], order: int = 8, *, integral: bool = False
) -> Averages:
    """Averages of f over boxes, between corners, by Gauss–Legendre rules of ``order`` nodes in each dimension.

    Exact for polynomials of degree 2·order − 1; of smooth kernels to rounding if a box is a lengthscale wide.

    :param integral: the integrals instead, of which the unit is f's times that of the volume.
    :raises ValueError: if corners have different shapes, or ``order`` is below 1.
    """
    _check_alike("high", high, low)
    if order < 1:
        raise ValueError(f"order: found {order}, expected at least 1")
    nodes, shares = np.polynomial.legendre.leggauss(order)
    dims = low.shape[1]
    grid = np.stack(np.meshgrid(*[nodes] * dims, indexing="ij"), -1).reshape(-1, dims)
    weights = np.prod(np.stack(np.meshgrid(*[shares] * dims, indexing="ij"), -1).reshape(-1, dims) / 2.0, 1)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    points = middle[:, None, :] + half[:, None, :] * jnp.asarray(grid, low.dtype)
    volume = jnp.prod(high - low, 1) if integral else jnp.ones(low.shape[0], low.dtype)
    return Averages(points, volume[:, None] * jnp.asarray(weights, low.dtype))


def inducing_points(inducing: Array | InducingFeatures) -> Array:
    """The inducing inputs Z, for what works with points alone.

    :raises ValueError: for features.
    """
    if isinstance(inducing, InducingFeatures):
        raise ValueError(
            f"inducing: found {type(inducing).__name__}, expected inducing points (M, D); of features this is not known"
        )
    return inducing


def places(inducing: Array | InducingFeatures) -> Float[Array, "*P _ D"]:
    """Where inducing outputs are, of each output where they differ, to be drawn."""
    return inducing.places if isinstance(inducing, InducingFeatures) else inducing


def cross(
    kernel: Kernel, x: Array | InducingFeatures, inducing: Array | InducingFeatures
) -> Float[Array, "N M"]:
    """Covariance of f at points, or functionals of it, with inducing outputs.

    :raises ValueError: for features as inputs that cannot be applied to a function.
    """
    if isinstance(x, Functionals):
        return x.between(kernel, inducing)
    if isinstance(x, InducingFeatures):
        raise ValueError(
            f"inputs: found {type(x).__name__}, expected points or functionals such as Derivatives; these are for "
            "inducing outputs alone"
        )
    return inducing.cross(kernel, x) if isinstance(inducing, InducingFeatures) else kernel(x, inducing)


def covariance(kernel: Kernel, inducing: Array | InducingFeatures) -> Float[Array, "M M"]:
    """Kuu of points or features."""
    return (
        inducing.covariance(kernel) if isinstance(inducing, InducingFeatures) else kernel(inducing, inducing)
    )


def variance(kernel: Kernel, x: Array | Functionals) -> Float[Array, " N"]:
    """Prior variance of f at points, or of functionals of it."""
    return x.variance(kernel) if isinstance(x, Functionals) else kernel.diag(x)


def mean_at(mean: Mean, x: Array | InducingFeatures) -> Float[Array, "N P"]:
    """The mean function at points, or functionals of it."""
    return x.mean(mean) if isinstance(x, InducingFeatures) else mean(x)


def _check_alike(name: str, value: Any, points: Any) -> None:
    if hasattr(value, "shape") and hasattr(points, "shape") and jnp.shape(value) != jnp.shape(points):
        raise ValueError(
            f"{name}: found shape {jnp.shape(value)}, expected {jnp.shape(points)}, a row for each point"
        )
