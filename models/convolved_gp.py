r"""Convolved outputs of shared functions, by Gaussian smoothing (Boyle & Frean 2005; Álvarez & Lawrence 2011).

    g_q ~ GP(0, k_q),   f_p(x) = Σ_q ∫ S_pq N(x − z | δ_pq, diag c_pq²) g_q(z) dz,   y_np = f_p(x_n) + ε_np,
    ε_np ~ N(0, s_p²),   or y_np ~ p(y | f_p(x_n))

Card. For outputs that are the same thing seen more or less sharply, or, ``delayed=True``, later: sensors beside each
other, responses to one force. With widths of 0 it is ``multi_output_gp``, whose outputs are all as rough as g. An entry
that is missing is NaN, and what the other outputs say of it is predicted. Of one function the data know ratios of S,
differences of c² and of δ alone, unless the kernel is held; delays longer than a lengthscale have to begin near where
they are, in a kernel that is given. Guides: ``Guide(model)``; q(u) is in closed form under ``Collapsed``, with
``fit_lbfgs``. Sites ``gp/u`` (1, QM), ``y``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.convolved import convolved
from ppl_dgp.gp.smoothing import Convolved, InducingLatents
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import Kernel
from ppl_dgp.models.checks import checked_flag
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import kernel_parameters
from ppl_dgp.models.multi_output_gp import principal_weights
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

#: where widths begin, in lengthscales
FIRST_WIDTH = 0.3


@dataclass(frozen=True, eq=False, repr=False)
class convolved_gp(ZooModel):
    """P outputs of Q smoothed functions: sites ``gp/u``, ``y``.

    Parameters are S, ``gp/strengths`` (P, Q), from the principal components of y; c, ``gp/widths`` (P, Q, D);
    ``gp/lengthscale`` (Q, D) of g, whose variance is 1; δ, ``gp/delays`` (P, Q, D); Z, ``gp/inducing`` (Q, M, D).

    :param num_outputs: P.
    :param num_latents: Q.
    :param num_inducing: M of each function, at most the number of rows.
    :param kernel: a ``Convolved`` kernel where its values begin, or a function of D that returns one, whose values are
        held; see :mod:`ppl_dgp.models.kernel_values`.
    :param delayed: whether outputs have delays, learnt; not beside a kernel, which says so itself.
    :param noise: as in :func:`ppl_dgp.models.sparse_gp_regression`, one variance for each output if not given.
    :param likelihood: instead of Gaussian noise, one of single columns or a sequence with one for each; α = 0 then.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param inducing: inputs Z (M, D) to begin at, of every function.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the rows if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, a kernel of other outputs, or targets that it cannot have.
    """

    num_outputs: int = 2
    num_latents: int = 1
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: Convolved | Callable[..., Kernel] | None = None
    delayed: bool = False
    noise: NoiseChoice | None = "per-column"
    likelihood: Observed | None = None
    missing: bool = True
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        if self.likelihood is not None and self.noise == "per-column":
            self._settle(noise=None)
        self._settle(**checked_settings(self), delayed=checked_flag("delayed", self.delayed))
        if self.kernel is None:
            return
        if isinstance(self.kernel, Kernel | type) or not callable(self.kernel):
            self._checked(self.kernel)
        if self.delayed:
            raise ValueError("delayed: found True beside a kernel, which has its own delays; leave it out")

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        settings = self.num_inducing, self.train_inducing, self.inducing
        z = inducing_inputs("gp", x, *settings, outputs=self.num_latents)
        f = sparse_gp("gp", self._kernel(x.shape[1], y), InducingLatents(z), jitter=self.jitter)
        with rows_plate(x, index, size):
            return numpyro.sample(
                "y", emission(convolved(f, x), given, index, y is not None, self.missing), obs=y
            )

    def _kernel(self, dims: int, y: Array | None) -> Convolved:
        """The kernel, its values sites."""
        if self.kernel is not None:
            return self._checked(kernel_parameters("gp", self.kernel, dims))
        shape = self.num_outputs, self.num_latents, dims
        seen = None if self.likelihood is not None else y
        strengths = numpyro.param("gp/strengths", lambda key: principal_weights(key, seen, *shape[:2]))
        usual = dims**0.5
        lengthscale = numpyro.param(
            "gp/lengthscale", jnp.full(shape[1:], usual), constraint=constraints.positive
        )
        widths = numpyro.param(
            "gp/widths", jnp.full(shape, FIRST_WIDTH * usual), constraint=constraints.positive
        )
        delays = numpyro.param("gp/delays", jnp.zeros(shape)) if self.delayed else None
        return Convolved(strengths, widths, lengthscale, delays)

    def _checked(self, kernel: Any) -> Convolved:
        """A kernel of as many outputs and functions as the model has; a ValueError for another."""
        wanted = self.num_outputs, self.num_latents
        if not isinstance(kernel, Convolved):
            raise ValueError(
                f"kernel: found {kernel!r}, expected Convolved, or a function that returns such a kernel"
            )
        if jnp.shape(kernel.strengths) != wanted:
            raise ValueError(
                f"kernel: found strengths {jnp.shape(kernel.strengths)}, expected {wanted}, outputs and latents"
            )
        return kernel
