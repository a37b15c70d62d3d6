"""Moments and extremes of columns, block by block: those of two sets of rows make those of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ppl_dgp.data.table import Standardiser


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """Mean, standard deviation (divisor N) and extremes of K columns."""

    count: int
    mean: Float[np.ndarray, " K"]
    scale: Float[np.ndarray, " K"]
    low: Float[np.ndarray, " K"]
    high: Float[np.ndarray, " K"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "n K"]) -> ColumnStatistics:
        """Statistics of rows at hand."""
        mean = values.mean(axis=0)
        deviation = np.abs(values - mean)
        unit = deviation.max(axis=0)
        unit = np.where(unit > 0.0, unit, 1.0)  # no square overflows
        scale = unit * np.sqrt(np.mean((deviation / unit) ** 2, axis=0))
        return cls(len(values), mean, scale, values.min(axis=0), values.max(axis=0))

    def merged(self, other: ColumnStatistics) -> ColumnStatistics:
        """Statistics of both sets; Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983."""
        count = self.count + other.count
        share, other_share = self.count / count, other.count / count
        shift = other.mean - self.mean
        # s² = (n s_1² + m s_2²) / (n + m) + (m_2 − m_1)² n m / (n + m)²
        within = np.hypot(self.scale * np.sqrt(share), other.scale * np.sqrt(other_share))
        return ColumnStatistics(
            count,
            self.mean + shift * other_share,
            np.hypot(within, shift * np.sqrt(share * other_share)),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def units(self) -> Standardiser:
        """Mean and scale of the columns; scale 1 where one is constant to rounding."""
        info = np.finfo(np.float64)
        rounding = np.maximum(8 * info.eps * np.maximum(np.abs(self.low), np.abs(self.high)), info.tiny)
        varies = np.maximum(self.high - self.mean, self.mean - self.low) > rounding
        return Standardiser(self.mean, np.where(varies, self.scale, 1.0))
