r"""Linear-Gaussian conditionals of q, and the closed forms that follow from them.

.. math::
    h_n = A_n h_n^- + W_n u + c_n f(h_n^-) + \varepsilon_n, \quad \varepsilon_n \sim N(b_n, S_n)

Shapes: B rows at hand, Q outputs of the layer, P those of the layer before, M inducing points; u is whitened. Sources:
Chamberlin 2016 ch. 4, with the corrections of docs/design.md, 4; Bui 2017 ch. 4 (moments).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Propagation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.moment_matching import matched, matched_covariance
from ppl_dgp.guides.latents import gaussian
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio
from ppl_dgp.state_space.linear_gaussian_chain import propagate


def noise_of(step: Emission) -> Array:
    """Variance of a hidden layer's Gaussian noise, shape (B, Q)."""
    if not isinstance(step.likelihood, GaussianNoise):
        raise TypeError(
            "hidden: found a layer whose noise is not Gaussian; use f(h).noisy(variance) for hidden sites"
        )
    return jnp.broadcast_to(step.likelihood.variance, step.marginal.mean.shape)


def entropy(h: Gaussian) -> Float[Array, "B"]:
    """The entropy of h, one per datum."""
    scale = h.scale if h.diagonal else jnp.diagonal(h.scale, axis1=-2, axis2=-1)
    return (0.5 * log(2.0 * pi) + 0.5 + jnp.log(scale)).sum(-1)


@dataclass(frozen=True)
class LinearConditional:
    """q of a step as h = A h⁻ + W u + c f(h⁻) + ε; a map that is None is 0.

    :param noise: ε, its mean b (B, Q) and deviations (B, Q) or lower Cholesky factors (B, Q, Q).
    :param previous: A, (B, Q, P).
    :param inducing: W, (B, Q, P, M), or (B, Q, M) where each output listens to its own u alone.
    :param function: c, (B, Q), how much of f is kept; the noise is then to be independent over outputs.
    """

    noise: Gaussian
    previous: Float[Array, "B Q P"] | None = None
    inducing: Float[Array, "B Q *P M"] | None = None
    function: Float[Array, "B Q"] | None = None

    @property
    def independent(self) -> bool:
        """Whether h is independent of all that came before: nothing but noise."""
        return self.previous is None and self.inducing is None and self.function is None

    def offset(self, step: Emission) -> Float[Array, "B Q"]:
        """A h⁻ + b, at the mean of an h⁻ that is carried as moments."""
        if self.previous is None:
            return self.noise.mean
        inputs = step.marginal.inputs
        at = inputs.mean if isinstance(inputs, Gaussian) else inputs
        return jnp.einsum("bqp,bp->bq", self.previous, at) + self.noise.mean

    def at(self, step: Emission) -> dist.Distribution:
        """q(h | h⁻), given u where q listens to it, f integrated out: batch (B,), event (Q,)."""
        mean = self.offset(step)
        if self.function is not None:
            # N(c m + b, S + c² v)
            variance = self.noise.variance + jnp.square(self.function) * step.marginal.variance
            return dist.Normal(self.function * step.marginal.mean + mean, jnp.sqrt(variance)).to_event(1)
        if self.inducing is not None:
            mean = self._listened(step) + mean
        return gaussian(Gaussian(mean, self.noise.scale))

    def _listened(self, step: Emission) -> Float[Array, "B Q"]:
        """W u of the draw of u that is given, or of its mean."""
        assert self.inducing is not None
        u = step.marginal.function.u
        if isinstance(u, Gaussian):
            u = u.mean
        axes = "bqpm,...pm->bq" if self.inducing.ndim == 4 else "bqm,...qm->bq"
        if u.ndim == 3:
            axes = axes.replace("...", "b")
        return jnp.einsum(axes, self.inducing, u)

    def weights_of_u(self) -> Float[Array, "B Q P M"]:
        """W, whose blocks between outputs are 0 where each listens to its own u alone."""
        assert self.inducing is not None
        if self.inducing.ndim == 4:
            return self.inducing
        identity = jnp.eye(self.inducing.shape[1], dtype=self.inducing.dtype)
        return self.inducing[:, :, None, :] * identity[None, :, :, None]


