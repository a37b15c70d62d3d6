"""Functions of likelihoods without closed forms, drawn beside u where a sampler would integrate them by quadrature.

The posterior of u, of hyperparameters and of hidden layers is that of t_1, at a tenth of the cost of a slope or less.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Num
from numpyro.primitives import Messenger

from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.likelihoods import Heteroscedastic, Likelihood, Softmax, StudentT
from ppl_dgp.likelihoods.quadrature import deviation, plain_nodes

#: nodes of a density at new places, whose average over draws of u has no peaks that they could miss
NODES = 32


def without_closed_form(likelihood: Likelihood) -> bool:
    """Whether :func:`given_functions` knows it, and t_1 is a quadrature."""
    return isinstance(likelihood, StudentT | Softmax | Heteroscedastic)


def given_functions(likelihood: Likelihood, f: Float[Array, "*rows F"]) -> dist.Distribution:
    """p(y | f), batch (…,), event (P,)."""
    if isinstance(likelihood, Softmax):
        return dist.Categorical(logits=f[..., None, :]).to_event(1)
    if isinstance(likelihood, Heteroscedastic):
        mean, log_variance = jnp.split(f, 2, -1)
        return dist.Normal(mean, jnp.sqrt(likelihood.noise) * jnp.exp(0.5 * log_variance)).to_event(1)
    assert isinstance(likelihood, StudentT)
    return likelihood.of(f).to_event(1)


class DrawFunctions(Messenger):
    """Gives the observed site ``y`` its distribution given f = m + √v e, with e a site ``y/e`` (N, F) of its own.

    :param known: whether f has no variance given u, at inputs that are inducing inputs.
    """

    def __init__(self, fn: Any, known: bool) -> None:
        super().__init__(fn)
        self.known = known

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["name"] != "y" or not msg["is_observed"]:
            return
        emission = emission_of(msg["fn"])
        if emission is None or not without_closed_form(emission.likelihood):
            return
        f = emission.marginal.mean
        if not self.known:
            e = numpyro.sample("y/e", dist.Normal(jnp.zeros_like(f), 1.0).to_event(1))
            f = f + deviation(emission.marginal.variance) * e
        msg["fn"] = given_functions(emission.likelihood, f)


def log_density_at(emission: Emission, values: Num[Array, " G"]) -> Float[Array, "B G"]:
    """log p(y | u) of each row's y at values, f integrated out by nodes that do not look at y."""
    likelihood, mean, variance = emission.likelihood, emission.marginal.mean, emission.marginal.variance
    of_value = lambda value: emission.log_prob(jnp.full((len(mean), 1), value))
    if not without_closed_form(likelihood):
        return jax.vmap(of_value, out_axes=1)(values)
    if isinstance(likelihood, Softmax):
        return jnp.log(likelihood.probabilities(mean, variance))[:, values]
    # of two functions the first one's nodes are paired with each of the second one's
    z, log_weights = plain_nodes(NODES, jnp.zeros(()))
    grid = jnp.meshgrid(*[z] * mean.shape[1], indexing="ij")
    weights = sum(jnp.meshgrid(*[log_weights] * mean.shape[1], indexing="ij")).ravel()
    nodes = jnp.stack([each.ravel() for each in grid], -1)
    f = mean + deviation(variance) * nodes[:, None, :]
    p = given_functions(likelihood, f[:, :, None, :])
    return logsumexp(p.log_prob(values[:, None]) + weights[:, None, None], 0)
