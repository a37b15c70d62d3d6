r"""Counts in bins: a log-Gaussian Cox process (Møller, Syversveen & Waagepetersen 1998).

    f ~ GP(m, k),   y_n ~ Poisson(e_n exp(f̄_n)),   f̄_n the average of f over the n-th bin, e_n its volume or exposure

Card. For events that were counted in intervals, areas or their like, of any sizes: the logarithm of the rate is a
function on the whole space, of which bins see averages, so that it can be predicted in other bins and, nearly, at
points. exp of the average stands for the average of exp, which is exact as bins are narrow beside a lengthscale and
below it otherwise. A row of x is a bin: its lower corner, then its upper one. Guides: ``Guide(model)``. Sites ``gp/u``,
``y``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float

from ppl_dgp.gp.functionals import Averages, box_averages
from ppl_dgp.gp.means import Constant
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import checked_flag, checked_whole
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.observation import observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.compatibility import is_traced

#: likelihoods of counts
COUNTS = ("poisson", "negative-binomial")


@dataclass(frozen=True, eq=False, repr=False)
class binned_counts_gp(ZooModel):
    """Counts in bins: sites ``gp/u``, ``y``; ``gp/mean`` is the log rate that f varies about.

    :param num_inducing: M, at most the number of rows.
    :param num_outputs: P columns of counts, whose rates are independent given the kernel.
    :param kernel: of the logarithm of the rate, see :mod:`ppl_dgp.models.kernel_values`.
    :param likelihood: "poisson", or "negative-binomial" for counts that vary more.
    :param exposure: whether x has behind the corners a column of exposures, such as times of observation, in the place
        of volumes; the rate is of counts for one unit of it.
    :param nodes: of the quadrature over a bin, in each dimension; take more for bins of several lengthscales.
    :param inducing: inputs Z (M, D) to begin at.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the bins if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind; or, when the model is run, for columns that are no bins, an
        upper corner below the lower one, an exposure that is not positive, or targets that are no counts.
    """

    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    likelihood: str = "poisson"
    exposure: bool = False
    nodes: int = 4
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        settings = checked_settings(self, without=("exposure", "nodes"), likelihood=COUNTS)
        settings["exposure"] = checked_flag("exposure", self.exposure)
        self._settle(**settings, **checked_whole(nodes=self.nodes))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, None, y, self.num_outputs)
        bins, exposures = self.bins(x)
        inducing = inducing_inputs("gp", bins.places, self.num_inducing, self.train_inducing, self.inducing)
        kernel = kernel_parameters("gp", self.kernel, bins.places.shape[1])

        def log_rate(_key: Array) -> Array:
            counts = jnp.ones(self.num_outputs) if y is None else y.sum(0) + 0.5
            return jnp.log(counts / exposures.sum())

        mean = Constant(numpyro.param("gp/mean", log_rate))
        f = sparse_gp("gp", kernel, inducing, self.num_outputs, mean=mean, jitter=self.jitter)
        with rows_plate(x, index, size):
            return numpyro.sample("y", (f(bins) + jnp.log(exposures)[:, None]).observe(given), obs=y)

    def bins(self, x: Float[Array, "N _"]) -> tuple[Averages, Float[Array, " N"]]:
        """The bins that rows are, and their exposures.

        :raises ValueError: for what are no bins, where it is known.
        """
        corners = x.shape[1] - self.exposure
        if corners < 2 or corners % 2:
            behind = " and behind them an exposure" if self.exposure else ""
            raise ValueError(
                f"x: found {x.shape[1]} columns, expected the D lower and the D upper ends of each bin{behind}"
            )
        low, high = x[:, : corners // 2], x[:, corners // 2 : corners]
        exposures = x[:, -1] if self.exposure else jnp.prod(high - low, 1)
        if not is_traced(x):
            known = np.asarray(x)
            widths = known[:, corners // 2 : corners] - known[:, : corners // 2]
            for name, least in (("bin's width", widths.min()), ("exposure", known[:, -1].min())):
                if not least > 0.0 and (name != "exposure" or self.exposure):
                    raise ValueError(
                        f"x: found a {name} of {least:g}, expected it positive; do not standardise x"
                    )
        return box_averages(low, high, self.nodes), exposures
