"""Stochastic gradient Hamiltonian Monte Carlo: draws of inducing outputs from minibatches (Havasi et al. 2018)."""

from __future__ import annotations

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped
from numpyro.infer import ELBO, SVI
from numpyro.infer.autoguide import AutoDelta

from ppl_dgp.fit import program
from ppl_dgp.fit.arguments import check_counts, check_key, check_programs
from ppl_dgp.fit.chains import SamplingWarning, chains_of
from ppl_dgp.fit.dynamics import dynamics_of
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.jitter import used_jitter, warn_of_jitter
from ppl_dgp.fit.result import Fit, FitError, Interrupted, assemble, checked_data, fingerprint
from ppl_dgp.fit.sampled_model import check_start_fit
from ppl_dgp.fit.sampled_points import SampledSites
from ppl_dgp.fit.session import deferred_interrupt, one_blas_thread, progress_bar
from ppl_dgp.fit.sghmc_steps import (
    SamplerState,
    beginning,
    build_advance,
    largest_step,
    learning_optimizer,
    overwhelmed,
)
from ppl_dgp.fit.watching import Callback, ChunkReport, reported, tell_begin, tell_end
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.numpyro_internals import bijections_of
from ppl_dgp.guides import Guide
from ppl_dgp.guides.empirical import DRAWS_SUFFIX, EmpiricalPosterior
from ppl_dgp.guides.point import PointMass
from ppl_dgp.objectives import PowerEP, objective_of

#: Adam's rate at the beginning, the values kept of each chain for it, and steps between two looks at Ctrl-C
LEARNING_RATE, WINDOW, PIECE = 0.01, 100, 200
#: ε until it is chosen
FIRST_STEP = 0.02
NO_OPTIMISER = program.as_numpyro(optax.identity())


