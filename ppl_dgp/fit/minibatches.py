"""What minibatches are made of, rows or windows of a series, and which of them a chunk of steps sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, UInt

from ppl_dgp.state_space.windows import WINDOWS


class Units(NamedTuple):
    """What a minibatch has ``per_batch`` of: all are ``number`` rows, or so many ``windows`` (None for rows)."""

    number: int
    per_batch: int
    windows: int | None = None


def in_windows(model: Callable[..., Any]) -> bool:
    """Whether a model's minibatches are windows of a series, of which there may be more than rows, for they overlap."""
    return getattr(model, WINDOWS, None) is not None


def units_of(model: Callable[..., Any], x: Float[jax.Array, "N D"], batch_size: int | None) -> Units:
    """The units of a model's minibatches of ``batch_size`` rows, or of all rows at once (None).

    :raises ValueError: for a size that is no whole number of windows, or more than there are.
    """
    if batch_size is None or not in_windows(model):
        return Units(x.shape[0], batch_size or x.shape[0])
    count = getattr(model, WINDOWS)
    windows, length = count(x), count.length
    if batch_size % length != 0 or batch_size // length > windows:
        raise ValueError(
            f"batch_size: found {batch_size}, expected a multiple of {length}, the model's window, up to "
            f"{windows * length}, all {windows} windows; change it or leave it out"
        )
    return Units(windows, batch_size // length, windows)


def minibatches(
    words: UInt[np.ndarray, " words"], number: int, chunk: int, batch_size: int, rows: int
) -> Int[np.ndarray, "chunk B"]:
    """Rows of the minibatches of chunk ``number``, a function of the arguments; every row is equally likely.

    No row is in a minibatch twice. Shuffled epochs one after another, without their last rows that are fewer than a
    minibatch, if a chunk is at least an epoch; else independent draws, which cost O(B) a step. On the host, where a
    permutation costs a tenth of what a sort costs on the device.
    """
    random = np.random.default_rng([*map(int, words), number])
    drawn = chunk * batch_size
    if drawn < rows:
        return np.stack([random.choice(rows, batch_size, replace=False) for _ in range(chunk)]).astype(
            np.int32
        )
    whole = rows // batch_size
    epochs = [random.permutation(rows)[: whole * batch_size] for _ in range(-(-chunk // whole))]
    return np.concatenate(epochs)[:drawn].reshape(chunk, batch_size).astype(np.int32)
