"""Blocks of a :class:`ppl_dgp.models.stack`: layers of GPs and of networks, and latents beside a layer's inputs.

A block declares its parameters and functions outside the data plate, by :meth:`StackBlock.begin`, and is applied to
rows within it. It also pushes the rows on with which the model begins: where the inducing inputs of later blocks start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.bayesian_layer import Activation, activation_function
from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.models.latents import standard_normal, where_latents_begin
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import SettledValue
from ppl_dgp.numerics.gaussian import Gaussian, beside

#: values of a layer at rows: draws or moments
Values: TypeAlias = Float[Array, "B _"] | Gaussian
#: what a layer is to later ones, inside the data plate
Through: TypeAlias = Callable[[Values], Values]


@dataclass(frozen=True, eq=False)
class Place:
    """Where a block stands.

    :param name: prefix of its sites, ``layer1`` of the first block.
    :param rows: the rows at hand as they come to it where training begins, (N, Q).
    :param x, y: inputs and targets of the model.
    :param before: the function whose values alone are its inputs; None where there is none.
    :param targets: y where the last functions are y but for Gaussian noise; else None.
    :param first: whether its inputs are data, or latents beside them.
    :param noise: where the learnt noise variance of a hidden layer starts.
    :param jitter: of Kzz.
    """

    name: str
    rows: Float[Array, "N Q"]
    x: Float[Array, "N D"]
    y: Float[Array, "N P"] | None
    before: SparseGP | None
    targets: Float[Array, "N P"] | None
    first: bool
    noise: float
    jitter: float | None


@dataclass(frozen=True, eq=False)
class Begun:
    """A block whose parameters and functions are there: what it does to rows, and the function that it is, if one."""

    rows: Float[Array, "N Q"]
    through: Through
    function: SparseGP | None = None


class StackBlock(SettledValue, ABC):
    """A part of a stack; a subclass is a frozen dataclass."""

    @abstractmethod
    def begin(self, place: Place) -> Begun:
        """Declare parameters and functions, outside the data plate."""


class FunctionBlock(StackBlock):
    """A block of ``width`` random functions, hidden behind noise, or the last of a stack, which has no width."""

    width: int | None

    @abstractmethod
    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        """Sample the functions, and push the rows through where a hidden one begins."""

    def begin(self, place: Place) -> Begun:
        assert self.width is not None  # a stack refuses it
        f, rows = self.function(place, self.width, True)
        site = f"{place.name}/h"
        start = jnp.asarray(place.noise)
        noise = numpyro.param(f"{place.name}/noise", start, constraint=constraints.positive)

        def through(h: Values) -> Values:
            return offer(site, numpyro.sample(site, f(h).noisy(noise), infer=hidden_role()))

        return Begun(rows, through, f)


@dataclass(frozen=True, eq=False, repr=False)
class DeterministicNetwork(StackBlock):
    """A network whose weights are parameters: below a GP, deep kernel learning (Wilson et al. 2016).

    Nothing holds the weights back, so that it over-fits small tables (Ober, Rasmussen & van der Wilk 2021); a
    :class:`BayesianLayer` in its place does not.

    :param widths: of its layers, the last without an activation: its outputs.
    :param activation: of the layers before, a name of ``ACTIVATIONS`` or a function.
    :raises ValueError: for settings of the wrong kind.
    :raises TypeError: for an activation that is no function.
    """

    widths: Sequence[int] = (32, 2)
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self))
        activation_function(self.activation)
        if not self.widths:
            raise ValueError("widths: found none, expected those of the layers, such as (32, 2)")

    def begin(self, place: Place) -> Begun:
        weights, dims = [], place.rows.shape[1]
        for layer, width in enumerate(self.widths, start=1):
            weights.append(_weights(f"{place.name}/network{layer}", dims, width))
            dims = width
        activate = activation_function(self.activation)

        def network(h: Values) -> Float[Array, "B _"]:
            if isinstance(h, Gaussian):
                raise ValueError(
                    f"propagation: found moments of the inputs of the network {place.name!r}, expected draws; take "
                    "propagation='draws', or put the network first"
                )
            for layer, (matrix, bias) in enumerate(weights):
                h = (activate(h) if layer else h) @ matrix + bias
            return h

        return Begun(network(place.rows), network)


@dataclass(frozen=True, eq=False, repr=False)
class LatentInputs(StackBlock):
    """Latents z_n ~ N(0, I) of each row behind the inputs of the next block (Salimbeni et al. 2019).

    Their q begins near the prior, a little to the side that y is on; new rows draw them from the prior.

    :param width: how many.
    :raises ValueError: for settings of the wrong kind.
    """

    width: int = 1

    def begin(self, place: Place) -> Begun:
        site = f"{place.name}/z"
        scores, _ = where_latents_begin(site, place.x, place.y, self.width, "pca")
        start = lambda: Gaussian(0.1 * scores, jnp.ones_like(scores))
        through = lambda h: beside(h, standard_normal(site, self.width, start))
        return Begun(jnp.column_stack([place.rows, scores]), through)


def _weights(name: str, inputs: int, outputs: int) -> tuple[Float[Array, "D Q"], Float[Array, " Q"]]:
    """Weights that begin normal with variance 1/D, and biases that begin at 0."""
    draw = lambda key: jax.random.normal(key, (inputs, outputs)) / max(inputs, 1) ** 0.5
    return numpyro.param(f"{name}/weights", draw), numpyro.param(f"{name}/bias", jnp.zeros(outputs))
