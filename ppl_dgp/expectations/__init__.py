r"""Expectations of kernels under Gaussian inputs, :math:`\langle\cdot\rangle` over h_n ~ N(mean_n, V_n).

Closed form for ``RBF`` (ARD), ``Linear``, ``Constant``, ``White``, their sums, and those of their products with at most
one ``Linear`` factor. Every other kernel goes through one sum over nodes: Gauss-Hermite quadrature for D ≤ 2, and for
more dimensions the third-degree cubature rule, a rough approximation (see ``nodes``). ``psi0`` is exact at any D for
every kernel of the package but products of several ``Linear``. h has a density, so it equals no z: ``White`` counts in
``psi0`` only, and V = 0 gives the kernel without it.

Inputs are ``Gaussian(mean, scale)``: mean (B, D), scale (B, D) standard deviations or (B, D, D) lower Cholesky factors
of V_n, in units of the inputs; z (M, D) are inducing inputs. All functions raise TypeError where ``inputs`` is no
``Gaussian`` and ValueError where shapes do not fit each other or the kernel. Sources: Titsias & Lawrence (2010);
Girard et al. (2003); Bui (2017), section 3.4; Chamberlin (2016), section 2.5.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.expectations.closed import Closed
from ppl_dgp.expectations.nodes import CubatureExpectations, cubature, diagonal, quadrature
from ppl_dgp.expectations.pairs import PairStatistics, contracted_pairs, summed_pairs
from ppl_dgp.expectations.spread import spread, spread_of_pairs
from ppl_dgp.expectations.terms import terms_of, without_white
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import weighted_grams

__all__ = [
    "input_input_kernel",
    "input_kernel",
    "is_rough",
    "kernel_covariance_quadratic",
    "kernel_covariance_sum",
    "kernel_kernel_input",
    "psi0",
    "psi1",
    "psi2",
    "psi2_between",
    "psi2_quadratic",
    "psi2_sum",
    "psi4",
]


def psi0(kernel: Kernel, inputs: Gaussian) -> Float[Array, " B"]:
    r""":math:`\langle k(h, h)\rangle`, (B,), in squared units of the function."""
    dims = _checked_inputs(inputs).mean.shape[1]
    # where the terms are known the diagonal is quadratic, for which the cubature rule is exact
    closed = terms_of(kernel, dims, inputs.mean.dtype) is not None
    return diagonal(kernel, inputs, cubature(dims) if closed else quadrature(dims))


def psi1(kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M"]:
    r""":math:`\langle k(h, z_m)\rangle`, (B, M)."""
    return _expectations_at(kernel, inputs, z).psi1(inputs, z)


def psi2(kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M"]:
    r""":math:`\langle k(h, z_m)\,k(h, z_{m'})\rangle` of each datum, (B, M, M): for few rows, else ``psi2_sum``."""
    return _expectations_at(kernel, inputs, z).psi2(inputs, z)


def psi2_between(
    kernel: Kernel,
    other: Kernel,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    z_other: Float[Array, "K D"],
) -> Float[Array, "B M K"]:
    r""":math:`\langle k(h, z_m)\,k'(h, z'_k)\rangle` of each datum, two kernels at inducing inputs of their own.

    :raises ValueError: also if one of the kernels has a closed form and the other has none.
    """
    one, second = _expectations_at(kernel, inputs, z), _expectations_at(other, inputs, z_other)
    if isinstance(one, Closed) and isinstance(second, Closed):
        return one.psi2_between(second, inputs, z, z_other)
    if isinstance(one, CubatureExpectations) and isinstance(second, CubatureExpectations):
        return one.psi2_between(second, inputs, z, z_other)
    raise ValueError(
        f"other: found {type(other).__name__} beside {type(kernel).__name__}, expected two kernels with a closed form, "
        "or two without; take kernels of one kind"
    )


def psi2_sum(
    kernel: Kernel,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    weights: Float[Array, " B"] | Float[Array, "B C"] | None = None,
    block: int | None = None,
) -> Float[Array, "*C M M"]:
    r""":math:`\sum_n w_n \langle k(h_n, z_m)\,k(h_n, z_{m'})\rangle`, (M, M), in O(B M² D) time.

    A block of rows at a time, again in the gradient: memory is O(block M² + M² + B D).

    :param weights: w, (B,); 1 if not given. C columns of them, (B, C), give C sums, (C, M, M), at little more cost.
    :param block: rows at a time; by default as many as make 2¹⁸ numbers.
    :raises ValueError: also if ``weights`` are not one for each row, or ``block`` is not positive.
    """
    method = _expectations_at(kernel, inputs, z)
    weights = _checked_weights(inputs, weights)
    return summed_pairs(
        _second_moments(method, inputs, z), inputs, weights, len(z), method.row_size(len(z)), block
    )


def kernel_covariance_sum(
    kernel: Kernel,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    weights: Float[Array, " B"] | Float[Array, "B C"] | None = None,
    block: int | None = None,
) -> Float[Array, "*C M M"]:
    r""":math:`\sum_n w_n \operatorname{Cov}[k(h_n, z_m), k(h_n, z_{m'})]`, (M, M): ψ2 less what ψ1 has of it.

    Of one ``RBF`` nothing is subtracted, so that narrow inputs cost no digits; of other kernels it is the difference.

    :param weights: as in ``psi2_sum``.
    :param block: likewise.
    :raises ValueError: as ``psi2_sum``.
    """
    method = _expectations_at(kernel, inputs, z)
    weights = _checked_weights(inputs, weights)
    if not isinstance(method, Closed) or not method.is_rbf:
        known = weighted_grams(method.psi1(inputs, z), weights if weights.ndim == 2 else weights[:, None])
        known = known if weights.ndim == 2 else known[0]
        return psi2_sum(kernel, inputs, z, weights, block) - known
    return summed_pairs(
        _covariances(method, inputs, z), inputs, weights, len(z), method.row_size(len(z)), block
    )


def psi2_quadratic(
    kernel: Kernel,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    matrices: Float[Array, "P M M"],
    block: int | None = None,
) -> Float[Array, "B P"]:
    r""":math:`\operatorname{tr}(B_p \langle k k^\top\rangle_n)`, (B, P), k = k(Z, h), in O(B M² (D + P)) time.

    :param matrices: B_p, (P, M, M), of which the symmetric part counts.
    :param block: rows at a time, as in ``psi2_sum``.
    :raises ValueError: also if ``matrices`` are not (P, M, M), or ``block`` is not positive.
    """
    method = _expectations_at(kernel, inputs, z)
    _check_matrices(matrices, z)
    return contracted_pairs(
        _second_moments(method, inputs, z), inputs, matrices, method.row_size(len(z)), block
    )


def kernel_covariance_quadratic(
    kernel: Kernel,
    inputs: Gaussian,
    z: Float[Array, "M D"],
    matrices: Float[Array, "P M M"],
    block: int | None = None,
) -> Float[Array, "B P"]:
    r""":math:`\operatorname{tr}(B_p \operatorname{Cov}[k(Z, h_n)])`, (B, P): ``psi2_quadratic`` less what ψ1 has of it.

    Of one ``RBF`` nothing is subtracted, see ``kernel_covariance_sum``.

    :param matrices: B_p, (P, M, M), of which the symmetric part counts.
    :param block: rows at a time, as in ``psi2_sum``.
    :raises ValueError: as ``psi2_quadratic``.
    """
    method = _expectations_at(kernel, inputs, z)
    _check_matrices(matrices, z)
    if not isinstance(method, Closed) or not method.is_rbf:
        mean = method.psi1(inputs, z)
        known = jnp.einsum("bm,pmn,bn->bp", mean, matrices, mean, precision="highest")
        return psi2_quadratic(kernel, inputs, z, matrices, block) - known
    return contracted_pairs(_covariances(method, inputs, z), inputs, matrices, method.row_size(len(z)), block)


def input_kernel(kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D"]:
    r""":math:`\langle h\,k(h, z_m)\rangle`, (B, M, D)."""
    return _expectations_at(kernel, inputs, z).input_kernel(inputs, z)


def input_input_kernel(kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M D D"]:
    r""":math:`\langle h h^\top k(h, z_m)\rangle`, (B, M, D, D)."""
    return _expectations_at(kernel, inputs, z).input_input_kernel(inputs, z)


def kernel_kernel_input(kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"]) -> Float[Array, "B M M D"]:
    r""":math:`\langle k(h, z_m)\,k(h, z_{m'})\,h\rangle` of each datum, (B, M, M, D): for few rows."""
    return _expectations_at(kernel, inputs, z).kernel_kernel_input(inputs, z)


def psi4(
    kernel: Kernel, inputs: Gaussian, z: Float[Array, "M D"], linear: Float[Array, "*BP D"]
) -> Float[Array, "B *P M"]:
    r""":math:`\langle w^\top h\,k(h, z_m)\rangle`: w times ``input_kernel``, nothing subtracted.

    For one ``RBF`` it is ψ1 wᵀ(mean + V(V + Λ)⁻¹(z_m − mean)), docs/design.md, 4, "Moment matching with a linear mean".

    :param linear: w (D,), one for each output (P, D), or one for each datum and output (B, P, D).
    :returns: (B, M) for w (D,), else (B, P, M).
    :raises ValueError: also if ``linear`` has none of these shapes.
    """
    rows, dims = _checked_inputs(inputs).mean.shape
    fits = linear.ndim in (1, 2) or (linear.ndim == 3 and linear.shape[0] == rows)
    if not fits or linear.shape[-1] != dims:
        raise ValueError(
            f"linear: found shape {linear.shape}, expected ({dims},), (P, {dims}) or ({rows}, P, {dims}), "
            "weights of the inputs"
        )
    products = jnp.swapaxes(input_kernel(kernel, inputs, z), -1, -2)
    return jnp.matmul(linear, products, precision="highest")


def is_rough(kernel: Kernel, dims: int) -> bool:
    """Whether the statistics of k(h, z) over D inputs are the cubature rule's: no closed form, and D > 2."""
    return dims > 2 and isinstance(
        _expectations_of(kernel, dims, jnp.result_type(float)), CubatureExpectations
    )


