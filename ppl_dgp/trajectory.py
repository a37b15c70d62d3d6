r"""A trajectory through a sampled function, one site with a vectorised density.

.. math::
    x_0 \sim N(m_0, s_0^2), \quad x_t = f(x_{t-1}, c_t) + \varepsilon_t, \quad \varepsilon_t \sim N(0, Q)

(Frigola 2014; Bui 2017, 3.2). Only drawing it takes a pass over t. Shapes: T steps, of S sequences one after the other;
Q state dimensions, C controls. The site's event is (T + S, Q): each sequence begins with the slot of its x_0, so that
of one sequence it is x_0, x_1 … x_T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int, Num
from numpyro.distributions import constraints
from numpyro.handlers import block

from ppl_dgp.gaussian import Gaussian
from ppl_dgp.gp import Emission, SparseGP, bare
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.means import Zero
from ppl_dgp.tempering import Alpha


@dataclass(frozen=True)
class Layout:
    """Where each step of S sequences finds its states in the event of a trajectory.

    :param first: whether a step is the first of its sequence.
    :param num_sequences: S.
    """

    first: Bool[Array, " T"]
    num_sequences: int = 1

    @property
    def sequence(self) -> Int[Array, " T"]:
        """The sequence of each step, from 0."""
        return jnp.cumsum(self.first) - 1

    @property
    def after(self) -> Int[Array, " T"]:
        """The slots of x_t."""
        return jnp.arange(self.first.shape[0]) + self.sequence + 1

    @property
    def beginning(self) -> Int[Array, " S"]:
        """The rows of the first steps."""
        return jnp.nonzero(self.first, size=self.num_sequences)[0]

    @property
    def initial(self) -> Int[Array, " S"]:
        """The slots of x_0."""
        return self.beginning + jnp.arange(self.num_sequences)

    def path(self, initial: Float[Array, "S *Q"], states: Float[Array, "T *Q"]) -> Float[Array, "slots *Q"]:
        """Initial states and those after the steps, in their slots."""
        empty = jnp.zeros((states.shape[0] + self.num_sequences, *states.shape[1:]), states.dtype)
        return empty.at[self.after].set(states).at[self.initial].set(initial)


def layout(num_steps: int, numbers: Num[Array, " T"] | None = None, num_sequences: int = 1) -> Layout:
    """The layout of T steps, each with the number of its sequence; one sequence if there are no numbers.

    :raises ValueError: if the rows of a sequence do not follow each other, or there are not S of them, where the
        numbers are concrete.
    """
    if numbers is None:
        return Layout(jnp.arange(num_steps) == 0)
    if not isinstance(numbers, jax.core.Tracer):
        rows = np.asarray(numbers)
        found, pieces = len(np.unique(rows)), 1 + int((np.diff(rows) != 0).sum())
        if found != num_sequences or pieces != found:
            raise ValueError(
                f"x: found {found} sequences in {pieces} pieces, expected {num_sequences}, the rows of each next to "
                "each other; sort the rows, or set num_sequences"
            )
    return Layout(jnp.concatenate([jnp.ones(1, bool), numbers[1:] != numbers[:-1]]), num_sequences)


class Transition(Emission):
    """Steps of a trajectory given the states before them: batch (B,), event (Q,).

    All of a trajectory's states stand outside the logarithm, and so does u where it is carried as moments.
    """

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = True) -> Float[Array, "B"]:
        return super().tempered(value, alpha, u_outside=True)


class Trajectory(dist.Distribution):
    """The states of S sequences: batch (), event (T + S, Q).

    ``log_prob`` is the density of the model in which the f(x_{t−1}, c_t) are independent given u (FITC), as of an
    :class:`ppl_dgp.gp.Emission`; draws take u as the function carries it, once for the whole trajectory.

    :param function: f, of Q + C inputs, the state first.
    :param noise: Q's diagonal.
    :param controls: c_t, (T, C), C = 0 for none.
    :param initial: m_0 and s_0 of each sequence.
    :param layout: which steps begin a sequence; one does if not given.
    :raises ValueError: if the inputs of f are not Q + C.
    """

    def __init__(
        self,
        function: SparseGP,
        noise: Float[Array, " Q"],
        controls: Float[Array, "T C"],
        initial: Gaussian,
        layout: Layout | None = None,
    ) -> None:
        width = noise.shape[0]
        if function.inducing.shape[1] != width + controls.shape[1]:
            raise ValueError(
                f"{function.name}: found {function.inducing.shape[1]} inputs, expected {width + controls.shape[1]}: "
                f"{width} states and {controls.shape[1]} controls"
            )
        self.function, self.noise, self.controls, self.initial = function, noise, controls, initial
        self.layout = Layout(jnp.arange(controls.shape[0]) == 0) if layout is None else layout
        event = (controls.shape[0] + self.layout.num_sequences, width)
        super().__init__((), event, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_matrix

    @property
    def mean(self) -> Float[Array, "slots Q"]:
        """Of x_0; of the other states it is not known, and m_0 stands for it."""
        return jnp.broadcast_to(self.initial.mean[:1], self.event_shape)

    @property
    def prior(self) -> dist.Distribution:
        """p(x_0), batch (S,), event (Q,)."""
        return dist.Normal(self.initial.mean, self.initial.scale).to_event(1)

    def at(self, states: Float[Array, "B Q"] | Gaussian, controls: Float[Array, "B C"] | None = None) -> Transition:
        """The steps from given states, or their moments, by default one for each of the T controls."""
        inputs = followed(states, self.controls if controls is None else controls)
        # a trajectory's f is integrated out step by step: no objective is to draw it instead
        with block():
            marginal = self.function(inputs)
        return Transition(marginal, GaussianNoise(self.noise))

    def steps(self, path: Float[Array, "slots Q"]) -> Transition:
        """All steps along a path."""
        return self.at(path[self.layout.after - 1])

    def states(self, path: Float[Array, "slots Q"] | Gaussian) -> Any:
        """x_t after each step, (T, Q), of a path or of its moments."""
        return jax.tree.map(lambda leaf: leaf[self.layout.after], path)

    def log_prob(self, value: Float[Array, "slots Q"]) -> Float[Array, ""]:
        """log p(path | u), no pass over t."""
        started = self.prior.log_prob(value[self.layout.initial]).sum()
        return started + self.steps(value).log_prob(self.states(value)).sum()

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
        paths = jax.vmap(lambda each: along(trajectory, initial, conditional, params, each))(keys)
        return paths.reshape(*sample_shape, *paths.shape[1:])
    key_initial, key_steps = jax.random.split(key)
    begin = initial.sample(key_initial)
    where = trajectory.layout
    keys = jax.random.split(key_steps, where.first.shape[0])

    def step(state: Array, turn: Any) -> tuple[Array, Array]:
        key, own, control, first, started = turn
        state = jnp.where(first, started, state)
        own = jax.tree.map(lambda leaf: leaf[None], own)
        state = conditional(trajectory.at(state[None], control[None]), own).sample(key)[0]
        return state, state

    turns = keys, params, trajectory.controls, where.first, begin[where.sequence]
    return where.path(begin, jax.lax.scan(step, begin[0], turns)[1])


def trajectory_of(distribution: dist.Distribution) -> Trajectory | None:
    """The trajectory inside a site's distribution, None where it is another."""
    inner = bare(distribution)
    return inner if isinstance(inner, Trajectory) else None


def without_mean(step: Emission) -> Emission:
    """A step whose function is said to have no mean, so that rules begin around the step's own."""
    outputs = step.marginal.mean.shape[1]
    function = replace(step.marginal.function, mean=Zero(outputs))
    return Emission(replace(step.marginal, function=function), step.likelihood)
