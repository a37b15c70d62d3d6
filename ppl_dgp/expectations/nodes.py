"""Expectations by a weighted sum over nodes, for kernels without a closed form.

One and two dimensions: Gauss-Hermite nodes, 32 or 20 x 20, good where the kernel is smooth over the width of the
input. More: the 2D points m ± √D L e_d of the third-degree cubature rule (the unscented transform without its central
point), exact for cubic polynomials and otherwise a rough approximation, whatever its gradient says.
Source: Arasaratnam & Haykin (2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations.blocks import map_rows
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian

_HERMITE_NODES = {1: 32, 2: 20}


def cubature(dims: int) -> tuple[np.ndarray, np.ndarray]:
    """The points ±√D e_d, (2D, D), and their equal weights, (2D,): exact for cubic polynomials of N(0, I)."""
    points = np.sqrt(dims) * np.concatenate([np.eye(dims), -np.eye(dims)])
    return points, np.full(2 * dims, 0.5 / dims)


@lru_cache
def quadrature(dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (S, D) and weights (S,) for N(0, I): Gauss-Hermite for D ≤ 2, else ``cubature``."""
    if dims not in _HERMITE_NODES:
        return cubature(dims)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_HERMITE_NODES[dims])
    grid = np.stack(np.meshgrid(*[nodes] * dims, indexing="ij"), axis=-1).reshape(-1, dims)
    products = np.prod(np.stack(np.meshgrid(*[weights] * dims, indexing="ij"), axis=-1), axis=-1).ravel()
    return grid, products / products.sum()


def at_nodes(inputs: Gaussian, nodes: np.ndarray) -> Float[Array, "B S D"]:
    """m + L ξ_s for each datum and node."""
    points = jnp.asarray(nodes, inputs.mean.dtype)
    if inputs.scale.ndim == 2:
        return inputs.mean[:, None] + inputs.scale[:, None] * points
    moved = jnp.matmul(points, jnp.swapaxes(inputs.scale, -1, -2), precision="highest")
    return inputs.mean[:, None] + moved


def diagonal(kernel: Kernel, inputs: Gaussian, rule: tuple[np.ndarray, np.ndarray]) -> Float[Array, " B"]:
    """⟨k(h, h)⟩ by the rule's nodes and weights."""
    nodes, weights = rule
    h = at_nodes(inputs, nodes)
    values = kernel.diag(h.reshape(-1, h.shape[-1])).reshape(h.shape[:2])
    return values @ jnp.asarray(weights, values.dtype)


@dataclass(frozen=True)
class CubatureExpectations:
    """The statistics of any kernel without ``White`` parts, each the same sum over nodes."""

    kernel: Kernel
    dims: int

    def row_size(self, num_inducing: int) -> int:
        """Numbers held at once for each row."""
        return num_inducing * max(num_inducing, len(quadrature(self.dims)[1]))

    def psi1(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M"]:
        """⟨k(h, z_m)⟩."""

        def rows(part: Gaussian) -> Array:
            return jnp.sum(self._at_nodes(part, z)[2], axis=1)

        return map_rows(rows, inputs, self.row_size(z.shape[0]))

    def psi2(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M"]:
        """⟨k(h, z_m) k(h, z_m')⟩, all rows at once."""
        _, k, weighted = self._at_nodes(inputs, z)
        return jnp.einsum("bsm,bsn->bmn", weighted, k, precision="highest")

    def psi2_between(
        self,
        other: CubatureExpectations,
        inputs: Gaussian,
        z: Float[Array, "M D"],
        z_other: Float[Array, "K D"],
    ) -> Float[Array, "B M K"]:
        """⟨k(h, z_m) k'(h, z'_k)⟩, k' the kernel of ``other``, all rows at once."""
        weighted, k = self._at_nodes(inputs, z)[2], other._at_nodes(inputs, z_other)[1]
        return jnp.einsum("bsm,bsn->bmn", weighted, k, precision="highest")

    def input_kernel(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D"]:
        """⟨h k(h, z_m)⟩."""

        def rows(part: Gaussian) -> Array:
            h, _, weighted = self._at_nodes(part, z)
            return jnp.einsum("bsm,bsd->bmd", weighted, h, precision="highest")

        return map_rows(rows, inputs, self.row_size(z.shape[0]))

    def input_input_kernel(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D D"]:
        """⟨h hᵀ k(h, z_m)⟩."""

        def rows(part: Gaussian) -> Array:
            h, _, weighted = self._at_nodes(part, z)
            return jnp.einsum("bsm,bsde->bmde", weighted, h[..., None] * h[..., None, :], precision="highest")

        return map_rows(rows, inputs, self.row_size(z.shape[0]))

    def kernel_kernel_input(self, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M D"]:
        """⟨k(h, z_m) k(h, z_m') h⟩, all rows at once."""
        h, k, weighted = self._at_nodes(inputs, z)
        return jnp.einsum("bsm,bsnd->bmnd", weighted, k[..., None] * h[:, :, None], precision="highest")

    def _at_nodes(self, inputs: Gaussian, z: Array) -> tuple[Array, Array, Array]:
        """The nodes h_s (B, S, D), k(h_s, z_m) (B, S, M), and the same times the weights."""
        nodes, weights = quadrature(self.dims)
        h = at_nodes(inputs, nodes)
        k = self.kernel(h.reshape(-1, self.dims), z).reshape(*h.shape[:2], -1)
        return h, k, jnp.asarray(weights, k.dtype)[:, None] * k
