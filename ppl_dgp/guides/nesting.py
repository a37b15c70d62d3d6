"""Nested families: parameters at which a richer guide is the distribution that a poorer one has found.

``Conditional() ⊇ MeanField, DoublyStochastic``;  ``Conditional(tied=True), Conditional(free=True), Markov ⊇
MeanField``;  a rule with full noise, or across outputs, contains the one without;  ``AcrossOutputs, LayerChain, Coupled
⊇ FullRank ⊇ LowRank ⊇ Diagonal``, the higher rank the lower;  ``Coupled("full") ⊇ Coupled("stripes"), LayerChain``
(design, section 4). A richer guide that is trained from there ends no lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jaxtyping import Array
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.gp.contract import Parameters, role_of
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.guides.conditional import CoupledConditional, FreeConditional, TiedConditional
from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.hidden import DoublyStochastic, Markov, MeanField, noise_of
from ppl_dgp.guides.inducing import (
    AcrossOutputs,
    Coupled,
    Diagonal,
    FullRank,
    InducingRule,
    LayerChain,
    LowRank,
    Optimal,
    link_name,
)
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.state_space.trajectory import trajectory_of

#: (poorer, richer): which of the richer rule's parameters must take the values of ``_WHERE_POORER``, or vanish, for it
#: to be the poorer; the others that it adds stay at their starts: for a coupled rule the model's own conditional, for
#: links between layers 0
_HIDDEN: dict[tuple[type, type], tuple[str, ...]] = {
    (MeanField, MeanField): (),
    (MeanField, Markov): ("slope",),
    (MeanField, CoupledConditional): ("shrinkage",),
    (MeanField, TiedConditional): ("shrinkage", "residual"),
    (MeanField, FreeConditional): ("weights",),
    (Markov, Markov): (),
    (FreeConditional, FreeConditional): (),
    (DoublyStochastic, CoupledConditional): (),
}
_INDUCING: dict[tuple[type, type], tuple[str, ...]] = {
    (poor, rich): ("factor",) if (poor, rich) == (Diagonal, LowRank) else ()
    for poor, riches in {
        Diagonal: (FullRank, LowRank, AcrossOutputs, LayerChain, Coupled),
        LowRank: (LowRank, FullRank, AcrossOutputs, LayerChain, Coupled),
        FullRank: (AcrossOutputs, LayerChain, Coupled),
        Optimal: (FullRank, AcrossOutputs, LayerChain, Coupled),
        LayerChain: (LayerChain, Coupled),
        Coupled: (Coupled,),
    }.items()
    for rich in riches
}
#: values other than 0, of the parameter at its start and the model's own conditional: c = 1 − shrinkage s = 0; and no
#: D(h⁻)
_WHERE_POORER: dict[str, Callable[[Array, Emission], Array]] = {
    "shrinkage": lambda start, step: 1.0 / jnp.sqrt(noise_of(step)),
    "residual": lambda start, step: jnp.full_like(start, jnp.finfo(start.dtype).eps),
}
#: of the deviations: what the factors of a low-rank rule are shrunk to, for at 0 their gradient would vanish
_SLIGHT = 1e-3
#: parameters whose shapes may differ between nested rules
_RESHAPED = ("_scale", "_weights", "_factor", "_basis", "_core")


def nested_start(poorer: Guide, richer: Guide, params: Parameters, *args: Any, **kwargs: Any) -> Parameters:
    """Parameters of ``richer`` at which it is ``poorer`` at ``params``, for ``fit_svi(start=…)``.

    >>> import jax, jax.numpy as jnp
    >>> from ppl_dgp import Guide, Markov, MeanField, PowerEP, deep_gp, fit_svi
    >>> key, x = jax.random.key(0), jnp.linspace(-1.0, 1.0, 8)[:, None]
    >>> y, model = jnp.sign(x), deep_gp((1, 1), 4)
    >>> poorer, richer = Guide(model, hidden=MeanField()), Guide(model, hidden=Markov())
    >>> fit = fit_svi(key, model, poorer, PowerEP(0.0), x, y, steps=2)
    >>> start = nested_start(poorer, richer, fit.params, x, y)
    >>> fit_svi(key, model, richer, PowerEP(0.0), x, y, steps=2, start=start).steps
    2

    :param poorer: the guide that was fitted.
    :param richer: a guide of the same model, each of whose rules contains the poorer one's or is the same.
    :param params: constrained parameters of model and poorer guide, as ``Fit.params``; not changed.
    :param args: what the guides are called with, ``x, y``: all rows.
    :returns: ``params`` with those of the richer guide. The ``residual`` of a tied rule, which must be positive, is as
        small as the precision of the floats, and the factors of a low-rank rule a thousandth of the deviations.
    :raises ValueError: if the guides have different models, or a rule of the richer does not contain the poorer's.
    """
    if poorer.model is not richer.model:
        raise ValueError("richer: found a guide of another model; expected one of the same model object")
    hidden = _contained("hidden", poorer.hidden, richer.hidden, _HIDDEN)
    inducing = _contained("inducing", poorer.inducing, richer.inducing, _INDUCING)
    # left out, so that the richer guide shows the shapes it has
    common = {k: value for k, value in params.items() if not k.endswith(_RESHAPED) and "u_link" not in k}
    own = trace(substitute(seed(richer.model, jax.random.PRNGKey(0)), common)).get_trace(*args, **kwargs)
    sites = [name for name, site in own.items() if role_of(site).inducing]
    found = _translated(poorer.inducing, richer.inducing, sites, params)
    for name, site in (
        trace(substitute(seed(richer, jax.random.PRNGKey(0)), common)).get_trace(*args, **kwargs).items()
    ):
        if site["type"] == "param":
            found[name] = _widened(name, found.get(name, site["value"]), site["value"])
        elif site["type"] == "sample" and role_of(site).hidden:
            for parameter in hidden:
                start, step = found[f"{name}_{parameter}"], _steps(own[name])
                value = _WHERE_POORER.get(parameter, lambda start, step: jnp.zeros_like(start))
                found[f"{name}_{parameter}"] = value(start, step)
            if isinstance(poorer.hidden, DoublyStochastic) and trajectory_of(own[name]["fn"]):
                # along a trajectory a coupled rule does not start at the model's own conditional
                found[f"{name}_shrinkage"] = jnp.zeros_like(found[f"{name}_shrinkage"])
                found[f"{name}_scale"] = jnp.ones_like(found[f"{name}_scale"])
        elif site["type"] == "sample" and role_of(site).inducing:
            for parameter in inducing:
                factor = found[f"{name}_{parameter}"]
                scale = _SLIGHT * found[f"{name}_scale"][..., None]
                found[f"{name}_{parameter}"] = scale * factor / jnp.abs(factor).max()
    return found


def _steps(site: dict[str, Any]) -> Emission:
    """The steps of a hidden site of the model: its rows, or those along a trajectory."""
    trajectory = trajectory_of(site["fn"])
    step = emission_of(site["fn"]) if trajectory is None else trajectory.steps(site["value"])
    assert step is not None
    return step


def contains(richer: Guide, poorer: Guide) -> bool:
    """Whether each rule of ``richer`` contains that of ``poorer`` or is the same, and one of them differs."""
    hidden = _nested(poorer.hidden, richer.hidden, _HIDDEN)
    inducing = _nested(poorer.inducing, richer.inducing, _INDUCING)
    return hidden and inducing and (poorer.hidden, poorer.inducing) != (richer.hidden, richer.inducing)


def _translated(
    low: InducingRule, high: InducingRule, sites: Sequence[str], params: Parameters
) -> Parameters:
    """The parameters of q(u) under the rule ``low`` in the terms in which ``high`` has them."""
    found = dict(params)
    for before, site in zip([None, *sites], sites, strict=False):
        if isinstance(low, LowRank) and not isinstance(high, LowRank):
            scale, factor = found[f"{site}_scale"], found.pop(f"{site}_factor")
            found[f"{site}_scale"] = jnp.linalg.cholesky(
                Gaussian(params[f"{site}_loc"], scale, factor).covariance()
            )
        if before is None or not isinstance(low, LayerChain) or high == low:
            continue
        if low.rank is not None and getattr(high, "rank", None) is None:
            parts = (found.pop(f"{site}_{part}") for part in ("basis", "core", "source_basis"))
            found[f"{site}_link"] = jnp.einsum("mr,prqs,ks->pmqk", *parts)
        if isinstance(high, Coupled):
            found[link_name(site, before)] = found.pop(f"{site}_link")
    return found


def _widened(name: str, value: Any, own: Any) -> Any:
    """A parameter of the poorer guide in the shape that the richer one's ``own`` has."""
    wanted, wide = jnp.shape(own), value
    identity = lambda size: jnp.eye(size, dtype=value.dtype)
    if jnp.shape(value) == wanted:
        return value
    if name.endswith("_weights") and jnp.ndim(value) == 3:
        # each output listens to its own u alone
        wide = value[:, :, None, :] * identity(value.shape[1])[None, :, :, None]
    elif name.endswith("_scale") and len(wanted) == jnp.ndim(value) + 1:
        # deviations are the diagonal of a Cholesky factor
        wide = value[..., None] * identity(value.shape[-1])
    elif name.endswith(("_factor", "_basis", "_core")):
        # the first of more columns; those of a factor must not be 0
        least = _SLIGHT * jnp.abs(value).max() if name.endswith("_factor") else 1.0
        wide = (least * own).at[tuple(map(slice, value.shape))].set(value)
    elif "u_link" in name:
        # each output listens to its namesake alone
        wide = value[:, :, None, :] * identity(value.shape[0])[:, None, :, None]
    elif name.endswith("u_scale"):
        # one factor for all outputs has those of the outputs as its blocks
        wide = block_diag(*(value if value.ndim == 3 else value[..., None] * identity(value.shape[-1])))
    if jnp.shape(wide) == wanted:
        return wide
    raise ValueError(
        f"richer: found {name!r} of shape {wanted}, expected to hold the poorer guide's {jnp.shape(value)}; "
        "give it a rule as full as the poorer's"
    )


