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

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array

from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.deep_gp import checked_widths, layers
from ppl_dgp.models.gplvm import checked_latent
from ppl_dgp.models.latents import latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.observation import Observed, checked_columns, emission, observed_by
from ppl_dgp.models.parts import Composed, as_columns
from ppl_dgp.numerics.gaussian import Gaussian, beside


def deep_gplvm(
    num_outputs: int,
    latent: int = 2,
    widths: Sequence[int] = (4,),
    num_inducing: int = 50,
    *,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    inner_noise: float = 1e-2,
    start: str = "pca",
    missing: bool = False,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """Layers above latents as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param widths: of the hidden layers, from the latents to y.
    :param inner_noise: where the learnt noise variances s_l² of hidden layers start.
    :raises ValueError: for a width below 1, and as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """
    checked_latent(latent)
    widths = checked_widths(widths)
    observed = checked_columns(likelihood, noise, num_outputs)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        given = observed_by(observed, y)
        scores, lengthscale = where_latents_begin("x", x, y, latent, start, missing)
        settings: dict[str, Any] = dict(kernel=kernel, num_inducing=num_inducing, inner_noise=inner_noise)
        functions = given.num_functions(num_outputs)
        through = layers(scores, widths, functions, lengthscale=lengthscale, jitter=jitter, **settings)
        with data_plate(size or x.shape[0], index):
            h = standard_normal("x", latent, lambda: latents_around(scores))
            return numpyro.sample("y", emission(through(h), given, index, y is not None, missing), obs=y)

    return model


def latent_input_gp(
    latent: int = 1,
    widths: Sequence[int] = (),
    num_inducing: int = 100,
    *,
    num_outputs: int = 1,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | None = None,
    likelihood: Observed | None = None,
    inner_noise: float = 1e-2,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """Regression on (x_n, z_n), z_n latent, as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    :param latent: Q dimensions of z.
    :param widths: of hidden layers; () gives a sparse GP.
    :raises ValueError: for a width or ``latent`` below 1, and as :func:`ppl_dgp.models.deep_gp`.
    """
    checked_latent(latent)
    widths = checked_widths(widths)
    observed = checked_columns(likelihood, noise, num_outputs)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        given = observed_by(observed, y)
        scores, _ = where_latents_begin("z", x, y, latent, "pca")
        settings: dict[str, Any] = dict(kernel=kernel, num_inducing=num_inducing, inner_noise=inner_noise)
        rows = jnp.column_stack([x, scores])
        through = layers(rows, widths, given.num_functions(num_outputs), jitter=jitter, **settings)
        with data_plate(size or x.shape[0], index):
            # near its prior, but a little to the side that y is on: at 0 for all rows nothing would tell z apart
            z = standard_normal("z", latent, lambda: Gaussian(0.1 * scores, jnp.ones_like(scores)))
            return numpyro.sample("y", emission(through(beside(x, z)), given, index, y is not None), obs=y)

    return model
