r"""How a chain of ``fit_sghmc`` moves: Hamiltonian dynamics with friction, which are ours, and two of BlackJAX.

With U = −log p(θ, y), its slope g = ∇U/N estimated on a minibatch, a ``pace`` ε²/√(average square of g) of each number,
and V, the variance of g at one θ, all of them leave exp(−U) as it is in the limit of small ε:

.. math::
    \text{sghmc:}\quad & v ← (1 − c) v − \text{pace}\, g + N(0, 2 c\, \text{pace}/N − \text{pace}^2 V),
        \qquad θ ← θ + v \\
    \text{sgnht:}\quad & v ← (1 − c ξ) v − \text{pace}\, g + N(0, 2 c\, \text{pace}/N), \qquad θ ← θ + v,
        \qquad ξ ← ξ + c\, (\overline{N v^2/\text{pace}} − 1) \\
    \text{sgld:}\quad & θ ← θ − \text{pace}\, g + N(0, 2\, \text{pace}/N)

(Chen, Fox & Guestrin 2014; the thermostat of Ding et al. 2014, an average over all numbers of a chain; Welling & Teh
2011.) BlackJAX has one step for all numbers, and moves each here in a unit of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.extras import needed_for
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.messages import unknown_name

#: c where none is given
FRICTION = 0.05


class Motion(NamedTuple):
    """Where C chains are: trees of arrays (C, …) by name, and the thermostat ξ, 1 without one."""

    values: Parameters
    velocity: Parameters
    thermostat: Float[Array, " C"]


@dataclass(frozen=True)
class Dynamics(ABC):
    """A step of chains, of ``friction`` c, which needs noise of 2 c pace/N.

    ``most_scatter`` is the share of that noise which slopes of minibatches may have where a step is chosen, and
    ``too_much`` the share from which a number spreads too far.
    """

    friction: float = FRICTION

    most_scatter: ClassVar[float] = 0.5
    too_much: ClassVar[float] = 1.0

    @abstractmethod
    def moved(
        self, motion: Motion, slope: Parameters, pace: Parameters, scatter: Parameters, key: Array, size: int
    ) -> Motion:
        """The chains a step on.

        :param slope: g (C, …) at the values. :param scatter: V (C, …). :param size: N.
        """


@dataclass(frozen=True)
class Hamiltonian(Dynamics):
    """SGHMC, what slopes scatter taken off the noise of a step."""

    def moved(
        self, motion: Motion, slope: Parameters, pace: Parameters, scatter: Parameters, key: Array, size: int
    ) -> Motion:
        values, velocity = {}, {}
        for number, (name, g) in enumerate(slope.items()):
            variance = 2.0 * self.friction * pace[name] / size - jnp.square(pace[name]) * scatter[name]
            noise = jax.random.normal(jax.random.fold_in(key, number), g.shape, g.dtype)
            velocity[name] = (
                (1.0 - self.friction) * motion.velocity[name]
                - pace[name] * g
                + jnp.sqrt(jnp.maximum(variance, 0.0)) * noise
            )
            values[name] = motion.values[name] + velocity[name]
        return Motion(values, velocity, motion.thermostat)


@dataclass(frozen=True)
class Langevin(Dynamics):
    """SGLD: a friction of 1 leaves no velocity, and what slopes scatter adds to the noise of a step."""

    friction: float = 1.0

    most_scatter: ClassVar[float] = 0.05
    too_much: ClassVar[float] = 0.2

    def moved(
        self, motion: Motion, slope: Parameters, pace: Parameters, scatter: Parameters, key: Array, size: int
    ) -> Motion:
        from blackjax.sgmcmc import sgld

        kernel, unit = sgld.build_kernel(), _unit(pace, size)

        def one(key: Array, position: Parameters, uphill: Parameters) -> Parameters:
            moved: Parameters = kernel(key, position, lambda *_: uphill, None, 1.0)
            return moved

        keys = jax.random.split(key, len(motion.thermostat))
        moved = jax.vmap(one)(keys, _in(unit, motion.values), _uphill(slope, unit, size))
        values = jax.tree.map(jnp.multiply, moved, unit)
        return Motion(values, motion.velocity, motion.thermostat)


@dataclass(frozen=True)
class NoseHoover(Dynamics):
    """SGNHT: a thermostat takes off the kinetic energy that slopes' scatter adds, as far as all numbers share it."""

    def moved(
        self, motion: Motion, slope: Parameters, pace: Parameters, scatter: Parameters, key: Array, size: int
    ) -> Motion:
        from blackjax.sgmcmc import sgnht

        # a step of c: the thermostat then turns as fast as the friction forgets
        kernel, of_velocity = sgnht.build_kernel(alpha=1.0), _unit(pace, size)
        unit = jax.tree.map(lambda each: each / self.friction, of_velocity)

        def one(
            key: Array, position: Parameters, momentum: Parameters, thermostat: Array, uphill: Parameters
        ) -> tuple[Parameters, Array]:
            state = sgnht.SGNHTState(position, momentum, thermostat)
            state = kernel(key, state, lambda *_: uphill, None, self.friction)
            return state.momentum, state.xi

        keys = jax.random.split(key, len(motion.thermostat))
        momentum, thermostat = jax.vmap(one)(
            keys, _in(unit, motion.values), _in(of_velocity, motion.velocity), motion.thermostat,
            _uphill(slope, unit, size),
        )  # fmt: skip
        # BlackJAX moves positions before momenta: the values here are its next position, where the slope is of
        velocity = jax.tree.map(jnp.multiply, momentum, of_velocity)
        values = jax.tree.map(jnp.add, motion.values, velocity)
        return Motion(values, velocity, thermostat)


def dynamics_of(name: str, friction: float | None) -> Dynamics:
    """The dynamics of a name.

    :param friction: c, in (0, 1); None for the usual one, and for ``sgld``, where it is 1.
    :raises ValueError: for another name, a friction out of range, or one of ``sgld``.
    :raises MissingExtra: where BlackJAX is needed and is not installed.
    """
    known: dict[str, type[Dynamics]] = {"sghmc": Hamiltonian, "sgld": Langevin, "sgnht": NoseHoover}
    if not isinstance(name, str) or name not in known:
        raise unknown_name(f"dynamics: found {name!r}", str(name), known)
    if friction is not None and not 0.0 < friction < 1.0:
        raise ValueError(f"friction: found {friction}, expected a number in (0, 1); try {FRICTION}")
    if name != "sghmc":
        with needed_for(f"dynamics={name!r}"):
            import blackjax.sgmcmc  # noqa: F401
    if friction is None:
        return known[name]()
    if name == "sgld":
        raise ValueError(f"friction: found {friction} with dynamics='sgld', which has none; leave it out")
    return known[name](friction)


def _unit(pace: Parameters, size: int) -> Parameters:
    """The unit of each number in which one step of Langevin dynamics has the size 1."""
    return {name: jnp.sqrt(each / size) for name, each in pace.items()}


def _in(unit: Parameters, values: Parameters) -> Parameters:
    return {name: value / unit[name] for name, value in values.items()}


def _uphill(slope: Parameters, unit: Parameters, size: int) -> Parameters:
    """∇ log p in the units."""
    return {name: -size * unit[name] * g for name, g in slope.items()}
