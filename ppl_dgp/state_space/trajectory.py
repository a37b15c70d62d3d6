r"""A trajectory through a sampled function, one site with a vectorised density.

.. math::
    x_0 \sim N(m_0, s_0^2), \quad x_t = f(x_{t-1}, c_t) + \varepsilon_t, \quad \varepsilon_t \sim N(0, Q)

(Frigola 2014; Bui 2017, 3.2). Only drawing it takes a pass over t. Shapes: T steps, of S sequences one after the other;
Q state dimensions, C controls. The site's event is (T + S, Q): each sequence begins with the slot of its x_0, so that
of one sequence it is x_0, x_1 … x_T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints
from numpyro.handlers import block

from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.windows import Windows


class Transition(Emission):
    """Steps of a trajectory given the states before them: batch (B,), event (Q,).

    All of a trajectory's states stand outside the logarithm, and so does u where it is carried as moments.
    """

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = True) -> Float[Array, "B"]:
        return super().tempered(value, alpha, u_outside=True)


class Trajectory(dist.Distribution):
    """The states of S sequences: batch (), event (T + S, Q).

    ``log_prob`` is the density of the model in which the f(x_{t−1}, c_t) are independent given u (FITC), as of an
    :class:`ppl_dgp.gp.emission.Emission`; draws take u as the function offered it, once for the whole trajectory.

    :param function: f, of Q + C inputs, the state first.
    :param noise: Q's diagonal.
    :param controls: c_t, (T, C), C = 0 for none.
    :param initial: m_0 and s_0 of each sequence.
    :param layout: which steps begin a sequence; one does if not given.
    :param windows: how the series is cut where minibatches are windows of it, and those that ``whole`` is given for.
    :param whole: the trajectory of the whole series, where the steps are those of some windows: each of these is a
        sequence whose first slot holds the state before it.
    :param timed: whether the last control is Δt, the time of a step, over which noise adds up: ε_t ~ N(0, Δt Q).
    :raises ValueError: if the inputs of f are not Q + C.
    """

    def __init__(
        self,
        function: SparseGP,
        noise: Float[Array, " Q"],
        controls: Float[Array, "T C"],
        initial: Gaussian,
        layout: Layout | None = None,
        windows: Windows | None = None,
        whole: Trajectory | None = None,
        timed: bool = False,
    ) -> None:
        width = noise.shape[0]
        if function.num_inputs != width + controls.shape[1]:
            raise ValueError(
                f"{function.name}: found {function.num_inputs} inputs, expected {width + controls.shape[1]}: "
                f"{width} states and {controls.shape[1]} controls"
            )
        self.function, self.noise, self.controls, self.initial = function, noise, controls, initial
        self.layout = Layout(jnp.arange(controls.shape[0]) == 0) if layout is None else layout
        self.windows, self.whole, self.timed = windows, whole, timed
        event = (controls.shape[0] + self.layout.num_sequences, width)
        super().__init__((), event, validate_args=False)

    def in_windows(self, windows: Windows) -> Trajectory:
        """The same at the rows of some windows."""
        controls, slots = (
            self.controls[windows.rows],
            windows.layout.sequence[windows.first_rows],
        )
        initial = Gaussian(self.initial.mean[slots], self.initial.scale[slots])
        return Trajectory(
            self.function, self.noise, controls, initial, windows.pieces, windows, self, self.timed
        )

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_matrix

    @property
    def mean(self) -> Float[Array, "slots Q"]:
        """Mean of x_0; of the other states it is not known, and m_0 stands for it."""
        return jnp.broadcast_to(self.initial.mean[:1], self.event_shape)

    @property
    def noises(self) -> Float[Array, "K Q"]:
        """Q's diagonal under each of the regimes, of which there is one unless f switches."""
        return self.noise[None]

    def noise_at(
        self, controls: Float[Array, "*B C"], regime: Int[Array, "*_"] | None = None
    ) -> Float[Array, "*_ Q"]:
        """Variances of the noise of steps under given controls, of regimes where f switches; shapes broadcast."""
        noise = self.noise if regime is None else self.noises[regime]
        return noise * controls[..., -1:] if self.timed else noise

    def next_regime(self, key: Array, regime: Int[Array, ""]) -> Int[Array, ""]:
        """Regime of the step after one, drawn."""
        return regime

    def regime_ahead(self, key: Array, path: Float[Array, "slots Q"], last: Array | None) -> Int[Array, ""]:
        """Regime of the step after the state of a slot, or of the first of a new sequence, drawn given the path."""
        return jnp.asarray(0)

    @property
    def prior(self) -> dist.Distribution:
        """p(x_0), batch (S,), event (Q,)."""
        return dist.Normal(self.initial.mean, self.initial.scale).to_event(1)

    def at(
        self, states: Float[Array, "B Q"] | Gaussian, controls: Float[Array, "B C"] | None = None
    ) -> Transition:
        """The steps from given states, or their moments, by default one for each of the T controls."""
        controls = self.controls if controls is None else controls
        inputs = followed(states, controls)
        # a trajectory's f is integrated out step by step: no objective is to draw it instead
        with block():
            marginal = self.function(inputs)
        return Transition(marginal, GaussianNoise(self.noise_at(controls)))

    def check_followed(self) -> None:
        """Refuse, by a ValueError, a q of the states that is a function of u or of f."""

    def steps(self, path: Float[Array, "slots Q"]) -> Transition:
        """All steps along a path."""
        return self.at(path[self.layout.after - 1])

    def states(self, path: Float[Array, "slots Q"] | Gaussian) -> Any:
        """x_t after each step, (T, Q), of a path or of its moments."""
        return jax.tree.map(lambda leaf: leaf[self.layout.after], path)

    def in_lanes(self, rows: Any) -> Any:
        """Values of the steps, a pytree, as a scan takes it, windows side by side: from (T, …) to (L, W, …)."""
        lanes = 1 if self.whole is None else self.layout.num_sequences
        length = self.controls.shape[0] // lanes
        return jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf.reshape(lanes, length, *leaf.shape[1:]), 1, 0), rows
        )

    def out_of_lanes(self, steps: Any) -> Any:
        """Values of the steps from a scan, back to rows."""
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), steps)

    def log_prob(self, value: Float[Array, "slots Q"]) -> Float[Array, ""]:
        """log p(path | u), no pass over t; of a window without the state before it."""
        started = self.prior.log_prob(value[self.layout.initial])
        return self.total(started, self.steps(value).log_prob(self.states(value)))

    def total(
        self, initial: Float[Array, " S"], steps: Float[Array, " T"], own_starts: bool = False
    ) -> Float[Array, ""]:
        """The sum of terms of the x_0 and of the steps, each as often as it counts.

        :param own_starts: whether the first state of every window counts, or only those that begin a sequence.
        """
        if self.whole is None or self.windows is None:
            return initial.sum() + steps.sum()
        begins = True if own_starts else self.windows.begins
        return jnp.where(begins, initial, 0.0).sum() + jnp.where(self.windows.counted, steps, 0.0).sum()

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S slots Q"]:
        """Paths, by a scan."""
        return along(self, self.prior, lambda step, _: step, {}, key, sample_shape)


