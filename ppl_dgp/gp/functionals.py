"""Slopes, averages and integrals of f: functionals to be inducing outputs or observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Num

from ppl_dgp.gp.features import Functionals, RowFunction
from ppl_dgp.kernels import Kernel, Matern12

if TYPE_CHECKING:
    Rows: TypeAlias = Float[Array, "M D"]
    Spans: TypeAlias = Float[Array, "M K D"]
    Weights: TypeAlias = Float[Array, "M K"]
    Shares: TypeAlias = Float[Array, " M"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: __post_init__ and calls check the shapes
    Rows = Spans = Weights = Shares = Any


class _OfSlopes(Functionals):
    """Functionals at points of a function that has slopes there."""

    points: Rows

    @property
    def places(self) -> Float[Array, "M D"]:
        return self.points

    def check(self, kernel: Kernel) -> None:
        rough = lambda part: isinstance(part, Matern12)
        if any(map(rough, jax.tree.leaves(kernel, is_leaf=rough))):
            raise ValueError(
                "kernel: found Matern12, of which f has no slopes, expected one that is differentiable twice; take "
                "Matern32 or a smoother one"
            )


@register_dataclass
@dataclass(frozen=True, eq=False)
class Derivatives(_OfSlopes):
    r"""Slopes of f at ``points`` (M, D) along ``directions`` (M, D): :math:`u_m = d_m^\top \nabla f(x_m)`.

    Along a unit vector it is a partial derivative; :func:`gradients` makes all of them. The kernel has to be
    differentiable twice: ``Matern12`` is refused, alone and within others, for a slope of it has no variance.

    :raises ValueError: if the two have different shapes.
    """

    points: Rows
    directions: Rows

    def __post_init__(self) -> None:
        _check_alike("directions", self.directions, self.points)

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
class ValuesAndSlopes(_OfSlopes):
    r"""Values at some points, slopes at others: :math:`u_m = s_m f(x_m) + d_m^\top \nabla f(x_m)`.

    Rows of one table, each of which says what it is, where ``Joined`` puts one kind behind the other; s = 1 and d = 0
    for a value, s = 0 and d ≠ 0 for a slope. ``Matern12`` is refused, as of ``Derivatives``.

    points: (M, D). shares: s, (M,). directions: d, (M, D).

    :raises ValueError: if their shapes do not fit.
    """

    points: Rows
    shares: Shares
    directions: Rows

    def __post_init__(self) -> None:
        _check_alike("directions", self.directions, self.points)
        if hasattr(self.points, "shape") and jnp.shape(self.shares) != jnp.shape(self.points)[:-1]:
            raise ValueError(
                f"shares: found shape {jnp.shape(self.shares)} beside points of shape {jnp.shape(self.points)}, "
                "expected one for each point"
            )

    def of(self, function: RowFunction) -> Array:
        values, slopes = jax.jvp(function, (self.points,), (self.directions,))
        mixed: Array = self.shares.reshape(-1, *[1] * (values.ndim - 1)) * values + slopes
        return mixed


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
    low: Num[Array, "M D"] | Num[np.ndarray, "M D"],
    high: Num[Array, "M D"] | Num[np.ndarray, "M D"],
    order: int = 8,
    *,
    integral: bool = False,
) -> Averages:
    """Averages of f over boxes, between corners, by Gauss–Legendre rules of ``order`` nodes in each dimension.

    Exact for polynomials of degree 2·order − 1; of smooth kernels to rounding if a box is a lengthscale wide.

    :param integral: the integrals instead, of which the unit is f's times that of the volume.
    :raises ValueError: if corners are no (M, D) or have different shapes, or ``order`` is below 1.
    """
    low, high = jnp.asarray(low, float), jnp.asarray(high, float)
    _check_alike("high", high, low)
    if low.ndim != 2:
        raise ValueError(f"low: found shape {low.shape}, expected corners (M, D), a row for each box")
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


def _check_alike(name: str, value: Any, points: Any) -> None:
    if hasattr(value, "shape") and hasattr(points, "shape") and jnp.shape(value) != jnp.shape(points):
        raise ValueError(
            f"{name}: found shape {jnp.shape(value)}, expected {jnp.shape(points)}, a row for each point"
        )
