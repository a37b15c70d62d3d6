r"""Gaussian process regression, exact and sparse.

    f ~ GP(m, k),   y_n = f(x_n) + ε_n,   ε_n ~ N(0, s²),   or y_n ~ p(y | f(x_n))

Cards: :func:`exact_gp_regression` integrates f out, O(N³): up to a few thousand rows, no guide needed.
:func:`sparse_gp_regression` offered f by M inducing outputs (Titsias 2009; Hensman et al. 2013), O(NM²) or O(BM²) per
minibatch; guides: ``Guide(model, inducing=FullRank())``. With ``likelihood="student-t"`` outliers cost little; counts,
positive numbers and fractions have likelihoods of their own (:data:`ppl_dgp.likelihoods.LIKELIHOODS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Model
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.observation import Observed, checked_observed, emission, observed_by
from ppl_dgp.models.parts import (
    Composed,
    as_columns,
    inducing_inputs,
    kernel_parameters,
    noise_variance,
    rows_of_noise,
)
from ppl_dgp.numerics.dense_normal import DenseNormal


def exact_gp_regression(
    *, kernel: Callable[..., Kernel] | Composed = RBF, noise: float | Float[Array, " N"] | None = None
) -> Model:
    """y ~ N(0, K + s²I), each target column with the same kernel; sites ``gp/…``, ``likelihood/noise``, ``y``.

    :param kernel: a kernel class, built from ``variance``, ``lengthscale`` and the like, several ``Composed``, or a
        function D → kernel.
    :param noise: the noise variance: None to learn it, a number to fix it, or one per training row (N,).
    :raises ValueError: if x and y disagree in their rows.
    """

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        if index is not None:
            raise ValueError(
                "index: found a minibatch, but the exact GP needs all rows; use sparse_gp_regression"
            )
        y = as_columns(x, y)
        k = kernel_parameters("gp", kernel, x.shape[1])
        noise_rows = rows_of_noise(noise_variance(noise), None, y is not None)
        variance = jnp.broadcast_to(jnp.ravel(noise_rows), (x.shape[0],))
        # (P, N): the columns are independent given the kernel
        columns = DenseNormal(k(x, x) + jnp.diag(variance), 1 if y is None else y.shape[1])
        numpyro.deterministic("gp/jitter", columns.jitter)
        return numpyro.sample("y", columns, obs=None if y is None else y.T)

    return model


def sparse_gp_regression(
    num_inducing: int = 100,
    *,
    num_outputs: int = 1,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | Float[Array, " N"] | None = None,
    likelihood: Observed | None = None,
    train_inducing: bool = True,
    subsample_size: int | None = None,
    jitter: float | None = None,
) -> Model:
    """f by inducing outputs u ~ N(0, Kzz): sites ``gp/u``, ``y``; a deep GP of one layer.

    :param num_inducing: M, at most the number of rows.
    :param num_outputs: P target columns, independent given the kernel.
    :param kernel: a kernel class, several ``Composed``, or a function D → kernel that calls ``numpyro.param`` or
        ``sample`` itself.
    :param noise: the noise variance: None to learn it, a number to fix it, or one per training row (N,).
    :param likelihood: instead of Gaussian noise: a name of ``LIKELIHOODS``, its values learnt (sites
        ``likelihood/…``); a likelihood, its values held; or a function without arguments that makes one.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the rows.
    :param subsample_size: rows per step drawn by the plate, at O(N) per step; ``fit_svi(batch_size=)`` is better.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for an unknown likelihood, targets it cannot have, or where shapes do not fit, naming them.
    """
    observed = checked_observed(likelihood, noise)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        given = observed_by(observed, y)
        inducing = inducing_inputs("gp", x, num_inducing, train_inducing)
        k = kernel_parameters("gp", kernel, x.shape[1])
        f = sparse_gp("gp", k, inducing, given.num_functions(num_outputs), jitter=jitter)
        with data_plate(size or x.shape[0], index, subsample_size) as rows:
            if subsample_size is not None:
                x, y, index = x[rows], None if y is None else y[rows], rows
            return numpyro.sample("y", emission(f(x), given, index, y is not None), obs=y)

    return model