def fit_sghmc(
    key: Shaped[Array, "..."],
    model: Model,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    objective: ELBO | str | None = None,
    start: Fit | None = None,
    batch_size: int | None = None,
    num_warmup: int = 10_000,
    num_samples: int = 250,
    thinning: int = 50,
    num_chains: int = 4,
    step_size: float | None = None,
    dynamics: str = "sghmc",
    friction: float | None = None,
    learn: bool = True,
    progress: bool | None = None,
    callback: Callback | None = None,
) -> Fit:
    """Draw inducing outputs from their posterior by SGHMC, on minibatches, and learn the rest by Monte Carlo EM.

    The density is p(u) exp(Σ_n ℓ_n(u)), ℓ_n what ``PowerEP`` has for a row: at α = 1 log p(y_n | u), so that it is the
    FITC posterior that ``fit_nuts`` samples, hidden layers integrated out; at α = 0 E[log p(y_n | f_n)] over the layers
    given u, the best q(u) of all that the ELBO of ``DoublyStochastic`` can have. Hidden layers are drawn anew at each
    step, ``num_particles`` of the objective for each row; with few of them the logarithm of their average is too low,
    and with one (Havasi et al. 2018) the layers below the last are averaged outside it.

    Hyperparameters with priors, given by ``numpyro.handlers.lift`` or ``numpyro.sample`` in the model, are drawn beside
    u. All others, inducing inputs too, take a step of Adam per step of the warm-up, at one of the last 100 values of
    each chain (moving window Monte Carlo EM), its rate falling from 0.01 to 0; then they are held.
    Where the data say much of u that is slow: then give ``start=`` a variational fit, whose hyperparameters are learnt.

    Each number moves by a step of its own, whose unit is found in the warm-up from the sizes of its slopes
    (Springenberg et al. 2016), from a quarter of it on as their average over a thousand steps: where the unit follows
    the slope at hand, as theirs does until the first draw, chains spread too far, and kernel variances are learnt that
    are a third of the best. What slopes scatter between minibatches counts as part of a step's noise. Draws are
    those of the posterior as ``step_size`` goes to 0; check by a half of it.

    :param key: JAX random key.
    :param model: called as ``model(x, y)``, or with ``batch_size`` as ``model(x[index], y[index], index=index,
        size=N)``.
    :param x: inputs (N, D), None for none. y: targets (N, P), or (N,) for one column.
    :param objective: ``PowerEP``, by default at α = 1, with eight particles.
    :param start: a fit of this model, or of this model before ``lift``: chains begin at draws from its guide, all else
        at its parameters. Without it inducing outputs begin at draws of the scale that guides begin with.
    :param batch_size: rows of a minibatch, drawn with replacement and by each chain for itself; all rows if not given.
    :param num_warmup: steps before the first draw.
    :param num_samples: draws kept of each chain, at least 4, each ``thinning`` steps after the one before.
    :param num_chains: C, side by side on one device; R-hat compares them.
    :param step_size: ε, 0.01 of Havasi et al.; if not given as large as the scatter of slopes allows, at most 0.05.
    :param dynamics: "sghmc", or one of BlackJAX (extra ``samplers``): "sgld" (Welling & Teh 2011), Langevin dynamics
        without a velocity, whose draws spread further for what slopes scatter, and "sgnht" (Ding et al. 2014), with a
        thermostat that takes some of that off. In all of them each number moves in a unit of its own.
    :param friction: c, in (0, 1), by default 0.05; "sgld" has none.
    :param learn: whether parameters without priors are learnt; else they are held at their values in ``start``, or
        where the model begins them.
    :param progress: show a bar on standard error (default: where that is a terminal).
    :param callback: as of ``fit_svi``, with minus the log density of each chain for a loss; after each piece of the
        warm-up, and each draw.
    :returns: a ``Fit`` whose guide is an ``EmpiricalPosterior``, as of ``fit_nuts``; the hidden layers of all rows,
        those of training too, are drawn from the model's own conditionals. ``chains`` has R-hat and effective sample
        sizes, as ``diverging`` the draws before which a step was not finite; ``losses`` (1, S) are minus the log
        density at draws, estimated on a minibatch, averaged over chains.
    :raises MissingExtra: for dynamics of BlackJAX where it is not installed.
    :raises ValueError: for data or numbers that cannot be used, a model with other latents (states of a series, x_n of
        a latent variable model, discrete ones) or without inducing outputs, or a start of another model.
    :raises TypeError: for another objective, or a start that is no fit.
    :raises FitError: if the density is not finite where chains end.
    :raises Interrupted: a KeyboardInterrupt, on Ctrl-C or where the ``callback`` returns True, with a fit of the draws
        so far, if there are 4.

    Warns with ``SamplingWarning`` if R-hat is above 1.01, or where slopes of minibatches scatter more than the noise
    that a step needs, so that draws spread too far.
    """
    check_key(key)
    check_programs(model, None, batch_size is not None)
    objective = PowerEP(1.0) if objective is None else objective_of(objective)
    if not isinstance(objective, PowerEP):
        raise TypeError(f"objective: found {type(objective).__name__}, expected PowerEP; try PowerEP(1.0)")
    check_start_fit(start, model)
    x, y = checked_data(x, y, model)
    _check_numbers(locals(), len(x))
    moves = dynamics_of(dynamics, friction)
    since = time.perf_counter()
    sites = SampledSites.of(model, x, y, start)
    guide = Guide(model, inducing=PointMass(), others=AutoDelta if sites.others else None)
    svi = SVI(model, guide, NO_OPTIMISER, objective)
    key_init, key_begin, key_run = jax.random.split(key, 3)
    with one_blas_thread(), deferred_interrupt() as presses:
        known = None if start is None else {name: start.params[name] for name in sites.parameters}
        begun = svi.optim.get_params(initialise(svi, key_init, x, y, known).optim_state)
        rest = {name: begun[name] for name in sites.parameters}
        bijections = bijections_of(svi)
        values = sites.beginnings(
            key_begin, guide, start, num_chains, x, y, svi.constrain_fn(rest), bijections
        )
        learns = learn and bool(rest)
        optimizer = learning_optimizer(LEARNING_RATE, num_warmup)
        settings = len(x), batch_size, moves, optimizer
        state = beginning(values, rest, WINDOW if learns else 0, optimizer)
        state = program.fresh_copies(state)
        chosen = FIRST_STEP if step_size is None else step_size
        total = num_warmup + thinning * num_samples
        asked, nothing = False, (float("nan"),) * num_chains

        def report(before: np.ndarray, after: SamplerState) -> ChunkReport:
            rejected = int(np.asarray(after.rejected).sum()) - int(before.sum())
            losses = tuple(map(float, np.asarray(after.energy)))
            rates, seconds = (float(chosen),) * num_chains, time.perf_counter() - since
            return ChunkReport(int(after.steps), total, losses, nothing, rates, rejected, seconds)

        tell_begin(num_chains, 0, total)
        with progress_bar(progress, 0, total) as advance_bar:

            def advanced(state: SamplerState, count: int, adapts: bool) -> SamplerState:
                at = jnp.asarray(chosen, x.dtype)
                kept = program.cached_program(
                    svi, build_advance, *settings, num_warmup // 4 if adapts else None, learns
                )
                nonlocal asked
                done, before = int(state.steps), np.asarray(state.rejected)
                state = kept.run(state, jax.random.fold_in(key_run, done), x, y, at, np.int32(count))
                advance_bar(done + count, np.asarray(state.energy))
                asked = reported(callback, lambda: report(before, state)) and done + count < total
                return state

            for begin in range(0, num_warmup, PIECE):
                state = advanced(state, min(PIECE, num_warmup - begin), True)
                if step_size is None and begin + PIECE >= num_warmup // 4:
                    chosen = largest_step(state, moves, len(x))
                if presses() or asked:
                    raise KeyboardInterrupt(f"warm-up interrupted after {int(state.steps)} steps")
            draws: list[Parameters] = []
            energies, rejected = [], [np.asarray(state.rejected)]
            for _ in range(num_samples):
                state = advanced(state, thinning, False)
                draws.append(jax.tree.map(np.asarray, state.values))
                energies.append(np.asarray(state.energy))
                rejected.append(np.asarray(state.rejected))
                if interrupted := presses() > 0 or asked:
                    break
            if interrupted and len(draws) < 4:
                raise KeyboardInterrupt(f"sampling interrupted after {len(draws)} draws")
        free = {name: jnp.asarray(np.stack([draw[name] for draw in draws], 1)) for name in values}
        _check_finite(np.asarray(state.rejected), num_warmup + thinning * len(draws))
        by_site = {site: bijections[name](free[name]) for name, site in sites.points.items()}
        held = {name: svi.constrain_fn(state.learnt)[name] for name in rest}
        last = {name: bijections[name](free[name][0, -1]) for name in free}
        jitter = used_jitter(svi, held | last, x, y)
    warn_of_jitter(jitter, x.dtype)
    stats = {
        "diverging": np.diff(np.stack(rejected, 1), axis=1) > 0,
        "potential_energy": np.stack(energies, 1),
    }
    stats["step_size"] = np.full(stats["diverging"].shape, chosen)
    chains = chains_of(
        {name: np.asarray(value) for name, value in by_site.items()}, stats, num_warmup,
        overwhelmed(state, chosen, moves, len(x)),
    )  # fmt: skip
    if chains.advice is not None:
        warnings.warn(SamplingWarning(chains.advice), stacklevel=2)
    fit = assemble(
        {name: value[None] for name, value in (held | {f"{s}{DRAWS_SUFFIX}": v for s, v in by_site.items()}).items()},
        stats["potential_energy"].mean(0)[None], model=model, objective=objective, fingerprint=fingerprint(x, y),
        guide=EmpiricalPosterior(model, tuple(by_site), (), sites.hidden), jitter=jitter, chains=chains,
        seconds=time.perf_counter() - since,
    )  # fmt: skip
    if interrupted:
        raise Interrupted(fit)
    tell_end(fit)
    return fit


def _check_numbers(given: dict[str, Any], rows: int) -> None:
    """Raise ValueError for counts that are none, and for a step out of range."""
    least = {"num_warmup": 1, "num_samples": 4, "num_chains": 1, "thinning": 1}
    check_counts(**{name: (given[name], fewest) for name, fewest in least.items()})
    size = given["batch_size"]
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if size is not None and not (whole and 1 <= size <= rows):
        raise ValueError(
            f"batch_size: found {size!r}, expected a whole number from 1 to {rows}, the rows; leave it out"
        )
    step = given["step_size"]
    if step is not None and not 0.0 < step < np.inf:
        raise ValueError(f"step_size: found {step}, expected a positive number; try 0.01, or leave it out")


def _check_finite(rejected: Any, steps: int) -> None:
    if (rejected == steps).any():
        raise FitError(
            f"log density: found none that is finite in chain {int(np.argmax(rejected == steps))}, expected finite "
            "ones; standardise the data, use 64 bits, or give start= a fit"
        )
