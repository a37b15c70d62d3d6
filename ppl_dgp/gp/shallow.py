"""The sparse GP that a deep one is while its hidden layers are linear: where training may begin.

A hidden layer's function is a linear mean and a GP. While the variance of that GP is slight the layer hands on linear
features of its inputs, and the model is a sparse GP of these: its bound needs no draws of u, and under Gaussian noise
has a closed form. At its optimum the deep model explains the data as well as one layer can, and learns from there what
its hidden layers add.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.scipy.linalg import block_diag, solve_triangular
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Model, Parameters

#: the method of a model that says so: ``model.shallow(x)`` gives a ``Shallow``, or None
SHALLOW = "shallow"
#: the variance of y's noise, a parameter where it is learnt
NOISE_OF_Y = "likelihood/noise"
#: of hidden layers: the kernel's variance beside its usual start, at most; the noise's beside that; and what the former
#: may add to the function above it, beside the noise of y
SLIGHT_VARIANCE, SLIGHT_NOISE, SHARE = 1e-4, 0.1, 0.1


@dataclass(frozen=True)
class Shallow:
    """A deep model's last function alone, on the features that linear hidden layers hand on.

    :param model: with the sites ``gp/…`` of one function, and the others of the deep model under their own names.
    :param inputs: its inputs (N, Q), of the training rows.
    :param layers: names of the deep model's functions, in order.
    :param inner_scale: where the scale of q(u) of hidden layers starts.
    :param closed: whether its bound is closed with the best q(u), as under Gaussian noise of one variance.
    """

    model: Model
    inputs: Float[Array, "N Q"]
    layers: tuple[str, ...]
    inner_scale: float
    closed: bool = True

    def deepened(
        self, usual: Parameters, fitted: Parameters, slope: Float[Array, " P"] | None = None
    ) -> Parameters:
        """Parameters of the deep model at which it is this one.

        :param usual: those at which it starts, by name.
        :param fitted: this model's.
        :param slope: of its function at them, the mean square over rows, where y is that function and noise.
        """
        *hidden, last = self.layers
        slight = jnp.asarray(SLIGHT_VARIANCE)
        if slope is not None:
            slight = jnp.minimum(slight, (SHARE * fitted[NOISE_OF_Y] / slope).min())
        start: dict[str, Any] = {}
        for name, value in usual.items():
            layer, _, parameter = name.partition("/")
            known = fitted.get(f"gp/{parameter}" if layer == last else name)
            if layer in hidden:
                start[name] = self._linear(parameter, value, slight)
            elif known is not None:
                known = _in_shape(known, value) if parameter == "u_scale" else known
                start[name] = value if jnp.shape(known) != jnp.shape(value) else known
        return start

    def _linear(self, parameter: str, value: Array, slight: Array) -> Array:
        if parameter == "noise":
            return jnp.minimum(value, SLIGHT_NOISE * slight)
        if "variance" in parameter:
            return slight * value
        # at the prior, where it costs nothing
        if parameter.startswith("u_") and parameter.endswith(("_scale", "_factor")):
            return value / self.inner_scale
        return value


def shallow_of(model: Model, x: Float[Array, "N D"]) -> Shallow | None:
    """What a model says of itself by its method ``shallow``; None if it has none."""
    method = getattr(model, SHALLOW, None)
    found: Shallow | None = None if method is None else method(x)
    return found


def _in_shape(scale: Float[Array, "P M M"], like: Float[Array, "..."]) -> Float[Array, "..."]:
    """Cholesky factors of q(u) for another family: deviations of its best diagonal, or one factor for all outputs."""
    if like.shape == scale.shape[:2]:
        identity = jnp.broadcast_to(jnp.eye(scale.shape[-1], dtype=scale.dtype), scale.shape)
        inverse = solve_triangular(scale, identity, lower=True)
        return 1.0 / jnp.sqrt(jnp.square(inverse).sum(-2))
    return block_diag(*scale) if like.ndim == 2 else scale
