"""Joint draws of a fit's θ with their weights: what k-hat, bounds, LOO and the ArviZ export are made of.

θ are all sites outside the data plate, h_n the latents inside it. Everything here is of the model that NumPyro sees,
in which the f_n are independent given u (t_1, the FITC model; exact where Z = X).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit import Posterior
from ppl_dgp.gp.contract import TARGET_SITE, Trace
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.representation import Pushed, replayed
from ppl_dgp.guides import EmpiricalPosterior
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.objectives.enumeration import enumerate_discrete
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.site_roles import SiteRoles, classify_sites
from ppl_dgp.objectives.weights import log_weights


@dataclass(frozen=True, eq=False)
class Draws:
    """S draws of θ ~ q(θ), K of the locals under each; NumPy arrays.

    ``log_p`` (S,) is log p(θ), ``log_q`` (S,) log q(θ). ``log_likelihood`` (S, N) is log p(y_n | θ), the locals
    averaged out: log (1/K) Σ_k p(y_n, h_nk | θ) / q(h_nk | θ), which for ``DoublyStochastic`` is the average of
    p(y_n | h_nk) under the model's own conditionals; discrete latents of the rows are summed out.
    ``local_weights`` (S, K, N) are the logs of its terms.
    ``sites`` are the values of θ, ``unwhitened`` those of u = m(Z) + L v by layer (S, P, M), ``hidden`` one draw of
    each hidden site (S, N, Q), ``y`` replicated targets (S, N, P) with hidden layers from the model. ``latents`` names
    the hidden sites without a GP in front, such as a GPLVM's x, ``on_inputs`` the layers whose inputs are the columns
    of x, and ``to_targets`` those whose outputs are the columns of y.
    """

    log_p: np.ndarray
    log_q: np.ndarray
    log_likelihood: np.ndarray
    local_weights: np.ndarray
    sites: dict[str, np.ndarray]
    unwhitened: dict[str, np.ndarray]
    hidden: dict[str, np.ndarray]
    y: np.ndarray
    latents: frozenset[str] = frozenset()
    on_inputs: frozenset[str] = frozenset()
    to_targets: frozenset[str] = frozenset()

    def split(self, parts: int) -> list[Draws]:
        """The same draws in equal parts, consecutive ones together; ``parts`` divides S."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        names: dict[str, Any] = {
            name: value for name, value in arrays.items() if isinstance(value, frozenset)
        }
        arrays = {name: value for name, value in arrays.items() if name not in names}
        cut = lambda part: jax.tree.map(lambda each: np.split(each, parts)[part], arrays)
        return [Draws(**cut(part), **names) for part in range(parts)]

    @property
    def log_ratio(self) -> Float[np.ndarray, " S"]:
        """log p(y, θ) − log q(θ) of each draw: the weights of the global sites."""
        result: np.ndarray = self.log_p + self.log_likelihood.sum(1) - self.log_q
        return result


