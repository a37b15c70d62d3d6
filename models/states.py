"""Where the states of a state space model begin, and what its transition and emission begin at beside them.

Shapes: T steps of S sequences, P columns of y, Q state dimensions, C controls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float, Num

from ppl_dgp.gp.linear_map import Affine
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.models.inducing import inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernels_of_outputs
from ppl_dgp.models.latents import components
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.linear_gaussian_em import linear_dynamics
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.subspace import subspace_states

STATE_STARTS = ("outputs", "linear", "subspace")
EMISSIONS = ("identity", "linear", "gp")
#: of the variance of the states, the least that a linear start leaves to the noise of the transition
LEAST_NOISE = 1e-3


def checked_start(start: str, emission: str) -> None:
    """Refuse, by a ValueError, states in coordinates of their own where those of y are observed."""
    if start == "subspace" and emission == "identity":
        raise ValueError(
            "start: found 'subspace' beside an identity emission, expected an emission that is learnt: the states that "
            "it finds are not those of y; take emission='linear', or start='outputs'"
        )


@dataclass(frozen=True)
class Start:
    """States in their slots, with the linear transition and emission that belong to them.

    ``transition`` (Q + C, Q) and ``shift`` (Q,), ``weights`` (Q, P) and ``bias`` (P,); ``noise`` (Q,) if it is known.
    """

    path: Float[Array, "slots Q"]
    transition: Float[Array, "QC Q"]
    shift: Float[Array, " Q"]
    weights: Float[Array, "Q P"]
    bias: Float[Array, " P"]
    noise: Float[Array, " Q"] | None = None

    def process_noise(self, otherwise: float) -> Float[Array, " Q"]:
        """Variances of the transition."""
        return jnp.full(self.shift.shape, otherwise) if self.noise is None else self.noise


class StateInitialiser:
    """What a model begins at, found when it is initialised: later runs have the states as the held site ``x/begin``."""

    def __init__(
        self,
        start: str,
        y: Array | None,
        controls: Float[Array, "T C"],
        where: Layout,
        widths: tuple[int, int],
        missing: bool,
        emission: str,
        initial: tuple[float, float],
    ) -> None:
        width, functions = widths
        if emission == "identity" and width < functions:
            raise ValueError(
                f"latent: found {width}, expected at least {functions}, the dimensions that an identity emission "
                "observes; take emission='linear'"
            )
        self._start, self._y, self._controls, self._where = start, y, controls, where
        self.widths, self._missing, self._identity, self._initial = (
            widths,
            missing,
            emission == "identity",
            initial,
        )
        self._path: Float[Array, "slots Q"] | None = None
        if y is not None:
            self._path = jax.lax.stop_gradient(numpyro.param("x/begin", lambda _: self.linear.path))

    @cached_property
    def linear(self) -> Start:
        """From y, if it is known."""
        width, functions = self.widths
        transition = jnp.eye(width + self._controls.shape[1], width)
        if self._y is None:
            path = jnp.zeros((self._controls.shape[0] + self._where.num_sequences, width))
            return Start(path, transition, jnp.zeros(width), jnp.eye(width, functions), jnp.zeros(functions))
        if self._start == "subspace":
            settings = self._controls, self._where, width, self._missing, self._initial
            states = states_by_subspace(self._y, *settings)
            return self._smoothed(self._y, states, functions)
        states, weights, bias = states_as_observed(self._y, self._where, self.widths, self._missing)
        if self._start == "linear":
            return self._smoothed(self._y, states, functions)
        path = self._where.path(states[self._where.beginning], states)
        return Start(path, transition, jnp.zeros(width), weights, bias)

    @property
    def states(self) -> Float[Array, "T Q"]:
        """After each step."""
        return self._slots[self._where.after]

    @property
    def inputs(self) -> Float[Array, "T QC"]:
        """The states before each step, and its controls."""
        return jnp.concatenate([self._slots[self._where.after - 1], self._controls], 1)

    @property
    def lengthscales(self) -> Float[Array, " QC"]:
        """√D deviations of each input, so that distances between inputs are of the order of 1."""
        inputs = self.inputs
        return jnp.sqrt(inputs.shape[1]) * jnp.maximum(inputs.std(0), 1e-3)

    @property
    def variance(self) -> Float[Array, ""]:
        """What a linear transition leaves open, the most that f has to explain."""
        return self.linear.process_noise(1.0).max()

    def path(self, deviation: Float[Array, " Q"]) -> Gaussian:
        """All slots."""
        return Gaussian(self._slots, jnp.broadcast_to(deviation, self._slots.shape))

    @property
    def _slots(self) -> Float[Array, "slots Q"]:
        return self.linear.path if self._path is None else self._path

    def _smoothed(self, y: Array, states: Float[Array, "T Q"], functions: int) -> Start:
        """By the linear-Gaussian model that EM finds from states as y has them."""
        observed = y.astype(float), self._controls, states, self._where
        # of dynamics that grow without end no simulation would come back
        smoothed = linear_dynamics(
            *observed, initial=self._initial, fixed_emission=self._identity, stable=True
        )
        system = smoothed.system
        emission = system.weights.T, system.offset
        if functions > y.shape[1]:
            # the first functions are those of y, the others begin at 0
            emission = jax.tree.map(
                lambda values: jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, functions - y.shape[1])]),
                emission,
            )
        elif functions < y.shape[1]:
            emission = jnp.eye(states.shape[1], functions), jnp.zeros(functions)
        # few steps, or a series that repeats itself, are followed without any noise, from which no fit could begin
        spread = states.var(0)
        spread = jnp.where(spread > 1e-12, spread, self._initial[1] ** 2)
        noise = jnp.maximum(system.noise, LEAST_NOISE * spread)
        return Start(smoothed.means, system.transition.T, system.bias, *emission, noise)


def states_as_observed(
    y: Float[Array, "T _"], where: Layout, widths: tuple[int, int], missing: bool
) -> tuple[Float[Array, "T Q"], Float[Array, "Q P"], Float[Array, " P"]]:
    """States as y has them, C and d: its principal components where they are fewer, else y and its earlier values."""
    width, functions = widths
    plain = jnp.eye(width, functions), jnp.zeros(functions)
    if width < y.shape[1]:
        principal = components(jax.random.PRNGKey(0), y, width, "pca", missing)
        linear = (principal.unit[:, None] * principal.axes).T, principal.centre
        return principal.scores(y, missing), *(linear if functions == y.shape[1] else plain)
    columns = _bridged(y, missing)
    lags = [columns]
    while sum(lag.shape[1] for lag in lags) < width:
        # the value before the first of a sequence is taken to be the first
        earlier = jnp.concatenate([lags[-1][:1], lags[-1][:-1]])
        lags.append(jnp.where(where.first[:, None], lags[-1], earlier))
    return jnp.concatenate(lags, 1)[:, :width], *plain


def states_by_subspace(
    y: Float[Array, "T P"],
    controls: Float[Array, "T C"],
    where: Layout,
    width: int,
    missing: bool,
    initial: tuple[float, float],
) -> Float[Array, "T Q"]:
    """States by a subspace method, gaps in y bridged by straight lines, with the mean and variance of x_0."""
    states = subspace_states(_bridged(y, missing), controls, width, where)
    return initial[0] + math.sqrt(initial[1]) * states


def emission_function(
    how: str,
    begin: StateInitialiser,
    num_inducing: int,
    kernel: KernelChoice,
    train_inducing: bool,
    jitter: float | None,
    separate: bool = False,
) -> SparseGP:
    """g, from states to what the likelihood is given, by the name of an emission."""
    width, functions = begin.widths
    if how == "gp":
        own = functions if separate else None
        sites = inducing_inputs("emission", lambda: begin.states, num_inducing, train_inducing, outputs=own)
        kernels = kernels_of_outputs(own, "emission", kernel, width)
        return sparse_gp("emission", kernels, sites, functions, jitter=jitter)
    if how == "identity":
        return Affine("emission", jnp.eye(width, functions), jnp.zeros(functions))
    weights = numpyro.param("emission/weights", lambda _: begin.linear.weights)
    return Affine("emission", weights, numpyro.param("emission/bias", lambda _: begin.linear.bias))


def _bridged(y: Num[Array, "T P"], missing: bool) -> Float[Array, "T P"]:
    """Each missing entry from those before and after it, on a straight line."""
    y = y.astype(float)
    if not missing:
        return y
    there, times = ~jnp.isnan(y), jnp.arange(y.shape[0])
    known = jnp.where(there, y, 0.0)
    before = jax.lax.cummax(jnp.where(there, times[:, None], -1), axis=0)
    after = jax.lax.cummin(jnp.where(there, times[:, None], y.shape[0]), axis=0, reverse=True)
    first, last = jnp.where(before < 0, after, before), jnp.where(after == y.shape[0], before, after)
    first, last = jnp.clip(first, 0, y.shape[0] - 1), jnp.clip(last, 0, y.shape[0] - 1)
    share = (times[:, None] - first) / jnp.maximum(last - first, 1)
    return (1.0 - share) * jnp.take_along_axis(known, first, 0) + share * jnp.take_along_axis(known, last, 0)
