"""How the models of the zoo observe y: noise, or a likelihood with values that are learnt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.likelihoods import LIKELIHOODS, Gaussian, Likelihood, MixedLikelihood
from ppl_dgp.models.parts import noise_variance, rows_of_noise

#: a name of ``LIKELIHOODS``, its values learnt; a likelihood, its values held; or a function that makes one
Observed = str | Likelihood | Callable[[], Likelihood]

_POSITIVE, _UNIT = constraints.softplus_positive, constraints.unit_interval
#: where learnt values start, on standardised targets, and what they may be
_LIKELIHOOD_STARTS: dict[str, dict[str, tuple[float, constraints.Constraint]]] = {
    "student-t": {"df": (4.0, _POSITIVE), "scale": (0.3, _POSITIVE)},
    "laplace": {"scale": (0.3, _POSITIVE)},
    "heteroscedastic": {"noise": (0.1, _POSITIVE)},
    "negative-binomial": {"concentration": (1.0, _POSITIVE)},
    "gamma": {"concentration": (1.0, _POSITIVE)},
    "beta": {"concentration": (10.0, _POSITIVE)},
    "robust-max": {"epsilon": (1e-3, _UNIT)},
}
#: likelihoods that have to know the number of classes, and how they are made
_OF_CLASSES = {
    "ordinal": "Ordinal(cuts) with C − 1 cuts",
    "softmax": "Softmax(num_classes=C)",
    "robust-max": "RobustMax(num_classes=C)",
}


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


def checked_columns(
    likelihood: Observed | Sequence[Observed] | None, noise: float | str | None, num_outputs: int
) -> Observed:
    """As :func:`checked_observed` for P columns: noise "per-column", or a likelihood for each of them.

    Columns under the same name share its values, sites ``likelihood/<name>/…``, and those under the same function what
    it makes in one call.

    :raises ValueError: also where there are not P likelihoods, or one by name has to know the number of classes.
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs: found {num_outputs}, expected at least 1 column")
    if noise == "per-column" and likelihood in (None, "gaussian"):
        return lambda: Gaussian(_learnt_noise("likelihood/noise", (1, num_outputs)))
    if isinstance(noise, str):
        raise ValueError(
            f"noise: found {noise!r}, expected None, a number, or 'per-column' under Gaussian noise"
        )
    if likelihood is None or isinstance(likelihood, str) or not isinstance(likelihood, Sequence):
        return checked_observed(likelihood, noise)
    if noise is not None:
        raise ValueError(
            f"noise: found {noise!r} beside a likelihood for each column, which have their own; leave it out"
        )
    if len(likelihood) != num_outputs:
        raise ValueError(
            f"likelihood: found {len(likelihood)} for {num_outputs} columns, expected one for each of them"
        )
    for column, each in enumerate(likelihood):
        _check_column(each, column)
    return partial(_mixed, tuple(likelihood))


def _check_column(likelihood: Observed, column: int) -> None:
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise ValueError(
                f"likelihood: found {likelihood!r} for column {column}, which is unknown; choose from "
                f"{', '.join(name for name in LIKELIHOODS if name not in _OF_CLASSES)}"
            )
        if likelihood in _OF_CLASSES:
            raise ValueError(
                f"likelihood: found {likelihood!r} for column {column}, which has to know its C classes; pass "
                f"{_OF_CLASSES[likelihood]}"
            )
    elif not isinstance(likelihood, Likelihood) and not callable(likelihood):
        raise ValueError(
            f"likelihood: found {likelihood!r} for column {column}, expected a name, a likelihood, or a function "
            "without arguments that makes one"
        )


def _mixed(likelihoods: tuple[Observed, ...]) -> MixedLikelihood:
    made: dict[str | Callable[[], Likelihood], Likelihood] = {}
    parts = []
    for each in likelihoods:
        if isinstance(each, Likelihood):
            parts.append(each)
            continue
        if each not in made:
            made[each] = _named(each, None, f"likelihood/{each}") if isinstance(each, str) else each()
        parts.append(made[each])
    return MixedLikelihood(tuple(parts))


def _learnt_noise(name: str, shape: tuple[int, ...]) -> Array:
    return numpyro.param(name, jnp.full(shape, 0.1), constraint=_POSITIVE)


def _named(name: str, num_classes: int | None, prefix: str = "likelihood") -> Likelihood:
    """The likelihood of that name, its values declared as sites ``prefix/<field>``."""
    if name == "gaussian":
        return Gaussian(_learnt_noise(f"{prefix}/noise", ()))
    values: dict[str, Any] = {
        field: numpyro.param(f"{prefix}/{field}", jnp.asarray(start), constraint=constraint)
        for field, (start, constraint) in _LIKELIHOOD_STARTS.get(name, {}).items()
    }
    if name == "ordinal" and num_classes is not None:
        start = jnp.linspace(-1.0, 1.0, num_classes + 1)[1:-1]
        values["cuts"] = numpyro.param(f"{prefix}/cuts", start, constraint=constraints.ordered_vector)
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


def emission(
    marginal: Marginal, likelihood: Likelihood, index: Array | None, observed: bool, missing: bool = False
) -> Emission:
    """y given f at the rows at hand; noise given per training row is gathered.

    :param missing: whether NaN in y stands for an entry that was not observed.
    """
    if isinstance(likelihood, Gaussian):
        given = marginal.noisy(rows_of_noise(likelihood.variance, index, observed))
    else:
        given = marginal.observe(likelihood)
    return given.partly_observed() if missing else given
