"""A rule of one step applied along a trajectory: q of the site of :class:`ppl_dgp.state_space.trajectory.Trajectory`.

What a rule says of a layer's rows it says of a trajectory's steps, with x_{t−1} in the place of the layer before; x_0
is a latent without a GP in front. Rules that do not condition on f make a linear-Gaussian chain
(McHutchon 2014; Eleftheriadis et al. 2017), the others are drawn step by step (Ialongo et al. 2019; Doerr et al. 2018),
each f(x_{t−1}) independently given the trajectory's one draw of u, as they do. Shapes as in
:mod:`ppl_dgp.state_space.trajectory`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters, Propagation
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides.latents import Latent, gaussian
from ppl_dgp.guides.linear_conditional import entropy
from ppl_dgp.guides.rule import HiddenRule, closed_form, expected_weight, is_linear, moments, no_closed_form
from ppl_dgp.numerics.gaussian import Gaussian, moments_of
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain, recursion
from ppl_dgp.state_space.trajectory import Trajectory, along


class TrajectoryConditional(dist.Distribution):
    """q of a trajectory, with its log weight: batch (), event (T + S, Q).

    :param rule: of the steps, with their parameters.
    :param initial_rule: of x_0, with its parameters; not looked at where ``begun`` is given.
    :param begun: moments of the states before the steps of a window, (S, Q), where q of the whole series knows them.
    :param pieces: of a whole series that is trained on windows, each from a first state of its own: q of all of them.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        rule: HiddenRule,
        params: Parameters,
        initial_rule: HiddenRule,
        initial: Parameters,
        begun: Gaussian | None = None,
        pieces: TrajectoryConditional | None = None,
    ) -> None:
        self.trajectory, self.rule, self.params, self.pieces = trajectory, rule, params, pieces
        if begun is None:
            self.begun = initial_rule.latent.conditional(initial, Latent(trajectory.prior))
        else:
            self.begun = gaussian(begun)
        #: a window whose first state has a q of its own is a sequence of its own
        self.own_starts = begun is None
        self.initial_from_model = initial_rule.depends_on.on_model and begun is None
        super().__init__((), trajectory.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_matrix

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S slots Q"]:
        """Paths."""
        if self.rule.depends_on.on_function or not is_linear(self.rule):
            one = lambda step, params: self.rule.conditional(params, step)
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
        begun = self.begun.log_prob(value[self.trajectory.layout.initial])
        steps = self.rule.conditional(self.params, self.trajectory.steps(value))
        return self.trajectory.total(begun, steps.log_prob(self.trajectory.states(value)), self.own_starts)

    def log_weight(self, value: Float[Array, "slots Q"], alpha: Alpha) -> Float[Array, ""]:
        """Σ_t of the rule's tempered log p/q, and log p/q of x_0: to be averaged over paths, outside the logarithm."""
        steps = self.trajectory.steps(value)
        weights = self.rule.log_weight(self.params, steps, self.trajectory.states(value), alpha)
        initial = value[self.trajectory.layout.initial]
        # of a point, as of PointEstimate, the density is left out
        ratio = self.trajectory.prior.log_prob(initial) - self.begun.log_prob(initial)
        return self._total(ratio, weights)

    def expected_weight(self) -> Float[Array, ""]:
        """The weight at α = 0 averaged over paths and u in closed form: E log p(x | u) + H[q(x)].

        :raises TypeError: where q has no closed form: it conditions on f, or x_0 has no Gaussian q.
        """
        if self.rule.depends_on.on_model:
            # p and q of the steps are the same, whatever the states before
            weights = jnp.zeros(self.trajectory.controls.shape[0], self.trajectory.noise.dtype)
        else:
            before = jax.tree.map(
                lambda leaf: leaf[self.trajectory.layout.after - 1], self.moments("moments")
            )
            weights = expected_weight(self.rule, self.params, self.trajectory.at(before))
        begun, prior = self._initial(), self.trajectory.initial
        likely = self.trajectory.prior.log_prob(begun.mean) - 0.5 * (
            begun.variance / jnp.square(prior.scale)
        ).sum(-1)
        return self._total(likely + entropy(begun), weights)

    def _total(self, initial: Float[Array, " S"], weights: Float[Array, " T"]) -> Float[Array, ""]:
        if self.initial_from_model:
            initial = jnp.zeros_like(initial)
        return self.trajectory.total(initial, weights, self.own_starts)

    def moments(self, propagation: Propagation) -> Gaussian:
        """Moments of each state: mean (T + S, Q), and deviations or lower Cholesky factors.

        Of the model's own transition they are passed on from step to step, f and u integrated out at each
        (Bui 2017, 3.6).
        """
        begun, where = self._initial(), self.trajectory.layout
        if self.rule.depends_on.on_model:
            return self._passed_on(begun, propagation)
        slopes, around = self._linear()
        if slopes is None and around.diagonal and begun.diagonal:
            return Gaussian(where.path(begun.mean, around.mean), where.path(begun.scale, around.scale))
        marginals = self.chain().marginals()
        return Gaussian(marginals.means, cholesky(marginals.covariances, 0.0)[0])

    def trained_path(self, key: Array) -> Float[Array, "slots Q"]:
        """A path as q was trained: in one piece, or window by window, each from the first state that it learnt."""
        if self.pieces is None:
            return self.sample(key)
        return self._joined(self.pieces.sample(key))

    def trained_moments(self) -> Gaussian:
        """Moments of each state as q was trained, see :meth:`trained_path`."""
        if self.pieces is None:
            return self.moments("moments")
        found: Gaussian = jax.tree.map(self._joined, self.pieces.moments("moments"))
        return found

    def _joined(self, pieces: Float[Array, "_ ..."]) -> Float[Array, "_ ..."]:
        """What the windows say of the slots of the whole series, each state from the window that it counts in."""
        assert self.pieces is not None and self.pieces.trajectory.windows is not None
        inside, windows = self.pieces.trajectory.layout, self.pieces.trajectory.windows
        begun = pieces[inside.initial[windows.opening]]
        return self.trajectory.layout.path(begun, pieces[inside.after][windows.places])

    def _passed_on(self, begun: Gaussian, propagation: Propagation) -> Gaussian:
        where, linearise = self.trajectory.layout, propagation == "linearised"
        if propagation == "full-moments":
            begun = Gaussian(begun.mean, begun.scale_tril)

        def step(state: Gaussian, turn: Any) -> tuple[Gaussian, Gaussian]:
            controls, first, started = turn
            choose = lambda new, old: jnp.where(jnp.expand_dims(first, range(1, new.ndim)), new, old)
            before = replace(jax.tree.map(choose, started, state), linearise=linearise)
            after = moments(self.rule, self.params, self.trajectory.at(before, controls), propagation)
            state = Gaussian(after.mean, after.scale)
            return state, state

        started = jax.tree.map(lambda leaf: leaf[where.sequence], begun)
        turns = self.trajectory.in_lanes((self.trajectory.controls, where.first, started))
        first = jax.tree.map(lambda leaf: leaf[0], turns[2])
        states = self.trajectory.out_of_lanes(jax.lax.scan(step, first, turns)[1])
        return Gaussian(where.path(begun.mean, states.mean), where.path(begun.scale, states.scale))

    def chain(self) -> LinearGaussianChain:
        """All states as one chain, a later sequence starting from nothing.

        :raises TypeError: as :meth:`expected_weight`.
        """
        slopes, around = self._linear()
        begun, where = self._initial(), self.trajectory.layout
        if slopes is None:
            slopes = jnp.zeros((*around.mean.shape, around.mean.shape[-1]), around.mean.dtype)
        slopes = where.path(_none_before(slopes, where.num_sequences), slopes)
        means, scales = where.path(begun.mean, around.mean), where.path(begun.scale_tril, around.scale_tril)
        return LinearGaussianChain(means[0], scales[0], slopes[1:], means[1:], scales[1:])

    def _linear(self) -> tuple[Float[Array, "T Q Q"] | None, Gaussian]:
        """x_t = A_t x_{t−1} + ε_t; what the controls add is in ε_t."""
        # of the steps only noise and shape are looked at
        path = jnp.zeros(self.trajectory.event_shape, self.trajectory.noise.dtype)
        form = closed_form(self.rule, self.params, self.trajectory.steps(path))
        if form.function is not None or form.inducing is not None:
            raise no_closed_form(self.rule)
        slopes = None if form.previous is None else form.previous[:, :, : path.shape[1]]
        return slopes, form.noise

    def _initial(self) -> Gaussian:
        initial = moments_of(self.begun)
        if initial is None:
            raise TypeError(
                f"latent: found {type(unwrap(self.begun)).__name__} for x_0, expected a Gaussian; take "
                "latent=MeanField()"
            )
        return initial


def _none_before(slopes: Float[Array, "T Q Q"], number: int) -> Float[Array, "S Q Q"]:
    return jnp.zeros((number, *slopes.shape[1:]), slopes.dtype)
