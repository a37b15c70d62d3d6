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

from collections.abc import Callable, Sequence
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
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.gplvm import checked_latent
from ppl_dgp.models.gpssm import TRANSITION_MEANS, TRANSITION_SCALE
from ppl_dgp.models.observation import Observed, checked_columns, observed_by
from ppl_dgp.models.observation import emission as observation
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters
from ppl_dgp.models.states import EMISSIONS, STATE_STARTS, StateInitialiser, emission_function
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.hidden_markov import RegimeChain, RegimeRegressions, regime_regressions
from ppl_dgp.state_space.sequences import layout, sequence_numbers
from ppl_dgp.state_space.switching_trajectory import SwitchingTrajectory


def switching_gpssm(
    num_outputs: int,
    num_regimes: int = 2,
    latent: int | None = None,
    num_inducing: int = 20,
    *,
    mean: str = "linear",
    emission: str = "linear",
    kernel: Callable[..., Kernel] | Composed = RBF,
    emission_kernel: Callable[..., Kernel] | Composed = RBF,
    process_noise: float = 0.05,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    initial: tuple[float, float] = (0.0, 1.0),
    start: str = "outputs",
    num_sequences: int = 1,
    missing: bool = False,
    train_inducing: bool = True,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """A switching GPSSM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its rows the steps in order.

    Settings that are not named here are those of :func:`ppl_dgp.models.gpssm`.

    :param num_regimes: K; of one regime it is the gpssm.
    :param num_inducing: M inducing inputs, which the transitions share; at most the number of rows.
    :param mean: of the transitions: "linear" (a learnt system each), "identity" (of the state) or "zero".
    :param process_noise: where the learnt variances start if there is no y to begin at, in squared units of the state.
    :raises ValueError: for unknown names, fewer states than an identity emission needs, a variance or number that is
        not positive, where shapes do not fit, or for a minibatch, which would tear the steps apart.
    """
    width = num_outputs if latent is None else latent
    checked_latent(width)
    _check(
        {"mean": (mean, TRANSITION_MEANS), "emission": (emission, EMISSIONS), "start": (start, STATE_STARTS)},
        initial,
    )
    for name, value in (("num_regimes", num_regimes), ("num_sequences", num_sequences)):
        if value < 1:
            raise ValueError(f"{name}: found {value}, expected at least 1")
    if not process_noise > 0.0:
        raise ValueError(f"process_noise: found {process_noise}, expected a positive variance")
    observed = checked_columns(likelihood, noise, num_outputs)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        if index is not None:
            raise ValueError(
                "index: found a minibatch, expected all rows in their order; leave batch_size out"
            )
        y = as_columns(x, y, num_outputs)
        controls, numbers = (x, None) if num_sequences == 1 else (x[:, :-1], sequence_numbers(x))
        where = layout(x.shape[0], numbers, num_sequences)
        given = observed_by(observed, y)
        functions = given.num_functions(num_outputs)
        begin = StateInitialiser(start, y, controls, where, (width, functions), missing, emission, initial)

        @cache
        def regressions() -> RegimeRegressions:
            return _begin(y, begin, where.first, num_regimes, process_noise)

        positive, simplex = constraints.softplus_positive, constraints.simplex
        pi = numpyro.param("regimes/initial", lambda _: regressions().chain.initial, constraint=simplex)
        moves = numpyro.param(
            "regimes/transition", lambda _: regressions().chain.transition, constraint=simplex
        )
        q = numpyro.param("transition/noise", lambda _: regressions().noise, constraint=positive)
        inducing = inducing_inputs("transition", lambda: begin.inputs, num_inducing, train_inducing)
        k = kernel_parameters("transition", kernel, width + controls.shape[1])
        m = _means(mean, width, controls.shape[1], num_regimes, regressions)
        settings: dict[str, Any] = {"reused": True, "initial_scale": TRANSITION_SCALE, "jitter": jitter}
        if y is not None:
            settings["begin_at"] = lambda: (begin.inputs, _targets(regressions(), begin), q.ravel())
        f = sparse_gp("transition", k, inducing, num_regimes * width, mean=m, **settings)
        g = emission_function(emission, begin, num_inducing, emission_kernel, train_inducing, jitter)

        shape = num_sequences, width
        x_0 = Gaussian(jnp.full(shape, initial[0]), jnp.full(shape, initial[1] ** 0.5))
        trajectory = SwitchingTrajectory(f, q, RegimeChain(pi, moves), controls, x_0, where)
        infer = hidden_role(lambda: begin.path(jnp.sqrt(q.mean(0))))
        states = trajectory.states(offer("x", numpyro.sample("x", trajectory, infer=infer)))
        with data_plate(x.shape[0]):
            return numpyro.sample("y", observation(g(states), given, None, y is not None, missing), obs=y)

    return model


def _begin(
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


def _targets(found: RegimeRegressions, begin: StateInitialiser) -> Float[Array, "T KQ"]:
    """Where each f_k begins: at the states of its own steps, and at its regression elsewhere."""
    means = found.means(begin.inputs)
    means = means + found.probabilities[..., None] * (begin.states[:, None] - means)
    return means.reshape(means.shape[0], -1)


def _means(
    name: str, width: int, num_controls: int, num_regimes: int, found: Callable[[], RegimeRegressions]
) -> Mean:
    if name == "zero":
        return Zero(num_regimes * width)
    if name == "identity":
        return Linear(jnp.tile(jnp.eye(width + num_controls, width), (1, num_regimes)))
    weights = numpyro.param("transition/weights", lambda _: found().weights)
    bias = numpyro.param("transition/bias", lambda _: found().bias)
    return Linear(jnp.swapaxes(weights, 0, 1).reshape(width + num_controls, -1), bias.ravel())


def _check(chosen: dict[str, tuple[str, tuple[str, ...]]], initial: tuple[float, float]) -> None:
    for name, (value, known) in chosen.items():
        if value not in known:
            raise ValueError(f"{name}: found {value!r}, expected one of {', '.join(known)}")
    if len(initial) != 2 or not initial[1] > 0.0:
        raise ValueError(f"initial: found {initial}, expected a mean and a positive variance of x_0")
