"""Dependencies of a model's sites on its latents, by following the program of its log densities.

As ``numpyro.infer.inspect.get_dependencies`` does, whose tracing NumPyro 0.21 and JAX 0.11 disagree about.
"""

from __future__ import annotations

from typing import Any

import jax
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample

from ppl_dgp.gp.contract import Model
from ppl_dgp.numerics.compatibility import input_dependencies


def prior_parents(model: Model, args: Any, kwargs: Any) -> dict[str, set[str]]:
    """The latents that each site's distribution depends on, itself left out."""
    # parameters that are not given start at this seed
    key = jax.random.PRNGKey(0)

    def drawn() -> dict[str, jax.Array]:
        sites = trace(substitute(seed(model, key), substitute_fn=init_to_sample)).get_trace(*args, **kwargs)
        return {
            name: site["value"]
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    def densities(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
        sites = trace(substitute(seed(model, key), data=values)).get_trace(*args, **kwargs)
        return {
            name: site["fn"].log_prob(site["value"])
            for name, site in sites.items()
            if site["type"] == "sample"
        }

    parents = input_dependencies(densities, jax.eval_shape(drawn))
    return {name: names - {name} for name, names in parents.items()}
