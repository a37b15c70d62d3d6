"""What a fit says while it trains: to a callback after each chunk of steps, and by ``logging``.

The logger ``ppl_dgp.fit`` tells at INFO how trainings begin and end, which phases and restarts are kept, and what the
fit's advice is; at DEBUG it tells of each chunk. Nothing is shown unless a handler is set, as by
``logging.basicConfig(level="INFO")``; where nobody listens nothing is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ppl_dgp.fit.convergence import Convergence

if TYPE_CHECKING:
    from ppl_dgp.fit.result import Fit
else:  # its file stands above
    Fit = Any

logging.getLogger("ppl_dgp").addHandler(logging.NullHandler())
LOG = logging.getLogger("ppl_dgp.fit")


@dataclass(frozen=True)
class ChunkReport:
    """Where a training stands after a chunk of steps; of several restarts or fits side by side, of each that goes on.

    :param step: steps taken, of at most ``steps``.
    :param losses: the mean loss over the chunk in nats, infinite where all its steps were rejected.
    :param gaps: what steps without end would still gain in nats, an estimate; infinite where nothing is known.
    :param rates: the learning rate of the last step; NaN where there is none or an optimiser has its own.
    :param rejected: steps of the chunk, over all restarts, whose loss or gradient was not finite.
    :param seconds: since the beginning, over all sessions.
    :param slope: the largest entry of the gradient in the unconstrained parameters; NaN where the engine keeps none, as
        Adam's does not.
    """

    step: int
    steps: int
    losses: tuple[float, ...]
    gaps: tuple[float, ...]
    rates: tuple[float, ...]
    rejected: int
    seconds: float
    slope: float = float("nan")

    @property
    def loss(self) -> float:
        """The lowest."""
        return min(self.losses)

    @property
    def gap(self) -> float:
        """That of the lowest loss."""
        return self.gaps[self._lowest]

    @property
    def learning_rate(self) -> float:
        """That of the lowest loss."""
        return self.rates[self._lowest]

    @property
    def _lowest(self) -> int:
        return self.losses.index(self.loss)


#: is called after each chunk; True ends the training there
Callback = Callable[[ChunkReport], bool | None]


def reported(callback: Callback | None, report: Callable[[], ChunkReport]) -> bool:
    """Tell who listens; whether the training is to stop. The report is made only where somebody does."""
    if callback is None and not LOG.isEnabledFor(logging.DEBUG):
        return False
    found = report()
    LOG.debug(
        "step %d of at most %d: loss %.6g, gap %.2g, learning rate %.2g, %d rejected, %.1f s",
        found.step, found.steps, found.loss, found.gap, found.learning_rate, found.rejected, found.seconds,
    )  # fmt: skip
    return callback is not None and bool(callback(found))


def chunk_losses(losses: Float[np.ndarray, "R steps"]) -> tuple[float, ...]:
    """The mean over the steps that were not rejected, infinite where all were."""
    finite = np.isfinite(losses)
    means = [
        float(row[kept].mean()) if kept.any() else np.inf for row, kept in zip(losses, finite, strict=True)
    ]
    return tuple(means)


def tell_begin(going: int, step: int, steps: int) -> None:
    """Say that steps begin, or go on."""
    LOG.info("training: %d side by side, from step %d, at most %d", going, step, steps)


def tell_turn(
    step: int, numbers: Sequence[int], known: Sequence[Convergence], survivors: Sequence[int] | None
) -> None:
    """Say how a phase of each restart or member ended, and which of them go on.

    :param numbers: of those that were trained, ``known`` what is known of each.
    :param survivors: the places of those that go on, None if all do.
    """
    if not LOG.isEnabledFor(logging.INFO):
        return
    for number, each in zip(numbers, known, strict=True):
        last = each.phases[-1]
        LOG.info(
            "number %d, %s of %d steps to step %d: learning rate up to %.2g, loss %.6g ± %.1g, %s; %s",
            number, last.kind, last.end - last.begin, step, last.peak, last.loss, last.error,
            "kept" if last.kept else "undone", each.shown,
        )  # fmt: skip
    if survivors is not None:
        LOG.info("numbers that go on: %s", ", ".join(str(numbers[place]) for place in survivors))


def tell_end(fit: Fit) -> None:
    """Say how a training has ended, and what the fit's advice is."""
    if not LOG.isEnabledFor(logging.INFO):
        return
    shown = "nothing is known of its convergence" if fit.convergence is None else fit.convergence.shown
    LOG.info("trained: %d steps in %.3g s, %s", fit.steps, fit.seconds, shown)
    for text in fit.advice:
        LOG.info("advice: %s", text)
