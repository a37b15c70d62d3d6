"""Parts of the sites in an objective: global or per datum, observed or latent, in which plate, at what scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpyro.distributions as dist
from jaxtyping import Array

from ppl_dgp.gp.contract import Propagation, SiteRole, Trace, inducing_site, role_of
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.wrappers import unwrap
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
    #: discrete latents outside the data plate, which are summed out over all rows together
    summed_outside: list[str] = field(default_factory=list)
    #: local latents that only the guide has
    auxiliary_local: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    powers: dict[str, Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    #: of the inducing sites, with what the guide asks
    inducing: dict[str, SiteRole] = field(default_factory=dict)
    #: the inducing sites of functions that add up
    added: set[str] = field(default_factory=set)
    #: of the hidden layers, as their rules wish
    propagation: dict[str, Propagation] = field(default_factory=dict)

    @property
    def one_plate(self) -> bool:
        """Whether all that is inside plates is in one."""
        return len(self.dims) == 1

    @property
    def num_rows(self) -> int:
        """B, the rows at hand of the one data plate; 0 where there are several."""
        return int(self.plates[next(iter(self.dims))].shape[0]) if self.one_plate else 0


def row_sum(log_prob: Array, dim: int) -> Array:
    """Sum over all axes but the plate's, ``dim`` counted from the right; returns (B,)."""
    keep = log_prob.ndim + dim
    return log_prob.sum(tuple(axis for axis in range(log_prob.ndim) if axis != keep))


def classify_sites(model: Trace, guide: Trace, powered: bool) -> SiteRoles:
    """The parts of all sites, read off one run of guide and model.

    :param powered: whether α is positive, so that a logarithm stands around the locals of a row.
    :raises ValueError: if a latent of the model is missing from the guide, or a subsampled plate lies inside another
        and alpha is positive (its sum inside the logarithm has no unbiased estimate).
    """
    roles = SiteRoles(added=_added_functions(model))
    ratios: dict[str, float] = {"": 1.0}
    for site in [*guide.values(), *model.values()]:
        if site["type"] == "plate":
            roles.plates[site["name"]] = site["value"]
            ratios[site["name"]] = site["args"][0] / site["value"].shape[0]
    data_plates = {
        frame.name
        for site in model.values()
        if site["type"] == "sample" and site["is_observed"]
        for frame in site["cond_indep_stack"]
    }
    for site in model.values():
        if site["type"] == "sample":
            inside = _assign_group(roles, site, data_plates, ratios, powered)
            _assign_part(roles, site, guide, inside)
    for name, site in guide.items():
        if site["type"] != "sample" or name in model or site["is_observed"]:
            continue
        if _assign_group(roles, site, data_plates, ratios, powered):
            roles.auxiliary_local.append(name)
            roles.local_sites.append(name)
        else:
            roles.global_sites.append(name)
    return roles


def _added_functions(model: Trace) -> set[str]:
    """The inducing sites of functions that add up: a guide written by hand may link their u, and moments miss that."""
    sites: set[str] = set()
    for site in model.values():
        emission = emission_of(site["fn"]) if site["type"] == "sample" else None
        for part in () if emission is None else emission.parts:
            names = [inducing_site(name) for name in part.marginal.functions]
            sites |= set(names) if len(names) > 1 else set()
    return sites


def _assign_group(
    roles: SiteRoles, site: dict[str, Any], data_plates: set[str], ratios: dict[str, float], powered: bool
) -> bool:
    """Note the group of a site, its power and its scale; whether it is inside a data plate."""
    frames = [frame for frame in site["cond_indep_stack"] if frame.name in data_plates]
    outer = min(frames, key=lambda frame: frame.dim) if frames else None
    group = "" if outer is None else outer.name
    for frame in frames:
        if frame is not outer and ratios[frame.name] != 1.0 and powered:
            raise ValueError(
                f"alpha: found a positive one with the plate {frame.name!r} subsampled inside {group!r}; its sum "
                "inside the logarithm has no unbiased estimate: subsample the outer plate only, or take alpha=0"
            )
    roles.groups[site["name"]] = group
    if outer is not None:
        roles.dims[group] = outer.dim
    roles.scales[group] = ratios[group]
    scale = 1.0 if site["scale"] is None else site["scale"]
    roles.powers[site["name"]] = scale / ratios[group]
    return outer is not None


def _assign_outside(roles: SiteRoles, site: dict[str, Any], guide: Trace) -> None:
    """Note a discrete latent outside the data plate."""
    name = site["name"]
    if name in guide:
        raise ValueError(
            f"guide: found a q of the discrete latent {name!r} outside the data plate, which is summed out; leave it "
            "out of the guide"
        )
    if site["infer"].get("enumerate") != "parallel":
        raise ValueError(
            f"model: found the discrete latent {name!r} outside the data plate, where it cannot be summed out row by "
            'row; put it inside, or write infer={"enumerate": "parallel"}, to sum it out over all rows together'
        )
    roles.summed_outside.append(name)


def _assign_part(roles: SiteRoles, site: dict[str, Any], guide: Trace, inside: bool) -> None:
    """Note the part of a site of the model, inside a data plate or not."""
    name = site["name"]
    if site["is_observed"]:
        roles.factors.append(name)
        return
    if unwrap(site["fn"]).has_enumerate_support:
        if not inside:
            _assign_outside(roles, site, guide)
            return
        roles.factors.append(name)
        (roles.guided_discrete if name in guide else roles.summed).append(name)
        return
    if name not in guide:
        raise ValueError(
            f"guide: found no site {name!r}, a latent of the model; give it a role, as infer=hidden_role() does, or a "
            "guide, or take the guide of this model"
        )
    role = role_of(site)
    # a point needs no moments
    if role.hidden and not isinstance(unwrap(guide[name]["fn"]), dist.Delta):
        roles.propagation[name] = role_of(guide[name]).propagation or "draws"
    if inside:
        roles.factors.append(name)
        roles.local_sites.append(name)
        return
    roles.global_sites.append(name)
    if role.inducing:
        roles.inducing[name] = role
    if trajectory_of(site["fn"]) is not None:
        roles.trajectories.append(name)
