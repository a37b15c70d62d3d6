"""The compiled loop of iterated Power EP: sweeps over the sites, then a step of the hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Num
from numpyro.infer import SVI

from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.numerics.linalg import cholesky
from ppl_dgp.objectives.site_energy import Layer, read_layer
from ppl_dgp.objectives.sites import (
    Natural,
    SiteParameters,
    Tempered,
    energy_of_sites,
    energy_parts,
    of_prior,
    parallel_sweep,
    plus,
    posterior_of_sites,
    restored,
    sequential_sweep,
    summed,
    tilted_sum,
    with_prior,
)

State = dict[str, Any]


@dataclass(frozen=True)
class SweepSchedule:
    """How sites are swept: one after another or all at once, how often at most, how far each goes, when to stop."""

    alpha: float
    sequential: bool
    sweeps: int
    damping: float
    tolerance: float

    def converge(
        self, layer: Layer, sites: SiteParameters, rest: Natural
    ) -> tuple[SiteParameters, Array, Array]:
        """Sweeps until no natural parameter moves by more than the tolerance, relative to 1 + its size.

        :param rest: q without these rows' sites.
        :returns: the sites, the last sweep's change, and how many of its updates were skipped.
        """

        def unfinished(state: tuple[Any, ...]) -> Array:
            going: Array = (state[0] < self.sweeps) & (state[2] > self.tolerance)
            return going

        def sweep(state: tuple[Any, ...]) -> tuple[Any, ...]:
            count, old, _, _ = state
            new, skipped = self._sweep(layer, old, rest)
            # of the whole step: a damped one is shorter
            moves = [jnp.abs(b - a) / (1.0 + jnp.abs(a)) for a, b in zip(old, new, strict=True)]
            return count + 1, new, jnp.max(jnp.stack(moves)) / self.damping, skipped

        zero = jnp.zeros((), jnp.int32)
        start = (zero, sites, jnp.full((), jnp.inf, layer.rows.phi.dtype), zero)
        return jax.lax.while_loop(unfinished, sweep, start)[1:]

    def _sweep(self, layer: Layer, sites: SiteParameters, rest: Natural) -> tuple[SiteParameters, Array]:
        if not self.sequential:
            tempered = layer.tempered(self.alpha)
            return parallel_sweep(tempered, layer.rows, sites, rest, self.alpha, self.damping)
        tempered_at, each = of_each_row(layer, self.alpha)
        return sequential_sweep(tempered_at, each, layer.rows, sites, self.alpha, self.damping)


def of_each_row(layer: Layer, alpha: float) -> tuple[Callable[[Any], Tempered], list[Array]]:
    """t_α of one row given its slice of the likelihood's arrays over rows, and those arrays."""
    leaves, structure = jax.tree.flatten(layer.likelihood)
    count = layer.rows.y.shape[0]
    sliced = [i for i, leaf in enumerate(leaves) if getattr(leaf, "ndim", 0) == 2 and leaf.shape[0] == count]

    def tempered_at(own: list[Array]) -> Tempered:
        mine = list(leaves)
        for i, value in zip(sliced, own, strict=True):
            mine[i] = value[None]
        return layer._replace(likelihood=jax.tree.unflatten(structure, mine)).tempered(alpha)

    return tempered_at, [leaves[i] for i in sliced]


