r"""Approximate power EP along a trajectory: tied factors of each state, each step tilted on its own.

Under a factorised q(x), n_t factors touch the state x_t: the step in, the step out and the row of data, each the n_t-th
root of q(x_t). Of u all T steps are one factor, T times over. With the cavities, q less α of one factor,

.. math::
    F = -D_{1-α/T}(q(u) \| p(u)) - D_{1-α}(q(x_0) \| p(x_0))
    + \sum_{t \ge 1, d} \Bigl[\tfrac12 \log 2π v_{td} - \tfrac{n_t}{2α} \log\bigl(1 - \tfrac{α}{n_t}\bigr)\Bigr]
    + \frac1α \sum_t \log Z_t^{dyn} + \frac1α \sum_t \log Z_t^{emi}

In a step, f and x_t are integrated exactly: with the moments m, s² of f(x_{t−1}) and c_t, H_t of x_t it is for each
dimension t_α(c_t; m, s² + H_t). Under a Markov chain the steps are tilted under cavities of neighbours, and what these
have to do with each other is one more term (:mod:`ppl_dgp.objectives.research.tied_pairs`). At α → 0 the whole is the
bound. Source: Bui 2017, 3.4 and 3.5 (3.79–3.82, with the 2π that the printed Φ leaves out). Shapes: T steps, Q state
dimensions, P outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int

from ppl_dgp.gp.contract import Propagation, Trace, inducing_site
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.gp.linear_map import Affine
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.moment_matching import matched_covariance
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.guides.latents import gaussian
from ppl_dgp.guides.rule import knows_states
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.likelihoods.gaussian import Gaussian as GaussianNoise
from ppl_dgp.likelihoods.gaussian import tempered_jointly
from ppl_dgp.numerics.gaussian import Gaussian, moments_of
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.objectives.cavity import flat_cavity, independent_cavity, renyi_and_cavity
from ppl_dgp.objectives.research.tied_pairs import Pairs, pair_cavities
from ppl_dgp.objectives.site_roles import SiteRoles
from ppl_dgp.objectives.weights import log_weights
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.trajectory import Trajectory


def whole(trajectory: Trajectory) -> Trajectory:
    """The trajectory, all of whose steps are at hand, as a closed form over the steps needs them.

    :raises ValueError: if they are those of windows.
    """
    if trajectory.whole is not None:
        raise ValueError(
            "x: found the steps of some windows, expected all of a series; leave batch_size out, or take PowerEP"
        )
    return trajectory


@dataclass(frozen=True)
class TiedChain:
    """What is known of a trajectory's energy before its steps are tilted.

    :param name: of the trajectory's site.
    :param group: the data plate.
    :param cavities: of x and of every u, by site.
    :param divergence: those of every u and of x_0.
    :param entropy: what the tied factors of x_t are to the energy, its entropy at α = 0, and under a Markov chain what
        it has to do with x_{t−1}.
    :param proper: whether x_t has a proper cavity. Where α takes its only factor away the step in and the state have
        no part in the energy: that is its limit.
    :param pairs: the cavities of the steps, where q(x) is not factorised over time and dimensions.
    """

    name: str
    group: str
    cavities: dict[str, dist.Distribution]
    divergence: Float[Array, ""]
    entropy: Float[Array, " T"]
    proper: Bool[Array, " T"]
    pairs: Pairs | None = None

    def tilted(
        self, roles: SiteRoles, model: Trace, guide: Trace, alpha: Alpha, propagation: Propagation, key: Array
    ) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """(1/α) log Z of each step and of each row of data, of a run in which u and x are those of the cavities.

        :param key: of the states before the steps, where they are drawn and have cavities of their own.
        """
        trajectory: Trajectory = unwrap(model[self.name]["fn"])
        cavity = moments_of(self.cavities[self.name])
        assert cavity is not None
        path = guide[self.name]["value"]
        if propagation != "draws":
            path = replace(cavity, linearise=propagation == "linearised")
        full = propagation == "full-moments"
        if self.pairs is not None:
            steps = self.pairs.tilted(trajectory, alpha, propagation, key)
        else:
            steps = _step(trajectory, path, trajectory.states(cavity), alpha, full)
        jointly = {name: _jointly(model[name], alpha, full) for name in roles.factors}
        known = {name: each for name, each in jointly.items() if each is not None}
        return steps, log_weights(roles, model, guide, alpha, False, known=known)[self.group]

    def energy(self, steps: Float[Array, " T"], rows: Float[Array, " T"]) -> Float[Array, ""]:
        """The energy, given the tilted steps and rows."""
        return (jnp.where(self.proper, steps + self.entropy, 0.0) + rows).sum() - self.divergence


def tied_chain(roles: SiteRoles, model: Trace, guide: Trace, alpha: Alpha) -> TiedChain:
    """The divergences and cavities of a model with a trajectory.

    :param model: a run of the model, and ``guide`` one of its guide.
    :raises ValueError: if there is more than one trajectory, other latents than functions beside it, a rule whose q(x)
        listens to u or f, or data that are not one row for each step.
    :raises TypeError: if a q is not Gaussian.
    """
    (name, *more) = roles.trajectories
    if more:
        raise ValueError(f"model: found the trajectories {[name, *more]}, expected one; take PowerEP")
    trajectory = whole(unwrap(model[name]["fn"]))
    q: Any = unwrap(guide[name]["fn"])
    states = _marginals(name, q)
    where = trajectory.layout
    num_steps = where.first.shape[0]
    group = _group(roles, num_steps)
    observed, factors = _rows_seen(roles, model, num_steps)
    transition = inducing_site(trajectory.function.name)
    factors[transition] = factors.get(transition, jnp.zeros((), int)) + num_steps
    others = [site for site in roles.global_sites if site != name and site not in factors]
    if others := others + roles.local_sites + roles.summed:
        raise ValueError(
            f"model: found the latents {others} beside the trajectory {name!r}, expected the functions of its steps "
            "and of its data alone; take PowerEP"
        )
    divergence, cavities = jnp.zeros(()), {}
    for site in roles.global_sites:
        if site != name:
            # a function that no row speaks of keeps its q as one factor
            epsilon = alpha / jnp.maximum(factors[site], 1)
            term, cavities[site] = independent_cavity(site, guide[site]["fn"], model[site]["fn"], epsilon)
            scale = 1.0 if model[site]["scale"] is None else model[site]["scale"]
            divergence = divergence + scale * term.sum()
    term, first = renyi_and_cavity(f"{name}_0", q.begun, trajectory.prior, alpha)
    initial = moments_of(first)
    assert initial is not None
    counts = factor_counts(where, observed)
    proper = counts[where.after] > alpha
    # in the place of what is not proper, and is left out
    counts = jnp.where(counts > alpha, counts, 2.0)
    entropy, after = flat_cavity(trajectory.states(states), counts[where.after], alpha)
    pairs = None
    if not states.diagonal:
        dependence, pairs = pair_cavities(where, trajectory.initial, q.chain(), states, counts, alpha)
        entropy = entropy + dependence
    begin = initial.scale if states.diagonal else initial.scale_tril
    cavity = Gaussian(where.path(initial.mean, after.mean), where.path(begin, after.scale))
    cavities[name] = gaussian(cavity).to_event(1)
    return TiedChain(name, group, cavities, divergence + term.sum(), entropy, proper, pairs)


def factor_counts(layout: Layout, observed: Bool[Array, " T"]) -> Float[Array, " slots"]:
    """How many factors touch each state: the step in, the step out and its row of data if any of that is observed.

    3 within a sequence, 2 at its end, 1 of x_0, whose prior is no factor; one fewer where the row is missing.
    """
    ends = jnp.append(layout.first[1:], True)
    return layout.path(jnp.ones(layout.num_sequences), 1.0 + (1.0 - ends) + observed)


def _marginals(name: str, q: dist.Distribution) -> Gaussian:
    """Moments of each state under q(x): deviations, or lower Cholesky factors if it links times or dimensions."""
    if isinstance(q, TrajectoryConditional) and knows_states(q.rule):
        return q.moments("moments")
    kind = q.rule if isinstance(q, TrajectoryConditional) else type(q).__name__
    raise ValueError(
        f"guide: found {kind} along {name!r}, expected a q(x) that listens to neither u nor f, whose cavities are "
        "known; take Guide(model, hidden=Markov()) or MeanField(), or PowerEP for any rule"
    )


def _group(roles: SiteRoles, num_steps: int) -> str:
    """The data plate, a row for each step."""
    groups = {roles.groups[name] for name in roles.factors}
    sizes = {name: roles.plates[name].shape[0] for name in groups if name}
    if (
        len(groups) != 1
        or list(sizes.values()) != [num_steps]
        or any(roles.scales[name] != 1 for name in groups)
    ):
        raise ValueError(
            f"model: found data in the plates {sizes or groups}, expected one plate of {num_steps} rows, one for each "
            "step; take PowerEP"
        )
    return groups.pop()


def _rows_seen(
    roles: SiteRoles, model: Trace, rows: int
) -> tuple[Bool[Array, " T"], dict[str, Int[Array, ""]]]:
    """Whether each row has an entry that was observed, and for how many rows each u has one."""
    anything = jnp.zeros(rows, bool)
    each: dict[str, Array] = {}
    for name in roles.factors:
        fn, value = model[name]["fn"], model[name]["value"]
        emission = emission_of(fn)
        if emission is None:
            anything = anything | mask_of(fn)
            continue
        for part, columns in with_columns(emission, value):
            there = _seen(part, columns, mask_of(fn)).any(1)
            site = inducing_site(part.marginal.function.name)
            each[site] = each.get(site, False) | there
            anything = anything | there
    return anything, {site: seen.sum() for site, seen in each.items()}


def with_columns(emission: Emission, y: Array) -> list[tuple[Emission, Array]]:
    """The parts of an emission, each with its columns of y."""
    columns = [y] if len(emission.parts) == 1 else emission.split(y)
    return list(zip(emission.parts, columns, strict=True))


def _seen(emission: Emission, y: Array, mask: Any) -> Bool[Array, "B P"]:
    """The entries that count."""
    there = jnp.ones(y.shape, bool) if mask is True else jnp.broadcast_to(mask[:, None], y.shape)
    return there & ~jnp.isnan(y) if emission.partly and jnp.issubdtype(y.dtype, jnp.floating) else there


def _step(
    trajectory: Trajectory, path: Array | Gaussian, after: Gaussian, alpha: Alpha, full: bool
) -> Float[Array, " T"]:
    """(1/α) log Z of each step, from x_{t−1} as the path has it to the cavity ``after`` of x_t."""
    step = trajectory.at(jax.tree.map(lambda leaf: leaf[trajectory.layout.after - 1], path))
    marginal = step.marginal
    if full and isinstance(marginal.inputs, Gaussian):
        covariance = matched_covariance(marginal.function, marginal.inputs) + after.covariance()
        noise = jnp.broadcast_to(trajectory.noise_at(trajectory.controls), after.mean.shape)
        return tempered_jointly(after.mean - marginal.mean, covariance, noise, alpha)
    return step.likelihood.tempered(after.mean, marginal.mean, marginal.variance + after.variance, alpha).sum(
        1
    )


def _jointly(site: dict[str, Any], alpha: Alpha, full: bool) -> Float[Array, " T"] | None:
    """(1/α) log Z of Gaussian data whose outputs an uncertain state correlates, where their covariance is known."""
    emission = emission_of(site["fn"])
    if emission is None or len(emission.parts) != 1 or not isinstance(emission.likelihood, GaussianNoise):
        return None
    covariance = _output_covariance(emission.marginal, full)
    if covariance is None:
        return None
    y, mean = site["value"], emission.marginal.mean
    seen = _seen(emission, y, mask_of(site["fn"]))
    noise = jnp.where(seen, jnp.broadcast_to(emission.likelihood.variance, mean.shape), jnp.inf)
    return tempered_jointly(jnp.where(seen, y, 0.0) - mean, covariance, noise, alpha)


def _output_covariance(marginal: Marginal, full: bool) -> Float[Array, "T P P"] | None:
    """The covariance of the outputs at an uncertain input: of a linear map's always, of a GP's if asked for."""
    f, h = marginal.function, marginal.inputs
    if not isinstance(h, Gaussian):
        return None
    if isinstance(f, Affine):
        return jnp.einsum("qp,tqr,rk->tpk", f.weights, h.covariance(), f.weights)
    return matched_covariance(f, h) if full else None
