"""The α-divergence objectives: one minibatch and one set of traces per particle, weights per datum (design, 4).

A loss takes four steps. The **probe**, one run of guide and model, fixes the minibatch and says which part each site
plays. To **resolve** it is to decide what is drawn, what is integrated out, and what the particles share. Each
**particle** is one more run, at draws of its own. To **reduce** them is to take their power mean, row by row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from numpyro.infer import ELBO
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Model, Parameters, Propagation, Representation, Trace
from ppl_dgp.gp.parameters import check_lifted
from ppl_dgp.gp.representation import check_propagation
from ppl_dgp.numerics.content import content
from ppl_dgp.numerics.power_mean import Alpha, is_number
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.objectives.alpha import AlphaSchedule, checked_alpha
from ppl_dgp.objectives.capabilities import capabilities_of
from ppl_dgp.objectives.discrete_checks import check_discrete, check_outside
from ppl_dgp.objectives.enumeration import enumerate_discrete, power_mean_over_draws
from ppl_dgp.objectives.loss_steps import Globals, Particle, Probe, Resolution, Weighed
from ppl_dgp.objectives.outside_sum import OutsideSum, site_densities
from ppl_dgp.objectives.representation import Logarithm, RepresentationHandler, choose_representations
from ppl_dgp.objectives.row_weights import check_weighable, checked_weights, weighted_rows
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.site_roles import SiteRoles, classify_sites
from ppl_dgp.objectives.weights import global_kl, log_weights, old_posterior_terms

Divergence = TypeVar("Divergence", bound="AlphaDivergence")
#: the axis of the particles, by which one may look at the others
PARTICLES = "particles"


def stop_gradient(values: Any) -> Any:
    """The same values, without a gradient."""
    return jax.tree.map(jax.lax.stop_gradient, values)


class AlphaDivergence(ELBO):
    """The objective −D(q(θ), p(θ)) + Σ_n (1/α) log E w_n^α; subclasses say what is drawn inside the logarithm."""

    #: whether θ stays outside the logarithm (a bound) or is drawn anew inside it (an energy)
    globals_outside_log: bool
    #: whether a trajectory is one of the θ at α > 0, its steps tempered one by one
    along_trajectories: bool = False
    #: whether functions are drawn, jointly at all their inputs
    draws_functions: bool = False
    #: discrete latents of the data plate are summed out
    can_infer_discrete = True
    takes_alpha = True
    learns_streams = True
    pushes_inducing = True
    #: of the N rows, how often each counts
    weights: Float[np.ndarray, " N"] | None = None
    #: whether no number of particles was asked for
    any_number = False

    def __init__(
        self,
        alpha: float | AlphaSchedule = 0.0,
        num_particles: int | None = None,
        propagation: Propagation | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """
        :param alpha: in [0, 1]; 0 is the ELBO. A schedule, such as ``optax.linear_schedule(0.0, 1.0, 2000)``, gives the
            α of each step of ``fit_svi``.
        :param num_particles: draws S of the local latents; if not given 1 at α = 0, 8 otherwise, of which one is taken
            where there are no local latents, so that nothing is averaged inside the logarithm.
        :param propagation: how hidden layers are carried: "draws", or without draws "moments", "full-moments" (with
            the covariance of a layer's outputs) or "linearised"; as the guide's rule prefers, if not given. Moments
            give the closed-form bound of a mean-field or Markov guide, exact for Gaussian noise where q(h) is
            Gaussian; for ``DoublyStochastic`` they are exact up to two layers.
        :raises TypeError: if alpha is neither a number nor a schedule, or num_particles not an int.
        :raises ValueError: if alpha is outside [0, 1], or num_particles is not positive.
        """
        name = type(self).__name__
        self.schedule = alpha if callable(alpha) else None
        self.alpha: Alpha = float("nan") if callable(alpha) else checked_alpha(name, alpha)
        if num_particles is not None and num_particles < 1:
            raise ValueError(f"{name}: num_particles: found {num_particles}, expected at least 1")
        if propagation is not None:
            check_propagation(propagation)
        self.propagation = propagation
        if weights is not None:
            self.weights = self._checked(weights)
        self.any_number = num_particles is None
        super().__init__(num_particles or (1 if alpha == 0.0 else 8))

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments that are kept as something else than was given."""
        alpha = self.alpha if self.schedule is None else self.schedule
        return {"alpha": alpha, "num_particles": None if self.any_number else self.num_particles}

    def __repr__(self) -> str:
        alpha = "schedule" if self.schedule is not None else f"{self.alpha:g}"
        weighted = "" if self.weights is None else f", weights=array of {self.weights.shape}"
        return f"{type(self).__name__}(alpha={alpha}, num_particles={self.num_particles}{weighted})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self._settings().items()))))

    def _settings(self) -> dict[str, Any]:
        """What makes two objectives the same, so that fits of equal ones share a program; NaN equals nothing."""
        own = {**vars(self), "alpha": self.alpha if self.schedule is None else None}
        return own if self.weights is None else {**own, "weights": content(self.weights)}

    def at_step(self: Divergence, step: Any) -> Divergence:
        """This objective with the α that its schedule has at a step; itself where α is a number."""
        return self if self.schedule is None else self.at_alpha(jnp.asarray(self.schedule(step)))

    def at_alpha(self: Divergence, alpha: Alpha) -> Divergence:
        """This objective with another α, as many particles as before; it may be traced, and is not looked at."""
        other = copy.copy(self)
        other.schedule, other.alpha = None, alpha
        return other

    def weighted(self: Divergence, weights: ArrayLike | None) -> Divergence:
        """This objective with weights of rows, of N rows (see ``__init__``)."""
        other = copy.copy(self)
        other.weights = self._checked(weights)
        return other

    def _checked(self, weights: ArrayLike | None) -> Float[np.ndarray, " N"] | None:
        name = type(self).__name__
        if weights is not None and not capabilities_of(self).weighs_rows:
            raise ValueError(
                f"{name}: weights: found some, expected none, for it has no terms that would count so often; take "
                "PowerEP"
            )
        return checked_weights(name, weights)

    @multiplying_in_full
    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Model,
        guide: Model,
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the objective, in nats over all N rows, estimated with ``num_particles`` draws.

        :raises ValueError: if alpha is a schedule, which :meth:`at_step` resolves.
        """
        if self.schedule is not None:
            raise ValueError(
                "alpha: found a schedule without a step; train with fit_svi, or take at_step(step)"
            )
        probe = self._probe(rng_key, param_map, ProgramRuns(model, guide, args, kwargs))
        if self.weights is not None:
            check_weighable(type(self).__name__, probe.roles, self._powered)
        if self._powered and probe.roles.trajectories and not self.along_trajectories:
            return -self._along(probe)
        resolved = self._resolve(probe)
        if probe.roles.summed_outside:
            weigh = lambda values: self._particle(probe, resolved, probe.particle_key, values)[0]
            resolved = replace(
                resolved, outside=OutsideSum.of(probe.roles.summed_outside, probe.model, weigh)
            )
        draw = lambda key: self._particle(probe, resolved, key)
        # draws of θ alone would each cost as much as a step, and steps average over them as well
        number = 1 if resolved.averaged and self.any_number else self.num_particles
        particles = self._over_particles(draw, jax.random.split(probe.particle_key, number))
        return -self._reduce(probe.roles, resolved, *particles)

    @property
    def is_bound(self) -> bool:
        """Whether it lies below the log evidence (of the FITC model, for GPs at α > 0); a schedule promises nothing."""
        return self.schedule is None and (self.globals_outside_log or not self._powered)

    @property
    def _powered(self) -> bool:
        """Whether α is positive, so that there is a logarithm."""
        return not is_number(self.alpha, 0.0)

    def _probe(self, key: Array, params: Parameters, runs: ProgramRuns) -> Probe:
        """One run of guide and model."""
        probe_key, shared_key, particle_key = jax.random.split(key, 3)
        model, guide = runs.traces(probe_key, params)
        check_lifted(runs.model, model, params)
        roles = classify_sites(model, guide, self._powered)
        values = {**params, **roles.plates}
        return Probe(runs, roles, model, guide, values, params, shared_key, particle_key)

    def _resolve(self, probe: Probe) -> Resolution:
        """How each latent is carried, and what is known, or drawn, before the particles are."""
        roles = probe.roles
        check_outside(probe, self, self.draws_functions or (self._powered and not self.globals_outside_log))
        check_discrete(probe, exact=not self._powered and not self.draws_functions)
        propagation, logarithm = self._propagation(roles), self._logarithm
        representations = self._representations(probe, propagation)
        globals_ = self._globals(probe)
        values, answers = dict(probe.values), {}
        # without locals there is nothing inside the logarithm to average: the particles are draws of θ
        averaged = self.along_trajectories and not (roles.local_sites or roles.guided_discrete)
        if self.globals_outside_log and self._powered and not averaged:
            # θ, and each datum's draw of u, are shared by the particles
            values.update({name: probe.guide[name]["value"] for name in roles.global_sites})
            represented = RepresentationHandler(representations, roles.num_rows, probe.shared_key)
            represented.answer_all(probe.guide)
            answers = represented.store
        # without locals the closed form averages over u outside; of u that is drawn there is nothing to average
        below_u = logarithm == "below_u" and "marginal" in representations.values()
        u_outside = below_u and not (roles.local_sites or self._sums_below_u(roles))
        return Resolution(globals_, representations, propagation, u_outside, values, answers, averaged)

    def _particle(
        self, probe: Probe, resolved: Resolution, key: Array, at: Mapping[str, Array] = MappingProxyType({})
    ) -> tuple[dict[str, Array], dict[str, Array], Array]:
        """One draw of the latents: the log weights of its rows, log q of discrete sites, and its divergence of q(θ).

        :param at: values of discrete latents outside the data plate.
        """
        key_run, representation_key = jax.random.split(key)
        roles = probe.roles

        def traces(
            values: dict[str, Array], still: bool = False, alone: bool = False, beside: bool = False
        ) -> tuple[Trace, Trace]:
            known, answers = {**resolved.values, **values}, dict(resolved.answers)
            if still:
                known, answers = {**stop_gradient(resolved.values), **values}, stop_gradient(answers)
            represented = RepresentationHandler(
                resolved.representations, roles.num_rows, representation_key, answers, resolved.propagation
            )
            functions = lambda: self._functions(probe.shared_key, alone, beside)
            with represented:
                both = probe.runs.traces(key_run, known, resolved.globals.guide, functions)
            represented.check_heard()
            return both

        def weigh(outside: Mapping[str, Array]) -> Weighed:
            given = lambda values, **how: traces({**outside, **values}, **how)
            return self._weigh(roles, probe.model, Particle(given, resolved))

        summing = resolved.outside
        weights, log_q, (model, guide) = weigh(at) if summing is None else summing.weighed(weigh)
        kl = resolved.globals.divergence
        if kl is None:
            kl = global_kl(roles, model, guide, self.alpha, resolved.carried)
        return weights, log_q, kl - old_posterior_terms(roles, model, self._power_of_memory)

    def _reduce(
        self,
        roles: SiteRoles,
        resolved: Resolution,
        weights: dict[str, Float[Array, "S ..."]],
        log_q: dict[str, Array],
        divergence: Float[Array, " S"],
    ) -> Float[Array, ""]:
        """The objective of all particles: each row's power mean, at the row's scale."""
        objective = -divergence.mean()
        if resolved.outside is not None:
            apart = resolved.averaged or not self._powered
            return objective + resolved.outside.log_sum_of_particles(weights, log_q, self._power_mean, apart)
        for group, log_w in weights.items():
            rows = log_w.mean(0) if resolved.averaged else self._power_mean(log_w, log_q.get(group))
            rows = rows if self.weights is None else weighted_rows(self.weights, roles, group, rows)
            objective = objective + roles.scales[group] * rows.sum()
        return objective

    def _along(self, probe: Probe) -> Float[Array, ""]:
        """The objective of a model with a trajectory, at α > 0.

        :raises ValueError: where there is none but path by path.
        """
        raise ValueError(
            f"{type(self).__name__}: found the trajectory {probe.roles.trajectories[0]!r} at alpha={self.alpha}, whose "
            "paths in one logarithm have hopeless weights; take PowerEP, which tempers its steps one by one, or "
            "alpha=0, or for a short series Pathwise"
        )

    @property
    def _power_of_memory(self) -> Alpha:
        """The α of what a stream remembers."""
        return self.alpha

    def _weigh(self, roles: SiteRoles, probe: Trace, particle: Particle) -> Weighed:
        """The log weights of one particle's rows, for each group."""

        def weigh(model_trace: Trace, guide_trace: Trace) -> dict[str, Array]:
            resolved = particle.resolved
            about = resolved.u_outside, resolved.carried, resolved.globals.weights
            outside = roles.summed_outside
            weights = log_weights(roles, model_trace, guide_trace, self.alpha, *about, apart=bool(outside))
            return {**weights, **site_densities(outside, model_trace)}

        return enumerate_discrete(roles, probe, particle.traces, weigh)

    def _power_mean(self, log_w: Float[Array, "S ..."], log_q: Array | None) -> Float[Array, "..."]:
        return power_mean_over_draws(log_w, self.alpha, log_q)

    def _over_particles(self, particle: Callable[[Array], Any], keys: Array) -> Any:
        if len(keys) == 1:
            return jax.tree.map(lambda leaf: leaf[None], particle(keys[0]))
        return self.vectorize_particles_fn(particle, keys)

    def _globals(self, probe: Probe) -> Globals:
        """What is known before the draws."""
        return Globals(probe.runs.guide)

    def _functions(self, key: Array, alone: bool = False, beside: bool = False) -> Messenger:
        """What stands between a function and its marginals: nothing, they are integrated out."""
        return Messenger()

    def _propagation(self, roles: SiteRoles) -> dict[str, Propagation]:
        """The hidden layers that are carried as moments, and how."""
        asked = {name: self.propagation or how for name, how in roles.propagation.items()}
        carried: dict[str, Propagation] = {name: how for name, how in asked.items() if how != "draws"}
        if carried and self._powered and self.globals_outside_log:
            raise ValueError(
                f"propagation: found {set(carried.values())} at alpha={self.alpha}, where each datum needs its draws; "
                "take alpha=0, BlackBoxAlpha or ApproximatePowerEP, or propagation='draws'"
            )
        if carried and self._sums_below_u(roles):
            summed = [*roles.summed, *roles.guided_discrete, *roles.summed_outside]
            raise ValueError(
                f"propagation: found {set(carried.values())} beside discrete sites, {summed}, whose sum has a "
                "logarithm that is averaged over draws of the hidden layers; take propagation='draws'"
            )
        return carried

    @property
    def _logarithm(self) -> Logarithm:
        """Where the logarithm stands."""
        if not self._powered:
            return "none"
        return "below_u" if self.globals_outside_log else "above_u"

    def _sums_below_u(self, roles: SiteRoles) -> bool:
        """Whether the sum over discrete latents stands in a logarithm below u, so that moments of u would change it.

        Under q(z) of a guide there is none at α = 0, and where u is inside, the sum and the mean over u are one.
        """
        if roles.summed_outside:
            return True
        if roles.guided_discrete and not roles.summed:
            return self._logarithm == "below_u"
        return bool(roles.summed) and not (self._logarithm == "above_u" and is_number(self.alpha, 1.0))

    def _representations(
        self, probe: Probe, propagation: dict[str, Propagation], logarithm: Logarithm | None = None
    ) -> dict[str, Representation]:
        """How each u is carried, the logarithm standing where it does, or where it is said to."""
        roles = probe.roles
        return choose_representations(
            roles.inducing,
            probe.guide,
            one_plate=roles.one_plate,
            local_sites=bool(roles.local_sites),
            summed=self._sums_below_u(roles),
            added=roles.added,
            logarithm="above_rows" if roles.summed_outside else (logarithm or self._logarithm),
            propagated=bool(propagation),
        )
