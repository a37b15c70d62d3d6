"""Minibatches of a series: it is cut into windows of contiguous steps, of which some are at hand.

Each sequence of length n is cut into ⌈n / L⌉ windows of L steps. The last one is moved back to end where the sequence
does, and what it shares with the one before counts there. The sum over all windows of what counts is that of the whole
series, so that K / W times the sum over W windows drawn from all K is unbiased (docs/design.md, 4). Shapes: T steps of
S sequences, W windows at hand.
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
    """How a series is cut, and which of its windows are at hand.

    :param length: L.
    :param layout: of the whole series.
    :param index: numbers of the windows at hand, in the order of the rows; None where the series is whole.
    """

    length: int
    layout: Layout
    index: Int[Array, " W"] | None = None

    @property
    def most(self) -> int:
        """At most so many windows, whatever the lengths of the sequences."""
        steps, sequences = self.layout.first.shape[0], self.layout.num_sequences
        return -(-steps // self.length) if sequences == 1 else steps // self.length + sequences

    @property
    def per_sequence(self) -> Int[Array, " S"]:
        """Number of windows of each sequence."""
        return -(-self._lengths // self.length)

    @property
    def count(self) -> Int[Array, ""]:
        """K."""
        return self.per_sequence.sum()

    @property
    def opening(self) -> Int[Array, " S"]:
        """The number of the window that begins each sequence."""
        return jnp.cumsum(self.per_sequence) - self.per_sequence

    def first_rows(self, index: Int[Array, " W"]) -> Int[Array, " W"]:
        """The first row of each window; beyond the last number that of the last."""
        sequence, number = self._places(index)
        start = jnp.minimum(number * self.length, self._lengths[sequence] - self.length)
        return self.layout.beginning[sequence] + start

    @property
    def all_first_rows(self) -> Int[Array, " most"]:
        """The first row of every window there may be."""
        return self.first_rows(jnp.arange(self.most))

    # of the windows at hand

    @property
    def rows(self) -> Int[Array, " WL"]:
        """The rows at hand, window by window."""
        return (self.first_rows(self.at_hand)[:, None] + jnp.arange(self.length)).reshape(-1)

    @property
    def counted(self) -> Bool[Array, " WL"]:
        """Whether a row counts here, or in the window before."""
        sequence, number = self._places(self.at_hand)
        shared = number * self.length - jnp.minimum(
            number * self.length, self._lengths[sequence] - self.length
        )
        return (jnp.arange(self.length) >= shared[:, None]).reshape(-1)

    @property
    def places(self) -> Int[Array, " T"]:
        """Where among the rows at hand each row of the series counts, all windows being at hand."""
        numbers = jnp.repeat(self.at_hand, self.length)
        rows = jnp.where(self.counted & (numbers < self.count), self.rows, self.layout.first.shape[0])
        places = jnp.zeros(self.layout.first.shape, int)
        return places.at[rows].set(jnp.arange(len(rows)), mode="drop")

    @property
    def all_at_hand(self) -> Windows:
        """The same series with all its windows at hand; beyond their number the last, once more."""
        return replace(self, index=jnp.arange(self.most))

    @property
    def begins(self) -> Bool[Array, " W"]:
        """Whether a window begins its sequence."""
        return self._places(self.at_hand)[1] == 0

    @property
    def weight(self) -> Float[Array, ""]:
        """K / W, what a window stands for."""
        return self.count / self.at_hand.shape[0]

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

    @property
    def _lengths(self) -> Int[Array, " S"]:
        ends = jnp.append(self.layout.beginning[1:], self.layout.first.shape[0])
        return ends - self.layout.beginning

    def _places(self, index: Int[Array, " W"]) -> tuple[Int[Array, " W"], Int[Array, " W"]]:
        """Each window's sequence, and its number there."""
        last = jnp.cumsum(self.per_sequence)
        index = jnp.minimum(index, last[-1] - 1)
        sequence = jnp.searchsorted(last, index, side="right")
        return sequence, index - self.opening[sequence]


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

        :raises ValueError: if a sequence is shorter than a window.
        """
        one = self.num_sequences == 1
        lengths = [x.shape[0]] if one else np.unique(np.asarray(x)[:, -1], return_counts=True)[1]
        if min(lengths) < self.length:
            raise ValueError(
                f"window: found {self.length} steps, expected at most {min(lengths)}, those of the shortest sequence"
            )
        return int(sum(-(-steps // self.length) for steps in lengths))
