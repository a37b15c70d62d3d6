"""What the guide's handler makes of a trajectory's site: a rule along it, its x_0, and the windows of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import tree
from jaxtyping import Array, Float
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.guides.ensemble import EnsembleSmoother
from ppl_dgp.guides.latents import Latent
from ppl_dgp.guides.rule import HiddenRule, knows_states
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.trajectory import Trajectory, without_mean


def guided_trajectory(
    name: str,
    trajectory: Trajectory,
    rule: HiddenRule,
    initial_rule: HiddenRule,
    start: Callable[[], Gaussian] | None,
    datum: Array | None,
) -> TrajectoryConditional:
    """q of a trajectory: a rule along it, and x_0, a latent without a GP in front.

    :param initial_rule: of x_0.
    :param start: gives where the model would have q of all states begin; around its mean if None.
    :param datum: x beside y, a row for each step, as amortised rules look at them.
    """
    if rule.depends_on.on_function:
        trajectory.check_followed()
    if isinstance(rule, EnsembleSmoother):
        return _by_ensembles(name, trajectory, rule, initial_rule)
    whole, windows = trajectory.whole or trajectory, trajectory.windows
    begin = start() if start is not None else Gaussian(whole.mean, jnp.ones(whole.event_shape))
    initial = _initial_states(name, trajectory, rule, initial_rule, begin, datum)
    if trajectory.whole is not None:
        return _in_windows(name, trajectory, rule, initial_rule, begin, initial, datum)
    step = without_mean(started_step(whole.steps(begin.mean), lambda: whole.states(begin)))
    params = rule.declare(name, step.batch_shape[0], step, _surroundings(datum, rule, whole))
    if windows is None or _smoothed(rule, initial_rule):
        return TrajectoryConditional(trajectory, rule, params, initial_rule, initial)
    windows = windows.end_to_end
    opening = tree.map(lambda leaf: leaf[windows.first_rows], initial)
    in_windows = trajectory.in_windows(windows)
    pieces = _in_windows(name, in_windows, rule, initial_rule, begin, opening, datum)
    initial = tree.map(lambda leaf: leaf[whole.layout.beginning], initial)
    return TrajectoryConditional(trajectory, rule, params, initial_rule, initial, pieces=pieces)


def _by_ensembles(
    name: str, trajectory: Trajectory, rule: EnsembleSmoother, initial_rule: HiddenRule
) -> TrajectoryConditional:
    """The rule of which nothing is learnt, x_0 included."""
    if initial_rule != rule and not initial_rule.depends_on.on_model:
        raise ValueError(
            f"latent: found {initial_rule!r} beside EnsembleSmoother(), whose x_0 is from p(x_0); leave it out"
        )
    if trajectory.whole is not None:
        raise ValueError(
            f"batch_size: found windows of {name!r}, of whose first states a filter knows nothing, expected whole "
            "sequences; leave batch_size out"
        )
    return TrajectoryConditional(trajectory, rule, {}, initial_rule, {})


def _initial_states(
    name: str,
    trajectory: Trajectory,
    rule: HiddenRule,
    initial_rule: HiddenRule,
    begin: Gaussian,
    datum: Array | None,
) -> Parameters:
    """Parameters of q(x_0), of every sequence; where no rule knows a window's start, of the state before each row.

    Of the latter those of the windows at hand, if they are not of the whole series.
    """
    whole, windows = trajectory.whole or trajectory, trajectory.windows
    each, rows = len(whole.layout.beginning), whole.layout.beginning
    chosen: Array | None = None
    if windows is not None and not _smoothed(rule, initial_rule):
        each = whole.controls.shape[0]
        rows = jnp.arange(each) if trajectory.whole is None else windows.first_rows
        chosen = None if trajectory.whole is None else rows
    slots, sequences = whole.layout.after[rows] - 1, whole.layout.sequence[rows]
    latent = Latent(
        dist.Normal(whole.initial.mean[sequences], whole.initial.scale[sequences]).to_event(1),
        lambda: tree.map(lambda leaf: leaf[slots], begin),
    )
    surroundings = _surroundings(datum, initial_rule, whole, rows)
    with nullcontext() if chosen is None else _Rows(chosen):
        found: Parameters = initial_rule.latent.declare(f"{name}_0", each, latent, surroundings)
    return found


def _in_windows(
    name: str,
    trajectory: Trajectory,
    rule: HiddenRule,
    initial_rule: HiddenRule,
    begin: Gaussian,
    initial: Parameters,
    datum: Array | None,
) -> TrajectoryConditional:
    """The rule at the rows of some windows, whose first states it knows or has parameters of."""
    whole, windows = trajectory.whole, trajectory.windows
    assert whole is not None and windows is not None
    rows = windows.rows
    states = whole.states(begin)
    step = trajectory.at(begin.mean[whole.layout.after[rows] - 1])
    step = without_mean(started_step(step, lambda: tree.map(lambda leaf: leaf[rows], states)))
    with _Rows(rows):
        params = rule.declare(name, whole.controls.shape[0], step, _surroundings(datum, rule, whole, rows))
    if not _smoothed(rule, initial_rule):
        return TrajectoryConditional(trajectory, rule, params, initial_rule, initial)
    # all rows once more: q of the state before a window
    step = whole.steps(begin.mean)
    everywhere = rule.declare(name, whole.controls.shape[0], step, _surroundings(datum, rule, whole))
    moments = TrajectoryConditional(whole, rule, everywhere, initial_rule, initial).moments("moments")
    slots = whole.layout.after[windows.first_rows] - 1
    begun = tree.map(lambda leaf: leaf[slots], moments)
    return TrajectoryConditional(trajectory, rule, params, initial_rule, initial, begun)


def _smoothed(rule: HiddenRule, initial_rule: HiddenRule) -> bool:
    """Whether q of the state before a window is known, so that it needs no parameters of its own."""
    return knows_states(rule) and (knows_states(initial_rule) or initial_rule.depends_on.on_model)


def started_step(step: Emission, start: Callable[[], Gaussian] | None) -> Emission:
    """The step that rules begin at: the model's own mean, or where the model would have q begin."""
    if start is None:
        return step
    return Emission(replace(step.marginal, mean=start().mean), step.likelihood, step.partly)


def _surroundings(
    datum: Float[Array, "T K"] | None, rule: HiddenRule, whole: Trajectory, rows: Array | None = None
) -> Float[Array, "B _"] | None:
    """What a network sees of each row of a series, the rows before and after it in its sequence too."""
    if datum is None:
        return None
    sequence = whole.layout.sequence
    if whole.layout.num_sequences > 1:
        # the column behind the controls only numbers the sequences
        datum = jnp.delete(datum, whole.controls.shape[1], axis=1)
    row, columns = jnp.arange(datum.shape[0]) if rows is None else rows, []
    for shift in range(-rule.around, rule.around + 1):
        neighbour = jnp.clip(row + shift, 0, datum.shape[0] - 1)
        inside = (neighbour == row + shift) & (sequence[neighbour] == sequence[row])
        columns.append(jnp.where(inside[:, None], datum[neighbour], 0.0))
    return jnp.concatenate(columns, 1)


class _Rows(Messenger):
    """Gathers some rows of the parameters that have a row for each step."""

    def __init__(self, rows: Array) -> None:
        super().__init__()
        self.rows = rows

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param" and msg["kwargs"].get("event_dim") is not None:
            msg["value"] = msg["value"][self.rows]
