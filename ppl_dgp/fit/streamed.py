"""Stochastic optimisation on rows that need not fit in memory, over one device, several, or several machines.

The steps are those of ``fit_svi``, on minibatches that are read, shuffled and put on the device a chunk ahead. Hoffman,
Blei, Wang and Paisley, "Stochastic Variational Inference", JMLR 2013.
"""

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Shaped
from numpyro.infer import ELBO, SVI

from ppl_dgp.data import RowSource, open_rows
from ppl_dgp.data.sources import WINDOW
from ppl_dgp.fit import program
from ppl_dgp.fit.arguments import check_inducing, check_key, check_programs, check_settings
from ppl_dgp.fit.devices import Placement
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.plan import BUDGET
from ppl_dgp.fit.prefetch import Waited, prefetched
from ppl_dgp.fit.result import Fit, assemble, checked_data
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.shallow import planned
from ppl_dgp.fit.training import has_stalled, started
from ppl_dgp.fit.watching import Callback, tell_end
from ppl_dgp.objectives import objective_of
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.state_space.windows import WINDOWS

#: row numbers have 32 bits
MOST_ROWS = 2**31 - 1


def fit_stream(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    objective: ELBO | str,
    rows: Any,
    *,
    steps: int | str = "auto",
    tolerance: float | None = None,
    budget: int = BUDGET,
    batch_size: int,
    learning_rate: float | optax.Schedule | None = None,
    optimizer: optax.GradientTransformation | None = None,
    chunk: int = 100,
    window: int = WINDOW,
    parts: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    restarts: int = 1,
    start: Mapping[str, jax.Array] | None = None,
    progress: bool | None = None,
    patience: int | None = None,
    max_rejected_in_a_row: int = 50,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    on_chunk: Callable[[int, Float[np.ndarray, "R steps"]], None] | None = None,
    callback: Callback | None = None,
) -> Fit:
    """Train ``guide``, and the model's own parameters, as ``fit_svi`` does, on rows that stay where they are.

    The model and the guide are called as ``(x, y, index=index, size=N)`` on minibatches; initialisation sees a sample
    of at most 20 000 rows, as ``(x, y)``. While a chunk of steps runs, a thread reads the rows of the next, shuffles
    them and puts them on the device: memory holds ``window`` blocks of rows and three chunks of minibatches, whatever
    N. The same key gives the same numbers, whatever the pauses.

    :param key, model, guide, objective, steps, tolerance, budget, learning_rate, optimizer, restarts, start, progress,
        patience, max_rejected_in_a_row, checkpoint, checkpoint_every, resume, on_chunk, callback: as in ``fit_svi``.
    :param rows: what ``ppl_dgp.data.open_rows`` gives, in standardised units after ``.standardised()``, or what it
        takes.
    :param batch_size: B, rows in a minibatch, 1 to N.
    :param chunk: steps whose minibatches are on the device together.
    :param window: blocks of rows in memory at a time, among which rows are shuffled.
    :param parts: draw B / ``parts`` rows of every minibatch from each of so many equal shares of the rows; one for each
        process unless told.
    :param devices: share every minibatch between these devices, whose number divides B. Where ``jax.distributed`` joins
        several processes, all their devices unless told; each process reads its own parts of the rows, and the first
        alone saves.
    :returns: the fit; its ``input_seconds`` say how long steps waited for rows, its ``fingerprint`` is of the rows'
        sample.
    :raises ValueError: for rows or settings that cannot be used; for a model or a guide with parameters for each datum,
        or an objective that needs all rows at once. Otherwise as ``fit_svi``.
    """
    since = time.perf_counter()
    rows = rows if isinstance(rows, RowSource) else open_rows(rows)
    count = rows.count
    check_key(key)
    check_programs(model, guide, in_batches=True)
    objective = objective_of(objective)
    check_inducing(guide, objective)
    check_settings(count, locals())
    if devices is None and jax.process_count() > 1:
        devices = jax.devices()
    placement = Placement.over(devices, batch_size, "batch_size")
    parts = placement.processes if parts is None else parts
    _check_streamed(model, objective, batch_size, window, parts, placement.processes)
    if count > MOST_ROWS:
        raise ValueError(
            f"rows: found {count} of them, expected at most {MOST_ROWS}; stream a part of the files"
        )
    x, y, _ = rows.sample(dtype=jnp.result_type(float))
    x, y = checked_data(x, y)
    about_steps = budget, tolerance, learning_rate, optimizer, chunk, count, patience
    plan, deepens = planned(model, guide, [(x, y)], start, steps, *about_steps)
    _check_constant_size(key, model, guide, objective, x, y)
    identity = {"data": rows.fingerprint(), "batch_size": batch_size, "chunk": chunk, "restarts": restarts}
    identity |= {"objective": type(objective).__name__, "window": window, "parts": parts, **plan.identity}
    saving = Saving(checkpoint, identity, writes=jax.process_index() == 0)

    optim = program.as_numpyro(plan.optimizer)
    about: dict[str, Any] = {"plan": plan, "chunk": chunk, "restarts": restarts, "since": since}
    about |= {"saving": saving, "earlier": saving.resumable(resume), "deepens": deepens}
    settings = True, chunk, restarts, None, count
    of_chunk = lambda table: jax.ShapeDtypeStruct((chunk, batch_size, *table.shape[1:]), table.dtype)
    index = jax.ShapeDtypeStruct((chunk, batch_size), np.int32)
    like = of_chunk(x), of_chunk(y), index, np.int32(0), np.int32(0)
    kept, training = started(
        key, model, guide, optim, objective, start, x, y, count, placement, settings, like, **about
    )
    waited = Waited()

    def result() -> Fit:
        found = {"model": model, "guide": guide, "objective": objective, "fingerprint": identity["data"]}
        found |= {"seconds": training.seconds, "compile_seconds": training.compile_seconds}
        found["input_seconds"] = waited.seconds
        params = placement.gathered(training.stacked_params(kept.svi))
        return assemble(params, training.losses, training.known, **found)

    numbers = range(training.step // chunk, -(-plan.steps // chunk))
    chunks = _chunks(rows, training.words, numbers, chunk, batch_size, window, parts, placement, x.dtype)
    with prefetched(chunks, waited) as take:
        fit = training.run(
            lambda count: kept.run,
            lambda number: take(),
            result,
            progress=progress,
            ended=partial(has_stalled, patience=patience),
            max_rejected_in_a_row=max_rejected_in_a_row,
            checkpoint_every=checkpoint_every,
            on_chunk=on_chunk,
            callback=callback,
            in_pieces=placement.processes == 1,
        )
    jitter = used_jitter(kept.svi, fit.params, x, y)
    warn_of_jitter(jitter, x.dtype)
    fit = dataclasses.replace(fit, jitter=jitter)
    tell_end(fit)
    return fit


def _chunks(
    rows: RowSource,
    words: np.ndarray,
    numbers: range,
    chunk: int,
    batch_size: int,
    window: int,
    parts: int,
    placement: Placement,
    dtype: Any,
) -> Iterator[tuple[Array, Array, Array]]:
    """x (chunk, B, D), y (chunk, B, P) and row numbers (chunk, B) of the chunks ``numbers``, on the devices.

    This process reads its own parts of them.
    """
    seed, each = [*map(int, words)], chunk * (batch_size // parts)
    settings: dict[str, Any] = {"dtype": dtype, "begin": numbers.start * each, "window": window}
    ours = parts // placement.processes
    mine = (
        range(parts) if ours == parts else range(jax.process_index() * ours, (jax.process_index() + 1) * ours)
    )
    shares = [rows.batches(seed, each, **settings, part=part, parts=parts) for part in mine]
    with jax.enable_x64(dtype == np.float64):  # a thread has a precision of its own
        for _ in numbers:
            drawn = zip(*(next(share) for share in shares), strict=True)
            x, y, index = (
                np.concatenate([array.reshape(chunk, -1, *array.shape[1:]) for array in arrays], axis=1)
                for arrays in drawn
            )
            yield tuple(placement.shared(array, axis=1) for array in (x, y, index.astype(np.int32)))  # type: ignore[misc]


def _check_streamed(
    model: Callable[..., Any], objective: ELBO, batch_size: int, window: int, parts: int, processes: int
) -> None:
    """Raise ValueError for what needs all rows at once, and for counts that do not go together."""
    if getattr(model, WINDOWS, None) is not None:
        raise ValueError(
            "model: found a series in windows, whose rows belong together; train it with fit_svi"
        )
    if capabilities_of(objective).needs_all_rows:
        raise ValueError(
            f"objective: found {type(objective).__name__}, which needs all rows at once; take PowerEP(0.0), or fit_svi "
            "on a part of them"
        )
    if window < 1:
        raise ValueError(f"window: found {window}, expected at least 1 block of rows; raise it")
    if parts < 1 or batch_size % parts:
        raise ValueError(
            f"batch_size: found {batch_size} with parts={parts}, expected a minibatch of as many rows from each part; "
            "make one a multiple of the other"
        )
    if parts % processes:
        raise ValueError(
            f"parts: found {parts}, expected a multiple of the {processes} processes; leave it out"
        )


def _check_constant_size(
    key: Shaped[Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    objective: ELBO,
    x: Array,
    y: Array,
) -> None:
    """Raise ValueError for parameters that are more where there are more rows."""

    def shapes(size: int) -> dict[str, tuple[int, ...]]:
        optim = program.as_numpyro(optax.identity())
        svi = SVI(model, copy.deepcopy(guide), optim, objective)

        def params(key: Array, x: Array, y: Array) -> dict[str, Array]:
            state = svi.init(key, x, y, index=jnp.arange(len(x)), size=size)
            found: dict[str, Array] = optim.get_params(state.optim_state)
            return found

        return {name: value.shape for name, value in jax.eval_shape(params, key, x, y).items()}

    some, more = shapes(len(x)), shapes(2 * len(x))
    if grown := sorted(name for name in more if some.get(name) != more[name]):
        raise ValueError(
            f"guide: found parameters for each datum, {grown[0]!r}, which grow with the rows; take a rule whose "
            "parameters do not, such as hidden=DoublyStochastic() or Amortised(), or train with fit_svi"
        )
