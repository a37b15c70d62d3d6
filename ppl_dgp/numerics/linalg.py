"""Matrix computations of a sparse layer: distances, a Cholesky factor that succeeds, inverse, variances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float

LARGEST_JITTER = 0.1


def squared_distance(x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
    """|x_n − z_m|², never negative and exactly 0 between equal rows, by one matrix product.

    What lies below the product's rounding error counts as 0. Derivatives are those of the exact distance.

    :raises ValueError: if x and z have different numbers of columns.
    """
    if x.ndim != 2 or z.ndim != 2 or x.shape[1] != z.shape[1]:
        raise ValueError(
            f"x: found shape {x.shape} beside z of shape {z.shape}, expected (N, D) and (M, D), points of one space"
        )
    # |x − z|² does not change with the origin; one amid the points keeps the cancellation small
    origin = jax.lax.stop_gradient(jnp.mean(z, axis=0)) if z.shape[0] else 0.0
    x, z = x - origin, z - origin
    # |x − z|² = |x|² + |z|² − 2 xᵀz
    norms = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(z**2, axis=1)
    r2 = norms - 2.0 * precise_matmul(x, z.T)
    rounding = 4.0 * jnp.finfo(r2.dtype).eps * norms
    return r2 + jax.lax.stop_gradient(jnp.where(r2 > rounding, r2, 0.0) - r2)


def first_jitter(dtype: DTypeLike) -> float:
    """The relative jitter that ``cholesky`` adds at first: 1e-8 in 64 bits, 1e-5 in 32 bits."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-5


def cholesky(
    matrix: Float[Array, "*batch M M"], jitter: float | Float[Array, ""] | None = None
) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch"]]:
    """The lower Cholesky factor L of A + j d I, and the relative jitter j; d is the mean diagonal of A, 1 if that is 0.

    j starts at ``jitter`` (0 is allowed; ``first_jitter`` of the dtype if None) and grows tenfold, each matrix of
    the batch on its own, until L is finite; where 0.1 does not suffice, L and j are NaN. A j above the first
    says that the matrix was singular to working precision. Derivatives take j as a constant and see only the
    successful L, so they are finite whenever L is. The symmetric part of A is used.

    :raises ValueError: for a matrix that is not square, and for a ``jitter`` outside 0 to 0.1.
    """
    return _for_each_matrix(_jittered_cholesky, matrix, jitter)


def whitening(
    matrix: Float[Array, "*batch M M"], jitter: float | Float[Array, ""] | None = None
) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch"]]:
    """L⁻¹ of the factor that :func:`cholesky` finds, and its jitter; derivatives are three matmuls, no solves.

    :raises ValueError: as :func:`cholesky`.
    """
    return _for_each_matrix(_whitening, matrix, jitter)


def with_jitter(
    matrix: Float[Array, "M M"], jitter: float | Float[Array, ""] | None = None
) -> Float[Array, "M M"]:
    """What :func:`cholesky` factorises first: the matrix with the relative jitter on its diagonal."""
    first = first_jitter(matrix.dtype) if jitter is None else jitter
    nugget: Array = first * jnp.diagonal(matrix).mean() * jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    return matrix + nugget


def _for_each_matrix(
    of_one: Any, matrix: Float[Array, "*batch M M"], jitter: float | Float[Array, ""] | None
) -> tuple[Float[Array, "*batch M M"], Float[Array, "*batch"]]:
    """A function of a matrix and its first jitter, for each of a batch."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"matrix: found shape {matrix.shape}, expected square matrices (..., M, M)")
    if isinstance(jitter, int | float) and not 0.0 <= jitter <= LARGEST_JITTER:
        raise ValueError(
            f"jitter: found {jitter}, expected 0 to {LARGEST_JITTER}; it is relative to the mean diagonal"
        )
    first = jnp.asarray(first_jitter(matrix.dtype) if jitter is None else jitter, matrix.dtype)
    if first.ndim:
        raise ValueError(f"jitter: found shape {first.shape}, expected a scalar")
    for _ in range(matrix.ndim - 2):
        of_one = jax.vmap(of_one, in_axes=(0, None))
    factors: tuple[Array, Array] = of_one(matrix, first)
    return factors


def _one_by_one(of_one: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The same, its vmap on the CPU a loop.

    jaxlib hands the matrices of a batch to threads and waits for them on one of these: within a compiled loop, on a
    machine of two cores, calls that wait for each other wait for ever.
    """
    mapped: Any = custom_vmap(of_one)

    @mapped.def_vmap  # type: ignore[untyped-decorator, unused-ignore]
    def _(_size: int, _batched: list[bool], matrices: Array) -> tuple[Array, bool]:
        in_turn = lambda batch: jax.lax.map(mapped, batch)
        results: Array = jax.lax.platform_dependent(matrices, cpu=in_turn, default=jax.vmap(of_one))
        return results, True

    return mapped  # type: ignore[no-any-return]


