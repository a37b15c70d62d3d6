"""What draws from a posterior say at the places of a reference problem: f, predictive densities, hidden layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace

from benchmarks.drawn_functions import log_density_at
from benchmarks.reference_problems import Problem
from ppl_dgp import Fit
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.guides.empirical import DRAWS_SUFFIX

#: draws that are looked at side by side
AT_ONCE = 20


def held_and_drawn(fit: Fit, most: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters that chains hold, and draws of latents (C, S, …): all, or at most about ``most`` of each chain."""
    held = {name: value for name, value in fit.params.items() if not name.endswith(DRAWS_SUFFIX)}
    draws = {name.removesuffix(DRAWS_SUFFIX): value for name, value in fit.params.items() if name not in held}
    number = next(iter(draws.values())).shape[1]
    every = max(1, number // (most or number))
    return held, {name: value[:, ::every] for name, value in draws.items()}


def at_draws(
    problem: Problem,
    kind: str,
    model: Callable[..., Any],
    held: Mapping[str, Any],
    draws: Mapping[str, Any],
    hidden: bool = True,
) -> dict[str, np.ndarray]:
    """Moments of f (C, S, places, P), log densities at values (C, S, places, G) and hidden values (C, S, N, Q).

    :param kind: which of the problem's models: "fitc" or "dense".
    :param held: values of parameters.
    :param draws: of sites (C, S, …), all but those that are drawn from the model's own conditionals.
    :param hidden: whether the draws have hidden layers at the training rows.
    """
    chains, number = next(iter(draws.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
    keys = jax.random.split(jax.random.key(1), chains * number)
    found = _program(problem, kind, model, hidden)(dict(held), flat, keys)
    return {
        name: np.asarray(value).reshape(chains, number, *value.shape[1:]) for name, value in found.items()
    }


@lru_cache(maxsize=8)
def _program(problem: Problem, kind: str, model: Callable[..., Any], hidden: bool) -> Callable[..., Any]:
    """Of parameters, draws and keys; compiled once for all fits of a model."""
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    places, values = jnp.asarray(problem.places), jnp.asarray(problem.values)

    def run(data: dict[str, Any], key: Any, *args: Any) -> Any:
        return trace(substitute(seed(model, key), data=data)).get_trace(*args)

    def one(data: dict[str, Any], key: Any) -> dict[str, Any]:
        there = run(data, key, x, y)
        found = {"hidden": there[problem.hidden[kind]]["value"]} if problem.hidden and hidden else {}
        if kind in problem.at_places:
            mean, variance, density = problem.at_places[kind](there, places, values)
        else:
            # latents of the training rows are not those of the places
            ahead = {name: value for name, value in data.items() if not name.endswith(("/h", "y/e"))}
            emission = emission_of(run(ahead, key, places, None)["y"]["fn"])
            assert emission is not None
            mean, variance = emission.marginal.mean, emission.marginal.variance
            density = log_density_at(emission, values)
        return {**found, "mean": mean, "variance": variance, "density": density}

    @jax.jit
    def program(held: dict[str, Any], draws: dict[str, Any], keys: Any) -> Any:
        return jax.lax.map(lambda each: one({**held, **each[0]}, each[1]), (draws, keys), batch_size=AT_ONCE)

    return program


def predictive(found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means and deviations of f (places, P) and log predictive densities (places, G), of all draws together."""
    density = found["density"].reshape(-1, *found["density"].shape[2:])
    top = density.max(0)
    return {
        "f_mean": found["mean"].mean((0, 1)),
        "f_deviation": np.sqrt(found["variance"].mean((0, 1)) + found["mean"].var((0, 1))),
        "log_density": top + np.log(np.exp(density - top).mean(0)),
    }
