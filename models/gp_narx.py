r"""GP-NARX: a series as the regression of each step on those before it (Kocijan et al. 2005).

    f_p ~ GP(m_p, k),   y_t = f(y_{t−1}, …, y_{t−L}, c_t, …, c_{t−K+1}) + ε_t,   ε_t ~ N(0, s²)

Card. The simple baseline of state space models: no latent state, a sparse GP on the table of lags that
:func:`ppl_dgp.prediction.narx.lagged` makes, :func:`ppl_dgp.prediction.narx.simulate_narx` to go on from there. Good
where y is observed with little noise; noise in the inputs, which are observations, is not accounted for. Guides and
objectives: those of any regression, ``Guide(model, inducing=FullRank())`` with ``PowerEP(alpha)``, or
``Collapsed(alpha)`` with ``fit_lbfgs``. Sites: ``gp/u``, ``y``; parameters ``gp/…``, ``likelihood/noise``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.means import Linear, Zero
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import positive
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.parts import as_columns, noise_variance, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

LAG_MEANS = ("zero", "last")
#: M unless told
NARX_INDUCING = 50


@dataclass(frozen=True, eq=False, repr=False)
class gp_narx(ZooModel):
    """A sparse GP on a table of lags as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param num_outputs: P columns of y.
    :param num_inducing: M, at most the number of rows.
    :param lags: L; the first L P columns of x are the lags of y, the latest first, and the others those of controls.
    :param mean: of f: "zero", or "last", the output at the step before.
    :param kernel: a name, a class, an instance or a function, see :mod:`ppl_dgp.models.kernel_values`; the outputs
        share it.
    :param noise: s²: None to learn it, or a number to fix it.
    :param inducing: inputs (M, D) to begin at, whose M is the model's.
    :param train_inducing: whether the inducing inputs are learnt; they start at k-means centres of the rows if not
        given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, an unknown mean, or where shapes do not fit, naming them.
    """

    num_outputs: int = 1
    num_inducing: int = NARX_INDUCING
    _: KW_ONLY
    lags: int = 1
    mean: str = "zero"
    kernel: KernelChoice = RBF
    noise: float | None = None
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        if self.noise is not None:
            positive(noise=self.noise)
        self._settle(**checked_settings(self, mean=LAG_MEANS))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        lagged = self.lags * self.num_outputs
        if x.shape[1] < lagged:
            raise ValueError(
                f"x: found {x.shape[1]} columns, expected at least {lagged}, the {self.lags} lags of "
                f"{self.num_outputs} outputs; make it by ppl_dgp.prediction.narx.lagged"
            )
        inducing = inducing_inputs("gp", x, self.num_inducing, self.train_inducing, self.inducing)
        k = kernel_parameters("gp", self.kernel, x.shape[1], begin=where_lengthscales_begin(x, y))
        last = self.mean == "last"
        m = Linear(jnp.eye(x.shape[1], self.num_outputs)) if last else Zero(self.num_outputs)
        f = sparse_gp("gp", k, inducing, self.num_outputs, mean=m, jitter=self.jitter)
        s2 = noise_variance(self.noise)
        with rows_plate(x, index, size):
            return numpyro.sample("y", f(x).noisy(s2), obs=y)
