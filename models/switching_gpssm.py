r"""A GP state space model with several transitions, of which a Markov chain says which one a step takes.

    s_1 ~ π,   s_t ~ Π_{s_{t−1}},                             of each sequence, s_t one of K regimes
    x_0 ~ N(m_0, s_0² I)
    f_kq ~ GP(m_kq, k),   x_t = f_{s_t}(x_{t−1}, c_t) + ε,   ε ~ N(0, diag(Q_{s_t}))            t = 1 … T
    y_t = C x_t + d + ε,   ε ~ N(0, R),   or y_t ~ p(y | C x_t + d), or p(y | g(x_t)) with g_p ~ GP(0, k')

Card. For series whose dynamics change now and then: gears, stages of sleep, faults. Of linear transitions it is the
switching linear system (Ghahramani & Hinton 2000). Given the states the regimes are summed out exactly, by the forward
algorithm; ``ppl_dgp.state_space.switching_trajectory.regime_probabilities`` says which regime each step was in. The f_k
share a kernel and inducing inputs. Guides: ``Markov()``, ``MeanField()`` and their ``Amortised`` forms: q(x) cannot
follow one f where there are several. Objectives: ``PowerEP(alpha)``, each step tempered under each regime. Sites:
``transition/u``, ``x`` (T + 1, Q) with x_0 first, ``y``; parameters ``regimes/initial``, ``regimes/transition``,
``transition/noise`` (K, Q) and those of gpssm. Begins at linear regressions that switch, fitted by EM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.means import Linear, Mean, Zero
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF
from ppl_dgp.models.gpssm import STATE_INDUCING, STATE_SPACE_CHOICES, TRANSITION_SCALE
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.observation import NoiseChoice, Observed, observed_by
from ppl_dgp.models.observation import emission as observation
from ppl_dgp.models.parts import as_columns
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.states import StateInitialiser, checked_start, emission_function
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.hidden_markov import RegimeChain, RegimeRegressions, regime_regressions
from ppl_dgp.state_space.sequences import layout, sequence_numbers
from ppl_dgp.state_space.switching_trajectory import SwitchingTrajectory


@dataclass(frozen=True, eq=False, repr=False)
class switching_gpssm(ZooModel):
    """A switching GPSSM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its rows the steps in order.

    Settings that are not named here are those of :func:`ppl_dgp.models.gpssm`.

    :param num_regimes: K; of one regime it is the gpssm.
    :param num_inducing: M inducing inputs, which the transitions share; at most the number of rows.
    :param mean: of the transitions: "linear" (a learnt system each), "identity" (of the state) or "zero".
    :param process_noise: where the learnt variances start if there is no y to begin at, in squared units of the state.
    :raises ValueError: for unknown names, fewer states than an identity emission needs, a variance or number that is
        not positive, where shapes do not fit, or for a minibatch, which would tear the steps apart.
    """

    num_outputs: int
    num_regimes: int = 2
    latent: int | None = None
    num_inducing: int = STATE_INDUCING
    _: KW_ONLY
    mean: str = "linear"
    emission: str = "linear"
    kernel: KernelChoice = RBF
    emission_kernel: KernelChoice = RBF
    process_noise: float = 0.05
    noise: NoiseChoice | None = None
    likelihood: Observed | None = None
    initial: tuple[float, float] = (0.0, 1.0)
    start: str = "outputs"
    num_sequences: int = 1
    missing: bool = False
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        checked_start(self.start, self.emission)
        self._settle(**checked_settings(self, **STATE_SPACE_CHOICES))

    @property
    def width(self) -> int:
        """Q."""
        return self.num_outputs if self.latent is None else self.latent

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        if index is not None:
            raise ValueError(
                "index: found a minibatch, expected all rows in their order; leave batch_size out"
            )
        y = as_columns(x, y, self.num_outputs)
        controls, numbers = (x, None) if self.num_sequences == 1 else (x[:, :-1], sequence_numbers(x))
        width = self.width
        where = layout(x.shape[0], numbers, self.num_sequences)
        given = observed_by(self.likelihood, self.noise, y, self.num_outputs)
        functions = given.num_functions(self.num_outputs)
        begun = None if y is None else given.function_at(y)
        begin = StateInitialiser(
            self.start, begun, controls, where, (width, functions), self.missing, self.emission, self.initial
        )

        @cache
        def regressions() -> RegimeRegressions:
            return _initial_regimes(y, begin, where.first, self.num_regimes, self.process_noise)

        positive, simplex = constraints.positive, constraints.simplex
        pi = numpyro.param("regimes/initial", lambda _: regressions().chain.initial, constraint=simplex)
        moves = numpyro.param(
            "regimes/transition", lambda _: regressions().chain.transition, constraint=simplex
        )
        q = numpyro.param("transition/noise", lambda _: regressions().noise, constraint=positive)
        dims = width + controls.shape[1]
        inducing_settings = self.num_inducing, self.train_inducing, self.inducing
        inducing = inducing_inputs("transition", lambda: begin.inputs, *inducing_settings, dims)
        k = kernel_parameters("transition", self.kernel, dims)
        m = _means(self.mean, width, controls.shape[1], self.num_regimes, regressions)
        settings: dict[str, Any] = {"reused": True, "initial_scale": TRANSITION_SCALE, "jitter": self.jitter}
        if y is not None:
            settings["begin_at"] = lambda: (begin.inputs, _regime_targets(regressions(), begin), q.ravel())
        f = sparse_gp("transition", k, inducing, self.num_regimes * width, mean=m, **settings)
        g = emission_function(
            self.emission, begin, self.num_inducing, self.emission_kernel, self.train_inducing, self.jitter
        )

        shape = self.num_sequences, width
        x_0 = Gaussian(jnp.full(shape, self.initial[0]), jnp.full(shape, self.initial[1] ** 0.5))
        trajectory = SwitchingTrajectory(f, q, RegimeChain(pi, moves), controls, x_0, where)
        infer = hidden_role(lambda: begin.path(jnp.sqrt(q.mean(0))))
        states = trajectory.states(offer("x", numpyro.sample("x", trajectory, infer=infer)))
        with data_plate(x.shape[0]):
            return numpyro.sample(
                "y", observation(g(states), given, None, y is not None, self.missing), obs=y
            )


def _initial_regimes(
    y: Array | None, begin: StateInitialiser, first: Array, num_regimes: int, process_noise: float
) -> RegimeRegressions:
    """Regressions on the states to begin at; where there is no y the identity, all regimes alike."""
    states, inputs = begin.states, begin.inputs
    if y is not None:
        # the same start whatever else is drawn
        return regime_regressions(jax.random.PRNGKey(0), inputs, states, first, num_regimes)
    shape = num_regimes, states.shape[1]
    even = jnp.full((num_regimes, num_regimes), 1.0 / num_regimes)
    weights = jnp.broadcast_to(jnp.eye(inputs.shape[1], shape[1]), (num_regimes, inputs.shape[1], shape[1]))
    shares = jnp.broadcast_to(even[0], (states.shape[0], num_regimes))
    noise = jnp.full(shape, process_noise)
    return RegimeRegressions(weights, jnp.zeros(shape), noise, RegimeChain(even[0], even), shares)


def _regime_targets(regressions: RegimeRegressions, begin: StateInitialiser) -> Float[Array, "T KQ"]:
    """Where each f_k begins: at the states of its own steps, and at its regression elsewhere."""
    means = regressions.means(begin.inputs)
    means = means + regressions.probabilities[..., None] * (begin.states[:, None] - means)
    flat: Array = means.reshape(means.shape[0], -1)
    return flat


def _means(
    name: str, width: int, num_controls: int, num_regimes: int, regressions: Callable[[], RegimeRegressions]
) -> Mean:
    if name == "zero":
        return Zero(num_regimes * width)
    if name == "identity":
        return Linear(jnp.tile(jnp.eye(width + num_controls, width), (1, num_regimes)))
    weights = numpyro.param("transition/weights", lambda _: regressions().weights)
    bias = numpyro.param("transition/bias", lambda _: regressions().bias)
    return Linear(jnp.swapaxes(weights, 0, 1).reshape(width + num_controls, -1), bias.ravel())
