r"""The exact GP of training rows, f integrated out: the density of their targets, and f at new rows given them.

.. math::
    E[f_*] = m, \quad m = K_{*x} (K + S)^{-1} y, \quad \operatorname{Cov}[f_*] = K_{**} - K_{*x} (K + S)^{-1} K_{x*}

(Rasmussen & Williams 2006, eq. 2.23 to 2.24). Shapes: N rows, B new ones, D inputs, P columns.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.dense_normal import DenseNormal


class ExactGP(DenseNormal):
    """P columns of targets, each N(0, K + S): batch (), event (P, N), the columns independent given the kernel.

    :param kernel: k.
    :param rows: x.
    :param noise: S's diagonal.
    :param num_columns: P.
    """

    def __init__(
        self, kernel: Kernel, rows: Float[Array, "N D"], noise: Float[Array, " N"], num_columns: int
    ) -> None:
        self.kernel, self.rows, self.noise = kernel, rows, noise
        super().__init__(kernel(rows, rows) + jnp.diag(noise), num_columns)

    def predictive(
        self, y: Float[Array, "N P"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "B P"], Float[Array, " B"]]:
        """Mean of f at new rows given the targets, and its variance, the same for all columns."""
        mean, whitened = self._whitened(y, x)
        # rounding alone can take it below 0
        return mean, jnp.maximum(self.kernel.diag(x) - jnp.square(whitened).sum(0), 0.0)

    def joint_predictive(
        self, y: Float[Array, "N P"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "B P"], Float[Array, "B B"]]:
        """Mean and covariance of f over new rows given the targets."""
        mean, whitened = self._whitened(y, x)
        return mean, self.kernel(x, x) - whitened.T @ whitened

    def _whitened(
        self, y: Float[Array, "N P"], x: Float[Array, "B D"]
    ) -> tuple[Float[Array, "B P"], Float[Array, "N B"]]:
        """The mean, and L⁻¹ K(x, new)."""
        cross = self.kernel(self.rows, x)
        return cross.T @ cho_solve((self.lower, True), y), solve_triangular(self.lower, cross, lower=True)
