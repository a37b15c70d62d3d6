r"""Functions of finite rank, linear in Gaussian weights, as sparse GPs whose inducing outputs are the weights.

.. math::
    f_p(x) = m_p(x) + \sum_m \phi_m(x)\, v_{pm}, \quad v_{pm} \sim N(0, 1), \quad k(x, z) = \phi(x)^\top \phi(z)

(Rasmussen & Williams 2006, 2.1). With u = v, Kuu is I and k_u(x) = φ(x), so that u says all that f is and bounds are
those of a linear model. Every rule for q(u) is one for the weights; u as moments, so that f has a Gaussian at each row,
is local reparameterisation (Kingma, Salimans & Welling 2015).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.features import InducingFeatures
from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.kernels import Kernel
from ppl_dgp.kernels.kernel import pair
from ppl_dgp.numerics.structured_root import LowRankRoot


class WeightSpace(Kernel):
    """A kernel φ(x)ᵀφ(z) of finite rank. A subclass gives ``basis``; scales of the weights' priors are in φ."""

    @abstractmethod
    def basis(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """φ of rows, in units of the function."""

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "K D"]) -> Float[Array, "N K"]:
        pair(x, z)
        return self.basis(x) @ self.basis(z).T

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.square(self.basis(x)).sum(1)


@register_dataclass
@dataclass(frozen=True, eq=False)
class FunctionWeights(InducingFeatures):
    """The M weights v of a function of D inputs whose kernel is a :class:`WeightSpace`, as inducing outputs."""

    num_weights: int = field(metadata={"static": True})
    num_inputs: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_weights, self.num_inputs

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        if not isinstance(kernel, WeightSpace):
            raise TypeError(
                f"kernel: found {type(kernel).__name__} with FunctionWeights, expected a WeightSpace, the kernel whose "
                "weights they are; take weight_space_gp(name, kernel, …)"
            )
        return kernel.basis(x)

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        """The identity."""
        return jnp.eye(self.num_weights)

    def root(self, kernel: Kernel) -> LowRankRoot:
        """That of the identity."""
        ones = jnp.ones(self.num_weights)
        return LowRankRoot.of(ones, ones[:, None][:, :0])

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """0: the weights are of what f adds to its mean."""
        return jnp.zeros((self.num_weights, mean(jnp.zeros((1, self.num_inputs))).shape[1]))


def weight_space_gp(
    name: str,
    kernel: WeightSpace,
    num_inputs: int,
    num_outputs: int = 1,
    *,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
    start: Callable[[], Float[Array, "P M"]] | None = None,
    begin_at: Callable[[], tuple[Array, Array, float]] | None = None,
) -> SparseGP:
    """Sample the M weights of a function of finite rank, the site ``name/u`` (P, M), and return the function.

    It is a ``sparse_gp`` whose residual is 0.

    :param num_inputs: D.
    :param start: gives where guides start the mean of q(u), (P, M).
    :param num_outputs, mean, reused, initial_scale, begin_at: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises TypeError: for a kernel of another kind.
    """
    if not isinstance(kernel, WeightSpace):
        raise TypeError(
            f"kernel: found {type(kernel).__name__}, expected a WeightSpace, which has weights; take sparse_gp"
        )
    weights = FunctionWeights(kernel.basis(jnp.zeros((1, num_inputs))).shape[1], num_inputs)
    return sparse_gp(
        name,
        kernel,
        weights,
        num_outputs,
        mean=mean,
        reused=reused,
        initial_scale=initial_scale,
        start=start,
        begin_at=begin_at,
        jitter=0.0,
    )
