r"""Power EP by its sites: a Gaussian factor of u per datum and function, found by iteration (Bui 2017, 2.3 and A.6).

With the whitened weights φ_n = L⁻¹k(Z, x_n), a site is exp(ν f − ½ τ f²) of f = φ_nᵀv, τ its precision and ν = τ g,
and q(v) has the precision I + Σ τ φφᵀ: nothing is ever divided by Kzz. All that an update needs are two scalars of a
datum, s = φᵀSφ and μ = φᵀm, those of its cavity

.. math::
    s_c = \frac{s}{1 - ατs}, \qquad μ_c = \frac{μ - ανs}{1 - ατs},

and the derivatives e₁, e₂ in μ_c of the tempered expectation t_α(y; m(x) + μ_c, D + s_c). The site that makes the new q
match the tilted distribution is then (A.83, A.84, the fractional factor taken to the power 1/α)

.. math::
    τ = \frac{-e_2}{1 + α e_2 s_c}, \qquad ν = \frac{e_1 - e_2 μ_c}{1 + α e_2 s_c}.

At α = 0 there is no cavity, and these are natural-gradient steps of the variational bound (Khan & Lin 2017), whose
fixed point is its optimum. Bui's own update goes the share α of the way from the old site to the new one; here the
share is the damping, whatever α. Under a likelihood of several functions t_α is that of their independent cavities, the
derivatives are in the mean of each function, and the new q has the tilted distribution's moments of each function by
itself (Villacampa-Calvo & Hernández-Lobato 2017). Shapes: N rows, P targets, F functions with a q(v) each, as many but
for such likelihoods, M inducing points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from ppl_dgp.numerics.linalg import inverse_lower
from ppl_dgp.numerics.power_mean import log1p_ratio

#: t_α(y; mean, variance) of each target (N, P), at moments of the functions (N, F), for one α
Tempered = Callable[[Array, Array, Array], Array]


class SweepRows(NamedTuple):
    """The data as a sweep needs them: φ, D, m(x) and y."""

    phi: Float[Array, "N M"]
    residual: Float[Array, "N 1"]
    offset: Float[Array, "N F"]
    y: Num[Array, "N P"]


class SiteParameters(NamedTuple):
    """ν and τ of each datum and function; all 0 is the prior."""

    location: Float[Array, "N F"]
    precision: Float[Array, "N F"]


class Natural(NamedTuple):
    """Natural parameters of q(v), or of a part of it: Σ τ φφᵀ and Σ ν φ, with I where the prior is in it."""

    precision: Float[Array, "F M M"]
    location: Float[Array, "F M"]


class SitePosterior(NamedTuple):
    """q(v): its mean, R with S = RᵀR (lower triangular), and log |S⁻¹|; NaN where the precision is not positive."""

    mean: Float[Array, "F M"]
    root: Float[Array, "F M M"]
    log_det: Float[Array, " F"]


def summed(phi: Float[Array, "N M"], sites: SiteParameters) -> Natural:
    """What the sites of some rows add to the natural parameters, without the prior."""
    weigh = lambda tau: (phi * tau[:, None]).T @ phi
    return Natural(jax.vmap(weigh, in_axes=1)(sites.precision), sites.location.T @ phi)


def of_prior(outputs: int, size: int, dtype: Any) -> Natural:
    """The natural parameters of p(v) = N(0, I)."""
    eye = jnp.broadcast_to(jnp.eye(size, dtype=dtype), (outputs, size, size))
    return Natural(eye, jnp.zeros((outputs, size), dtype))


def with_prior(natural: Natural) -> Natural:
    """The same with the prior's precision I."""
    outputs, size = natural.location.shape
    return plus(of_prior(outputs, size, natural.location.dtype), natural)


def plus(one: Natural, other: Natural, sign: float = 1.0) -> Natural:
    """The natural parameters of a product, or with the sign −1 of a quotient."""
    return Natural(one.precision + sign * other.precision, one.location + sign * other.location)


def posterior_of_sites(natural: Natural) -> SitePosterior:
    """q(v) of natural parameters that have the prior in them."""
    lower = jnp.linalg.cholesky(natural.precision)
    root = inverse_lower(lower)
    mean = jnp.einsum("pkm,pkl,pl->pm", root, root, natural.location)
    return SitePosterior(mean, root, 2.0 * jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(1))


class Cavity(NamedTuple):
    """μ_c and s_c, and 1 − ατs: all (N, F)."""

    mean: Array
    variance: Array
    remaining: Array


def cavity(mean: Array, variance: Array, sites: SiteParameters, alpha: float) -> Cavity:
    """The cavity of each datum, from μ and s under q."""
    remaining = 1.0 - alpha * sites.precision * variance
    return Cavity((mean - alpha * sites.location * variance) / remaining, variance / remaining, remaining)


