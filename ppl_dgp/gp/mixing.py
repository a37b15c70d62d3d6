r"""Outputs that are mixtures of shared functions: the linear model of coregionalisation (tutorial, eqs. (24), (25)).

.. math::
    f(x) = W g(x), \quad g_q \text{ independent}; \quad
    \operatorname{cov}(f_p, f_{p'} \mid u) = \sum_q W_{pq} W_{p'q} D_q

Given u the outputs of a row are correlated, by what u leaves of g (:mod:`ppl_dgp.gp.correlated`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.correlated import CorrelatedMarginal
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.sums import FunctionSum, ScaledMarginal


def mixed(marginal: Marginal, weights: Float[Array, "P Q"]) -> MixedMarginal:
    """f = W g of each row, g(x) the marginal of Q functions that are independent given u.

    To be observed, by noise or by a likelihood of each column, which may lack entries, and as a hidden layer under
    ``DoublyStochastic()``. Latent functions may add up, ``mixed(g(x) + h(z), W)``.

    :param marginal: of g, as ``sparse_gp`` functions and their sums have it.
    :param weights: W; one of Q = 1 columns is the intrinsic model of coregionalisation of rank 1.
    :raises ValueError: if W has another number of columns than there are functions.
    """
    if jnp.ndim(weights) != 2 or jnp.shape(weights)[1] != marginal.mean.shape[1]:
        raise ValueError(
            f"weights: found shape {jnp.shape(weights)}, expected (P, {marginal.mean.shape[1]}), a column for each "
            "function that is mixed"
        )
    squares = jnp.square(weights).T
    rows = marginal.mean.shape
    residual = jnp.broadcast_to(marginal.residual, rows) @ squares
    function: Any = FunctionSum(list(marginal.functions))
    return MixedMarginal(
        function,
        marginal.inputs,
        jnp.zeros((rows[0], 0), marginal.mean.dtype),
        marginal.mean @ weights.T,
        residual,
        marginal.from_u @ squares,
        marginal,
        weights,
    )


@dataclass(frozen=True, eq=False)
class MixedMarginal(CorrelatedMarginal):
    """Marginals of f = W g. Mean and variances are those of each output; what correlates them is in ``latents``."""

    made_by = "mixed"
    remedy = "mix sums and multiples, mixed(g(x) + h(z), W), and let an offset be the functions' mean"

    latents: Marginal
    mixing: Float[Array, "P Q"]

    @property
    def terms(self) -> tuple[ScaledMarginal, ...]:
        """Those of g."""
        return self.latents.terms

    def covariance(self, of_latents: Float[Array, "B #Q"]) -> Float[Array, "B P P"]:
        """W diag(v) Wᵀ of each row, for variances v of g."""
        spread = jnp.broadcast_to(of_latents, self.latents.mean.shape)
        return jnp.einsum("pq,bq,rq->bpr", self.mixing, spread, self.mixing)

    def given_u(self) -> Float[Array, "B P P"]:
        return self.covariance(self.latents.residual)

    def through_u(self) -> Float[Array, "B P P"]:
        return self.covariance(self.latents.from_u)

    def rows_drawn(self, key: Array, sample_shape: tuple[int, ...]) -> Float[Array, "*S B P"]:
        latents = self.latents
        noise = jax.random.normal(key, sample_shape + latents.mean.shape, latents.mean.dtype)
        return (latents.mean + jnp.sqrt(latents.variance) * noise) @ self.mixing.T

    def joint(self) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        _, covariance = self.latents.joint()
        return self.mean, jnp.einsum("pq,qbc->pbc", jnp.square(self.mixing), covariance)

    def draw(self, key: Array) -> Float[Array, "B P"]:
        return self.latents.draw(key) @ self.mixing.T

    def slope(self, num_inputs: int) -> Float[Array, "B P D"]:
        return jnp.einsum("pq,bqd->bpd", self.mixing, self.latents.slope(num_inputs))
