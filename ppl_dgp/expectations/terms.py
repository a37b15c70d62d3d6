r"""Kernels as sums of terms whose expectations under a Gaussian are closed:

.. math:: c \, \exp\big(-\tfrac12 (h - z)^\top P (h - z)\big) \, (h^\top \Lambda z)^{0 \text{ or } 1}

with diagonal P and Λ, zero where a dimension is not active. Terms with one centre z multiply into such a term.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ppl_dgp.kernels import RBF, Constant, Kernel, Linear, Product, Sum, White


class Term(NamedTuple):
    """c, the diagonal of P, and the diagonal of Λ, or None without the linear factor."""

    variance: Float[Array, ""]
    precision: Float[Array, " D"]
    slope: Float[Array, " D"] | None


def terms_of(kernel: Kernel, dims: int, dtype: DTypeLike) -> tuple[Term, ...] | None:
    """The terms of k(h, z) for h with a density in ``dims`` dimensions, or None where k is no such sum.

    Known are ``RBF``, ``Linear``, ``Constant``, ``White`` (no term: h equals no z), their sums, and those of their
    products with at most one ``Linear`` factor. Raises ValueError as a call of the kernel does.
    """
    units, zeros = jnp.eye(dims, dtype=dtype), jnp.zeros(dims, dtype)
    match kernel:
        case White():
            return ()
        case Constant():
            return (Term(kernel.diag(units)[0], zeros, None),)
        case RBF():
            # the squared length of each unit vector, in lengthscales: 1/ℓ², or 0 where not active
            return (Term(kernel.diag(units)[0], jnp.sum(kernel.scale(units) ** 2, axis=1), None),)
        case Linear():
            return (Term(jnp.ones((), dtype), zeros, kernel.diag(units)),)
        case Sum(left, right) | Product(left, right):
            first, second = terms_of(left, dims, dtype), terms_of(right, dims, dtype)
            if first is None or second is None:
                return None
            if isinstance(kernel, Sum):
                return first + second
            products = [_product(a, b) for a in first for b in second]
            factors = tuple(term for term in products if term is not None)
            return factors if len(factors) == len(products) else None
    return None


def _product(a: Term, b: Term) -> Term | None:
    if a.slope is not None and b.slope is not None:
        return None
    slope = b.slope if a.slope is None else a.slope
    return Term(a.variance * b.variance, a.precision + b.precision, slope)


def without_white(kernel: Kernel) -> Kernel | None:
    """k(h, z) for h with a density, which equals no z: the kernel less its ``White`` parts, None if that is 0."""
    if isinstance(kernel, White):
        return None
    if not isinstance(kernel, Sum | Product):
        return kernel
    left, right = without_white(kernel.left), without_white(kernel.right)
    if left is None or right is None:
        return (right if left is None else left) if isinstance(kernel, Sum) else None
    return type(kernel)(left, right)
