r"""The modes of a state space model's transition: eigenvalues of its linear part, or of f's Jacobian at a state.

A deviation from a path follows, to first order,

.. math::
    \delta_t = J \delta_{t-1}, \quad J = \partial f / \partial x, \quad
    \delta_t = \sum_k c_k \lambda_k^t v_k, \quad \lambda = \rho e^{i \omega}

which decays by 1/e in −1/log ρ steps and turns round once in 2π/ω. Where f's mean function is linear, its weights are J
far from the data. Shapes: B states, Q state dimensions, K controls.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float
from numpy.typing import ArrayLike

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.means import affine
from ppl_dgp.prediction.posterior_path import draw, series


@dataclass(frozen=True, eq=False, repr=False)
class Modes:
    """The Q eigenvalues of a step's Jacobian, the largest modulus first, of one or of a batch: (…, Q).

    ``eigenvalues`` are complex, of a pair the one that turns forward first. ``modulus`` is what a step multiplies a
    deviation by. ``period`` is the steps of a turn: infinite of a positive eigenvalue, 2 of a negative one, whose
    deviation changes its sign. ``decay`` is the steps in which a deviation falls to 1/e: infinite at modulus 1, and
    negative above it, where it grows by e in as many.
    """

    eigenvalues: Complex[np.ndarray, "*B Q"]

    @staticmethod
    def of(jacobian: ArrayLike) -> Modes:
        """Of matrices (…, Q, Q), such as A of x_t = A x_{t−1}.

        :raises ValueError: if they are not square.
        """
        matrix = np.asarray(jacobian)
        if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ValueError(
                f"jacobian: found shape {matrix.shape}, expected (..., Q, Q), of states by states; leave controls out"
            )
        values = np.linalg.eigvals(matrix).astype(complex)
        # both of a pair have one modulus but for rounding
        order = np.lexsort((-values.imag, -np.abs(values).round(12)))
        return Modes(np.take_along_axis(values, order, -1))

    @property
    def modulus(self) -> Float[np.ndarray, "*B Q"]:
        """ρ."""
        result: np.ndarray = np.abs(self.eigenvalues)
        return result

    @property
    def period(self) -> Float[np.ndarray, "*B Q"]:
        """2π/|ω|, in steps."""
        turn = np.abs(np.angle(self.eigenvalues))
        with np.errstate(divide="ignore"):
            result: np.ndarray = 2.0 * np.pi / turn
        return result

    @property
    def decay(self) -> Float[np.ndarray, "*B Q"]:
        """−1/log ρ, in steps."""
        with np.errstate(divide="ignore"):
            rate = -np.log(self.modulus)
            # of modulus 1 it takes for ever, and not minus for ever
            result: np.ndarray = 1.0 / np.where(rate == 0.0, 0.0, rate)
        return result

    @property
    def stable(self) -> bool:
        """Whether all deviations decay."""
        return bool((self.modulus < 1.0).all())

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}: {'stable' if self.stable else 'not stable'}"]
        if self.eigenvalues.ndim == 1:
            for number, value in enumerate(self.eigenvalues):
                facts = self.modulus[number], self.period[number], self.decay[number]
                lines.append(
                    f"  {value:.4f}  modulus {facts[0]:.4f}  period {facts[1]:.4g} steps  decay {facts[2]:.4g} steps"
                )
        else:
            lines.append(f"  of {self.eigenvalues.shape[:-1]} states, moduli up to {self.modulus.max():.4f}")
        return "\n".join(lines)


@takes_fit
def transition_modes(
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    at: Float[Array, "*B Q"] | None = None,
    controls: Float[Array, "*#B K"] | None = None,
) -> Modes:
    """The modes of the transition's linear part, or of the Jacobian of f's mean at states.

    :param fit: of a state space model, such as ``gpssm``.
    :param x: as trained on; None for no controls.
    :param y: as trained on.
    :param at: a state, or several, in their units; None for the weights of f's mean function, alone of the state: those
        of "linear" dynamics, ones of "identity", zeros of none.
    :param controls: one row for each state, or one for all; None where the model has none.
    :raises ValueError: if the model has no trajectory, if f switches between regimes, if states and controls are not
        the inputs of f; at states also where q(u) links outputs, or the guide draws anything besides u and the states.
    """
    drawn = draw(jax.random.PRNGKey(0), fit.model, fit.guide, fit.params, *series(x, y))
    regimes, width = drawn.trajectory.noises.shape
    if regimes > 1:
        raise ValueError(
            f"model: found {regimes} regimes, whose steps have no one Jacobian, expected one transition; see "
            "transition_function, and Modes.of the Jacobian of each"
        )
    f, num_controls = drawn.trajectory.function, drawn.trajectory.controls.shape[1]
    if at is None:
        weights, _ = affine(f.mean, width + num_controls)
        return Modes.of(np.zeros((width, width)) if weights is None else np.asarray(weights)[:width].T)
    states = jnp.asarray(at, float)
    given = jnp.zeros(0) if controls is None else jnp.asarray(controls, float)
    if (states.shape[-1], given.shape[-1]) != (width, num_controls):
        raise ValueError(
            f"at: found {states.shape[-1]} states and {given.shape[-1]} controls, expected {width} and "
            f"{num_controls}, the inputs of f"
        )
    beside = jnp.broadcast_to(given, (*states.shape[:-1], num_controls))
    known = drawn.integrated(f)
    mean = lambda state, control: known(jnp.concatenate([state, control])[None]).mean[0]
    flat = states.reshape(-1, width), beside.reshape(-1, num_controls)
    return Modes.of(np.asarray(jax.vmap(jax.jacrev(mean))(*flat)).reshape(*states.shape, width))
