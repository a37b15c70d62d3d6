"""Rules for hidden variables that condition on u, or on f itself.

Sources: Chamberlin 2016, 4.3 and 4.4 (free), with parameter tying (4.10); Ialongo et al. 2019 (coupled); Hensman &
Lawrence 2014 (nested compression). Shapes as in :mod:`ppl_dgp.guides.hidden`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters, Propagation, Representation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.guides.hidden import HiddenRule, entropy, gaussian, noise, noise_of, per_datum, per_datum_scale
from ppl_dgp.numerics.gaussian import Gaussian, project
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio

#: how much of f a step of a trajectory keeps at the start
ALONG = 0.5


def _normal(mean: Array, variance: Array) -> dist.Distribution:
    return dist.Normal(mean, jnp.sqrt(variance)).to_event(1)


def _coupling(params: Parameters, step: Emission) -> Float[Array, "B Q"]:
    """c_n: how much of f the mean of q(h_n | f) keeps."""
    return 1.0 - params["shrinkage"] * jnp.sqrt(noise_of(step))


def _coupled(name: str, size: int, step: Emission, coupling: float) -> Parameters:
    """Parameters of a start at c = ``coupling`` and S = c s², as the product of two Gaussians has them."""
    ones = lambda: jnp.ones_like(step.marginal.mean)
    shrinkage = lambda: (1.0 - coupling) * ones() / jnp.sqrt(noise_of(step))
    scale = lambda: coupling**0.5 * ones()
    return {
        "shrinkage": per_datum(f"{name}_shrinkage", shrinkage, size, 1),
        "loc": per_datum(f"{name}_loc", lambda: step.marginal.mean, size, 1),
        "scale": per_datum(f"{name}_scale", scale, size, 1, constraint=constraints.positive),
    }


def _log_normal(value: Array, mean: Array, variance: Array) -> Array:
    return dist.Normal(mean, jnp.sqrt(variance)).log_prob(value)


@dataclass(frozen=True)
class CoupledConditional(HiddenRule):
    """q(h_n | f) = N(c_n f(h_n⁻) + (1 − c_n) M_n, S_n) with f itself in q: O(NQ) parameters.

    Contains ``MeanField`` (c = 0) and ``DoublyStochastic`` (c = 1, S = s²), where it starts. What is learnt is how far
    a row is from the latter in units of the noise, c_n = 1 − s·``shrinkage`` and S_n / s²: a step of Adam then costs
    little of the bound where s is small, and noisy gradients do not drive s up.
    """

    conditions_on_u = True

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return _coupled(name, size, step, 1.0)

    def declare_along(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return _coupled(name, size, step, ALONG)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        # f integrated out: N(c m + b, V), V = S + c² v
        coupling, spread = _coupling(params, step), noise(params, step).variance
        mean = coupling * step.marginal.mean + (1.0 - coupling) * params["loc"]
        return _normal(mean, spread + jnp.square(coupling) * step.marginal.variance)

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        """(1/α) log E_{q(f|h)}[(p(h|f)/q(h|f))^α] in closed form (design, section 4)."""
        c, s2, spread = _coupling(params, step), noise_of(step), noise(params, step).variance
        b = (1.0 - c) * params["loc"]
        m, v = step.marginal.mean, step.marginal.variance
        # q(f | h) = N(m_f, v_f)
        total = spread + jnp.square(c) * v
        m_f = m + c * v / total * (value - c * m - b)
        v_f = v * spread / total
        ratio = _log_normal(value, m_f, s2) - _log_normal(value, c * m_f + b, spread)
        g = (value - m_f) / s2 - c * (value - b - c * m_f) / spread
        # v_f κ, κ = 1/s² − c²/S
        tilt = v_f / s2 - jnp.square(c) * v / total
        penalty = 0.5 * log1p_ratio(alpha, tilt)
        return (ratio - penalty + 0.5 * alpha * jnp.square(g) * v_f / (1.0 + alpha * tilt)).sum(-1)


@dataclass(frozen=True)
class TiedConditional(HiddenRule):
    """q(h_n | u) = N(c_n f_mean(h_n⁻; u) + (1 − c_n) M_n, d_n D(h_n⁻) + S_n): T_n = c_n a(h_n⁻)ᵀ, O(NQ) parameters."""

    inducing: Representation = "per_datum_sample"
    conditions_on_u = True

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return self._declared(name, size, step, 1.0)

    def declare_along(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return self._declared(name, size, step, ALONG)

    def _declared(self, name: str, size: int, step: Emission, coupling: float) -> Parameters:
        ones = lambda: jnp.ones_like(step.marginal.mean)
        coupled = _coupled(name, size, step, coupling)
        residual = per_datum(f"{name}_residual", ones, size, 1, constraint=constraints.positive)
        return {**coupled, "residual": residual}

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        coupling = _coupling(params, step)
        mean = coupling * step.marginal.mean + (1.0 - coupling) * params["loc"]
        return _normal(mean, noise(params, step).variance + params["residual"] * step.marginal.residual)


@dataclass(frozen=True)
class FreeConditional(HiddenRule):
    """q(h_n | u) = N(T_n v + M_n, S_n), T_n free (Chamberlin 4.3): O(NMQ) parameters.

    Starts at T_n = the model's own weights at the layer's first inputs.

    :param across_outputs: whether each output listens to the inducing outputs of all, and S_n is full (Chamberlin
        4.4): O(NMQ²) parameters.
    """

    across_outputs: bool = False
    inducing: Representation = "per_datum_sample"
    conditions_on_u = True

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        marginal, width = step.marginal, step.marginal.mean.shape[1]

        def weights() -> Array:
            own = jnp.repeat(marginal.weights[:, None, :], width, 1)
            if not self.across_outputs:
                return own
            return own[:, :, None, :] * jnp.eye(width, dtype=own.dtype)[None, :, :, None]

        offset = lambda: _mean_function(marginal)
        return {
            "weights": per_datum(f"{name}_weights", weights, size, 3 if self.across_outputs else 2),
            "loc": per_datum(f"{name}_loc", offset, size, 1),
            "scale": per_datum_scale(name, size, step, self.across_outputs),
        }

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        u = step.marginal.function.u
        if isinstance(u, Gaussian):
            u = u.mean
        axes = "bqpm,...pm->bq" if self.across_outputs else "bqm,...qm->bq"
        if u.ndim == 3:
            axes = axes.replace("...", "b")
        around = noise(params, step)
        mean = jnp.einsum(axes, params["weights"], u) + around.mean
        return gaussian(Gaussian(mean, around.scale))

    def moments(self, params: Parameters, step: Emission, propagation: Propagation) -> Gaussian:
        weights, around = self._listening(params), noise(params, step)
        mean, covariance = _projected(weights, _moments_of_u(step))
        if self.across_outputs:
            return Gaussian(around.mean + mean, cholesky(covariance + around.covariance(), 0.0)[0])
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        return Gaussian(around.mean + mean, jnp.sqrt(variance + around.variance))

    def expected_weight(self, params: Parameters, step: Emission) -> Float[Array, "B"]:
        """E[t_0(h)] + H[q(h | u)]: h − f is linear in u given h⁻, which does not depend on this layer's u."""
        weights, around = self._listening(params), noise(params, step)
        u, s2 = _moments_of_u(step), noise_of(step)
        mean, covariance = _projected(weights, u)
        # Var(Tu − φu) = Var(φu) + T S Tᵀ − 2 T S ⟨φ⟩ᵀ
        own = jnp.einsum("bqpm,pmk,bk->bqp", weights, u.covariance(), step.marginal.weights)
        cross = jnp.diagonal(own, axis1=-2, axis2=-1)
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1) - 2.0 * cross + step.marginal.variance
        squared = jnp.square(around.mean + mean - step.marginal.mean) + variance + around.variance
        return (-0.5 * jnp.log(2.0 * pi * s2) - 0.5 * squared / s2).sum(-1) + entropy(around)

    def _listening(self, params: Parameters) -> Float[Array, "B Q Q M"]:
        weights = params["weights"]
        if self.across_outputs:
            return weights
        return weights[:, :, None, :] * jnp.eye(weights.shape[1], dtype=weights.dtype)[None, :, :, None]


