"""A trajectory goes on from a state: f is one function along the path, drawn place by place, or anew at each step.

Or it goes on from a state's moments, a Gaussian carried from step to step. Shapes: H steps, D = Q + C inputs of f,
P = Q outputs, M inducing points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.handlers import block

from ppl_dgp.gp.moment_matching import linearised, matched_covariance
from ppl_dgp.gp.separate import is_separate
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, first_jitter
from ppl_dgp.state_space.trajectory import Trajectory, followed

#: beyond this number of steps f may rather be drawn anew at each, for one function along a path takes its cube
LONGEST_PATH = 300


def onward(
    key: Array,
    trajectory: Trajectory,
    state: Float[Array, " Q"],
    controls: Float[Array, "H C"],
    regime: Int[Array, ""] | int = 0,
    *,
    held: bool,
    function: SparseGP | None = None,
) -> Float[Array, "H Q"]:
    """States of H steps from one state, u the draw that the function offered.

    :param regime: which of the trajectory's functions the first step follows, where it has several.
    :param held: whether f is one function along the path, or drawn at each step independently given u.
    :param function: f at another draw of u than the trajectory's.
    """
    f = trajectory.function if function is None else function
    steps, width = controls.shape[0], state.shape[0]
    key_f, key_noise, key_regimes = jax.random.split(key, 3)
    shape = trajectory.noises.shape
    z = jax.random.normal(key_f, (steps, trajectory.noises.size), state.dtype)
    noise = jax.random.normal(key_noise, (steps, width), state.dtype)
    memory = FunctionPath.empty(f, steps, z)

    def step(
        carried: tuple[Array, Array, FunctionPath], turn: Any
    ) -> tuple[tuple[Array, Array, FunctionPath], Array]:
        state, regime, memory = carried
        control, shock, key = turn
        inputs = jnp.concatenate([state, control])[None]
        if held:
            value, memory = memory.meet(f, inputs)
        else:
            with block():
                marginal = f(inputs)
            value, memory = memory.apart(marginal.mean[0], marginal.variance[0])
        state = value.reshape(shape)[regime] + jnp.sqrt(trajectory.noise_at(control, regime)) * shock
        return (state, trajectory.next_regime(key, regime), memory), state

    turns = controls, noise, jax.random.split(key_regimes, steps)
    return jax.lax.scan(step, (state, jnp.asarray(regime), memory), turns)[1]


def onward_moments(
    function: SparseGP, trajectory: Trajectory, begin: Gaussian, controls: Float[Array, "H C"]
) -> Gaussian:
    """Moments of the states of H steps, (H, Q) with Cholesky factors, from those of one, (1, Q).

    f, and u where the function offered its moments, is integrated out at each step as if the steps shared no function:
    the moments of f(x) + ε, or of f linearised at the mean where ``begin`` asks for it (Bui 2017, 3.66–3.73 and 3.92).

    :param function: f, for the trajectory's.
    """
    root = begin.scale if not begin.diagonal else jax.vmap(jnp.diag)(begin.scale)

    def step(state: Gaussian, control: Array) -> tuple[Gaussian, tuple[Array, Array]]:
        inputs = followed(state, control[None])
        assert isinstance(inputs, Gaussian)
        with block():
            mean = function(inputs).mean
        lower, _ = cholesky(output_covariance(function, inputs) + jnp.diag(trajectory.noise_at(control)), 0.0)
        return replace(state, mean=mean, scale=lower), (mean[0], lower[0])

    mean, scale = jax.lax.scan(step, replace(begin, scale=root), controls)[1]
    return replace(begin, mean=mean, scale=scale)


def output_covariance(function: SparseGP, inputs: Gaussian) -> Float[Array, "B P P"]:
    """The covariance of a function's outputs at uncertain inputs, matched, or linearised if the inputs ask for it."""
    # what has no inducing points is affine, and linearised as it is
    if not inputs.linearise and function.num_inducing > 0:
        return matched_covariance(function, inputs)
    moments, jacobian = linearised(function, inputs)
    # J V Jᵀ between outputs; the variances hold what f is uncertain of at the mean besides
    between = jacobian @ inputs.covariance() @ jnp.swapaxes(jacobian, -1, -2)
    own = jnp.eye(between.shape[-1], dtype=between.dtype)
    return between * (1.0 - own) + (moments.residual + moments.beyond)[..., None] * own


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FunctionPath:
    """Where a function was met, n of H places: inputs, weights φ, the Cholesky factor of f | u there, and its noise z.

    The factor has the rows of the identity where nothing was met yet.
    """

    inputs: Float[Array, "H D"]
    weights: Float[Array, "*P H M"]
    lower: Float[Array, "*P H H"]
    z: Float[Array, "H P"]
    count: Array

    @staticmethod
    def empty(function: SparseGP, steps: int, z: Float[Array, "H P"]) -> FunctionPath:
        """Of a function that was met nowhere, with its noise z of the places to come."""
        separate = function.inducing.shape[:-2]
        inputs = jnp.zeros((steps, function.num_inputs), z.dtype)
        weights = jnp.zeros((*separate, steps, function.num_inducing), z.dtype)
        lower = jnp.broadcast_to(jnp.eye(steps, dtype=z.dtype), (*separate, steps, steps))
        return FunctionPath(inputs, weights, lower, z, jnp.asarray(0))

    def meet(self, function: SparseGP, at: Float[Array, "1 D"]) -> tuple[Float[Array, " P"], FunctionPath]:
        """f at one more place, given u and f at the places before."""
        with block():
            marginal = function(at)
        about = function.kernel, self.weights, self.lower, marginal.weights[0]
        place = partial(self._place, at)
        if is_separate(function):
            beyond, weights, lower = jax.vmap(place)(*about, marginal.residual[0], self.z.T[:, :, None])
            beyond = beyond[:, 0]
        else:
            beyond, weights, lower = place(*about, marginal.residual[0, 0], self.z)
        return marginal.mean[0] + beyond, FunctionPath(
            self.inputs.at[self.count].set(at[0]), weights, lower, self.z, self.count + 1
        )

    def _place(
        self,
        at: Float[Array, "1 D"],
        kernel: Kernel,
        known: Float[Array, "H M"],
        lower: Float[Array, "H H"],
        weights: Float[Array, " M"],
        residual: Float[Array, ""],
        z: Float[Array, "H P"],
    ) -> tuple[Float[Array, " P"], Float[Array, "H M"], Float[Array, "H H"]]:
        """What outputs of one kernel have beyond their mean given u, and weights and factor with the new place."""
        before = jnp.arange(self.inputs.shape[0]) < self.count
        # k(h, h') − φ φ', the covariance of f | u
        covariance = jnp.where(before, kernel(self.inputs, at)[:, 0] - known @ weights, 0.0)
        row = solve_triangular(lower, covariance, lower=True)
        # a path may return to where it was; then rounding must not say that f there is known better than it is
        explained, smallest = jnp.square(row).sum(), first_jitter(row.dtype) * kernel.diag(at)[0]
        # of a function that u tells whole nothing is left, and the root of 0 has no slope
        uncertain = residual > 0.0
        most = jnp.where(uncertain, residual, 1.0)
        row = jnp.where(
            uncertain, row * jnp.sqrt(jnp.minimum(most / jnp.maximum(explained, smallest), 1.0)), 0.0
        )
        left = jnp.sqrt(residual - jnp.square(row).sum() + smallest)
        beyond = jnp.where(uncertain, row @ z + left * z[self.count], 0.0)
        return (
            beyond,
            known.at[self.count].set(weights),
            lower.at[self.count].set(row.at[self.count].set(left)),
        )

    def apart(
        self, mean: Float[Array, " P"], variance: Float[Array, " P"]
    ) -> tuple[Float[Array, " P"], FunctionPath]:
        """f at one more place, of which those before say nothing."""
        value = mean + jnp.sqrt(variance) * self.z[self.count]
        return value, FunctionPath(self.inputs, self.weights, self.lower, self.z, self.count + 1)
