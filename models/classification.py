r"""Gaussian process classification, sparse and deep, of two classes and of several.

    f_c ~ GP(0, k),   c = 1 … F,   f_c the last layer's outputs at x_n or, in a deep GP, at h_n^{L−1}

    two classes, F = 1:     P(y_n = 1 | f) = Φ(f(x_n))
    several, F = C:         P(y_n = c | f) = 1 − ε if f_c(x_n) is the largest, else ε/(C − 1)      (robust-max)
    or                      P(y_n = c | f) ∝ exp(f_c(x_n))                                         (softmax)
    in an order, F = 1:     P(y_n ≤ c | f) = Φ(b_c − f(x_n))                                       (ordinal)

Cards: :func:`sparse_gp_classification` (Hensman et al. 2015) for any number of rows; :func:`deep_gp_classification`
(Salimbeni & Deisenroth 2017) where the classes' borders are not of one lengthscale; :func:`stack_classification` by
networks, or by networks and GPs. Robust-max (Hernández-Lobato et al.
2011) forgives wrong labels and has one-dimensional integrals only; softmax gives softer probabilities by quasi-Monte
Carlo. Labels are 0 … C − 1, as (N, 1) or (N,). Guides: ``Guide(model, inducing=FullRank())``, for hidden layers
``DoublyStochastic()`` or ``Conditional()``. Sites as in the regression models; parameters ``likelihood/epsilon``,
``likelihood/cuts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.shallow import Shallow
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import LIKELIHOODS, Likelihood, likelihood_class, names_of
from ppl_dgp.messages import unknown_name
from ppl_dgp.models.blocks import StackBlock
from ppl_dgp.models.checks import checked_whole
from ppl_dgp.models.deep_gp import INNER_NOISE, deep_gp
from ppl_dgp.models.gp_regression import NUM_INDUCING, sparse_gp_regression
from ppl_dgp.models.inducing import GivenInducing
from ppl_dgp.models.kernel_values import KernelChoice
from ppl_dgp.models.observation import LikelihoodChoice, checked_observation, observed_by
from ppl_dgp.models.parts import as_columns
from ppl_dgp.models.stack import stack
from ppl_dgp.models.zoo_model import ZooModel

OF_CLASSES = names_of("two classes", "ordered classes", "classes")


@dataclass(frozen=True, eq=False, repr=False)
class sparse_gp_classification(ZooModel):
    """Sparse GP classification: sites ``gp/u``, ``y``.

    :param num_classes: C.
    :param num_inducing: M, at most the number of rows.
    :param likelihood: "bernoulli" (probit), "bernoulli-logit", "robust-max", "softmax" or "ordinal", or as in
        ``sparse_gp_regression`` a class, a likelihood or a function; by default bernoulli for two classes and
        robust-max for more.
    :param kernel, inducing, train_inducing, subsample_size, jitter: as in ``sparse_gp_regression``.
    :raises ValueError: for fewer than two classes, a likelihood of another number of classes, or labels outside
        0 … C − 1.
    """

    num_classes: int = 2
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    likelihood: LikelihoodChoice | None = None
    kernel: KernelChoice = RBF
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(**checked_classes(self.num_classes, self.likelihood))
        self._settle_as(self._functions, "num_inducing", "kernel", "inducing")

    @cached_property
    def _functions(self) -> sparse_gp_regression:
        return self._with_settings(sparse_gp_regression, likelihood=None)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        given = class_likelihood(self.likelihood, self.num_classes, y)
        return self._functions.under(given, x, y, index, size)


@dataclass(frozen=True, eq=False, repr=False)
class deep_gp_classification(ZooModel):
    """Deep GP classification: sites ``layer1/u``, ``layer1/h``, …, ``y``.

    :param num_classes: C.
    :param widths: Q of each hidden layer.
    :param num_inducing: M per layer, at most the number of rows.
    :param likelihood: see :func:`sparse_gp_classification`.
    :param kernel, inner_noise, inducing, train_inducing, subsample_size, jitter: as in ``deep_gp``.
    :raises ValueError: for fewer than two classes, a width below 1, a likelihood of another number of classes, or
        labels outside 0 … C − 1.
    """

    num_classes: int = 2
    widths: Sequence[int] = (2,)
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    likelihood: LikelihoodChoice | None = None
    kernel: KernelChoice = RBF
    inner_noise: float = INNER_NOISE
    inducing: Sequence[GivenInducing] | GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(**checked_classes(self.num_classes, self.likelihood))
        self._settle_as(self._functions, "widths", "num_inducing", "kernel", "inducing")

    @cached_property
    def _functions(self) -> deep_gp:
        return self._with_settings(deep_gp, likelihood=None)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        given = class_likelihood(self.likelihood, self.num_classes, y)
        return self._functions.under(given, x, y, index, size)

    def shallow(self, x: Float[Array, "N D"]) -> Shallow | None:
        """The sparse GP that this model is while its hidden layers are linear, see :meth:`deep_gp.shallow`."""
        found: Shallow | None = self._functions.shallow(x)
        if found is None:
            return None
        of_functions: Any = found.model
        model = self._with_settings(sparse_gp_classification, inducing=of_functions.inducing)
        return replace(found, model=model, closed=False)


@dataclass(frozen=True, eq=False, repr=False)
class stack_classification(ZooModel):
    """Classification by a stack of GPs, networks and latents: sites ``layer1/u``, ``layer1/h``, …, ``y``.

    :param blocks, inner_noise, jitter: as in ``stack``.
    :param num_classes: C.
    :param likelihood: see :func:`sparse_gp_classification`.
    :raises TypeError: for what is no block.
    :raises ValueError: for blocks in an order that makes no model, and as :func:`sparse_gp_classification`.

    >>> from ppl_dgp.models.function_blocks import BayesianLayer
    >>> stack_classification([BayesianLayer(20), BayesianLayer()], 3).num_classes
    3
    """

    blocks: Sequence[StackBlock]
    num_classes: int = 2
    _: KW_ONLY
    likelihood: LikelihoodChoice | None = None
    inner_noise: float = INNER_NOISE
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(**checked_classes(self.num_classes, self.likelihood))
        self._settle_as(self._functions, "blocks")

    @cached_property
    def _functions(self) -> stack:
        return self._with_settings(stack, likelihood=None)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        given = class_likelihood(self.likelihood, self.num_classes, y)
        return self._functions.under(given, x, y, index, size, _functions_of(given, y))


def class_likelihood(likelihood: LikelihoodChoice | None, num_classes: int, y: Array | None) -> Likelihood:
    chosen = likelihood
    if chosen is None:
        chosen = "bernoulli" if num_classes == 2 else "robust-max"
    chosen_likelihood: Likelihood = observed_by(chosen, None, y, 1, num_classes)
    return chosen_likelihood


def checked_classes(num_classes: Any, likelihood: Any) -> dict[str, Any]:
    """Both settings as they were, if they fit each other."""
    num_classes = checked_whole(num_classes=num_classes)["num_classes"]
    if num_classes < 2:
        raise ValueError(f"num_classes: found {num_classes}, expected at least 2")
    if likelihood is None:
        return {"num_classes": num_classes, "likelihood": None}
    if isinstance(likelihood, str) and likelihood not in OF_CLASSES:
        if likelihood in LIKELIHOODS:
            raise ValueError(
                f"likelihood: found {likelihood!r}, which is of no classes; choose from {', '.join(OF_CLASSES)}, or "
                "None"
            )
        raise unknown_name(f"likelihood: found {likelihood!r}", likelihood, OF_CLASSES)
    checked = checked_observation(likelihood, None, 1, num_classes)[0]
    target = _class_target(likelihood)
    if num_classes > 2 and target == "two classes":
        raise ValueError(
            f"likelihood: found {likelihood!r} for {num_classes} classes, expected robust-max, softmax or ordinal"
        )
    known = (
        getattr(likelihood, "num_classes", num_classes) if isinstance(likelihood, Likelihood) else num_classes
    )
    if known != num_classes:
        raise ValueError(
            f"likelihood: found one of {known} classes, expected num_classes={num_classes} as the model's"
        )
    return {"num_classes": num_classes, "likelihood": checked}


def _class_target(likelihood: Any) -> str | None:
    """What y is under a likelihood; None where only a run of a function would tell."""
    if isinstance(likelihood, str):
        return likelihood_class(LIKELIHOODS[likelihood]).target
    return getattr(likelihood, "target", None)


def _functions_of(likelihood: Likelihood, y: Array | None) -> Float[Array, "N F"] | None:
    """Where the functions of labels may begin: 1 for the class that a row is of and −1 for others."""
    if y is None or likelihood.target == "ordered classes":
        return None
    number = likelihood.num_functions(1)
    # one function is of the second of two classes
    classes = jnp.arange(number) if number > 1 else jnp.ones(1)
    return jnp.where(y == classes, 1.0, -1.0)
