"""Sparse GPs whose outputs have kernels and inducing inputs of their own.

Everything of an output is an array with a leading axis of outputs: the kernel's values, Z (P, M, D), L⁻¹ (P, M, M); the
weights φ of a marginal are (B, P, M), and its residual variances (B, P). What works on one output is mapped over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.features import Functionals, InducingFeatures, covariance, cross, inducing_points, variance
from ppl_dgp.gp.means import Linear, Mean, affine
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.structured_root import InverseRoot

if TYPE_CHECKING:
    from ppl_dgp.gp.moment_matching import Function
else:  # moments of functions ask this file about their outputs
    Function = Any

Found = TypeVar("Found")


class Pieces(NamedTuple):
    """What is read of a function, as a pytree: of separate outputs each with a leading axis of them, or of one."""

    kernel: Kernel
    inducing: Array | InducingFeatures
    whiten: Array | InverseRoot
    mean: Mean
    u: Array | Gaussian


def is_separate(f: Function) -> bool:
    """Whether the outputs have kernels and inducing inputs of their own."""
    return f.inducing.ndim == 3


def kernels_together(kernels: Sequence[Kernel]) -> Kernel:
    """Kernels of one structure as one, each of its values with a leading axis of them.

    :raises ValueError: if their structures differ, as those of an RBF and a Matérn do.
    """
    if len({jax.tree.structure(kernel) for kernel in kernels}) > 1:
        raise ValueError(
            f"kernel: found kernels of different structure, {', '.join(type(each).__name__ for each in kernels)}, "
            "expected one structure whose values differ between outputs; take functions of one output each"
        )
    together: Kernel = jax.tree.map(lambda *values: jnp.stack([jnp.asarray(v) for v in values]), *kernels)
    return together


def outputs_of(f: Function) -> Pieces:
    """The functions of one output each that a separate one is made of, with a leading axis of them."""
    z = inducing_points(f.inducing)
    outputs, _, dims = z.shape
    weights, bias = affine(f.mean, dims)
    linear = jnp.zeros((dims, outputs), bias.dtype) if weights is None else weights
    bias = jnp.broadcast_to(bias, (outputs,))
    mean = Linear(jnp.swapaxes(linear, 0, 1)[:, :, None], bias[:, None])
    u = f.u
    if isinstance(u, Gaussian):
        u = jax.tree.map(lambda leaf: leaf[:, None], u)
    elif u.ndim == 2:
        u = u[:, None]
    else:  # a draw for each row
        u = jnp.moveaxis(u, 1, 0)[:, :, None]
    return Pieces(f.kernel, z, f.whiten, mean, u)


def first_output(f: Function) -> Pieces:
    """One of the outputs, for what is asked of the kind of a kernel."""
    one: Pieces = jax.tree.map(lambda leaf: leaf[0], outputs_of(f))
    return one


def for_each_output(what: Callable[..., Found], f: Function, *columns: Array | None) -> Found:
    """``what`` of each output and its column of arrays (B, P, …), the results with a leading axis of outputs."""
    parts = [None if each is None else jnp.moveaxis(each, 1, 0)[:, :, None] for each in columns]
    axes = [None if part is None else 0 for part in parts]
    return jax.vmap(what, in_axes=(0, *axes))(outputs_of(f), *parts)


def check_shared(f: Function, where: str) -> None:
    """Refuse, by a ValueError, a function whose outputs share no kernel."""
    if is_separate(f):
        raise ValueError(
            f"kernel: found kernels and inducing inputs of each output in {where}, expected what the outputs share; "
            "take PowerEP, or a model with one kernel for all outputs"
        )


def weights_and_residual(
    kernel: Kernel, whiten: Array | InverseRoot, h: Array | Functionals, z: Array | InducingFeatures
) -> tuple[Array, Array]:
    """φ (B, M), and k(h, h) less its square, (B,), of a shared kernel; of separate outputs (B, P, M) and (B, P)."""
    if z.ndim == 3:
        in_turn = jax.vmap(weights_and_residual, in_axes=(0, 0, None, 0))
        weights, residual = in_turn(kernel, whiten, h, z)
        return jnp.moveaxis(weights, 0, 1), residual.T
    weights = cross(kernel, h, z) @ whiten.T
    # k(h, h) ≥ ‖φ‖² in exact arithmetic; rounding alone can bring it below, by a few ulps of k
    return weights, jnp.maximum(variance(kernel, h) - jnp.square(weights).sum(1), 0.0)


def covariance_given_u(
    kernel: Kernel, weights: Array, h: Float[Array, "B D"] | Functionals
) -> Float[Array, "*P B B"]:
    """Of f at the rows of h, of each output where they are separate, from their weights φ."""
    if weights.ndim == 3:
        in_turn = jax.vmap(covariance_given_u, in_axes=(0, 1, None))
        each: Array = in_turn(kernel, weights, h)
        return each
    return covariance(kernel, h) - weights @ weights.T
