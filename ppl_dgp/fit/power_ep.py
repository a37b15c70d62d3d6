"""Power EP by iteration, for one layer under any likelihood (Bui, Yan & Turner 2017; Bui 2017, 2.3.9 and A.6).

Sites are swept until they rest; then, the energy being stationary in them, a step of Adam on the hyperparameters and
inducing inputs takes them as constants; and so on. Of a minibatch a few parallel sweeps must do.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num, Shaped
from numpyro.infer import SVI

from ppl_dgp.fit import program
from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.arguments import check_key, check_programs
from ppl_dgp.fit.convergence import checked_tolerance, convergence_of
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.result import Fit, FitError, Interrupted, assemble, checked_data, fingerprint
from ppl_dgp.fit.session import PIECE_SECONDS, deferred_interrupt, one_blas_thread, progress_bar
from ppl_dgp.fit.site_program import SweepSchedule, build_end, build_run, of_each_row
from ppl_dgp.fit.watching import Callback, ChunkReport, chunk_losses, reported, tell_begin, tell_end
from ppl_dgp.objectives.alpha import checked_alpha
from ppl_dgp.objectives.site_energy import SITE_SUFFIXES, SiteEnergy, read_layer, site_names
from ppl_dgp.objectives.sites import SiteParameters

SWEEPS_PER_PIECE = 50  # turns between two looks at Ctrl-C, at most; with minibatches an epoch
#: the same object for the same α, so that compiled fits are found again
_objective = lru_cache(maxsize=64)(SiteEnergy)


class SiteWarning(UserWarning):
    """Sites were not at rest at the end, or updates of some were left out."""


def fit_power_ep(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    guide: Callable[..., Any],
    x: ArrayLike,
    y: ArrayLike,
    *,
    alpha: float = 0.5,
    schedule: Literal["parallel", "sequential"] = "parallel",
    sweeps: int | None = None,
    damping: float | None = None,
    tolerance: float | None = None,
    hyper_steps: int = 100,
    learning_rate: float | optax.Schedule = 0.01,
    batch_size: int | None = None,
    start: Mapping[str, jax.Array] | None = None,
    progress: bool | None = None,
    callback: Callback | None = None,
) -> Fit:
    """Find the sites of Power EP, and with them q(u), while Adam trains the other parameters.

    The model has one layer, ``f(x).noisy(...)`` or ``f(x).observe(...)``, the guide a full-rank q(u). The fit's
    parameters hold q(u), so that ``predict`` and all else work as after ``fit_svi``, and the sites, ``…/site_location``
    and ``…/site_precision`` (N, F), of each function: one for each target, C of classes, two under learnt noise. Its
    losses are minus the energy (an energy, no bound, for α > 0) before each step, and last at the parameters returned;
    with minibatches all but the last are estimates. Its objective is ``SiteEnergy``.

    :param key: JAX random key of the initialisation and the minibatches.
    :param model, guide: NumPyro callables; with the same two objects, settings and shapes a second fit compiles
        nothing.
    :param x: inputs (N, D).
    :param y: targets (N, P), or (N,) for one column.
    :param alpha: in [0, 1]; 1 is EP, 0 the variational bound, whose optimum the sweeps then find by natural gradients.
    :param schedule: "sequential" visits one datum after another, "parallel" all at once. Both rest at the same sites; a
        parallel sweep is much faster on wide hardware, a sequential one needs fewer and hardly ever fails.
    :param sweeps: at most so many before each step and at the end; 100 if not given, 5 of each minibatch.
    :param damping: the share of the way, in (0, 1], that natural parameters go to their new values; 1 if sequential,
        else 0.5, if not given. Smaller is safer.
    :param tolerance: sweeps end when no natural parameter would move by more than this, relative to 1 + its size; the
        square root of the machine's precision if not given.
    :param hyper_steps: steps of Adam; 0 leaves all but q(u) where it starts.
    :param learning_rate: of Adam, a number or an optax schedule of the step.
    :param batch_size: rows in a minibatch, 1 to N, for the parallel schedule; a step costs O(B M² + M³), and an epoch
        begins with a pass over all rows. Other sites keep their values meanwhile.
    :param start: constrained parameters to start from, sites among them if you like; others start as usual.
    :param progress: show a bar on standard error (default: where that is a terminal).
    :param callback: as of ``fit_svi``, after each piece of steps.
    :raises ValueError: for data or settings that cannot be used, or a model of other than one layer.
    :raises TypeError: for data that are not those of a GP, or a q(u) that is not of full rank.
    :raises FitError: if the energy is not finite at the end.
    :raises Interrupted: on Ctrl-C, or where the ``callback`` returns True, with what was found so far.

    Warns with ``SiteWarning`` where sites were not at rest or updates were skipped (of a datum whose cavity or tilted
    variance would not be positive, as happens with likelihoods that are not log-concave), with ``JitterWarning`` as
    ``fit_svi`` does.
    """
    check_key(key)
    check_programs(model, guide)
    x, y = checked_data(x, y)
    rows = x.shape[0]
    objective = _objective(checked_alpha("fit_power_ep", alpha))
    _check_settings(rows, locals())
    started = time.perf_counter()
    sequential = schedule == "sequential"
    settings = SweepSchedule(
        objective.alpha,
        sequential,
        sweeps or (100 if batch_size is None else 5),
        damping or (1.0 if sequential else 0.5),
        float(np.sqrt(jnp.finfo(x.dtype).eps)) if tolerance is None else float(tolerance),
    )
    index_key, init_key = program.split_key(key, 2)
    optimiser = adam(learning_rate)
    svi = SVI(model, guide, program.as_numpyro(optimiser), objective)
    # the sites are no parameters of the program
    beginning = {name: value for name, value in (start or {}).items() if not name.endswith(SITE_SUFFIXES)}
    first = svi.optim.get_params(initialise(svi, init_key, x, y, beginning or None).optim_state)
    site, shape = _checked_site(model, svi.constrain_fn(first), settings, x, y)
    kept = program.cached_program(svi, build_run, settings, optimiser, batch_size is not None)
    ending = program.cached_program(svi, build_end, settings.alpha)
    names = site_names(site)
    zeros = jnp.zeros(shape, x.dtype)
    sites = SiteParameters(*(jnp.asarray((start or {}).get(name, zeros), x.dtype) for name in names))
    if wrong := [each.shape for each in sites if each.shape != shape]:
        raise ValueError(f"start: found sites of shape {wrong[0]}, expected {shape}, rows and functions")
    state = {"params": first, "adam": optimiser.init(first), "sites": sites}
    state |= {"change": jnp.full((), jnp.inf, x.dtype), "skipped": jnp.zeros((), jnp.int32)}
    state = program.fresh_copies(state)

    # on all rows the last turn sweeps the sites of the last step, and takes none
    turns = hyper_steps + (batch_size is None)
    losses, compile_seconds, pace = np.empty(0), 0.0, 1
    random = np.random.default_rng(program.key_words(index_key))

    def result() -> Fit:
        found, loc, scale, loss = ending.run(state["params"], state["sites"], x, y)
        stacked = program.stacked_params(ending.svi, state["params"], False)
        posterior = {f"{site}_loc": loc, f"{site}_scale": scale, **dict(zip(names, found, strict=True))}
        stacked |= {name: value[None] for name, value in posterior.items()}
        ended = np.append(losses[:hyper_steps], float(loss))
        known = convergence_of(ended, checked_tolerance(None, rows))
        about: dict[str, Any] = {"model": model, "guide": guide, "objective": objective}
        about["fingerprint"] = fingerprint(x, y)
        about |= {"seconds": time.perf_counter() - started, "compile_seconds": compile_seconds}
        return assemble(stacked, ended[None], [known], **about)

    def report(count: int) -> ChunkReport:
        known, last = convergence_of(losses, checked_tolerance(None, rows)), losses[None, -count:]
        rate = learning_rate(len(losses) - 1) if callable(learning_rate) else learning_rate
        about = chunk_losses(last), (known.gap,), (float(rate),), int(np.isnan(last).sum())
        return ChunkReport(len(losses), turns, *about, time.perf_counter() - started)

    tell_begin(1, 0, turns)
    with one_blas_thread(), deferred_interrupt() as presses, progress_bar(progress, 0, turns) as advance:
        while len(losses) < turns:
            indices = _epoch(random, rows, batch_size)
            longest = min(len(indices), turns - len(losses))
            count = longest if batch_size is not None else min(pace, longest)
            moves = np.arange(len(losses), len(losses) + len(indices)) < hyper_steps
            before = time.perf_counter()
            state, piece = kept.run(state, x, y, indices, moves, count)
            losses = np.concatenate([losses, np.asarray(piece)[:count]])
            elapsed = time.perf_counter() - before
            compile_seconds = compile_seconds or elapsed
            pace = max(1, min(SWEEPS_PER_PIECE, 4 * pace, int(count * PIECE_SECONDS / elapsed)))
            advance(len(losses), losses[-1:])
            asked = reported(callback, lambda: report(count))  # noqa: B023  called at once
            if presses() or (asked and len(losses) < turns):
                raise Interrupted(result())
    fit = result()
    if not np.isfinite(fit.losses[0, -1]):
        raise FitError(
            f"energy: found {-fit.losses[0, -1]} at the end, expected a finite one; lower the damping or the learning "
            "rate, use 64 bits (numpyro.enable_x64()), or check the model's start"
        )
    _warn_of_sites(state, settings, rows if batch_size is None else batch_size, batch_size is None)
    jitter = used_jitter(ending.svi, fit.params, x, y)
    warn_of_jitter(jitter, x.dtype)
    fit = dataclasses.replace(fit, jitter=jitter)
    tell_end(fit)
    return fit


def _epoch(random: np.random.Generator, rows: int, batch_size: int | None) -> Int[np.ndarray, "T B"]:
    """The rows of each minibatch of an epoch, none twice: a site is to be updated once; no rows for whole turns."""
    if batch_size is None:
        return np.zeros((SWEEPS_PER_PIECE, 0), np.int32)
    whole = rows // batch_size * batch_size
    return random.permutation(rows)[:whole].reshape(-1, batch_size).astype(np.int32)


def _checked_site(
    model: Callable[..., Any],
    params: Mapping[str, Array],
    settings: SweepSchedule,
    x: Float[Array, "N D"],
    y: Num[Array, "N P"],
) -> tuple[str, tuple[int, int]]:
    """The layer's inducing site and the shape of its sites, q(u) and likelihood looked at before anything compiles."""
    site, functions = "", 0

    def look(params: Mapping[str, Array]) -> tuple[Array, ...]:
        nonlocal site, functions
        layer = read_layer(model, params, x, y)
        site, rows = layer.site, layer.rows
        found = {name: jnp.shape(params[name]) for name in params if name.startswith(f"{site}_")}
        functions, size = rows.offset.shape[1], rows.phi.shape[1]
        if found != {f"{site}_loc": (functions, size), f"{site}_scale": (functions, size, size)}:
            raise TypeError(
                f"guide: found the parameters {found} of q(u), expected those of a full-rank one; use "
                "Guide(model, inducing=FullRank())"
            )
        all_rows = layer.tempered(settings.alpha)(rows.y, rows.offset, jnp.ones_like(rows.offset))
        if not settings.sequential:
            return (all_rows,)
        tempered_at, each = of_each_row(layer, settings.alpha)
        one = rows.offset[:1]
        return all_rows, tempered_at([value[0] for value in each])(rows.y[:1], one, jnp.ones_like(one))

    shapes = [term.shape for term in jax.eval_shape(look, params)]
    if shapes[0] != y.shape:
        raise ValueError(
            f"likelihood: found terms of shape {shapes[0]} for y of {y.shape}, expected one per entry; sum what "
            "belongs to one target"
        )
    if settings.sequential and shapes[1] != (1, y.shape[1]):
        raise ValueError(
            f"likelihood: found terms of shape {shapes[1]} for one row, expected {(1, y.shape[1])}; it holds values "
            "per row that cannot be taken apart: use schedule='parallel'"
        )
    return site, (len(x), functions)