def _nested(low: Any, high: Any, known: dict[tuple[type, type], tuple[str, ...]]) -> bool:
    """Whether the rule ``high`` contains, or is, the rule ``low``."""
    return low == high or ((type(low), type(high)) in known and _as_full(low, high))


def _as_full(low: Any, high: Any) -> bool:
    """Whether ``high`` has all the correlations of ``low``: full noise, its rank, its structure between layers."""
    if isinstance(low, LayerChain) and isinstance(high, Coupled):
        return high.structure == "full"
    if isinstance(low, Coupled):
        return isinstance(high, Coupled) and high.structure == "full"
    if type(low) is type(high) and isinstance(low, LowRank | LayerChain):
        return high.rank is None or (low.rank is not None and low.rank <= high.rank)
    wide = lambda rule: getattr(rule, "full", False) or getattr(rule, "across_outputs", False)
    return wide(high) or not wide(low)


def _contained(
    argument: str, low: Any, high: Any, known: dict[tuple[type, type], tuple[str, ...]]
) -> tuple[str, ...]:
    """The parameters that vanish where the rule ``high`` is ``low``; refuses rules that are not nested."""
    if not _nested(low, high, known):
        rules = ", ".join(["the same rule", *(rich.__name__ for poor, rich in known if poor is type(low))])
        raise ValueError(
            f"richer: found {argument}={high!r}, which does not contain {low!r}; expected {rules}, and as full"
        )
    return () if low == high else known[type(low), type(high)]
