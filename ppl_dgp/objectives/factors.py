"""Factors of the likelihood, each treated with a power of its own (Bui 2017, 2.3.7).

One factor per row, or one per block of rows, whose covariance given u is then kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer

from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.content import content
from ppl_dgp.objectives.alpha import checked_alphas
from ppl_dgp.objectives.row_weights import checked_weights

#: so many rows at most in one block, whose covariance matrix is formed
LARGEST_BLOCK = 5000
#: consecutive blocks of so many rows, one block of all rows, or a label per row (N,): equal ones are a block
Blocks = int | Literal["all"] | Integer[np.ndarray, " N"] | Integer[Array, " N"]


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors and their powers.

    ``alpha`` is one power, or an array of one per row, or one per block where there are blocks, in the order of the
    rows or of the sorted labels. ``corrected`` says whether the energy has the term that makes it power EP's; without,
    it is the evidence of the model whose f given u has the covariance αD. ``weights`` say how often the factor of each
    row counts, once if None.
    """

    alpha: float | Array
    blocks: Blocks | None = None
    corrected: bool = True
    weights: Float[np.ndarray, " N"] | None = None

    @classmethod
    def checked(
        cls, name: str, alpha: Any, blocks: Any = None, corrected: bool = True, weights: Any = None
    ) -> Factors:
        """The factors of the objective ``name``.

        :raises TypeError: if alpha is no number or array of numbers, or blocks none of what :data:`Blocks` names.
        :raises ValueError: if an alpha is outside [0, 1], a block has less than one row, a weight is negative, or there
            are blocks and weights, which are of single rows.
        """
        powers = checked_alphas(name, alpha)
        if weights is not None:
            if blocks is not None:
                raise ValueError(f"{name}: weights: found some beside blocks of rows, expected either alone")
            return cls(powers, None, corrected, checked_weights(name, weights))
        if blocks is None:
            return cls(powers, None, corrected)
        if isinstance(blocks, str) and blocks == "all":
            return cls(powers, "all", corrected)
        if isinstance(blocks, int | np.integer) and not isinstance(blocks, bool):
            if blocks < 1:
                raise ValueError(f"{name}: blocks: found {blocks}, expected at least 1 row in each")
            return cls(powers, int(blocks), corrected)
        labelled = (
            isinstance(blocks, np.ndarray | jax.Array) and blocks.dtype.kind in "iu" and blocks.ndim == 1
        )
        if not labelled or is_traced(blocks):
            raise TypeError(
                f"{name}: blocks: found {type(blocks).__name__}, expected a number of rows, 'all', or an array of "
                "whole numbers, one label per row (N,), known before compilation"
            )
        return cls(powers, np.asarray(blocks), corrected)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factors) and content(self) == content(other)

    def __hash__(self) -> int:
        return hash(content(self))

    @property
    def plain(self) -> bool:
        """Whether this is the variational bound, α = 0 for all, without blocks, which change nothing there."""
        return self.at_zero and self.corrected

    @property
    def alike(self) -> bool:
        """Whether α = 0 for every row, and every row counts once."""
        return self.at_zero and self.weights is None

    @property
    def at_zero(self) -> bool:
        """Whether α = 0 for every row."""
        return isinstance(self.alpha, float) and self.alpha == 0.0 and self.blocks is None

    def members(self, rows: int) -> tuple[Int[np.ndarray, "F S"], Bool[np.ndarray, "F S"]] | None:
        """The rows of each block and whether there is one at that place, the blocks being of unequal size; or None.

        :raises ValueError: if the labels are not one per row, or a block has more than 5000.
        """
        if self.blocks is None:
            return None
        if isinstance(self.blocks, int):
            labels = np.arange(rows) // self.blocks
        elif isinstance(self.blocks, str):
            labels = np.zeros(rows, int)
        else:
            labels = np.asarray(self.blocks)
        if labels.shape != (rows,):
            raise ValueError(f"blocks: found {labels.shape[0]} labels, expected {rows}, one per row")
        _, block, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if sizes.max() > LARGEST_BLOCK:
            raise ValueError(
                f"blocks: found a block of {sizes.max()} rows, expected at most {LARGEST_BLOCK}, whose covariance "
                "matrix is formed; take smaller blocks"
            )
        order = np.argsort(block, kind="stable")
        starts = np.cumsum(sizes) - sizes
        members = np.zeros((len(sizes), sizes.max()), int)
        valid = np.arange(sizes.max()) < sizes[:, None]
        members[block[order], np.arange(rows) - starts[block[order]]] = order
        return members, valid

    def of_entries(self, outputs: int) -> Factors:
        """The same of the entries of rows, of so many outputs each, that belong to one factor with their row."""
        blocks = self.blocks
        if self.weights is not None:
            raise ValueError(
                "Collapsed: weights: found some beside entries that belong together in rows; take PowerEP"
            )
        if blocks is None:
            return self if self.at_zero else replace(self, blocks=outputs)
        if isinstance(blocks, int):
            return replace(self, blocks=blocks * outputs)
        return (
            self if isinstance(blocks, str) else replace(self, blocks=np.repeat(np.asarray(blocks), outputs))
        )

    def counts(self, rows: int) -> Float[np.ndarray, " N"] | None:
        """How often each of so many rows counts, None for once.

        :raises ValueError: if there are not as many weights.
        """
        if self.weights is not None and len(self.weights) != rows:
            raise ValueError(f"weights: found {len(self.weights)}, expected {rows}, one for each row")
        return self.weights

    def powers(self, count: int) -> float | Float[Array, ""] | Float[Array, " F"]:
        """α, checked against the number of factors.

        :raises ValueError: if there are not as many.
        """
        if not isinstance(self.alpha, float) and self.alpha.shape not in ((), (count,)):
            kind = "row" if self.blocks is None else "block"
            raise ValueError(f"alpha: found {self.alpha.shape[0]} powers, expected {count}, one per {kind}")
        return self.alpha

    def __str__(self) -> str:
        shown = f"{self.alpha:g}" if isinstance(self.alpha, float) else f"array of {self.alpha.shape}"
        parts = [f"alpha={shown}"]
        if self.blocks is not None:
            labels = not isinstance(self.blocks, int | str)
            parts.append(f"blocks={'labels' if labels else repr(self.blocks)}")
        if self.weights is not None:
            parts.append(f"weights=array of {self.weights.shape}")
        return ", ".join(parts if self.corrected else [*parts, "correction=False"])
