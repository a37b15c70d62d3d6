"""Gaussian factors of a guide's q, found by running it, each with the natural step of its own parameters.

All parameters are unconstrained, as an optimiser sees them. Shapes: N rows, T steps of S sequences, Q dimensions; of
inducing outputs P outputs, M inducing points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from ppl_dgp.fit.result import checked_data, fingerprint
from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Parameters, Trace, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import AcrossOutputs, Diagonal, Guide, LowRank, Markov, MeanField, Optimal
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.latents import GaussianLatent
from ppl_dgp.guides.linear_conditional import noise_of
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.halving import halved_until_near
from ppl_dgp.numerics.natural_gaussian import natural_step
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.natural_chain import natural_chain_step
from ppl_dgp.state_space.sequences import Layout, layout, sequence_numbers

_lower_cholesky = biject_to(constraints.lower_cholesky)


class FactorStep(NamedTuple):
    """Parameters after a step, by name; KL[before ‖ after] in nats; in how many parts the rate was halved."""

    params: Parameters
    divergence: Float[Array, ""]
    halved: Int[Array, ""]


@dataclass(frozen=True)
class FullRankFactor:
    """q(u_p) = N(m_p, L_p L_pᵀ) for each output: ``u_loc`` (P, M), ``u_scale``; or one for all outputs together.

    :param site: of u.
    :param joint: whether outputs are correlated, ``u_scale`` that of all PM coordinates.
    """

    site: str
    joint: bool = False
    in_units: None = field(default=None, init=False)

    @property
    def names(self) -> tuple[str, str]:
        """Those of the mean and of the factor."""
        return self.site + LOC_SUFFIX, self.site + SCALE_SUFFIX

    def step(
        self, params: Parameters, gradients: Parameters, rate: Array, reach: ArrayLike, unit: Array
    ) -> FactorStep:
        """θ ← θ − ρ ∂loss/∂η; the rate of each output is halved on its own.

        :param reach: KL[before ‖ after] for each dimension, at most.
        :param unit: the deviation in which the factor's own are measured.
        """
        here = [tree[name] for name in self.names for tree in (params, gradients)]
        loc, loc_gradient, scale, scale_gradient = (
            [leaf.reshape(1, -1) for leaf in here] if self.joint else here
        )
        most = jnp.asarray(reach, loc.dtype) * loc.shape[1]
        found = jax.vmap(natural_step, in_axes=(0, 0, 0, 0, None, None))(
            loc, scale, loc_gradient, scale_gradient, rate, most
        )
        values = (found.loc.reshape(here[0].shape), found.scale.reshape(here[2].shape))
        return FactorStep(
            dict(zip(self.names, values, strict=True)),
            found.divergence.sum(),
            (found.halvings > 0).sum(dtype=jnp.int32),
        )


@dataclass(frozen=True)
class RowsFactor:
    """q(h_n) = N(m_n, S_n) of independent rows, or of independent inducing outputs: a loc (N, Q), and its scale.

    Rows that a minibatch does not hold have no gradient, those that it holds N/B times their own: theirs is taken by
    the share B/N of rows that have one.

    :param site: of h.
    :param full: whether S_n is full over the dimensions.
    :param in_units: the site in whose noise deviations are measured.
    """

    site: str
    full: bool = False
    in_units: str | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Those of the means and of the scales."""
        return self.site + LOC_SUFFIX, self.site + SCALE_SUFFIX

    def step(
        self, params: Parameters, gradients: Parameters, rate: Array, reach: ArrayLike, unit: Array
    ) -> FactorStep:
        """One step; each row is halved on its own, or each dimension where they are independent."""
        loc, scale = (params[name] for name in self.names)
        loc_gradient, scale_gradient = (gradients[name] for name in self.names)
        held = (loc_gradient != 0.0).any(1) | (scale_gradient != 0.0).any(1)
        share = held.mean(dtype=loc.dtype)
        unit = jnp.broadcast_to(unit, loc.shape)
        loc, loc_gradient, scale_gradient = loc / unit, loc_gradient * unit * share, scale_gradient * share
        reach = jnp.asarray(reach, loc.dtype)
        if self.full:
            moved = jax.vmap(natural_step, in_axes=(0, 0, 0, 0, None, None))(
                loc, scale, loc_gradient, scale_gradient, rate, reach * loc.shape[1]
            )
            (loc, scale), divergence, halvings = moved[:2], moved.divergence, moved.halvings
        else:

            def attempt(rate: Array) -> tuple[tuple[Array, Array], Array]:
                # S' = S / (1 + ρ ∂loss/∂log s), m' = m − ρ S' ∂loss/∂m
                change = rate * scale_gradient
                after = scale - 0.5 * jnp.log1p(change)
                pulled = rate * jnp.exp(after) * loc_gradient
                move = -jnp.exp(after) * pulled
                return (loc + move, after), 0.5 * (change - jnp.log1p(change) + jnp.square(pulled))

            rates = jnp.broadcast_to(rate, loc.shape)
            (loc, scale), divergence, halvings = halved_until_near(attempt, rates, reach)
        values = dict(zip(self.names, (loc * unit, scale), strict=True))
        return FactorStep(values, divergence.sum(), (halvings > 0).sum(dtype=jnp.int32))


