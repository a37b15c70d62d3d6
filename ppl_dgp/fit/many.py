"""Many fits as one compiled program: splits of a data set, restarts, orders α or learning rates, side by side.

A step of all of them is one vmapped step. Small fits leave most of a machine idle; together they fill it.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Shaped, UInt
from numpyro.infer import ELBO, SVI
from numpyro.infer.svi import SVIState

from ppl_dgp.checkpoint import INDEX
from ppl_dgp.fit import padding, program
from ppl_dgp.fit.arguments import check_inducing, check_key, check_programs, check_settings
from ppl_dgp.fit.initial import traced_start
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.minibatches import in_windows, minibatches, units_of
from ppl_dgp.fit.plan import BUDGET, Plan
from ppl_dgp.fit.result import Fit, Interrupted, assemble, checked_data, fingerprint, finished
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.shallow import planned
from ppl_dgp.fit.training import Deepen, Training, deepened
from ppl_dgp.fit.watching import Callback, tell_end
from ppl_dgp.gp.numpyro_internals import uninitialised
from ppl_dgp.objectives import objective_of
from ppl_dgp.objectives.alpha import checked_alpha
from ppl_dgp.objectives.capabilities import capabilities_of


@dataclass(frozen=True)
class Member:
    """One of the fits: its key, its data, and what it has of its own of the settings."""

    key: Shaped[Array, "..."]
    x: Float[Array, "N D"]
    y: Shaped[Array, "N P"]
    alpha: float | None
    rate: float | None


def fit_many(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    objective: ELBO | str,
    xs: ArrayLike | Sequence[ArrayLike] | None,
    ys: ArrayLike | Sequence[ArrayLike],
    *,
    steps: int | str = "auto",
    tolerance: float | None = None,
    budget: int = BUDGET,
    batch_size: int | None = None,
    alphas: Sequence[float] | None = None,
    learning_rates: Sequence[float] | None = None,
    learning_rate: float | optax.Schedule | None = None,
    optimizer: optax.GradientTransformation | None = None,
    chunk: int = 100,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    max_rejected_in_a_row: int = 50,
    callback: Callback | None = None,
) -> list[Fit]:
    """Train K fits of one model side by side, each as ``fit_svi`` would alone with the same key, data and settings.

    What varies is given K times: the data, the keys (restarts), α, the learning rates, or several of these at once,
    member by member. What is given once is shared. Tables may differ in their numbers of rows: they are padded to
    equal length, and the rows appended count for nothing, exactly. Members with α = 0, a branch of its own, train as
    one program and those with α > 0 as another.

    :param key: JAX random key, split into K, or K of them stacked: restarts, or the same one K times to compare
        settings under the same draws. Member k is ``fit_svi(keys[k], …)``.
    :param model, guide, objective, steps, tolerance, budget, batch_size, learning_rate, optimizer, chunk: as for
        ``fit_svi``; a batch is at most the shortest table, by whose rows the tolerance is if not given, or of windows
        of series of equal length. With "auto" all go on until the last has converged.
    :param xs, ys: one data set, arrays (N, D) and (N, P), or a list of K of either; xs None for no inputs.
    :param alphas: orders α, each in [0, 1], in place of that of ``objective``, whose particles all members have.
    :param learning_rates: of Adam, positive numbers, for a number of steps.
    :param progress: show a bar on standard error (default: where that is a terminal).
    :param checkpoint, checkpoint_every, resume: as for ``fit_svi``; the directory holds one for each program.
    :param max_rejected_in_a_row: a step with a non-finite loss or gradient leaves its member as it is; so many in a
        row, in every member of a program, are an error.
    :param callback: as for ``fit_svi``, of each program; its report has the losses of every member of it.
    :returns: one ``Fit`` for each member, in order; its ``seconds`` are those of its whole program.
    :raises ValueError: for data or settings that cannot be used; where tables differ in length and the loss is changed
        by rows that do not count, as of a model whose rows are no ``data_plate``.
    :raises CheckpointError: as ``fit_svi``.
    :raises FitError: after too many rejected steps in a row.
    :raises Interrupted: on Ctrl-C, or where the ``callback`` returns True, after saving; its ``fits`` are
        those of the programs that have begun.

    Warns with ``JitterWarning`` as ``fit_svi`` does, and with ``FailedFitWarning`` where some of the fits end without a
    finite loss, which alone would be a ``FitError``.
    """
    check_key(key, several=True)
    check_programs(model, guide, batch_size is not None)
    objective = objective_of(objective)
    check_inducing(guide, objective)
    members = _members(key, model, objective, xs, ys, alphas, learning_rates)
    fewest = min(len(member.y) for member in members)
    check_settings(None if in_windows(model) else fewest, locals())
    units = [units_of(model, member.x, batch_size) for member in members]
    if (
        units[0].windows is not None
        and len({(len(each.y), of) for each, of in zip(members, units, strict=True)}) > 1
    ):
        raise padding.UnequalLengthError(
            f"batch_size: found {batch_size} and series of {fewest} to {max(len(member.y) for member in members)} "
            "steps, whose numbers of windows differ, expected series of equal length; fit them one by one, or as one "
            "model of several sequences"
        )
    if learning_rates is not None and optimizer is not None:
        raise ValueError(
            "learning_rates: found them beside an optimizer, expected one of the two; leave one out"
        )
    if learning_rates is not None and isinstance(steps, str):
        raise ValueError(
            f"learning_rates: found them with steps={steps!r}, which tries several; leave them out, or give a number "
            "of steps"
        )
    if learning_rates is not None:
        learning_rate = 1.0
    about_steps = budget, tolerance, learning_rate, optimizer, chunk, fewest
    tables = [(member.x, member.y) for member in members]
    plan, deepens = planned(model, guide, tables, None, steps, *about_steps)
    fits: dict[int, Fit] = {}
    elbo = [number for number, member in enumerate(members) if member.alpha == 0.0]
    programs = {"bound": elbo, "power": [number for number in range(len(members)) if number not in elbo]}
    programs = {name: chosen for name, chosen in programs.items() if chosen}
    places = {name: None if checkpoint is None else Path(checkpoint) / name for name in programs}
    begun = [name for name, place in places.items() if place is not None and (place / INDEX).is_file()]
    for name, chosen in programs.items():
        group = [members[number] for number in chosen]
        its_own = objective
        if name == "bound" and capabilities_of(objective).takes_alpha:
            # a number: α is then no argument of the program
            group, its_own = [replace(member, alpha=None) for member in group], objective.at_alpha(0.0)
        resumed = resume and name in begun
        starting = None if deepens is None or resumed else [deepens[number] for number in chosen]
        together = BatchedTraining(model, guide, its_own, plan, group, batch_size, chunk, starting)
        try:
            # where none has begun there is nothing to resume, which is an error of the first
            trained = together.train(
                places[name], resume and (name in begun or not begun), progress=progress,
                checkpoint_every=checkpoint_every, max_rejected_in_a_row=max_rejected_in_a_row,
                callback=callback,
            )  # fmt: skip
        except Interrupted as stopped:
            fits |= dict(zip(chosen, stopped.fits, strict=True))
            raise Interrupted([fits[number] for number in sorted(fits)]) from None
        fits |= dict(zip(chosen, trained, strict=True))
    found = [fits[number] for number in range(len(members))]
    worst = {name: max(fit.jitter.get(name, 0.0) for fit in found) for name in found[0].jitter}
    warn_of_jitter(worst, members[0].x.dtype)
    _warn_of_failed(found, max_rejected_in_a_row)
    for fit in found:
        tell_end(fit)
    return found


class FailedFitWarning(UserWarning):
    """Some of the fits that were trained side by side ended at losses that are no numbers; the others stand."""


def _warn_of_failed(fits: Sequence[Fit], limit: int) -> None:
    """Say which members failed, as those that train alone do by a ``FitError``."""
    failed = [str(number) for number, fit in enumerate(fits) if _has_failed(fit, limit)]
    if failed:
        warnings.warn(
            f"fits: found {len(failed)} of {len(fits)} that end at a loss or gradient that is not finite, numbers "
            f"{', '.join(failed)}, expected numbers; they are no results: check their data, lower the learning rate, "
            "or use 64 bits (numpyro.enable_x64())",
            FailedFitWarning,
            stacklevel=3,
        )


def _has_failed(fit: Fit, limit: int) -> bool:
    """Whether none of the phases that were kept, or of so many last steps of one phase, has a loss."""
    if any(phase.kind != "part" for phase in fit.phases):
        return not any(phase.kept and np.isfinite(phase.loss) for phase in fit.phases)
    last = fit.losses[fit.best][-limit:]
    return last.size > 0 and not bool(np.isfinite(last).any())


class BatchedTraining:
    """The fits of one program."""

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        objective: ELBO,
        plan: Plan,
        members: Sequence[Member],
        batch_size: int | None,
        chunk: int,
        deepens: Sequence[Deepen] | None = None,
    ) -> None:
        self.members, self.batch_size, self.chunk = members, batch_size, chunk
        self.started = time.perf_counter()
        counts = [len(member.y) for member in members]
        self.counts, longest = counts, max(counts)
        # a guide may remember its first initialisation; the others begin anew, so that members differ
        guides = [guide, *(uninitialised(guide) for _ in members[1:])]
        self.plan, optim = plan, program.as_numpyro(plan.optimizer)
        svis = [SVI(model, each, optim, objective) for each in guides]
        keys = [jax.random.split(member.key) for member in members]
        self.words = [program.key_words(pair[0]) for pair in keys]
        starts = [
            traced_start(svi, pair[1], member.x, member.y)
            for svi, pair, member in zip(svis, keys, members, strict=True)
        ]
        self.shapes = [jax.eval_shape(svis[0].get_params, start.shapes) for start in starts]
        self.padded = longest if min(counts) < longest else None
        shared = all(member.x is members[0].x and member.y is members[0].y for member in members)
        self.data: dict[str, Any] = {}
        for name in ("x", "y"):
            tables = [getattr(member, name) for member in members[: 1 if shared else None]]
            self.data[name] = (
                tables[0] if shared else jnp.stack([padding.longer(each, longest) for each in tables])
            )
        for name, values in {
            "alpha": [member.alpha for member in members],
            "rate": [member.rate for member in members],
            "count": counts if self.padded else [None],
        }.items():
            if values[0] is not None:
                self.data[name] = jnp.asarray(values, None if name == "count" else jnp.result_type(float))
        self.axes = {name: None if shared and name in "xy" else 0 for name in self.data}
        self.units = [units_of(model, member.x, batch_size) for member in members]
        windows, per_batch = self.units[0].windows, 0 if batch_size is None else self.units[0].per_batch
        about = (batch_size is not None, chunk, self.padded, tuple(self.axes.items()), len(members), windows)
        self.kept = program.cached_program(svis[0], program.build_together, *about)
        together = lambda *states: program.fresh_copies(padding.stacked(states, counts))
        shapes = jax.eval_shape(together, *(start.shapes for start in starts))
        index = jax.ShapeDtypeStruct((chunk, len(members), per_batch), np.int32)
        with program.compiled_beside(self.kept.run, shapes, self.data, index, np.int32(0), np.int32(0)):
            found = [start.find() for start in starts]
            self.usual = None if deepens is None else together(*found)
            if deepens is not None:
                found = [
                    deepened(deepen, svi, pair[1], state)
                    for deepen, svi, pair, state in zip(deepens, svis, keys, found, strict=True)
                ]
            self.state = together(*found)
            if self.padded is not None:
                self._check_padding(svis[0], found)

    def train(self, place: Path | None, resume: bool, **watched: Any) -> list[Fit]:
        """The fits after the steps of the plan, saved at ``place``; ``watched`` as of ``Training.run``."""
        size, chunk = len(self.members), self.chunk
        identity: dict[str, Any] = {"batch_size": self.batch_size, "chunk": chunk, **self.plan.identity}
        identity |= {
            "alphas": [each.alpha for each in self.members],
            "rates": [each.rate for each in self.members],
        }
        identity |= {"objective": type(self.kept.svi.loss).__name__}
        if place is not None:
            identity["data"] = [fingerprint(each.x, each.y) for each in self.members]
        saving = Saving(place, identity)
        training = Training(
            self.state, np.stack(self.words), plan=self.plan, chunk=chunk, restarts=size, saving=saving,
            earlier=saving.resumable(resume), since=self.started, stacked=True, usual=self.usual,
            rates=[each.rate for each in self.members if each.rate is not None],
        )  # fmt: skip

        def data(number: int) -> tuple[Any, ...]:
            if self.batch_size is None:
                return self.data, np.zeros((chunk, size, 0), np.int32)
            return self.data, self._minibatches(training.words, number)

        def result() -> list[Fit]:
            params = training.stacked_params(self.kept.svi)
            return [self._fit(number, params, training) for number in range(size)]

        return training.run(lambda count: self.kept.run, data, result, **watched)

    def _minibatches(self, words: UInt[np.ndarray, "K words"], number: int) -> Int[np.ndarray, "chunk K B"]:
        """Rows, real ones, or windows of the minibatches of a chunk."""
        drawn = [
            minibatches(own, number, self.chunk, of.per_batch, of.number)
            for own, of in zip(words, self.units, strict=True)
        ]
        return np.stack(drawn, 1)

    def _fit(self, number: int, params: dict[str, Array], training: Training) -> Fit:
        member, svi = self.members[number], self.kept.svi
        whole = program.selected(params, np.int32(number))
        x, y = (self.data[name] if self.axes[name] is None else self.data[name][number] for name in "xy")
        # at the padded rows, so that tables of any length share a program: no covariance matrix is of rows
        jitter = used_jitter(svi, whole, x, y)
        own = {
            name: padding.shorter(value, self.shapes[number][name].shape)[None]
            for name, value in whole.items()
        }
        own = finished(own, svi, member.x, member.y)
        objective = svi.loss if member.alpha is None else svi.loss.at_alpha(member.alpha)
        return assemble(
            own, training.losses[number : number + 1], [training.known[number]], model=svi.model,
            guide=svi.guide, objective=objective, fingerprint=fingerprint(member.x, member.y),
            seconds=training.seconds, compile_seconds=training.compile_seconds, jitter=jitter,
        )  # fmt: skip

    def _check_padding(self, svi: SVI, starts: Sequence[SVIState]) -> None:
        """Refuse what looks at rows together, by the loss of the shortest member with and without rows appended."""
        number = int(np.argmin(self.counts))
        member = self.members[number]
        key = jax.random.key(0, impl="threefry2x32")
        index = np.arange(self.batch_size or 0)
        longer = {
            name: value if self.axes[name] is None else value[number] for name, value in self.data.items()
        }
        state = jax.tree.map(lambda leaf: leaf[number], self.state)

        def loss(state: SVIState, data: dict[str, Any], padded: int | None) -> Array:
            # kept, so that a second call of equal shapes compiles neither
            kept = program.cached_program(svi, program.build_loss, self.batch_size is not None, padded)
            value: Array = kept.run(key, svi.get_params(state), data, index)
            return value

        alone = loss(starts[number], longer | {"x": member.x, "y": member.y}, None)
        beside = loss(state, longer, self.padded)
        tolerance = float(np.sqrt(jnp.finfo(alone.dtype).eps))
        if not np.isclose(alone, beside, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise padding.UnequalLengthError(
                f"xs, ys: found tables of {len(member.y)} to {self.padded} rows, and a loss of {float(alone):.6g} at "
                f"the shortest, but {float(beside):.6g} with rows appended that should not count; the model, guide or "
                "objective looks at rows together: pass tables of equal length, or fit one by one"
            )


def _members(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    objective: ELBO,
    xs: Any,
    ys: Any,
    alphas: Sequence[float] | None,
    rates: Sequence[float] | None,
) -> list[Member]:
    """The K members; ValueError where what is given K times is not given as often, or cannot be used."""
    each = key.ndim - (0 if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else 1)
    several = {"xs": isinstance(xs, list | tuple), "ys": isinstance(ys, list | tuple), "keys": each > 0}
    given = {"xs": xs, "ys": ys, "keys": key, "alphas": alphas, "learning_rates": rates}
    found = {
        name: len(value) for name, value in given.items() if value is not None and several.get(name, True)
    }
    if len(set(found.values())) > 1 or 0 in found.values():
        listed = ", ".join(f"{count} {name}" for name, count in found.items())
        raise ValueError(
            f"members: found {listed}, expected as many of each; give what all share once, not in a list"
        )
    size = max(found.values(), default=1)
    if alphas is not None and not capabilities_of(objective).takes_alpha:
        raise ValueError(
            f"alphas: found {type(objective).__name__}, expected an objective with an alpha such as PowerEP; leave "
            "them out"
        )
    orders = [None] * size if alphas is None else [checked_alpha("alphas", alpha) for alpha in alphas]
    if rates is not None and not all(np.ndim(rate) == 0 and np.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError(f"learning_rates: found {list(rates)!r}, expected positive numbers; try 0.01")
    if several["xs"] or several["ys"]:
        pairs = zip(xs if several["xs"] else [xs] * size, ys if several["ys"] else [ys] * size, strict=True)
        tables = [checked_data(x, y, model) for x, y in pairs]
    else:
        tables = [checked_data(xs, ys, model)] * size
    shapes = {(x.shape[1], y.shape[1], y.dtype) for x, y in tables}
    if len(shapes) > 1:
        raise ValueError(
            f"xs, ys: found tables with {sorted({(x, y) for x, y, _ in shapes})} columns of inputs and targets, "
            "expected the same of all, and of one kind of number; fit them one by one"
        )
    keys = key if several["keys"] else jax.random.split(key, size)
    speeds = [None] * size if rates is None else [float(rate) for rate in rates]
    return [Member(keys[k], *tables[k], orders[k], speeds[k]) for k in range(size)]
