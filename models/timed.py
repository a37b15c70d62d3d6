"""Steps of different length: the transition's f is a rate, x_t = x_{t−1} + Δt f(x_{t−1}, c_t) + ε, ε ~ N(0, Δt Q)."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.kernels import Constant, Kernel, Linear, White
from ppl_dgp.kernels.kernel import Product, Sum
from ppl_dgp.state_space.sequences import check_times


def checked_timed(timed: bool, start: str, mean: str) -> None:
    """Refuse, by a ValueError, what steps of different length have no meaning beside."""
    wanted = (
        ("start", start, "outputs", "the linear system that it finds has steps of one length"),
        ("mean", mean, "identity", "f is a rate, which is added to the state"),
    )
    for name, found, expected, why in wanted if timed else ():
        if found != expected:
            raise ValueError(
                f"{name}: found {found!r} beside timed steps, expected {expected!r}, for {why}; take the default"
            )


def check_step_times(x: Float[Array, "T K"], num_sequences: int) -> None:
    """Refuse, by a ValueError, inputs without positive Δt in the last column, or in that before the sequences'."""
    column = x.shape[1] - 1 - (num_sequences > 1)
    if column < 0:
        raise ValueError(
            "x: found no controls beside timed steps, expected a last column of Δt, each step's time; give it, or take "
            "timed=False"
        )
    # known wherever x is
    with jax.ensure_compile_time_eval():
        check_times("x", x[:, column])


def increments(rate: Kernel, dims: int) -> Kernel:
    """The kernel of Δt f(x, c), of ``dims`` columns (x, c, Δt), where f has the kernel ``rate`` of the others."""
    return Product(_restricted(rate, tuple(range(dims - 1))), Linear(1.0, active_dims=(dims - 1,)))


def over_unit_time(inducing: Float[Array, "*P M K"]) -> Float[Array, "*P M D"]:
    """Inducing inputs (x, c) of a rate, as those of its increments over Δt = 1."""
    return jnp.concatenate([inducing, jnp.ones((*inducing.shape[:-1], 1), inducing.dtype)], -1)


def _restricted(kernel: Any, columns: tuple[int, ...]) -> Kernel:
    """The same kernel of some columns, the first of those there are."""
    if isinstance(kernel, Sum | Product):
        return type(kernel)(_restricted(kernel.left, columns), _restricted(kernel.right, columns))
    if isinstance(kernel, Constant | White):
        return kernel
    known = fields(kernel) if is_dataclass(kernel) else ()
    if "active_dims" not in {entry.name for entry in known}:
        raise ValueError(
            f"kernel: found {type(kernel).__name__} beside timed steps, expected kernels with active_dims, which leave "
            "out the column of Δt; give it a field active_dims, or take timed=False"
        )
    restricted: Kernel = kernel if kernel.active_dims is not None else replace(kernel, active_dims=columns)
    return restricted
