r"""Kernel expectations of inducing features under uncertain inputs, by those of points.

.. math::
    \langle \mathcal{L}_m k(\cdot, h) \rangle = \mathcal{L}_m \langle k(\cdot, h) \rangle, \quad
    \langle \mathcal{L}_m k(\cdot, h)\, \mathcal{L}_n k(\cdot, h) \rangle =
    \mathcal{L}_m \mathcal{L}'_n \langle k(\cdot, h)\, k(\cdot', h) \rangle

so that slopes and averages have closed forms wherever points have them. Gaussian windows have their own; Fourier
features and eigenfunctions have none here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp import expectations
from ppl_dgp.gp.features import Functionals, InducingFeatures
from ppl_dgp.gp.windows import GaussianWindows
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian


def expected_cross(
    kernel: Kernel, inputs: Gaussian, inducing: Array | InducingFeatures
) -> Float[Array, "B M"]:
    """⟨k_u(h)⟩ of each datum."""
    if isinstance(inducing, GaussianWindows):
        return inducing.expected_cross(kernel, inputs)
    if isinstance(inducing, InducingFeatures):
        return _applicable(inducing).of(lambda z: expectations.psi1(kernel, inputs, z).T).T
    return expectations.psi1(kernel, inputs, inducing)


def covariance_quadratic(
    kernel: Kernel,
    inputs: Gaussian,
    inducing: Array | InducingFeatures,
    matrices: Float[Array, "P M M"],
) -> Float[Array, "B P"]:
    """Σ C_mn Cov[k_u(h)_m, k_u(h)_n] of each datum, for some matrices C; of features in O(B M²) memory.

    Of points and an ``RBF`` without what cancels.
    """
    if not isinstance(inducing, InducingFeatures):
        return expectations.kernel_covariance_quadratic(kernel, inputs, inducing, matrices)
    mean = expected_cross(kernel, inputs, inducing)
    covariance = _expected_products(kernel, inputs, inducing) - mean[:, :, None] * mean[:, None, :]
    return jnp.einsum("bmn,pmn->bp", covariance, matrices, precision="highest")


def _expected_products(kernel: Kernel, inputs: Gaussian, inducing: InducingFeatures) -> Float[Array, "B M M"]:
    """⟨k_u(h)_m k_u(h)_n⟩ of each datum."""
    if isinstance(inducing, GaussianWindows):
        return inducing.expected_products(kernel, inputs)
    functionals = _applicable(inducing)

    def of_first(z: Array) -> Array:
        pairs = lambda other: jnp.moveaxis(expectations.psi2_between(kernel, kernel, inputs, z, other), 2, 0)
        return jnp.moveaxis(functionals.of(pairs), 2, 0)

    # (M, M, B), the functionals of z before those of the other
    return jnp.moveaxis(functionals.of(of_first), 2, 0)


def expected_input_cross(
    kernel: Kernel, inputs: Gaussian, inducing: Array | InducingFeatures
) -> Float[Array, "B M D"]:
    """⟨k_u(h) hᵀ⟩ of each datum."""
    if not isinstance(inducing, InducingFeatures):
        return expectations.input_kernel(kernel, inputs, inducing)
    if isinstance(inducing, GaussianWindows):
        return inducing.expected_input_cross(kernel, inputs)
    products = lambda z: jnp.moveaxis(expectations.input_kernel(kernel, inputs, z), 1, 0)
    return jnp.moveaxis(_applicable(inducing).of(products), 0, 1)


def _applicable(inducing: InducingFeatures) -> Functionals:
    if isinstance(inducing, Functionals):
        return inducing
    raise ValueError(
        f"inducing: found {type(inducing).__name__}, expected points or functionals for moments of uncertain inputs; "
        "take draws of hidden layers, propagation='draws'"
    )
