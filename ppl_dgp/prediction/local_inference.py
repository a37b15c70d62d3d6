"""Rows folded into a fit: their own parameters trained under the bound, everything else as fitted (Bui 2017, 3.7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import (
    LATENT_SITE,
    LOC_SUFFIX,
    SCALE_SUFFIX,
    TARGET_SITE,
    Model,
    Parameters,
    role_of,
)
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import Guide
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.gaussian import Gaussian, moments_of
from ppl_dgp.objectives import PowerEP
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.objectives.representation import RepresentationHandler, choose_representations
from ppl_dgp.prediction.predict import predict
from ppl_dgp.prediction.predictive_trace import model_sites

#: training rows whose latents a new row may start at
CANDIDATES = 2000
#: draws of the moments of a latent whose q is no Gaussian of its own
MOMENT_DRAWS = 100


def bound_of_rows(trained: ELBO | None) -> ELBO:
    """The bound that rows are folded in by, hidden layers propagated as in training where an objective is known."""
    return PowerEP(0.0, propagation=capabilities_of(trained).propagation)


def candidates(key: Array, fit: Posterior, x: Array, y: Array) -> tuple[Array, Array] | None:
    """Some training rows, by number, and the y that each one's own latents and hidden layers stand for.

    None where the model has inputs, or its latents no means of their own.

    :param x, y: a new row or more.
    """
    if x.shape[1] or LATENT_SITE + LOC_SUFFIX not in fit.params:
        return None
    guide = fit.guide
    assert isinstance(guide, Guide)
    # their names alone: nothing is computed
    own = jax.eval_shape(lambda x, y: _own_parameters(guide, fit.params, x, y)[0], x, y)
    count = len(fit.params[LATENT_SITE + LOC_SUFFIX])
    rows = np.random.default_rng(0).permutation(count)[:CANDIDATES]
    means = _means(guide, {name: jnp.asarray(fit.params[name])[rows] for name in own})
    known = {site: Gaussian(mean, jnp.zeros_like(mean)) for site, mean in means.items()}
    decoded = predict(key, fit, None, num_samples=1, latents=known)
    return jnp.asarray(rows), jnp.asarray(decoded.mean)


@lru_cache(maxsize=16)
def fold_in(
    model: Model, guide: Guide, objective: ELBO, steps: int, learning_rate: float
) -> Callable[..., tuple[dict[str, Gaussian], Parameters]]:
    """The rows' own parameters trained, as one compiled program; then q of the hidden sites."""

    def program(
        key: Array, params: Parameters, starts: tuple[Array, Array] | None, x: Array, y: Array
    ) -> tuple[dict[str, Gaussian], Parameters]:
        own, bijections = _own_parameters(guide, params, x, y)
        known = {name: value for name, value in params.items() if name not in own}
        if own:
            # probabilities of classes are compared with nothing
            if starts is not None and starts[1].shape[1] == y.shape[1]:
                at = _means(guide, own)
                mine = model_sites(key, model, guide, known, x, values=at)[TARGET_SITE]["fn"].mean
                nearest, nearer = nearest_row(y, mine, starts[1])
                for name in own:
                    there = params[name][starts[0][nearest]]
                    own[name] = jnp.where(jnp.expand_dims(nearer, range(1, there.ndim)), there, own[name])
            units = {name: _spread(name, params) for name in own if name.endswith(LOC_SUFFIX)}
            free = {name: bijections[name].inv(value) / units.get(name, 1.0) for name, value in own.items()}
            constrain = lambda free: {
                name: bijections[name](value * units.get(name, 1.0)) for name, value in free.items()
            }

            def loss(free: Parameters, key: Array) -> Array:
                value: Array = objective.loss(key, known | constrain(free), model, guide, x, y)
                return value

            own = constrain(trained(loss, free, key, steps, learning_rate))
        return _hidden_sites(key, guide, known | own, x, y), own

    return compiled(program)


def _means(guide: Guide, own: Parameters) -> Parameters:
    """Of the latents, and of hidden layers whose q depends on nothing above them."""
    free = guide.hidden.depends_on is DependsOn.NOTHING
    means = {name.removesuffix(LOC_SUFFIX): value for name, value in own.items() if name.endswith(LOC_SUFFIX)}
    return {site: value for site, value in means.items() if free or site == LATENT_SITE}


def _spread(name: str, params: Parameters) -> Array:
    """The deviation of each coordinate over the training rows, which a step of Adam is in units of."""
    variance = params[name].var(0)
    if name == LATENT_SITE + LOC_SUFFIX and (scale := params.get(LATENT_SITE + SCALE_SUFFIX)) is not None:
        # those that are switched off are all near 0, where q is as wide as the prior
        variance = variance + jnp.square(scale if scale.ndim == 2 else jnp.diagonal(scale, 0, 1, 2)).mean(0)
    return jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)


