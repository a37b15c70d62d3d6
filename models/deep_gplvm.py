r"""Deep GPs above latents: the deep GPLVM, and regression with latent inputs beside the known ones.

    z_n ~ N(0, I_Q),   h_n⁰ = z_n (deep GPLVM), or (x_n, z_n) (latent inputs)
    h_n^l = f^l(h_n^{l−1}) + ε,   ε ~ N(0, s_l²),   l = 1 … L−1,      y_n = f^L(h_n^{L−1}) + ε, or y_n ~ p(y | f^L(…))

Cards. :func:`deep_gplvm` (Damianou & Lawrence 2013): a GPLVM whose manifold is bent more than one GP bends it.
:func:`latent_input_gp` (Salimbeni et al. 2019): y given x with a density of any shape, several modes, skew, changing
spread, for z_n says what x_n does not; new rows draw z from its prior. With ``widths=()`` it is one sparse GP of
(x, z). Guides: ``Guide(model, hidden=DoublyStochastic(), latent=MeanField())``, or with
``latent=Amortised(base=MeanField())``, and ``ImportanceWeighted(K)``, whose bound is tighter where q(z_n) is far from
Gaussian; for the deep GPLVM also ``hidden=MeanField()`` under ``Collapsed()``. Sites: ``z`` or ``x``, ``layer1/u``,
``layer1/h``, …, ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.kernels import RBF
from ppl_dgp.models.deep_gp import INNER_NOISE, layers
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.gplvm import LATENT_INDUCING
from ppl_dgp.models.inducing import GivenInducing
from ppl_dgp.models.kernel_values import KernelChoice
from ppl_dgp.models.latents import LATENT_STARTS, latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.gaussian import Gaussian, beside


@dataclass(frozen=True, eq=False, repr=False)
class deep_gplvm(ZooModel):
    """Layers above latents as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param widths: of the hidden layers, from the latents to y.
    :param inner_noise: where the learnt noise variances s_l² of hidden layers start.
    :param inducing: inputs to begin at, a list of (M, Q) for each layer, the hidden ones and the last.
    :raises ValueError: for a width below 1, and as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """

    num_outputs: int
    latent: int = 2
    widths: Sequence[int] = (4,)
    num_inducing: int = LATENT_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    inner_noise: float = INNER_NOISE
    start: str = "pca"
    missing: bool = False
    inducing: Sequence[GivenInducing] | GivenInducing | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, start=LATENT_STARTS))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        scores, lengthscale = where_latents_begin("x", x, y, self.latent, self.start, self.missing)
        through = layers(
            scores,
            self.widths,
            given.num_functions(self.num_outputs),
            kernel=self.kernel,
            num_inducing=self.num_inducing,
            inner_noise=self.inner_noise,
            inducing=self.inducing,
            lengthscale=lengthscale,
            jitter=self.jitter,
        )
        with rows_plate(x, index, size):
            h = standard_normal("x", self.latent, lambda: latents_around(scores))
            return numpyro.sample("y", emission(through(h), given, index, y is not None, self.missing), obs=y)


@dataclass(frozen=True, eq=False, repr=False)
class latent_input_gp(ZooModel):
    """Regression on (x_n, z_n), z_n latent, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param latent: Q dimensions of z.
    :param widths: of hidden layers; () gives a sparse GP.
    :param inducing: inputs to begin at, a list of matrices for each layer; the first layer's have D + Q columns.
    :raises ValueError: for a width or ``latent`` below 1, and as :func:`ppl_dgp.models.deep_gp`.
    """

    latent: int = 1
    widths: Sequence[int] = ()
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    num_outputs: int = 1
    kernel: KernelChoice = RBF
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    inner_noise: float = INNER_NOISE
    inducing: Sequence[GivenInducing] | GivenInducing | None = None
    jitter: float | None = None

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        scores, _ = where_latents_begin("z", x, y, self.latent, "pca")
        through = layers(
            jnp.column_stack([x, scores]),
            self.widths,
            given.num_functions(self.num_outputs),
            kernel=self.kernel,
            num_inducing=self.num_inducing,
            inner_noise=self.inner_noise,
            inducing=self.inducing,
            jitter=self.jitter,
        )
        with rows_plate(x, index, size):
            # near its prior, but a little to the side that y is on: at 0 for all rows nothing would tell z apart
            z = standard_normal("z", self.latent, lambda: Gaussian(0.1 * scores, jnp.ones_like(scores)))
            return numpyro.sample("y", emission(through(beside(x, z)), given, index, y is not None), obs=y)
