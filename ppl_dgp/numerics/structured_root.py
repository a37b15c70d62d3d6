r"""Square roots W of positive matrices A = W Wᵀ that are known by their structure, in the place of a Cholesky factor.

.. math::
    A = \mathrm{diag}(d) + V V^\top, \quad W = D^{1/2} B_1 \cdots B_R, \quad B_r = I + c_r u_r u_r^\top, \quad
    c_r = \frac{1}{1 + t_r}, \quad t_r^2 = 1 + u_r^\top u_r, \quad u_r = B_{r-1}^{-1} \cdots B_1^{-1} D^{-1/2} v_r

B_r is the symmetric root of I + u uᵀ, with the inverse I − (c/t) u uᵀ: one rank after the other, without a division
that could fail. A product with W, Wᵀ, W⁻¹ or W⁻ᵀ costs O(M R). Kronecker products and blocks have those of their parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import prod

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.numerics.linalg import precise_matmul


class StructuredRoot(ABC):
    """A square matrix W (M, M), not triangular, known by its products with vectors."""

    @property
    @abstractmethod
    def size(self) -> int:
        """M."""

    @abstractmethod
    def product(
        self, x: Float[Array, "*batch M"], *, inverse: bool = False, transposed: bool = False
    ) -> Float[Array, "*batch M"]:
        """W x of each vector x in the last axis; with W⁻¹, Wᵀ or W⁻ᵀ in the place of W."""

    @property
    @abstractmethod
    def log_det(self) -> Float[Array, ""]:
        """log |W Wᵀ|."""

    @property
    @abstractmethod
    def unit(self) -> Float[Array, "M M"]:
        """The identity, in the precision of W."""

    def to_dense(self) -> Float[Array, "M M"]:
        """W."""
        return self.product(self.unit).T


@register_dataclass
@dataclass(frozen=True, eq=False)
class LowRankRoot(StructuredRoot):
    """The root of diag(d) + V Vᵀ: ``deviation`` √d (M,), and u_r (M, R), which :meth:`of` finds."""

    deviation: Float[Array, " M"]
    directions: Float[Array, "M R"]

    @classmethod
    def of(cls, diagonal: Float[Array, " M"], columns: Float[Array, "M R"]) -> LowRankRoot:
        """That of a positive diagonal d and the columns of V, of which there may be none."""
        deviation = jnp.sqrt(diagonal)
        root = cls(deviation, columns[:, :0])
        for r in range(columns.shape[1]):
            # what is left of a column within the ranks before it
            column = root.product(columns[:, r], inverse=True)
            root = cls(deviation, jnp.concatenate([root.directions, column[:, None]], 1))
        return root

    @property
    def size(self) -> int:
        return self.deviation.shape[0]

    def product(
        self, x: Float[Array, "*batch M"], *, inverse: bool = False, transposed: bool = False
    ) -> Float[Array, "*batch M"]:
        scale = 1.0 / self.deviation if inverse else self.deviation
        # W = D^½ B_1 … B_R has the scale on the left, as W⁻ᵀ has; Wᵀ and W⁻¹ begin with it
        begins = inverse != transposed
        ranks = range(self.directions.shape[1])
        if begins:
            x = x * scale
        for r in ranks if begins else reversed(ranks):
            direction, t = self.directions[:, r], self._stretches[r]
            gain = -1.0 / (t * (1.0 + t)) if inverse else 1.0 / (1.0 + t)
            x = x + gain * precise_matmul(x, direction)[..., None] * direction
        return x if begins else x * scale

    @property
    def log_det(self) -> Float[Array, ""]:
        return 2.0 * (jnp.log(self.deviation).sum() + jnp.log(self._stretches).sum())

    @property
    def unit(self) -> Float[Array, "M M"]:
        return jnp.eye(self.size, dtype=self.deviation.dtype)

    @property
    def _stretches(self) -> Float[Array, " R"]:
        """t, by which each B stretches its direction."""
        return jnp.sqrt(1.0 + jnp.square(self.directions).sum(0))


@dataclass(frozen=True, eq=False)
class _Parts(StructuredRoot):
    """Roots of parts, the first the slowest to vary."""

    parts: tuple[StructuredRoot, ...]

    @property
    def unit(self) -> Float[Array, "M M"]:
        return jnp.eye(self.size, dtype=self.parts[0].unit.dtype)


@register_dataclass
@dataclass(frozen=True, eq=False)
class KroneckerRoot(_Parts):
    """The root W_1 ⊗ … ⊗ W_D of a Kronecker product."""

    parts: tuple[StructuredRoot, ...]

    @property
    def size(self) -> int:
        return prod(part.size for part in self.parts)

    def product(
        self, x: Float[Array, "*batch M"], *, inverse: bool = False, transposed: bool = False
    ) -> Float[Array, "*batch M"]:
        batch = x.shape[:-1]
        x = x.reshape(*batch, *(part.size for part in self.parts))
        for axis, part in enumerate(self.parts, len(batch)):
            turned = part.product(jnp.moveaxis(x, axis, -1), inverse=inverse, transposed=transposed)
            x = jnp.moveaxis(turned, -1, axis)
        return x.reshape(*batch, self.size)

    @property
    def log_det(self) -> Float[Array, ""]:
        return jnp.stack([part.log_det * (self.size // part.size) for part in self.parts]).sum()


@register_dataclass
@dataclass(frozen=True, eq=False)
class BlockRoot(_Parts):
    """The root of a block-diagonal matrix, of the roots of its blocks."""

    parts: tuple[StructuredRoot, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def product(
        self, x: Float[Array, "*batch M"], *, inverse: bool = False, transposed: bool = False
    ) -> Float[Array, "*batch M"]:
        begun, products = 0, []
        for part in self.parts:
            block = x[..., begun : begun + part.size]
            products.append(part.product(block, inverse=inverse, transposed=transposed))
            begun += part.size
        return jnp.concatenate(products, -1)

    @property
    def log_det(self) -> Float[Array, ""]:
        return jnp.stack([part.log_det for part in self.parts]).sum()


@register_dataclass
@dataclass(frozen=True, eq=False)
class InverseRoot:
    """W⁻¹, or W⁻ᵀ, as a factor of matrix products: what stands where a Cholesky factor's inverse (M, M) does."""

    root: StructuredRoot
    transposed: bool = field(default=False, metadata={"static": True})

    @property
    def T(self) -> InverseRoot:
        """The transpose."""
        return InverseRoot(self.root, not self.transposed)

    def to_dense(self) -> Float[Array, "M M"]:
        """The matrix."""
        return self.root.unit @ self

    def __matmul__(self, x: Float[Array, "*batch M K"] | InverseRoot) -> Float[Array, "*batch M K"]:
        x = x.to_dense() if isinstance(x, InverseRoot) else x
        columns = jnp.swapaxes(x, -1, -2)
        return jnp.swapaxes(self.root.product(columns, inverse=True, transposed=self.transposed), -1, -2)

    def __rmatmul__(self, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        return self.root.product(x, inverse=True, transposed=not self.transposed)
