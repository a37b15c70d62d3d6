"""A posterior known by draws from it, as Markov chain Monte Carlo gives, in a guide's place.

A run of it is one of the draws, all its global sites θ together, so that what averages over runs of a guide averages
over the posterior. New rows have latents of their own, from the model's own conditionals given θ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Model, Parameters
from ppl_dgp.gp.wrappers import mask_of
from ppl_dgp.state_space.trajectory import Trajectory, trajectory_of

#: behind the name of a site, in that of the parameter which holds its draws
DRAWS_SUFFIX = "_draws"
#: smallest deviation of a proposal, where a chain has not moved
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class EmpiricalPosterior:
    """C chains of S draws of a model's latents, called as a guide is.

    Its parameters are ``<site>_draws`` (C, S, …) of every site, and of a local site, inside the data plate,
    ``<site>_loc`` and ``<site>_scale`` (C, N, …): mean and deviation of its unconstrained draws in each chain. At the
    training rows, called with y, locals h_n are drawn given θ from the mixture of these C Gaussians and of
    the model's own conditional, C + 1 parts of equal weight: a proposal with bounded weights, for averages over h_n
    given θ. It has no density: log q(θ) is NaN.

    :param model: whose latents they are.
    :param global_sites: θ, outside the data plate.
    :param local_sites: h_n, inside it.
    :param integrated_out: those h_n that have no draws: at all rows, those of training too, they are drawn from the
        model's own conditionals.
    :raises ValueError: when called without its parameters, or with y of other rows than those of the draws.
    """

    model: Model
    global_sites: tuple[str, ...]
    local_sites: tuple[str, ...] = ()
    integrated_out: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Sample the latents: θ of one of the draws, chosen at random; returns them by name."""
        draws = {name: _parameter(f"{name}{DRAWS_SUFFIX}") for name in self.global_sites}
        targets = args[1] if len(args) > 1 else kwargs.get("y")
        at_training_rows = self.local_sites if targets is not None else ()
        proposals = {
            name: (_parameter(f"{name}_loc"), _parameter(f"{name}_scale")) for name in at_training_rows
        }
        if draws:
            size = self._size(draws)
            number = jax.random.randint(numpyro.prng_key(), (), 0, size)
            draws = {name: _flat(value)[number] for name, value in draws.items()}
        local_sites = {*self.local_sites, *self.integrated_out}
        handler = _EmpiricalHandler(self.model, draws, local_sites, proposals)
        handler(*args, **kwargs)
        return handler.values

    def num_draws(self, params: Parameters) -> int:
        """C · S, the number of draws that its parameters hold."""
        return self._size(
            {name: params[f"{name}{DRAWS_SUFFIX}"] for name in self.global_sites + self.local_sites}
        )

    def spaced_draws(self, params: Parameters, count: int) -> Parameters:
        """Values of all sites (count, …), draws evenly spaced along the chains; at most as many as there are."""
        size = self.num_draws(params)
        numbers = jnp.arange(min(count, size)) * size // min(count, size)
        names = self.global_sites + self.local_sites
        return {name: _flat(params[f"{name}{DRAWS_SUFFIX}"])[numbers] for name in names}

    def by_chain(self, params: Parameters) -> list[Parameters]:
        """The parameters of each chain alone, C of them."""
        stacked = {f"{name}{DRAWS_SUFFIX}" for name in self.global_sites + self.local_sites}
        stacked |= {f"{name}_{moment}" for name in self.local_sites for moment in ("loc", "scale")}
        chains = len(params[min(stacked)])
        return [
            {name: value[c : c + 1] if name in stacked else value for name, value in params.items()}
            for c in range(chains)
        ]

    def _size(self, draws: Parameters) -> int:
        chains, count = next(iter(draws.values())).shape[:2]
        return int(chains * count)


