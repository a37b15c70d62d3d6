r"""Approximate power EP: all data tie one factor t(θ), q(θ) ∝ p(θ) t(θ)^N (Bui 2017, 4.32; design, section 4).

.. math::
    -D_{1-\varepsilon}(q \| p) + \sum_n \frac1\alpha \log E_{\mathrm{cav}(\theta)} E_{q(h_n|\theta)} w_n^\alpha,
    \qquad \mathrm{cav} \propto q^{1-\varepsilon} p^{\varepsilon}, \quad \varepsilon = \alpha / N

The divergence is Rényi's, which is what (1 − N/α) Φ(q) + (N/α) Φ(cav) − Φ(p) amounts to without its cancellation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ppl_dgp.gp import Propagation, emission_of, mask_of
from ppl_dgp.memory import recollection_of
from ppl_dgp.objectives.cavity import is_gaussian, renyi_and_cavity
from ppl_dgp.objectives.divergence import AlphaDivergence, Globals, Program
from ppl_dgp.objectives.structure import Structure
from ppl_dgp.objectives.weights import Trace
from ppl_dgp.tempering import is_number


class ApproximatePowerEP(AlphaDivergence):
    """Power EP with tied factors (APEP; Bui 2017, 4.32): θ drawn from the cavity, inside the logarithm.

    An energy and not a bound for α > 0, nor exact at Z = X; predictions use q, never the cavity. Where a closed form
    exists (one layer of Gaussian noise), :class:`~ppl_dgp.objectives.Collapsed` is better at every α (Bui 2017, 2.6).

    A latent of a row with a Gaussian prior and a Gaussian q, as a GPLVM's x_n, is drawn from its own cavity
    ∝ q^(1−α) p^α, or carried as the cavity's moments where ``propagation`` asks for moments (Bui 2017, 3.7): the same
    weights in expectation as draws from q, with less variance. At α = 1 that cavity is the prior and the value does not
    depend on q(x_n) at all, which is then never trained: take α < 1.
    """

    theta_outside = False

    def _propagation(self, structure: Structure) -> dict[str, Propagation]:
        found = super()._propagation(structure)
        if self.propagation not in (None, "draws"):
            found.update({name: self.propagation for name in structure.local_sites})
        return found

    def _globals(
        self,
        guide: Program,
        structure: Structure,
        model_trace: Trace,
        guide_trace: Trace,
        parents: Callable[[], dict[str, set[str]]],
    ) -> Globals:
        if any(recollection_of(model_trace[name]["fn"]) is not None for name in structure.factors):
            raise ValueError(
                "ApproximatePowerEP: found the memory of a stream, which is no factor like the others; take PowerEP"
            )
        if auxiliary := [name for name in structure.global_sites if name not in model_trace]:
            raise TypeError(
                f"guide: found the auxiliary site {auxiliary[0]!r}, which has no prior and so no cavity; take PowerEP, "
                "or an AutoGuide with a Gaussian for every site, such as AutoNormal"
            )
        epsilon = self.alpha / number_of_factors(structure)
        own = [
            name for name in structure.local_sites if _has_cavity(name, structure, model_trace, guide_trace)
        ]
        others = [
            name for name in structure.global_sites if model_trace[name]["infer"].get("role") != "inducing"
        ]
        # a cavity is found once, before the draws: of a prior that depends on another draw there are many
        depends = parents() if own or others else {}
        if hanging := [name for name in others if depends[name]]:
            raise ValueError(
                f"model: found the prior of {hanging[0]!r} dependent on {sorted(depends[hanging[0]])}, expected "
                "independent priors, whose cavities are known; take PowerEP or BlackBoxAlpha"
            )
        cavities, total = {}, jnp.zeros(())
        for name in structure.global_sites:
            q, p = guide_trace[name], model_trace[name]
            if getattr(q["fn"], "given", ()):
                raise ValueError(
                    f"guide: found {name!r} conditioned on {q['fn'].given}, expected independent layers, whose "
                    "cavities are known; take inducing=FullRank()"
                )
            scale = 1.0 if p["scale"] is None else p["scale"]
            divergence, cavities[name] = renyi_and_cavity(name, q["fn"], p["fn"], epsilon)
            total = total + scale * divergence.sum()
        weights = {}
        for name in own:
            if not depends[name]:
                q, p = guide_trace[name]["fn"], model_trace[name]["fn"]
                divergence, cavities[name] = renyi_and_cavity(name, q, p, self.alpha)
                weights[name] = -divergence
        if weights and is_number(self.alpha, 1.0):
            warnings.warn(
                f"ApproximatePowerEP: found alpha=1, where the energy does not depend on q of {sorted(weights)}, whose "
                "cavity is the prior, so that it is not trained; take alpha below 1",
                stacklevel=2,
            )
        return Globals(_Cavities(guide, cavities), total, weights)


def _has_cavity(name: str, structure: Structure, model: Trace, guide: Trace) -> bool:
    """Whether a latent of the rows is Gaussian, in prior and q, of every row and at its full weight."""
    if name not in model or emission_of(model[name]["fn"]) is not None:
        return False
    q, p = guide[name]["fn"], model[name]["fn"]
    power = structure.powers[name]
    whole = isinstance(power, int | float) and power == 1.0 and mask_of(p) is True and mask_of(q) is True
    return whole and is_gaussian(q) and is_gaussian(p)


def number_of_factors(structure: Structure) -> float:
    """N: the rows of all data plates, and the data outside plates as one."""
    groups = {structure.groups[name] for name in structure.factors}
    sizes = [structure.scales[group] * structure.plates[group].shape[0] for group in groups if group]
    return sum(sizes) + ("" in groups)


class _Cavities(Messenger):
    """A guide with other distributions at some sites; it wraps the guide, to see what that samples."""

    def __init__(self, fn: Program, cavities: dict[str, dist.Distribution]) -> None:
        super().__init__(fn)
        self.cavities = cavities

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.cavities and msg["value"] is None:
            msg["fn"] = self.cavities[msg["name"]]
