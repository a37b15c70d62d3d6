"""How the models of the zoo observe y: noise, or a likelihood with values that are learnt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp import Emission, Marginal
from ppl_dgp.likelihoods import LIKELIHOODS, Gaussian, Likelihood
from ppl_dgp.models.parts import noise_variance, rows_of_noise

#: a name of ``LIKELIHOODS``, its values learnt; a likelihood, its values held; or a function that makes one
Observed = str | Likelihood | Callable[[], Likelihood]

_POSITIVE, _UNIT = constraints.softplus_positive, constraints.unit_interval
#: where learnt values start, on standardised targets, and what they may be
_STARTS: dict[str, dict[str, tuple[float, constraints.Constraint]]] = {
    "student-t": {"df": (4.0, _POSITIVE), "scale": (0.3, _POSITIVE)},
    "laplace": {"scale": (0.3, _POSITIVE)},
    "heteroscedastic": {"noise": (0.1, _POSITIVE)},
    "negative-binomial": {"concentration": (1.0, _POSITIVE)},
    "gamma": {"concentration": (1.0, _POSITIVE)},
    "beta": {"concentration": (10.0, _POSITIVE)},
    "robust-max": {"epsilon": (1e-3, _UNIT)},
}
#: likelihoods that have to know the number of classes
_OF_CLASSES = ("ordinal", "softmax", "robust-max")


def checked_observed(likelihood: Observed | None, noise: Any, num_classes: int | None = None) -> Observed:
    """The choice of a model's author, names replaced by functions that declare what is learnt.

    :param noise: the variance of Gaussian noise, for which None stands: a number, one per row, or None to learn it.
    :raises ValueError: for an unknown name, classes whose number is not given, or noise beside another likelihood.
    """
    if likelihood is None or likelihood == "gaussian":
        return lambda: Gaussian(noise_variance(noise))
    if noise is not None:
        raise ValueError(
            f"noise: found {noise!r} beside likelihood={likelihood!r}, which has its own; leave it out"
        )
    if not isinstance(likelihood, str):
        return likelihood
    if likelihood not in LIKELIHOODS:
        raise ValueError(
            f"likelihood: found {likelihood!r}, which is unknown; choose from {', '.join(LIKELIHOODS)}"
        )
    if likelihood in _OF_CLASSES and num_classes is None:
        raise ValueError(
            f"likelihood: found {likelihood!r}, which is one of classes; use sparse_gp_classification or "
            "deep_gp_classification"
        )
    return partial(_named, likelihood, num_classes)


def _named(name: str, num_classes: int | None) -> Likelihood:
    values: dict[str, Any] = {
        field: numpyro.param(f"likelihood/{field}", jnp.asarray(start), constraint=constraint)
        for field, (start, constraint) in _STARTS.get(name, {}).items()
    }
    if name == "ordinal" and num_classes is not None:
        start = jnp.linspace(-1.0, 1.0, num_classes + 1)[1:-1]
        values["cuts"] = numpyro.param("likelihood/cuts", start, constraint=constraints.ordered_vector)
    elif name in _OF_CLASSES:
        values["num_classes"] = num_classes
    return LIKELIHOODS[name](**values)


def observed_by(likelihood: Observed, y: Array | None) -> Likelihood:
    """The likelihood itself, its learnt values declared as sites ``likelihood/…``.

    :raises ValueError: for targets that it cannot have, where they are concrete.
    """
    found = likelihood if isinstance(likelihood, Likelihood) else likelihood()  # type: ignore[operator]
    if y is not None:
        found.check(y)
    return found


def emission(marginal: Marginal, likelihood: Likelihood, index: Array | None, observed: bool) -> Emission:
    """y given f at the rows at hand; noise given per training row is gathered."""
    if isinstance(likelihood, Gaussian):
        return marginal.noisy(rows_of_noise(likelihood.variance, index, observed))
    return marginal.observe(likelihood)
