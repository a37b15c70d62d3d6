"""Whether a stochastic fit has converged: what steps without end would still gain.

Where the learning rate has been brought down the loss is nearly free of what the rate adds to it, so that losses at
such moments may be compared. Twice the steps have gained g; where the loss nears its optimum by a power of the steps
the gains of all doublings to come are a geometric series. Its sum is the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

#: of a part of a fit, the last steps whose mean loss is that of its end: a share of them, and the fewest
LAST_PART, FEWEST_LAST = 0.1, 5
#: of a gain, the part that the next doubling gains, at least and at most; and where nothing is known of it
LEAST_RATIO, MOST_RATIO, USUAL_RATIO = 0.25, 0.8, 0.5
#: steps of a given rate below which nothing is known
FEWEST_STEPS = 100
#: iterations of a descent after which it is first asked, and the fewest by which anything is known
FIRST_CHECK, FEWEST_ITERATIONS = 50, 8
#: losses that vary by so many times more than others run away; they are the lower ones by so many standard errors alone
WILD, SURELY = 10.0, 4.0
#: the size of losses that may be squared and added up
LARGEST_SQUARED = 1e100
#: nats a row, and in all, that a fit may be away from its optimum
TOLERANCE_PER_ROW, LEAST_TOLERANCE = 0.001, 0.5


@dataclass(frozen=True)
class Phase:
    """A part of a fit, at whose end its loss is compared with those of others.

    :param kind: ``"trial"`` of a learning rate, ``"cycle"`` of annealing, or ``"part"`` of a given number of steps;
        ``"start"``, of no steps, where all trials ended above it.
    :param begin, end: its first step and the one after its last.
    :param peak: the highest learning rate in it; 0 of a part, whose rate is not looked at.
    :param loss: at its end, infinite where all its last steps were rejected, and its standard ``error``.
    :param kept: whether the fit goes on from its end; else it was undone.
    :param rivals: losses at its end of restarts that were given up later, or there.
    :param origin: where a trial began: at the fit's ``"start"``, or at the ``"usual"`` one where that is a shallow one.
    """

    kind: str
    begin: int
    end: int
    peak: float
    loss: float
    error: float
    kept: bool
    rivals: tuple[float, ...] = ()
    origin: str = "start"


@dataclass(frozen=True)
class Convergence:
    """How far a fit is from its optimum, in nats.

    :param gap: what steps without end would gain; infinite where nothing is known of it.
    :param error: its standard error.
    :param tolerance: the gap that is as good as none.
    :param phases: the parts of the fit, in order; the gap is by the losses of those that were kept.
    :param shortfall: how far it has ended below a poorer family, which it contains and began at; 0 if not.
    """

    gap: float
    error: float
    tolerance: float
    phases: tuple[Phase, ...]
    shortfall: float = 0.0

    @property
    def largest(self) -> float:
        """The gap that its noise allows: two standard errors more."""
        return self.gap + 2.0 * self.error

    @property
    def converged(self) -> bool:
        """Whether the largest gap is within the tolerance, and nothing speaks against it."""
        return self.largest <= self.tolerance and self.shortfall == 0.0

    def after(self, steps: int) -> Convergence:
        """The same of a fit that began after so many steps of another."""
        shifted = (replace(each, begin=each.begin + steps, end=each.end + steps) for each in self.phases)
        return replace(self, phases=tuple(shifted))

    @property
    def shown(self) -> str:
        """In a few words."""
        if self.shortfall:
            return f"not converged, {self.shortfall:.2g} nats below a poorer family that it contains"
        if not np.isfinite(self.gap + self.error):
            return "too few steps to tell whether converged"
        word = "converged" if self.converged else "not converged"
        return f"{word}, {self.gap:.2g} ± {self.error:.1g} nats to gain, {self.tolerance:.2g} allowed"


@dataclass(frozen=True)
class Leg:
    """A poorer family on a path: its guide in words, its bound at its end, and how far it was from its optimum.

    :param bound: minus the loss in nats, over a number of draws, and its standard ``error``.
    :param steps, seconds: of its training.
    """

    guide: str
    bound: float
    error: float
    convergence: Convergence | None
    steps: int
    seconds: float


def checked_tolerance(tolerance: float | None, rows: int) -> float:
    """The tolerance in nats; if None a thousandth of a nat a row, half a nat at least.

    :raises ValueError: if it is not positive.
    """
    if tolerance is None:
        return max(LEAST_TOLERANCE, TOLERANCE_PER_ROW * rows)
    if isinstance(tolerance, bool) or not (np.ndim(tolerance) == 0 and tolerance > 0):
        raise ValueError(
            f"tolerance: found {tolerance!r}, expected a positive number of nats; change it or leave it out"
        )
    return float(tolerance)


def convergence_of(
    losses: Float[np.ndarray, " steps"], tolerance: float, fewest: int = FEWEST_STEPS
) -> Convergence:
    """What the losses say of a fit of a given number of steps; NaN stands for steps that were rejected.

    The quarter, the half and the end of its steps are compared: what a constant rate adds to all of them cancels.

    :param fewest: steps below which nothing is known.
    """
    steps = len(losses)
    ends = [steps // 4, steps // 2, steps] if steps >= fewest else []
    values, errors = ends_of_parts(losses, ends)
    parts = zip([0, *ends], ends, values, errors, strict=False)
    phases = [Phase("part", *part[:2], 0.0, *part[2:], True) for part in parts]
    return convergence_at(phases, tolerance)


def convergence_of_descent(
    losses: Float[np.ndarray, " steps"], tolerance: float, foreseen: float, done: bool
) -> Convergence:
    """What is known of a descent of a loss without noise, by the gains of iterations that doubled.

    :param foreseen: the decrease of the last iteration as a quadratic has it.
    :param done: whether it has ended by itself, so that there are no more gains but of that size.
    """
    known = convergence_of(losses, tolerance, FEWEST_ITERATIONS)
    # what such losses vary by is their slope
    return replace(known, gap=foreseen if done else max(known.gap, foreseen), error=0.0)


def until_check(done: int) -> int:
    """Iterations until it is asked whether a descent has converged: after some, and whenever they have doubled."""
    check = FIRST_CHECK
    while check <= done:
        check *= 2
    return check - done


def ends_of_parts(
    losses: Float[np.ndarray, " steps"], ends: Sequence[int], whole: bool = False
) -> tuple[list[float], list[float]]:
    """The loss at the end of each part, infinite where all its steps were rejected, and its standard error.

    :param whole: whether it is that of the whole part.
    """
    values, errors, begin = [], [], 0
    for end in ends:
        last = losses[begin if whole else end - max(FEWEST_LAST, int(LAST_PART * (end - begin))) : end]
        kept = last[np.isfinite(last)]
        # the squares of losses that run away are no numbers
        size = max(1.0, float(np.abs(kept).max(initial=0.0)) / LARGEST_SQUARED)
        kept = kept / size
        values.append(size * float(kept.mean()) if len(kept) else np.inf)
        # of differences, for what is left of a slope is no noise
        errors.append(
            size * float(np.diff(kept).std() / np.sqrt(2.0 * len(kept))) if len(kept) > 2 else np.inf
        )
        begin = end
    return values, errors


def is_wild(loss: float, error: float, calm: float, calm_error: float, tolerance: float) -> bool:
    """Whether a loss varies by orders of magnitude more than a calm one and is not surely lower, by whatever mean.

    Where the draws of a step run away its mean is that of the last outlier, of either sign.

    :param tolerance: nats below which no error matters.
    """
    varies = bool(np.isfinite(error)) and error > max(WILD * calm_error, tolerance)
    return varies and not loss + SURELY * error < calm


def in_order(losses: Sequence[float], errors: Sequence[float], tolerance: float) -> list[int]:
    """The numbers of some losses, the lowest first, and those last that vary wildly beside the calmest."""
    calmest = min(range(len(losses)), key=lambda n: errors[n] if np.isfinite(losses[n]) else np.inf)
    calm = losses[calmest], errors[calmest]
    last = [is_wild(*pair, *calm, tolerance) for pair in zip(losses, errors, strict=True)]
    return sorted(range(len(losses)), key=lambda n: (last[n], losses[n]))


def convergence_at(phases: Sequence[Phase], tolerance: float) -> Convergence:
    """What phases say, each of those that were kept about twice as long as all before."""
    kept = [phase for phase in phases if phase.kept]
    gap, error = _gap(np.asarray([each.loss for each in kept]), np.asarray([each.error for each in kept]))
    return Convergence(gap, error, tolerance, tuple(phases))


def _gap(values: Float[np.ndarray, " parts"], errors: Float[np.ndarray, " parts"]) -> tuple[float, float]:
    """The sum of the gains to come, and its standard error."""
    if len(values) < 2 or not np.isfinite(values[-2:]).all():
        return np.inf, np.inf
    gains = values[:-1] - values[1:]
    noise = float(np.hypot(errors[-1], errors[-2]))
    ratio = USUAL_RATIO
    if len(gains) > 1 and np.isfinite(gains[-2]) and gains[-2] > 2.0 * noise:
        ratio = float(np.clip(gains[-1] / gains[-2], LEAST_RATIO, MOST_RATIO))
    # a loss that has risen has nothing to say of what is left, but that it is within the rise
    return abs(float(gains[-1])) * ratio / (1.0 - ratio), noise * ratio / (1.0 - ratio)
