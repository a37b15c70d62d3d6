r"""Fourier features of several inputs: of products of Matérn kernels, and of sums (Hensman, Durrande & Solin 2018, 4).

.. math::
    \prod_d k_d: \quad \phi(x) = \phi_1(x_1) \otimes \dots \otimes \phi_D(x_D), \quad
    K_{uu} = K_1 \otimes \dots \otimes K_D; \qquad
    \sum_d k_d: \quad \phi(x) = [\phi_1(x_1), \dots, \phi_D(x_D)], \quad K_{uu} = \mathrm{blkdiag}(K_1, \dots, K_D)

each part the features of one input and its kernel. M is the product of the parts' numbers, or their sum.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import ClassVar

import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.features import FixedFunctions
from ppl_dgp.gp.fourier import Fourier
from ppl_dgp.kernels import Kernel, Product, Stationary, Sum
from ppl_dgp.numerics.structured_root import BlockRoot, KroneckerRoot, StructuredRoot


@dataclass(frozen=True, eq=False)
class _FourierParts(FixedFunctions):
    """``parts``, one for each input, and the kernels' combination that they are for."""

    parts: tuple[Fourier, ...]
    combination: ClassVar[type[Product] | type[Sum]]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            raise ValueError(
                f"parts: found {self.parts!r}, expected a tuple of Fourier features, one for each input"
            )

    @abstractmethod
    def _together(self, of_parts: list[Array]) -> Array:
        """What belongs to the features in the last axis, from that of each part."""

    @property
    def corner(self) -> tuple[float, ...]:
        return tuple(part.low for part in self.parts)

    def waves(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self._together([part.waves(x[:, d, None]) for d, part in enumerate(self.parts)])

    def scales(self, kernel: Kernel) -> Float[Array, " M"]:
        return self._together([part.scales(own) for part, own in self._pairs(kernel)])

    def _pairs(self, kernel: Kernel) -> list[tuple[Fourier, Kernel]]:
        """Each part with its kernel, as one of the one input."""
        found = _members(kernel, self.combination)
        columns = [own.active_dims if isinstance(own, Stationary) else None for own in found]
        # a kernel of one input need not name it
        columns = [(0,)] if columns == [None] and len(self.parts) == 1 else columns
        wanted = [(d,) for d in range(len(self.parts))]
        if sorted(map(str, columns)) != sorted(map(str, wanted)):
            raise ValueError(
                f"kernel: found kernels of the columns {columns} in a {self.combination.__name__.lower()}, expected "
                f"one of each of {wanted}, as there are parts; give each its active_dims=(d,)"
            )
        by_column = dict(zip(columns, found, strict=True))
        return [
            (part, replace(by_column[d], active_dims=None))  # type: ignore[type-var]
            for part, d in zip(self.parts, wanted, strict=True)
        ]


@register_dataclass
@dataclass(frozen=True, eq=False)
class FourierProduct(_FourierParts):
    """All products of the Fourier features ``parts``, one for each of D inputs; M is the product of their numbers.

    For a product of D kernels ``Matern12``, ``Matern32`` or ``Matern52``, one of each input, as their ``active_dims``
    say: ``Matern32(1.0, 0.3, active_dims=(0,)) * Matern32(1.0, 0.5, active_dims=(1,))``.

    :raises ValueError: without parts, for a kernel of other inputs, or inputs outside the intervals.
    """

    parts: tuple[Fourier, ...]
    combination = Product

    @property
    def shape(self) -> tuple[int, int]:
        return prod(part.shape[0] for part in self.parts), len(self.parts)

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        product: Array = reduce(jnp.kron, [part.covariance(own) for part, own in self._pairs(kernel)])
        return product

    def root(self, kernel: Kernel) -> StructuredRoot:
        """The Kronecker product of the parts' roots."""
        return KroneckerRoot(tuple(part.root(own) for part, own in self._pairs(kernel)))

    def _together(self, of_parts: list[Array]) -> Array:
        both = lambda left, right: (left[..., :, None] * right[..., None, :]).reshape(*left.shape[:-1], -1)
        together: Array = reduce(both, of_parts)
        return together


@register_dataclass
@dataclass(frozen=True, eq=False)
class FourierSum(_FourierParts):
    """The Fourier features ``parts``, one for each of D inputs, side by side; M is the sum of their numbers.

    For a sum of D kernels ``Matern12``, ``Matern32`` or ``Matern52``, one of each input, as their ``active_dims`` say:
    of an additive function.

    :raises ValueError: without parts, for a kernel of other inputs, or inputs outside the intervals.
    """

    parts: tuple[Fourier, ...]
    combination = Sum

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), len(self.parts)

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        blocks: Array = block_diag(*(part.covariance(own) for part, own in self._pairs(kernel)))
        return blocks

    def root(self, kernel: Kernel) -> StructuredRoot:
        """The roots of the parts, as blocks."""
        return BlockRoot(tuple(part.root(own) for part, own in self._pairs(kernel)))

    def _together(self, of_parts: list[Array]) -> Array:
        return jnp.concatenate(of_parts, -1)


def _members(kernel: Kernel, combination: type[Product] | type[Sum]) -> list[Kernel]:
    """The kernels that are multiplied, or added."""
    if isinstance(kernel, combination):
        return [*_members(kernel.left, combination), *_members(kernel.right, combination)]
    return [kernel]
