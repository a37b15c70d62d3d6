"""Linear maps as functions that emissions take like any other: a GP of no variance."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.features import Functionals, mean_at
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.kernels import Constant
from ppl_dgp.numerics.gaussian import Gaussian


class Affine(SparseGP):
    """f(h) = h W + b, without uncertainty and without inducing points, M = 0.

    :param name: by which layers are told apart.
    :param weights: W.
    :param bias: b.
    """

    def __init__(self, name: str, weights: Float[Array, "Q P"], bias: Float[Array, " P"]) -> None:
        width, outputs = weights.shape
        nothing = jnp.zeros((0, width), weights.dtype), jnp.zeros((0, 0), weights.dtype)
        kernel = Constant(jnp.zeros((), weights.dtype))
        super().__init__(
            name, kernel, *nothing, Linear(weights, bias), jnp.zeros((outputs, 0), weights.dtype)
        )
        object.__setattr__(self, "weights", weights)

    weights: Float[Array, "Q P"]

    def __call__(self, h: Float[Array, "B Q"] | Gaussian | Functionals) -> Marginal:
        """Its values at h; where h is carried as moments those of f(h), each output on its own."""
        at = h.mean if isinstance(h, Gaussian) else h
        mean = mean_at(self.mean, at)
        variance = jnp.zeros_like(mean)
        if isinstance(h, Gaussian) and h.diagonal:
            variance = jnp.square(h.scale) @ jnp.square(self.weights)
        elif isinstance(h, Gaussian):
            variance = jnp.square(jnp.einsum("bij,ip->bpj", h.scale, self.weights)).sum(-1)
        rows = mean.shape[0]
        nothing = jnp.zeros((rows, 0), mean.dtype)
        return Marginal(self, h, nothing, mean, jnp.zeros((rows, 1), mean.dtype), variance)

    def joint(
        self, h: Float[Array, "B Q"] | Functionals
    ) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        """Its values, and no covariance."""
        mean = mean_at(self.mean, h)
        return mean, jnp.zeros((mean.shape[1], mean.shape[0], mean.shape[0]), mean.dtype)
