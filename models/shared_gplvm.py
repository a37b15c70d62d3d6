r"""Several views of the same rows through one latent space: manifold relevance determination (Damianou et al. 2012).

    x_n ~ N(0, I_Q)
    f_p^v ~ GP(0, k^v),   k^v with a lengthscale of its own for each latent dimension,   v = 1 … V
    y_np^v = f_p^v(x_n) + ε^v,   ε^v ~ N(0, s_v²)

Card. For the same things measured in several ways: two cameras, poses and silhouettes, genes and proteins. A dimension
whose lengthscale is short in several views is shared by them, one that only a single view uses is private to it: read
off by ``relevance(fit, "view1")``, drawn by ``plot_views``. One view is guessed from another by leaving its columns
missing. y holds the views side by side. Guides as for ``gplvm``. Sites: ``x``, ``view1/u``, …, ``y``; parameters
``view1/lengthscale``, ``view1/noise``, ….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.emission import JointEmission
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import whole_sequence
from ppl_dgp.models.gplvm import LATENT_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.latents import LATENT_STARTS, latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel


@dataclass(frozen=True, eq=False, repr=False)
class shared_gplvm(ZooModel):
    """V views of one latent space as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param num_outputs: columns of each view, which follow one another in y.
    :param latent: Q dimensions of x, shared and private ones together.
    :param num_inducing: M for each view, at most the number of rows.
    :param inducing: inputs to begin at, a list of (M, Q) for each view.
    :raises ValueError: for fewer than two views, and as :func:`ppl_dgp.models.gplvm`, whose other settings these are.
    """

    num_outputs: Sequence[int]
    latent: int = 5
    num_inducing: int = LATENT_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    start: str = "pca"
    missing: bool = False
    inducing: Sequence[GivenInducing] | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        expected = "the columns of two views or more; of one, take gplvm"
        widths = whole_sequence("num_outputs", self.num_outputs, expected)
        if len(widths) < 2:
            raise ValueError(f"num_outputs: found {widths}, expected {expected}")
        own = {"without": ("num_outputs",), "num_functions": len(widths)}
        self._settle(num_outputs=widths, **checked_settings(self, **own, start=LATENT_STARTS))

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, sum(self.num_outputs))
        scores, lengthscale = where_latents_begin("x", x, y, self.latent, self.start, self.missing)
        views = []
        for view, width in enumerate(self.num_outputs, start=1):
            name = f"view{view}"
            given = None if self.inducing is None else self.inducing[view - 1]
            inducing = inducing_inputs(name, scores, self.num_inducing, given=given)
            k = kernel_parameters(name, self.kernel, self.latent, lengthscale)
            positive = constraints.positive
            variance = numpyro.param(f"{name}/noise", jnp.asarray(0.1), constraint=positive)
            views.append((sparse_gp(name, k, inducing, width, jitter=self.jitter), variance))
        with rows_plate(x, index, size):
            h = standard_normal("x", self.latent, lambda: latents_around(scores))
            joint = JointEmission(*(f(h).noisy(variance) for f, variance in views))
            return numpyro.sample("y", joint.partly_observed() if self.missing else joint, obs=y)
