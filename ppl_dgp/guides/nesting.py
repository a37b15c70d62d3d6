"""Nested families: parameters at which a richer guide is the distribution that a poorer one has found.

``Conditional() ⊇ MeanField, DoublyStochastic``;  ``Conditional(tied=True), Conditional(free=True), Markov ⊇
MeanField``;  ``FullRank ⊇ Diagonal`` (design, section 4). A richer guide that is trained from there ends no lower.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.guides import Conditional, Diagonal, DoublyStochastic, FullRank, Guide, Markov, MeanField
from ppl_dgp.guides.hidden import Params

#: (poorer, richer): which of the richer rule's parameters vanish where it is the poorer; the others that it adds stay
#: at their starts, which for a coupled rule are the model's own conditional
_HIDDEN: dict[tuple[type, type], tuple[str, ...]] = {
    (MeanField, Markov): ("slope",),
    (MeanField, type(Conditional())): ("gain",),
    (MeanField, type(Conditional(tied=True))): ("gain", "residual"),
    (MeanField, type(Conditional(free=True))): ("weights",),
    (DoublyStochastic, type(Conditional())): (),
}
_INDUCING: dict[tuple[type, type], tuple[str, ...]] = {(Diagonal, FullRank): ()}


def nested_start(poorer: Guide, richer: Guide, params: Params, *args: Any, **kwargs: Any) -> Params:
    """Parameters of ``richer`` at which it is ``poorer`` at ``params``, for ``fit_svi(start=…)``.

    :param poorer: the guide that was fitted.
    :param richer: a guide of the same model, each of whose rules contains the poorer one's or is the same.
    :param params: constrained parameters of model and poorer guide, as ``Fit.params``; not changed.
    :param args: what the guides are called with, ``x, y``: all rows.
    :returns: ``params`` with those of the richer guide. The ``residual`` of a tied rule, which must be positive, is as
        small as the precision of the floats.
    :raises ValueError: if the guides have different models, or a rule of the richer does not contain the poorer's.
    """
    if poorer.model is not richer.model:
        raise ValueError("richer: found a guide of another model; expected one of the same model object")
    vanishing = _contained("hidden", poorer.hidden, richer.hidden, _HIDDEN)
    _contained("inducing", poorer.inducing, richer.inducing, _INDUCING)
    # scales are left out: the richer guide's own show whether they are deviations or Cholesky factors
    common = {name: value for name, value in params.items() if not name.endswith("_scale")}
    found = dict(params)
    for name, site in (
        trace(substitute(seed(richer, jax.random.PRNGKey(0)), common)).get_trace(*args, **kwargs).items()
    ):
        if site["type"] == "param":
            found[name] = _widened(name, found.get(name, site["value"]), site["value"])
        elif site["type"] == "sample" and site["infer"].get("role") == "hidden":
            for parameter in vanishing:
                full = found[f"{name}_{parameter}"]
                least = jnp.finfo(full.dtype).eps if parameter == "residual" else 0.0
                found[f"{name}_{parameter}"] = jnp.full_like(full, least)
    return found


def _widened(name: str, value: Any, own: Any) -> Any:
    """Standard deviations as the diagonal of a Cholesky factor, where the richer guide has factors."""
    if jnp.shape(value) == jnp.shape(own):
        return value
    if jnp.ndim(own) == jnp.ndim(value) + 1:
        return value[..., None] * jnp.eye(value.shape[-1], dtype=value.dtype)
    raise ValueError(
        f"richer: found {name!r} of shape {jnp.shape(own)}, expected to hold the poorer guide's {jnp.shape(value)}; "
        "give it a rule as full as the poorer's"
    )


def _contained(
    argument: str, low: Any, high: Any, known: dict[tuple[type, type], tuple[str, ...]]
) -> tuple[str, ...]:
    """The parameters that vanish where the rule ``high`` is ``low``; refuses rules that are not nested."""
    if type(low) is type(high):
        return ()
    if (type(low), type(high)) not in known:
        rules = ", ".join(["the same rule", *(rich.__name__ for poor, rich in known if poor is type(low))])
        raise ValueError(
            f"richer: found {argument}={high!r}, which does not contain {low!r}; expected {rules}"
        )
    return known[type(low), type(high)]
