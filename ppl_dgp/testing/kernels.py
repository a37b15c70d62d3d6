"""Checks of a covariance function: what any has to obey, and what the package needs of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.expectations import is_rough, psi0, psi1, psi2
from ppl_dgp.expectations.terms import terms_of
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.testing.oracles import (
    in_32_bits,
    in_64_bits,
    is_pytree,
    mean_and_error,
    slope_and_difference,
)
from ppl_dgp.testing.report import (
    CheckReport,
    CheckRow,
    at_most_row,
    collected,
    equal_row,
    failed_row,
    finite_row,
    skipped_row,
)

NOT_A_PYTREE = "JAX sees no numbers in it: register the class with jax.tree_util.register_dataclass"
#: draws of uncertain inputs
_DRAWS = 20_000


def check_kernel(kernel: Kernel, num_dims: int = 2, only: Collection[str] | None = None) -> CheckReport:
    """Symmetry, positive semidefiniteness, gradients, precision and kernel expectations of a covariance function.

    :param kernel: with its values; numbers far from 1 are fine. Inputs are standard normal, and up to three times as
        wide where eigenvalues are looked at, about −9 to 9: a kernel of less than the real line fails there.
    :param num_dims: D, the columns of the inputs that it is tried on.
    :param only: the names of the checks to make; all if not given.
    :returns: a report; ``print`` it, or call its ``raise_for_failure()``.
    :raises TypeError: if it is no :class:`ppl_dgp.kernels.Kernel`.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"kernel: found {kernel!r}, expected an instance of ppl_dgp.kernels.Kernel; derive your class from it"
        )
    with jax.enable_x64(True):
        kernel = in_64_bits(kernel)
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.normal(size=(7, num_dims)))
        # rows of their own, far enough from those of x for a kink at distance zero not to matter
        z = jnp.asarray(rng.normal(size=(5, num_dims)) + 0.05)
        return collected(
            f"check_kernel({type(kernel).__name__})",
            [
                ("shape and dtype", lambda: _shapes(kernel, x, z)),
                ("symmetric", lambda: _symmetric(kernel, x)),
                ("positive semidefinite", lambda: _semidefinite(kernel, num_dims)),
                ("diag is the diagonal", lambda: _diagonal_rows(kernel, x)),
                ("rows do not know of each other", lambda: _rows_alone(kernel, x, z)),
                ("jit and vmap", lambda: _scaled_kernel(kernel, x, z)),
                ("gradients finite, equal rows too", lambda: _finite_gradients(kernel, x)),
                ("gradient in x and z", lambda: _gradient_in_inputs(kernel, x, z)),
                ("gradient in the parameters", lambda: _gradient_in_parameters(kernel, x, z)),
                ("32 bits near 64", lambda: _single_precision(kernel, x, z)),
                ("psi0 = ⟨k(h,h)⟩ of draws", lambda: _expectation(kernel, z, "psi0 = ⟨k(h,h)⟩ of draws")),
                ("psi1 = ⟨k(h,z)⟩ of draws", lambda: _expectation(kernel, z, "psi1 = ⟨k(h,z)⟩ of draws")),
                (
                    "psi2 = ⟨k(h,z) k(h,z')⟩ of draws",
                    lambda: _expectation(kernel, z, "psi2 = ⟨k(h,z) k(h,z')⟩ of draws"),
                ),
            ],
            only,
        )


def _size(kernel: Kernel, x: Array) -> float:
    """The largest variance, which deviations are measured by."""
    return max(float(jnp.max(jnp.abs(kernel.diag(x)))), float(np.finfo(float).tiny))