def _check_settings(rows: int, settings: Mapping[str, Any]) -> None:
    for name, least, most in (("sweeps", 1, None), ("hyper_steps", 0, None), ("batch_size", 1, rows)):
        value = settings[name]
        if value is None and name != "hyper_steps":
            continue
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            span = (
                f"from {least} to the number of rows, {most}" if most is not None else f"of at least {least}"
            )
            raise ValueError(
                f"{name}: found {value!r}, expected a whole number {span}; change it or leave it out"
            )
    damping, tolerance, rate = settings["damping"], settings["tolerance"], settings["learning_rate"]
    if damping is not None and not 0.0 < damping <= 1.0:
        raise ValueError(f"damping: found {damping!r}, expected a number in (0, 1]; 1 goes all the way")
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(
            f"tolerance: found {tolerance!r}, expected a positive number; change it or leave it out"
        )
    if not callable(rate) and not (np.ndim(rate) == 0 and np.isfinite(rate) and rate > 0):
        raise ValueError(
            f"learning_rate: found {rate!r}, expected a positive number or an optax schedule; try 0.01"
        )
    if settings["schedule"] not in ("parallel", "sequential"):
        raise ValueError(f"schedule: found {settings['schedule']!r}, expected 'parallel' or 'sequential'")
    if settings["batch_size"] is not None and settings["schedule"] == "sequential":
        raise ValueError(
            "schedule: found 'sequential' with a batch_size, expected 'parallel'; leave one of them out"
        )
    if settings["batch_size"] is not None and settings["hyper_steps"] == 0:
        raise ValueError("hyper_steps: found 0 with a batch_size, expected at least 1; leave out batch_size")


def _warn_of_sites(state: Mapping[str, Any], settings: SweepSchedule, rows: int, whole: bool) -> None:
    """Say what the last sweep left undone; minibatches are not meant to come to rest."""
    change, skipped = float(state["change"]), int(state["skipped"])
    found = []
    if whole and not change <= settings.tolerance:
        found.append(
            f"sites: found changes of {change:.1e} in the last of {settings.sweeps} sweeps, expected at most "
        )
        found[-1] += f"{settings.tolerance:.1e}"
    if skipped:
        found.append(f"{skipped} updates of {rows} rows were skipped, whose variance would not be positive")
    if found:
        remedy = "more sweeps, a smaller damping or a smaller alpha may help"
        warnings.warn(SiteWarning(f"{'; '.join(found)}; {remedy}"), stacklevel=3)
