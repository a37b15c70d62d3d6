"""Rules for hidden variables that do not speak of u, and the model's own conditional.

Shapes: N rows, B rows at hand, Q outputs of the layer, P those of the layer before. Those that condition on u or on f
are in :mod:`ppl_dgp.guides.conditional`. Sources: Chamberlin 2016 ch. 4, with the corrections of docs/design.md, 4;
Salimbeni & Deisenroth 2017 (doubly stochastic); Bui 2017 ch. 4 (moment matching).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Parameters, Propagation
from ppl_dgp.gp.emission import Emission
from ppl_dgp.gp.representation import check_propagation
from ppl_dgp.guides.containment import Containment, at_zero
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.latents import PointLatent, per_datum, per_datum_spread
from ppl_dgp.guides.linear_conditional import LinearConditional, noise_of
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.trajectory import Transition


def per_datum_scale(name: str, size: int, step: Emission, full: bool) -> Array:
    """Per-datum scales in units of the model's noise, started at 1: deviations (B, Q), or Cholesky factors."""
    return per_datum_spread(name, size, lambda: jnp.ones_like(step.marginal.mean), full)


def previous(step: Emission) -> Float[Array, "B P"]:
    """h_n⁻, or its mean where it is carried as moments; of a trajectory's step the state without the controls."""
    inputs = step.marginal.inputs
    if isinstance(step, Transition):
        return step.marginal.rows[:, : step.marginal.mean.shape[1]]
    return inputs.mean if isinstance(inputs, Gaussian) else step.marginal.rows


def per_datum_slope(
    name: str, size: int, step: Emission, start: Callable[[], Float[Array, "B Q P"]]
) -> Float[Array, "B Q P"]:
    """T_n of each datum; 0 for the controls of a step, which are known: M_t says all that they add."""
    slope = per_datum(f"{name}_slope", start, size, 2)
    if not isinstance(step, Transition):
        return slope
    beyond = step.marginal.rows.shape[1] - slope.shape[2]
    return jnp.pad(slope, ((0, 0), (0, 0), (0, beyond)))


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
    depends_on = DependsOn.NOTHING

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        return {
            "loc": per_datum(f"{name}_loc", lambda: step.marginal.mean, size, 1),
            "scale": per_datum_scale(name, size, step, self.full),
        }

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        return LinearConditional(noise(params, step))

    def contains(self, other: HiddenRule) -> Containment | None:
        return Containment() if type(other) is MeanField and self.full >= other.full else None


@dataclass(frozen=True)
class PointEstimate(HiddenRule):
    """One value for each h_n, the most probable: a latent's density q(x_n) is a point, and its entropy left out.

    For latents without a GP in front (Lawrence 2005; with ``Amortised`` his and Quiñonero-Candela's back-constraints).
    The objective is then a penalised likelihood of x, not a bound, and knows nothing of its uncertainty.
    """

    depends_on = DependsOn.NOTHING
    latent = PointLatent()

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
    depends_on = DependsOn.PREVIOUS

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        at = previous(step)

        def slope() -> Array:
            return step.marginal.slope(at.shape[1])

        def intercept() -> Array:
            return step.marginal.mean - jnp.einsum("bqp,bp->bq", slope(), at)

        return {
            "slope": per_datum_slope(name, size, step, slope),
            "loc": per_datum(f"{name}_loc", intercept, size, 1),
            "scale": per_datum_scale(name, size, step, self.full),
        }

    def linear(self, params: Parameters, step: Emission) -> LinearConditional:
        return LinearConditional(noise(params, step), previous=params["slope"])

    def contains(self, other: HiddenRule) -> Containment | None:
        if type(other) is MeanField and self.full >= other.full:
            return Containment({"slope": at_zero})
        return Containment() if type(other) is Markov and self.full >= other.full else None


@dataclass(frozen=True)
class DoublyStochastic(HiddenRule):
    """The model's own conditional, nothing learnt and weight 1 at every α (Salimbeni & Deisenroth 2017)."""

    depends_on = DependsOn.MODEL


@dataclass(frozen=True)
class PRSSMSurrogate(DoublyStochastic):
    """The model's own transition with u integrated out anew at every step of a trajectory (Doerr et al. 2018, PR-SSM).

    A surrogate and no bound: the steps of a trajectory share one f, so that what cancels between p and q with one draw
    of u does not cancel here (docs/design.md, 1.5). ``DoublyStochastic`` is the bound.
    """


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

    def __post_init__(self) -> None:
        check_propagation(self.propagation)


def along_function(rule: HiddenRule) -> bool:
    """Whether q of a step depends on the function, so that a trajectory needs one draw of u."""
    # the model's own steps carried as moments integrate u out at each, and so does the surrogate
    if isinstance(rule.definition, PRSSMSurrogate) or (
        rule.depends_on.on_model and rule.propagation != "draws"
    ):
        return False
    return rule.depends_on.on_function
