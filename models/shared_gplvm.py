r"""Several views of the same rows through one latent space: manifold relevance determination (Damianou et al. 2012).

    x_n ~ N(0, I_Q)
    f_p^v ~ GP(0, k^v),   k^v with a lengthscale of its own for each latent dimension,   v = 1 … V
    y_np^v = f_p^v(x_n) + ε^v,   ε^v ~ N(0, s_v²)

Card. For the same things measured in several ways: two cameras, poses and silhouettes, genes and proteins. A dimension
whose lengthscale is short in several views is shared by them, one that only a single view uses is private to it: read
off by ``relevance(params, "view1")``, drawn by ``plot_views``. One view is guessed from another by leaving its columns
missing. y holds the views side by side. Guides as for ``gplvm``. Sites: ``x``, ``view1/u``, …, ``y``; parameters
``view1/lengthscale``, ``view1/noise``, ….
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.emission import JointEmission
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.gplvm import checked_latent
from ppl_dgp.models.latents import latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters


def shared_gplvm(
    num_outputs: Sequence[int],
    latent: int = 5,
    num_inducing: int = 50,
    *,
    kernel: Callable[..., Kernel] | Composed = RBF,
    start: str = "pca",
    missing: bool = False,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """V views of one latent space as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param num_outputs: columns of each view, which follow one another in y.
    :param latent: Q dimensions of x, shared and private ones together.
    :param num_inducing: M for each view, at most the number of rows.
    :raises ValueError: for fewer than two views, and as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """
    widths = tuple(num_outputs)
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(
            f"num_outputs: found {widths}, expected the columns of two views or more; of one, take gplvm"
        )
    checked_latent(latent)
    positive = constraints.softplus_positive

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, sum(widths))
        scores, lengthscale = where_latents_begin("x", x, y, latent, start, missing)
        views = []
        for view, width in enumerate(widths, start=1):
            name = f"view{view}"
            inducing = inducing_inputs(name, scores, num_inducing)
            k = kernel_parameters(name, kernel, latent, lengthscale)
            variance = numpyro.param(f"{name}/noise", jnp.asarray(0.1), constraint=positive)
            views.append((sparse_gp(name, k, inducing, width, jitter=jitter), variance))
        with data_plate(size or x.shape[0], index):
            h = standard_normal("x", latent, lambda: latents_around(scores))
            together = JointEmission(*(f(h).noisy(variance) for f, variance in views))
            return numpyro.sample("y", together.partly_observed() if missing else together, obs=y)

    return model
