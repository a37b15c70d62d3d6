"""Rules for hidden variables that condition on u, or on f itself.

Sources: Chamberlin 2016, 4.3 and 4.4 (free), with parameter tying (4.10); Ialongo et al. 2019 (coupled); Hensman &
Lawrence 2014 (nested compression); the union with ``Markov`` has none. Shapes as in :mod:`ppl_dgp.guides.hidden`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters, Propagation
from ppl_dgp.gp.emission import Emission, FirstLayer
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.guides.containment import Containment, at_one, at_zero
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.hidden import (
    DoublyStochastic,
    Markov,
    MeanField,
    noise,
    per_datum_scale,
    per_datum_slope,
    previous,
)
from ppl_dgp.guides.latents import per_datum
from ppl_dgp.guides.linear_conditional import LinearConditional, noise_of
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.numerics.gaussian import Gaussian, project
from ppl_dgp.state_space.trajectory import Transition

#: how much of f a step of a trajectory keeps at the start
ALONG = 0.5


def _coupling(params: Parameters, step: Emission) -> Float[Array, "B Q"]:
    """c_n: how much of f the mean of q(h_n | f) keeps."""
    return 1.0 - params["shrinkage"] * jnp.sqrt(noise_of(step))


def _coupled(name: str, size: int, step: Emission) -> Parameters:
    """Parameters of a start at S = c s², as the product of two Gaussians has them; c = 1 but along a trajectory."""
    kept = ALONG if isinstance(step, Transition) else 1.0
    ones = lambda: jnp.ones_like(step.marginal.mean)
    shrinkage = lambda: (1.0 - kept) * ones() / jnp.sqrt(noise_of(step))
    scale = lambda: kept**0.5 * ones()
    return {
        "shrinkage": per_datum(f"{name}_shrinkage", shrinkage, size, 1),
        "loc": per_datum(f"{name}_loc", lambda: step.marginal.mean, size, 1),
        "scale": per_datum(f"{name}_scale", scale, size, 1, constraint=constraints.positive),
    }


def _uncoupled(start: Array, step: Emission) -> Array:
    """The shrinkage at which c = 1 − shrinkage s = 0."""
    return 1.0 / jnp.sqrt(noise_of(step))


def _negligible(start: Array, step: Emission) -> Array:
    """As small as the precision of the floats, for a parameter that must be positive."""
    return jnp.full_like(start, jnp.finfo(start.dtype).eps)


@dataclass(frozen=True)
class CoupledConditional(HiddenRule):
    """q(h_n | f) = N(c_n f(h_n⁻) + (1 − c_n) M_n, S_n) with f itself in q: O(NQ) parameters.

    Contains ``MeanField`` (c = 0) and ``DoublyStochastic`` (c = 1, S = s²), where it starts. What is learnt is how far
    a row is from the latter in units of the noise, c_n = 1 − s·``shrinkage`` and S_n / s²: a step of Adam then costs
    little of the bound where s is small, and noisy gradients do not drive s up.
    """

    depends_on = DependsOn.F

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return _coupled(name, size, step)

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        c, spread = _coupling(params, step), noise(params, step)
        return LinearConditional(Gaussian((1.0 - c) * spread.mean, spread.scale), function=c)

    def contains(self, other: HiddenRule) -> Containment | None:
        if type(other) is DoublyStochastic:
            return Containment({"shrinkage": at_zero, "scale": at_one})
        if type(other) is MeanField and not other.full:
            return Containment({"shrinkage": _uncoupled})
        return None


@dataclass(frozen=True)
class CoupledMarkov(CoupledConditional):
    """q(h_n | f, h_n⁻) = N(c_n f(h_n⁻) + (1 − c_n)(T_n h_n⁻ + M_n), S_n) with f itself in q: O(NQP) parameters.

    The union of ``Markov`` (c = 0) and the coupled rule (T = 0, where it starts), and so of all that these contain; its
    noise is diagonal. In a first layer h⁻ is data, and T, which would repeat M, is left out.
    """

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        params = super().declare(name, size, step, datum)
        if isinstance(step, FirstLayer):
            return params
        mean, width = step.marginal.mean, previous(step).shape[1]
        zeros = lambda: jnp.zeros((*mean.shape, width), mean.dtype)
        return params | {"slope": per_datum_slope(name, size, step, zeros)}

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        form = super().linear(params, step)
        if "slope" not in params:
            return form
        rest = 1.0 - _coupling(params, step)
        return replace(form, previous=rest[:, :, None] * params["slope"])

    def contains(self, other: HiddenRule) -> Containment | None:
        if type(other) is CoupledConditional:
            return Containment()
        if type(other) is Markov and not other.full:
            return Containment({"shrinkage": _uncoupled}, absorbed={"slope": _line_of_data})
        return super().contains(other)


def _line_of_data(params: Parameters, step: Emission) -> Parameters:
    """The M_n that holds T_n h_n⁻ + M_n, where h_n⁻ is data."""
    return {"loc": params["loc"] + jnp.einsum("bqp,bp->bq", params["slope"], step.marginal.rows)}


@dataclass(frozen=True)
class TiedConditional(HiddenRule):
    """q(h_n | u) = N(c_n f_mean(h_n⁻; u) + (1 − c_n) M_n, d_n D(h_n⁻) + S_n): T_n = c_n a(h_n⁻)ᵀ, O(NQ) parameters."""

    depends_on = DependsOn.U

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        ones = lambda: jnp.ones_like(step.marginal.mean)
        coupled = _coupled(name, size, step)
        residual = per_datum(f"{name}_residual", ones, size, 1, constraint=constraints.positive)
        return {**coupled, "residual": residual}

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        coupling = _coupling(params, step)
        mean = coupling * step.marginal.mean + (1.0 - coupling) * params["loc"]
        variance = noise(params, step).variance + params["residual"] * step.marginal.residual
        return dist.Normal(mean, jnp.sqrt(variance)).to_event(1)

    def contains(self, other: HiddenRule) -> Containment | None:
        if type(other) is MeanField and not other.full:
            return Containment({"shrinkage": _uncoupled, "residual": _negligible})
        return None


@dataclass(frozen=True)
class FreeConditional(HiddenRule):
    """q(h_n | u) = N(T_n v + M_n, S_n), T_n free (Chamberlin 4.3): O(NMQ) parameters.

    Starts at T_n = the model's own weights at the layer's first inputs.

    :param across_outputs: whether each output listens to the inducing outputs of all, and S_n is full (Chamberlin
        4.4): O(NMQ²) parameters.
    """

    across_outputs: bool = False
    depends_on = DependsOn.U

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        marginal, width = step.marginal, step.marginal.mean.shape[1]

        def weights() -> Array:
            repeated = _each_outputs(marginal)
            if not self.across_outputs:
                return repeated
            return repeated[:, :, None, :] * jnp.eye(width, dtype=repeated.dtype)[None, :, :, None]

        offset = lambda: _mean_function(marginal)
        return {
            "weights": per_datum(f"{name}_weights", weights, size, 3 if self.across_outputs else 2),
            "loc": per_datum(f"{name}_loc", offset, size, 1),
            "scale": per_datum_scale(name, size, step, self.across_outputs),
        }

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        return LinearConditional(noise(params, step), inducing=params["weights"])

    def contains(self, other: HiddenRule) -> Containment | None:
        if type(other) is MeanField and self.across_outputs >= other.full:
            return Containment({"weights": at_zero})
        narrower = type(other) is FreeConditional and self.across_outputs >= other.across_outputs
        return Containment() if narrower else None


@dataclass(frozen=True)
class NestedCompression(FreeConditional):
    """q(h_n | u) = N(⟨A_n⟩ u, s²), ⟨A_n⟩ the weights averaged over q(h_n⁻): nothing learnt (Hensman & Lawrence 2014).

    In closed form only: h is carried as moments (Bui 2017, eq. 4.39 corrected). Needs α = 0.
    """

    across_outputs: bool = field(default=False, init=False)
    propagation: Propagation = "moments"

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        marginal = step.marginal
        return {
            "weights": _each_outputs(marginal),
            "loc": _mean_function(marginal),
            "scale": jnp.ones_like(marginal.mean),
        }

    def contains(self, other: HiddenRule) -> Containment | None:
        return None


def _each_outputs(marginal: Marginal) -> Float[Array, "B Q M"]:
    """The weights of u in each output."""
    if marginal.weights.ndim == 3:
        return marginal.weights
    return jnp.repeat(marginal.weights[:, None, :], marginal.mean.shape[1], 1)


def _mean_function(marginal: Marginal) -> Float[Array, "B Q"]:
    """E m(h⁻): the mean of f less what u adds."""
    u = marginal.function.u
    return marginal.mean - project(marginal.weights, u.mean if isinstance(u, Gaussian) else u)


def Conditional(
    *, free: bool = False, tied: bool = False, across_outputs: bool = False, markov: bool = False
) -> HiddenRule:
    """q(h_n | f) or q(h_n | u): :class:`CoupledConditional` unless another is asked for.

    :param across_outputs: free, with every output listening to all inducing outputs of its layer.
    :param markov: beside f also h_n⁻ is followed, linearly: :class:`CoupledMarkov`, which contains ``Markov()``,
        ``Conditional()`` and all that they contain without correlated noise.
    :raises ValueError: if both free and tied are asked for, or tied across outputs, or markov beside any of them.
    """
    if markov and (free or tied or across_outputs):
        raise ValueError(
            "Conditional: found markov=True beside free, tied or across_outputs, expected one of them; leave the "
            "others out"
        )
    if tied and (free or across_outputs):
        raise ValueError("Conditional: found tied=True beside free or across_outputs, expected one of them")
    if free or across_outputs:
        return FreeConditional(across_outputs)
    if tied:
        return TiedConditional()
    return CoupledMarkov() if markov else CoupledConditional()