def build_run(
    svi: SVI, schedule: SweepSchedule, optimizer: optax.GradientTransformation, minibatches: bool
) -> Callable[..., Any]:
    """``run(state, x, y, indices, moves, count) -> (state, losses)``: ``count`` turns; the state is donated.

    A turn sweeps the sites, on all rows or on those of ``indices[turn]`` (T, B), and where ``moves[turn]`` takes a step
    of the hyperparameters. Minibatches see q as it was at the start of the call, and add to it what their sites change.
    The losses (T,) are those before the step, NaN where it was not taken, energy or gradient not being finite.
    """
    alpha = schedule.alpha

    def layer_at(params: Any, x: Array, y: Array, rows: Array | None) -> Layer:
        constrained = svi.constrain_fn(params)
        if rows is None:
            return read_layer(svi.model, constrained, x, y)
        return read_layer(svi.model, constrained, x[rows], y[rows], index=rows, size=x.shape[0])

    def moved(state: State, go: Array, scale: float, loss: Array, tilted: Callable[[Any], Array]) -> Any:
        gradient = jax.grad(lambda params: -scale * tilted(params))(state["params"])
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((gradient, loss))]).all()
        updates, adam = optimizer.update(gradient, state["adam"], state["params"])
        new = {**state, "params": optax.apply_updates(state["params"], updates), "adam": adam}
        state = jax.tree.map(lambda a, b: jnp.where(go & finite, b, a), state, new)
        return state, jnp.where(finite | ~go, loss, jnp.nan)

    def whole(state: State, x: Array, y: Array, go: Array) -> tuple[State, Array]:
        layer = layer_at(state["params"], x, y, None)
        rows, tempered = layer.rows, layer.tempered(alpha)
        nothing = of_prior(rows.offset.shape[1], rows.phi.shape[1], rows.phi.dtype)
        sites, change, skipped = schedule.converge(layer, restored(rows.phi, state["sites"], alpha), nothing)
        natural = with_prior(summed(rows.phi, sites))
        state = {**state, "sites": sites, "change": change, "skipped": skipped}
        loss = -energy_of_sites(tempered, rows, sites, alpha)

        def tilted(params: Any) -> Array:
            there = layer_at(params, x, y, None)
            return tilted_sum(there.tempered(alpha), there.rows, sites, natural, alpha)

        state_and_loss: tuple[State, Array] = moved(state, go, 1.0, loss, tilted)
        return state_and_loss

    def part(
        state: State, natural: Natural, x: Array, y: Array, index: Array, go: Array
    ) -> tuple[State, Natural, Array]:
        layer, scale = layer_at(state["params"], x, y, index), x.shape[0] / index.shape[0]
        rows, everyone = layer.rows, state["sites"]
        old = SiteParameters(*(each[index] for each in everyone))
        rest = plus(natural, summed(rows.phi, old), -1.0)
        sites, change, skipped = schedule.converge(layer, old, rest)
        natural = plus(rest, summed(rows.phi, sites))
        changed = SiteParameters(*(a.at[index].set(b) for a, b in zip(everyone, sites, strict=True)))
        state = {**state, "sites": changed, "change": change, "skipped": skipped}
        of_q, of_rows = energy_parts(layer.tempered(alpha), rows, sites, natural, alpha)

        def tilted(params: Any) -> Array:
            there = layer_at(params, x, y, index)
            return tilted_sum(there.tempered(alpha), there.rows, sites, natural, alpha)

        state, loss = moved(state, go, scale, -(of_q + scale * of_rows), tilted)
        return state, natural, loss

    def run(
        state: State,
        x: Float[Array, "N D"],
        y: Num[Array, "N P"],
        indices: Int[Array, "T B"],
        moves: Bool[Array, " T"],
        count: Int[Array, ""],
    ) -> tuple[State, Float[Array, " T"]]:
        losses = jnp.full(moves.shape, jnp.nan)
        if not minibatches:

            def turn(i: Array, carry: Any) -> Any:
                state, loss = whole(carry[0], x, y, moves[i])
                return state, carry[1].at[i].set(loss)

            state_and_losses: tuple[State, Array] = jax.lax.fori_loop(0, count, turn, (state, losses))
            return state_and_losses
        phi = layer_at(state["params"], x, y, None).rows.phi
        state = {**state, "sites": restored(phi, state["sites"], alpha)}

        def step(i: Array, carry: Any) -> Any:
            state, natural, loss = part(carry[0], carry[1], x, y, indices[i], moves[i])
            return state, natural, carry[2].at[i].set(loss)

        natural = with_prior(summed(phi, state["sites"]))
        state, _, losses = jax.lax.fori_loop(0, count, step, (state, natural, losses))
        return state, losses

    return compiled(run, donate_argnums=0)


def build_end(svi: SVI, alpha: float) -> Callable[..., tuple[SiteParameters, Array, Array, Array]]:
    """``end(params, sites, x, y)``: the sites, q(v)'s means (F, M) and Cholesky factors (F, M, M), minus the energy."""

    def end(
        params: dict[str, Array], sites: SiteParameters, x: Float[Array, "N D"], y: Num[Array, "N P"]
    ) -> tuple[SiteParameters, Array, Array, Array]:
        layer = read_layer(svi.model, svi.constrain_fn(params), x, y)
        sites = restored(layer.rows.phi, sites, alpha)
        q = posterior_of_sites(with_prior(summed(layer.rows.phi, sites)))
        scale, _ = cholesky(jnp.swapaxes(q.root, 1, 2) @ q.root, 0.0)
        loss = -energy_of_sites(layer.tempered(alpha), layer.rows, sites, alpha)
        return sites, q.mean, scale, loss

    return compiled(end)