def projected(phi: Float[Array, "N M"], q: SitePosterior) -> tuple[Float[Array, "N F"], Float[Array, "N F"]]:
    """μ = φᵀm and s = φᵀSφ."""
    return phi @ q.mean.T, jnp.square(jnp.einsum("pkm,nm->npk", q.root, phi)).sum(-1)


def proposed(
    tempered: Tempered, y: Array, offset: Array, residual: Array, at: Cavity, alpha: float
) -> tuple[SiteParameters, Bool[Array, "*rows"]]:
    """The sites that match the tilted distributions, and where they make sense: proper cavity and tilted variance."""
    variance = residual + at.variance

    def value(mean: Array) -> Array:
        return tempered(y, offset + mean, variance)

    def derivatives(along: Array) -> tuple[Array, Array]:
        slope = lambda mean: jax.jvp(value, (mean,), (along,))[1]
        found: tuple[Array, Array] = jax.jvp(slope, (at.mean,), (along,))
        return found

    ones, functions = jnp.ones_like(at.mean), at.mean.shape[-1]
    if y.shape[-1] == functions:
        # each target depends on its own mean alone, so a tangent of ones gives all derivatives at once
        first, second = derivatives(ones)
    else:
        alone = jnp.eye(functions, dtype=ones.dtype)[:, None] * ones
        first, second = (each.sum(-1).T for each in jax.vmap(derivatives)(alone))
    shrinkage = 1.0 + alpha * second * at.variance
    sites = SiteParameters((first - second * at.mean) / shrinkage, -second / shrinkage)
    finite = jnp.isfinite(sites.location) & jnp.isfinite(sites.precision)
    return sites, finite & (at.remaining > 0.0) & (shrinkage > 0.0)


def damped(
    old: SiteParameters, new: SiteParameters, share: float | Array, where: Bool[Array, "*rows"]
) -> SiteParameters:
    """The given share of the way from old to new in natural parameters, where it makes sense."""
    return SiteParameters(*(jnp.where(where, a + share * (b - a), a) for a, b in zip(old, new, strict=True)))


#: a new site is to leave at least this share of the precision that q has along its f; else it is skipped
LEAST_GROWTH = 0.1


def sequential_sweep(
    tempered_at: Callable[[Any], Tempered],
    each: Any,
    rows: SweepRows,
    sites: SiteParameters,
    alpha: float,
    damping: float,
) -> tuple[SiteParameters, Int[Array, ""]]:
    """One datum after another, each seeing the sites before it; O(N F M²), by rank-one updates of S.

    :param tempered_at: t_α of one row, (1, P), given its slice of ``each``.
    :param each: arrays over rows that the likelihood of a row needs.
    :returns: the sites, and how many updates were skipped because they made no sense.
    """
    sites = restored(rows.phi, sites, 0.0)
    q = posterior_of_sites(with_prior(summed(rows.phi, sites)))
    start = q.mean, jnp.swapaxes(q.root, 1, 2) @ q.root, jnp.zeros((), jnp.int32)

    def visit(
        carry: tuple[Array, Array, Array], row: Any
    ) -> tuple[tuple[Array, Array, Array], SiteParameters]:
        mean, covariance, skipped = carry
        (phi, residual, offset, y), old, likelihood = row
        reach = covariance @ phi
        centre, spread = mean @ phi, reach @ phi
        at = Cavity(*(value[None] for value in cavity(centre, spread, old, alpha)))
        new, sensible = proposed(tempered_at(likelihood), y[None], offset[None], residual[None], at, alpha)
        new = damped(old, SiteParameters(new.location[0], new.precision[0]), damping, sensible[0])
        grown = 1.0 + (new.precision - old.precision) * spread
        good = sensible[0] & (grown > LEAST_GROWTH)
        new = damped(old, new, 1.0, good)
        gain = (new.precision - old.precision) / jnp.where(good, grown, 1.0)
        shift = (new.location - old.location - (new.precision - old.precision) * centre) / jnp.where(
            good, grown, 1.0
        )
        mean = mean + shift[:, None] * reach
        covariance = covariance - gain[:, None, None] * reach[:, :, None] * reach[:, None, :]
        return (mean, covariance, skipped + (~good).sum(dtype=jnp.int32)), new

    (_, _, skipped), visited = jax.lax.scan(visit, start, (rows, sites, each))
    return visited, skipped


#: of a step that would make the precision of q indefinite; after these, no step
SITE_HALVINGS = 20


