r"""Gaussian process regression, exact and sparse.

    f ~ GP(m, k),   y_n = f(x_n) + ε_n,   ε_n ~ N(0, s²),   or y_n ~ p(y | f(x_n))

Cards: :func:`exact_gp_regression` integrates f out, O(N³): up to a few thousand rows, no guide needed.
:func:`sparse_gp_regression` offered f by M inducing outputs (Titsias 2009; Hensman et al. 2013), O(NM²) or O(BM²) per
minibatch; guides: ``Guide(model, inducing=FullRank())``. With ``likelihood="student-t"`` outliers cost little; counts,
positive numbers and fractions have likelihoods of their own (:data:`ppl_dgp.likelihoods.LIKELIHOODS`).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.exact_gp import ExactGP
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Likelihood
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.observation import (
    NoiseChoice,
    Observed,
    checked_observation,
    emission,
    observed_by,
)
from ppl_dgp.models.parts import as_columns, noise_variance, rows_of_noise, rows_plate
from ppl_dgp.models.zoo_model import ZooModel

#: M unless told
NUM_INDUCING = 100


@dataclass(frozen=True, eq=False, repr=False)
class exact_gp_regression(ZooModel):
    """y ~ N(0, K + s²I), each target column with the same kernel; sites ``gp/…``, ``likelihood/noise``, ``y``.

    :param kernel: a name, a class, an instance or a function, see :mod:`ppl_dgp.models.kernel_values`.
    :param noise: the noise variance: None to learn it, a number to fix it, or one per training row (N,).
    :raises ValueError: if x and y disagree in their rows.
    """

    _: KW_ONLY
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None

    def __post_init__(self) -> None:
        if isinstance(self.noise, str):
            raise ValueError(f"noise: found {self.noise!r}, expected None, a number, or one per row (N,)")
        super().__post_init__()
        self._settle(noise=checked_observation(None, self.noise)[1])

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        if index is not None:
            raise ValueError(
                "index: found a minibatch, but the exact GP needs all rows; use sparse_gp_regression"
            )
        y = as_columns(x, y)
        begin = where_lengthscales_begin(x, y)
        k = kernel_parameters("gp", self.kernel, x.shape[1], begin=begin)
        noise_rows = rows_of_noise(noise_variance(self.noise), None, y is not None)
        variance = jnp.broadcast_to(jnp.ravel(noise_rows), (x.shape[0],))
        columns = ExactGP(k, x, variance, 1 if y is None else y.shape[1])
        numpyro.deterministic("gp/jitter", columns.jitter)
        return numpyro.sample("y", columns, obs=None if y is None else y.T)


@dataclass(frozen=True, eq=False, repr=False)
class sparse_gp_regression(ZooModel):
    """f by inducing outputs u ~ N(0, Kzz): sites ``gp/u``, ``y``; a deep GP of one layer.

    :param num_inducing: M, at most the number of rows.
    :param num_outputs: P target columns, independent given the kernel.
    :param kernel: a name, a class, an instance or a function, see :mod:`ppl_dgp.models.kernel_values`.
    :param noise: the noise variance: None to learn it, a number to fix it, or one per training row (N,).
    :param likelihood: instead of Gaussian noise: a name of ``LIKELIHOODS``, a class or an instance, their values learnt
        (sites ``likelihood/…``); or a function, see :mod:`ppl_dgp.models.observation`. A sequence has one for each
        column.
    :param inducing: inputs Z (M, D) to begin at, whose M is the model's.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the rows if not given.
    :param subsample_size: rows per step drawn by the plate, at O(N) per step; ``fit_svi(batch_size=)`` is better.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, an unknown likelihood, targets it cannot have, or where shapes
        do not fit, naming them.
    """

    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    subsample_size: int | None = None
    jitter: float | None = None

    @property
    def collapses(self) -> bool:
        """Whether its bound at α = 0 is closed with the best q(u): all rows under Gaussian noise of one variance."""
        one = self.noise is None or (not isinstance(self.noise, str) and jnp.ndim(self.noise) == 0)
        return self.likelihood is None and one and self.subsample_size is None

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        return self.under(observed_by(self.likelihood, self.noise, y, self.num_outputs), x, y, index, size)

    def under(
        self, given: Likelihood, x: Array, y: Array | None, index: Array | None, size: int | None
    ) -> Any:
        """The rest of the program, under a likelihood whose values are sites already."""
        inducing = inducing_inputs("gp", x, self.num_inducing, self.train_inducing, self.inducing)
        begin = where_lengthscales_begin(x, y, given)
        k = kernel_parameters("gp", self.kernel, x.shape[1], begin=begin)
        f = sparse_gp("gp", k, inducing, given.num_functions(self.num_outputs), jitter=self.jitter)
        with rows_plate(x, index, size, self.subsample_size) as rows:
            if self.subsample_size is not None:
                x, y, index = x[rows], None if y is None else y[rows], rows
            return numpyro.sample("y", emission(f(x), given, index, y is not None), obs=y)
