r"""Approximate power EP: all data tie one factor t(θ), q(θ) ∝ p(θ) t(θ)^N (Bui 2017, 4.32; docs/design.md, 4).

.. math::
    -D_{1-\varepsilon}(q \| p) + \sum_n \frac1\alpha \log E_{\mathrm{cav}(\theta)} E_{q(h_n|\theta)} w_n^\alpha,
    \qquad \mathrm{cav} \propto q^{1-\varepsilon} p^{\varepsilon}, \quad \varepsilon = \alpha / N

The divergence is Rényi's, which is what (1 − N/α) Φ(q) + (N/α) Φ(cav) − Φ(p) amounts to without its cancellation.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Propagation, Trace
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.old_posterior import old_posterior_of
from ppl_dgp.gp.wrappers import mask_of, unwrap
from ppl_dgp.numerics.power_mean import is_number, log_power_mean
from ppl_dgp.objectives.cavity import Cavities, independent_cavity, is_gaussian, renyi_and_cavity
from ppl_dgp.objectives.divergence import AlphaDivergence
from ppl_dgp.objectives.loss_steps import Globals, Probe
from ppl_dgp.objectives.representation import RepresentationHandler
from ppl_dgp.objectives.research.tied_chain import tied_chain
from ppl_dgp.objectives.site_roles import SiteRoles


class ApproximatePowerEP(AlphaDivergence):
    """Power EP with tied factors (APEP; Bui 2017, 4.32): θ drawn from the cavity, inside the logarithm.

    An energy and not a bound for α > 0, nor exact at Z = X; predictions use q, never the cavity. Where a closed form
    exists (one layer of Gaussian noise), :class:`~ppl_dgp.objectives.Collapsed` is better at every α (Bui 2017, 2.6).

    A latent of a row with a Gaussian prior and a Gaussian q, as a GPLVM's x_n, is drawn from its own cavity
    ∝ q^(1−α) p^α, or carried as the cavity's moments where ``propagation`` asks for moments (Bui 2017, 3.7): the same
    weights in expectation as draws from q, with less variance. At α = 1 that cavity is the prior and the value does not
    depend on q(x_n) at all, which is then never trained: take α < 1.

    Along a trajectory, of one q(x) that listens to neither u nor f (``MeanField``, ``Markov``, or a network's), the
    factors of each state are tied as well (:mod:`ppl_dgp.objectives.research.tied_chain`): the states before the steps
    and behind the data are drawn from their cavities, or carried as moments, each output of f and g on its own but
    those of a linear emission, and with "full-moments" jointly. x_0 is then as a GPLVM's x_n. What a chain says of
    neighbours belongs to the step between them, undivided (:mod:`ppl_dgp.objectives.research.tied_pairs`): without
    dependence the energy is the factorised q's, and so it is at α = 1, of the same marginals.
    """

    globals_outside_log = False
    divergence_is_kl = False

    def _propagation(self, roles: SiteRoles) -> dict[str, Propagation]:
        carried = super()._propagation(roles)
        if self.propagation not in (None, "draws"):
            carried.update({name: self.propagation for name in roles.local_sites})
        return carried

    def _globals(self, probe: Probe) -> Globals:
        roles, model_trace, guide_trace, guide = probe.roles, probe.model, probe.guide, probe.runs.guide
        if is_number(self.alpha, 0.0) and roles.trajectories:
            # the bound, which needs no cavities
            return Globals(guide)
        if any(old_posterior_of(model_trace[name]["fn"]) is not None for name in roles.factors):
            raise ValueError(
                "ApproximatePowerEP: found the memory of a stream, which is no factor like the others; take PowerEP"
            )
        if auxiliary := [name for name in roles.global_sites if name not in model_trace]:
            raise TypeError(
                f"guide: found the auxiliary site {auxiliary[0]!r}, which has no prior and so no cavity; take PowerEP, "
                "or an AutoGuide with a Gaussian for every site, such as AutoNormal"
            )
        epsilon = self.alpha / number_of_factors(roles)
        latents = [name for name in roles.local_sites if _has_cavity(name, roles, model_trace, guide_trace)]
        others = [name for name in roles.global_sites if name not in roles.inducing]
        # a cavity is found once, before the draws: of a prior that depends on another draw there are many
        depends = probe.prior_parents() if latents or others else {}
        if hanging := [name for name in others if depends[name]]:
            raise ValueError(
                f"model: found the prior of {hanging[0]!r} dependent on {sorted(depends[hanging[0]])}, expected "
                "independent priors, whose cavities are known; take PowerEP or BlackBoxAlpha"
            )
        cavities, total = {}, jnp.zeros(())
        for name in roles.global_sites:
            q, p = guide_trace[name], model_trace[name]
            scale = 1.0 if p["scale"] is None else p["scale"]
            divergence, cavities[name] = independent_cavity(name, q["fn"], p["fn"], epsilon)
            total = total + scale * divergence.sum()
        weights = {}
        for name in latents:
            if not depends[name]:
                q, p = guide_trace[name]["fn"], model_trace[name]["fn"]
                divergence, cavities[name] = renyi_and_cavity(name, q, p, self.alpha)
                weights[name] = -divergence
        self._warn_of_prior(list(weights))
        return Globals(Cavities(guide, cavities), total, weights)

    def _along(self, probe: Probe) -> Float[Array, ""]:
        roles = probe.roles
        chain = tied_chain(roles, probe.model, probe.guide, self.alpha)
        q: Any = unwrap(probe.guide[chain.name]["fn"])
        if chain.pairs is not None:
            self._warn_at_one(
                f"depends on q of {chain.name!r} by its marginals from {chain.name}_1 on alone, so that "
                "what links the states is not trained"
            )
        elif not q.initial_from_model:
            self._warn_of_prior([f"{chain.name}_0"])
        propagation = self._propagation(roles)
        # the steps are tilted under moments of u, whatever carries the states
        representations = self._representations(probe, dict.fromkeys(roles.trajectories, "moments"))
        how = propagation.get(chain.name, "draws")

        def draw(key: Array) -> tuple[Array, Array]:
            represented = RepresentationHandler(representations, roles.num_rows, key, propagation=propagation)
            traces = probe.again(key, represented, lambda guide: Cavities(guide, chain.cavities))
            # beyond the two that a run splits its key into
            return chain.tilted(roles, *traces, self.alpha, how, jax.random.fold_in(key, 2))

        keys = jax.random.split(probe.particle_key, self.num_particles if how == "draws" else 1)
        return chain.energy(*(log_power_mean(each, self.alpha) for each in self._over_particles(draw, keys)))

    def _warn_of_prior(self, latents: list[str]) -> None:
        if latents:
            self._warn_at_one(
                f"does not depend on q of {sorted(latents)}, whose cavity is the prior, so that it is not trained"
            )

    def _warn_at_one(self, what: str) -> None:
        if is_number(self.alpha, 1.0):
            warnings.warn(
                f"ApproximatePowerEP: found alpha=1, where the energy {what}; take alpha below 1",
                stacklevel=4,
            )


def _has_cavity(name: str, roles: SiteRoles, model: Trace, guide: Trace) -> bool:
    """Whether a latent of the rows is Gaussian, in prior and q, of every row and at its full weight."""
    if name not in model or emission_of(model[name]["fn"]) is not None:
        return False
    q, p = guide[name]["fn"], model[name]["fn"]
    power = roles.powers[name]
    whole = isinstance(power, int | float) and power == 1.0 and mask_of(p) is True and mask_of(q) is True
    return whole and is_gaussian(q) and is_gaussian(p)


def number_of_factors(roles: SiteRoles) -> float | Array:
    """N: the rows of all data plates, and the data outside plates as one."""
    groups = {roles.groups[name] for name in roles.factors}
    sizes = [roles.scales[group] * roles.plates[group].shape[0] for group in groups if group]
    return sum(sizes) + ("" in groups)
