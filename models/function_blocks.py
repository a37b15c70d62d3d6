"""Blocks of random functions: layers of sparse GPs, of GPs by random features, and of a Bayesian neural network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.bayesian_layer import Activated, Activation, activation_function, bayesian_linear
from ppl_dgp.gp.eigenfunctions import check_spectral
from ppl_dgp.gp.features import FixedFunctions, InducingFeatures
from ppl_dgp.gp.means import Linear, Mean
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
#: one of them, a mean, or what makes one
MeanChoice: TypeAlias = str | Mean | Callable[[], Mean]
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
        "zero", of which q(u) begins at the same linear map. Of any layer also a mean, ``Zero``, ``Constant`` or
        ``Linear``, which is held, or a function without arguments that makes one and may declare sites. The last
        block's is 0 if None.
    :param inducing: inputs (M, D) to begin at; or inducing features, such as ``Derivatives``, ``GaussianWindows`` or,
        where x comes in as it is, ``Fourier``, which are held; or a function without arguments that makes them and may
        declare sites. See :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :param train_inducing: whether inducing inputs are learnt.
    :raises ValueError: for settings of the wrong kind; when it is run, for features or a mean of other numbers of
        inputs or outputs, and for features of an interval above another block, whose outputs have no ends.
    """

    width: int | None = None
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    mean: MeanChoice | None = None
    inducing: GivenInducing | InducingFeatures | Callable[[], InducingFeatures] | None = None
    train_inducing: bool = True

    def __post_init__(self) -> None:
        own = _own_mean(self.mean)
        if isinstance(self.inducing, InducingFeatures) or callable(self.inducing):
            own += ("inducing",)
            self._check_features(self.inducing)
        if isinstance(self.inducing, InducingFeatures):
            self._settle(num_inducing=self.inducing.shape[0])
        self._settle(**checked_settings(self, without=own, mean=MEANS))

    def _check_features(self, features: InducingFeatures | Callable[[], InducingFeatures]) -> None:
        known = {NUM_INDUCING} | ({features.shape[0]} if isinstance(features, InducingFeatures) else set())
        if self.num_inducing not in known:
            raise ValueError(
                f"num_inducing: found {self.num_inducing} beside inducing features, which are as many as they are; "
                "leave it out"
            )
        if self.train_inducing is not True:
            raise ValueError(
                f"train_inducing: found {self.train_inducing!r} beside inducing features, of which a function that "
                "makes them says what is learnt; leave it out"
            )

    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        name, rows = place.name, place.rows
        z: Array | InducingFeatures
        if isinstance(self.inducing, InducingFeatures) or callable(self.inducing):
            z = _features(self.inducing, place)
        else:
            z = inducing_inputs(name, rows, self.num_inducing, self.train_inducing, self.inducing)
        kernel = kernel_parameters(name, self.kernel, rows.shape[1], begin=place.begin)
        start = _linear_start(place, width, self.mean, hidden)
        # features have no inputs that a layer could be drawn at, or a draw take the place of
        points = place.before is not None and isinstance(place.before.inducing, Array)
        before = place.before if points and isinstance(z, Array) else None
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
    mean: MeanChoice | None = None
    train_frequencies: bool = False

    def __post_init__(self) -> None:
        self._settle(**checked_settings(self, without=_own_mean(self.mean), mean=MEANS))
        if isinstance(self.kernel, type | Kernel):
            check_spectral(self.kernel if isinstance(self.kernel, type) else type(self.kernel))

    def function(self, place: Place, width: int, hidden: bool) -> tuple[SparseGP, Float[Array, "N Q"]]:
        name, dims = place.name, place.rows.shape[1]
        kernel = kernel_parameters(name, self.kernel, dims, begin=place.begin)
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
    under Gaussian noise, at the regression of y on the units, of classes at that of ±1. Give small tables few units:
    each costs its KL, and the bound of a wide layer may be highest where it ignores the data (Coker et al. 2022), a
    constant function and noise.

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
    mean: Mean | None = None
    scale: float = 1.0
    begin_at: Callable[[], tuple[Array, Array, float]] | None = None


def _linear_start(place: Place, width: int, mean: MeanChoice | None, hidden: bool) -> _Start:
    """A hidden layer begins at the linear map of deep GPs, as its mean or by its u, or at its own mean; the last at 0.

    :raises ValueError: for a mean of another number of outputs.
    """
    scale = INNER_SCALE if hidden else 1.0
    if mean is not None and not isinstance(mean, str):
        given: Mean = mean if isinstance(mean, Mean) else mean()
        rows = given(place.rows)
        if rows.shape[1] not in (1, width):
            raise ValueError(
                f"mean: found {rows.shape[1]} outputs for {place.name!r}, expected {width}, as the layer has"
            )
        return _Start(jnp.broadcast_to(rows, (len(rows), width)), given, scale)
    if not hidden:
        return _Start(place.rows)
    linear = Linear(held_layer_map(place.name, place.rows, width))
    rows = linear(place.rows)
    if mean != "zero":
        return _Start(rows, linear, scale)
    return _Start(rows, None, scale, lambda: (place.rows, rows, START_NOISE))


def _own_mean(mean: object) -> tuple[str, ...]:
    """The setting, where it is none of the names."""
    return ("mean",) if callable(mean) else ()


def _features(given: InducingFeatures | Callable[[], InducingFeatures], place: Place) -> InducingFeatures:
    """A layer's features.

    :raises ValueError: for those of other inputs than the layer has.
    """
    features = given if isinstance(given, InducingFeatures) else given()
    if not isinstance(features, InducingFeatures):
        raise ValueError(f"inducing: found {features!r} from a function, expected inducing features")
    if features.shape[1] != place.rows.shape[1]:
        raise ValueError(
            f"inducing: found {type(features).__name__} of {features.shape[1]} inputs for {place.name!r}, expected "
            f"{place.rows.shape[1]}, as its inputs have columns"
        )
    if isinstance(features, FixedFunctions) and place.rows is not place.x:
        raise ValueError(
            f"inducing: found {type(features).__name__} for {place.name!r}, expected inducing inputs or other "
            "features, for what another block hands on may leave an interval; put the layer first, or leave it out"
        )
    return features
