"""What the α objectives share: one minibatch and one set of traces per particle, weights per datum (design, 4)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Model, Trace
from ppl_dgp.gp.representation import Propagation, Representation, check_propagation
from ppl_dgp.numerics.power_mean import Alpha, is_number
from ppl_dgp.objectives.alpha import AlphaSchedule, checked_alpha
from ppl_dgp.objectives.dependencies import prior_parents
from ppl_dgp.objectives.enumeration import enumerate_discrete, power_mean_over_draws
from ppl_dgp.objectives.representation import RepresentationHandler, require_marginals
from ppl_dgp.objectives.site_roles import SiteRoles, classify_sites
from ppl_dgp.objectives.weights import global_kl, log_weights, old_posterior_terms

Own = TypeVar("Own", bound="AlphaDivergence")
#: the axis of the particles, by which one may look at the others
PARTICLES = "particles"


#: log weights by group, log q of a guide's discrete sites, and traces of model and guide
Weighed = tuple[dict[str, Array], dict[str, Array], tuple[Trace, Trace]]


@dataclass(frozen=True)
class Particle:
    """One draw of the locals: traces of model and guide at values of some sites.

    ``still`` holds all else, and ``alone`` what the other particles drew.
    """

    traces: Callable[..., tuple[Trace, Trace]]
    u_outside: bool
    moments: frozenset[str]
    known: dict[str, Array]


@dataclass(frozen=True)
class Probe:
    """A run of guide and model, and which part each site plays.

    ``again`` runs both once more, given a key, a handler of their offers, and what wraps the guide.
    """

    roles: SiteRoles
    model: Trace
    guide: Trace
    again: Callable[[Array, RepresentationHandler, Callable[[Model], Model]], tuple[Trace, Trace]]


@dataclass(frozen=True)
class Globals:
    """The program that the latents are drawn from, and what is known before they are.

    ``divergence`` is that of q(θ), None to have its KL from each particle; ``weights`` those of local sites, per row.
    """

    guide: Model
    divergence: Array | None = None
    weights: dict[str, Array] = field(default_factory=dict)


def stop_gradient(values: Any) -> Any:
    """The same values, without a gradient."""
    return jax.tree.map(jax.lax.stop_gradient, values)


class AlphaDivergence(ELBO):
    """An objective −D(q(θ), p(θ)) + Σ_n (1/α) log E w_n^α; subclasses say what is drawn inside the logarithm."""

    #: whether θ stays outside the logarithm (a bound) or is drawn anew inside it (an energy)
    globals_outside_log: bool
    #: whether a trajectory is one of the θ at α > 0, its steps tempered one by one
    along_trajectories: bool = False
    #: discrete latents of the data plate are summed out
    can_infer_discrete = True

    def __init__(
        self,
        alpha: float | AlphaSchedule = 0.0,
        num_particles: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """
        :param alpha: in [0, 1]; 0 is the ELBO. A schedule, such as ``optax.linear_schedule(0.0, 1.0, 2000)``, gives the
            α of each step of ``fit_svi``.
        :param num_particles: draws S of the local latents; 1 at α = 0 and 8 otherwise, if not given.
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
        super().__init__(num_particles or (1 if alpha == 0.0 else 8))

    def __repr__(self) -> str:
        alpha = "schedule" if self.schedule is not None else f"{self.alpha:g}"
        return f"{type(self).__name__}(alpha={alpha}, num_particles={self.num_particles})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._settings() == cast("AlphaDivergence", other)._settings()

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(self._settings().items()))))

    def _settings(self) -> dict[str, Any]:
        """What makes two objectives the same, so that fits of equal ones share a program; NaN equals nothing."""
        return {**vars(self), "alpha": self.alpha if self.schedule is None else None}

    def at_step(self: Own, step: Any) -> Own:
        """This objective with the α that its schedule has at a step; itself where α is a number."""
        return self if self.schedule is None else self.at_alpha(jnp.asarray(self.schedule(step)))

    def at_alpha(self: Own, alpha: Alpha) -> Own:
        """This objective with another α, as many particles as before; it may be traced, and is not looked at."""
        found = copy.copy(self)
        found.schedule, found.alpha = None, alpha
        return found

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
        probe_key, representation_key, particle_key = jax.random.split(rng_key, 3)
        # one run fixes the minibatch of all particles, the globals, and which site plays which part
        probe_guide = traced_run(guide, probe_key, param_map, args, kwargs)
        probe_model = traced_run(replay(model, probe_guide), probe_key, param_map, args, kwargs)
        powered = not is_number(self.alpha, 0.0)
        roles = classify_sites(probe_model, probe_guide, powered)
        fixed = {**param_map, **roles.plates}

        def both(
            program: Model,
            key: Array,
            known: dict[str, Any],
            represented: RepresentationHandler,
            alone: bool = False,
        ) -> tuple[Trace, Trace]:
            with represented:
                with self._functions(representation_key, alone):
                    guide_trace = traced_run(program, key, known, args, kwargs)
                with self._functions(representation_key, alone):
                    model_trace = traced_run(replay(model, guide_trace), key, known, args, kwargs)
            represented.check_heard()
            return model_trace, guide_trace

        if powered and roles.trajectories and not self.along_trajectories:
            again = lambda key, represented, wrap: both(wrap(guide), key, fixed, represented)
            return -self._along(Probe(roles, probe_model, probe_guide, again), particle_key)
        propagation = self._propagation(roles)
        representations, u_outside = self._representations(roles)
        if propagation:
            representations = require_marginals(roles.representations, probe_guide)
        known_model = substitute(model, data=param_map)
        parents = lambda: prior_parents(known_model, args, kwargs)
        globals_ = self._globals(guide, roles, probe_model, probe_guide, parents)
        shared: dict[str, Any] = {}
        # without locals there is nothing inside the logarithm to average: the particles are draws of θ
        only_outside = self.along_trajectories and not (roles.local_sites or roles.guided_discrete)
        if self.globals_outside_log and powered and not only_outside:
            # θ, and each datum's draw of u, are shared by the particles
            fixed.update({name: probe_guide[name]["value"] for name in roles.global_sites})
            represented = RepresentationHandler(representations, roles.num_rows, representation_key)
            represented.answer_all(probe_guide)
            shared = represented.store

        def draw(key: Array) -> tuple[dict[str, Array], dict[str, Array], Array]:
            key_run, representation_key = jax.random.split(key)

            def traces(
                values: dict[str, Array], still: bool = False, alone: bool = False
            ) -> tuple[Trace, Trace]:
                known, store = {**fixed, **values}, dict(shared)
                if still:
                    known, store = {**stop_gradient(fixed), **values}, stop_gradient(store)
                represented = RepresentationHandler(
                    representations, roles.num_rows, representation_key, store, propagation
                )
                return both(globals_.guide, key_run, known, represented, alone)

            particle = Particle(traces, u_outside, frozenset(propagation), globals_.weights)
            weights, log_q, (model_trace, guide_trace) = self._weigh(roles, probe_model, particle)
            kl = globals_.divergence
            if kl is None:
                kl = global_kl(roles, model_trace, guide_trace, self.alpha, frozenset(propagation))
            return weights, log_q, kl - old_posterior_terms(roles, model_trace, self._power_of_memory)

        keys = jax.random.split(particle_key, self.num_particles)
        weights, log_q, kl = self._over_particles(draw, keys)
        objective = -kl.mean()
        for group, log_w in weights.items():
            rows = log_w.mean(0) if only_outside else self._power_mean(log_w, log_q.get(group))
            objective = objective + roles.scales[group] * rows.sum()
        return -objective

    def _along(self, probe: Probe, key: Array) -> Float[Array, ""]:
        """The objective of a model with a trajectory, at α > 0.

        :raises ValueError: where there is none but path by path.
        """
        found = probe.roles.trajectories[0]
        raise ValueError(
            f"{type(self).__name__}: found the trajectory {found!r} at alpha={self.alpha}, whose paths in one "
            "logarithm have hopeless weights; take PowerEP, which tempers its steps one by one, or alpha=0, or for a "
            "short series Pathwise"
        )

    @property
    def _power_of_memory(self) -> Alpha:
        """The α of what a stream remembers."""
        return self.alpha

    def _weigh(self, roles: SiteRoles, probe: Trace, particle: Particle) -> Weighed:
        """The log weights of one particle's rows, for each group."""

        def weigh(model_trace: Trace, guide_trace: Trace) -> dict[str, Array]:
            about = particle.u_outside, particle.moments, particle.known
            return log_weights(roles, model_trace, guide_trace, self.alpha, *about)

        return enumerate_discrete(roles, probe, particle.traces, weigh)

    def _power_mean(self, log_w: Float[Array, "S ..."], log_q: Array | None) -> Float[Array, "..."]:
        return power_mean_over_draws(log_w, self.alpha, log_q)

    def _over_particles(self, particle: Callable[[Array], Any], keys: Array) -> Any:
        if len(keys) == 1:
            return jax.tree.map(lambda leaf: leaf[None], particle(keys[0]))
        return self.vectorize_particles_fn(particle, keys)

    def _globals(
        self,
        guide: Model,
        roles: SiteRoles,
        model_trace: Trace,
        guide_trace: Trace,
        parents: Callable[[], dict[str, set[str]]],
    ) -> Globals:
        """What is known before the draws; ``parents`` finds on which other sites each site's distribution depends."""
        return Globals(guide)

    def _functions(self, key: Array, alone: bool = False) -> Messenger:
        """What stands between a function and its marginals: nothing, they are integrated out."""
        return Messenger()

    def _propagation(self, roles: SiteRoles) -> dict[str, Propagation]:
        """The hidden layers that are carried as moments."""
        found = {name: self.propagation or how for name, how in roles.propagation.items()}
        found = {name: how for name, how in found.items() if how != "draws"}
        if found and not is_number(self.alpha, 0.0) and self.globals_outside_log:
            raise ValueError(
                f"propagation: found {set(found.values())} at alpha={self.alpha}, where each datum needs its draws; "
                "take alpha=0, BlackBoxAlpha or ApproximatePowerEP, or propagation='draws'"
            )
        return found

    def _representations(self, roles: SiteRoles) -> tuple[dict[str, Representation], bool]:
        """How each u is carried, and whether its moments are to stay outside the logarithm."""
        wish = dict(roles.representations)
        if is_number(self.alpha, 0.0) or not self.globals_outside_log:
            return wish, False
        if not roles.local_sites:
            # without locals the closed form averages over u outside
            return wish, True
        return {k: "per_datum_sample" if v == "marginal" else v for k, v in wish.items()}, False


def traced_run(fn: Model, key: Array, values: dict[str, Array], args: Any, kwargs: Any) -> Trace:
    """A trace of ``fn`` with given values of parameters and sites."""
    found: Trace = trace(substitute(seed(fn, key), data=values)).get_trace(*args, **kwargs)
    return found
