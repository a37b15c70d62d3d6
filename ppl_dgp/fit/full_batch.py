"""Optimisation of a deterministic objective on all the data: exact evidence, collapsed bounds, MAP.

L-BFGS with a zoom line search: Nocedal and Wright, "Numerical Optimization", 2006, algorithms 7.5 and 3.5.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Num, Shaped
from numpyro import handlers
from numpyro.infer import ELBO, SVI, Trace_ELBO

from ppl_dgp import checkpoint as saved
from ppl_dgp.fit import program
from ppl_dgp.fit.arguments import check_inducing, check_key, check_programs, check_settings
from ppl_dgp.fit.convergence import Convergence, checked_tolerance, convergence_of_descent, until_check
from ppl_dgp.fit.factors import GaussianFactors, gaussian_factors
from ppl_dgp.fit.fixed_rows import sums_over_rows
from ppl_dgp.fit.held_draws import beside_fresh_draws
from ppl_dgp.fit.initial import traced_start
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.natural_lbfgs import natural_lbfgs
from ppl_dgp.fit.result import Fit, FitError, Interrupted, assemble, checked_data, fingerprint, finished
from ppl_dgp.fit.rounding import beside_rounding
from ppl_dgp.fit.saving import Saving
from ppl_dgp.fit.session import PIECE_SECONDS, deferred_interrupt, one_blas_thread, progress_bar
from ppl_dgp.fit.watching import Callback, ChunkReport, chunk_losses, reported, tell_begin, tell_end
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import objective_of
from ppl_dgp.objectives.row_sums import KnownSums, RowSums

ITERATIONS_PER_PIECE = 50  # iterations between two looks at Ctrl-C, at most
THREADED_ROWS = 1000  # so many rows in one dense matrix are worth several BLAS threads
BUDGET = 3000  # iterations of "auto"
WORTH = 0.1  # of the tolerance, that a memory has gained if another is begun
#: pairs of steps and gradients that stand for the curvature: kernels, Z and noises are few, and their valleys long
_lbfgs = optax.lbfgs(memory_size=50)
_unused = program.as_numpyro(optax.identity())  # SVI wants an optimiser to initialise the parameters
_trace_elbo = Trace_ELBO()


def no_latents(*args: Any, **kwargs: Any) -> None:
    """The guide of a model whose only random sites are observed."""


def fit_lbfgs(
    key: Shaped[jax.Array, "..."],
    model: Callable[..., Any],
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    guide: Callable[..., Any] | None = None,
    objective: ELBO | str | None = None,
    steps: int | str = "auto",
    tolerance: float | None = None,
    budget: int = BUDGET,
    start: Mapping[str, jax.Array] | None = None,
    natural: bool = False,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callback: Callback | None = None,
) -> Fit:
    """Minimise ``objective`` on all the data by L-BFGS, for objectives that are deterministic.

    Without a guide the model may have no latent sites: its log density, such as an exact Gaussian process's
    log evidence, is maximised over its parameters. A guide that draws is held at the draws of one key, which parameters
    for each row can learn by heart: how much worse fresh draws are counts in the gap, and is said.

    While it runs on the CPU, BLAS is held to one thread as in ``fit_svi``, but for dense matrices of 1000 rows or
    more (no guide): their factorisation gains from more threads.

    :param key: JAX random key of the initialisation and of the draws, if there are any.
    :param model: NumPyro model, called as ``(x, y)``.
    :param guide: likewise.
    :param objective: ``Trace_ELBO()`` if not given.
    :param x: inputs (N, D), None for none (a latent variable model).
    :param y: targets (N, P), or (N,) for one column, with NaN for missing entries where the model takes them
        (``missing=True`` of the GPLVMs).
    :param steps: at most so many iterations; "auto" goes on until the fit has converged or the budget is spent. It
        stops before when the line search finds nothing lower, and the memory of curvatures has gained less than a tenth
        of the tolerance since it was last empty (else it is emptied), or when no entry of the gradient, in the
        unconstrained parameters, exceeds the square root of the machine's precision times max(1, |loss|).
    :param tolerance: nats in all that iterations without end may yet gain of a fit that has converged; a thousandth of
        a nat a row, half a nat at least, if not given.
    :param budget: of "auto", at most so many iterations.
    :param start: constrained parameters to start from; those that are not named start as usual.
    :param natural: by natural gradients of the guide's Gaussian factors (:func:`ppl_dgp.fit.gaussian_factors`), which
        L-BFGS corrects once q is near its optimum: far fewer iterations for series and for rows with a q of their own.
        Best with ``inducing=Optimal()`` and ``Collapsed()``, which leave it the chain and the hyperparameters.
    :param progress: show a bar on standard error (default: where that is a terminal).
    :param checkpoint: directory for the whole state, saved at the end, when interrupted, and now and then, as often as
        costs a twentieth of the time.
    :param resume: continue from ``checkpoint``, as if it had never stopped.
    :param callback: as of ``fit_svi``, after each piece of at most 50 iterations, which has the gradient's ``slope``.
    :returns: a ``Fit`` of one restart; its losses are those after each iteration, the last that of ``params``.
    :raises ValueError: for data that cannot be used, latent sites without a guide, or with ``natural`` a guide without
        Gaussian factors, or one that is no ``Guide`` (a TypeError).
    :raises CheckpointError: its subclass, when there is nothing to resume or it is of another fit, or the directory
        cannot be written or is another fit's.
    :raises RuntimeError: in a process that was forked when JAX had begun, where it would wait for ever.
    :raises FitError: if the loss is not finite.
    :raises Interrupted: on Ctrl-C, or where the ``callback`` returns True, after saving.

    Warns with ``JitterWarning`` and ``SaveWarning`` as ``fit_svi`` does, and with ``HeldDrawsWarning`` where the loss
    is higher at fresh draws by more than the tolerance.
    """
    check_key(key)
    check_programs(model, guide)
    objective = _trace_elbo if objective is None else objective_of(objective)
    x, y = checked_data(x, y, model)
    check_inducing(guide, objective)
    check_settings(len(x), {"steps": steps, "budget": budget, "learning_rate": None})
    allowed = checked_tolerance(tolerance, len(x))
    auto = isinstance(steps, str)
    most = budget if isinstance(steps, str) else steps
    started = time.perf_counter()
    data = fingerprint(x, y)
    identity = {"data": data, "objective": type(objective).__name__}
    saving = Saving(checkpoint, identity | {"optimiser": "natural L-BFGS" if natural else "L-BFGS"})
    earlier = saving.resumable(resume)
    init_key, loss_key = program.split_key(key, 2)
    dense = guide is None and len(x) >= THREADED_ROWS
    if guide is None:
        guide = no_latents
        _check_no_latents(model, init_key, x, y)
    factors = gaussian_factors(guide, x, y).at_any() if natural else None
    svi = SVI(model, guide, _unused, objective)
    first = traced_start(svi, init_key, x, y, start)
    begun = lambda state: program.fresh_copies(_first_state(svi.optim.get_params(state.optim_state), factors))
    shapes = jax.eval_shape(begun, first.shapes)
    if not shapes["params"]:
        raise ValueError(
            "model and guide: found no parameters, expected some to optimise; declare them by numpyro.param"
        )
    kept = program.cached_program(svi, _build_iterations, factors)
    sums = sums_over_rows(svi, first.shapes, x, y)
    limits = float(np.sqrt(jnp.finfo(x.dtype).eps)), WORTH * allowed
    compiling = time.perf_counter()
    with program.compiled_beside(kept.run, shapes, loss_key, x, y, sums, limits, np.int32(0)):
        state = begun(first.find())
    compile_seconds = time.perf_counter() - compiling
    losses, lasted, pace = np.empty(0), 0.0, 1
    if checkpoint is not None and earlier is not None:
        lasted = earlier["seconds"]
        like = {"state": state, "losses": jax.ShapeDtypeStruct((earlier["step"],), np.float64)}
        found, _ = saved.load(checkpoint, like)
        state, losses = found["state"], np.asarray(found["losses"])

    def seconds() -> float:
        return lasted + time.perf_counter() - started

    def save() -> None:
        saving.save({"state": state, "losses": losses}, step=len(losses), seconds=seconds())

    def result() -> Fit:
        stacked = program.stacked_params(kept.svi, state["params"], False)
        stacked = finished(stacked, svi, x, y, sums)
        about = {"model": model, "guide": guide, "objective": objective, "fingerprint": data}
        # an exact GP predicts from its training rows
        about["data"] = (x, y) if guide is no_latents else None
        about |= {"seconds": seconds(), "compile_seconds": compile_seconds}
        return assemble(stacked, losses[None], [known()], **about)

    def known() -> Convergence:
        foreseen, done = float(state["foreseen"]), bool(state["done"])
        return convergence_of_descent(losses, allowed, foreseen, done)

    def report(count: int) -> ChunkReport:
        slope, nothing = float(np.abs(np.asarray(state["slope"])).max()), (float("nan"),)
        last = chunk_losses(losses[None, -count:])
        return ChunkReport(len(losses), most, last, (known().gap,), nothing, 0, seconds(), slope)

    def ended() -> bool:
        if state["done"] or len(losses) >= most:
            return True
        return auto and until_check(len(losses) - 1) == 1 and known().converged

    tell_begin(1, len(losses), most)
    threads = nullcontext() if dense else one_blas_thread()
    bar = progress_bar(progress, len(losses), most)
    with saving.alone(), threads, deferred_interrupt() as presses, bar as advance:
        while not ended():
            count, before = min(pace, until_check(len(losses)), most - len(losses)), time.perf_counter()
            state, piece, turns = kept.run(state, loss_key, x, y, sums, limits, np.int32(count))
            losses = np.concatenate([losses, np.asarray(piece)[: int(turns)]])
            elapsed = time.perf_counter() - before
            pace = max(1, min(ITERATIONS_PER_PIECE, 4 * pace, int(count * PIECE_SECONDS / elapsed)))
            if not np.isfinite(losses[-1]):
                raise FitError(
                    f"loss: found {losses[-1]} after {len(losses)} iterations, expected a finite one; "
                    "standardise the data, use 64 bits (numpyro.enable_x64()), or check the model's start"
                )
            advance(len(losses), losses[-1:])
            asked = reported(callback, lambda: report(int(turns)))  # noqa: B023  called at once
            if presses() or (asked and not ended()):
                save()
                raise Interrupted(result())
            if saving.due():
                save()
        save()
    fit = result()
    at = lambda params, key: _loss_at(kept.run, state | {"params": params}, key, x, y, sums, limits)
    of_key, of_params = partial(at, state["params"]), lambda params: at(params, loss_key)
    found = beside_rounding(known(), state["params"], of_params, losses[-1], loss_key)
    fit = dataclasses.replace(fit, convergence=beside_fresh_draws(found, losses[-1], of_key, loss_key))
    jitter = used_jitter(kept.svi, fit.params, x, y)
    warn_of_jitter(jitter, x.dtype)
    fit = dataclasses.replace(fit, jitter=jitter)
    tell_end(fit)
    return fit


def _loss_at(run: Callable[..., Any], state: dict[str, Any], key: Array, *rest: Any) -> float:
    """The loss of a state anew: that before the first iteration, of none."""
    anew = program.fresh_copies(state | {"begun": jnp.zeros((), bool)})
    return float(run(anew, key, *rest, np.int32(0))[0]["value"])


def _first_state(params: dict[str, Array], factors: GaussianFactors | None) -> dict[str, Any]:
    """The state before the first iteration: the point, its value and slope (not yet known), L-BFGS's memory.

    ``foreseen`` is the decrease of the last step as a quadratic has it, ½ gᵀHg; ``since`` the value at which the memory
    was last empty.
    """
    flat, unravel = ravel_pytree(params)
    return {
        "params": params,
        "value": jnp.zeros((), flat.dtype),
        "slope": jnp.zeros_like(flat),
        "memory": _solver(factors, unravel).init(flat),
        "foreseen": jnp.full((), jnp.inf, flat.dtype),
        "since": jnp.full((), jnp.inf, flat.dtype),
        "begun": jnp.zeros((), bool),
        "done": jnp.zeros((), bool),
    }


def _solver(
    factors: GaussianFactors | None, unravel: Callable[[Array], dict[str, Array]]
) -> optax.GradientTransformationExtraArgs:
    return _lbfgs if factors is None else natural_lbfgs(factors, unravel)


def _build_iterations(svi: SVI, factors: GaussianFactors | None) -> Callable[..., Any]:
    """``run(state, key, x, y, sums, limits, count)``: at most ``count`` iterations; the state is donated.

    ``limits`` are that of the slope, and the nats for which a descent that has ended begins with a new memory.

    Gives the state (see ``_first_state``), the losses after each iteration (PIECE,), and the number of iterations
    done.
    """

    def run(
        state: dict[str, Any],
        key: Shaped[Array, "..."],
        x: Float[Array, "N D"],
        y: Num[Array, "N P"],
        sums: dict[str, RowSums],
        limits: tuple[Float[Array, ""], Float[Array, ""]],
        count: Int[Array, ""],
    ) -> tuple[Any, Float[Array, " piece"], Int[Array, ""]]:
        flat, unravel = ravel_pytree(state["params"])
        solver = _solver(None if factors is None else factors.at(x, y), unravel)

        def loss(point: Float[Array, " K"]) -> Float[Array, ""]:
            with KnownSums(sums):
                value: Array = svi.loss.loss(
                    key, svi.constrain_fn(unravel(point)), svi.model, svi.guide, x, y
                )
            return value

        def converged(value: Float[Array, ""], slope: Float[Array, " K"]) -> Bool[Array, ""]:
            return jnp.max(jnp.abs(slope)) <= limits[0] * jnp.maximum(1.0, jnp.abs(value))

        def going(carry: Any) -> Bool[Array, ""]:
            done, turns = carry[-3:-1]
            unfinished: Array = (turns < count) & ~done
            return unfinished

        def iterate(carry: Any) -> Any:
            point, value, slope, memory, foreseen, since, done, turns, losses = carry
            move, new_memory = solver.update(slope, memory, point, value=value, grad=slope, value_fn=loss)
            found = new_memory[-1]  # the line search's value and gradient at point + move
            lower = found.value < value  # false for NaN too
            # nothing lower in that direction: a wrong curvature, as after a long step, or the end: without it once more
            again = ~lower & (since - value > limits[1])
            # of a start at an optimum, where the first search finds nothing lower, that of what it tried last
            known = lower | jnp.isinf(foreseen)
            foreseen = jnp.where(known, 0.5 * jnp.abs(jnp.vdot(move, slope)), foreseen)
            point = jnp.where(lower, point + move, point)
            slope = jnp.where(lower, found.grad, slope)
            value = jnp.where(lower, found.value, value)
            losses = losses.at[turns].set(value)
            done = (~lower & ~again) | converged(value, slope)
            since = jnp.where(again, value, since)
            new_memory = jax.tree.map(partial(jnp.where, again), solver.init(point), new_memory)
            return point, value, slope, new_memory, foreseen, since, done, turns + 1, losses

        # kept from piece to piece, so that where a run is cut changes nothing
        value, slope = jax.lax.cond(
            state["begun"], lambda point: (state["value"], state["slope"]), jax.value_and_grad(loss), flat
        )
        turns, losses = jnp.zeros((), int), jnp.zeros(ITERATIONS_PER_PIECE, value.dtype)
        before = state["memory"], state["foreseen"], state["since"], state["done"]
        begin = (flat, value, slope, *before, turns, losses)
        point, value, slope, memory, foreseen, since, done, turns, losses = jax.lax.while_loop(
            going, iterate, begin
        )
        after = {"params": unravel(point), "value": value, "slope": slope, "memory": memory}
        after |= {"foreseen": foreseen, "since": since}
        return after | {"begun": jnp.ones((), bool), "done": done}, losses, turns

    return compiled(run, donate_argnums=0)


def _check_no_latents(
    model: Callable[..., Any], key: Shaped[Array, "..."], x: Float[Array, "N D"], y: Num[Array, "N P"]
) -> None:
    latent: list[str] = []

    def look(key: Shaped[Array, "..."]) -> None:
        sites = handlers.trace(handlers.seed(model, key)).get_trace(x, y).values()
        latent.extend(site["name"] for site in sites if site["type"] == "sample" and not site["is_observed"])

    jax.eval_shape(look, key)
    if latent:
        raise ValueError(
            f"guide: found None beside the latent sites {', '.join(latent)}, expected a guide for them; "
            "pass a guide, for the most probable values numpyro.infer.autoguide.AutoDelta(model)"
        )
