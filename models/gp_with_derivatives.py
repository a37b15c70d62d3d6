r"""Regression on values and slopes (Solak et al. 2003; tutorial, eqs. (21)–(23)).

    f ~ GP(m, k),   y_n = f(x_n) + ε_n,   ε_n ~ N(0, s²),   or   y_n = ∂f/∂x_d (x_n) + ε'_n,   ε'_n ~ N(0, s'²)

Card. For functions of which slopes are measured too, as velocities and gradients of simulators are: a slope says as
much as several values. The last column of x says what y is: 0 a value, d = 1 … D the slope along the d-th input. It
predicts either. Guides: ``Guide(model)``. Sites ``gp/u``, ``y``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.functionals import ValuesAndSlopes
from ppl_dgp.gp.means import Constant
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import at_least_zero
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.compatibility import is_traced


@dataclass(frozen=True, eq=False, repr=False)
class gp_with_derivatives(ZooModel):
    """f by inducing points, observed by values and slopes: sites ``gp/u``, ``y``.

    :param num_inducing: M, at most the number of rows.
    :param num_outputs: P target columns, independent given the kernel; a row's are all values or all slopes.
    :param kernel: of a function that has slopes, which ``Matern12`` has not; see :mod:`ppl_dgp.models.kernel_values`.
    :param noise: the noise variance of values, ``slope_noise`` that of slopes: None to learn it (sites
        ``likelihood/noise``, ``likelihood/slope_noise``), a number of at least 0 to fix it.
    :param inducing: inputs Z (M, D) to begin at.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the rows if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind; or, when the model is run, where the last column of x is no
        whole number from 0 to D, or the kernel has no slopes.
    """

    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    noise: float | None = None
    slope_noise: float | None = None
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        for name in ("noise", "slope_noise"):
            if getattr(self, name) is not None:
                at_least_zero(**{name: getattr(self, name)})
        self._settle(**checked_settings(self, without=("noise",)))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        rows = values_and_slopes(x)
        inducing = inducing_inputs("gp", rows.points, self.num_inducing, self.train_inducing, self.inducing)
        kernel = kernel_parameters("gp", self.kernel, rows.points.shape[1])
        # of standardised values the mean is 0; that of slopes is not known, so that nothing was subtracted from them
        mean = Constant(numpyro.param("gp/mean", jnp.zeros(self.num_outputs)))
        f = sparse_gp("gp", kernel, inducing, self.num_outputs, mean=mean, jitter=self.jitter)
        noises = [
            jnp.asarray(given)
            if given is not None
            else numpyro.param(f"likelihood/{name}", jnp.asarray(0.1), constraint=constraints.positive)
            for name, given in (("noise", self.noise), ("slope_noise", self.slope_noise))
        ]
        variance = jnp.where(rows.shares[:, None] == 1.0, *noises)
        with rows_plate(x, index, size):
            return numpyro.sample("y", f(rows).noisy(variance), obs=y)


def values_and_slopes(x: Float[Array, "N DK"]) -> ValuesAndSlopes:
    """What the rows are of: inputs (N, D), and behind them a column of 0 for values, d for slopes along the d-th input.

    :raises ValueError: for another column than that, where it is known, or without inputs beside it.
    """
    dims = x.shape[1] - 1
    if dims < 1:
        raise ValueError(
            f"x: found {x.shape[1]} columns, expected inputs and behind them what y is: 0 a value, d the d-th slope"
        )
    points, kinds = x[:, :dims], x[:, dims]
    if not is_traced(x):
        known = np.asarray(x)[:, dims]
        wrong = ~np.isin(known, np.arange(dims + 1))
        if wrong.any():
            raise ValueError(
                f"x: found {known[wrong][0]:g} in its last column, expected 0 for a value or 1 to {dims} for a slope "
                "along that input; do not standardise this column"
            )
    directions = (kinds[:, None] == jnp.arange(1, dims + 1)).astype(x.dtype)
    return ValuesAndSlopes(points, (kinds == 0).astype(x.dtype), directions)
