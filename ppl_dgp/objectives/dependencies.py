"""Which latents the distribution of each site depends on, by following the program of a model's log densities.

As ``numpyro.infer.inspect.get_dependencies`` does, whose tracing NumPyro 0.21 and JAX 0.11 disagree about.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample

Names = frozenset[str]
#: calls of a program, through which dependencies are followed; of loops and branches all depends on all
CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")


def prior_parents(model: Any, args: Any, kwargs: Any) -> dict[str, set[str]]:
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

    values = jax.eval_shape(drawn)
    program, found = jax.make_jaxpr(densities, return_shape=True)(values)
    # a dictionary's leaves are in the order of its names
    reached = _followed(program.jaxpr, [frozenset({name}) for name in sorted(values)])
    return {name: set(parents) - {name} for name, parents in zip(sorted(found), reached, strict=True)}


def _followed(program: Jaxpr, inputs: list[Names]) -> list[Names]:
    """What each output of a program depends on, given that of its inputs."""
    known: dict[Any, Names] = dict(zip(program.invars, inputs, strict=True))
    nothing: Names = frozenset()

    def of(variable: Any) -> Names:
        return nothing if isinstance(variable, Literal) else known.get(variable, nothing)

    for step in program.eqns:
        given = [of(variable) for variable in step.invars]
        inner = step.params.get("jaxpr", step.params.get("call_jaxpr"))
        inner = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        if step.primitive.name in CALLS and isinstance(inner, Jaxpr) and len(inner.invars) == len(given):
            reached = _followed(inner, given)
        else:
            reached = [nothing.union(*given)] * len(step.outvars)
        known.update(zip(step.outvars, reached, strict=True))
    return [of(variable) for variable in program.outvars]