def _second_moments(method: Closed | CubatureExpectations, inputs: Gaussian, z: Array) -> PairStatistics:
    if isinstance(method, Closed) and method.has_pairs(inputs):
        return lambda part: method.pairs(part, z), True
    return lambda part: method.psi2(part, z), False


def _covariances(method: Closed, inputs: Gaussian, z: Array) -> PairStatistics:
    """Those of one RBF."""
    (term,) = method.terms
    if method.has_pairs(inputs):
        return lambda part: spread_of_pairs(term, part, z), True
    return lambda part: spread(term, part, z), False


def _checked_weights(inputs: Gaussian, weights: Array | None) -> Array:
    rows = inputs.mean.shape[0]
    if weights is None:
        return jnp.ones(rows, inputs.mean.dtype)
    if weights.ndim not in (1, 2) or weights.shape[0] != rows:
        raise ValueError(
            f"weights: found shape {weights.shape}, expected ({rows},) or ({rows}, C), one for each row of inputs"
        )
    return weights


def _check_matrices(matrices: Array, z: Array) -> None:
    size = z.shape[0]
    if matrices.ndim != 3 or matrices.shape[1:] != (size, size):
        raise ValueError(
            f"matrices: found shape {matrices.shape}, expected (P, {size}, {size}), one for each of P outputs"
        )