@dataclass(frozen=True)
class ChainFactor:
    """q of a trajectory, x_t = A_t x_{t−1} + b_t + noise: ``x_slope`` (T, Q, Q), ``x_loc``, ``x_scale``, and x_0's.

    :param site: of the trajectory.
    :param first: the rows of the first steps of its S sequences.
    :param in_units: the site, in whose noise the steps' deviations are measured, x_0's being absolute.
    """

    site: str
    first: tuple[int, ...]
    in_units: str

    @property
    def names(self) -> tuple[str, ...]:
        """Those of slopes, offsets and scales, and of the mean and the scale of x_0."""
        steps = tuple(f"{self.site}{suffix}" for suffix in ("_slope", LOC_SUFFIX, SCALE_SUFFIX))
        return *steps, f"{self.site}_0{LOC_SUFFIX}", f"{self.site}_0{SCALE_SUFFIX}"

    def step(
        self, params: Parameters, gradients: Parameters, rate: Array, reach: ArrayLike, unit: Array
    ) -> FactorStep:
        """One step, by one pass over t."""
        names = self.names
        slope, loc, scale, loc_0, scale_0 = (params[name] for name in names)
        where = self._layout(len(loc))
        unit = jnp.broadcast_to(unit, loc.shape)
        diagonal = scale.shape[1] == loc.shape[1]
        lowers, back = _roots(scale, unit, diagonal)
        lowers_0, back_0 = _roots(scale_0, jnp.ones_like(loc_0), diagonal)
        none = jnp.zeros((len(loc_0), *slope.shape[1:]), slope.dtype)

        def chain(
            slopes: Array, offsets: tuple[Array, Array], scales: tuple[Array, Array]
        ) -> LinearGaussianChain:
            slopes, offset, lower = where.path(none, slopes), where.path(*offsets), where.path(*scales)
            return LinearGaussianChain(offset[0], lower[0], slopes[1:], offset[1:], lower[1:])

        slope_g, loc_g, scale_g, loc_0_g, scale_0_g = (gradients[name] for name in names)
        (lowers_g,), (lowers_0_g,) = (
            jax.vjp(back, lowers)[1](scale_g),
            jax.vjp(back_0, lowers_0)[1](scale_0_g),
        )
        found = natural_chain_step(
            chain(slope, (loc_0, loc), (lowers_0, lowers)),
            chain(slope_g, (loc_0_g, loc_g), (lowers_0_g, lowers_g)),
            rate,
            joined=jnp.ones(len(loc) + len(loc_0), bool).at[where.initial].set(False)[1:],
            independent_noise=diagonal,
            most=jnp.asarray(reach, loc.dtype) * (loc.size + loc_0.size),
        )
        slopes, offsets, scales = found.chain.steps
        after, begun = where.after, where.initial
        values = slopes[after], offsets[after], back(scales[after]), offsets[begun], back_0(scales[begun])
        halved = (found.halvings > 0).astype(jnp.int32)
        return FactorStep(dict(zip(names, values, strict=True)), found.divergence, halved)

    def _layout(self, steps: int) -> Layout:
        first = np.zeros(steps, bool)
        first[list(self.first)] = True
        return Layout(jnp.asarray(first), len(self.first))


def _roots(
    scale: Array, unit: Float[Array, "T Q"], diagonal: bool
) -> tuple[Float[Array, "T Q Q"], Callable[[Array], Array]]:
    """Factors L from unconstrained scales in units of a noise, and what takes them back."""
    if diagonal:
        back = lambda lowers: jnp.log(jnp.diagonal(lowers, axis1=1, axis2=2) / unit)
        return jax.vmap(jnp.diag)(jnp.exp(scale) * unit), back
    return _lower_cholesky(scale) * unit[:, :, None], lambda lowers: _lower_cholesky.inv(
        lowers / unit[:, :, None]
    )


#: a Gaussian factor of q: the ``names`` of its parameters, the site whose noise they are ``in_units`` of, its ``step``
Factor = FullRankFactor | RowsFactor | ChainFactor


