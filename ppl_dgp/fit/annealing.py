"""Steps until a fit has converged: short trials of learning rates, then cycles of annealing, each twice as long.

In a trial and in a cycle the rate of Adam rises from a hundredth of its peak for half of the steps and falls
back to it by half a cosine (Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017;
Smith and Topin, "Super-Convergence", 2019): without the rise the first steps of a deep GP shrink it to its trivial
optimum. No peak suits all, so that each is tried from the start, and the one that ends lowest goes on; where all end
above the start, which is near an optimum then, it goes on from there at a tenth of the lowest peak. With twice the
steps the peak is lower by √2, as the best constant rate of stochastic gradients is. A cycle that ends above the one
before it is undone, and the peak halved, or is a tenth as long as all have led away from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpyro.infer.svi import SVIState

from ppl_dgp.fit.adam import scale_by_adam
from ppl_dgp.fit.convergence import Convergence, Phase, convergence_at, ends_of_parts, in_order, is_wild
from ppl_dgp.fit.program import fresh_copies

#: steps at the beginning of a trial or a cycle, at most and of its length, in which Adam's averages move and nothing
#: else: by those of the first trial the start is judged
STILL_STEPS, STILL_PART = 10, 0.1
#: the peak of a cycle beside that of the one before, that of one that was undone, and where all trials were
LOWERED, UNDONE, NEAR = math.sqrt(0.5), 0.5, 0.1
#: the rate at the beginning and the end beside the peak, and the part of a cycle in which it rises
LOWEST_RATE, RISING_PART = 0.01, 0.5


class Trial(NamedTuple):
    """A learning rate's peak that is tried, and the name of the state it is tried from."""

    peak: float
    start: str = "start"


class Turn(NamedTuple):
    """The state that goes on, whether the fit ends here, and which restarts go on, None if all do."""

    state: SVIState
    ended: bool
    survivors: list[int] | None


class AnnealedState(NamedTuple):
    """Adam's, and where in a cycle of what length and peak the rate is."""

    adam: Any
    taken: Array
    length: Array
    peak: Array


def share_of_peak(taken: Any, length: Any, xp: Any = jnp) -> Any:
    """The rate beside its peak when so many steps of a cycle are taken; ``xp`` NumPy compiles nothing."""
    done = taken / length
    falling = 0.5 * (1.0 + xp.cos(xp.pi * (done - RISING_PART) / (1.0 - RISING_PART)))
    share = LOWEST_RATE + (1.0 - LOWEST_RATE) * xp.where(done < RISING_PART, done / RISING_PART, falling)
    return xp.where(taken < still_steps(length, xp), 0.0, share)


def still_steps(length: Any, xp: Any = jnp) -> Any:
    """How many steps of a cycle leave the parameters where they are."""
    return xp.minimum(STILL_STEPS, STILL_PART * length)


@lru_cache(maxsize=8)
def annealed_adam(peak: float, length: int) -> optax.GradientTransformation:
    """Adam whose rate follows the cycle that its state says, at first one of that peak and length."""
    adam = scale_by_adam()

    def init(params: Any) -> AnnealedState:
        numbers = (
            jnp.zeros((), jnp.int32),
            jnp.asarray(length, jnp.int32),
            jnp.asarray(peak, jnp.result_type(float)),
        )
        return AnnealedState(adam.init(params), *numbers)

    def update(slopes: Any, state: Any, params: Any = None) -> tuple[Any, AnnealedState]:
        direction, inner = adam.update(slopes, state.adam, params)
        rate = state.peak * share_of_peak(state.taken, state.length)
        moves = jax.tree.map(lambda leaf: (-rate).astype(leaf.dtype) * leaf, direction)
        return moves, state._replace(adam=inner, taken=state.taken + 1)

    return optax.GradientTransformation(init, update)


