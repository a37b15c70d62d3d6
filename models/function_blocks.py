"""Blocks of random functions: layers of sparse GPs, of GPs by random features, and of a Bayesian neural network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.bayesian_layer import Activated, Activation, activation_function, bayesian_linear
from ppl_dgp.gp.eigenfunctions import check_spectral
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.random_features import random_features_gp, unit_frequencies
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.blocks import FunctionBlock, Place
from ppl_dgp.models.deep_gp import INNER_SCALE, held_layer_map
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.settings import checked_settings

#: a hidden layer's mean function: the linear map of deep GPs, or 0
MEANS = ("linear", "zero")
#: noise of the linear map that a layer without one begins at, by regression
START_NOISE = 1e-2
#: of a network's last layer, noise of the targets that it begins at, and the scale of q(u): at 1, as of a GP, what it
#: adds to the noise of y drowns what the layers below have to learn
TARGET_NOISE, OUTER_SCALE = 0.1, 0.1


@dataclass(frozen=True, eq=False, repr=False)
class GPLayer(FunctionBlock):
    """A layer of sparse GPs, as of :class:`ppl_dgp.models.deep_gp`.

    :param width: Q outputs; None in the last block, which has as many as y needs.
    :param num_inducing: M.
    :param kernel: see :mod:`ppl_dgp.models.kernel_values`.
    :param mean: of a hidden layer: "linear", the identity, padded, or right-singular vectors of its inputs, if None; or
        "zero", of which q(u) begins at the same linear map. The last block's is 0.
    :param inducing: inputs (M, D) to begin at.
    :param train_inducing: whether they are learnt.
    :raises ValueError: for settings of the wrong kind.
    """

    width: int | None = None
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    mean: str | None = None
    inducing: GivenInducing | None = None
    train_inducing: bool = True

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, mean=MEANS))

    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        name, rows = place.name, place.rows
        z = inducing_inputs(name, rows, self.num_inducing, self.train_inducing, self.inducing)
        kernel = kernel_parameters(name, self.kernel, rows.shape[1])
        start = _linear_start(place, width, self.mean, hidden)
        # features have no inputs that the layer before could be drawn at
        before = place.before if place.before is None or isinstance(place.before.inducing, Array) else None
        f = sparse_gp(
            name,
            kernel,
            z,
            width,
            mean=start.mean,
            initial_scale=start.scale,
            begin_at=start.begin_at,
            behind=before,
            jitter=place.jitter,
        )
        return f, start.rows


@dataclass(frozen=True, eq=False, repr=False)
class RandomFeaturesLayer(FunctionBlock):
    """A layer of functions of random waves (Cutajar et al. 2017), see :mod:`ppl_dgp.gp.random_features`.

    :param width: as of :class:`GPLayer`.
    :param num_frequencies: F; there are 2F weights for each output.
    :param kernel: RBF or a Matérn, a class, an instance or a function.
    :param mean: as of :class:`GPLayer`.
    :param train_frequencies: whether they are learnt; else they stay what the fit's key has drawn, once.
    :raises ValueError: for settings of the wrong kind.
    :raises TypeError: for a kernel whose spectral density is not known.
    """

    width: int | None = None
    num_frequencies: int = 100
    _: KW_ONLY
    kernel: KernelChoice = RBF
    mean: str | None = None
    train_frequencies: bool = False

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, mean=MEANS))
        if isinstance(self.kernel, type | Kernel):
            check_spectral(self.kernel if isinstance(self.kernel, type) else type(self.kernel))

    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        name, dims = place.name, place.rows.shape[1]
        kernel = kernel_parameters(name, self.kernel, dims)
        drawn = numpyro.param(
            f"{name}/frequencies", lambda key: unit_frequencies(key, type(kernel), self.num_frequencies, dims)
        )
        start = _linear_start(place, width, self.mean, hidden)
        f = random_features_gp(
            name,
            kernel,
            drawn if self.train_frequencies else jax.lax.stop_gradient(drawn),
            width,
            mean=start.mean,
            initial_scale=start.scale,
            begin_at=start.begin_at,
        )
        return f, start.rows


@dataclass(frozen=True, eq=False, repr=False)
class BayesianLayer(FunctionBlock):
    """A layer of a Bayesian neural network, W a(h) + b with Gaussian W and b, see :mod:`ppl_dgp.gp.bayesian_layer`.

    The guide's inducing rule is that of the weights: ``Diagonal()`` is mean-field. The mean of q of a hidden layer's
    weights begins at a draw from their prior, for nothing else would tell its units apart; that of the last layer,
    under Gaussian noise, at the regression of y on the units. Give small tables few units: each costs its KL, and the
    bound of a wide layer may be highest where it ignores the data (Coker et al. 2022), a constant function and noise.

    :param width: as of :class:`GPLayer`.
    :param activation: of the layer's inputs, a name of ``ACTIVATIONS`` or a function; None is the identity of data
        and latents, and relu of what a layer or network below hands on.
    :param weight_scale: σ_w: a weight's prior deviation is σ_w/√D of D inputs.
    :param bias_scale: that of a bias; 0 for none.
    :param train_scales: whether the two are learnt from there on, as a kernel's variance is.
    :raises ValueError: for settings of the wrong kind.
    :raises TypeError: for an activation that is no function.
    """

    width: int | None = None
    activation: Activation | None = None
    _: KW_ONLY
    weight_scale: float = 1.0
    bias_scale: float = 1.0
    train_scales: bool = True

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self))
        if self.activation is not None:
            activation_function(self.activation)

    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        name, dims = place.name, place.rows.shape[1]
        activation = self.activation
        if activation is None:
            activation = "identity" if place.first else "relu"
        layer = partial(
            bayesian_linear,
            name,
            dims,
            width,
            activation=activation,
            weight_scale=self._scale(name, "weight_scale"),
            bias_scale=self._scale(name, "bias_scale"),
        )
        if not hidden:
            targets = place.targets
            if targets is None:
                return layer(), place.rows
            pairs = place.rows, targets, TARGET_NOISE
            return layer(initial_scale=OUTER_SCALE, begin_at=lambda: pairs), place.rows
        drawn = numpyro.param(f"{name}/start", lambda key: jax.random.normal(key, (width, dims + 1)))
        start = jax.lax.stop_gradient(drawn)
        f = layer(initial_scale=INNER_SCALE, start=lambda: start)
        assert isinstance(f.kernel, Activated)
        return f, f.kernel.basis(place.rows) @ start.T

    def _scale(self, name: str, field: str) -> Array | float:
        value: float = getattr(self, field)
        if not self.train_scales or value == 0.0:
            return value
        learnt: Array = numpyro.param(f"{name}/{field}", jnp.asarray(value), constraint=constraints.positive)
        return learnt


@dataclass(frozen=True, eq=False)
class _Start:
    """Where a layer begins: the rows that it hands on, its mean, the scale of q(u), and what its u regresses on."""

    rows: Float[Array, "N Q"]
    mean: Linear | None = None
    scale: float = 1.0
    begin_at: Callable[[], tuple[Array, Array, float]] | None = None


def _linear_start(place: Place, width: int, mean: str | None, hidden: bool) -> _Start:
    """A hidden layer begins at the linear map of deep GPs, as its mean or by its u; the last at 0."""
    if not hidden:
        return _Start(place.rows)
    linear = Linear(held_layer_map(place.name, place.rows, width))
    rows = linear(place.rows)
    if mean != "zero":
        return _Start(rows, linear, INNER_SCALE)
    return _Start(rows, None, INNER_SCALE, lambda: (place.rows, rows, START_NOISE))
