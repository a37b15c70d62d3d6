r"""The evidence of a trajectory estimated by an ensemble Kalman filter, in the place of a path's bound (EnVI).

.. math::
    -KL[q(u) \| p(u)] + E_{q(u)} \sum_t \log \hat p(y_t | y_1 \dots y_{t-1}, u)

with p̂ the Gaussian predictive likelihood of :mod:`ppl_dgp.state_space.ensemble_kalman` (Lin, Sun, Yin & Thiéry 2024).
No bound: p̂ takes the states for Gaussian, and moments of E members for their own. Of a model that is linear given u it
is the exact evidence given u, so that there the whole is a bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array, Float
from numpyro.infer import ELBO

from ppl_dgp.gp.contract import Model, Parameters, Trace
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.guides import EnsembleSmoother
from ppl_dgp.guides.trajectory import TrajectoryConditional
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.site_roles import SiteRoles, classify_sites
from ppl_dgp.objectives.weights import global_kl
from ppl_dgp.state_space.ensemble_kalman import (
    check_ensemble,
    ensemble_draws,
    ensemble_filtered,
    observed_steps,
)


class EnsembleKalman(ELBO):
    """For state space models: the path filtered by an ensemble given u, and q(u) all that there is to learn of q.

    The guide is ``Guide(model, hidden=EnsembleSmoother())``, with any rule for u. An estimate and no bound, stochastic,
    of all rows: a window of a series would start from p(x_0), and is refused. Noise of y is Gaussian, entries of it may
    be missing, and an emission is linear or a GP.

    >>> from ppl_dgp import EnsembleKalman
    >>> EnsembleKalman(30)
    EnsembleKalman(members=30, update='redrawn', num_particles=1)
    """

    is_bound = False
    needs_all_rows = True

    def __init__(self, members: int = 50, update: str = "redrawn", num_particles: int = 1) -> None:
        """
        :param members: E, more than the dimensions Q of the state; a step costs O(E (M² + Q²)).
        :param update: how the members meet what is observed: "redrawn", exact where the model is linear given u, or
            "perturbed", as Lin et al. have it, whose estimate is far lower at a few members.
        :param num_particles: draws of u, each with an ensemble of its own.
        :raises ValueError: for another update, fewer than two members, or no draw of u.
        """
        check_ensemble(members, update=update)
        if num_particles < 1:
            raise ValueError(
                f"EnsembleKalman: num_particles: found {num_particles}, expected at least 1; raise it"
            )
        self.members, self.update = members, update
        super().__init__(num_particles)

    def __repr__(self) -> str:
        return f"EnsembleKalman(members={self.members}, update={self.update!r}, num_particles={self.num_particles})"

    def _settings(self) -> tuple[Any, ...]:
        return self.members, self.update, self.num_particles

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnsembleKalman) and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash((EnsembleKalman, self._settings()))

    @multiplying_in_full
    def loss(
        self,
        rng_key: Array,
        param_map: Parameters,
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the estimate in nats over all rows.

        :raises ValueError: for a guide whose path is not that of ``EnsembleSmoother``, a model with other latents than
            functions and hyperparameters beside one trajectory, other noise than Gaussian, or too few members.
        """
        runs = ProgramRuns(model, guide, args, kwargs)

        def one(key: Array) -> Float[Array, ""]:
            key_u, key_ensemble = jax.random.split(key)
            model_trace, guide_trace = runs.traces(key_u, param_map)
            roles = classify_sites(model_trace, guide_trace, False)
            name, target = _sites(roles, model_trace, guide_trace)
            outside = replace(roles, global_sites=[site for site in roles.global_sites if site != name])
            y: dict[str, Any] = model_trace[target]
            evidence = self._log_evidence(key_ensemble, unwrap(model_trace[name]["fn"]), y)
            energy: Array = roles.powers[target] * evidence - global_kl(outside, model_trace, guide_trace)
            return energy

        if self.num_particles == 1:
            return -one(rng_key)
        each: Array = self.vectorize_particles_fn(one, jax.random.split(rng_key, self.num_particles))
        return -each.mean()

    def _log_evidence(self, key: Array, trajectory: Any, y: dict[str, Any]) -> Float[Array, ""]:
        """Σ_t log p̂(y_t | y_1 … y_{t−1}, u)."""
        emission = emission_of(y["fn"])
        assert emission is not None
        observed = observed_steps(emission, y["value"], trajectory.controls.shape[0], mask_of(y["fn"]))
        draws = ensemble_draws(key, trajectory, y["value"].shape[1], self.members)
        return ensemble_filtered(trajectory, observed, draws, self.update).log_predictive.sum()


def _sites(roles: SiteRoles, model: Trace, guide: Trace) -> tuple[str, str]:
    """The names of the trajectory and of the data."""
    emitted = [name for name in roles.factors if emission_of(model[name]["fn"]) is not None]
    if len(roles.trajectories) != 1 or len(emitted) != 1 or roles.factors != emitted or roles.local_sites:
        raise ValueError(
            f"model: found the trajectories {roles.trajectories} beside {[*roles.local_sites, *roles.factors]}, "
            "expected one, and y from it by one emission; take PowerEP"
        )
    name, q = roles.trajectories[0], unwrap(guide[roles.trajectories[0]]["fn"])
    if not isinstance(q, TrajectoryConditional) or not isinstance(q.rule, EnsembleSmoother):
        found = q.rule if isinstance(q, TrajectoryConditional) else type(q).__name__
        raise ValueError(
            f"guide: found {found} along {name!r}, which EnsembleKalman would leave untrained, expected q(u) alone; "
            "take Guide(model, hidden=EnsembleSmoother())"
        )
    return name, emitted[0]
