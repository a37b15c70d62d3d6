r"""Mixtures of functions: which of several GPs a row comes from is not known.

    f_k ~ GP(c_k, k),   z_n ~ Categorical(π_n),   y_n = f_{z_n}(x_n) + ε_n,   ε_n ~ N(0, s²_{z_n})      k = 1 … K

and π_n = π in :func:`mixture_of_functions` (Lázaro-Gredilla et al. 2012), while in :func:`mixture_of_experts_gp` a gate
of functions says where each is to be found (Tresp 2001):

    g_k ~ GP(0, k'),   h_nk = g_k(x_n) + ε,   ε ~ N(0, s_g²),   π_n = softmax(h_n)

Card of the mixture. For data association: tracks that cross, sensors of several kinds in one table, outliers (a second
function takes them). The z_n are summed out exactly by the α objectives, at every α; the functions share a kernel and
start at different heights c_k, quantiles of y, for functions that begin alike would stay alike. Guides:
``Guide(model, inducing=FullRank())``. Sites: ``gp/u``, ``z``, ``y``; parameters ``gp/…``, ``mixture/weights``,
``likelihood/noise`` (K,).

Card of the experts. For functions that change their kind or their noise from one region to another, steps among them.
The gate is a hidden layer, drawn once for all values of z_n, which are summed out behind it. Guides: ``Guide(model)``,
``Guide(model, hidden=MeanField())``. Sites: ``gp/u``, ``gate/u``, ``gate/h``, ``z``, ``y``; parameters ``gp/…``,
``gate/…``, ``likelihood/noise`` (K,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.means import Constant
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.deep_gp import INNER_NOISE
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.zoo_model import ZooModel

#: M unless told
MIXTURE_INDUCING = 50


@dataclass(frozen=True, eq=False, repr=False)
class mixture_of_functions(ZooModel):
    """K functions, each row from one of them, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param num_functions: K.
    :param num_inducing: M inducing inputs, which the functions share; at most the number of rows.
    :param kernel: a name, a class, an instance or a function, see :mod:`ppl_dgp.models.kernel_values`.
    :param inducing: inputs (M, D) to begin at, whose M is the model's.
    :param train_inducing: whether the inducing inputs are learnt.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for fewer than two functions, or where shapes do not fit, naming them; y has one column.
    """

    num_functions: int = 2
    num_inducing: int = MIXTURE_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_functions < 2:
            raise ValueError(
                f"num_functions: found {self.num_functions}, expected at least 2; of one, take sparse_gp_regression"
            )

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        number = self.num_functions
        inducing = inducing_inputs("gp", x, self.num_inducing, self.train_inducing, self.inducing)
        positive = constraints.positive
        gate = self._gate(x)
        noise = numpyro.param("likelihood/noise", jnp.full((number,), 0.1), constraint=positive)
        heights = numpyro.param("gp/offset", lambda _key: _spread(y, number))
        k = kernel_parameters("gp", self.kernel, x.shape[1], begin=where_lengthscales_begin(x, y))
        f = sparse_gp("gp", k, inducing, number, mean=Constant(heights), jitter=self.jitter)
        with rows_plate(x, index, size):
            z = numpyro.sample("z", gate(), infer={"enumerate": "parallel"})
            return numpyro.sample("y", f(x).output(z).noisy(noise[z][:, None]), obs=y)

    def _gate(self, x: Array) -> Callable[[], dist.Distribution]:
        """Gives the prior of z, called within the plate of the rows."""
        equal = jnp.full((self.num_functions,), 1.0 / self.num_functions)
        weights = numpyro.param("mixture/weights", equal, constraint=constraints.simplex)
        return lambda: dist.Categorical(probs=weights)


@dataclass(frozen=True, eq=False, repr=False)
class mixture_of_experts_gp(mixture_of_functions):
    """K functions behind a gate of K more, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Settings, and what is refused, as of :func:`mixture_of_functions`; the kernels of gate and functions are of one
    kind, each with its own values.
    """

    def _gate(self, x: Array) -> Callable[[], dist.Distribution]:
        settings = self.num_inducing, self.train_inducing, self.inducing
        inducing = inducing_inputs("gate", x, *settings)
        k = kernel_parameters("gate", self.kernel, x.shape[1])
        noise = numpyro.param("gate/noise", jnp.asarray(INNER_NOISE), constraint=constraints.positive)
        g = sparse_gp("gate", k, inducing, self.num_functions, jitter=self.jitter)

        def prior() -> dist.Distribution:
            h = numpyro.sample("gate/h", g(x).noisy(noise), infer=hidden_role())
            return dist.Categorical(logits=h)

        return prior


def _spread(y: Array | None, number: int) -> Array:
    """Heights to start from: the middles of equal parts of y."""
    levels = (jnp.arange(number) + 0.5) / number
    return 2.0 * levels - 1.0 if y is None else jnp.quantile(y, levels)
