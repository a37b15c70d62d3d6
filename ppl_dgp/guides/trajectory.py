"""A rule of one step applied along a trajectory: q of the site of :class:`ppl_dgp.trajectory.Trajectory`.

What a rule says of a layer's rows it says of a trajectory's steps, with x_{t−1} in the place of the layer before; x_0
is a latent without a GP in front. Rules that do not condition on f make a linear-Gaussian chain
(McHutchon 2014; Eleftheriadis et al. 2017), the others are drawn step by step (Ialongo et al. 2019; Doerr et al. 2018),
each f(x_{t−1}) independently given the trajectory's one draw of u, as they do. Shapes as in :mod:`ppl_dgp.trajectory`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gaussian import Gaussian, moments_of
from ppl_dgp.gp import Propagation, bare
from ppl_dgp.guides.chain import LinearGaussianChain, recursion
from ppl_dgp.guides.hidden import HiddenRule, Latent, Params, entropy
from ppl_dgp.linalg import cholesky
from ppl_dgp.tempering import Alpha
from ppl_dgp.trajectory import Trajectory, along


def along_function(rule: HiddenRule) -> bool:
    """Whether q of a step depends on the function, so that a trajectory needs one draw of u."""
    return rule.conditions_on_u or rule.from_model


class TrajectoryConditional(dist.Distribution):
    """q of a trajectory, with its log weight: batch (), event (T + S, Q).

    :param rule: of the steps, with their parameters.
    :param initial_rule: of x_0, with its parameters.
    """

    def __init__(
        self, trajectory: Trajectory, rule: HiddenRule, params: Params, initial_rule: HiddenRule, initial: Params
    ) -> None:
        self.trajectory, self.rule, self.params = trajectory, rule, params
        self.begun = initial_rule.initial(initial, Latent(trajectory.prior))
        self.initial_from_model = initial_rule.from_model
        super().__init__((), trajectory.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_matrix

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S slots Q"]:
        """Paths."""
        if along_function(self.rule):
            one = lambda step, params: self.rule.conditional(params, step)  # noqa: E731
            return along(self.trajectory, self.begun, one, self.params, key, sample_shape)
        slopes, around = self._linear()
        where = self.trajectory.layout
        key_initial, key_steps = jax.random.split(key)
        noise = jax.random.normal(key_steps, (*sample_shape, *around.mean.shape), around.mean.dtype)
        root = around.scale if not around.diagonal else around.scale[..., None] * jnp.eye(noise.shape[-1])
        shifts = around.mean + jnp.einsum("tij,...tj->...ti", root, noise)
        begun = self.begun.sample(key_initial, sample_shape)
        in_slots = where.path
        for _ in sample_shape:
            in_slots = jax.vmap(in_slots)
        shifts = in_slots(begun, shifts)
        if slopes is None:
            return shifts
        return recursion(where.path(_none_before(slopes, where.num_sequences), slopes), shifts, False)

    def log_prob(self, value: Float[Array, "slots Q"]) -> Float[Array, ""]:
        """log q of a path."""
        begun = self.begun.log_prob(value[self.trajectory.layout.initial]).sum()
        steps = self.rule.conditional(self.params, self.trajectory.steps(value))
        return begun + steps.log_prob(self.trajectory.states(value)).sum()

    def log_weight(self, value: Float[Array, "slots Q"], alpha: Alpha) -> Float[Array, ""]:
        """Σ_t of the rule's tempered log p/q, and log p/q of x_0: to be averaged over paths, outside the logarithm."""
        steps = self.trajectory.steps(value)
        weight = self.rule.log_weight(self.params, steps, self.trajectory.states(value), alpha).sum()
        if self.initial_from_model:
            return weight
        initial = value[self.trajectory.layout.initial]
        # of a point, as of PointEstimate, the density is left out
        return weight + (self.trajectory.prior.log_prob(initial) - self.begun.log_prob(initial)).sum()

    def expected_weight(self) -> Float[Array, ""]:
        """The weight at α = 0 averaged over paths and u in closed form: E log p(x | u) + H[q(x)].

        :raises TypeError: where q has no closed form: it conditions on f, or x_0 has no Gaussian q.
        """
        before = jax.tree.map(lambda leaf: leaf[self.trajectory.layout.after - 1], self.moments("moments"))
        weight = self.rule.expected_weight(self.params, self.trajectory.at(before)).sum()
        if self.initial_from_model:
            return weight
        begun, prior = self._initial(), self.trajectory.initial
        likely = self.trajectory.prior.log_prob(begun.mean) - 0.5 * (begun.variance / jnp.square(prior.scale)).sum(-1)
        return weight + (likely + entropy(begun)).sum()

    def moments(self, propagation: Propagation) -> Gaussian:
        """Moments of each state: mean (T + S, Q), and deviations or lower Cholesky factors."""
        slopes, around = self._linear()
        begun, where = self._initial(), self.trajectory.layout
        if slopes is None and around.diagonal and begun.diagonal:
            return Gaussian(where.path(begun.mean, around.mean), where.path(begun.scale, around.scale))
        marginals = self.chain().marginals()
        return Gaussian(marginals.means, cholesky(marginals.covariances, 0.0)[0])

    def chain(self) -> LinearGaussianChain:
        """All states as one chain, a later sequence starting from nothing.

        :raises TypeError: as :meth:`expected_weight`.
        """
        slopes, around = self._linear()
        begun, where = self._initial(), self.trajectory.layout
        if slopes is None:
            slopes = jnp.zeros((*around.mean.shape, around.mean.shape[-1]), around.mean.dtype)
        slopes = where.path(_none_before(slopes, where.num_sequences), slopes)
        means, scales = where.path(begun.mean, around.mean), where.path(_tril(begun), _tril(around))
        return LinearGaussianChain(means[0], scales[0], slopes[1:], means[1:], scales[1:])

    def _linear(self) -> tuple[Float[Array, "T Q Q"] | None, Gaussian]:
        """x_t = A_t x_{t−1} + ε_t, the controls' part in ε_t."""
        # of the steps only noise and shape are looked at
        path = jnp.zeros(self.trajectory.event_shape, self.trajectory.noise.dtype)
        slope, around = self.rule.linear(self.params, self.trajectory.steps(path))
        if slope is None:
            return None, around
        width = path.shape[1]
        shift = jnp.einsum("tqc,tc->tq", slope[:, :, width:], self.trajectory.controls)
        return slope[:, :, :width], Gaussian(around.mean + shift, around.scale)

    def _initial(self) -> Gaussian:
        found = moments_of(self.begun)
        if found is None:
            raise TypeError(
                f"latent: found {type(bare(self.begun)).__name__} for x_0, expected a Gaussian; take latent=MeanField()"
            )
        return found


def _none_before(slopes: Float[Array, "T Q Q"], number: int) -> Float[Array, "S Q Q"]:
    return jnp.zeros((number, *slopes.shape[1:]), slopes.dtype)


def _tril(h: Gaussian) -> Float[Array, "B Q Q"]:
    return jax.vmap(jnp.diag)(h.scale) if h.diagonal else h.scale
