"""Stochastic optimisation of a variational objective on minibatches.

Hoffman, Blei, Wang and Paisley, "Stochastic Variational Inference", JMLR 2013; Kingma and Ba, "Adam", ICLR
2015.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped
from numpyro.infer import ELBO

from ppl_dgp.fit import program
from ppl_dgp.fit.arguments import check_inducing, check_key, check_programs, check_settings
from ppl_dgp.fit.devices import Placement
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.minibatches import in_windows, minibatches, units_of
from ppl_dgp.fit.path import fit_along
from ppl_dgp.fit.plan import BUDGET
from ppl_dgp.fit.result import Fit, assemble, checked_data, fingerprint, finished
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.shallow import planned
from ppl_dgp.fit.training import has_stalled, started
from ppl_dgp.fit.watching import Callback, tell_end
from ppl_dgp.guides import Guide, HiddenRule
from ppl_dgp.objectives import objective_of


def fit_svi(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    objective: ELBO | str,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    steps: int | str = "auto",
    tolerance: float | None = None,
    budget: int = BUDGET,
    batch_size: int | None = None,
    learning_rate: float | optax.Schedule | None = None,
    optimizer: optax.GradientTransformation | None = None,
    chunk: int = 100,
    restarts: int = 1,
    devices: Sequence[jax.Device] | None = None,
    start: Mapping[str, jax.Array] | None = None,
    path: Sequence[HiddenRule | Guide | str] | None = None,
    progress: bool | None = None,
    patience: int | None = None,
    max_rejected_in_a_row: int = 50,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    on_chunk: Callable[[int, Float[np.ndarray, "R steps"]], None] | None = None,
    callback: Callback | None = None,
) -> Fit:
    """Train ``guide``, and the model's own parameters, by stochastic optimisation of ``objective``.

    The model and the guide are called as ``(x, y)`` on all the data, or with ``batch_size`` as ``(x[index],
    y[index], index=index, size=N)``, ``index`` the (B,) rows of a minibatch; initialisation always sees all the
    data. Minibatches run through shuffled epochs; where a chunk is shorter than an epoch, rows are drawn with
    replacement instead. All restarts see the same minibatches. The same key gives the same numbers, whatever
    the pauses.

    While it trains on the CPU, BLAS is held to one thread, for the whole process: its threads compete with
    XLA's own, and a deep GP's step takes twice as long with them. The former number of threads is restored
    afterwards.

    :param key: JAX random key of the initialisation, the steps and the minibatches.
    :param model, guide, objective: NumPyro callables and an ``ELBO``, or the name of one in ``OBJECTIVES``. With the
        same three objects (or equal hashable ones), optimiser and shapes a second fit compiles nothing. NumPyro's
        AutoGuides remember their first initialisation: give each fit a fresh one if it is to start elsewhere.
    :param x: inputs (N, D), None for none (a latent variable model).
    :param y: targets (N, P), or (N,) for one column, with NaN for missing entries where the model takes them
        (``missing=True`` of the GPLVMs).
    :param steps: number of optimisation steps, those of a resumed checkpoint included; "auto" tries learning
        rates and anneals the best in cycles, each twice as long as the one before (:mod:`ppl_dgp.fit.annealing`),
        until every restart has converged or the budget is spent.
    :param tolerance: nats in all that steps without end may yet gain of a fit that has converged; a thousandth of a nat
        a row, half a nat at least, if not given.
    :param budget: of "auto", at most so many steps; with less than 6 400, of a deep GP 8 000, trials are shorter.
    :param batch_size: rows in a minibatch, 1 to N; of a state space model whole windows of rows, and it is called as
        ``(x, y, index=index, size=K)`` on all the data with the numbers of those windows.
    :param learning_rate: of Adam, a number or an optax schedule of the step; 0.01 if not given, for "auto" the peak of
        each cycle, a number, the best of several if not given. Not used if ``optimizer`` is given, which goes
        with a number of steps.
    :param optimizer: any optax transformation.
    :param chunk: steps between two calls of ``callback`` and ``on_chunk``, checks of ``patience``, and saves.
    :param restarts: number R of independent fits, trained side by side (vmap). With "auto" the better half of them goes
        on after the trials and after every cycle, until one is left.
    :param devices: share every minibatch, or without ``batch_size`` all rows, between these devices of the process
        (``jax.devices()``), whose number divides the rows; parameters for each datum lie with it. The numbers are those
        of one device but for rounding.
    :param start: constrained parameters to start from, such as ``params`` of a fit under a poorer guide; those that are
        not named start as usual. Of a deep GP "auto" tries that of :func:`ppl_dgp.fit.shallow_start` if none is given.
    :param path: rules of the hidden layers, their names, or guides, poorer ones first, each of which contains the one
        before it, as ``guide`` does the last: each is trained from the optimum of the one before it
        (:func:`ppl_dgp.guides.nesting.nested_start`), the first from ``start``. Where a richer one ends below a poorer
        one the fit says so, and has not converged.
    :param progress: show a bar on standard error (default: where that is a terminal).
    :param patience: stop when, in every restart, the mean loss of the last ``patience`` steps is no lower than that of
        the ``patience`` steps before them.
    :param max_rejected_in_a_row: a step with a non-finite loss or gradient leaves the state as it is; so many in a row,
        in every restart, are an error.
    :param checkpoint: directory for the whole state, saved at the end, when interrupted, and every ``checkpoint_every``
        chunks (default: as often as costs a twentieth of the time). One that is there already is replaced.
    :param resume: continue from ``checkpoint``; the numbers are, bit for bit, those of a run that was never stopped.
    :param on_chunk: called after each chunk with the number of steps done and the losses so far, (R, steps).
    :param callback: called after each chunk with a :class:`ChunkReport`; where it returns True the fit stops as by
        Ctrl-C, ``Interrupted`` raised with the fit that was reached.
    :raises ValueError: for data or settings that cannot be used, before anything is compiled.
    :raises CheckpointError: its subclass, when there is nothing to resume or it is of another fit, or the directory
        cannot be written or is another fit's.
    :raises RuntimeError: in a process that was forked when JAX had begun, where it would wait for ever.
    :raises FitError: after too many rejected steps in a row.
    :raises Interrupted: a KeyboardInterrupt, on Ctrl-C, after saving. A second Ctrl-C interrupts at once, without.

    Warns with ``JitterWarning`` where a covariance matrix was singular to working precision at the parameters
    found, and with ``SaveWarning`` where a state could not be saved.
    """
    if path is not None:
        return fit_along(train=fit_svi, **locals())
    since = time.perf_counter()
    check_key(key)
    check_programs(model, guide, batch_size is not None)
    objective = objective_of(objective)
    x, y = checked_data(x, y, model)
    check_inducing(guide, objective)
    rows = x.shape[0]
    check_settings(None if in_windows(model) else rows, locals())
    about_steps = budget, tolerance, learning_rate, optimizer, chunk, rows, patience, restarts
    plan, deepens = planned(model, guide, [(x, y)], start, steps, *about_steps)
    units, per_batch, windows = units_of(model, x, batch_size)
    placement = Placement.over(
        devices, per_batch, "the number of rows" if batch_size is None else "batch_size"
    )
    if placement.processes > 1:
        raise ValueError("devices: found those of several processes, expected this one's; use fit_stream")
    identity: dict[str, Any] = {"data": fingerprint(x, y), "batch_size": batch_size, "chunk": chunk}
    identity |= {"restarts": restarts, "objective": type(objective).__name__, **plan.identity}
    saving = Saving(checkpoint, identity)

    optim = program.as_numpyro(plan.optimizer)
    about: dict[str, Any] = {"plan": plan, "chunk": chunk, "restarts": restarts, "since": since}
    about |= {"saving": saving, "earlier": saving.resumable(resume), "deepens": deepens}
    put = placement.shared if batch_size is None else placement.whole
    tables = put(x), put(y)
    settings = batch_size is not None, chunk, restarts, windows
    index = jax.ShapeDtypeStruct((chunk, 0 if batch_size is None else per_batch), np.int32)
    like = *tables, index, np.int32(0), np.int32(0)
    kept, training = started(
        key, model, guide, optim, objective, start, x, y, rows, placement, settings, like, **about
    )

    def data(number: int) -> tuple[Any, ...]:
        if batch_size is None:
            return *tables, placement.whole(np.zeros((chunk, 0), np.int32))
        drawn = minibatches(training.words, number, chunk, per_batch, units)
        return *tables, placement.shared(drawn, axis=1)

    def program_of(count: int) -> Callable[..., Any]:
        if count == restarts:
            return kept.run
        return placement.cached_program(kept.svi, rows, batch_size is not None, chunk, count, windows).run

    def result() -> Fit:
        params = finished(placement.gathered(training.stacked_params(kept.svi)), kept.svi, x, y)
        found = {"model": model, "guide": guide, "objective": objective, "fingerprint": identity["data"]}
        found |= {"seconds": training.seconds, "compile_seconds": training.compile_seconds}
        return assemble(params, training.losses[training.going], training.known, **found)

    fit = training.run(
        program_of,
        data,
        result,
        progress=progress,
        ended=partial(has_stalled, patience=patience),
        max_rejected_in_a_row=max_rejected_in_a_row,
        checkpoint_every=checkpoint_every,
        on_chunk=on_chunk,
        callback=callback,
    )
    jitter = used_jitter(kept.svi, fit.params, x, y)
    warn_of_jitter(jitter, x.dtype)
    fit = dataclasses.replace(fit, jitter=jitter)
    tell_end(fit)
    return fit
