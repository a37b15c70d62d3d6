"""Which part each site plays: global or per datum, observed or latent, in which plate, at what scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpyro.distributions as dist
from jaxtyping import Array

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.representation import Propagation, Representation
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.gaussian import moments_of
from ppl_dgp.objectives.representation import feasible_representations
from ppl_dgp.state_space.trajectory import trajectory_of


@dataclass
class SiteRoles:
    """The parts, by site name; a group is the outermost data plate of a site, "" where there is none."""

    plates: dict[str, Array] = field(default_factory=dict)
    global_sites: list[str] = field(default_factory=list)
    local_sites: list[str] = field(default_factory=list)
    #: observed sites and the model's local latents, in the model's order
    factors: list[str] = field(default_factory=list)
    #: of the global sites
    trajectories: list[str] = field(default_factory=list)
    #: discrete local latents that are summed out: the guide has no part in them, or a q of its own
    summed: list[str] = field(default_factory=list)
    guided_discrete: list[str] = field(default_factory=list)
    #: local latents that only the guide has
    auxiliary_local: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    powers: dict[str, Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    representations: dict[str, Representation] = field(default_factory=dict)
    #: of the hidden layers, as their rules wish
    propagation: dict[str, Propagation] = field(default_factory=dict)
    num_rows: int = 0


def row_sum(log_prob: Array, dim: int) -> Array:
    """Sum over all axes but the plate's, ``dim`` counted from the right; returns (B,)."""
    keep = log_prob.ndim + dim
    return log_prob.sum(tuple(axis for axis in range(log_prob.ndim) if axis != keep))


def classify_sites(model: Trace, guide: Trace, powered: bool) -> SiteRoles:
    """Read the parts off one run of guide and model.

    :param powered: whether α is positive, so that a logarithm stands around the locals of a row.
    :raises ValueError: if a latent of the model is missing from the guide, or a subsampled plate lies inside another
        and alpha is positive (its sum inside the logarithm has no unbiased estimate).
    """
    found = SiteRoles()
    ratio: dict[str, float] = {"": 1.0}
    for site in [*guide.values(), *model.values()]:
        if site["type"] == "plate":
            found.plates[site["name"]] = site["value"]
            ratio[site["name"]] = site["args"][0] / site["value"].shape[0]

    def is_sample(site: dict[str, Any]) -> bool:
        return site["type"] == "sample"

    data_plates = {
        frame.name
        for site in model.values()
        if is_sample(site) and site["is_observed"]
        for frame in site["cond_indep_stack"]
    }

    def assign(site: dict[str, Any]) -> bool:
        """Note the group of a site; whether it is inside a data plate."""
        frames = [frame for frame in site["cond_indep_stack"] if frame.name in data_plates]
        outer = min(frames, key=lambda frame: frame.dim) if frames else None
        name = "" if outer is None else outer.name
        inner = [frame for frame in frames if frame is not outer]
        for frame in inner:
            if ratio[frame.name] != 1.0 and powered:
                raise ValueError(
                    f"alpha: found a positive one with the plate {frame.name!r} subsampled inside {name!r}; its sum "
                    "inside the logarithm has no unbiased estimate: subsample the outer plate only, or take alpha=0"
                )
        found.groups[site["name"]] = name
        if outer is not None:
            found.dims[name] = outer.dim
        found.scales[name] = ratio[name]
        scale = 1.0 if site["scale"] is None else site["scale"]
        found.powers[site["name"]] = scale / ratio[name]
        return outer is not None

    for name, site in model.items():
        if not is_sample(site):
            continue
        inside = assign(site)
        if site["is_observed"]:
            found.factors.append(name)
        elif unwrap(site["fn"]).has_enumerate_support:
            if not inside:
                raise ValueError(
                    f"model: found the discrete latent {name!r} outside the data plate, where it cannot be summed out "
                    "row by row; put it inside, or sum it out by hand"
                )
            found.factors.append(name)
            (found.guided_discrete if name in guide else found.summed).append(name)
        elif name not in guide:
            raise ValueError(
                f"guide: found no site {name!r}, a latent of the model; give it a role or a guide"
            )
        else:
            # a point needs no moments
            if site["infer"].get("role") == "hidden" and not isinstance(
                unwrap(guide[name]["fn"]), dist.Delta
            ):
                found.propagation[name] = guide[name]["infer"].get("propagation", "draws")
            if inside:
                found.factors.append(name)
                found.local_sites.append(name)
            else:
                found.global_sites.append(name)
                if trajectory_of(site["fn"]) is not None:
                    found.trajectories.append(name)
    for name, site in guide.items():
        if not is_sample(site) or name in model or site["is_observed"]:
            continue
        if assign(site):
            found.auxiliary_local.append(name)
            found.local_sites.append(name)
        else:
            found.global_sites.append(name)
    _assign_representations(found, model, guide)
    return found


def _assign_representations(found: SiteRoles, model: Trace, guide: Trace) -> None:
    """How each inducing site's u is carried: as its guide asks; a guide written by hand asks by having no locals."""
    groups = [group for group in found.dims]
    if len(groups) == 1:
        found.num_rows = found.plates[groups[0]].shape[0]
    added = _added_functions(model)
    wishes: dict[str, Representation] = {}
    for name in found.global_sites:
        if name not in model or model[name]["infer"].get("role") != "inducing":
            continue
        wish = guide[name]["infer"].get("representation")
        if wish is None:
            joint = model[name]["infer"].get("reused") or found.local_sites or name in added
            wish = "shared_sample" if joint or moments_of(guide[name]["fn"]) is None else "marginal"
        wishes[name] = "shared_sample" if len(groups) != 1 else wish
    found.representations = feasible_representations(wishes, guide)


def _added_functions(model: Trace) -> set[str]:
    """The inducing sites of functions that add up: a guide written by hand may link their u, and moments miss that."""
    sites: set[str] = set()
    for site in model.values():
        emission = emission_of(site["fn"]) if site["type"] == "sample" else None
        for part in () if emission is None else emission.parts:
            names = [f"{name}/u" for name in part.marginal.functions]
            sites |= set(names) if len(names) > 1 else set()
    return sites
