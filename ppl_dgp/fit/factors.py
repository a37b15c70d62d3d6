"""Gaussian factors of a guide's q, found by running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro import handlers
from numpyro.distributions import biject_to, constraints

from ppl_dgp.fit.factor_kinds import ChainFactor, Factor, FullRankFactor, RowsFactor
from ppl_dgp.fit.result import checked_data, fingerprint
from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Parameters, Trace, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import AcrossOutputs, Decoupled, Diagonal, Guide, LowRank, Markov, MeanField, Optimal
from ppl_dgp.guides.decoupled import FIRST_SUFFIX, ORTHOGONAL_SUFFIX
from ppl_dgp.guides.guide import HiddenConditional
from ppl_dgp.guides.latents import GaussianLatent
from ppl_dgp.guides.linear_conditional import noise_of
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.state_space.sequences import layout, sequence_numbers


class GaussianFactors:
    """The Gaussian factors of a guide's q, and the noise in whose units some of them are measured.

    Equal ones (of equal guides at tables of equal shapes and x) make equal optimisers, so that compiled fits are found.
    A program that takes the table as an argument is found by those ``at_any`` x, and goes by those ``at`` its own.
    """

    def __init__(
        self,
        guide: Guide,
        factors: tuple[Factor, ...],
        transforms: Mapping[str, Any],
        x: Array | jax.ShapeDtypeStruct,
        y: Array,
    ) -> None:
        self.guide, self.factors = guide, factors
        self._transforms, self._x, self._y = dict(transforms), x, jnp.zeros_like(y)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GaussianFactors) and self._meaning == other._meaning

    def __hash__(self) -> int:
        return hash(self._meaning)

    def __repr__(self) -> str:
        return f"GaussianFactors({', '.join(map(repr, self.factors))})"

    @property
    def _meaning(self) -> tuple[Any, ...]:
        if isinstance(self._x, jax.ShapeDtypeStruct):
            return self.guide, self.factors, self._x.shape, self._x.dtype, self._y.shape, self._y.dtype
        return self.guide, self.factors, fingerprint(self._x, self._y)

    def at(self, x: Array | jax.ShapeDtypeStruct, y: Array) -> GaussianFactors:
        """The same at another table of these shapes, which may be traced."""
        return GaussianFactors(self.guide, self.factors, self._transforms, x, y)

    def at_any(self) -> GaussianFactors:
        """The same, equal to those of any x of this shape; they have no units before they are ``at`` a table."""
        return self.at(jax.ShapeDtypeStruct(self._x.shape, self._x.dtype), self._y)

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
    and covariance of each conditional; of ``Decoupled`` the blocks that have a covariance of their own), q(h_n) of
    ``MeanField``, q(x_n) of latents without a GP in front, and q of a trajectory under ``Markov`` and ``MeanField``.
    What other rules keep for each row is no such factor.

    :param guide: of the fit.
    :param x: of the fit, (N, D), None for none.
    :param y: of the fit, (N, P); only its shape counts.
    :raises TypeError: for what is no ``Guide``.
    :raises ValueError: for a guide with ``others``, or without any such factor.
    """
    if not isinstance(guide, Guide):
        raise TypeError(
            f"guide: found {type(guide).__name__}, expected a Guide of this package; use optax.adam, or "
            "fit_lbfgs without natural"
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
    full = lambda head: jnp.ndim(sites[head + SCALE_SUFFIX]["value"]) == 3
    if role.inducing and isinstance(guide.inducing, Decoupled):
        blocks = [name + suffix for suffix in (FIRST_SUFFIX, ORTHOGONAL_SUFFIX) if has(name + suffix)]
        return [FullRankFactor(block) if full(block) else RowsFactor(block) for block in blocks]
    if not has(name):
        return []
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
    if isinstance(q, TrajectoryConditional):
        return jnp.sqrt(q.trajectory.noise_at(q.trajectory.controls))
    return jnp.sqrt(noise_of(q.step))
