"""The steps of a stochastic fit from beginning to end: in pieces, watched, saved, continued, interrupted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpyro.infer import ELBO, SVI
from numpyro.infer.svi import SVIState
from numpyro.optim import _NumPyroOptim

from ppl_dgp import checkpoint as saved
from ppl_dgp.fit import program
from ppl_dgp.fit.convergence import Convergence
from ppl_dgp.fit.devices import Placement
from ppl_dgp.fit.initial import traced_start
from ppl_dgp.fit.plan import Plan
from ppl_dgp.fit.result import Fit, FitError, Interrupted, mean_loss
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.session import PIECE_SECONDS, deferred_interrupt, one_blas_thread, progress_bar
from ppl_dgp.fit.watching import Callback, ChunkReport, chunk_losses, reported, tell_begin, tell_turn
from ppl_dgp.gp.numpyro_internals import bijections_of, uninitialised

Fits = TypeVar("Fits", Fit, list[Fit])
Deepen = Callable[[Shaped[Array, "..."], dict[str, Array]], dict[str, Any] | None]

NOT_FINITE = (
    "loss: found {limit} steps in a row where it or its gradient is not finite, expected numbers; lower the learning "
    "rate, standardise the data, use 64 bits (numpyro.enable_x64()), or check the model's start"
)


class ResumeWarning(UserWarning):
    """A fit was resumed that had taken more steps than were asked for."""


def started(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    optim: _NumPyroOptim,
    objective: ELBO,
    start: Mapping[str, Array] | None,
    x: Array,
    y: Array,
    rows: int,
    placement: Placement,
    settings: tuple[Any, ...],
    like: tuple[Any, ...],
    *,
    restarts: int,
    deepens: Sequence[Deepen] | None = None,
    **about: Any,
) -> tuple[program.CachedProgram, Training]:
    """The program of steps that start at the rows x and y, and the fit of its R restarts to ``rows`` in all.

    :param settings: of the program, as of ``Placement.cached_program``.
    :param like: what the program takes beside the state, or its shapes.
    :param deepens: one, which gives the parameters that trials begin at for a key and the usual ones, None if it can't.
    :param about: as of ``Training``.
    """
    # A guide may remember its first initialisation; the others begin anew, so that restarts differ.
    guides = [guide, *(uninitialised(guide) for _ in range(restarts - 1))]
    svis = [SVI(model, each, optim, objective) for each in guides]
    index_key, *init_keys = program.split_key(key, restarts + 1)
    starts = [traced_start(svi, init_key, x, y, start) for svi, init_key in zip(svis, init_keys, strict=True)]
    axis = () if restarts == 1 else (restarts,)
    shape = lambda leaf: jax.ShapeDtypeStruct(axis + leaf.shape, leaf.dtype)
    kept = placement.cached_program(svis[0], rows, *settings)
    compiling = time.perf_counter()
    with placement.compiled_beside(kept.run, jax.tree.map(shape, starts[0].shapes), rows, restarts, *like):
        states = [each.find() for each in starts]
        together = lambda states: program.fresh_copies(
            states[0] if restarts == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        )
        state = together(states)
        if deepens is not None and about["earlier"] is None:
            (deepen,), pairs = deepens, zip(svis, init_keys, states, strict=True)
            about["usual"], state = state, together([deepened(deepen, *each) for each in pairs])
    # over devices the first step compiles
    about["compile_seconds"] = 0.0 if placement.mesh is not None else time.perf_counter() - compiling
    place = lambda state: placement.state(state, rows, restarts)
    words = program.key_words(index_key)
    return kept, Training(state, words, restarts=restarts, place=place, **about)


def deepened(deepen: Deepen, svi: SVI, key: Shaped[Array, "..."], state: SVIState) -> SVIState:
    """The state at the parameters that are found for it."""
    found = deepen(key, svi.get_params(state))
    if found is None:
        return state
    number, (params, of_steps) = state.optim_state
    inverse = {name: bijections_of(svi)[name].inv(jnp.asarray(value)) for name, value in found.items()}
    params = {name: inverse.get(name, value).astype(value.dtype) for name, value in params.items()}
    moved: SVIState = state._replace(optim_state=(number, (params, of_steps)))
    return moved


class Training:
    """A fit in progress: its state, its losses, and how it is saved.

    ``words`` are of the minibatches' key; the state, the words and the losses are those of the saved state that
    ``earlier`` describes, if there is one. The fit began at ``since``, of ``time.perf_counter``. ``place`` puts a state
    where the steps run. ``stacked`` is whether its leaves have an axis for restarts, by default where there are
    several, of which those with the numbers ``going`` go on. The ``plan`` says how steps go on and when they end, by
    states that are ``kept``, at first the beginning, but for the ``usual`` one where the fit begins elsewhere.
    ``rates`` are those of Adam where restarts have their own.
    """

    def __init__(
        self,
        state: Any,
        words: np.ndarray,
        *,
        plan: Plan,
        chunk: int,
        restarts: int,
        saving: Saving,
        earlier: Mapping[str, Any] | None,
        since: float,
        compile_seconds: float = 0.0,
        place: Callable[[Any], Any] = lambda state: state,
        stacked: bool | None = None,
        usual: Any = None,
        rates: Sequence[float] | None = None,
    ) -> None:
        self.rates = rates
        self.plan, self.steps, self.kept = plan, plan.steps, {}
        self.stacked = restarts > 1 if stacked is None else stacked
        self.state, self.words, self.saving = state, words, saving
        self.chunk, self.going = chunk, list(range(restarts))
        self.step, self.lasted, losses = 0, 0.0, np.empty((restarts, 0))
        self._since, self.compile_seconds = since, compile_seconds
        if saving.directory is not None and earlier is not None:
            self.step, self.lasted = earlier["step"], earlier["seconds"]
            if self.step > self.steps:
                warnings.warn(
                    f"steps: found {self.steps} to resume a fit of {self.step} steps, which is returned as it is; "
                    "raise steps to go on",
                    ResumeWarning,
                    stacklevel=4,
                )
            self.going = saving.restarts_of(earlier, restarts)
            one = state
            if len(self.going) < restarts:
                one, self.stacked = self._narrowed(state, self.going), len(self.going) > 1
            like = {"state": one, "words": words}
            like["losses"] = jax.ShapeDtypeStruct((restarts, self.step), np.float64)
            if plan.kept:
                like["kept"] = dict.fromkeys(plan.kept, one)
            found, _ = saved.load(saving.directory, like)
            self.state, self.words = found["state"], np.asarray(found["words"])
            losses = np.asarray(found["losses"])
            self.kept = {name: place(each) for name, each in found.get("kept", {}).items()}
        self.state = place(self.state)
        if not self.kept:
            begun = lambda name: place(usual) if name == "usual" else self.state
            self.kept = {name: program.fresh_copies(begun(name)) for name in plan.kept}
        left = np.full((restarts, max(self.steps - self.step, 0)), np.nan)
        self._losses = np.concatenate([losses, left], axis=1)

    @property
    def losses(self) -> Float[np.ndarray, "R steps"]:
        """Those of the steps so far."""
        return self._losses[:, : self.step]

    @property
    def seconds(self) -> float:
        """How long it has taken, over all its sessions."""
        return self.lasted + time.perf_counter() - self._since

    @property
    def known(self) -> list[Convergence]:
        """What the losses say of each restart that goes on."""
        lost = np.delete(self.losses, self.going, axis=0)
        return [self.plan.convergence(self.losses[number], lost) for number in self.going]

    def report(self) -> ChunkReport:
        """What is known after the last chunk of steps."""
        last = self.losses[self.going, (self.step - 1) // self.chunk * self.chunk :]
        rates = self.rates or [self.plan.rate_at(self.step - 1, self.losses[one]) for one in self.going]
        return ChunkReport(
            self.step, self.steps, chunk_losses(last), tuple(each.gap for each in self.known), tuple(rates),
            int(np.isnan(last).sum()), self.seconds,
        )  # fmt: skip

    def save(self) -> None:
        """Save the state, if it is to be saved."""
        content = {"state": self.state, "words": self.words, "losses": self.losses}
        if self.kept:
            content["kept"] = self.kept
        self.saving.save(content, step=self.step, seconds=self.seconds, going=self.going)

    def stacked_params(self, svi: SVI) -> dict[str, Array]:
        """The constrained parameters of the restarts that go on, stacked."""
        params = svi.optim.get_params(self.state.optim_state)
        return program.stacked_params(svi, params, self.stacked)

    def run(
        self,
        program_of: Callable[[int], Callable[..., Any]],
        data: Callable[[int], tuple[Any, ...]],
        result: Callable[[], Fits],
        *,
        progress: bool | None,
        max_rejected_in_a_row: int,
        checkpoint_every: int | None,
        ended: Callable[[Float[np.ndarray, "R steps"]], bool] = lambda losses: False,
        on_chunk: Callable[[int, Float[np.ndarray, "R steps"]], None] | None = None,
        callback: Callback | None = None,
        in_pieces: bool = True,
    ) -> Fits:
        """Take the steps that are left for the ``result``.

        ``program_of`` so many restarts gives ``run(state, *data(number of the chunk), begin, end)``. The settings are
        those of ``fit_svi``; ``ended`` is asked after each chunk whether its losses suffice; without ``in_pieces`` a
        chunk is one call, so that processes keep step.
        """
        chunk, of_chunk, drawn = self.chunk, (), -1
        pace = 1 if in_pieces else chunk
        run = program_of(len(self.going))
        tell_begin(len(self.going), self.step, self.steps)
        bar = progress_bar(progress, self.step, self.steps)
        with self.saving.alone(), one_blas_thread(), deferred_interrupt() as presses, bar as advance:
            try:
                while True:
                    begin = self.step % chunk
                    if begin == 0 and self.step:
                        before_turn = len(self.going)
                        if ended(self.losses) or self._turned():
                            break
                        run = run if len(self.going) == before_turn else program_of(len(self.going))
                    if self.step >= self.steps:
                        break
                    if drawn != self.step // chunk:
                        drawn = self.step // chunk
                        of_chunk = data(drawn)
                    count = min(pace, chunk - begin, self.steps - self.step)
                    before = time.perf_counter()
                    self.state, piece = run(self.state, *of_chunk, np.int32(begin), np.int32(begin + count))
                    found = np.asarray(piece)[begin : begin + count].T
                    self._losses[:, self.step : self.step + count] = np.inf  # of what was given up
                    self._losses[self.going, self.step : self.step + count] = found
                    self.step, elapsed = self.step + count, time.perf_counter() - before
                    self.compile_seconds = self.compile_seconds or elapsed
                    if in_pieces:
                        pace = max(1, min(chunk, 4 * pace, int(count * PIECE_SECONDS / elapsed)))
                    recent = max(0, self.step - count - max_rejected_in_a_row)
                    if not self.kept:  # else a trial or a cycle of such steps is undone
                        check_rejected(self.losses[:, recent:], max_rejected_in_a_row)
                    advance(self.step, self.losses[self.going, -1])
                    if self.step % chunk == 0 and self.step < self.steps and self._due(checkpoint_every):
                        self.save()
                    if self.step % chunk == 0 or self.step == self.steps:
                        if on_chunk is not None:
                            on_chunk(self.step, self.losses.copy())
                        if reported(callback, self.report) and self.step < self.steps:
                            raise KeyboardInterrupt
                    if presses():
                        raise KeyboardInterrupt
                self.save()
            except KeyboardInterrupt:
                if presses() > 1:  # torn from the middle of a step: the last save stands
                    raise
                self.save()
                raise Interrupted(result()) from None
        return result()

    def _turned(self) -> bool:
        """Whether the fit ends here by itself; where it does not its state and its restarts may have changed."""
        turn = self.plan.turn(self.step, self.losses[self.going], self.state, self.kept)
        if turn is None:
            return False
        tell_turn(self.step, self.going, self.known, turn.survivors)
        self.state = turn.state
        if not np.isfinite(self.losses).any():
            raise FitError(NOT_FINITE.format(limit=self.step))
        # at the end of a budget all are kept: with a larger one the fit turns here again
        if turn.survivors is not None and not turn.ended and self.step < self.steps:
            self.state = program.fresh_copies(self._narrowed(self.state, turn.survivors))
            self.kept = {
                name: program.fresh_copies(self._narrowed(each, turn.survivors))
                for name, each in self.kept.items()
            }
            self.going = [self.going[number] for number in turn.survivors]
            self.stacked = len(self.going) > 1
        return turn.ended

    def _narrowed(self, state: Any, chosen: list[int]) -> Any:
        """The state of some of the restarts, of one without their axis."""
        place = chosen[0] if len(chosen) == 1 else np.asarray(chosen)
        return jax.tree.map(lambda leaf: leaf[place], state)

    def _due(self, checkpoint_every: int | None) -> bool:
        if checkpoint_every:
            return (self.step // self.chunk) % checkpoint_every == 0
        return self.saving.due()


def has_stalled(losses: Float[np.ndarray, "R steps"], patience: int | None) -> bool:
    """Whether no restart's mean loss of the last ``patience`` steps is below that of as many before."""
    if patience is None or losses.shape[1] < 2 * patience:
        return False
    return bool(np.all(mean_loss(losses[:, -patience:]) >= mean_loss(losses[:, -2 * patience : -patience])))


def check_rejected(losses: Float[np.ndarray, "R steps"], limit: int) -> None:
    """Raise FitError if every restart has ``limit`` rejected steps in a row."""
    rejected = np.isnan(losses)
    if rejected.shape[1] < limit or rejected.sum(axis=1).min() < limit:
        return
    windows = np.lib.stride_tricks.sliding_window_view(rejected, limit, axis=1)
    if np.all(np.any(np.all(windows, axis=2), axis=1)):
        raise FitError(NOT_FINITE.format(limit=limit))