def joint_draws(
    key: Array,
    fit: Posterior,
    x: ArrayLike | None,
    y: ArrayLike,
    *,
    num_draws: int = 200,
    num_locals: int = 8,
) -> Draws:
    """Draw θ, and under each draw the locals, on all rows at once.

    :param fit: of a model with a data plate.
    :param x: training inputs (N, D), all of them, in their order; None for a GPLVM, which has none.
    :param y: training targets, (N, P) or (N,).
    :param num_draws: S; of an ``EmpiricalPosterior``, evenly spaced along its chains, at most as many as it holds.
    :param num_locals: K; the average over the locals is biased low by O(1/K) of its relative variance.
    :raises ValueError: for a number of draws below 1.
    :raises TypeError: if the model has data outside one data plate (an exact GP): its rows have no separate weights.
    """
    for name, value in (("num_draws", num_draws), ("num_locals", num_locals)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1; a few hundred draws are usual")
    program = _draws_program(fit.model, fit.guide, num_draws, num_locals)
    arrays = jax.tree.map(
        np.asarray, program(key, dict(fit.params), jnp.asarray(inputs_of(x, y)), columns(y))
    )
    averaged = np.logaddexp.reduce(arrays["local_weights"], axis=1) - np.log(num_locals)
    names: dict[str, Any] = {
        name: frozenset(arrays.pop(name)) for name in ("latents", "on_inputs", "to_targets")
    }
    return Draws(log_likelihood=averaged, **names, **arrays)


def inputs_of(x: ArrayLike | None, y: ArrayLike) -> Shaped[np.ndarray, "N D"]:
    """x as an array, where it is None without columns: (N, 0), with the rows of y."""
    return np.zeros((np.shape(y)[0], 0)) if x is None else np.asarray(x)


def columns(y: ArrayLike) -> Shaped[Array, "N P"]:
    """Targets (N,) or (N, P) as (N, P)."""
    rows = jnp.asarray(y)
    return rows.reshape(rows.shape[0], -1)


def _run(fn: Callable[..., Any], key: Array, values: dict[str, Array], x: Array, y: Array) -> Trace:
    result: Trace = trace(substitute(seed(fn, key), data=values)).get_trace(x, y)
    return result


def _check_training_rows(roles: SiteRoles) -> None:
    groups = set(roles.groups[name] for name in roles.factors)
    if len(groups) != 1 or "" in groups:
        raise TypeError(
            f"model: found data in the plates {sorted(groups)}, expected one data plate; weights per row need it "
            "(an exact GP has none: use sparse_gp_regression)"
        )
    if roles.summed_outside:
        raise ValueError(
            f"model: found the discrete latents {roles.summed_outside} outside the data plate, expected none; rows "
            "that share one have no separate weights"
        )
    (group,) = groups
    if roles.scales[group] != 1.0:
        raise ValueError(
            f"model: found the plate {group!r} subsampled, expected all rows; make the model without subsample_size"
        )


@lru_cache(maxsize=32)
def _draws_program(
    model: Callable[..., Any], guide: Callable[..., Any], num_draws: int, num_locals: int
) -> Callable[..., dict[str, Any]]:
    """S draws of θ one after the other, K draws of the locals side by side under each, as one compiled program."""

    def one(
        key: Array, draw: dict[str, Array], params: dict[str, Array], x: Array, y: Array
    ) -> dict[str, Any]:
        key_theta, key_model, key_y, key_locals = jax.random.split(key, 4)
        guided = _run(guide, key_theta, {**params, **draw}, x, y)
        # α = 1: weights in terms of t_1; u is the joint draw, as no message asks for anything else
        own = _run(replayed(model, guided), key_theta, params, x, y)
        roles = classify_sites(own, guided, True)
        _check_training_rows(roles)
        theta = {name: guided[name]["value"] for name in roles.global_sites}
        fixed = {**params, **roles.plates, **theta}

        def particle(key_h: Array) -> Array:
            runs = ProgramRuns(model, guide, (x, y), {})
            traces = lambda values, beside=False: runs.traces(key_h, {**fixed, **values})
            weigh = lambda p, q: log_weights(roles, p, q, 1.0, False)
            weights, log_q, _ = enumerate_discrete(roles, own, traces, weigh)
            (rows,) = weights.values()
            return logsumexp(rows + log_q.popitem()[1], axis=0) if log_q else rows

        # one row per target and hidden layer, from the model's own conditionals
        replicated = _run(Pushed(model, guided), key_model, fixed, x, y)
        log_p = sum(
            (replicated[name]["fn"].log_prob(theta[name]).sum() for name in theta if name in replicated),
            jnp.zeros(()),
        )
        log_q = sum((guided[name]["fn"].log_prob(theta[name]).sum() for name in theta), jnp.zeros(()))
        functions: dict[str, Array] = {}
        on_inputs: set[str] = set()
        to_targets: set[str] = set()
        for site in replicated.values():
            emission = emission_of(site["fn"]) if site["type"] == "sample" else None
            for part in () if emission is None else emission.parts:
                for term in part.marginal.terms:
                    layer, function = term.marginal.function.name, term.marginal.function
                    # m(Z) + k(Z,Z) L⁻ᵀ v = m(Z) + L v
                    functions[f"{layer}/u"] = function.at_inducing()
                    if term.marginal.inputs is x:
                        on_inputs.add(layer)
                of_targets = site["name"] == TARGET_SITE and part is emission
                if (
                    of_targets
                    and type(part.marginal) is Marginal
                    and part.marginal.mean.shape[1] == y.shape[1]
                ):
                    to_targets.add(part.marginal.function.name)
        hidden = {name: guided[name]["value"] for name in roles.local_sites}
        latents = [name for name in roles.propagation if emission_of(replicated[name]["fn"]) is None]
        return {
            "log_p": log_p,
            "log_q": log_q,
            "local_weights": jax.vmap(particle)(jax.random.split(key_locals, num_locals)),
            "sites": theta,
            "unwhitened": functions,
            "hidden": hidden,
            # names alone: None is no array, so that they pass through jit as the keys of a tree
            "latents": dict.fromkeys(latents),
            "on_inputs": dict.fromkeys(sorted(on_inputs)),
            "to_targets": dict.fromkeys(sorted(to_targets)),
            "y": replicated["y"]["fn"].sample(key_y).reshape(y.shape),
        }

    def program(key: Array, params: dict[str, Array], x: Array, y: Array) -> dict[str, Any]:
        # draws that are there already, and their locals
        kept = guide.spaced_draws(params, num_draws) if isinstance(guide, EmpiricalPosterior) else {}
        count = len(next(iter(kept.values()))) if kept else num_draws
        keys = jax.random.split(key, count)
        result: dict[str, Any] = jax.lax.map(lambda each: one(each[0], each[1], params, x, y), (keys, kept))
        return result

    return compiled(program)