@_one_by_one
def _factor(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


@jax.jit
def _first_finite_factor(
    matrix: Float[Array, "M M"], first: Float[Array, ""]
) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """The first Cholesky factor that is finite, and the jitter it needed."""
    matrix = 0.5 * (matrix + matrix.T)
    size = jnp.mean(jnp.diagonal(matrix))
    # of a function that is 0 at all its inputs the whole matrix is 0, and any jitter does
    diagonal = jnp.where(size == 0.0, 1.0, size) * jnp.eye(matrix.shape[0], dtype=matrix.dtype)

    def attempt(jitter: Array) -> tuple[Array, Array]:
        return _factor(matrix + jitter * diagonal), jitter

    def failed(state: tuple[Array, Array]) -> Array:
        return ~jnp.all(jnp.isfinite(state[0]))

    def unfinished(state: tuple[Array, Array]) -> Array:
        return failed(state) & (state[1] < LARGEST_JITTER)

    def grow(state: tuple[Array, Array]) -> tuple[Array, Array]:
        jitter = jnp.maximum(10.0 * state[1], first_jitter(matrix.dtype))
        # within rounding of the largest is the largest
        return attempt(jnp.where(jitter > 0.99 * LARGEST_JITTER, LARGEST_JITTER, jitter))

    state = jax.lax.while_loop(unfinished, grow, attempt(first))
    lower, jitter = state
    bad = failed(state)
    return jnp.where(bad, jnp.nan, lower), jnp.where(bad, jnp.nan, jitter)


@jax.custom_jvp
def _jittered_cholesky(
    matrix: Float[Array, "M M"], first: Float[Array, ""]
) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    factor_and_jitter: tuple[Array, Array] = _first_finite_factor(matrix, first)
    return factor_and_jitter


@_jittered_cholesky.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (matrix, first), (dmatrix, _) = primals, tangents
    lower, jitter = _jittered_cholesky(matrix, first)
    # dL = L Φ(L⁻¹ dA L⁻ᵀ) (Smith 1995; Murray 2016)
    dlower = precise_matmul(lower, _lower_differential(inverse_lower(lower), dmatrix, jitter))
    return (lower, jitter), (dlower, jnp.zeros_like(jitter))


@jax.custom_jvp
def _whitening(
    matrix: Float[Array, "M M"], first: Float[Array, ""]
) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    lower, jitter = _first_finite_factor(matrix, first)
    return _inverse(lower), jitter


@_whitening.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (matrix, first), (dmatrix, _) = primals, tangents
    whiten, jitter = _whitening(matrix, first)
    # d(L⁻¹) = −L⁻¹ dL L⁻¹ = −Φ(L⁻¹ dA L⁻ᵀ) L⁻¹
    dwhiten = -precise_matmul(_lower_differential(whiten, dmatrix, jitter), whiten)
    return (whiten, jitter), (dwhiten, jnp.zeros_like(jitter))


def _lower_differential(
    inverse: Float[Array, "M M"], dmatrix: Float[Array, "M M"], jitter: Float[Array, ""]
) -> Float[Array, "M M"]:
    """Φ(L⁻¹ dA L⁻ᵀ), Φ = the lower triangle with half the diagonal."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, inverse.shape, axis) for axis in (0, 1))
    same = (row == column).astype(inverse.dtype)
    # dA = d(sym A) + j · mean diag(dA) · I
    da = 0.5 * (dmatrix + dmatrix.T) + jitter / len(inverse) * jnp.sum(same * dmatrix) * same
    return ((row > column) + 0.5 * same) * precise_matmul(precise_matmul(inverse, da), inverse.T)


def inverse_lower(lower: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """L⁻¹ of a lower triangular L, to be formed once and applied by matmul: much faster than many solves.

    :raises ValueError: for a matrix that is not square.
    """
    if lower.ndim < 2 or lower.shape[-1] != lower.shape[-2]:
        raise ValueError(f"lower: found shape {lower.shape}, expected square matrices (..., M, M)")
    identity = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)
    return solve_triangular(lower, identity, lower=True)


_inverse = _one_by_one(inverse_lower)


def lower_inverse_root(matrix: Float[Array, "*batch M M"]) -> Float[Array, "*batch M M"]:
    """The lower triangular U, its diagonal positive, with U Uᵀ = matrix⁻¹.

    NaN where ``matrix`` is not positive definite.

    One Cholesky factorisation and one triangular inverse: L U is then the Cholesky factor of L matrix⁻¹ Lᵀ.
    """
    # matrix = V Vᵀ with V upper triangular, the Cholesky factor with rows and columns in reverse; U = V⁻ᵀ
    upper = jnp.linalg.cholesky(matrix[..., ::-1, ::-1])[..., ::-1, ::-1]
    return inverse_lower(jnp.swapaxes(upper, -1, -2))


@jax.custom_jvp
def gram(a: Float[Array, "N M"]) -> Float[Array, "M M"]:
    """AᵀA, whose gradient is one product: autodiff takes one for each of its factors."""
    return precise_matmul(a.T, a)


@gram.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Array, Array]:
    (a,), (da,) = primals, tangents
    half = precise_matmul(da.T, a)
    return gram(a), half + half.T


def weighted_grams(a: Float[Array, "N M"], weights: Float[Array, "N C"]) -> Float[Array, "C M M"]:
    """Aᵀ diag(w) A for each column of weights, one after the other: O(N M) memory."""
    of_one = lambda column: precise_matmul((a * column[:, None]).T, a)
    if weights.shape[1] == 1:
        return of_one(weights[:, 0])[None]
    grams: Array = jax.lax.map(jax.checkpoint(of_one), weights.T)
    return grams


def diag_quadratic(a: Float[Array, "N M"], s_tril: Float[Array, "P M M"]) -> Float[Array, "N P"]:
    """The variances diag(A S_p Aᵀ) for S_p = s_tril[p] s_tril[p]ᵀ, with a gradient written by hand.

    :raises ValueError: where the shapes do not fit.
    """
    if a.ndim != 2 or s_tril.ndim != 3 or s_tril.shape[1:] != (a.shape[1], a.shape[1]):
        raise ValueError(
            f"a: found shape {a.shape} beside s_tril of shape {s_tril.shape}, expected (N, M) and (P, M, M), "
            "one Cholesky factor for each of P outputs"
        )
    return _diag_quadratic(a, precise_matmul(s_tril, jnp.swapaxes(s_tril, -1, -2)))


@jax.custom_vjp
def _diag_quadratic(a: Float[Array, "N M"], s: Float[Array, "P M M"]) -> Float[Array, "N P"]:
    return _diag_quadratic_forward(a, s)[0]


def _diag_quadratic_forward(a: Array, s: Array) -> tuple[Array, tuple[Array, Array]]:
    outputs, size, _ = s.shape
    # T_p = A S_p, all outputs in one matmul; the variance is the row sum of T_p ∘ A
    projected = precise_matmul(a, jnp.swapaxes(s, 0, 1).reshape(size, outputs * size)).reshape(
        -1, outputs, size
    )
    # not negative in exact arithmetic
    return jnp.maximum(jnp.einsum("npm,nm->np", projected, a, precision="highest"), 0.0), (a, projected)


def _diag_quadratic_backward(saved: tuple[Array, Array], w: Float[Array, "N P"]) -> tuple[Array, Array]:
    a, projected = saved
    rows, outputs, size = projected.shape
    # dA = 2 Σ_p w_p ∘ (A S_p) needs no further matmul; dS_p = Aᵀ diag(w_p) A
    da = 2.0 * jnp.einsum("npm,np->nm", projected, w, precision="highest")
    weighted = (w[:, :, None] * a[:, None, :]).reshape(rows, outputs * size)
    # a dot over the leading axes of both is slow on CPU: the transpose is made beforehand
    transposed = jax.lax.optimization_barrier(a.T)
    ds = precise_matmul(transposed, weighted).reshape(size, outputs, size)
    return da, jnp.swapaxes(ds, 0, 1)


_diag_quadratic.defvjp(_diag_quadratic_forward, _diag_quadratic_backward)


def precise_matmul(a: Array, b: Array) -> Array:
    """A matrix product in the full precision of its dtype, on accelerators too."""
    return jnp.matmul(a, b, precision="highest")
