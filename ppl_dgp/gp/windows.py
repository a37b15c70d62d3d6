r"""Gaussian windows: multi-scale inducing features (Walder, Kim & Schölkopf 2008; Lázaro-Gredilla &
Figueiras-Vidal 2009).

.. math::
    u_m = \int f(x)\, N(x \mid z_m, \operatorname{diag} c_m^2)\, dx

of the RBF kernel, whose averages are Gaussians again: with s² = ℓ² + c_m² in the place of ℓ² for k_u(x)_m, and
ℓ² + c_m² + c_n² for (Kuu)_mn, each times ∏ ℓ/s. Inputs that are uncertain widen them further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.features import InducingFeatures
from ppl_dgp.gp.means import Mean, affine
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.numerics.gaussian import Gaussian

if TYPE_CHECKING:
    Rows: TypeAlias = Float[Array, "M D"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: calls check the shapes
    Rows = Any


@register_dataclass
@dataclass(frozen=True, eq=False)
class GaussianWindows(InducingFeatures):
    """Averages of f under Gaussians of ``centres`` (M, D) and ``widths`` (M, D), deviations of at least 0.

    With widths of 0 they are inducing points. Either may be learnt. For an ``RBF`` of all inputs, a constant or linear
    mean; uncertain inputs have to be independent, of diagonal covariance.

    :raises ValueError: if the two have different shapes.
    """

    centres: Rows
    widths: Rows

    def __post_init__(self) -> None:
        if hasattr(self.centres, "shape") and jnp.shape(self.widths) != jnp.shape(self.centres):
            raise ValueError(
                f"widths: found shape {jnp.shape(self.widths)}, expected {jnp.shape(self.centres)}, a deviation of "
                "each window in every input"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.centres.shape  # type: ignore[return-value]

    @property
    def places(self) -> Float[Array, "M D"]:
        return self.centres

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self._averaged(kernel, x, jnp.zeros_like(x))

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        return self._averaged(kernel, self.centres, jnp.square(self.widths))

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """Of a linear mean, its value at the centres.

        :raises TypeError: for a mean of another kind.
        """
        affine(mean, self.shape[1])
        return mean(self.centres)

    def expected_cross(self, kernel: Kernel, inputs: Gaussian) -> Float[Array, "B M"]:
        """⟨k_u(h)⟩ of each datum."""
        return self._averaged(kernel, inputs.mean, _variances(inputs))

    def expected_products(self, kernel: Kernel, inputs: Gaussian) -> Float[Array, "B M M"]:
        """⟨k_u(h)_m k_u(h)_n⟩ of each datum: the product of two Gaussians is one, of whose mean h sees the average."""
        lengthscale2, variance = self._of(kernel)
        spread = _variances(inputs)
        log_total: Any = 0.0
        for d in range(self.shape[1]):
            each = lengthscale2[d] + jnp.square(self.widths[:, d])
            first, second = each[:, None], each[None, :]
            z, other = self.centres[:, d, None], self.centres[None, :, d]
            between = first + second
            centre, width2 = (second * z + first * other) / between, first * second / between
            seen = width2 + spread[:, d, None, None]
            away = jnp.square(z - other) / between + jnp.square(inputs.mean[:, d, None, None] - centre) / seen
            log_total = log_total + jnp.log(lengthscale2[d]) - 0.5 * (jnp.log(between * seen) + away)
        return variance**2 * jnp.exp(log_total)

    def expected_input_cross(self, kernel: Kernel, inputs: Gaussian) -> Float[Array, "B M D"]:
        """⟨k_u(h) hᵀ⟩ of each datum."""
        lengthscale2, _ = self._of(kernel)
        each, spread = lengthscale2 + jnp.square(self.widths), _variances(inputs)[:, None]
        towards = (each * inputs.mean[:, None] + spread * self.centres) / (each + spread)
        return self.expected_cross(kernel, inputs)[:, :, None] * towards

    def _averaged(
        self, kernel: Kernel, x: Float[Array, "N D"], spread: Float[Array, "N D"]
    ) -> Float[Array, "N M"]:
        """Averages of k over windows and over Gaussians of those variances about x."""
        lengthscale2, variance = self._of(kernel)
        return variance * averaged_rbf(lengthscale2, x, spread, self.centres, jnp.square(self.widths))

    def _of(self, kernel: Kernel) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """ℓ² and σ².

        :raises TypeError: for another kernel than an RBF.
        """
        if type(kernel) is not RBF:
            raise TypeError(
                f"kernel: found {type(kernel).__name__}, expected RBF, whose averages under Gaussians are known; take "
                "box_averages, or inducing points"
            )
        if kernel.active_dims is not None:
            raise ValueError(
                f"kernel: found active_dims {kernel.active_dims}, expected a kernel of all inputs of the windows"
            )
        lengthscale = jnp.broadcast_to(jnp.asarray(kernel.lengthscale), (self.shape[1],))
        return jnp.square(lengthscale), jnp.asarray(kernel.variance)


def averaged_rbf(
    lengthscale2: Float[Array, " D"],
    x: Float[Array, "N D"],
    spread: Float[Array, "N D"],
    z: Float[Array, "M D"],
    other: Float[Array, "M D"],
) -> Float[Array, "N M"]:
    """Averages of the RBF kernel of variance 1 over Gaussians about x and about z, of variances ``spread``, ``other``.

    :param lengthscale2: ℓ².
    """
    log_total: Any = 0.0
    for d in range(x.shape[1]):
        added = spread[:, d, None] + other[:, d]
        away = jnp.square(x[:, d, None] - z[:, d]) / (lengthscale2[d] + added)
        log_total = log_total - 0.5 * (jnp.log1p(added / lengthscale2[d]) + away)
    return jnp.exp(log_total)


def _variances(inputs: Gaussian) -> Float[Array, "B D"]:
    if not inputs.diagonal:
        raise ValueError(
            "inputs: found moments with covariances between inputs, expected deviations, which Gaussian windows take; "
            "take propagation='moments' or draws"
        )
    return jnp.square(inputs.scale)
