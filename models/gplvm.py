r"""The Bayesian Gaussian process latent variable model (Titsias & Lawrence 2010; Lawrence 2005).

    x_n ~ N(0, I_Q)
    f_p ~ GP(0, k),   k an RBF with a lengthscale for each latent dimension (ARD)
    y_np = f_p(x_n) + ε,   ε ~ N(0, s²),   or y_np ~ p(y | f_p(x_n))

Card. For tables that vary in fewer ways than they have columns: to see their rows in two dimensions, to fill in missing
entries, to draw more of them. It is a sparse GP whose inputs are hidden sites with a prior. Guides:
``Guide(model, hidden=MeanField())``, with ``Collapsed()`` and ``fit_lbfgs`` up to some thousand rows, beyond that
``PowerEP(0.0, propagation="moments")`` on minibatches; ``hidden=Amortised(base=MeanField())`` where rows are too many
to have parameters each, or new ones arrive; ``hidden=PointEstimate()`` is the GPLVM of 2005. Sites: ``x``, ``gp/u``,
``y``; parameters ``gp/lengthscale``, ``gp/inducing``, ``likelihood/noise``, …. It is called as ``model(x, y)`` like the
other models; a plain GPLVM knows nothing of a row before y, so that its x has no columns: ``fit_svi(…, None, y)``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpyro
from jaxtyping import Array

from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.latents import LATENT_STARTS, latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

#: M unless told
LATENT_INDUCING = 50


@dataclass(frozen=True, eq=False, repr=False)
class gplvm(ZooModel):
    """A GPLVM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param num_outputs: P columns of y.
    :param latent: Q dimensions of x.
    :param num_inducing: M, at most the number of rows.
    :param kernel: a name, a class, an instance or a function, see :mod:`ppl_dgp.models.kernel_values`.
    :param noise: variance of Gaussian noise: None to learn one for all columns, "per-column" to learn one for each, or
        a number to fix it.
    :param likelihood: instead of Gaussian noise one for all columns, or a sequence of one for each: names, classes,
        likelihoods, or functions; see :func:`ppl_dgp.models.sparse_gp_regression`.
    :param start: where latents begin: "pca", principal components with their spectrum in the lengthscales, or "random",
        a random mixture of them, for restarts that differ.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param inducing: inputs (M, Q) to begin at, whose M is the model's.
    :param train_inducing: whether the inducing inputs are learnt.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, an unknown likelihood or start, targets that a likelihood cannot
        have, or where shapes do not fit.
    """

    num_outputs: int
    latent: int = 2
    num_inducing: int = LATENT_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    start: str = "pca"
    missing: bool = False
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, dims=self.latent, start=LATENT_STARTS))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        scores, lengthscale = where_latents_begin("x", x, y, self.latent, self.start, self.missing)
        inducing = inducing_inputs("gp", scores, self.num_inducing, self.train_inducing, self.inducing)
        k = kernel_parameters("gp", self.kernel, self.latent, lengthscale)
        f = sparse_gp("gp", k, inducing, given.num_functions(self.num_outputs), jitter=self.jitter)
        with rows_plate(x, index, size):
            h = standard_normal("x", self.latent, lambda: latents_around(scores))
            return numpyro.sample("y", emission(f(h), given, index, y is not None, self.missing), obs=y)
