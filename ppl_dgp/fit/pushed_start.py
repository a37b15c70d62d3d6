"""Begin poor and end rich, where inducing inputs are draws: at the sparse GP's optimum, pulled back to layer 1."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.gp.contract import Parameters, inducing_site, role_of
from ppl_dgp.gp.shallow import Shallow
from ppl_dgp.guides import Guide
from ppl_dgp.guides.global_inducing import (
    PRECISION_SUFFIX,
    TARGETS_SUFFIX,
    GlobalInducing,
    pseudo_observations,
)
from ppl_dgp.numerics.gaussian import Gaussian


def pushed_start(
    guide: Guide,
    rule: GlobalInducing,
    shallow: Shallow,
    x: Float[Array, "N D"],
    y: Num[Array, "N P"],
    key: Shaped[Array, "..."],
    start: Parameters,
    fitted: Parameters,
) -> Parameters:
    """The same start for ``GlobalInducing``, the guide's rule.

    Linear hidden layers hand the first one's inducing inputs on to where the sparse GP has its own; these layers' q(u)
    is the prior, and that of the last has the sparse GP's for its pseudo-observations.

    :param x: inputs of the deep model's first layer.
    :param start: parameters of the deep model at which it is the sparse GP.
    :param fitted: the sparse GP's.
    """
    first, last = shallow.layers[0], shallow.layers[-1]
    linear_map = jnp.linalg.lstsq(x, shallow.inputs)[0]
    start = start | {f"{first}/inducing": fitted["gp/inducing"] @ jnp.linalg.pinv(linear_map)}
    sites = {layer: inducing_site(layer) for layer in shallow.layers}
    own = {f"{site}{suffix}" for site in sites.values() for suffix in (TARGETS_SUFFIX, PRECISION_SUFFIX)}
    known = {name: value for name, value in start.items() if name not in own}
    run = trace(substitute(seed(guide, key), data=known)).get_trace(x, y)
    for layer, site in sites.items():
        target, precision = (run[f"{site}{suffix}"]["value"] for suffix in (TARGETS_SUFFIX, PRECISION_SUFFIX))
        at_inducing = role_of(run[site]).at_inducing
        if layer == last and at_inducing is not None:
            q = Gaussian(fitted["gp/u_loc"], fitted["gp/u_scale"])
            target, each = pseudo_observations(*at_inducing(), q)
            precision = rule.precision_of(each)
        else:  # at the prior, where it costs nothing
            precision = shallow.inner_scale ** (1 if precision.ndim == 3 else 2) * precision
        start = start | {f"{site}{TARGETS_SUFFIX}": target, f"{site}{PRECISION_SUFFIX}": precision}
    return start
