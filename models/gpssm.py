r"""The Gaussian process state space model (Frigola 2014; Bui 2017, 3.2; Doerr et al. 2018; Ialongo et al. 2019).

    x_0 ~ N(m_0, s_0² I)                                      of each sequence
    f_q ~ GP(m_q, k),   x_t = f(x_{t−1}, c_t) + ε,   ε ~ N(0, diag(Q))            t = 1 … T
    y_t = C x_t + d + ε,   ε ~ N(0, R),   or y_t ~ p(y | C x_t + d), or p(y | g(x_t)) with g_p ~ GP(0, k')

Card. For series with a state that is not observed: systems with inputs c_t to identify, forecast and simulate. Guides,
of one and the same model: ``MeanField()`` (Frigola; over-estimates Q), ``Markov()`` (McHutchon; Eleftheriadis et al.),
``Conditional()`` (Ialongo et al.: x_t follows f, the best calibrated), ``DoublyStochastic()`` (the model's own
transition: Doerr et al., with one draw of u for a trajectory: their factorised form is no bound). Where f is in q, the
f(x_{t−1}) of a trajectory are drawn independently given u, as they do. Objectives: ``PowerEP(alpha)``, each step
tempered on its own; for ``MeanField()`` and ``Markov()`` ``PowerEP(0.0, propagation="moments")`` needs no draws (in 64
bits). Sites: ``transition/u``, ``x`` (T + 1, Q) with x_0 first, ``y``; parameters ``transition/lengthscale``,
``transition/noise``, ``emission/weights``, ``likelihood/noise``, ….
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.affine import Affine
from ppl_dgp.gaussian import Gaussian
from ppl_dgp.gp import SparseGP, carry, data_plate, sparse_gp
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.means import Linear, Mean, Zero
from ppl_dgp.models.gplvm import checked_latent
from ppl_dgp.models.latents import held_components
from ppl_dgp.models.observation import Observed, checked_columns, observed_by
from ppl_dgp.models.observation import emission as observation
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters
from ppl_dgp.trajectory import Trajectory, layout

MEANS = ("identity", "zero", "linear")
EMISSIONS = ("identity", "linear", "gp")
#: scale at which q(u) of the transition starts, around the regression on the states at the start
TRANSITION_SCALE = 0.1


def gpssm(
    num_outputs: int,
    latent: int | None = None,
    num_inducing: int = 20,
    *,
    mean: str = "identity",
    emission: str = "linear",
    kernel: Callable[..., Kernel] | Composed = RBF,
    emission_kernel: Callable[..., Kernel] | Composed = RBF,
    process_noise: float = 0.05,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    initial: tuple[float, float] = (0.0, 1.0),
    num_sequences: int = 1,
    missing: bool = False,
    train_inducing: bool = True,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """A GPSSM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its rows the steps in their order.

    Its x are the controls (T, C), C = 0 for none; of several sequences the last column is the number of each row's.

    :param num_outputs: P columns of y.
    :param latent: Q dimensions of the state, fewer or more than P; P if not given. Dimensions beyond those of y begin
        as earlier values of y.
    :param num_inducing: M of the transition, and of a GP emission; at most the number of rows.
    :param mean: of the transition: "identity" (of the state), "zero", or "linear" (in state and controls, learnt).
    :param emission: "linear" (learnt, begins as the identity where Q ≥ P), "identity" (the first dimensions of the
        state are what is observed, which gives them a meaning) or "gp".
    :param kernel: of the transition: a kernel class, several ``Composed``, or a function Q + C → kernel.
    :param emission_kernel: of a GP emission.
    :param process_noise: where the learnt variances Q start, in squared units of the state.
    :param noise: variance of Gaussian observation noise: None to learn one, "per-column", or a number to fix it.
    :param likelihood: instead of Gaussian noise, see :func:`ppl_dgp.models.gplvm`.
    :param initial: m_0 and s_0² of every dimension of x_0.
    :param num_sequences: S; their rows come one sequence after the other.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param train_inducing: whether the inducing inputs are learnt.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp`.
    :raises ValueError: for unknown names, fewer states than an identity emission needs, a variance that is not
        positive, where shapes do not fit, or for a minibatch, which would tear the steps apart.
    """
    width = num_outputs if latent is None else latent
    checked_latent(width)
    _check_names(mean, emission, process_noise, initial, num_sequences)
    observed = checked_columns(likelihood, noise, num_outputs)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        _check_whole(x, index, size)
        given = observed_by(observed, y)
        functions = given.num_functions(num_outputs)
        if emission == "identity" and width < functions:
            raise ValueError(
                f"latent: found {width}, expected at least {functions}, the dimensions that an identity emission "
                "observes; take emission='linear'"
            )
        controls, numbers = (x, None) if num_sequences == 1 else (x[:, :-1], x[:, -1])
        where = layout(x.shape[0], numbers, num_sequences)
        begin = _start(y, x.shape[0], width, functions, missing)
        before = where.path(begin.states[where.beginning], begin.states)[where.after - 1]

        inputs = jnp.concatenate([before, controls], 1)
        inducing = inducing_inputs("transition", inputs, num_inducing, train_inducing)
        k = kernel_parameters("transition", kernel, inputs.shape[1])
        m = _transition_mean(mean, width, controls.shape[1])
        settings: dict[str, Any] = {"reused": True, "initial_scale": TRANSITION_SCALE, "jitter": jitter}
        if y is not None:
            settings["begin_at"] = inputs, begin.states, process_noise
        f = sparse_gp("transition", k, inducing, width, mean=m, **settings)
        positive = constraints.softplus_positive
        q = numpyro.param("transition/noise", jnp.full(width, process_noise), constraint=positive)
        if emission == "gp":
            sites = inducing_inputs("emission", begin.states, num_inducing, train_inducing)
            k = kernel_parameters("emission", emission_kernel, width)
            g = sparse_gp("emission", k, sites, functions, jitter=jitter)
        else:
            g = _linear_emission(begin, emission == "linear")

        shape = num_sequences, width
        x_0 = Gaussian(jnp.full(shape, initial[0]), jnp.full(shape, initial[1] ** 0.5))
        trajectory = Trajectory(f, q, controls, x_0, where)
        path = where.path(begin.states[where.beginning], begin.states)
        infer = {"role": "hidden", "start": lambda: Gaussian(path, jnp.broadcast_to(jnp.sqrt(q), path.shape))}
        states = trajectory.states(carry("x", numpyro.sample("x", trajectory, infer=infer)))
        with data_plate(size or x.shape[0], index):
            return numpyro.sample("y", observation(g(states), given, index, y is not None, missing), obs=y)

    return model


@dataclass(frozen=True)
class _Start:
    """States (T, Q) to begin at, and the linear emission (Q, P), (P,) that belongs to them."""

    states: Float[Array, "T Q"]
    weights: Float[Array, "Q P"]
    bias: Float[Array, " P"]


def _start(y: Array | None, num_steps: int, width: int, functions: int, missing: bool) -> _Start:
    """States as y has them: its principal components where they are fewer, else y itself and its earlier values."""
    if y is None:
        return _Start(jnp.zeros((num_steps, width)), jnp.eye(width, functions), jnp.zeros(functions))
    if width < y.shape[1]:
        found = held_components("x", y, width, "pca", missing)
        weights = (found.unit[:, None] * found.axes).T
        if functions == y.shape[1]:
            return _Start(found.scores(y, missing), weights, found.centre)
        return _Start(found.scores(y, missing), jnp.eye(width, functions), jnp.zeros(functions))
    columns = _filled(y.astype(float)) if missing else y.astype(float)
    lags = [columns]
    while sum(each.shape[1] for each in lags) < width:
        # the value before the first is taken to be the first
        lags.append(jnp.concatenate([lags[-1][:1], lags[-1][:-1]]))
    return _Start(jnp.concatenate(lags, 1)[:, :width], jnp.eye(width, functions), jnp.zeros(functions))


def _filled(y: Float[Array, "T P"]) -> Float[Array, "T P"]:
    """Each missing entry from those before and after it, on a straight line."""
    there, times = ~jnp.isnan(y), jnp.arange(y.shape[0])
    known = jnp.where(there, y, 0.0)
    before = jax.lax.cummax(jnp.where(there, times[:, None], -1), axis=0)
    after = jax.lax.cummin(jnp.where(there, times[:, None], y.shape[0]), axis=0, reverse=True)
    first, last = jnp.where(before < 0, after, before), jnp.where(after == y.shape[0], before, after)
    first, last = jnp.clip(first, 0, y.shape[0] - 1), jnp.clip(last, 0, y.shape[0] - 1)
    share = (times[:, None] - first) / jnp.maximum(last - first, 1)
    return (1.0 - share) * jnp.take_along_axis(known, first, 0) + share * jnp.take_along_axis(known, last, 0)


def _transition_mean(name: str, width: int, num_controls: int) -> Mean:
    if name == "zero":
        return Zero(width)
    identity = jnp.eye(width + num_controls, width)
    if name == "identity":
        return Linear(identity)
    weights = numpyro.param("transition/weights", identity)
    return Linear(weights, numpyro.param("transition/bias", jnp.zeros(width)))


def _linear_emission(begin: _Start, learnt: bool) -> SparseGP:
    if not learnt:
        return Affine("emission", jnp.eye(begin.weights.shape[0], begin.weights.shape[1]), jnp.zeros_like(begin.bias))
    weights = numpyro.param("emission/weights", begin.weights)
    return Affine("emission", weights, numpyro.param("emission/bias", begin.bias))


def _check_names(
    mean: str, emission: str, process_noise: float, initial: tuple[float, float], num_sequences: int
) -> None:
    for name, value, known in (("mean", mean, MEANS), ("emission", emission, EMISSIONS)):
        if value not in known:
            raise ValueError(f"{name}: found {value!r}, expected one of {', '.join(known)}")
    if not process_noise > 0.0:
        raise ValueError(f"process_noise: found {process_noise}, expected a positive variance")
    if len(initial) != 2 or not initial[1] > 0.0:
        raise ValueError(f"initial: found {initial}, expected a mean and a positive variance of x_0")
    if num_sequences < 1:
        raise ValueError(f"num_sequences: found {num_sequences}, expected at least 1")


def _check_whole(x: Array, index: Array | None, size: int | None) -> None:
    if (index is None and size in (None, x.shape[0])) or (index is not None and size == x.shape[0] == len(index)):
        return
    raise ValueError(
        f"index: found {x.shape[0]} of {size} rows, expected all of them in their order, for each step starts from "
        "the one before; leave batch_size out"
    )