def _shapes(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    check = "shape and dtype"
    for dtype in (jnp.float64, jnp.float32):
        cast = in_64_bits(kernel) if dtype == jnp.float64 else in_32_bits(kernel)
        block, diagonal = cast(x.astype(dtype), z.astype(dtype)), cast.diag(x.astype(dtype))
        found = (block.shape, diagonal.shape, str(block.dtype), str(diagonal.dtype))
        expected = ((len(x), len(z)), (len(x),), str(jnp.dtype(dtype)), str(jnp.dtype(dtype)))
        if found != expected:
            return failed_row(check, f"found {found} of k(x, z) and diag(x), expected {expected}")
    return CheckRow(check, 0.0, 0.0, 0.0, True)


def _symmetric(kernel: Kernel, x: Array) -> CheckRow:
    gram = kernel(x, x)
    return equal_row("symmetric", gram, gram.T, 1e-12 * _size(kernel, x))


def _semidefinite(kernel: Kernel, num_dims: int) -> CheckRow:
    """The smallest eigenvalue, in units of the largest variance, over clouds of several widths and a grid."""
    rng, smallest, widest = np.random.default_rng(1), np.inf, 0.0
    clouds = [width * rng.normal(size=(40, num_dims)) for width in (0.3, 1.0, 3.0)]
    clouds.append(np.linspace(-2.0, 2.0, 40)[:, None] * np.ones(num_dims))
    for cloud in clouds:
        x = jnp.asarray(cloud)
        gram = np.asarray(kernel(x, x)) / _size(kernel, x)
        found = float(np.linalg.eigvalsh(0.5 * (gram + gram.T)).min())
        smallest, widest = (found, float(np.abs(cloud).max())) if found < smallest else (smallest, widest)
    # a rounding error of 1e-16 in r² is one of 1e-8 in √r²
    about = f"minus the smallest eigenvalue, of inputs from −{widest:.1f} to {widest:.1f}"
    return at_most_row("positive semidefinite", -smallest, 0.0, 1e-6, about)


def _diagonal_rows(kernel: Kernel, x: Array) -> CheckRow:
    diagonal = jnp.diagonal(kernel(x, x))
    return equal_row("diag is the diagonal", kernel.diag(x), diagonal, 1e-7 * _size(kernel, x))


def _rows_alone(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    """k(x_n, z_m) is a function of these two rows alone."""
    pairs = jnp.stack([jnp.stack([kernel(a[None], b[None])[0, 0] for b in z]) for a in x[:3]])
    return equal_row("rows do not know of each other", kernel(x, z)[:3], pairs, 1e-9 * _size(kernel, x))


def _scaled_kernel(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    batches = jnp.stack([x, 2.0 * x])
    values = jax.jit(jax.vmap(lambda rows: kernel(rows, z)))(batches)
    expected = jnp.stack([kernel(x, z), kernel(2.0 * x, z)])
    return equal_row("jit and vmap", values, expected, 1e-9 * _size(kernel, 2.0 * x))


def _finite_gradients(kernel: Kernel, x: Array) -> CheckRow:
    def total(part: Any, rows: Array) -> Array:
        weights = jnp.cos(jnp.arange(rows.shape[0] ** 2, dtype=rows.dtype)).reshape(-1, rows.shape[0])
        return jnp.sum(weights * part(rows, rows)) + jnp.sum(part.diag(rows))

    rows = jnp.concatenate([x, x])
    slopes = []
    for cast, dtype in ((in_64_bits(kernel), jnp.float64), (in_32_bits(kernel), jnp.float32)):
        slopes.append(jax.jit(jax.grad(lambda r, k=cast: total(k, r)))(rows.astype(dtype)))
        if is_pytree(kernel):
            slopes.append(jax.jit(jax.grad(total))(cast, rows.astype(dtype)))
    return finite_row("gradients finite, equal rows too", slopes, "entries that are not")


def _weights(x: Array, z: Array) -> Float[np.ndarray, "N M"]:
    return np.random.default_rng(2).normal(size=(len(x), len(z)))


def _gradient_in_inputs(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    weights = _weights(x, z)

    def total(rows: tuple[Array, Array]) -> Array:
        return jnp.sum(weights * kernel(*rows)) + jnp.sum(kernel.diag(rows[0]))

    slopes, differences, errors = slope_and_difference(total, (x, z))
    size = _size(kernel, x)
    return equal_row("gradient in x and z", slopes, differences, 1e-5 * size + 5.0 * errors, 1e-5)


def _gradient_in_parameters(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    check = "gradient in the parameters"
    if not is_pytree(kernel):
        return skipped_row(check, NOT_A_PYTREE)
    if not jax.tree.leaves(kernel):
        return skipped_row(check, "it has no parameters")
    weights = _weights(x, z)
    slopes, differences, errors = slope_and_difference(
        lambda part: jnp.sum(weights * part(x, z)) + jnp.sum(part.diag(x)), kernel, 1e-6
    )
    return equal_row(check, slopes, differences, 1e-5 * _size(kernel, x) + 5.0 * errors, 1e-5)


def _single_precision(kernel: Kernel, x: Array, z: Array) -> CheckRow:
    rows, others = x.astype(jnp.float32), z.astype(jnp.float32)
    single = in_32_bits(kernel)
    # of the same inputs, which 32 bits hold
    expected = kernel(rows.astype(jnp.float64), others.astype(jnp.float64))
    return equal_row("32 bits near 64", single(rows, others), expected, 1e-4 * _size(kernel, x))


def _expectation(kernel: Kernel, z: Array, check: str) -> CheckRow:
    """Kernel expectations that the package has of this kernel, against draws of h ~ N(mean, V)."""
    dims = z.shape[1]
    if is_rough(kernel, dims) and not check.startswith("psi0"):
        return skipped_row(check, f"{dims} dimensions have a rough cubature rule; take num_dims=2")
    rng = np.random.default_rng(3)
    mean, factor = rng.normal(size=(3, dims)), 0.1 * np.tril(rng.normal(size=(3, dims, dims)))
    inputs = Gaussian(jnp.asarray(mean), jnp.asarray(factor))
    noise = jnp.asarray(rng.normal(size=(_DRAWS, 3, dims)))
    draws = inputs.mean + jnp.einsum("bij,sbj->sbi", inputs.scale, noise)
    if check.startswith("psi0"):
        value = psi0(kernel, inputs)
        values = jax.jit(jax.vmap(kernel.diag))(draws)
    else:
        blocks = jax.jit(jax.vmap(lambda h: kernel(h, z)))(draws)
        if check.startswith("psi1"):
            value, values = psi1(kernel, inputs, z), blocks
        else:
            value, values = psi2(kernel, inputs, z), blocks[..., :, None] * blocks[..., None, :]
    average, error = mean_and_error(values)
    # nodes are good to about a hundredth where a kernel bends within the width of the input
    closed = terms_of(kernel, dims, jnp.float64) is not None
    slack = (1e-9 if closed else 1e-2) * float(np.abs(average).max()) + 1e-12
    note = "5 standard errors" + ("" if closed else ", and 1 % for the quadrature")
    return equal_row(check, value, average, error + slack, note=note)
