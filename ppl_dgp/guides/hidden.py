"""Rules for hidden variables: each turns one step's parameters and the model's own conditional into that of q.

Shapes: N rows, B rows at hand, Q outputs of the layer, P those of the layer before, M inducing points. Parameters are
declared once for all N rows inside the data plate, which gathers the B rows. Here are the rules that do not speak of u;
those that condition on u or on f are in :mod:`ppl_dgp.guides.conditional`. Sources: Chamberlin 2016 ch. 4, with the
corrections of design.md section 4; Salimbeni & Deisenroth 2017 (doubly stochastic); Bui 2017 ch. 4 (moment matching).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log, pi
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters, Propagation, Representation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.moment_matching import matched, matched_covariance
from ppl_dgp.gp.representation import check_propagation
from ppl_dgp.likelihoods import Gaussian as GaussianNoise
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.linear_gaussian_chain import propagate


def per_datum(name: str, initial: Callable[[], Array], size: int, event_dim: int, **kwargs: Any) -> Array:
    """A parameter with a row per datum, started from what the rows at hand give; other rows start at their mean."""

    def start(_key: Array) -> Array:
        value = initial()
        if value.shape[0] == size:
            return value
        return jnp.broadcast_to(value.mean(0), (size, *value.shape[1:]))

    return numpyro.param(name, start, event_dim=event_dim, **kwargs)


def noise_of(step: Emission) -> Array:
    """Variance of a hidden layer's Gaussian noise, shape (B, Q)."""
    if not isinstance(step.likelihood, GaussianNoise):
        raise TypeError(
            "hidden: found a layer whose noise is not Gaussian; use f(h).noisy(variance) for hidden sites"
        )
    return jnp.broadcast_to(step.likelihood.variance, step.marginal.mean.shape)


@dataclass(frozen=True)
class Latent:
    """A latent without a GP in front, such as a GPLVM's x_n: its prior, batch (B,), event (Q,).

    :param start: where q begins, means and deviations (B, Q); the prior's own if None.
    """

    prior: dist.Distribution
    start: Callable[[], Gaussian] | None = None

    def begin(self) -> Gaussian:
        """Where q begins."""
        if self.start is not None:
            return self.start()
        shape = self.prior.shape()
        deviation = jnp.sqrt(jnp.broadcast_to(self.prior.variance, shape))
        return Gaussian(jnp.broadcast_to(self.prior.mean, shape).astype(deviation.dtype), deviation)


