"""Rules for hidden variables: each turns one step's parameters and the model's own conditional into that of q.

Shapes: N rows, B rows at hand, Q outputs of the layer, P those of the layer before, M inducing points. Parameters are
declared once for all N rows inside the data plate, which gathers the B rows. Sources: Chamberlin 2016 ch. 4, with the
corrections of design.md section 4; Salimbeni & Deisenroth 2017 (doubly stochastic); Ialongo et al. 2019 (coupled).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp import Emission
from ppl_dgp.likelihoods import Gaussian
from ppl_dgp.means import Linear

Carrying = Literal["moments", "local_draw", "joint_draw"]
Params = dict[str, Array]


def _rows(name: str, initial: Callable[[], Array], size: int, event_dim: int, **kwargs: Any) -> Array:
    """A parameter with a row per datum, started from what the rows at hand give; other rows start at their mean."""

    def start(_key: Array) -> Array:
        value = initial()
        if value.shape[0] == size:
            return value
        return jnp.broadcast_to(value.mean(0), (size, *value.shape[1:]))

    return numpyro.param(name, start, event_dim=event_dim, **kwargs)


def _noise(step: Emission) -> Array:
    """Variance of a hidden layer's Gaussian noise, shape (B, Q)."""
    if not isinstance(step.likelihood, Gaussian):
        raise TypeError(
            "hidden: found a layer whose noise is not Gaussian; use f(h).noisy(variance) for hidden sites"
        )
    return jnp.broadcast_to(step.likelihood.variance, step.marginal.mean.shape)


class HiddenRule:
    """One step of q(h). A rule has no state: all of it is in the parameters that :meth:`declare` makes."""

    #: how it wants u carried at α = 0: moments where they are exact, else one draw per datum
    inducing: Carrying = "moments"

    def declare(self, name: str, size: int, step: Emission) -> Params:
        """The rule's ``numpyro.param`` calls, for a layer of ``size`` rows; returns the rows at hand."""
        raise NotImplementedError

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        """q(h_n | what came before), batch (B,), event (Q,)."""
        raise NotImplementedError

    def log_weight(self, params: Params, step: Emission, value: Array, alpha: float) -> Float[Array, "B"]:
        """Log of p/q at the drawn value, tempered: t_α(value) − log q(value) (design, section 1.4)."""
        return step.tempered(value, alpha) - self.conditional(params, step).log_prob(value)


def _normal(mean: Array, variance: Array) -> dist.Distribution:
    return dist.Normal(mean, jnp.sqrt(variance)).to_event(1)


def _log_normal(value: Array, mean: Array, variance: Array) -> Array:
    return dist.Normal(mean, jnp.sqrt(variance)).log_prob(value)


@dataclass(frozen=True)
class MeanField(HiddenRule):
    """q(h_n) = N(M_n, S_n), S_n diagonal: O(NQ) parameters. Starts at the model's own mean and noise."""

    def declare(self, name: str, size: int, step: Emission) -> Params:
        return {
            "loc": _rows(f"{name}_loc", lambda: step.marginal.mean, size, 1),
            "scale": _rows(
                f"{name}_scale", lambda: jnp.sqrt(_noise(step)), size, 1, constraint=constraints.positive
            ),
        }

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        return dist.Normal(params["loc"], params["scale"]).to_event(1)


@dataclass(frozen=True)
class Markov(HiddenRule):
    """q(h_n | h_n⁻) = N(T_n h_n⁻ + M_n, S_n): O(NQP) parameters (Chamberlin 4.6).

    Starts with T the linear mean's map, so that T h⁻ + M is the model's own mean.
    """

    def declare(self, name: str, size: int, step: Emission) -> Params:
        mean, inputs = step.marginal.function.mean, step.marginal.inputs

        def slope() -> Array:
            rows, width = step.marginal.mean.shape
            linear = mean.weights.T if isinstance(mean, Linear) else jnp.zeros((width, inputs.shape[1]))
            return jnp.broadcast_to(linear, (rows, width, inputs.shape[1]))

        def intercept() -> Array:
            return step.marginal.mean - jnp.einsum("bqp,bp->bq", slope(), inputs)

        return {
            "slope": _rows(f"{name}_slope", slope, size, 2),
            "loc": _rows(f"{name}_loc", intercept, size, 1),
            "scale": _rows(
                f"{name}_scale", lambda: jnp.sqrt(_noise(step)), size, 1, constraint=constraints.positive
            ),
        }

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        mean = jnp.einsum("bqp,bp->bq", params["slope"], step.marginal.inputs) + params["loc"]
        return dist.Normal(mean, params["scale"]).to_event(1)


@dataclass(frozen=True)
class DoublyStochastic(HiddenRule):
    """The model's own conditional, nothing learnt and weight 1 at every α (Salimbeni & Deisenroth 2017)."""

    def declare(self, name: str, size: int, step: Emission) -> Params:
        return {}

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        return step

    def log_weight(self, params: Params, step: Emission, value: Array, alpha: float) -> Float[Array, "B"]:
        return jnp.zeros(value.shape[0], value.dtype)


