r"""Sums over rows that no parameter enters: of features whose functions φ no kernel changes, at α = 0.

.. math::
    G = \sum_n φ_n φ_n^\top, \qquad H = \sum_n φ_n t_n^\top, \qquad \sum_n t_n t_n^\top, \qquad t = (y, x, 1)

With k_u(x) = s φ(x), Kuu = W Wᵀ and y − m(x) = Cᵀt of an affine mean, a layer's regression is A = W⁻¹ s G s W⁻ᵀ/σ² and
b = W⁻¹ s H C/σ² (Hensman, Durrande & Solin 2018, 3.3): once the sums are known, nothing depends on N. They are taken in
64 bits and in pieces, for entries of A as large as N k/σ² stand beside the 1 of the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import inducing_site
from ppl_dgp.gp.features import FixedFunctions
from ppl_dgp.gp.means import Constant, Linear, Mean, Zero, affine
from ppl_dgp.gp.representation import answered
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.linalg import gram, precise_matmul
from ppl_dgp.numerics.structured_root import InverseRoot
from ppl_dgp.objectives.deterministic_inputs import piece_of, summed_in_pieces
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.objectives.regression import Features, Statistics


class RowSums(NamedTuple):
    """Σ φφᵀ, Σ φtᵀ and Σ ttᵀ of T = P + D + 1 columns t = (y, x, 1)."""

    gram: Float[Array, "M M"]
    products: Float[Array, "M T"]
    squares: Float[Array, "T T"]

    @classmethod
    def of(cls, features: FixedFunctions, x: Float[Array, "N D"], y: Float[Array, "N P"]) -> RowSums:
        """Those of rows, in O(N M²); memory is that of a piece of them."""

        def part(x: Array, y: Array) -> RowSums:
            phi = features.waves(x)
            columns = jnp.concatenate([y, x, jnp.ones_like(x[:, :1])], 1)
            return cls(gram(phi), precise_matmul(phi.T, columns), gram(columns))

        return summed_in_pieces(part, (x, y), piece_of(features))


class FixedRows(NamedTuple):
    """Rows ``x`` (N, D) and ``y`` (N, P) that were observed of a function with such features."""

    features: FixedFunctions
    x: Array
    y: Array


def double_sums(rows: Mapping[str, FixedRows]) -> dict[str, RowSums]:
    """The sums over rows that are known, in 64 bits whatever the precision of the program that they are for."""
    with jax.enable_x64(True):
        wide = {
            site: jax.tree.map(lambda leaf: leaf.astype(jnp.float64), each) for site, each in rows.items()
        }
        return {site: _compiled_sums(*each) for site, each in wide.items()}


_compiled_sums = jax.jit(RowSums.of)


class KnownSums(Messenger):
    """Gives sums over rows, by inducing site, to objectives that are evaluated inside it."""

    def __init__(self, sums: Mapping[str, RowSums]) -> None:
        super().__init__()
        self.sums = sums

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "row_sums":
            msg["value"] = self.sums.get(msg["site"])


@register_dataclass
@dataclass(frozen=True)
class SummedInputs(Features):
    """Observed rows under features whose functions are fixed, and their sums where they are known."""

    kernel: Kernel
    mean: Mean
    rows: FixedRows
    sums: RowSums | None

    wide = True

    @classmethod
    def of(cls, f: SparseGP, x: Float[Array, "N D"], y: Float[Array, "N P"]) -> SummedInputs:
        """Those of a function, with the sums that :class:`KnownSums` gives."""
        assert isinstance(f.inducing, FixedFunctions)
        sums = answered(None, type="row_sums", site=inducing_site(f.name))
        return cls(f.kernel, f.mean, FixedRows(f.inducing, x, y), sums)

    @staticmethod
    def may_sum(f: SparseGP, noise: Float[Array, "#N C"], factors: Factors) -> bool:
        """Whether all that observed rows say of a function is in their sums."""
        alike = factors.alike and len(noise) == 1
        return (
            alike and isinstance(f.inducing, FixedFunctions) and isinstance(f.mean, Zero | Constant | Linear)
        )

    def statistics(self, noise: Float[Array, "#N C"], factors: Factors) -> Statistics:
        """The sums under Gaussian noise that all rows share, whitened."""
        sums = RowSums.of(*self.rows) if self.sums is None else self.sums
        features, outputs, inputs = self.rows.features, self.rows.y.shape[1], self.rows.x.shape[1]
        scales, whiten = features.scales(self.kernel), InverseRoot(features.root(self.kernel))
        total = whiten @ (scales[:, None] * sums.gram * scales) @ whiten.T
        weights, bias = affine(self.mean, inputs)
        # y − m(x) = Cᵀt
        slopes = jnp.zeros((inputs, outputs), bias.dtype) if weights is None else -weights
        offsets = jnp.broadcast_to(-bias, (1, outputs))
        coefficients = jnp.concatenate([jnp.eye(outputs, dtype=bias.dtype), slopes, offsets])
        products = (whiten @ (scales[:, None] * precise_matmul(sums.products, coefficients))).T
        squares = (coefficients * precise_matmul(sums.squares, coefficients)).sum(0)
        count = sums.squares[-1, -1]
        variance = features.total_variance(self.kernel, count, jnp.diagonal(sums.gram))
        return Statistics.alike(total, products, squares, variance, count, noise[0], factors.corrected)