def coupled_log_weight(
    form: LinearConditional, step: Emission, value: Float[Array, "B Q"], alpha: Alpha
) -> Float[Array, "B"]:
    """(1/α) log E_{q(f|h)}[(p(h|f)/q(h|f))^α] of a q that follows f, in closed form (docs/design.md, 4)."""
    assert form.function is not None
    c, s2, spread = form.function, noise_of(step), form.noise.variance
    m, v = step.marginal.mean, step.marginal.variance
    mean = c * m + form.offset(step)
    # of h less its mean rounding leaves no digit where the variance of q(h | f) is smaller than this
    rounding = jnp.square(8.0 * jnp.finfo(value.dtype).eps) * (jnp.square(value) + jnp.square(mean))
    held = jnp.maximum(spread, rounding)
    total = held + jnp.square(c) * v
    beyond = value - mean
    # q(f | h) = N(m_f, v_f)
    m_f = m + c * v / total * beyond
    v_f = v * held / total
    # h − c m_f − b = S (h − c m − b) / (S + c² v): as a difference its square over S is rounding where S is small
    ratio = _normal_log_density(value, m_f, s2)
    ratio = ratio + 0.5 * jnp.log(2.0 * pi * spread) + 0.5 * spread * jnp.square(beyond / total)
    g = (value - m_f) / s2 - c * beyond / total
    # v_f κ, κ = 1/s² − c²/S
    tilt = v_f / s2 - jnp.square(c) * v / total
    penalty = 0.5 * log1p_ratio(alpha, tilt)
    return (ratio - penalty + 0.5 * alpha * jnp.square(g) * v_f / (1.0 + alpha * tilt)).sum(-1)


def _normal_log_density(value: Array, mean: Array, variance: Array) -> Array:
    log_density: Array = dist.Normal(mean, jnp.sqrt(variance)).log_prob(value)
    return log_density


def model_moments(step: Emission, propagation: Propagation) -> Gaussian:
    """Moments of h under the model's own conditional, its inputs and u integrated out."""
    marginal, s2 = step.marginal, noise_of(step)
    if propagation != "full-moments" or not isinstance(marginal.inputs, Gaussian):
        return Gaussian(marginal.mean, jnp.sqrt(marginal.variance + s2))
    covariance = matched_covariance(marginal.function, marginal.inputs)
    covariance = covariance + s2[..., None] * jnp.eye(s2.shape[-1], dtype=s2.dtype)
    return Gaussian(marginal.mean, cholesky(covariance, 0.0)[0])


def linear_moments(form: LinearConditional, step: Emission) -> Gaussian:
    """Mean and scale of h where q does not follow f, its inputs and u integrated out."""
    noise, inputs = form.noise, step.marginal.inputs
    if form.inducing is not None:
        mean, covariance = _projected(form.weights_of_u(), _integrated_u(step))
        if form.inducing.ndim == 4 or not noise.diagonal:
            return Gaussian(noise.mean + mean, cholesky(covariance + noise.covariance(), 0.0)[0])
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        return Gaussian(noise.mean + mean, jnp.sqrt(variance + noise.variance))
    if form.previous is None:
        return noise
    if not isinstance(inputs, Gaussian):
        return Gaussian(noise.mean + jnp.einsum("bqp,bp->bq", form.previous, inputs), noise.scale)
    mean, covariance = propagate(
        inputs.mean, inputs.covariance(), form.previous, noise.mean, noise.covariance()
    )
    return Gaussian(mean, cholesky(covariance, 0.0)[0])


def linear_expected_weight(form: LinearConditional, step: Emission) -> Float[Array, "B"]:
    """The weight at α = 0 averaged over h, its inputs and u, where q does not follow f: E[t_0(h)] + H[q(h | …)]."""
    noise, marginal, s2 = form.noise, step.marginal, noise_of(step)
    mean, variance = marginal.mean, marginal.variance
    if form.inducing is not None:
        # h − f is linear in u given h⁻, which does not depend on this layer's u
        weights, u = form.weights_of_u(), _integrated_u(step)
        offset, covariance = _projected(weights, u)
        # Var(Wu − φu) = Var(φu) + W S Wᵀ − 2 W S ⟨φ⟩ᵀ
        axes = "bqpm,pmk,bpk->bqp" if marginal.weights.ndim == 3 else "bqpm,pmk,bk->bqp"
        products = jnp.einsum(axes, weights, u.covariance(), marginal.weights)
        cross = jnp.diagonal(products, axis1=-2, axis2=-1)
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1) - 2.0 * cross + variance
        squared = jnp.square(noise.mean + offset - mean) + variance + noise.variance
    else:
        if form.previous is not None and isinstance(marginal.inputs, Gaussian):
            difference = matched(marginal.function, marginal.inputs, form.previous)
            mean, variance = difference.mean, difference.residual + difference.beyond
        elif form.previous is not None:
            mean = mean - jnp.einsum("bqp,bp->bq", form.previous, marginal.inputs)
        squared = jnp.square(noise.mean - mean) + variance + noise.variance
    energy: Array = (-0.5 * jnp.log(2.0 * pi * s2) - 0.5 * squared / s2).sum(-1) + entropy(noise)
    return energy


def _integrated_u(step: Emission) -> Gaussian:
    u = step.marginal.function.u
    if not isinstance(u, Gaussian) or u.mean.ndim != 2:
        raise TypeError("propagation: found a draw of u, expected moments; the closed form integrates u out")
    return u


def _projected(
    weights: Float[Array, "B Q P M"], u: Gaussian
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q Q"]]:
    """Mean and covariance of W u."""
    mean = jnp.einsum("bqpm,pm->bq", weights, u.mean)
    return mean, jnp.einsum("bqpm,pmk,brpk->bqr", weights, u.covariance(), weights)
