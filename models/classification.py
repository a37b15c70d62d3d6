r"""Gaussian process classification, sparse and deep, of two classes and of several.

    f_c ~ GP(0, k),   c = 1 … F,   f_c the last layer's outputs at x_n or, in a deep GP, at h_n^{L−1}

    two classes, F = 1:     P(y_n = 1 | f) = Φ(f(x_n))
    several, F = C:         P(y_n = c | f) = 1 − ε if f_c(x_n) is the largest, else ε/(C − 1)      (robust-max)
    or                      P(y_n = c | f) ∝ exp(f_c(x_n))                                         (softmax)
    in an order, F = 1:     P(y_n ≤ c | f) = Φ(b_c − f(x_n))                                       (ordinal)

Cards: :func:`sparse_gp_classification` (Hensman et al. 2015) for any number of rows; :func:`deep_gp_classification`
(Salimbeni & Deisenroth 2017) where the classes' borders are not of one lengthscale. Robust-max (Hernández-Lobato et al.
2011) forgives wrong labels and has one-dimensional integrals only; softmax gives softer probabilities by quasi-Monte
Carlo. Labels are 0 … C − 1, as (N, 1) or (N,). Guides: ``Guide(model, inducing=FullRank())``, for hidden layers
``DoublyStochastic()`` or ``Conditional()``. Sites as in the regression models; parameters ``likelihood/epsilon``,
``likelihood/cuts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppl_dgp.gp.contract import Model
from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.gp_regression import sparse_gp_regression
from ppl_dgp.models.observation import Observed, checked_observed

OF_CLASSES = ("bernoulli", "bernoulli-logit", "robust-max", "softmax", "ordinal")


def sparse_gp_classification(
    num_classes: int = 2, num_inducing: int = 100, *, likelihood: Observed | None = None, **settings: Any
) -> Model:
    """Sparse GP classification: sites ``gp/u``, ``y``.

    :param num_classes: C.
    :param num_inducing: M, at most the number of rows.
    :param likelihood: "bernoulli" (probit), "bernoulli-logit", "robust-max", "softmax" or "ordinal", or a likelihood;
        by default bernoulli for two classes and robust-max for more.
    :param settings: ``kernel``, ``train_inducing``, ``subsample_size`` and ``jitter`` of ``sparse_gp_regression``.
    :raises ValueError: for fewer than two classes, a likelihood of another number of classes, or labels outside
        0 … C − 1.
    """
    observed = _of_classes(num_classes, likelihood)
    return sparse_gp_regression(num_inducing, likelihood=observed, **settings)


def deep_gp_classification(
    num_classes: int = 2,
    widths: Sequence[int] = (2,),
    num_inducing: int = 100,
    *,
    likelihood: Observed | None = None,
    **settings: Any,
) -> Model:
    """Deep GP classification: sites ``layer1/u``, ``layer1/h``, …, ``y``.

    :param num_classes: C.
    :param widths: Q of each hidden layer.
    :param num_inducing: M per layer, at most the number of rows.
    :param likelihood: see :func:`sparse_gp_classification`.
    :param settings: ``kernel``, ``inner_noise``, ``train_inducing``, ``subsample_size`` and ``jitter`` of ``deep_gp``.
    :raises ValueError: for fewer than two classes, a width below 1, a likelihood of another number of classes, or
        labels outside 0 … C − 1.
    """
    observed = _of_classes(num_classes, likelihood)
    return deep_gp(widths, num_inducing, likelihood=observed, **settings)


def _of_classes(num_classes: int, likelihood: Observed | None) -> Observed:
    if num_classes < 2:
        raise ValueError(f"num_classes: found {num_classes}, expected at least 2")
    if likelihood is None:
        likelihood = "bernoulli" if num_classes == 2 else "robust-max"
    if isinstance(likelihood, str) and likelihood not in OF_CLASSES:
        raise ValueError(
            f"likelihood: found {likelihood!r}, expected one of {', '.join(OF_CLASSES)}, or None"
        )
    if num_classes > 2 and likelihood in ("bernoulli", "bernoulli-logit"):
        raise ValueError(
            f"likelihood: found {likelihood!r} for {num_classes} classes, expected robust-max, softmax or ordinal"
        )
    own = getattr(likelihood, "num_classes", num_classes)
    if own != num_classes:
        raise ValueError(
            f"likelihood: found one of {own} classes, expected num_classes={num_classes} as the model's"
        )
    return checked_observed(likelihood, None, num_classes)