def parallel_sweep(
    tempered: Tempered, rows: SweepRows, sites: SiteParameters, rest: Natural, alpha: float, damping: float
) -> tuple[SiteParameters, Int[Array, ""]]:
    """All data at once, each seeing the sites as they were; O(N F M²).

    :param rest: the natural parameters of q without these rows' sites, with the prior.
    :returns: the sites, and how many updates were skipped. Where the precision of q would not be positive, the step is
        halved until it is, for all rows and outputs.
    """
    q = posterior_of_sites(plus(rest, summed(rows.phi, sites)))
    mean, variance = projected(rows.phi, q)
    at = cavity(mean, variance, sites, alpha)
    new, sensible = proposed(tempered, rows.y, rows.offset, rows.residual, at, alpha)
    sensible = sensible & (1.0 + damping * (new.precision - sites.precision) * variance > LEAST_GROWTH)

    def attempt(share: Array) -> tuple[Array, SiteParameters, Array]:
        trial = damped(sites, new, share, sensible)
        natural = plus(rest, summed(rows.phi, trial))
        return share, trial, jnp.isfinite(jnp.linalg.cholesky(natural.precision)).all()

    def failed(state: tuple[Array, tuple[Array, SiteParameters, Array]]) -> Array:
        return ~state[1][2] & (state[0] < SITE_HALVINGS)

    def halve(
        state: tuple[Array, tuple[Array, SiteParameters, Array]],
    ) -> tuple[Array, tuple[Array, SiteParameters, Array]]:
        count = state[0] + 1
        return count, attempt(jnp.where(count < SITE_HALVINGS, 0.5 * state[1][0], 0.0))

    share = jnp.asarray(damping, rows.phi.dtype)
    _, (_, swept, _) = jax.lax.while_loop(failed, halve, (jnp.zeros((), jnp.int32), attempt(share)))
    return swept, (~sensible).sum(dtype=jnp.int32)


def restored(phi: Float[Array, "N M"], sites: SiteParameters, alpha: float) -> SiteParameters:
    """The sites, but without those of negative precision for an output where q or a cavity would be improper.

    Sites that were found at other hyperparameters, or others' values, can do so where the likelihood is not
    log-concave. Without negative ones all is proper.
    """
    _, variance = projected(phi, posterior_of_sites(with_prior(summed(phi, sites))))
    # false for NaN, an improper q's variance
    proper = (1.0 - alpha * sites.precision * variance > 0.0).all(0)
    keep = proper | (sites.precision >= 0.0)
    return SiteParameters(*(jnp.where(keep, each, 0.0) for each in sites))


def energy_parts(
    tempered: Tempered, rows: SweepRows, sites: SiteParameters, natural: Natural, alpha: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The energy (A.103) in nats: the part of q(v), and the sum over rows, whose sum it is.

    At a fixed point it is stationary in the sites; at α = 0 it is the variational bound for any sites.
    """
    q = posterior_of_sites(natural)
    mean, variance = projected(rows.phi, q)
    at = cavity(mean, variance, sites, alpha)
    whole = 0.5 * ((q.mean * natural.location).sum() - q.log_det.sum())
    terms = tempered(rows.y, rows.offset + at.mean, rows.residual + at.variance)
    each = -0.5 * log1p_ratio(alpha, -sites.precision * variance)
    each = each + 0.5 * sites.precision * jnp.square(mean) / at.remaining
    each = (
        each + 0.5 * alpha * jnp.square(sites.location) * at.variance - sites.location * mean / at.remaining
    )
    return whole, terms.sum() + each.sum()


def energy_of_sites(
    tempered: Tempered, rows: SweepRows, sites: SiteParameters, alpha: float
) -> Float[Array, ""]:
    """The energy of all rows, in total nats."""
    whole, each = energy_parts(tempered, rows, sites, with_prior(summed(rows.phi, sites)), alpha)
    return whole + each


def tilted_sum(
    tempered: Tempered, rows: SweepRows, sites: SiteParameters, natural: Natural, alpha: float
) -> Float[Array, ""]:
    """Σ t_α under the cavities of v, held: its gradient in φ, D, m and the likelihood is the energy's at a fixed point.

    There a change of φ_n reaches the energy through q and through the cavity of n by equal and opposite amounts, for
    q and the tilted distribution have the same moments; what is left is the projection of the cavity onto f_n. A
    minibatch gives an unbiased estimate. Where there is no proper cavity, q takes its place.
    """
    q, sites, fixed = jax.lax.stop_gradient((posterior_of_sites(natural), sites, rows.phi))
    mean, variance = projected(fixed, q)
    remaining = 1.0 - alpha * sites.precision * variance
    sites = SiteParameters(*(jnp.where(remaining > 0.0, each, 0.0) for each in sites))
    remaining = jnp.where(remaining > 0.0, remaining, 1.0)
    moved, still = (jnp.einsum("pkm,nm->npk", q.root, phi) for phi in (rows.phi, fixed))
    # S_c = S + Sφ φᵀS ατ/(1 − ατs), m_c = m + Sφ (ατμ − αν)/(1 − ατs), φ held
    across = (moved * still).sum(-1)
    centre = rows.phi @ q.mean.T + across * alpha * (sites.precision * mean - sites.location) / remaining
    spread = jnp.square(moved).sum(-1) + alpha * sites.precision * jnp.square(across) / remaining
    return tempered(rows.y, rows.offset + centre, rows.residual + spread).sum()
