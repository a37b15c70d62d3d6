"""A rule of which nothing is learnt: given u the path is what an ensemble Kalman smoother makes of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import Parameters
from ppl_dgp.gp.emission import Emission
from ppl_dgp.guides.dependence import DependsOn
from ppl_dgp.guides.latents import Latent, LatentRule
from ppl_dgp.guides.rule import HiddenRule
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.state_space.ensemble_kalman import check_ensemble


def _no_density() -> NoReturn:
    raise ValueError(
        "hidden: found EnsembleSmoother(), whose paths have no density, under an objective or a diagnostic that weighs "
        "them; take EnsembleKalman(members), or another rule"
    )


@dataclass(frozen=True)
class EnsembleSmoother(HiddenRule):
    """q(x | u) of a trajectory by an ensemble Kalman smoother: no parameters, so that a guide with it is q(u) alone.

    It goes with :class:`ppl_dgp.objectives.EnsembleKalman`. The paths have no density, and objectives that weigh them
    refuse it. The guide by itself knows no emission, and leaves the path NaN: ``smooth``, ``forecast`` and what else
    begins at a path draw u, run the filter and the smoother, and take one of their members. x_0 is from p(x_0).

    :param members: E of the ensembles that paths are drawn from, more than the state has dimensions.
    :raises ValueError: for fewer than two.
    """

    members: int = 100
    depends_on = DependsOn.U

    def __post_init__(self) -> None:
        check_ensemble(self.members)

    def declare(self, name: str, size: int, step: Emission, datum: Array | None = None) -> Parameters:
        raise no_trajectory(name)

    def conditional(self, params: Parameters, step: Emission) -> dist.Distribution:
        return Unseen(step.batch_shape, step.event_shape)

    def log_weight(self, params: Parameters, step: Emission, value: Array, alpha: Alpha) -> Float[Array, "B"]:
        _no_density()

    @property
    def latent(self) -> LatentRule:
        return _NoLatent()


class Unseen(dist.Distribution):
    """States that are not known where they are asked for: NaN, and no density."""

    support = constraints.real_vector

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        return jnp.full(sample_shape + self.shape(), jnp.nan)

    def log_prob(self, value: Array) -> Array:
        _no_density()


class _NoLatent(LatentRule):
    """What the rule makes of latents that are no trajectory: an error."""

    def declare(self, name: str, size: int, latent: Latent, datum: Array | None = None) -> Parameters:
        raise no_trajectory(name)

    def conditional(self, params: Parameters, latent: Latent) -> dist.Distribution:
        return latent.prior


def no_trajectory(name: str) -> ValueError:
    """What is raised at a latent that is no trajectory."""
    return ValueError(
        f"hidden: found EnsembleSmoother() at {name!r}, expected the trajectory of a state space model, such as gpssm; "
        "take another rule"
    )