@dataclass(frozen=True)
class NestedCompression(FreeConditional):
    """q(h_n | u) = N(⟨A_n⟩ u, s²), ⟨A_n⟩ the weights averaged over q(h_n⁻): nothing learnt (Hensman & Lawrence 2014).

    In closed form only: h is carried as moments (Bui 2017, eq. 4.39 corrected). Needs α = 0.
    """

    across_outputs: bool = field(default=False, init=False)
    propagation: Propagation = "moments"

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        marginal, width = step.marginal, step.marginal.mean.shape[1]
        return {
            "weights": jnp.repeat(marginal.weights[:, None, :], width, 1),
            "loc": _mean_function(marginal),
            "scale": jnp.ones_like(marginal.mean),
        }


def _mean_function(marginal: Marginal) -> Float[Array, "B Q"]:
    """E m(h⁻): the mean of f less what u adds."""
    u = marginal.function.u
    return marginal.mean - project(marginal.weights, u.mean if isinstance(u, Gaussian) else u)


def _moments_of_u(step: Emission) -> Gaussian:
    u = step.marginal.function.u
    if not isinstance(u, Gaussian) or u.mean.ndim != 2:
        raise TypeError("propagation: found a draw of u, expected moments; the closed form integrates u out")
    return u


def _projected(
    weights: Float[Array, "B Q P M"], u: Gaussian
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    """Mean and covariance of T u."""
    mean = jnp.einsum("bqpm,pm->bq", weights, u.mean)
    return mean, jnp.einsum("bqpm,pmk,brpk->bqr", weights, u.covariance(), weights)


def Conditional(*, free: bool = False, tied: bool = False, across_outputs: bool = False) -> HiddenRule:
    """q(h_n | f) or q(h_n | u): :class:`CoupledConditional` unless another is asked for.

    :param across_outputs: free, with every output listening to all inducing outputs of its layer.
    :raises ValueError: if both free and tied are asked for, or tied across outputs.
    """
    if tied and (free or across_outputs):
        raise ValueError("Conditional: found tied=True beside free or across_outputs, expected one of them")
    if free or across_outputs:
        return FreeConditional(across_outputs)
    return TiedConditional() if tied else CoupledConditional()
