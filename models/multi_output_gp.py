r"""Several outputs of shared functions: the linear model of coregionalisation (Goovaerts 1997; Álvarez et al. 2012).

    g_q ~ GP(0, k_q),   f(x) = W g(x),   y_np = f_p(x_n) + ε_np,   ε_np ~ N(0, s_p²),   or y_np ~ p(y | f_p(x_n))

Card. For outputs that go together, of which each may be observed at rows of its own: an entry that is missing is NaN,
and what the other outputs say of it is predicted. One kernel for all g is the intrinsic model, ``separate=True`` gives
each its own. Guides: ``Guide(model)``; ``Guide(model, inducing=AcrossOutputs())`` knows that g are correlated by what
they explain together. Sites ``gp/u`` (Q, M), ``y``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float

from ppl_dgp.gp.mixing import mixed
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import checked_flag, frozen_array
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernels_of_outputs
from ppl_dgp.models.lengthscales import where_lengthscales_begin
from ppl_dgp.models.observation import NoiseChoice, Observed, emission, observed_by
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

#: scale of the entries of W that no target says where to begin
SLIGHT_WEIGHT = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class multi_output_gp(ZooModel):
    """P outputs that are mixtures of Q functions: sites ``gp/u``, ``y``; W is the parameter ``gp/weights`` (P, Q).

    :param num_outputs: P.
    :param num_latents: Q.
    :param num_inducing: M of each function, at most the number of rows.
    :param kernel: of the functions, see :mod:`ppl_dgp.models.kernel_values`.
    :param separate: whether each of them has a kernel and inducing inputs of its own.
    :param weights: W (P, Q), held; it is learnt, from the principal components of y, if not given. A prior on it:
        ``numpyro.handlers.lift(model, {"gp/weights": prior})``.
    :param noise: as in :func:`ppl_dgp.models.sparse_gp_regression`, one variance for each output if not given.
    :param likelihood: instead of Gaussian noise, one of single columns or a sequence with one for each; α = 0 then.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param inducing: inputs Z (M, D) to begin at.
    :param train_inducing: whether Z is learnt; it starts at k-means centres of the rows if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, weights of another shape, or targets that it cannot have.
    """

    num_outputs: int = 2
    num_latents: int = 2
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    separate: bool = False
    weights: Float[Array, "P Q"] | Float[np.ndarray, "P Q"] | None = None
    noise: NoiseChoice | None = "per-column"
    likelihood: Observed | None = None
    missing: bool = True
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        if self.likelihood is not None and self.noise == "per-column":
            self._settle(noise=None)
        settings = checked_settings(self, without=("weights",))
        settings["separate"] = checked_flag("separate", self.separate)
        if self.weights is not None:
            shape = self.num_outputs, self.num_latents
            held = frozen_array("weights", self.weights, 2, f"None or a matrix {shape}")
            if held.shape != shape:
                raise ValueError(f"weights: found shape {held.shape}, expected {shape}, outputs and latents")
            settings["weights"] = held
        self._settle(**settings)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, self.num_outputs)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        own = self.num_latents if self.separate else None
        settings = self.num_inducing, self.train_inducing, self.inducing
        inducing = inducing_inputs("gp", x, *settings, outputs=own)
        begin = where_lengthscales_begin(x, y, given)
        kernel = kernels_of_outputs(own, "gp", self.kernel, x.shape[1], begin=begin)
        g = sparse_gp("gp", kernel, inducing, self.num_latents, jitter=self.jitter)
        if self.weights is None:
            weights: Array = numpyro.param("gp/weights", lambda key: self.first_weights(key, y))
        else:
            weights = jnp.asarray(self.weights)
        with rows_plate(x, index, size):
            f = mixed(g(x), weights)
            return numpyro.sample("y", emission(f, given, index, y is not None, self.missing), obs=y)

    def first_weights(self, key: Array, y: Float[Array, "N P"] | None) -> Float[Array, "P Q"]:
        """Where W begins: principal directions of y, under Gaussian noise."""
        seen = None if self.likelihood is not None else y
        return principal_weights(key, seen, self.num_outputs, self.num_latents)


def principal_weights(
    key: Array, y: Float[Array, "N P"] | None, num_outputs: int, num_latents: int
) -> Float[Array, "P Q"]:
    """Principal directions of y by the covariances of entries that were seen together, times their deviations.

    Further columns, or all where there is no y, are small random numbers.
    """
    slight = SLIGHT_WEIGHT * jax.random.normal(key, (num_outputs, num_latents))
    if y is None:
        return slight
    seen = ~jnp.isnan(y)
    centre = jnp.where(seen, y, 0.0).sum(0) / jnp.maximum(seen.sum(0), 1)
    left = jnp.where(seen, y - centre, 0.0)
    together = seen.astype(left.dtype).T @ seen
    covariance = left.T @ left / jnp.maximum(together, 1.0)
    values, vectors = jnp.linalg.eigh(covariance)
    strongest = (vectors * jnp.sqrt(jnp.maximum(values, 0.0)))[:, ::-1][:, :num_latents]
    return slight.at[:, : strongest.shape[1]].add(strongest)
