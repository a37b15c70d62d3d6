"""Minibatches of a series: windows of contiguous steps, at any offset, of which some are at hand.

A sequence of n steps has n + L − 1 windows of L steps, one for every place at which a window may lie across it. Those
that stick out are moved inside, and what they did not cover does not count there: each step counts in L of them. Hence
K / (L W) times the sum over W windows drawn from all K is unbiased (docs/design.md, 4). A sequence shorter than L
repeats its last step, which does not count again. Shapes: T steps of S sequences, W windows at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from ppl_dgp.state_space.sequences import Layout

#: the attribute by which a model says how many windows its rows make
WINDOWS = "num_windows"


@dataclass(frozen=True)
class Windows:
    """How windows lie across a series, and which of them are at hand.

    :param length: L.
    :param layout: of the whole series.
    :param index: numbers of the windows at hand, in the order of the rows; None where the series is whole.
    """

    length: int
    layout: Layout
    index: Int[Array, " W"] | None = None

    @property
    def count(self) -> Int[Array, ""]:
        """K."""
        return self._per_sequence.sum()

    # of the windows at hand

    @property
    def first_rows(self) -> Int[Array, " W"]:
        """The first row of each window."""
        sequence, _ = self._places
        return self.layout.beginning[sequence] + self._starts

    @property
    def rows(self) -> Int[Array, " WL"]:
        """The rows at hand, window by window."""
        sequence, _ = self._places
        inside = jnp.minimum(self._steps, self._lengths[sequence][:, None] - 1)
        return (self.layout.beginning[sequence][:, None] + inside).reshape(-1)

    @property
    def counted(self) -> Bool[Array, " WL"]:
        """Whether a row counts here."""
        sequence, place = self._places
        covered = (self._steps >= place[:, None]) & (self._steps < place[:, None] + self.length)
        return (covered & (self._steps < self._lengths[sequence][:, None])).reshape(-1)

    @property
    def begins(self) -> Bool[Array, " W"]:
        """Whether the first step of a sequence counts in a window."""
        return self._places[1] <= 0

    @property
    def weight(self) -> Float[Array, ""]:
        """K / (L W), what a window stands for."""
        return self.count / (self.length * self.at_hand.shape[0])

    @property
    def at_hand(self) -> Int[Array, " W"]:
        """Numbers of the windows at hand."""
        if self.index is None:
            raise ValueError("windows: found the whole series, expected the numbers of some windows")
        return self.index

    @property
    def pieces(self) -> Layout:
        """The layout of the rows at hand, each window a sequence of its own."""
        number = self.at_hand.shape[0]
        return Layout(jnp.arange(number * self.length) % self.length == 0, number)

    # of the whole series, cut into windows one behind the other

    @property
    def end_to_end(self) -> Windows:
        """The same series with ⌈n / L⌉ windows of each sequence at hand, in which every step counts once."""
        steps, sequences = self.layout.first.shape[0], self.layout.num_sequences
        most = -(-steps // self.length) if sequences == 1 else steps // self.length + sequences
        last = jnp.cumsum(self._in_line)
        # beyond their number the last, once more
        number = jnp.minimum(jnp.arange(most), last[-1] - 1)
        sequence = jnp.searchsorted(last, number, side="right")
        place = (number - self.opening[sequence]) * self.length
        return replace(self, index=self._first_of_sequence[sequence] + place + self.length - 1)

    @property
    def opening(self) -> Int[Array, " S"]:
        """Which of the windows end to end begins each sequence."""
        return jnp.cumsum(self._in_line) - self._in_line

    @property
    def places(self) -> Int[Array, " T"]:
        """Where among the rows of the windows end to end, which are at hand, each row of the series counts."""
        total = self._in_line.sum()
        there = self.counted & (jnp.repeat(jnp.arange(self.at_hand.shape[0]), self.length) < total)
        rows = jnp.where(there, self.rows, self.layout.first.shape[0])
        places = jnp.zeros(self.layout.first.shape, int)
        return places.at[rows].set(jnp.arange(len(rows)), mode="drop")

    @property
    def _in_line(self) -> Int[Array, " S"]:
        return -(-self._lengths // self.length)

    @property
    def _lengths(self) -> Int[Array, " S"]:
        ends = jnp.append(self.layout.beginning[1:], self.layout.first.shape[0])
        return ends - self.layout.beginning

    @property
    def _per_sequence(self) -> Int[Array, " S"]:
        return self._lengths + self.length - 1

    @property
    def _first_of_sequence(self) -> Int[Array, " S"]:
        return jnp.cumsum(self._per_sequence) - self._per_sequence

    @property
    def _places(self) -> tuple[Int[Array, " W"], Int[Array, " W"]]:
        """Each window's sequence, and the step there at which it would begin, 1 − L … n − 1."""
        last = jnp.cumsum(self._per_sequence)
        index = jnp.minimum(self.at_hand, last[-1] - 1)
        sequence = jnp.searchsorted(last, index, side="right")
        return sequence, index - self._first_of_sequence[sequence] - (self.length - 1)

    @property
    def _starts(self) -> Int[Array, " W"]:
        """The step at which each window begins, in its sequence."""
        sequence, place = self._places
        return jnp.clip(place, 0, jnp.maximum(self._lengths[sequence] - self.length, 0))

    @property
    def _steps(self) -> Int[Array, "W L"]:
        return self._starts[:, None] + jnp.arange(self.length)


@dataclass(frozen=True)
class WindowSpec:
    """Says of rows x how many windows they make, K; of more than one sequence the last column numbers each row's.

    :param length: L.
    :param num_sequences: S.
    """

    length: int
    num_sequences: int = 1

    def __call__(self, x: Num[Array, "T C"]) -> int:
        """K.

        :raises ValueError: if all sequences are shorter than a window.
        """
        one = self.num_sequences == 1
        lengths = [x.shape[0]] if one else np.unique(np.asarray(x)[:, -1], return_counts=True)[1]
        if max(lengths) < self.length:
            raise ValueError(
                f"window: found {self.length} steps, expected at most {max(lengths)}, those of the longest sequence"
            )
        return int(sum(steps + self.length - 1 for steps in lengths))
