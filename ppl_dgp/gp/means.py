"""Mean functions as frozen pytrees, and the linear maps that join the layers of a deep model.

Source: Salimbeni & Deisenroth (2017), equation 3.12 and the discussion around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

if TYPE_CHECKING:
    Vector: TypeAlias = Float[Array, " P"] | Float[Array, ""] | float
    Matrix: TypeAlias = Float[Array, "D P"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: a call checks the shapes
    Vector = Matrix = Any


@register_dataclass
@dataclass(frozen=True, eq=False)
class Zero:
    """Mean function m(h) = 0 for ``num_outputs`` outputs."""

    num_outputs: int = field(default=1, metadata={"static": True})

    def __post_init__(self) -> None:
        if index(self.num_outputs) < 1:
            raise ValueError(f"num_outputs: found {self.num_outputs}, expected at least 1")

    def __call__(self, h: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """Zeros of shape (N, num_outputs), in the dtype of h."""
        return jnp.zeros((*_checked_rows(h).shape[:-1], self.num_outputs), h.dtype)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Constant:
    """Mean function m(h) = value, in units of the output: one number for each of P outputs, or a scalar."""

    value: Vector

    def __call__(self, h: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """The value for each of the N rows of h.

        :raises ValueError: if it is neither scalar nor vector.
        """
        dtype = h.dtype if isinstance(self.value, int | float) else None
        value = jnp.atleast_1d(jnp.asarray(self.value, dtype))
        if value.ndim != 1:
            raise ValueError(f"value: found shape {value.shape}, expected (P,) or (); jax.vmap over a batch")
        return jnp.broadcast_to(value, (*_checked_rows(h).shape[:-1], value.shape[0]))


@register_dataclass
@dataclass(frozen=True, eq=False)
class Linear:
    """Mean function m(h) = h W + b, with weights W of shape (D, P) and bias b of shape (P,) or scalar."""

    weights: Matrix
    bias: Vector = 0.0

    def __call__(self, h: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """The mean at the N rows of h.

        :raises ValueError: if h, weights and bias do not fit each other.
        """
        shape = jnp.shape(self.weights)
        if len(shape) != 2:
            raise ValueError(f"weights: found shape {shape}, expected (D, P); jax.vmap over a batch")
        if _checked_rows(h).shape[-1] != shape[0]:
            raise ValueError(
                f"h: found {h.shape[-1]} columns, expected {shape[0]} as weights of shape {shape} have rows; "
                "layer_map(h, width) gives weights that fit"
            )
        if jnp.shape(self.bias) not in ((), (shape[1],)):
            raise ValueError(f"bias: found shape {jnp.shape(self.bias)}, expected ({shape[1]},) or a scalar")
        return jnp.matmul(h, self.weights, precision="highest") + self.bias


Mean: TypeAlias = Zero | Constant | Linear


def affine(mean: Mean, num_inputs: int) -> tuple[Float[Array, "D P"] | None, Float[Array, " #P"]]:
    """The mean as m(h) = h W + b: W (D, P), or None where it is constant, and b (P,) or (1,).

    :raises TypeError: for a mean of another kind.
    """
    if isinstance(mean, Linear):
        return jnp.asarray(mean.weights), jnp.atleast_1d(jnp.asarray(mean.bias))
    if not isinstance(mean, Zero | Constant):
        raise TypeError(
            f"mean: found {type(mean).__name__}, expected Zero, Constant or Linear: moments know no other"
        )
    return None, mean(jnp.zeros((1, num_inputs)))[0]


def layer_map(x: Float[Array, "N D"], width: int) -> Float[Array, "D width"]:
    """The linear map from D inputs to a layer of ``width`` outputs which keeps most of x.

    The identity if width = D; the identity beside columns of zeros if width > D; the leading right-singular
    vectors of x, the strongest first and each with its largest entry positive, if width < D (Salimbeni &
    Deisenroth 2017, equation 3.12). Give x centred, as standardised data are.

    :raises ValueError: for a width below 1 and for an x that is not of shape (N, D).
    """
    if index(width) < 1:
        raise ValueError(f"width: found {width}, expected at least 1 output for the layer")
    if x.ndim != 2:
        raise ValueError(f"x: found shape {x.shape}, expected (N, D); add an axis")
    rows, dims = x.shape
    if width >= dims:
        return jnp.eye(dims, width, dtype=x.dtype)
    # rows of zeros change no right-singular vector, and make all D of them appear when N < D
    padded = jnp.pad(x, ((0, max(dims - rows, 0)), (0, 0)))
    directions = jnp.linalg.svd(padded, full_matrices=False)[2][:width]
    largest = jnp.take_along_axis(directions, jnp.argmax(jnp.abs(directions), axis=1, keepdims=True), axis=1)
    return (directions * jnp.sign(largest)).T


def _checked_rows(h: Array) -> Array:
    if h.ndim < 2:
        raise ValueError(f"h: found shape {h.shape}, expected (N, D); add an axis")
    return h
