r"""Regression whose noise changes with x (Goldberg et al. 1998; Lázaro-Gredilla & Titsias 2011).

    f, g ~ GP(0, k),   y_n = f(x_n) + ε_n,   ε_n ~ N(0, s² exp(g(x_n)))

Cards: :func:`sparse_heteroscedastic_gp`, and :func:`deep_heteroscedastic_gp` whose f and g share hidden layers; for
data whose scatter is not the same everywhere. f and g have one kernel and one set of inducing inputs; s² is the site
``likelihood/noise``. The bound (α = 0) is closed in f and g. Guides as for ``sparse_gp_regression`` and ``deep_gp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppl_dgp.gp.contract import Model
from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.gp_regression import sparse_gp_regression


def sparse_heteroscedastic_gp(num_inducing: int = 100, **settings: Any) -> Model:
    """One layer: sites ``gp/u`` (2P, M), ``y``.

    :param num_inducing: M, at most the number of rows.
    :param settings: ``num_outputs`` P, ``kernel``, ``train_inducing``, … of ``sparse_gp_regression``.
    :raises ValueError: where shapes do not fit, naming them.
    """
    return sparse_gp_regression(num_inducing, likelihood="heteroscedastic", **settings)


def deep_heteroscedastic_gp(widths: Sequence[int] = (2,), num_inducing: int = 100, **settings: Any) -> Model:
    """Hidden layers of the given widths below f and g: sites ``layer1/u``, ``layer1/h``, …, ``y``.

    :param widths: Q of each hidden layer.
    :param num_inducing: M per layer, at most the number of rows.
    :param settings: ``num_outputs`` P, ``kernel``, ``inner_noise``, … of ``deep_gp``.
    :raises ValueError: for a width below 1, or where shapes do not fit, naming them.
    """
    return deep_gp(widths, num_inducing, likelihood="heteroscedastic", **settings)
