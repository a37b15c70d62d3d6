"""How many steps a stochastic fit takes: a given number, or until it has converged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import optax
from jaxtyping import Float
from numpyro.infer.svi import SVIState

from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.annealing import AutoSteps, Trial
from ppl_dgp.fit.convergence import Convergence, checked_tolerance, convergence_of

#: Adam's learning rate for a given number of steps
RATE = 0.01
#: of "auto" the peaks that are tried, the steps of each trial where the budget has room, and the most steps in all
PEAKS, TRIAL, BUDGET = (0.1, 0.3), 1600, 14_400
#: the peaks that are tried by where trials begin: "start", unless that is the usual one, which may be tried beside it
PEAKS_FROM: dict[str, dict[str, tuple[float, ...]]] = {
    "usual": {"start": PEAKS},
    "given": {"start": (0.03, 0.1)},
    "shallow": {"start": (0.03, 0.1), "usual": (0.1,)},
}


@dataclass(frozen=True)
class FixedSteps:
    """A given number of steps."""

    steps: int
    tolerance: float
    optimizer: optax.GradientTransformation
    #: of Adam; None where the optimiser has its own
    rate: float | optax.Schedule | None = None
    #: states that are gone back to, and what a checkpoint is to have of its own
    kept: ClassVar[tuple[str, ...]] = ()
    identity: ClassVar[dict[str, Any]] = {}

    def turn(
        self, step: int, losses: Float[np.ndarray, "R steps"], state: SVIState, kept: dict[str, Any]
    ) -> None:
        """Nothing changes."""

    def rate_at(self, step: int, losses: Float[np.ndarray, " steps"]) -> float:
        """The learning rate of the step that follows so many; NaN where it is not known."""
        if self.rate is None:
            return float("nan")
        return float(self.rate(step) if callable(self.rate) else self.rate)

    def convergence(
        self, losses: Float[np.ndarray, " steps"], rivals: Float[np.ndarray, "K steps"] | None = None
    ) -> Convergence:
        """What the losses of a restart say."""
        return convergence_of(losses, self.tolerance)


Plan = AutoSteps | FixedSteps


def plan_of(
    steps: int | str,
    budget: int,
    tolerance: float | None,
    rate: float | optax.Schedule | None,
    optimizer: optax.GradientTransformation | None,
    chunk: int,
    rows: int,
    patience: int | None = None,
    restarts: int = 1,
    *,
    begin: str = "usual",
) -> Plan:
    """The steps that are asked for; of "auto", trials and whole cycles within a budget.

    :param rate: of Adam; of "auto" the first peak, or None to try several.
    :param optimizer: in the place of Adam, None with "auto", like ``patience``.
    :param chunk: steps after which it is asked whether a fit has ended.
    :param rows: of the data, by which the tolerance is.
    :param restarts: of one problem, of which the better ones go on.
    :param begin: at the "usual" start, at one that is "given", or at a "shallow" one, one of ``PEAKS_FROM``.
    :raises ValueError: for a tolerance that is not positive; and beside "auto" for what goes with a number of steps, or
        a budget of less than a chunk for each trial and two for a cycle.
    """
    allowed = checked_tolerance(tolerance, rows)
    if not isinstance(steps, str):
        speed = RATE if rate is None else rate
        return FixedSteps(steps, allowed, optimizer or adam(speed), None if optimizer else speed)
    others = {"learning_rate": rate if callable(rate) else None, "optimizer": optimizer, "patience": patience}
    for name, value in others.items():
        if value is not None:
            found = "a schedule" if name == "learning_rate" else "one"
            raise ValueError(
                f"{name}: found {found} with steps='auto', which has its own; leave it out, or give a number of steps"
            )
    assert not callable(rate)
    peaks = PEAKS_FROM[begin]
    if rate is not None:
        peaks = dict.fromkeys(peaks, (float(rate),))
    trials = tuple(Trial(peak, start) for start, tried in peaks.items() for peak in tried)
    # a trial and the first cycle, which is twice as long, are what can be compared
    length = min(TRIAL, budget // (len(trials) + 2)) // chunk * chunk
    if length == 0:
        raise ValueError(
            f"budget: found {budget} with chunks of {chunk} steps, expected at least {chunk * (len(trials) + 2)}, for "
            "trials of learning rates and a cycle; raise it, or give steps"
        )
    plan = AutoSteps(trials, length, budget, allowed, restarts > 1)
    return replace(plan, steps=plan.ends(budget)[-1])
