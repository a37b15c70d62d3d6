"""Layout of several sequences, one after the other, in the event of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from ppl_dgp.numerics.compatibility import is_traced


@dataclass(frozen=True)
class Layout:
    """Layout of the states of S sequences in the event of a trajectory.

    :param first: whether a step is the first of its sequence.
    :param num_sequences: S.
    """

    first: Bool[Array, " T"]
    num_sequences: int = 1

    @property
    def sequence(self) -> Int[Array, " T"]:
        """The sequence of each step, from 0."""
        return jnp.cumsum(self.first) - 1

    @property
    def after(self) -> Int[Array, " T"]:
        """The slots of x_t."""
        return jnp.arange(self.first.shape[0]) + self.sequence + 1

    @property
    def beginning(self) -> Int[Array, " S"]:
        """The rows of the first steps."""
        return jnp.nonzero(self.first, size=self.num_sequences)[0]

    @property
    def initial(self) -> Int[Array, " S"]:
        """The slots of x_0."""
        return self.beginning + jnp.arange(self.num_sequences)

    def path(self, initial: Float[Array, "S *Q"], states: Float[Array, "T *Q"]) -> Float[Array, "slots *Q"]:
        """Initial states and those after the steps, in their slots."""
        empty = jnp.zeros((states.shape[0] + self.num_sequences, *states.shape[1:]), states.dtype)
        return empty.at[self.after].set(states).at[self.initial].set(initial)


def layout(num_steps: int, numbers: Num[Array, " T"] | None = None, num_sequences: int = 1) -> Layout:
    """The layout of T steps, each with the number of its sequence; one sequence if there are no numbers.

    :raises ValueError: if the rows of a sequence do not follow each other, or there are not S of them, where the
        numbers are concrete.
    """
    if numbers is None:
        return Layout(jnp.arange(num_steps) == 0)
    if not is_traced(numbers):
        rows = np.asarray(numbers)
        distinct, pieces = len(np.unique(rows)), 1 + int((np.diff(rows) != 0).sum())
        if distinct != num_sequences or pieces != distinct:
            raise ValueError(
                f"x: found {distinct} sequences in {pieces} pieces, expected {num_sequences}, the rows of each next to "
                "each other; sort the rows, or set num_sequences"
            )
    return Layout(jnp.concatenate([jnp.ones(1, bool), numbers[1:] != numbers[:-1]]), num_sequences)


def check_times(name: str, times: Num[Array, " T"]) -> None:
    """Refuse, by a ValueError, times between rows that are not positive numbers, where they are concrete."""
    if is_traced(times):
        return
    wrong = np.flatnonzero(~(np.isfinite(times) & (np.asarray(times) > 0.0)))
    if wrong.size:
        raise ValueError(
            f"{name}: found the time {float(times[wrong[0]]):g} of step {int(wrong[0])}, expected positive numbers, "
            "each the time since the row before; take the mean of the others for the first row of a sequence"
        )


def sequence_numbers(x: Num[Array, "T K"]) -> Num[Array, " T"]:
    """The last column, known wherever x is.

    :raises ValueError: where there is none.
    """
    if x.shape[1] == 0:
        raise ValueError(
            "x: found no columns, expected at least one, its last numbering the sequence of each row; give it, or "
            "leave num_sequences out"
        )
    with jax.ensure_compile_time_eval():
        return x[:, -1]