@dataclass(frozen=True)
class AutoSteps:
    """Trials, then cycles, until every restart has converged or ``steps``, all of them, are spent."""

    trials: tuple[Trial, ...]
    trial: int
    steps: int
    tolerance: float
    #: whether restarts are rivals, of which the better half goes on after the trials and after each cycle
    halving: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """States that are gone back to: where trials begin, and the best."""
        return *dict.fromkeys(trial.start for trial in self.trials), "best"

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint is to have of its own: another budget or tolerance may go on with it."""
        return {"steps": "auto", "trials": [list(trial) for trial in self.trials], "trial": self.trial}

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Equal ones share compiled programs."""
        return annealed_adam(self.trials[0].peak, self.trial)

    def ends(self, steps: int) -> list[int]:
        """Numbers of steps at which a trial or a cycle ends, up to ``steps``."""
        found = [self.trial * (number + 1) for number in range(len(self.trials))]
        length = 2 * self.trial
        while found[-1] + length <= self.steps:
            found.append(found[-1] + length)
            length *= 2
        return [end for end in found if end <= steps]

    def turn(
        self, step: int, losses: Float[np.ndarray, "R steps"], state: SVIState, kept: dict[str, Any]
    ) -> Turn | None:
        """What goes on after a step: None if nothing changes.

        A function of its arguments, so that a resumed fit turns as one that was never stopped.

        :param kept: the states that trials begin at, and the ``best`` one of each restart, which is replaced.
        """
        ends = self.ends(step)
        if not ends or ends[-1] != step:
            return None
        phases = [self.phases(each) for each in losses]
        stacked = losses.shape[0] > 1
        latest = np.asarray([each[-1].kept for each in phases])
        kept["best"] = fresh_copies(_chosen(latest, state, kept["best"], stacked))
        ended = all(convergence_at(each, self.tolerance).converged for each in phases)
        done = len(ends) - len(self.trials)
        if done == 0:  # where all trials led away from it
            left = np.asarray([each[0].kind == "start" for each in phases])
            kept["best"] = fresh_copies(_chosen(left, kept["start"], kept["best"], stacked))
        following = self.trials[len(ends)] if done < 0 else None
        peaks = [_next_peak(each) if following is None else following.peak for each in phases]
        length = 2 * self.trial * 2**done if following is None else self.trial
        begun = self._at(kept["best" if following is None else following.start], step, length, peaks, stacked)
        return Turn(begun, ended, self._survivors(phases))

    def _survivors(self, phases: Sequence[Sequence[Phase]]) -> list[int] | None:
        """After trials and every cycle the better half of the restarts, where they are rivals; None if all go on."""
        trials = sum(phase.kind == "trial" for phase in phases[0])
        if not self.halving or len(phases) == 1 or trials < len(self.trials):
            return None
        ends = [_last_kept(each) for each in phases]
        order = in_order([end.loss for end in ends], [end.error for end in ends], self.tolerance)
        return sorted(order[: (len(ends) + 1) // 2])

    def convergence(
        self, losses: Float[np.ndarray, " steps"], rivals: Float[np.ndarray, "K steps"] | None = None
    ) -> Convergence:
        """What the losses of a restart say.

        :param rivals: those of restarts that were given up, infinite from there.
        """
        phases = self.phases(losses)
        if rivals is not None and len(rivals):
            lost = [ends_of_parts(each, [phase.end for phase in phases])[0] for each in rivals]
            phases = [
                replace(phase, rivals=tuple(each[n] for each in lost if np.isfinite(each[n])))
                for n, phase in enumerate(phases)
            ]
        return convergence_at(phases, self.tolerance)

    def phases(self, losses: Float[np.ndarray, " steps"]) -> list[Phase]:
        """Trials, of which the lowest so far is kept, and cycles, of which those are kept that did not rise."""
        ends = self.ends(len(losses))
        values, errors = ends_of_parts(losses, ends)
        begins, tried = [0, *ends], len(self.trials)
        lowest = in_order(values[:tried], errors[:tried], self.tolerance)[0] if ends else 0
        start, found = self._start(losses), []
        if len(ends) >= tried and _has_risen(values[lowest], errors[lowest], start, self.tolerance):
            # a start at an optimum, say of a poorer family, from which these rates lead away
            found, lowest = [start], -1
        found += [
            Phase(
                "trial", begins[n], ends[n], trial.peak, values[n], errors[n], n == lowest, origin=trial.start
            )
            for n, trial in enumerate(self.trials[: len(ends)])
        ]
        for n in range(tried, len(ends)):
            kept = not _has_risen(values[n], errors[n], _last_kept(found), self.tolerance)
            peak = _next_peak(found)
            found.append(Phase("cycle", begins[n], ends[n], peak, values[n], errors[n], kept))
        return found

    def rate_at(self, step: int, losses: Float[np.ndarray, " steps"]) -> float:
        """The learning rate of the step that follows so many, by a restart's losses of these."""
        ends = self.ends(step)
        done, begin = len(ends) - len(self.trials), ends[-1] if ends else 0
        if done < 0:
            peak, length = self.trials[len(ends)].peak, self.trial
        else:
            peak, length = _next_peak(self.phases(losses[:step])), 2 * self.trial * 2**done
        return peak * float(share_of_peak(step - begin, length, np))

    def _start(self, losses: Float[np.ndarray, " steps"]) -> Phase:
        """Where it starts, by the first steps, which move nothing."""
        still = max(1, min(int(still_steps(self.trial)), len(losses)))
        (loss,), (error,) = ends_of_parts(losses[:still], [still], whole=True)
        return Phase("start", 0, 0, 0.0, loss, error, True)

    def _at(self, state: SVIState, step: int, length: int, peaks: list[float], stacked: bool) -> SVIState:
        """The state at the beginning of a cycle, after a number of steps in all."""
        number, (params, annealed) = state.optim_state
        shape = np.shape(number)
        put = lambda value, like: jnp.broadcast_to(jnp.asarray(value, like.dtype), shape)
        begun = annealed._replace(
            taken=put(0, annealed.taken),
            length=put(length, annealed.length),
            peak=put(np.asarray(peaks) if stacked else peaks[0], annealed.peak),
        )
        optim_state = put(step, number), (params, begun)
        begun_state: SVIState = fresh_copies(state._replace(optim_state=optim_state))
        return begun_state


def rates(phases: Sequence[Phase]) -> Float[np.ndarray, " steps"]:
    """The learning rate at every step of trials and cycles."""
    parts = [
        phase.peak * share_of_peak(np.arange(phase.end - phase.begin), phase.end - phase.begin)
        for phase in phases
    ]
    return np.concatenate([np.asarray(part, float) for part in parts])


def _next_peak(phases: list[Phase]) -> float:
    """The peak of the cycle after these."""
    last = phases[-1]
    if last.kind == "cycle" and not last.kept:
        # a start that all cycles so far led away from is at an optimum that may be narrow by orders of magnitude
        return last.peak * (NEAR if _last_kept(phases).kind == "start" else UNDONE)
    if phases[0].kind == "start" and last.kind == "trial":
        return NEAR * min(phase.peak for phase in phases if phase.kind == "trial")
    return LOWERED * _last_kept(phases).peak


def _last_kept(phases: Sequence[Phase]) -> Phase:
    return next(phase for phase in reversed(phases) if phase.kept)


def _has_risen(loss: float, error: float, before: Phase, tolerance: float) -> bool:
    """Whether a loss is more than two standard errors above that of a phase before it, runs away, or is no number."""
    if is_wild(loss, error, before.loss, before.error, tolerance):
        return True
    noise = np.nan_to_num(2.0 * np.hypot(error, before.error), posinf=0.0)
    return not loss <= before.loss + noise


def _chosen(which: np.ndarray, new: Any, old: Any, stacked: bool) -> Any:
    """The leaves of one of two states, for each restart."""
    if not stacked:
        return new if which[0] else old
    mask = jnp.asarray(which)
    leaf = lambda ours, theirs: jnp.where(mask.reshape(-1, *[1] * (ours.ndim - 1)), ours, theirs)
    return jax.tree.map(leaf, new, old)
