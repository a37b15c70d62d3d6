"""Kernels that no distance enters: linear functions, a random offset, independent noise."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.kernels.kernel import (
    ActiveDims,
    Kernel,
    Lengthscale,
    Scalar,
    checked,
    checked_dims,
    checked_variance,
    constant_diag,
    pair,
    select,
)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Linear(Kernel):
    r"""Homogeneous linear kernel :math:`\sum_d \sigma_d^2 x_d z_d`; add a ``Constant`` for a bias.

    variance: σ², scalar or one for each active dimension. active_dims: columns used.
    """

    variance: Lengthscale = field(metadata={"per_dimension": True})
    active_dims: ActiveDims = field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "active_dims", checked_dims(self.active_dims))

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = pair(select(x, self.active_dims), select(z, self.active_dims))
        return jnp.matmul(x * self._variances(x.shape[1]), z.T, precision="highest")

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        x = select(x, self.active_dims)
        return jnp.sum(self._variances(x.shape[1]) * x**2, axis=1)

    def _variances(self, dims: int) -> Lengthscale:
        return checked("variance", self.variance, (dims,), zero_allowed=True)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Constant(Kernel):
    r"""The same covariance :math:`\sigma^2` everywhere: a random offset."""

    variance: Scalar

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = pair(select(x, None), select(z, None))
        variance = checked_variance(self.variance)
        return variance * jnp.ones((x.shape[0], z.shape[0]), x.dtype)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return constant_diag(self.variance, select(x, None))


@register_dataclass
@dataclass(frozen=True, eq=False)
class White(Kernel):
    r"""Independent noise: :math:`\sigma^2` where the rows x_n and z_m are equal, else 0."""

    variance: Scalar

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        x, z = pair(select(x, None), select(z, None))
        equal = jnp.all(x[:, None, :] == z[None, :, :], axis=-1)
        return checked_variance(self.variance) * equal.astype(x.dtype)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return constant_diag(self.variance, select(x, None))
