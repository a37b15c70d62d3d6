"""How the models of the zoo observe y: noise, or a likelihood; its values are sites ``likelihood/…``.

"student-t"                         of ``LIKELIHOODS``
StudentT                            a class: its values begin as its fields' metadata say
StudentT(4.0, 0.3)                  an instance: its values begin there
lambda f: dist.Poisson(jnp.exp(f))  a function of f that returns a scalar distribution of NumPyro, nothing learnt
lambda: StudentT(4.0, 0.3)          a function without arguments that makes one: plain numbers in it are held, and
                                    sites that it declares are learnt
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.handlers import block, seed

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.likelihoods import (
    LIKELIHOODS,
    Gaussian,
    Likelihood,
    MixedLikelihood,
    Scalar,
    likelihood_class,
    names_of,
)
from ppl_dgp.messages import unknown_name
from ppl_dgp.models.checks import frozen_array, is_real
from ppl_dgp.models.kernel_values import num_required
from ppl_dgp.models.learnt import check_start, class_with_sites, instance_with_sites, learnt_fields
from ppl_dgp.models.parts import noise_variance, rows_of_noise

#: what a model takes for a likelihood, of all columns
LikelihoodChoice = (
    str | Likelihood | type[Likelihood] | Callable[[], Likelihood] | Callable[[Array], dist.Distribution]
)
#: the same, or one for each column
Observed = LikelihoodChoice | Sequence[LikelihoodChoice]
#: the variance of Gaussian noise: a number, one per row, "per-column", or None to learn one
NoiseChoice = float | str | Float[Array, " N"] | Float[np.ndarray, " N"]

LIKELIHOODS_TAKEN = (
    "a name, a likelihood, a class of them, or a function: of f that returns a distribution, or without arguments that "
    "makes a likelihood"
)
#: likelihoods that have to know the number of classes
OF_SEVERAL = names_of("classes", "ordered classes")


def checked_observation(
    likelihood: Any, noise: Any, num_outputs: int | None = None, num_classes: int | None = None
) -> tuple[Observed | None, NoiseChoice | None]:
    """Likelihood and noise as a model's author chose them, sequences and arrays as values.

    Columns under the same name or class share its values, sites ``likelihood/<name>/…``; those under the same instance
    the sites ``likelihood/column<n>/…`` of the first; and those under the same function what it makes in one call.

    :param num_outputs: P columns, 1 if not given.
    :param num_classes: C, for likelihoods by name or class that have to know it.
    :raises ValueError: for an unknown name, classes whose number is not given, noise beside another likelihood, or
        where there is not one likelihood for each column.
    """
    if isinstance(likelihood, MixedLikelihood):
        likelihood = likelihood.parts
    if isinstance(likelihood, Sequence) and not isinstance(likelihood, str):
        return _checked_sequence(tuple(likelihood), noise, num_outputs or 1), None
    if likelihood is None or likelihood == "gaussian" or likelihood is Gaussian:
        return likelihood, _checked_noise(noise)
    if noise is not None:
        raise ValueError(
            f"noise: found {noise!r} beside likelihood={likelihood!r}, which has its own; leave it out"
        )
    _check_choice(likelihood)
    if isinstance(likelihood, str) and likelihood not in LIKELIHOODS:
        raise unknown_name(f"likelihood: found {likelihood!r}", likelihood, LIKELIHOODS)
    if _name(likelihood) in OF_SEVERAL and num_classes is None:
        raise ValueError(
            f"likelihood: found {_name(likelihood)!r}, which is one of classes; use sparse_gp_classification, "
            "deep_gp_classification or stack_classification"
        )
    return likelihood, None


def _checked_noise(noise: Any) -> NoiseChoice | None:
    if isinstance(noise, str):
        if noise != "per-column":
            raise ValueError(
                f"noise: found {noise!r}, expected None, a number, or 'per-column' under Gaussian noise"
            )
        return noise
    if noise is None or (is_real(noise) and float(noise) >= 0.0):
        return noise  # type: ignore[no-any-return]
    if is_real(noise):
        raise ValueError(f"noise: found {noise!r}, expected a variance of at least 0")
    variances: np.ndarray = frozen_array(
        "noise", noise, 1, "None, a variance of at least 0, 'per-column', or one per row (N,)"
    )
    return variances


def _checked_sequence(likelihoods: tuple[Any, ...], noise: Any, num_outputs: int) -> tuple[Any, ...]:
    if noise is not None:
        raise ValueError(
            f"noise: found {noise!r} beside a likelihood for each column, which have their own; leave it out"
        )
    if len(likelihoods) != num_outputs:
        raise ValueError(
            f"likelihood: found {len(likelihoods)} for {num_outputs} columns, expected one for each of them"
        )
    for column, likelihood in enumerate(likelihoods):
        _check_column(likelihood, column)
    return likelihoods


def _check_column(likelihood: Any, column: int) -> None:
    if isinstance(likelihood, str) and likelihood not in LIKELIHOODS:
        single = [name for name in LIKELIHOODS if name not in OF_SEVERAL]
        raise unknown_name(f"likelihood: found {likelihood!r} for column {column}", likelihood, single)
    _check_choice(likelihood, f" for column {column}")
    name = _name(likelihood)
    if name in OF_SEVERAL:
        cls = likelihood_class(LIKELIHOODS[name])
        call = f"{cls.__name__}(num_classes=C)"
        if cls.target == "ordered classes":
            call = f"{cls.__name__}(cuts) with C − 1 cuts"
        raise ValueError(
            f"likelihood: found {name!r} for column {column}, which has to know its C classes; pass {call}"
        )


def _check_choice(likelihood: Any, where: str = "") -> None:
    """Refuse, by a ValueError, what no likelihood can be made of."""
    if isinstance(likelihood, Likelihood):
        if not is_dataclass(likelihood):
            return
        for entry in learnt_fields(type(likelihood)):
            start = getattr(likelihood, entry.name)
            if hasattr(start, "shape") or is_real(start):
                check_start("likelihood", likelihood, entry, start)
    elif isinstance(likelihood, type):
        if not issubclass(likelihood, Likelihood) or likelihood in (MixedLikelihood, Scalar):
            raise ValueError(
                f"likelihood: found the class {likelihood.__name__}{where}, expected {LIKELIHOODS_TAKEN}"
            )
        if inspect.isabstract(likelihood) or not is_dataclass(likelihood):
            raise ValueError(
                f"likelihood: found the class {likelihood.__name__}{where}, expected a frozen dataclass, whose fields "
                "are the values to learn; decorate it"
            )
    elif not isinstance(likelihood, str) and (
        not callable(likelihood) or num_required(likelihood) not in (0, 1)
    ):
        raise ValueError(f"likelihood: found {likelihood!r}{where}, expected {LIKELIHOODS_TAKEN}")


def _name(likelihood: Any) -> str | None:
    """The name of a likelihood by name or class; None where it has none."""
    if isinstance(likelihood, type):
        named = (name for name, entry in LIKELIHOODS.items() if entry is likelihood)
        return next(named, likelihood.__name__)
    return likelihood if isinstance(likelihood, str) else None


def observed_by(
    likelihood: Observed | None,
    noise: NoiseChoice | None,
    y: Array | None,
    num_outputs: int = 1,
    num_classes: int | None = None,
) -> Likelihood:
    """The likelihood itself, its learnt values declared as sites ``likelihood/…``.

    :param likelihood: as :func:`checked_observation` has it, ``noise`` too.
    :raises ValueError: for targets that it cannot have, where they are concrete.
    """
    made: Likelihood
    if isinstance(likelihood, tuple):
        made = _mixed(likelihood)
    elif likelihood is None or likelihood == "gaussian" or likelihood is Gaussian:
        per_column = isinstance(noise, str)
        made = Gaussian(
            _learnt_noise("likelihood/noise", (1, num_outputs)) if per_column else noise_variance(noise)
        )
    else:
        made = _made(likelihood, "likelihood", num_classes)
    if y is not None:
        made.check(y)
    return made


def _mixed(likelihoods: tuple[Any, ...]) -> MixedLikelihood:
    made: dict[Any, Likelihood] = {}
    parts = []
    for column, likelihood in enumerate(likelihoods):
        name = _name(likelihood)
        same = name if name is not None else id(likelihood)
        if same not in made:
            made[same] = _made(likelihood, f"likelihood/{f'column{column}' if name is None else name}", None)
        parts.append(made[same])
    return MixedLikelihood(tuple(parts))


def _learnt_noise(name: str, shape: tuple[int, ...]) -> Array:
    variance: Array = numpyro.param(name, jnp.full(shape, 0.1), constraint=constraints.positive)
    return variance


def _made(choice: Any, prefix: str, num_classes: int | None) -> Likelihood:
    """The likelihood of one choice, its values declared as sites ``prefix/<field>``."""
    if isinstance(choice, Likelihood):
        likelihood: Likelihood = instance_with_sites("likelihood", prefix, choice)
        return likelihood
    if isinstance(choice, str | type):
        return _likelihood_of_class(
            LIKELIHOODS[choice] if isinstance(choice, str) else choice, prefix, num_classes
        )
    likelihood = Scalar(choice) if num_required(choice) == 1 else choice()
    if not isinstance(likelihood, Likelihood):
        raise ValueError(f"likelihood: found {likelihood!r} from a function, expected a likelihood")
    return likelihood


def _likelihood_of_class(cls: Any, prefix: str, num_classes: int | None) -> Likelihood:
    made_of = likelihood_class(cls)
    fixed: dict[str, Any] = {} if made_of.target != "classes" else {"num_classes": num_classes}
    starts: dict[str, Any] = {}
    if made_of.target == "ordered classes" and num_classes is not None:
        starts["cuts"] = jnp.linspace(-1.0, 1.0, num_classes + 1)[1:-1]
    likelihood: Likelihood = class_with_sites(prefix, cls, starts, fixed)
    return likelihood


def is_of_real_targets(likelihood: Any) -> bool:
    """Whether y may be any real number under it, so that standardised targets are targets too.

    :raises ValueError: for what no likelihood can be made of.
    """
    if isinstance(likelihood, Sequence) and not isinstance(likelihood, str):
        return all(map(is_of_real_targets, likelihood))
    chosen, _ = checked_observation(likelihood, None, num_classes=2)
    with seed(rng_seed=0), block():
        made = observed_by(chosen, None, None, num_classes=2)
    parts = made.parts if isinstance(made, MixedLikelihood) else (made,)
    return all(part.support is constraints.real for part in parts)


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