def followed(
    states: Float[Array, "B Q"] | Gaussian, controls: Float[Array, "B C"]
) -> Float[Array, "B QC"] | Gaussian:
    """States, or their moments, with the controls behind them."""
    if controls.shape[1] == 0:
        return states
    if not isinstance(states, Gaussian):
        return jnp.concatenate([states, controls], 1)
    zeros = jnp.zeros_like(controls)
    if states.diagonal:
        scale = jnp.concatenate([states.scale, zeros], 1)
    else:
        scale = jax.vmap(jax.scipy.linalg.block_diag)(states.scale, jax.vmap(jnp.diag)(zeros))
    return replace(states, mean=jnp.concatenate([states.mean, controls], 1), scale=scale)


def along(
    trajectory: Trajectory,
    initial: dist.Distribution,
    conditional: Callable[[Transition, Any], dist.Distribution],
    params: Any,
    key: Array,
    sample_shape: tuple[int, ...] = (),
) -> Float[Array, "*shape slots Q"]:
    """Draw paths step by step: x_0 from ``initial`` (S,), x_t from ``conditional`` given the step and its parameters.

    :param params: a pytree of arrays with a leading axis of T.
    """
    if sample_shape:
        keys = jax.random.split(key, int(np.prod(sample_shape)))
        paths = jax.vmap(lambda draw_key: along(trajectory, initial, conditional, params, draw_key))(keys)
        return paths.reshape(*sample_shape, *paths.shape[1:])
    key_initial, key_steps = jax.random.split(key)
    begin = initial.sample(key_initial)
    where = trajectory.layout
    lanes = trajectory.in_lanes((params, trajectory.controls, where.first, begin[where.sequence]))
    keys = jax.random.split(key_steps, lanes[2].shape[0])

    def step(state: Array, turn: Any) -> tuple[Array, Array]:
        key, (params, controls, first, started) = turn
        state = jnp.where(first[:, None], started, state)
        state = conditional(trajectory.at(state, controls), params).sample(key)
        return state, state

    states = jax.lax.scan(step, lanes[3][0], (keys, lanes))[1]
    return where.path(begin, trajectory.out_of_lanes(states))


def trajectory_of(distribution: dist.Distribution) -> Trajectory | None:
    """The trajectory inside a site's distribution, None where it is another."""
    inner = unwrap(distribution)
    return inner if isinstance(inner, Trajectory) else None


def without_mean(step: Emission) -> Transition:
    """A step whose function is said to have no mean, so that rules begin around the step's own."""
    outputs = step.marginal.mean.shape[1]
    function = replace(step.marginal.function, mean=Zero(outputs))
    return Transition(replace(step.marginal, function=function), step.likelihood)
