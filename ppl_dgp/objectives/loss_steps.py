"""Records of an α objective's loss from step to step: the probe, its resolution, and a particle's traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array
from numpyro.handlers import substitute

from ppl_dgp.gp.contract import Model, Parameters, Propagation, Representation, Trace
from ppl_dgp.objectives.dependencies import prior_parents
from ppl_dgp.objectives.outside_sum import OutsideSum
from ppl_dgp.objectives.representation import RepresentationHandler
from ppl_dgp.objectives.runs import ProgramRuns
from ppl_dgp.objectives.site_roles import SiteRoles

#: log weights by group, log q of a guide's discrete sites, and traces of model and guide
Weighed = tuple[dict[str, Array], dict[str, Array], tuple[Trace, Trace]]


@dataclass(frozen=True)
class Probe:
    """One run of guide and model, which fixes the minibatch, and the part that each site plays in it.

    :param runs: of the two programs, to run them again.
    :param values: of the parameters, and the rows of each plate, which all runs share.
    :param shared_key: of what the particles share.
    :param particle_key: of their own draws.
    """

    runs: ProgramRuns
    roles: SiteRoles
    model: Trace
    guide: Trace
    values: dict[str, Array]
    parameters: Parameters
    shared_key: Array
    particle_key: Array

    def again(
        self,
        key: Array,
        represented: RepresentationHandler,
        wrap: Callable[[Model], Model] = lambda program: program,
    ) -> tuple[Trace, Trace]:
        """Both programs once more on the same rows, the guide wrapped in handlers; traces of model and guide."""
        with represented:
            traces = self.runs.traces(key, self.values, wrap(self.runs.guide))
        represented.check_heard()
        return traces

    def prior_parents(self) -> dict[str, set[str]]:
        """The latents that the distribution of each of the model's sites depends on."""
        known = substitute(self.runs.model, data=self.parameters)
        return prior_parents(known, self.runs.args, self.runs.kwargs)


@dataclass(frozen=True)
class Globals:
    """The program that the latents are drawn from, and what is known before they are.

    ``divergence`` is that of q(θ), None to have its KL from each particle; ``weights`` those of local sites, per row.
    """

    guide: Model
    divergence: Array | None = None
    weights: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolution:
    """Decisions about a probe: how each latent is carried, and what the particles share.

    :param u_outside: whether the variance that moments of u add is averaged outside the logarithm.
    :param values: of parameters and plates, and of θ where the particles share it.
    :param answers: u as the particles share it, by site.
    :param averaged: whether the particles are draws of θ, with nothing inside the logarithm to average.
    :param outside: the sum over discrete latents outside the data plate.
    """

    globals: Globals
    representations: dict[str, Representation]
    propagation: dict[str, Propagation]
    u_outside: bool
    values: dict[str, Array]
    answers: dict[str, Any]
    averaged: bool
    outside: OutsideSum | None = None

    @property
    def carried(self) -> frozenset[str]:
        """The hidden layers that are carried as moments."""
        return frozenset(self.propagation)


@dataclass(frozen=True)
class Particle:
    """One draw of the locals: traces of model and guide at values of some sites.

    ``still`` holds all else, and ``alone`` what the other particles drew.
    """

    traces: Callable[..., tuple[Trace, Trace]]
    resolved: Resolution
