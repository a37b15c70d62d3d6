"""The kinds of Gaussian factors of q, each with the natural step of its own parameters.

All parameters are unconstrained, as an optimiser sees them. Shapes: N rows, T steps of S sequences, Q dimensions; of
inducing outputs P outputs, M inducing points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int
from numpyro.distributions import biject_to, constraints

from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Parameters
from ppl_dgp.numerics.halving import halved_until_near
from ppl_dgp.numerics.natural_gaussian import natural_step
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.natural_chain import natural_chain_step
from ppl_dgp.state_space.sequences import Layout

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
