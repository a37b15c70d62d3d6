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
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.means import Mean
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.structured_root import StructuredRoot

#: a function of rows, (N, D) → (N, …), each of its rows a function of one of theirs
RowFunction: TypeAlias = Callable[[Array], Array]
if TYPE_CHECKING:
    Rows: TypeAlias = Float[Array, "M D"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: calls check the shapes
    Rows = Any


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

    def root(self, kernel: Kernel) -> StructuredRoot | None:
        """A square root of Kuu that stands in the place of its Cholesky factor, without jitter; None of most."""
        return None

    @property
    def places(self) -> Float[Array, "M D"]:
        """Where they are, to be drawn; none (0, D) of functionals that are nowhere in particular."""
        return jnp.zeros((0, self.shape[1]))


class FixedFunctions(InducingFeatures):
    """Features whose k_u(x) = s φ(x) has functions φ that no kernel changes, of f less its mean.

    With Gaussian noise all that rows say is then in sums that are taken once (:mod:`ppl_dgp.objectives.row_sums`).
    """

    @abstractmethod
    def waves(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """φ of rows; NaN of those outside the features' domain where they are traced.

        :raises ValueError: for rows outside that are known.
        """

    @abstractmethod
    def scales(self, kernel: Kernel) -> Float[Array, " M"]:
        """s."""

    def total_variance(
        self, kernel: Kernel, rows: Float[Array, ""], squares: Float[Array, " M"]
    ) -> Float[Array, ""]:
        """Σ k(x_n, x_n) of so many rows, whose Σ φ(x_n)² are given: of a kernel that is stationary, unless told."""
        return rows * kernel.diag(jnp.asarray(self.corner)[None])[0]

    @property
    @abstractmethod
    def corner(self) -> tuple[float, ...]:
        """The lowest place of the domain, a number for each input."""

    @abstractmethod
    def root(self, kernel: Kernel) -> StructuredRoot:
        """A square root of Kuu."""

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self.waves(x) * self.scales(kernel)

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """0: the features are of what f adds to its mean."""
        return jnp.zeros((self.shape[0], mean(jnp.asarray(self.corner)[None]).shape[1]))


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
        return self.between(kernel, x).T

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        return self.between(kernel, self)

    def check(self, kernel: Kernel) -> None:
        """Refuse, by a ValueError, a kernel under which these functionals of f have no variance."""

    def between(self, kernel: Kernel, other: Array | InducingFeatures) -> Float[Array, "M K"]:
        """Covariance with values at points, or with other functionals."""
        self.check(kernel)
        covariances: Array = self.of(lambda z: cross(kernel, z, other))
        return covariances

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        """The diagonal of the covariance, in memory that is linear in M."""
        self.check(kernel)
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
        found = [part.places for part in self.parts]
        if len({each.shape[1] for each in found}) > 1:
            raise ValueError(
                f"parts: found functionals of {[each.shape[1] for each in found]} inputs, expected one number"
            )
        return jnp.concatenate(found)

    def check(self, kernel: Kernel) -> None:
        for part in self.parts:
            part.check(kernel)

    def of(self, function: RowFunction) -> Array:
        return jnp.concatenate([part.of(function) for part in self.parts])

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        return jnp.concatenate([part.variance(kernel) for part in self.parts])


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
