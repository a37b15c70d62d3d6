"""Stochastic optimisation of a variational objective on minibatches.

Hoffman, Blei, Wang and Paisley, "Stochastic Variational Inference", JMLR 2013; Kingma and Ba, "Adam", ICLR
2015.
"""

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped
from numpyro.infer import ELBO, SVI

from ppl_dgp import checkpoint as saved
from ppl_dgp.fit import program
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.result import (
    Fit,
    FitError,
    Interrupted,
    assemble,
    checked_data,
    fingerprint,
    finished,
    mean_loss,
)
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.session import deferred_interrupt, one_blas_thread, progress_bar
from ppl_dgp.guides import Guide, Optimal
from ppl_dgp.objectives import Collapsed
from ppl_dgp.windows import WINDOWS

PIECE_SECONDS = 0.5  # a piece of a chunk takes about this long


def fit_svi(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    objective: ELBO,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int,
    batch_size: int | None = None,
    learning_rate: float | optax.Schedule = 0.01,
    optimizer: optax.GradientTransformation | None = None,
    chunk: int = 100,
    restarts: int = 1,
    start: Mapping[str, jax.Array] | None = None,
    progress: bool = False,
    patience: int | None = None,
    max_rejected_in_a_row: int = 50,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    on_chunk: Callable[[int, Float[np.ndarray, "R steps"]], None] | None = None,
) -> Fit:
    """Train `guide`, and the model's own parameters, by stochastic optimisation of `objective`.

    The model and the guide are called as `(x, y)` on all the data, or with `batch_size` as `(x[index],
    y[index], index=index, size=N)`, `index` the (B,) rows of a minibatch; initialisation always sees all the
    data. Minibatches run through shuffled epochs; where a chunk is shorter than an epoch, rows are drawn with
    replacement instead. All restarts see the same minibatches. The same key gives the same numbers, whatever
    the pauses.

    Args:
        key: JAX random key of the initialisation, the steps and the minibatches.
        model, guide, objective: NumPyro callables and an `ELBO`. With the same three objects (or equal
            hashable ones), optimiser and shapes a second fit compiles nothing. NumPyro's AutoGuides remember
            their first initialisation: give each fit a fresh one if it is to start elsewhere.
        x: inputs (N, D), None for none (a latent variable model). y: targets (N, P), or (N,) for one column,
            with NaN for missing entries where the model takes them (`missing=True` of the GPLVMs).
        steps: number of optimisation steps, those of a resumed checkpoint included.
        batch_size: rows in a minibatch, 1 to N; of a state space model whole windows of rows, and it is called as
            `(x, y, index=index, size=K)` on all the data with the numbers of those windows.
        learning_rate: of Adam, a number or an optax schedule of the step; not used if `optimizer` is given.
        optimizer: any optax transformation.
        chunk: steps between two calls of `on_chunk`, checks of `patience`, and saves.
        restarts: number R of independent fits, trained side by side (vmap).
        start: constrained parameters to start from, such as `params` of a fit under a poorer guide; those that
            are not named start as usual.
        progress: show a bar on standard error.
        patience: stop when, in every restart, the mean loss of the last `patience` steps is no lower than
            that of the `patience` steps before them.
        max_rejected_in_a_row: a step with a non-finite loss or gradient leaves the state as it is; so many in
            a row, in every restart, are an error.
        checkpoint: directory for the whole state, saved at the end, when interrupted, and every
            `checkpoint_every` chunks (default: as often as costs a twentieth of the time). One that is there
            already is replaced.
        resume: continue from `checkpoint`; the numbers are, bit for bit, those of a run that was never
            stopped.
        on_chunk: called after each chunk with the number of steps done and the losses so far, (R, steps).

    While it trains on the CPU, BLAS is held to one thread, for the whole process: its threads compete with
    XLA's own, and a deep GP's step takes twice as long with them. The former number of threads is restored
    afterwards.

    Raises:
        ValueError: for data or settings that cannot be used, before anything is compiled; its subclass
            `ppl_dgp.checkpoint.CheckpointError` when there is nothing to resume or it is of another fit.
        FitError: after too many rejected steps in a row.
        Interrupted: (a KeyboardInterrupt) on Ctrl-C, after saving. A second Ctrl-C interrupts at once,
            without.

    Warns with `JitterWarning` where a covariance matrix was singular to working precision at the parameters
    found.
    """
    x, y = checked_data(x, y, model)
    check_trained(guide, objective)
    rows = x.shape[0]
    check_settings(rows, locals())
    units, per_batch, windows = _units(model, x, batch_size)
    started = time.perf_counter()
    identity = {"data": fingerprint(x, y), "batch_size": batch_size, "chunk": chunk, "restarts": restarts}
    identity |= {"objective": type(objective).__name__}
    saving = Saving(checkpoint, identity)
    earlier = saving.resumable(resume)

    # A guide that remembers its first initialisation is copied before it, so that restarts differ.
    guides = [guide, *(copy.deepcopy(guide) for _ in range(restarts - 1))]
    optim = program.as_numpyro(program.adam(learning_rate) if optimizer is None else optimizer)
    svis = [SVI(model, each, optim, objective) for each in guides]
    index_key, *init_keys = jax.random.split(key, restarts + 1)
    starts = [
        program.initialise(svi, init_key, x, y, start) for svi, init_key in zip(svis, init_keys, strict=True)
    ]
    state = starts[0] if restarts == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    kept = program.kept_program(svis[0], program.build_chunk, batch_size is not None, chunk, restarts, windows)
    state, words = jax.tree.map(program.own, state), program.key_words(index_key)

    step, lasted, losses = 0, 0.0, np.empty((restarts, 0))
    if checkpoint is not None and earlier is not None:
        step, lasted = earlier["step"], earlier["seconds"]
        found, _ = saved.load(
            checkpoint, {"state": state, "words": words, "losses": np.empty((restarts, step))}
        )
        state, words, losses = found["state"], np.asarray(found["words"]), np.asarray(found["losses"])
    losses = np.concatenate([losses, np.full((restarts, max(steps - step, 0)), np.nan)], axis=1)
    indices, drawn, pace = np.zeros((chunk, 0), np.int32), -1, 1
    compile_seconds = 0.0

    def seconds() -> float:
        return lasted + time.perf_counter() - started

    def save() -> None:
        content = {"state": state, "words": words, "losses": losses[:, :step]}
        saving.save(content, step=step, seconds=seconds())

    def result() -> Fit:
        params = jax.vmap(kept.svi.get_params)(state) if restarts > 1 else kept.svi.get_params(state)
        if restarts == 1:
            params = {name: value[None] for name, value in params.items()}
        params = finished(params, kept.svi, x, y)
        about = {"model": model, "guide": guide, "objective": objective, "fingerprint": identity["data"]}
        return assemble(params, losses[:, :step], seconds=seconds(), compile_seconds=compile_seconds, **about)

    with one_blas_thread(), deferred_interrupt() as presses, progress_bar(progress, step, steps) as advance:
        try:
            while step < steps and not (step % chunk == 0 and _has_stalled(losses[:, :step], patience)):
                if batch_size is not None and drawn != step // chunk:
                    drawn = step // chunk
                    indices = program.minibatches(words, drawn, chunk, per_batch, units)
                begin = step % chunk
                count = min(pace, chunk - begin, steps - step)
                before = time.perf_counter()
                state, piece = kept.run(state, x, y, indices, begin, begin + count)
                losses[:, step : step + count] = np.asarray(piece)[begin : begin + count].T
                step, elapsed = step + count, time.perf_counter() - before
                compile_seconds = compile_seconds or elapsed
                pace = max(1, min(chunk, 4 * pace, int(count * PIECE_SECONDS / elapsed)))
                check_rejected(
                    losses[:, max(0, step - count - max_rejected_in_a_row) : step], max_rejected_in_a_row
                )
                advance(step, losses[:, step - 1])
                if step % chunk == 0 and step < steps:
                    if (step // chunk) % checkpoint_every == 0 if checkpoint_every else saving.due():
                        save()
                if on_chunk is not None and (step % chunk == 0 or step == steps):
                    on_chunk(step, losses[:, :step].copy())
                if presses():
                    raise KeyboardInterrupt
            save()
        except KeyboardInterrupt:
            if presses() > 1:  # torn from the middle of a step: the last save stands
                raise
            save()
            raise Interrupted(result()) from None
    fit = result()
    jitter = used_jitter(kept.svi, fit.params, x, y)
    warn_of_jitter(jitter, x.dtype)
    return dataclasses.replace(fit, jitter=jitter)


def _units(
    model: Callable[..., Any], x: Float[jax.Array, "N D"], batch_size: int | None
) -> tuple[int, int, int | None]:
    """What minibatches are made of, how many of it, and of a model in windows how many there are."""
    count = getattr(model, WINDOWS, None)
    if count is None or batch_size is None:
        return x.shape[0], batch_size or x.shape[0], None
    windows, length = count(x), count.length
    if batch_size % length != 0 or batch_size // length > windows:
        raise ValueError(
            f"batch_size is {batch_size}, expected a multiple of {length}, the model's window, up to "
            f"{windows * length}, all {windows} windows; change it or leave it out"
        )
    return windows, batch_size // length, windows


def check_trained(guide: Callable[..., Any], objective: ELBO) -> None:
    """Refuse a q(u) that the objective has no gradient for."""
    untrained = isinstance(guide, Guide) and isinstance(guide.inducing, Optimal)
    if untrained and not isinstance(objective, Collapsed):
        raise ValueError(
            "guide: found inducing=Optimal(), whose q(u) no gradient trains; use objective=Collapsed(), best with "
            "fit_lbfgs, or inducing=FullRank()"
        )


def _has_stalled(losses: Float[np.ndarray, "R steps"], patience: int | None) -> bool:
    """Whether no restart's mean loss of the last `patience` steps is below that of as many before."""
    if patience is None or losses.shape[1] < 2 * patience:
        return False
    return bool(np.all(mean_loss(losses[:, -patience:]) >= mean_loss(losses[:, -2 * patience : -patience])))


def check_rejected(losses: Float[np.ndarray, "R steps"], limit: int) -> None:
    """Raise FitError if every restart has `limit` rejected steps in a row."""
    rejected = np.isnan(losses)
    if rejected.shape[1] < limit or rejected.sum(axis=1).min() < limit:
        return
    windows = np.lib.stride_tricks.sliding_window_view(rejected, limit, axis=1)
    if np.all(np.any(np.all(windows, axis=2), axis=1)):
        raise FitError(
            f"{limit} steps in a row had a loss or a gradient that is not finite; "
            "lower the learning rate, standardise the data, use 64 bits (numpyro.enable_x64()), "
            "or check the model's start"
        )


def check_settings(rows: int, settings: Mapping[str, Any]) -> None:
    """Refuse settings of `fit_svi` that cannot be used with so many rows; those that are missing are not checked."""
    limits = {
        "steps": None,
        "chunk": None,
        "restarts": None,
        "max_rejected_in_a_row": None,
        "batch_size": rows,
    }
    limits |= {"patience": None, "checkpoint_every": None}
    optional = {"batch_size", "patience", "checkpoint_every"}
    for name, most in limits.items():
        if name not in settings or (settings[name] is None and name in optional):
            continue
        value = settings[name]
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 1 or (most is not None and value > most):
            span = f"from 1 to the number of rows, {most}" if most is not None else "of at least 1"
            raise ValueError(
                f"{name} is {value!r}, expected a whole number {span}; change it or leave it out"
            )
    rate = settings["learning_rate"]
    if not callable(rate) and not (np.ndim(rate) == 0 and np.isfinite(rate) and rate > 0):
        raise ValueError(
            f"learning_rate is {rate!r}, expected a positive number or an optax schedule; try 0.01"
        )