def _expectations_at(kernel: Kernel, inputs: Gaussian, z: Array) -> Closed | CubatureExpectations:
    """What computes the statistics of k(h, z): closed form where the kernel has one."""
    dims = _checked_inputs(inputs).mean.shape[1]
    if z.ndim != 2 or z.shape[1] != dims:
        raise ValueError(f"z: found shape {z.shape}, expected (M, {dims}), points of the space of inputs")
    return _expectations_of(kernel, dims, inputs.mean.dtype)


def _expectations_of(kernel: Kernel, dims: int, dtype: Any) -> Closed | CubatureExpectations:
    terms = terms_of(kernel, dims, dtype)
    if terms is not None:
        return Closed(terms)
    rest = without_white(kernel)
    return Closed(()) if rest is None else CubatureExpectations(rest, dims)


def _checked_inputs(inputs: Gaussian) -> Gaussian:
    if not isinstance(inputs, Gaussian):
        raise TypeError(
            f"inputs: found {type(inputs).__name__}, expected Gaussian(mean, scale); scale 0 makes points of it"
        )
    mean, scale = inputs.mean, inputs.scale
    if mean.ndim != 2 or scale.shape not in (mean.shape, (*mean.shape, mean.shape[-1])):
        raise ValueError(
            f"inputs: found a mean of shape {mean.shape} and a scale of shape {scale.shape}, expected (B, D) and "
            "(B, D) standard deviations or (B, D, D) lower Cholesky factors"
        )
    if inputs.factor is not None:
        raise ValueError(
            "inputs: found a factor, expected none; give scale the lower Cholesky factors of the whole covariance"
        )
    return inputs
