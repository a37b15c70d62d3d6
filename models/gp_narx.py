r"""GP-NARX: a series as the regression of each step on those before it (Kocijan et al. 2005).

    f_p ~ GP(m_p, k),   y_t = f(y_{t−1}, …, y_{t−L}, c_t, …, c_{t−K+1}) + ε_t,   ε_t ~ N(0, s²)

Card. The simple baseline of state space models: no latent state, a sparse GP on the table of lags that
:func:`ppl_dgp.prediction.narx.lagged` makes, :func:`ppl_dgp.prediction.narx.simulate_narx` to go on from there. Good
where y is observed with little noise; noise in the inputs, which are observations, is not accounted for. Guides and
objectives: those of any regression, ``Guide(model, inducing=FullRank())`` with ``PowerEP(alpha)``, or
``Collapsed(alpha)`` with ``fit_lbfgs``. Sites: ``gp/u``, ``y``; parameters ``gp/…``, ``likelihood/noise``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.means import Linear, Zero
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters, noise_variance

LAG_MEANS = ("zero", "last")


def gp_narx(
    num_outputs: int = 1,
    num_inducing: int = 50,
    *,
    lags: int = 1,
    mean: str = "zero",
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | None = None,
    train_inducing: bool = True,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """A sparse GP on a table of lags as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param num_outputs: P columns of y.
    :param num_inducing: M, at most the number of rows.
    :param lags: L; the first L P columns of x are the lags of y, the latest first, and the others those of controls.
    :param mean: of f: "zero", or "last", the output at the step before.
    :param kernel: a kernel class, several ``Composed``, or a function D → kernel; the outputs share it.
    :param noise: s²: None to learn it, or a number to fix it.
    :param train_inducing: whether the inducing inputs are learnt; they start at k-means centres of the rows.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for an unknown mean, a number of lags or outputs that is not positive, or where shapes do not
        fit, naming them.
    """
    if mean not in LAG_MEANS:
        raise ValueError(f"mean: found {mean!r}, expected one of {', '.join(LAG_MEANS)}")
    for name, value in (("num_outputs", num_outputs), ("lags", lags)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1")

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        if x.shape[1] < lags * num_outputs:
            raise ValueError(
                f"x: found {x.shape[1]} columns, expected at least {lags * num_outputs}, the {lags} lags of "
                f"{num_outputs} outputs; make it by ppl_dgp.prediction.narx.lagged"
            )
        inducing = inducing_inputs("gp", x, num_inducing, train_inducing)
        k = kernel_parameters("gp", kernel, x.shape[1])
        m = Linear(jnp.eye(x.shape[1], num_outputs)) if mean == "last" else Zero(num_outputs)
        f = sparse_gp("gp", k, inducing, num_outputs, mean=m, jitter=jitter)
        s2 = noise_variance(noise)
        with data_plate(size or x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(s2), obs=y)

    return model
