r"""A layer of a Bayesian neural network as a function: linear in Gaussian weights, of activations of its inputs.

.. math::
    f_p(x) = \sum_d w_{pd}\, a(x_d) + b_p, \quad w_{pd} \sim N(0, \sigma_w^2 / D), \quad b_p \sim N(0, \sigma_b^2)

(Neal 1996, whose scaling by 1/√D lets a wide layer's function keep its variance; Blundell et al. 2015). The activation
is of the inputs, so that a layer's own values are Gaussian given the weights: those of a hidden layer are what other
texts call pre-activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.weight_space import WeightSpace, weight_space_gp
from ppl_dgp.kernels.kernel import Scalar

#: a name of ``ACTIVATIONS``, or a function of numbers
Activation: TypeAlias = str | Callable[[Array], Array]
if TYPE_CHECKING:
    Activate: TypeAlias = Callable[[Array], Array]
else:  # a static field of a pytree
    Activate = object

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "sin": jnp.sin,
}


def activation_function(activation: Activation) -> Callable[[Array], Array]:
    """The function that an activation is.

    :raises ValueError: for an unknown name.
    :raises TypeError: for neither a name nor a function.
    """
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation: found {activation!r}, expected one of {', '.join(ACTIVATIONS)}, or a function"
            )
        return ACTIVATIONS[activation]
    if not callable(activation):
        raise TypeError(
            f"activation: found {activation!r}, expected one of {', '.join(ACTIVATIONS)}, or a function"
        )
    return activation


@register_dataclass
@dataclass(frozen=True, eq=False)
class Activated(WeightSpace):
    """The kernel of such a layer, σ_w² a(x)ᵀa(z)/D + σ_b²: D + 1 weights, that of the bias the last."""

    weight_scale: Scalar
    bias_scale: Scalar
    activate: Activate = field(metadata={"static": True})

    def basis(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        weighted = self.activate(x) * (self.weight_scale / max(x.shape[1], 1) ** 0.5)
        return jnp.concatenate([weighted, jnp.full((x.shape[0], 1), self.bias_scale, weighted.dtype)], 1)


def bayesian_linear(
    name: str,
    num_inputs: int,
    num_outputs: int = 1,
    *,
    activation: Activation = "identity",
    weight_scale: Scalar = 1.0,
    bias_scale: Scalar = 1.0,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
    start: Callable[[], Float[Array, "P M"]] | None = None,
    begin_at: Callable[[], tuple[Array, Array, float]] | None = None,
) -> SparseGP:
    """Sample the weights and biases of P units, the site ``name/u`` (P, D + 1) in units of their priors' deviations.

    :param num_inputs: D.
    :param num_outputs: P.
    :param activation: a of each input: a name of ``ACTIVATIONS``, or a function that takes an array entry by entry.
    :param weight_scale: σ_w, the deviation of √D w.
    :param bias_scale: σ_b, the deviation of b; 0 for none.
    :param mean, reused, initial_scale, start, begin_at: see :func:`ppl_dgp.gp.weight_space.weight_space_gp`.
    :raises ValueError: for an unknown activation, a negative scale, or no outputs.
    :raises TypeError: for an activation that is no function.

    >>> from numpyro.handlers import seed
    >>> with seed(rng_seed=0):
    ...     f = bayesian_linear("layer", 3, 2, activation="relu")
    >>> f(jnp.ones((5, 3))).mean.shape, f.u.shape
    ((5, 2), (2, 4))
    """
    for argument, value in {"weight_scale": weight_scale, "bias_scale": bias_scale}.items():
        # only plain numbers are known before tracing
        if isinstance(value, int | float) and not value >= 0.0:
            raise ValueError(f"{argument}: found {value}, expected a deviation of at least 0")
    kernel = Activated(weight_scale, bias_scale, activation_function(activation))
    return weight_space_gp(
        name,
        kernel,
        num_inputs,
        num_outputs,
        mean=mean,
        reused=reused,
        initial_scale=initial_scale,
        start=start,
        begin_at=begin_at,
    )