def trained(
    loss: Callable[[Parameters, Array], Array], free: Parameters, key: Array, steps: int, learning_rate: float
) -> Parameters:
    """Unconstrained parameters after some steps of Adam on a loss (parameters, key), its rate falling to 0."""
    optimiser = optax.adam(optax.cosine_decay_schedule(learning_rate, steps))

    def step(state: Any, key: Array) -> tuple[Any, None]:
        free, memory = state
        updates, memory = optimiser.update(jax.grad(loss)(free, key), memory)
        return (optax.apply_updates(free, updates), memory), None

    found: Parameters = jax.lax.scan(step, (free, optimiser.init(free)), jax.random.split(key, steps))[0][0]
    return found


def nearest_row(y: Array, mine: Array, decoded: Array) -> tuple[Array, Array]:
    """The training row that explains each row's entries best in squares, and whether better than its own start does."""
    there = ~jnp.isnan(y)
    seen, filled = there.astype(decoded.dtype), jnp.where(there, y, 0.0)
    # |m (y − d)|² less |m y|², for all pairs of rows and candidates
    distances = seen @ jnp.square(decoded).T - 2.0 * filled @ decoded.T
    own = (seen * (jnp.square(mine) - 2.0 * filled * mine)).sum(1)
    return distances.argmin(1), distances.min(1) < own


def _own_parameters(
    guide: Guide, params: Parameters, x: Array, y: Array
) -> tuple[Parameters, dict[str, Transform]]:
    """Where the parameters that rows have for themselves start at new rows, and the bijections to them.

    They are declared inside the data plate and say the dimension of a row.
    """

    def is_own(site: dict[str, Any]) -> bool:
        inside = site["type"] == "param" and bool(site["cond_indep_stack"])
        return inside and site["kwargs"].get("event_dim") is not None

    def known(site: dict[str, Any]) -> Array | None:
        return None if is_own(site) else params.get(site["name"])

    sites = trace(substitute(seed(guide, jax.random.PRNGKey(0)), substitute_fn=known)).get_trace(x, y)
    own = {name: site for name, site in sites.items() if is_own(site)}
    bijections = {
        name: biject_to(site["kwargs"].get("constraint", constraints.real)) for name, site in own.items()
    }
    return {name: site["value"] for name, site in own.items()}, bijections


def _hidden_sites(key: Array, guide: Guide, params: Parameters, x: Array, y: Array) -> dict[str, Gaussian]:
    """Mean and scale of each hidden site under q, in closed form or by draws under moments of u."""
    key_run, key_draws = jax.random.split(key)

    def run(key: Array) -> dict[str, Any]:
        return trace(substitute(seed(guide, key), params)).get_trace(x, y)  # type: ignore[no-any-return]

    sites = run(key_run)
    roles = {name: role_of(site) for name, site in sites.items() if site["type"] == "sample"}
    hidden = {name: sites[name] for name, role in roles.items() if role.hidden}
    if not hidden:
        raise ValueError("model: found no hidden site, expected latents of rows; use predict()")
    found = {name: _latent_moments(site["fn"]) for name, site in hidden.items()}
    if any(value is None for value in found.values()):
        inducing = {name: role for name, role in roles.items() if role.inducing}
        representations = choose_representations(inducing, sites)

        def draw(key: Array) -> Parameters:
            key_run, representation_key = jax.random.split(key)
            with RepresentationHandler(representations, x.shape[0], representation_key):
                drawn_sites = run(key_run)
            return {name: drawn_sites[name]["value"] for name in hidden}

        draws = jax.lax.map(draw, jax.random.split(key_draws, MOMENT_DRAWS))
        for name, value in found.items():
            if value is None:
                found[name] = Gaussian(draws[name].mean(0), draws[name].std(0))
    return found  # type: ignore[return-value]


def _latent_moments(q: dist.Distribution) -> Gaussian | None:
    """Of a q that depends on no other draw."""
    inner = unwrap(q)
    if isinstance(inner, dist.Delta):
        point = jnp.broadcast_to(inner.v, q.shape())
        return Gaussian(point, jnp.zeros_like(point))
    if isinstance(inner, HiddenConditional):
        try:
            form = inner.rule.linear(inner.params, inner.step)
        except TypeError:  # no closed form
            return None
        return form.noise if form.independent else None
    return moments_of(q)
