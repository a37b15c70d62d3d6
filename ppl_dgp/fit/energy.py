"""An objective's value at given parameters, and the q(u) that is optimal there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from numpyro.infer import ELBO

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.fit.result import checked_data
from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives import Collapsed

AnyPosterior = TypeVar("AnyPosterior", bound=Posterior)


@takes_fit
def energy(
    key: Array, fit: Posterior, x: ArrayLike | None, y: ArrayLike, *, objective: ELBO | None = None
) -> float:
    """The energy in total nats, minus the objective's loss: at α = 0 the evidence lower bound, of an exact GP the log
    evidence, else an approximation of it.

    :param key: of the draws; an objective in closed form takes none.
    :param fit: its parameters are held.
    :param x: inputs (N, D), None for none.
    :param y: targets (N, P) or (N,), as trained on or others.
    :param objective: that of the fit if not given.
    :raises ValueError: if there is neither, or for data that cannot be used.
    """
    chosen = objective if objective is not None else getattr(fit, "objective", None)
    if chosen is None:
        raise ValueError(
            "objective: found none, expected one, for this posterior is not of a fit; pass PowerEP(0.0)"
        )
    rows = checked_data(x, y, fit.model)
    return -float(_loss(fit.model, fit.guide, chosen)(key, dict(fit.params), *rows))


@takes_fit
def optimal_inducing(
    fit: AnyPosterior, x: ArrayLike | None, y: ArrayLike, *, objective: Collapsed | None = None
) -> AnyPosterior:
    """The same with the optimal q(u) at its hyperparameters, in closed form under Gaussian noise (Titsias 2009).

    :param fit: its q(u) full-rank: ``FullRank()`` or ``Optimal()``.
    :param x: training inputs (N, D), all of them, None for none.
    :param y: training targets (N, P) or (N,).
    :param objective: for which it is optimal: ``Collapsed()`` if not given, ``Collapsed(alpha)`` for power EP's.
    :raises ValueError: if q(u) has no parameters ``…/u_loc`` and ``…/u_scale``, or for a model whose q(u) has no closed
        form.
    :raises TypeError: for a likelihood or a q(h) without one.
    """
    if not any(name.endswith("/u_loc") for name in fit.params):
        raise ValueError(
            "fit: found no parameters …/u_loc, expected those of a full-rank q(u); take Guide(model, "
            "inducing=FullRank())"
        )
    collapsed = Collapsed() if objective is None else objective
    rows = checked_data(x, y, fit.model)
    params = collapsed.finish(dict(fit.params), fit.model, fit.guide, *rows)
    return dataclasses.replace(fit, params=params)


@lru_cache(maxsize=64)
def drawn_energies(
    model: Model, guide: Model, objective: ELBO, num_draws: int
) -> Callable[[Shaped[Array, "..."], Parameters, Array, Array], Float[Array, " draws"]]:
    """``run(key, params, x, y)``: minus the loss in nats for each of so many draws, the same ones for equal keys."""

    def program(key: Shaped[Array, "..."], params: Parameters, x: Array, y: Array) -> Float[Array, " draws"]:
        keys = jax.random.split(key, num_draws)
        values: Array = jax.lax.map(lambda one: -objective.loss(one, params, model, guide, x, y), keys)
        return values

    return compiled(program)


def energy_in_blocks(
    key: Array, fit: Posterior, x: Array, y: Array, objective: ELBO, *, block: int, num_draws: int
) -> float:
    """An objective's value in nats over all rows, the mean of so many draws, of at most ``block`` rows at a time.

    :param fit: of a model that takes ``index`` and ``size``, where there are more rows than one block has.
    :param x: inputs (N, D); y targets (N, P), as ``checked_data`` gives them.
    """
    params = dict(fit.params)
    if len(x) <= block:
        return float(drawn_energies(fit.model, fit.guide, objective, num_draws)(key, params, x, y).mean())
    run = _of_block(fit.model, fit.guide, objective, num_draws, len(x))
    parts = np.array_split(np.arange(len(x)), -(-len(x) // block))
    # each estimates all rows by its own
    found = [float(run(jax.random.fold_in(key, part[0]), params, x[part], y[part], part)) for part in parts]
    return float(np.average(found, weights=[len(part) for part in parts]))


@lru_cache(maxsize=32)
def _of_block(model: Model, guide: Model, objective: ELBO, num_draws: int, size: int) -> Any:
    def program(key: Array, params: Parameters, x: Array, y: Array, index: Array) -> Array:
        loss = lambda one: objective.loss(one, params, model, guide, x, y, index=index, size=size)
        value: Array = -jax.lax.map(loss, jax.random.split(key, num_draws)).mean()
        return value

    return compiled(program)


@lru_cache(maxsize=32)
def _loss(model: Model, guide: Model, objective: ELBO) -> Any:
    def program(key: Array, params: Parameters, x: Array, y: Array) -> Array:
        loss: Array = objective.loss(key, params, model, guide, x, y)
        return loss

    return compiled(program)
