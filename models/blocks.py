"""Blocks of a :class:`ppl_dgp.models.stack`: layers of GPs and of networks, and latents beside a layer's inputs.

A block declares its parameters and functions outside the data plate, by :meth:`StackBlock.begin`, and is applied to
rows within it. It also pushes the rows on with which the model begins: where the inducing inputs of later blocks start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.bayesian_layer import Activation, activation_function
from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.network_modules import WeightPrior, is_module, of_rows
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.models.latents import latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.lengthscales import ByTargets
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
    :param targets: y where the last functions are y but for Gaussian noise, of labels ±1; else None.
    :param first: whether its inputs are data, or latents beside them.
    :param begin: where lengthscales over the rows start, of kernels that do not say.
    :param noise: where the learnt noise variance of a hidden layer starts.
    :param missing: whether entries of y may be NaN.
    :param jitter: of Kzz.
    """

    name: str
    rows: Float[Array, "N Q"]
    x: Float[Array, "N D"]
    y: Float[Array, "N P"] | None
    before: SparseGP | None
    targets: Float[Array, "N F"] | None
    first: bool
    begin: ByTargets | float | None
    noise: float
    missing: bool
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
            h = _drawn(place.name, h)
            for layer, (matrix, bias) in enumerate(weights):
                h = (activate(h) if layer else h) @ matrix + bias
            return h

        return Begun(network(place.rows), network)


@dataclass(frozen=True, eq=False, repr=False)
class NetworkBlock(StackBlock):
    """A module of equinox or flax (the extra ``networks``) whose outputs the next block sees.

    Its weights are parameters, as of :class:`DeterministicNetwork`, or with a prior latents, the sites
    ``layer1/network/…``, which ``Guide(model, others=AutoNormal)`` approximates, or another ``AutoGuide`` of NumPyro:
    one draw of them serves all rows, so that their bound is noisier than that of a :class:`BayesianLayer`.

    :param module: of equinox, a function of one row (D,) to (Q,); or of flax, of rows (B, D) to (B, Q). Its weights
        begin where they are, those of flax.linen at a draw. It takes no key and changes no state.
    :param prior: of every weight by itself, a distribution of NumPyro; or a function of a weight's path in the module
        and its shape that returns one.
    :raises TypeError: for what is no module.
    :raises ValueError: when it is run, for outputs of another shape, or inputs that are moments.
    """

    module: Any
    prior: WeightPrior | None = None

    def __post_init__(self) -> None:
        if not is_module(self.module):
            raise TypeError(
                f"module: found {self.module!r}, expected one of equinox or flax, such as equinox.nn.MLP(…); for plain "
                "layers take DeterministicNetwork"
            )
        if self.prior is not None and not callable(self.prior):
            raise TypeError(
                f"prior: found {self.prior!r}, expected a distribution of NumPyro, or a function of path and shape"
            )

    def begin(self, place: Place) -> Begun:
        apply = of_rows(f"{place.name}/network", self.module, place.rows, self.prior)

        def network(h: Values) -> Float[Array, "B _"]:
            h = _drawn(place.name, h)
            outputs = apply(h)
            if jnp.ndim(outputs) != 2 or len(outputs) != len(h):
                raise ValueError(
                    f"module: found outputs of shape {jnp.shape(outputs)} for {len(h)} rows in {place.name!r}, "
                    f"expected ({len(h)}, Q); let it return a vector for each row"
                )
            return outputs

        return Begun(network(place.rows), network)


@dataclass(frozen=True, eq=False, repr=False)
class LatentInputs(StackBlock):
    """Latents z_n ~ N(0, I) of each row behind the inputs of the next block (Salimbeni et al. 2019).

    Beside inputs their q begins near the prior, a little to the side that y is on; new rows draw them from the prior.
    Where x has no columns all that comes before them is nothing, and they begin at the principal components of y, as
    those of :func:`ppl_dgp.models.gplvm`.

    :param width: how many.
    :raises ValueError: for settings of the wrong kind.
    """

    width: int = 1

    def begin(self, place: Place) -> Begun:
        site = f"{place.name}/z"
        scores, _ = where_latents_begin(site, place.x, place.y, self.width, "pca", place.missing)
        beside_inputs = lambda: Gaussian(0.1 * scores, jnp.ones_like(scores))
        start = beside_inputs if place.rows.shape[1] else lambda: latents_around(scores)
        through = lambda h: beside(h, standard_normal(site, self.width, start))
        return Begun(jnp.column_stack([place.rows, scores]), through)


def _drawn(name: str, h: Values) -> Float[Array, "B _"]:
    """A network's inputs.

    :raises ValueError: for moments.
    """
    if isinstance(h, Gaussian):
        raise ValueError(
            f"propagation: found moments of the inputs of the network {name!r}, expected draws; take "
            "propagation='draws', or put the network first"
        )
    return h


def _weights(name: str, inputs: int, outputs: int) -> tuple[Float[Array, "D Q"], Float[Array, " Q"]]:
    """Weights that begin normal with variance 1/D, and biases that begin at 0."""
    draw = lambda key: jax.random.normal(key, (inputs, outputs)) / max(inputs, 1) ** 0.5
    return numpyro.param(f"{name}/weights", draw), numpyro.param(f"{name}/bias", jnp.zeros(outputs))