class HiddenRule:
    """One step of q(h). A rule has no state: all of it is in the parameters that :meth:`declare` makes."""

    #: how it wants u carried at α = 0: moments where they are exact, else one draw per datum
    inducing: Representation = "marginal"
    #: how it wants h carried: as draws, or as one of the deterministic propagations
    propagation: Propagation = "draws"
    #: whether q(h | what came before) is the model's own conditional, so that the weight is 1
    from_model: bool = False
    #: whether q(h | what came before) is a function of u or f with parameters of its own
    conditions_on_u: bool = False
    #: whether the covariance of a row's h is full over its dimensions
    full: bool = False
    #: whether u is integrated out anew at each step of a trajectory, as if its steps shared no function: no bound
    integrates_u: bool = False
    #: whether q of any state of a trajectory is known without a pass from the first: a window's first state is smoothed
    knows_states: bool = False
    #: how many rows before and after its own a network sees
    around: int = 0

    def declare_initial(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        """As :meth:`declare`, for a latent without a GP in front, ``size`` rows of it."""
        begin = latent.begin
        return {
            "loc": per_datum(f"{name}_loc", lambda: begin().mean, size, 1),
            "scale": _own_scale(name, size, lambda: begin().scale, self.full),
        }

    def initial(self, params: Parameters, latent: Latent) -> dist.Distribution:
        """q(x_n) of a latent without a GP in front, batch (B,), event (Q,): N(M_n, S_n)."""
        return gaussian(Gaussian(params["loc"], params["scale"]))

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        """The rule's ``numpyro.param`` calls, for a layer of ``size`` rows; returns the rows at hand.

        :param datum: what is observed of the rows at hand, (B, D + P): x beside y; only amortised rules look at it.
        """
        raise NotImplementedError

    def declare_along(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        """As :meth:`declare`, for the steps of a trajectory: begins around the step's mean whatever came before.

        The model's own conditional would begin as a walk over all steps that the data do not hold.
        """
        return self.declare(name, size, step, datum)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        """q(h_n | what came before), batch (B,), event (Q,)."""
        raise NotImplementedError

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        """Log of p/q at the drawn value, tempered: t_α(value) − log q(value) (design, section 1.4)."""
        return step.tempered(value, alpha) - self.conditional(params, step).log_prob(value)

    def linear(self, params: Parameters, step: Emission) -> tuple[Array | None, Gaussian]:
        """q as h = slope h⁻ + ε: the slope (B, Q, P), None for 0, and the moments of ε.

        :raises TypeError: if q is not of this form.
        """
        raise TypeError(
            f"{type(self).__name__}: found no closed form of its moments; leave propagation out, so that h is drawn"
        )

    def moments(self, params: Parameters, step: Emission, propagation: Propagation) -> Gaussian:
        """Mean and scale of h under q, its inputs and u integrated out."""
        slope, around = self.linear(params, step)
        if slope is None:
            return around
        inputs = step.marginal.inputs
        if not isinstance(inputs, Gaussian):
            return Gaussian(around.mean + jnp.einsum("bqp,bp->bq", slope, inputs), around.scale)
        mean, covariance = propagate(
            inputs.mean, inputs.covariance(), slope, around.mean, around.covariance()
        )
        return Gaussian(mean, cholesky(covariance, 0.0)[0])

    def expected_weight(self, params: Parameters, step: Emission) -> Float[Array, "B"]:
        """The weight at α = 0 averaged over h, its inputs and u in closed form: E[t_0(h)] + H[q(h | h⁻)]."""
        slope, around = self.linear(params, step)
        marginal, s2 = step.marginal, noise_of(step)
        mean, variance = marginal.mean, marginal.variance
        if slope is not None and isinstance(marginal.inputs, Gaussian):
            left = matched(marginal.function, marginal.inputs, slope)
            mean, variance = left.mean, left.residual + left.beyond
        elif slope is not None:
            mean = mean - jnp.einsum("bqp,bp->bq", slope, marginal.inputs)
        squared = jnp.square(around.mean - mean) + variance + around.variance
        return (-0.5 * jnp.log(2.0 * pi * s2) - 0.5 * squared / s2).sum(-1) + entropy(around)


def entropy(h: Gaussian) -> Float[Array, "B"]:
    """The entropy of h, one per datum."""
    scale = h.scale if h.diagonal else jnp.diagonal(h.scale, axis1=-2, axis2=-1)
    return (0.5 * log(2.0 * pi) + 0.5 + jnp.log(scale)).sum(-1)


def gaussian(h: Gaussian) -> dist.Distribution:
    if h.diagonal:
        return dist.Normal(h.mean, h.scale).to_event(1)
    return dist.MultivariateNormal(h.mean, scale_tril=h.scale)


def per_datum_scale(name: str, size: int, step: Emission, full: bool) -> Array:
    """Per-datum scales in units of the model's noise, started at 1: deviations (B, Q), or Cholesky factors."""
    return _own_scale(name, size, lambda: jnp.ones_like(step.marginal.mean), full)


def _own_scale(name: str, size: int, start: Callable[[], Array], full: bool) -> Array:
    if not full:
        return per_datum(f"{name}_scale", start, size, 1, constraint=constraints.positive)
    diagonal = lambda: jax.vmap(jnp.diag)(start())
    return per_datum(f"{name}_scale", diagonal, size, 2, constraint=constraints.lower_cholesky)


def noise(params: Parameters, step: Emission) -> Gaussian:
    """N(M_n, S_n) from the parameters ``loc`` and ``scale``.

    S_n is kept in units of the model's noise s², so that a row that no step has drawn yet follows s² as it is learnt.
    """
    unit, scale = jnp.sqrt(noise_of(step)), params["scale"]
    return Gaussian(params["loc"], scale * (unit if scale.ndim == 2 else unit[:, :, None]))


@dataclass(frozen=True)
class MeanField(HiddenRule):
    """q(h_n) = N(M_n, S_n): O(NQ) parameters. Starts at the model's own mean and noise.

    :param full: whether S_n is full over the layer's outputs: O(NQ²) parameters.
    """

    full: bool = False
    knows_states = True

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return {
            "loc": per_datum(f"{name}_loc", lambda: step.marginal.mean, size, 1),
            "scale": per_datum_scale(name, size, step, self.full),
        }

    def linear(self, params: Parameters, step: Emission) -> tuple[Array | None, Gaussian]:
        return None, noise(params, step)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        return gaussian(self.linear(params, step)[1])


@dataclass(frozen=True)
class PointEstimate(MeanField):
    """One value for each h_n, the most probable: a latent's density q(x_n) is a point, and its entropy left out.

    For latents without a GP in front (Lawrence 2005; with ``Amortised`` his and Quiñonero-Candela's back-constraints).
    The objective is then a penalised likelihood of x, not a bound, and knows nothing of its uncertainty.
    """

    full: bool = field(default=False, init=False, repr=False)
    knows_states = False

    def declare_initial(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        return {"loc": per_datum(f"{name}_loc", lambda: latent.begin().mean, size, 1)}

    def initial(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return dist.Delta(params["loc"], event_dim=1)

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        raise ValueError(
            f"hidden: found PointEstimate() at {name!r}, a layer behind a GP, which has no density at a point; take "
            "hidden=DoublyStochastic() or another rule, and latent=PointEstimate()"
        )


@dataclass(frozen=True)
class Markov(HiddenRule):
    """q(h_n | h_n⁻) = N(T_n h_n⁻ + M_n, S_n): O(NQP) parameters (Chamberlin 4.6).

    Starts with T the linear mean's map, so that T h⁻ + M is the model's own mean.

    :param full: whether S_n is full over the layer's outputs.
    """

    full: bool = False
    knows_states = True

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        inputs = step.marginal.inputs
        return self._declared(name, size, step, inputs.mean if isinstance(inputs, Gaussian) else inputs)

    def declare_along(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        rows, width = step.marginal.mean.shape
        states, controls = jnp.split(step.marginal.rows, [width], axis=1)
        found = self._declared(name, size, step, states)
        # controls are known: M_t says all that they add
        beyond = jnp.zeros((rows, width, controls.shape[1]), states.dtype)
        return found | {"slope": jnp.concatenate([found["slope"], beyond], 2)}

    def _declared(self, name: str, size: int, step: Emission, at: Float[Array, "B P"]) -> Parameters:
        def slope() -> Array:
            return step.marginal.slope(at.shape[1])

        def intercept() -> Array:
            return step.marginal.mean - jnp.einsum("bqp,bp->bq", slope(), at)

        return {
            "slope": per_datum(f"{name}_slope", slope, size, 2),
            "loc": per_datum(f"{name}_loc", intercept, size, 1),
            "scale": per_datum_scale(name, size, step, self.full),
        }

    def linear(self, params: Parameters, step: Emission) -> tuple[Array | None, Gaussian]:
        return params["slope"], noise(params, step)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        inputs = step.marginal.inputs
        at = inputs.mean if isinstance(inputs, Gaussian) else inputs
        around = noise(params, step)
        mean = jnp.einsum("bqp,bp->bq", params["slope"], at) + around.mean
        return gaussian(Gaussian(mean, around.scale))


@dataclass(frozen=True)
class DoublyStochastic(HiddenRule):
    """The model's own conditional, nothing learnt and weight 1 at every α (Salimbeni & Deisenroth 2017)."""

    from_model = True

    def declare_initial(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        return {}

    def initial(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return latent.prior

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return {}

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        return step

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        return jnp.zeros(value.shape[0], value.dtype)

    def moments(self, params: Parameters, step: Emission, propagation: Propagation) -> Gaussian:
        marginal, s2 = step.marginal, noise_of(step)
        if propagation != "full-moments" or not isinstance(marginal.inputs, Gaussian):
            return Gaussian(marginal.mean, jnp.sqrt(marginal.variance + s2))
        covariance = matched_covariance(marginal.function, marginal.inputs)
        covariance = covariance + s2[..., None] * jnp.eye(s2.shape[-1], dtype=s2.dtype)
        return Gaussian(marginal.mean, cholesky(covariance, 0.0)[0])

    def expected_weight(self, params: Parameters, step: Emission) -> Float[Array, "B"]:
        return jnp.zeros(step.marginal.mean.shape[0], step.marginal.mean.dtype)


@dataclass(frozen=True)
class PRSSMSurrogate(DoublyStochastic):
    """The model's own transition with u integrated out anew at every step of a trajectory (Doerr et al. 2018, PR-SSM).

    A surrogate and no bound: the steps of a trajectory share one f, so that what cancels between p and q with one draw
    of u does not cancel here (design, section 1.5). ``DoublyStochastic`` is the bound.
    """

    integrates_u = True


@dataclass(frozen=True)
class MomentMatched(DoublyStochastic):
    """The model's own conditional, Gaussian moments of h pushed through the layers instead of draws (Bui 2017, ch. 4).

    For Gaussian noise exact up to two layers; beyond, and along a trajectory, where u is integrated out at every step,
    an approximation that is no bound. Needs α = 0 or
    ``BlackBoxAlpha``; objectives that do not carry moments, as NumPyro's own, draw h as ``DoublyStochastic`` does.

    :param propagation: "moments", "full-moments" (with the covariance of a layer's outputs) or "linearised".
    :raises ValueError: for another propagation.
    """

    propagation: Propagation = "moments"
    integrates_u = True

    def __post_init__(self) -> None:
        check_propagation(self.propagation)
