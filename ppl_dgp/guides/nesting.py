"""Nested families: parameters at which a richer guide is the distribution that a poorer one has fitted.

``Conditional() ⊇ MeanField, DoublyStochastic``;  ``Conditional(markov=True) ⊇ Conditional(), Markov``, and all that
these contain;  ``Conditional(tied=True), Conditional(free=True), Markov ⊇ MeanField``;  a rule with full noise, or
across outputs, contains the one without;  ``AcrossOutputs, LayerChain, Coupled ⊇ FullRank ⊇ LowRank ⊇ Diagonal``, the
higher rank the lower; ``FullRank ⊇ Decoupled``, the larger covariance the smaller; ``Coupled("full") ⊇
Coupled("stripes"), LayerChain`` (docs/design.md, 4). A richer guide that is trained from there ends no lower. Which
rule contains which is said by the rules themselves, by ``contains``, so that a user's own takes part.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.gp.contract import Parameters, role_of
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES
from ppl_dgp.guides.containment import Containment
from ppl_dgp.guides.guide import Guide
from ppl_dgp.guides.inducing import SLIGHT
from ppl_dgp.state_space.trajectory import trajectory_of

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
    hidden, inducing = check_nested(poorer, richer)
    # left out, so that the richer guide shows the shapes it has
    common = lambda known: {k: v for k, v in known.items() if not k.endswith(_RESHAPED) and "u_link" not in k}
    run = lambda program, known: trace(
        substitute(seed(program, jax.random.PRNGKey(0)), common(known))
    ).get_trace(*args, **kwargs)
    model_sites = run(richer.model, params)
    inducing_sites = [name for name, site in model_sites.items() if role_of(site).inducing]
    start = dict(params)
    for before, name in zip([None, *inducing_sites], inducing_sites, strict=False):
        start = inducing.translate(name, before, start)
    guide_sites = run(richer, start)
    for name, site in guide_sites.items():
        role = role_of(site)
        if site["type"] == "param":
            start[name] = _widened(name, start.get(name, site["value"]), site["value"])
        elif role.hidden:
            step = _model_step(model_sites[name])
            # of a latent without a GP in front, such as a GPLVM's, both rules have the same Gaussian
            start = start if step is None else _at_site(name, hidden, start, guide_sites, step)
        elif role.inducing:
            of_site = {k.removeprefix(f"{name}_"): v for k, v in start.items() if k.startswith(f"{name}_")}
            for parameter, value in inducing.values.items():
                start[f"{name}_{parameter}"] = value(of_site[parameter], of_site)
    return start


def check_nested(poorer: Guide, richer: Guide) -> tuple[Containment, Containment]:
    """Where the hidden and the inducing rule of ``richer`` are those of ``poorer``.

    :raises ValueError: if the guides have different models, or a rule of the richer does not contain the poorer's.
    """
    if poorer.model is not richer.model:
        raise ValueError("richer: found a guide of another model; expected one of the same model object")
    hidden = _containment("hidden", poorer.hidden, richer.hidden)
    return hidden, _containment("inducing", poorer.inducing, richer.inducing)


def _at_site(
    name: str, containment: Containment, start: Parameters, sites: Container[str], step: Emission
) -> Parameters:
    """The parameters of one hidden site where the richer rule is the poorer; of ``sites`` of the richer guide."""
    start, before = dict(start), f"{name}_"
    for parameter, absorb in containment.absorbed.items():
        if before + parameter in start and before + parameter not in sites:
            own = {k.removeprefix(before): v for k, v in start.items() if k.startswith(before)}
            start |= {before + k: v for k, v in absorb(own, step).items()}
            del start[before + parameter]
    for parameter, value in containment.values.items():
        start[before + parameter] = value(start[before + parameter], step)
    return start


def _model_step(site: dict[str, Any]) -> Emission | None:
    """The steps of a hidden site of the model: its rows, or those along a trajectory; None where there is no GP."""
    trajectory = trajectory_of(site["fn"])
    return emission_of(site["fn"]) if trajectory is None else trajectory.steps(site["value"])


def contains(richer: Guide, poorer: Guide) -> bool:
    """Whether each rule of ``richer`` contains that of ``poorer`` or is the same, and one of them differs."""
    hidden = _nested(poorer.hidden, richer.hidden) is not None
    inducing = _nested(poorer.inducing, richer.inducing) is not None
    return hidden and inducing and (poorer.hidden, poorer.inducing) != (richer.hidden, richer.inducing)


def _widened(name: str, value: Any, initial: Any) -> Any:
    """A parameter of the poorer guide in the shape that the richer one's has, which is ``initial`` at its start."""
    wanted, wide = jnp.shape(initial), value
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
        least = SLIGHT * jnp.abs(value).max() if name.endswith("_factor") else 1.0
        wide = (least * initial).at[tuple(map(slice, value.shape))].set(value)
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


def _nested(poorer: Any, richer: Any) -> Containment | None:
    """Where one rule is, or is the same as, a poorer one."""
    return Containment() if poorer == richer else richer.contains(poorer)


def _containment(argument: str, poorer: Any, richer: Any) -> Containment:
    """Where the richer rule is the poorer; refuses rules that are not nested."""
    containment = _nested(poorer, richer)
    if containment is None:
        offered = HIDDEN_RULES if argument == "hidden" else INDUCING_RULES
        known = [repr(rule) for rule in offered.values() if rule != poorer and rule.contains(poorer)]
        raise ValueError(
            f"richer: found {argument}={richer!r}, which does not contain {poorer!r}; expected "
            f"{', '.join(['the same rule', *known])}, or another whose contains() gives where it is the poorer"
        )
    return containment