@dataclass(frozen=True)
class Coupled(HiddenRule):
    """q(h_n | f) = N(c_n f(h_n⁻) + (1 − c_n) M_n, S_n) with f itself in q: O(NQ) parameters.

    Contains ``MeanField`` (c = 0) and ``DoublyStochastic`` (c = 1, S = s²), where it starts.
    """

    def declare(self, name: str, size: int, step: Emission) -> Params:
        return {
            "gain": _rows(f"{name}_gain", lambda: jnp.ones_like(step.marginal.mean), size, 1),
            "loc": _rows(f"{name}_loc", lambda: step.marginal.mean, size, 1),
            "scale": _rows(
                f"{name}_scale", lambda: jnp.sqrt(_noise(step)), size, 1, constraint=constraints.positive
            ),
        }

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        # f integrated out: N(c m + b, V), V = S + c² v
        gain, spread = params["gain"], jnp.square(params["scale"])
        mean = gain * step.marginal.mean + (1.0 - gain) * params["loc"]
        return _normal(mean, spread + jnp.square(gain) * step.marginal.variance)

    def log_weight(self, params: Params, step: Emission, value: Array, alpha: float) -> Float[Array, "B"]:
        """(1/α) log E_{q(f|h)}[(p(h|f)/q(h|f))^α] in closed form (design, section 4)."""
        c, s2, spread = params["gain"], _noise(step), jnp.square(params["scale"])
        b = (1.0 - c) * params["loc"]
        m, v = step.marginal.mean, step.marginal.variance
        # q(f | h) = N(m_f, v_f)
        total = spread + jnp.square(c) * v
        m_f = m + c * v / total * (value - c * m - b)
        v_f = v * spread / total
        ratio = _log_normal(value, m_f, s2) - _log_normal(value, c * m_f + b, spread)
        if alpha == 0.0:
            return (ratio - 0.5 * v_f / s2 + 0.5 * jnp.square(c) * v_f / spread).sum(-1)
        g = (value - m_f) / s2 - c * (value - b - c * m_f) / spread
        # v_f κ, κ = 1/s² − c²/S
        tilt = v_f / s2 - jnp.square(c) * v / total
        penalty = jnp.log1p(alpha * tilt) / (2.0 * alpha)
        return (ratio - penalty + 0.5 * alpha * jnp.square(g) * v_f / (1.0 + alpha * tilt)).sum(-1)


@dataclass(frozen=True)
class Tied(HiddenRule):
    """q(h_n | u) = N(c_n f_mean(h_n⁻; u) + (1 − c_n) M_n, d_n D(h_n⁻) + S_n): T_n = c_n a(h_n⁻)ᵀ, O(NQ) parameters."""

    inducing: Carrying = "local_draw"

    def declare(self, name: str, size: int, step: Emission) -> Params:
        ones = lambda: jnp.ones_like(step.marginal.mean)  # noqa: E731
        coupled = Coupled().declare(name, size, step)
        residual = _rows(f"{name}_residual", ones, size, 1, constraint=constraints.positive)
        return {**coupled, "residual": residual}

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        gain = params["gain"]
        mean = gain * step.marginal.mean + (1.0 - gain) * params["loc"]
        return _normal(mean, jnp.square(params["scale"]) + params["residual"] * step.marginal.residual)


@dataclass(frozen=True)
class Free(HiddenRule):
    """q(h_n | u) = N(T_n v + M_n, S_n), T_n free: O(NMQ) parameters (Chamberlin 4.3).

    Starts at T_n = the model's own weights at the layer's first inputs.
    """

    inducing: Carrying = "local_draw"

    def declare(self, name: str, size: int, step: Emission) -> Params:
        marginal, width = step.marginal, step.marginal.mean.shape[1]
        weights = lambda: jnp.repeat(marginal.weights[:, None, :], width, 1)  # noqa: E731
        offset = lambda: jnp.broadcast_to(marginal.function.mean(marginal.inputs), marginal.mean.shape)  # noqa: E731
        return {
            "weights": _rows(f"{name}_weights", weights, size, 2),
            "loc": _rows(f"{name}_loc", offset, size, 1),
            "scale": _rows(
                f"{name}_scale", lambda: jnp.sqrt(_noise(step)), size, 1, constraint=constraints.positive
            ),
        }

    def conditional(self, params: Params, step: Emission) -> dist.Distribution:
        u = step.marginal.function.u
        if not isinstance(u, Array):
            raise TypeError(
                "Conditional(free=True): found moments of u, expected a draw; it depends on u as a whole"
            )
        projected = jnp.einsum("bqm,...qm->bq" if u.ndim == 2 else "bqm,bqm->bq", params["weights"], u)
        return dist.Normal(projected + params["loc"], params["scale"]).to_event(1)


def Conditional(*, free: bool = False, tied: bool = False) -> HiddenRule:
    """q(h_n | f) or q(h_n | u): :class:`Coupled` by default, :class:`Free` or :class:`Tied` on request.

    :raises ValueError: if both are asked for.
    """
    if free and tied:
        raise ValueError("Conditional: found free=True and tied=True, expected at most one of them")
    return Free() if free else Tied() if tied else Coupled()
