r"""A trajectory whose function switches with a regime, the regimes summed out of its density.

.. math::
    s_t \sim \Pi_{s_{t-1}}, \quad x_t = f_{s_t}(x_{t-1}, c_t) + \varepsilon_t, \quad
    \varepsilon_t \sim N(0, Q_{s_t})

Given a path the regimes are a Markov chain, so that log Σ_s Π_t p(s_t | s_{t−1}) exp t_α(x_t; f_{s_t}) is a forward
pass: exact enumeration of K^T sequences in O(T K³). With t_0 it bounds the logarithm of the sum over regimes with the
f_k integrated out, q(s) being the best there is given the path; with t_1 it is that of the FITC model. Where u is
carried as moments q(s) does not depend on it, a bound below. Shapes as in :mod:`ppl_dgp.state_space.trajectory`, K
regimes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpyro.handlers import block

from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.hidden_markov import RegimeChain
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.trajectory import Trajectory, Transition, followed


class SwitchingTransition(Transition):
    """All steps of a path, batch (T,), event (Q,): ``tempered`` is what each adds to the sum over regimes.

    To rules, which know nothing of regimes, ``marginal`` and ``likelihood`` show the average regime.

    :param marginal: of all functions, (T, K Q), those of the first regime first.
    :param noise: (K, Q).
    :param regimes: π and Π.
    :param first: whether a step is the first of its sequence.
    """

    def __init__(
        self, marginal: Marginal, noise: Float[Array, "K Q"], regimes: RegimeChain, first: Bool[Array, " T"]
    ) -> None:
        self.noise, self.regimes, self.first = noise, regimes, first
        self.means, self.from_u = (
            each.reshape(-1, *noise.shape) for each in (marginal.mean, marginal.from_u)
        )
        average = replace(marginal, mean=self.means.mean(1), from_u=self.from_u.mean(1))
        super().__init__(average, GaussianNoise(noise.mean(0)))

    def regime_weights(self, value: Float[Array, "T Q"], alpha: Alpha) -> Float[Array, "T K"]:
        """t_α of each step under each regime."""
        parts = self.means, self.marginal.residual[..., None], self.from_u
        return GaussianNoise(self.noise).tempered_outside(value[:, None], *parts, alpha).sum(-1)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = True) -> Float[Array, "B"]:
        return self.regimes.log_evidence(self.regime_weights(value, alpha), self.first)


class SwitchingTrajectory(Trajectory):
    """The states of S sequences: batch (), event (T + S, Q). Its q follows no f: ``MeanField`` or ``Markov``.

    :param function: the f_k, K·Q outputs, those of the first regime first.
    :param noise: the diagonals of the Q_k, (K, Q).
    :param regimes: π and Π; each sequence begins anew.
    :param controls: c_t, (T, C), C = 0 for none.
    :param initial: m_0 and s_0 of each sequence.
    :param layout: which steps begin a sequence; one does if not given.
    :raises ValueError: if the inputs of f are not Q + C, or its outputs not K·Q.
    """

    def __init__(
        self,
        function: SparseGP,
        noise: Float[Array, "K Q"],
        regimes: RegimeChain,
        controls: Float[Array, "T C"],
        initial: Gaussian,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(function, noise.mean(0), controls, initial, layout)
        self._noises, self.regimes = noise, regimes
        u = function.u
        outputs = (u.mean if isinstance(u, Gaussian) else u).shape[-2]
        if outputs != noise.size:
            raise ValueError(
                f"{function.name}: found {outputs} outputs, expected {noise.size}: those of {noise.shape[0]} regimes, "
                f"{noise.shape[1]} states each"
            )

    @property
    def noises(self) -> Float[Array, "K Q"]:
        return self._noises

    def at(
        self, states: Float[Array, "B Q"] | Gaussian, controls: Float[Array, "B C"] | None = None
    ) -> Transition:
        """:raises ValueError: always: a step alone has no density, for its regime hangs on those before it."""
        self.check_followed()

    def check_followed(self) -> NoReturn:
        raise ValueError(
            "guide: found a rule that follows f, or moments in place of draws, along a trajectory with several f; take "
            "hidden=MeanField() or Markov(), and draws"
        )

    def steps(self, path: Float[Array, "slots Q"]) -> SwitchingTransition:
        with block():
            marginal = self.function(followed(path[self.layout.after - 1], self.controls))
        return SwitchingTransition(marginal, self.noises, self.regimes, self.layout.first)

    def regime_probabilities(self, path: Float[Array, "slots Q"], alpha: Alpha = 1.0) -> Float[Array, "T K"]:
        """p(s_t | path, u) of each step; at another α the q(s_t) that its bound has."""
        weights = self.steps(path).regime_weights(self.states(path), alpha)
        return self.regimes.probabilities(weights, self.layout.first)

    def next_regime(self, key: Array, regime: Int[Array, ""]) -> Int[Array, ""]:
        return jax.random.categorical(key, jnp.log(self.regimes.transition[regime]))

    def regime_ahead(self, key: Array, path: Float[Array, "slots Q"], last: Array | None) -> Int[Array, ""]:
        if last is None:
            return jax.random.categorical(key, jnp.log(self.regimes.initial))
        key_last, key_next = jax.random.split(key)
        shares = self.regime_probabilities(path)[jnp.argmax(self.layout.after == last)]
        return self.next_regime(key_next, jax.random.categorical(key_last, jnp.log(shares)))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S slots Q"]:
        """Paths, regimes drawn first."""
        if sample_shape:
            paths = jax.vmap(self.sample)(jax.random.split(key, int(np.prod(sample_shape))))
            return paths.reshape(*sample_shape, *paths.shape[1:])
        key_initial, key_regimes, key_steps = jax.random.split(key, 3)
        begin, where = self.prior.sample(key_initial), self.layout
        regimes = self.regimes.sample(key_regimes, where.first)
        shocks = jax.random.normal(key_steps, (where.first.shape[0], self.noise.shape[0]), self.noise.dtype)

        def step(state: Array, turn: Any) -> tuple[Array, Array]:
            regime, shock, control, first, started = turn
            state = jnp.where(first, started, state)
            with block():
                marginal = self.function(followed(state[None], control[None]))
            moments = [
                moment.reshape(self.noises.shape)[regime] for moment in (marginal.mean, marginal.variance)
            ]
            state = moments[0] + jnp.sqrt(moments[1] + self.noises[regime]) * shock
            return state, state

        turns = regimes, shocks, self.controls, where.first, begin[where.sequence]
        return where.path(begin, jax.lax.scan(step, begin[0], turns)[1])
