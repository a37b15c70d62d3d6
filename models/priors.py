"""Weakly informative priors of hyperparameters, for ``numpyro.handlers.lift``: of data that are standardised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import transforms
from numpyro.handlers import seed, trace

from ppl_dgp.gp.contract import check_made

#: shape of a lengthscale's prior: a hundredth of it is below 0.43 of where it begins, a hundredth above 3.9 of it
SHAPE = 5.0
#: what is the square of a scale, what is one, and positive numbers of no unit
SQUARES = ("variance", "noise", "slope_noise")
SCALES = ("scale", "weight_scale", "bias_scale")
NUMBERS = ("period", "alpha", "df", "concentration")


def default_priors(
    model: Callable[..., Any], x: ArrayLike | None, y: ArrayLike
) -> dict[str, dist.Distribution]:
    """Priors of a model's kernels and noises, by site: ``lift(model, prior=default_priors(model, x, y))``.

    ====================================  ===========================================================================
    ``…/lengthscale``, ℓ                  InverseGamma(5, 5 ℓ₀), ℓ₀ where the model begins it, of inputs √D: short
                                          ones, of which data know nothing below the distance of rows, have no mass
    ``…/variance``, ``…/noise``, σ²       σ ~ HalfNormal(1), in units of the target
    ``…/scale``, also of weights, biases  HalfNormal(1)
    period, α, degrees of freedom and     LogNormal(log of where the model begins it, 1)
    concentrations
    ====================================  ===========================================================================

    Each value of an array has its own, independent of the others. All other parameters, inducing inputs, weights and
    means among them, are left to be held, or learnt. Lengthscales by inverse gammas and scales by half-normals are what
    Betancourt (2017) and Gelman (2006) recommend.

    :param model: called as ``model(x, y)``, with those names of sites, as models of the zoo have.
    :param x: inputs (N, D), standardised, None for none.
    :param y: targets (N, P), standardised but for classes and counts.
    :raises ValueError: for a model without such parameters.
    :raises TypeError: for the class of one.
    """
    check_made("model", model)
    inputs = None if x is None else jnp.asarray(x)
    targets = jnp.asarray(y)

    def begun(key: Array) -> dict[str, Array]:
        sites = trace(seed(model, key)).get_trace(inputs, targets).values()
        # a prior does not know where the targets have a lengthscale begin
        usual = lambda site: jnp.full_like(site["value"], site["kwargs"].get("usual", site["value"]))
        return {site["name"]: usual(site) for site in sites if site["type"] == "param"}

    priors = {
        name: _prior(name.rpartition("/")[2], value) for name, value in begun(jax.random.key(0)).items()
    }
    known = {name: prior for name, prior in priors.items() if prior is not None}
    if not known:
        found = ", ".join(sorted(priors)) or "none"
        raise ValueError(
            f"model: found the parameters {found}, expected some of a kernel or a noise; give priors by lift yourself"
        )
    return known


def _prior(kind: str, start: Array) -> dist.Distribution | None:
    if kind == "lengthscale":
        each: dist.Distribution = dist.InverseGamma(SHAPE, SHAPE * start)
    elif kind in SQUARES:
        scale = dist.HalfNormal(jnp.ones_like(start))
        each = dist.TransformedDistribution(scale, transforms.PowerTransform(2.0))
    elif kind in SCALES:
        each = dist.HalfNormal(jnp.ones_like(start))
    elif kind in NUMBERS:
        each = dist.LogNormal(jnp.log(start), 1.0)
    else:
        return None
    return each.to_event(start.ndim)
