"""α-divergence objectives for NumPyro's SVI: Power EP and black-box α (design, section 4).

With θ the sites outside the data plate, h_n those inside it, and w_n = p(y_n, h_n | θ) / q(h_n | θ) in tempered form,

* ``PowerEP``:        −KL[q(θ)‖p(θ)] + Σ_n E_{q(θ)}[(1/α) log E_{q(h_n|θ)} w_n^α], a lower bound at every α in (0, 1];
* ``BlackBoxAlpha``:  −KL[q(θ)‖p(θ)] + Σ_n (1/α) log E_{q(θ)} E_{q(h_n|θ)} w_n^α, an energy and no bound.

Both are the ELBO at α = 0, an exact branch. What is drawn inside and what outside the logarithm is the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.kl import kl_divergence
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp.gp import Carrying, Propagation, bare, check_propagation, emission_of, mask_of
from ppl_dgp.memory import recollection_of
from ppl_dgp.objectives.alpha import checked_alpha
from ppl_dgp.objectives.carrying import Carried, checked_moments
from ppl_dgp.objectives.structure import Structure, find_structure, row_sum
from ppl_dgp.tempering import log_power_mean

Trace = dict[str, dict[str, Any]]


class AlphaDivergence(ELBO):
    """What both objectives share: one minibatch and one set of traces per particle, weights per datum."""

    #: whether θ stays outside the logarithm (a bound) or is drawn anew inside it (an energy)
    theta_outside: bool

    def __init__(
        self, alpha: float = 0.0, num_particles: int | None = None, propagation: Propagation | None = None
    ) -> None:
        """
        :param alpha: in [0, 1]; 0 is the ELBO.
        :param num_particles: draws S of the local latents; 1 at α = 0 and 8 otherwise, if not given.
        :param propagation: how hidden layers are carried: "draws", or without draws "moments", "full-moments" (with
            the covariance of a layer's outputs) or "linearised"; as the guide's rule prefers, if not given. Moments
            give the closed-form bound of a mean-field or Markov guide, exact for Gaussian noise where q(h) is
            Gaussian; for ``DoublyStochastic`` they are exact up to two layers.
        :raises TypeError: if alpha is not a number, or num_particles not an int.
        :raises ValueError: if alpha is outside [0, 1], or num_particles is not positive.
        """
        name = type(self).__name__
        self.alpha = checked_alpha(name, alpha)
        if num_particles is not None and num_particles < 1:
            raise ValueError(f"{name}: num_particles: found {num_particles}, expected at least 1")
        if propagation is not None:
            check_propagation(propagation)
        self.propagation = propagation
        super().__init__(num_particles or (1 if alpha == 0.0 else 8))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha:g}, num_particles={self.num_particles})"

    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the objective, in nats over all N rows, estimated with ``num_particles`` draws."""
        probe_key, carry_key, particle_key = jax.random.split(rng_key, 3)
        # one run fixes the minibatch of all particles, the globals, and which site plays which part
        probe_guide = _run(guide, probe_key, param_map, args, kwargs)
        probe_model = _run(replay(model, probe_guide), probe_key, param_map, args, kwargs)
        structure = find_structure(probe_model, probe_guide, self.alpha)
        fixed = {**param_map, **structure.plates}
        propagation = self._propagation(structure)
        carrying, u_outside = self._carrying(structure)
        if propagation:
            carrying = checked_moments(structure.carrying, probe_guide)
        shared: dict[str, Any] = {}
        if self.theta_outside and self.alpha > 0.0:
            # θ, and each datum's draw of u, are shared by the particles
            fixed.update({name: probe_guide[name]["value"] for name in structure.global_sites})
            carried = Carried(carrying, structure.num_rows, carry_key)
            carried.answer_all(probe_guide)
            shared = carried.store

        def particle(key: Array) -> tuple[dict[str, Array], Array]:
            key_run, key_carry = jax.random.split(key)
            carried = Carried(carrying, structure.num_rows, key_carry, dict(shared), propagation)
            with carried:
                guide_trace = _run(guide, key_run, fixed, args, kwargs)
                model_trace = _run(replay(model, guide_trace), key_run, fixed, args, kwargs)
            carried.check_heard()
            sites = frozenset(propagation)
            weights = log_weights(structure, model_trace, guide_trace, self.alpha, u_outside, sites)
            return weights, _global_kl(structure, model_trace, guide_trace)

        keys = jax.random.split(particle_key, self.num_particles)
        if self.num_particles == 1:
            weights, kl = jax.tree.map(lambda leaf: leaf[None], particle(keys[0]))
        else:
            weights, kl = self.vectorize_particles_fn(particle, keys)
        objective = -kl.mean()
        for group, log_w in weights.items():
            objective = objective + structure.scales[group] * log_power_mean(log_w, self.alpha).sum()
        return -objective

    def _propagation(self, structure: Structure) -> dict[str, Propagation]:
        """The hidden layers that are carried as moments."""
        found = {name: self.propagation or how for name, how in structure.propagation.items()}
        found = {name: how for name, how in found.items() if how != "draws"}
        if found and self.alpha > 0.0 and self.theta_outside:
            raise ValueError(
                f"propagation: found {set(found.values())} at alpha={self.alpha:g}, where each datum needs its draws; "
                "take alpha=0, BlackBoxAlpha, or propagation='draws'"
            )
        return found

    def _carrying(self, structure: Structure) -> tuple[dict[str, Carrying], bool]:
        """How each u is carried, and whether its moments are to stay outside the logarithm."""
        wish = dict(structure.carrying)
        if self.alpha == 0.0 or not self.theta_outside:
            return wish, False
        if not structure.local_sites:
            # without locals the closed form averages over u outside
            return wish, True
        return {k: "local_draw" if v == "moments" else v for k, v in wish.items()}, False


class PowerEP(AlphaDivergence):
    """Power EP with θ outside the logarithm: a lower bound of the evidence (of the FITC model, for GPs) at every α.

    For one layer of Gaussian noise its maximum over q(u) is the closed-form power-EP energy, exact at Z = X. At α = 1
    the inner expectation no longer depends on q(h), so that with many particles the hidden guide is free to wander.
    """

    theta_outside = True


class BlackBoxAlpha(AlphaDivergence):
    """Black-box α (Hernández-Lobato et al. 2016; Li & Gal 2017), θ inside the logarithm: an energy, not a bound."""

    theta_outside = False


def _run(fn: Callable[..., Any], key: Array, values: dict[str, Array], args: Any, kwargs: Any) -> Trace:
    return trace(substitute(seed(fn, key), data=values)).get_trace(*args, **kwargs)


def log_weights(
    structure: Structure,
    model: Trace,
    guide: Trace,
    alpha: float,
    u_outside: bool,
    moments: frozenset[str] = frozenset(),
) -> dict[str, Array]:
    """Tempered log p/q per row of each data plate (and a scalar for data outside all plates).

    :param moments: the hidden sites that are carried as moments, whose weights are averages.
    """
    total: dict[str, Array] = {}

    def add(name: str, log_prob: Array) -> None:
        group = structure.groups[name]
        scaled = log_prob * structure.powers[name]
        rows = scaled.sum() if group == "" else row_sum(scaled, structure.dims[group])
        total[group] = total.get(group, 0.0) + rows

    for name in structure.factors:
        site, approximation = model[name], guide.get(name)
        if approximation is not None and name in moments:
            add(name, jnp.where(mask_of(site["fn"]), _expected(bare(approximation["fn"]), alpha), 0.0))
            continue
        ours = getattr(bare(approximation["fn"]), "log_weight", None) if approximation else None
        if ours is not None:
            add(name, jnp.where(mask_of(site["fn"]), ours(site["value"], alpha), 0.0))
            continue
        emission, memory = emission_of(site["fn"]), recollection_of(site["fn"])
        if memory is not None:
            add(name, memory.tempered(alpha, u_outside=u_outside))
        elif emission is None:
            add(name, site["fn"].log_prob(site["value"]))
        else:
            mask, value = mask_of(site["fn"]), site["value"]
            if mask is not True:
                # what a masked row holds, NaN perhaps, must not reach the gradient
                value = jnp.where(jnp.expand_dims(mask, -1), value, 0)
            add(name, jnp.where(mask, emission.tempered(value, alpha, u_outside=u_outside), 0.0))
        if approximation is not None:
            add(name, -approximation["fn"].log_prob(approximation["value"]))
    for name in structure.auxiliary_local:
        add(name, -guide[name]["fn"].log_prob(guide[name]["value"]))
    return total


def _expected(conditional: Any, alpha: float) -> Array:
    weight = conditional.expected_weight()
    if alpha > 0.0 and not conditional.rule.from_model:
        raise ValueError(
            f"propagation: found moments of {conditional.rule} at alpha={alpha:g}; its weights are averages over h, "
            "which stand inside the logarithm: take alpha=0 or propagation='draws'"
        )
    return weight


def _global_kl(structure: Structure, model: Trace, guide: Trace) -> Array:
    """KL[q(θ)‖p(θ)]: analytic where NumPyro knows it, else log q − log p at the draw."""
    kl = jnp.zeros(())
    for name in structure.global_sites:
        q, p = guide[name], model.get(name)
        if p is None:
            kl = kl + q["fn"].log_prob(q["value"]).sum()
            continue
        scale = 1.0 if p["scale"] is None else p["scale"]
        try:
            if isinstance(bare(q["fn"]), dist.Delta):
                raise NotImplementedError
            term = kl_divergence(q["fn"], p["fn"]).sum()
        except NotImplementedError:
            term = q["fn"].log_prob(q["value"]).sum() - p["fn"].log_prob(q["value"]).sum()
        kl = kl + scale * term
    return kl