class GaussianFactors:
    """The Gaussian factors of a guide's q, and the noise in whose units some of them are measured.

    Equal ones (of equal guides at tables of equal shapes and x) make equal optimisers, so that compiled fits are found.
    """

    def __init__(
        self, guide: Guide, factors: tuple[Factor, ...], transforms: Mapping[str, Any], x: Array, y: Array
    ) -> None:
        self.guide, self.factors = guide, factors
        self._transforms, self._x, self._y = dict(transforms), x, jnp.zeros_like(y)
        self._meaning = guide, factors, fingerprint(x, self._y)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GaussianFactors) and self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    def __repr__(self) -> str:
        return f"GaussianFactors({', '.join(map(repr, self.factors))})"

    def units(self, params: Parameters) -> list[Array]:
        """The deviation of the noise that each factor's are measured in, 1 where they are absolute."""
        sites: Trace = {}
        if any(factor.in_units is not None for factor in self.factors):
            values = {
                name: transform(params[name])
                for name, transform in self._transforms.items()
                if name in params
            }
            seeded = handlers.seed(handlers.substitute(self.guide, data=values), jax.random.key(0))
            # of the run only the noises are kept: the compiler leaves out all else
            sites = handlers.trace(seeded).get_trace(self._x, self._y)
        units = []
        for factor in self.factors:
            unit = jnp.ones(()) if factor.in_units is None else _noise_deviation(sites[factor.in_units]["fn"])
            units.append(unit.astype(params[factor.names[0]].dtype))
        return units


def gaussian_factors(guide: Callable[..., Any], x: ArrayLike | None, y: ArrayLike) -> GaussianFactors:
    """The factors of a guide's q that have natural gradients in closed form; run once, without numbers.

    They are: q(u) of ``FullRank`` and ``Diagonal`` (and ``AcrossOutputs``; of ``LayerChain`` and ``Coupled`` the offset
    and covariance of each conditional), q(h_n) of ``MeanField``, q(x_n) of latents without a GP in front, and q of a
    trajectory under ``Markov`` and ``MeanField``. What other rules keep for each row is no such factor.

    :param guide: of the fit.
    :param x: of the fit, (N, D), None for none.
    :param y: of the fit, (N, P); only its shape counts.
    :raises TypeError: for what is no ``Guide``.
    :raises ValueError: for a guide with ``others``, or without any such factor.
    """
    if not isinstance(guide, Guide):
        raise TypeError(
            f"guide: found {type(guide).__name__}, expected a Guide of this package; use optax.adam"
        )
    if guide.others is not None:
        raise ValueError(
            f"guide: found others={guide.others.__name__}, expected none; use natural_adam() without factors"
        )
    x, y = checked_data(None if getattr(x, "shape", ())[1:] == (0,) else x, y, guide.model)
    found: list[Factor] = []
    transforms: dict[str, Any] = {}

    def look(key: Array) -> None:
        sites = handlers.trace(handlers.seed(guide, key)).get_trace(x, y)
        for name, site in sites.items():
            if site["type"] == "param":
                transforms[name] = biject_to(site["kwargs"].get("constraint", constraints.real))
            elif site["type"] == "sample":
                found.extend(_factors_of(guide, name, site, sites, x))

    jax.eval_shape(look, jax.random.key(0))
    if not found:
        raise ValueError(f"guide: found no Gaussian factor in q of {guide}; use optax.adam")
    return GaussianFactors(guide, tuple(found), transforms, x, y)


def _factors_of(guide: Guide, name: str, site: dict[str, Any], sites: Trace, x: Array) -> list[Factor]:
    """The factors that the parameters of one site make."""
    role, q = role_of(site), unwrap(site["fn"])
    has = lambda *names: all(
        f"{head}{suffix}" in sites for head in names for suffix in (LOC_SUFFIX, SCALE_SUFFIX)
    )
    if not has(name):
        return []
    full = lambda head: jnp.ndim(sites[head + SCALE_SUFFIX]["value"]) == 3
    if role.inducing:
        if isinstance(guide.inducing, Diagonal):
            return [RowsFactor(name)]
        if isinstance(guide.inducing, LowRank | Optimal):
            return []
        return [FullRankFactor(name, isinstance(guide.inducing, AcrossOutputs))]
    latent = guide.latent_rule
    of_latent = latent.definition is latent and isinstance(latent.latent, GaussianLatent)
    if isinstance(q, TrajectoryConditional):
        initial = f"{name}_0"
        if q.pieces is not None or not of_latent or not has(initial):
            return []
        if type(q.rule) is MeanField:
            return [RowsFactor(name, full(name), name), RowsFactor(initial, full(initial))]
        if type(q.rule) is Markov and full(name) == full(initial):
            return [ChainFactor(name, _beginnings(q, x), name)]
        return []
    if isinstance(q, HiddenConditional):
        return [RowsFactor(name, full(name), name)] if type(q.rule) is MeanField else []
    if role.hidden and of_latent and emission_of(site["fn"]) is None:
        return [RowsFactor(name, full(name))]
    return []


def _beginnings(q: TrajectoryConditional, x: Array) -> tuple[int, ...]:
    """The rows of the first steps of a trajectory's sequences, as numbers."""
    number = q.trajectory.layout.num_sequences
    if number == 1:
        return (0,)
    with jax.ensure_compile_time_eval():
        first = layout(len(x), sequence_numbers(x), number).first
        return tuple(int(row) for row in np.flatnonzero(first))


def _noise_deviation(q: Any) -> Array:
    """The deviation of the noise of a hidden site, (Q,) or (N, Q)."""
    q = unwrap(q)
    return jnp.sqrt(q.trajectory.noise if isinstance(q, TrajectoryConditional) else noise_of(q.step))
