"""The tempered weight of each row, w_n = p(y_n, h_n | θ) / q(h_n | θ), and the divergence of the sites outside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.old_posterior import old_posterior_of
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.numerics.power_mean import Alpha, is_number
from ppl_dgp.objectives.cavity import renyi_and_cavity
from ppl_dgp.objectives.site_roles import SiteRoles, row_sum


def log_weights(
    roles: SiteRoles,
    model: Trace,
    guide: Trace,
    alpha: Alpha,
    u_outside: bool,
    moments: frozenset[str] = frozenset(),
    known: Mapping[str, Array] = MappingProxyType({}),
    plain: bool = False,
    apart: bool = False,
) -> dict[str, Array]:
    """Tempered log p/q per row of each data plate (and a scalar for data outside all plates).

    :param moments: the hidden sites that are carried as moments, whose weights are averages.
    :param known: weights of local sites that need no draw.
    :param plain: whether p and q are taken as the densities they are, where f is drawn and a rule knows no better.
    :param apart: whether data outside all plates have an entry for each site, by its name.
    """
    total: dict[str, Array] = {}

    def add(name: str, log_prob: Array) -> None:
        group = roles.groups[name]
        scaled = log_prob * roles.powers[name]
        rows = scaled.sum() if group == "" else row_sum(scaled, roles.dims[group])
        entry = name if apart and group == "" else group
        total[entry] = total.get(entry, 0.0) + rows

    for name in roles.factors:
        site, approximation = model[name], guide.get(name)
        if name in known:
            add(name, jnp.where(mask_of(site["fn"]), known[name], 0.0))
            continue
        if approximation is not None and name in moments:
            add(
                name,
                jnp.where(mask_of(site["fn"]), _expected(name, approximation["fn"], site["fn"], alpha), 0.0),
            )
            continue
        rule_weight = None
        if approximation is not None and not plain:
            rule_weight = getattr(unwrap(approximation["fn"]), "log_weight", None)
        if rule_weight is not None:
            add(name, jnp.where(mask_of(site["fn"]), rule_weight(site["value"], alpha), 0.0))
            continue
        emission = emission_of(site["fn"])
        if old_posterior_of(site["fn"]) is not None:
            continue
        if emission is None:
            add(name, site["fn"].log_prob(site["value"]))
        else:
            mask, value = mask_of(site["fn"]), site["value"]
            if mask is not True:
                # what a masked row holds, NaN perhaps, must not reach the gradient
                value = jnp.where(jnp.expand_dims(mask, -1), value, 0)
            add(name, jnp.where(mask, emission.tempered(value, alpha, u_outside=u_outside), 0.0))
        if approximation is not None:
            add(name, -approximation["fn"].log_prob(approximation["value"]))
    for name in roles.auxiliary_local:
        add(name, -guide[name]["fn"].log_prob(guide[name]["value"]))
    return total


def old_posterior_terms(roles: SiteRoles, model: Trace, alpha: Alpha) -> Array:
    """What the memories of streams say of u, always outside the logarithm: inside it, a part would be forgotten."""
    memories = [(name, old_posterior_of(model[name]["fn"])) for name in roles.factors]
    terms = [
        roles.powers[name] * memory.tempered(alpha, u_outside=True)
        for name, memory in memories
        if memory is not None
    ]
    return sum(terms, jnp.zeros(()))


def _expected(name: str, q: dist.Distribution, p: dist.Distribution, alpha: Alpha) -> Array:
    """The weight of a hidden site that is carried as moments, averaged over it."""
    conditional: Any = unwrap(q)
    behind_gp = hasattr(conditional, "expected_weight")
    if not is_number(alpha, 0.0) and not (behind_gp and conditional.rule.depends_on.on_model):
        kind = conditional.rule if behind_gp else type(conditional).__name__
        raise ValueError(
            f"propagation: found moments of {kind} at {name!r} and alpha={alpha}; its weights are averages over h, "
            "which stand inside the logarithm: take alpha=0, ApproximatePowerEP, or propagation='draws'"
        )
    return conditional.expected_weight() if behind_gp else -row_divergence(q, p)


def row_divergence(q: dist.Distribution, p: dist.Distribution) -> Array:
    """KL[q(x_n)‖p(x_n)] of a latent without a GP in front, (B,), in closed form; of a point −log p there."""
    if isinstance(unwrap(q), dist.Delta):
        cost: Array = -p.log_prob(jnp.broadcast_to(unwrap(q).v, p.shape()))
        return cost
    return renyi_and_cavity("", q, p, 0.0)[0]


def global_kl(
    roles: SiteRoles, model: Trace, guide: Trace, alpha: Alpha = 0.0, moments: frozenset[str] = frozenset()
) -> Array:
    """KL[q(θ)‖p(θ)]: analytic where NumPyro knows it, else log q − log p at the draw.

    Of a trajectory minus the weight that its rule knows, its steps tempered each on its own.

    :param moments: the hidden sites that are carried as moments, whose weights are averages.
    """
    kl = jnp.zeros(())
    for name in roles.global_sites:
        q, p = guide[name], model.get(name)
        if p is None:
            kl = kl + q["fn"].log_prob(q["value"]).sum()
            continue
        scale = 1.0 if p["scale"] is None else p["scale"]
        known: Any = unwrap(q["fn"])
        if hasattr(known, "log_weight"):
            weight = known.expected_weight() if name in moments else known.log_weight(q["value"], alpha)
            kl = kl - scale * weight
            continue
        try:
            if isinstance(unwrap(q["fn"]), dist.Delta):
                raise NotImplementedError
            term = kl_divergence(q["fn"], p["fn"]).sum()
        except NotImplementedError:
            term = q["fn"].log_prob(q["value"]).sum() - p["fn"].log_prob(q["value"]).sum()
        kl = kl + scale * term
    return kl