class _EmpiricalHandler(Messenger):
    """Gives the model's global latents their values in one draw, local ones their proposals, and hides its data."""

    def __init__(
        self,
        fn: Callable[..., Any],
        draw: Parameters,
        local_sites: set[str],
        proposals: dict[str, tuple[Array, Array]],
    ) -> None:
        super().__init__(fn)
        self.draw, self.local_sites, self.proposals = draw, local_sites, proposals
        self.values: dict[str, Array] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "deterministic":
            msg["stop"] = True
        if msg["type"] != "sample":
            return
        name, prior = msg["name"], msg["fn"]
        if name in self.draw:
            trajectory = trajectory_of(prior)
            draw = self.draw[name]
            msg["fn"] = (
                PointDraw(draw, prior) if trajectory is None else TrajectoryDraw(draw, prior, trajectory)
            )
            # one draw of u for all rows: each belongs to the other sites of its draw
            msg["infer"] = {**msg["infer"], "reused": True, "representation": "shared_sample"}
        elif name in self.proposals:
            _check_rows(name, self.proposals[name][0], prior)
            mask = mask_of(prior)
            proposal = DefensiveProposal(prior, *self.proposals[name])
            msg["fn"] = proposal if mask is True else proposal.mask(mask)
        elif name not in self.local_sites:
            # data have no place in q: nobody further out sees the site, and nothing reads its value
            msg["stop"] = True
            if msg["value"] is None:
                msg["value"] = jnp.zeros(prior.shape())

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and (msg["name"] in self.draw or msg["name"] in self.local_sites):
            self.values[msg["name"]] = msg["value"]


class PointDraw(dist.Distribution):
    """The value of a site in one draw from the posterior; its density is not known, ``log_prob`` is NaN.

    :param value: the value.
    :param prior: the site's distribution in the model, whose shapes it takes over.
    """

    def __init__(self, value: Array, prior: dist.Distribution) -> None:
        self.value, self._support = value, prior.support
        super().__init__(prior.batch_shape, prior.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self._support

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """The value, whatever the key."""
        return jnp.broadcast_to(self.value, sample_shape + self.shape())

    def log_prob(self, value: Array) -> Array:
        return jnp.full(self.batch_shape, jnp.nan)


class TrajectoryDraw(PointDraw):
    """The states of a trajectory in one draw from the posterior, and the ``trajectory`` at u of that draw."""

    def __init__(self, value: Array, prior: dist.Distribution, trajectory: Trajectory) -> None:
        super().__init__(value, prior)
        self.trajectory = trajectory


class DefensiveProposal(dist.Distribution):
    r"""A mixture of Gaussians and a prior, q(h_n) = (Σ_c N(h_n; m_cn, s_cn²) + p(h_n)) / (C + 1).

    With it p(h_n)/q(h_n) is at most C + 1 (Hesterberg 1995). Where the support is not all real numbers the
    Gaussians are those of the unconstrained values.

    :param prior: p, the model's own conditional, of batch shape (N,).
    :param loc: m (C, N, …), :param scale: s, the deviations.
    """

    def __init__(self, prior: dist.Distribution, loc: Array, scale: Array) -> None:
        self.prior, self.size = prior, loc.shape[0]
        event = loc.ndim - 1 - len(prior.batch_shape)
        gaussians = dist.Normal(loc, jnp.maximum(scale, SMALLEST_DEVIATION)).to_event(event)
        self.gaussians = dist.TransformedDistribution(gaussians, biject_to(prior.support))
        super().__init__(prior.batch_shape, prior.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.prior.support

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (N, …), each row from a part of its own."""
        key_part, key_gaussian, key_prior = jax.random.split(key, 3)
        shape = sample_shape + self.batch_shape
        part = jax.random.randint(key_part, shape, 0, self.size + 1)
        part = part.reshape(shape + (1,) * len(self.event_shape))
        draws = jnp.moveaxis(self.gaussians.sample(key_gaussian, sample_shape), len(sample_shape), 0)
        value: Array = self.prior.sample(key_prior, sample_shape)
        for number in range(self.size):
            value = jnp.where(part == number, draws[number], value)
        return value

    def log_prob(self, value: Array) -> Array:
        """log q(h_n), (N,)."""
        # an axis for the parts in front of the batch's
        place = -len(self.batch_shape) - len(self.event_shape) - 1
        gaussians = self.gaussians.log_prob(jnp.expand_dims(value, place))
        axis = -len(self.batch_shape) - 1
        parts = jnp.concatenate([gaussians, jnp.expand_dims(self.prior.log_prob(value), axis)], axis)
        return logsumexp(parts, axis) - jnp.log(self.size + 1.0)


def _parameter(name: str) -> Array:
    value = numpyro.param(name)
    if value is None:
        raise ValueError(f"guide: found no {name!r} among its parameters, expected those of fit.params")
    return jnp.asarray(value)


def _flat(draws: Array) -> Array:
    """(C, S, …) as (C · S, …)."""
    return draws.reshape(-1, *draws.shape[2:])


def _check_rows(name: str, loc: Array, prior: dist.Distribution) -> None:
    batch = loc.shape[1 : 1 + len(prior.batch_shape)]
    if batch != prior.batch_shape:
        raise ValueError(
            f"y: found {prior.batch_shape} rows at {name!r}, expected {batch} as NUTS had; pass the training rows"
        )
