r"""Discrete latents of a data plate, summed out exactly, row by row.

A site whose support can be enumerated is given each of its values in turn, for all rows at once: O(K) runs of the model
side by side, K the number of combinations. Where the guide has the site, with z_n ~ q(z_n),

.. math::
    \frac1\alpha \log \sum_z q(z)\, E[w_{nz}^\alpha];

where it has not, q(z_n) is the best there is, which at every α leaves :math:`\log \sum_z w_{nz}` of the model's joint
tempered weights, the integral of each w_nz over f taken on its own (Hölder's inequality): a bound where the objective
is one, and with functions integrated inside, at α = 1, the model's own marginal likelihood. The logarithm of that sum
stands below u and below the hidden layers: it is averaged over draws of them, as its definition says, and never taken
of their moments. One draw of a particle's h_n serves all values of z_n, so that a particle's weight is
:math:`\sum_z w_n(h_n, z)`; where q(h_n) itself depends on z_n, h_n is drawn for each value from the same noise, which
leaves :math:`\sum_z w_n(h_{nz}, z)` (:mod:`ppl_dgp.objectives.discrete_checks` says where that is no bound).

Every value has a run of its own under ``vmap``, and no broadcasting: rows of a Gaussian process are (B, D), and an
emission takes no further dimensions in front, as ``numpyro.contrib.funsor.enum`` would give it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Shaped

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.numerics.power_mean import Alpha, log_power_mean
from ppl_dgp.objectives.site_roles import SiteRoles, row_sum

#: combinations of values beyond which a sum is refused
MOST_COMBINATIONS = 10_000
#: the axis of the values, by which a function is drawn once at the inputs of all of them
VALUES = "values"


def enumerate_discrete(
    roles: SiteRoles,
    probe: Trace,
    traces: Callable[..., tuple[Trace, Trace]],
    weigh: Callable[[Trace, Trace], dict[str, Array]],
) -> tuple[dict[str, Array], dict[str, Array], tuple[Trace, Trace]]:
    """The weights of each group, (rows) or (K, rows) where a guide's discrete site is summed, with log q (K, rows).

    :param probe: a run of the model, for the supports.
    :param traces: runs model and guide at given values of the discrete sites, ``beside`` runs at all others.
    :param weigh: the log weights of two traces.
    """
    names = [*roles.summed, *roles.guided_discrete]
    if not names:
        both = traces({})
        return weigh(*both), {}, both
    groups = {roles.groups[name] for name in names}
    if len(groups) != 1 or "" in groups:
        raise ValueError(
            f"model: found the discrete sites {names} in the plates {sorted(groups)}, expected one plate"
        )
    (group,) = groups
    rows = roles.plates[group].shape[0]
    for name in names:
        if jnp.size(probe[name]["value"]) != rows:
            raise ValueError(
                f"model: found the discrete site {name!r} of shape {jnp.shape(probe[name]['value'])}, expected one "
                f"value for each of {rows} rows; give each its own site"
            )
    guided = roles.guided_discrete
    supports = supports_of(names, probe)
    values = value_combinations(names, probe)

    def one(value: dict[str, Array]) -> tuple[dict[str, Array], Array]:
        model_trace, guide_trace = traces(value, beside=True)
        log_q = jnp.zeros(())
        for name in guided:
            site = guide_trace[name]
            log_q = log_q + row_sum(site["fn"].log_prob(site["value"]), roles.dims[group])
        return weigh(model_trace, guide_trace), log_q

    weights, log_q = jax.vmap(one, axis_name=VALUES)(values)
    if roles.summed:
        # the combinations of what the guide does not have, within each of what it has
        counts = [prod(len(supports[name]) for name in part) for part in (roles.summed, guided)]
        weights[group] = logsumexp(weights[group].reshape(*counts, *weights[group].shape[1:]), axis=0)
        log_q = log_q.reshape(*counts, *log_q.shape[1:])[0]
    # what is masked counts for nothing: each of its values the same share of 1
    values_of = {name: jnp.asarray(len(support)) for name, support in supports.items()}
    for name in names:
        mask = mask_of(probe[name]["fn"])
        if mask is True:
            continue
        share = -jnp.log(values_of[name])
        if name in guided:
            log_q = jnp.where(mask, log_q, log_q + share)
        else:
            weights[group] = jnp.where(mask, weights[group], weights[group] + share)
    # other groups know nothing of these sites
    weights = {name: log_w if name == group else log_w[0] for name, log_w in weights.items()}
    if not guided:
        weights[group] = weights[group][0]
    first = traces({name: value[0] for name, value in values.items()})
    return weights, {group: log_q} if guided else {}, first


def discrete_latents(run: Trace) -> list[str]:
    """The discrete sites of a model that are not observed, given a run of it."""
    return [
        name
        for name, site in run.items()
        if site["type"] == "sample" and not site["is_observed"] and unwrap(site["fn"]).has_enumerate_support
    ]


def supports_of(names: list[str], run: Trace) -> dict[str, Shaped[Array, " K"]]:
    """The values of discrete sites, given a run of their model."""
    return {name: unwrap(run[name]["fn"]).enumerate_support(expand=False).ravel() for name in names}


def value_combinations(names: list[str], run: Trace) -> dict[str, Shaped[Array, "K *rows"]]:
    """Each combination of the values of sites of the rows, all rows alike.

    :raises ValueError: if there are more than ``MOST_COMBINATIONS``.
    """
    supports = supports_of(names, run)
    count = prod(len(support) for support in supports.values())
    if count > MOST_COMBINATIONS:
        raise ValueError(
            f"model: found {count} combinations of {names}, expected at most {MOST_COMBINATIONS}; make them "
            "independent of each other by summing one out by hand"
        )
    grid = jnp.meshgrid(*supports.values(), indexing="ij")
    return {
        name: jax.vmap(lambda value, like=run[name]["value"]: jnp.full_like(like, value))(points.ravel())
        for name, points in zip(supports, grid, strict=True)
    }


def power_mean_over_draws(
    log_w: Float[Array, "S ..."], alpha: Alpha, log_q: Array | None
) -> Float[Array, "..."]:
    """(1/α) log of the mean of w^α over draws, and over the values of a discrete site under its q."""
    if log_q is None:
        return log_power_mean(log_w, alpha)
    draws, values = log_w.shape[:2]
    flat = (draws * values, *log_w.shape[2:])
    return log_power_mean(log_w.reshape(flat), alpha, (log_q - jnp.log(float(draws))).reshape(flat))
