r"""Where discrete latents may not be summed out, because of what depends on them.

A hidden layer h_z whose distribution depends on z, its q with f inside (the model's own conditional, or a rule that
follows f), is drawn for every z from one noise, as if f had the same residual at the inputs of all z. With the f_n of
the rows independent given u, as at α > 0, that is a bound of the (FITC) evidence: Jensen's inequality asks for the
marginals of the h_z alone. The bound of the exact model, at α = 0, asks for more: its q(f) must be p(f | u) for all
rows together, and a q(z | noise) changes it (docs/design.md, 4, has a counterexample of two rows). Of a z outside the
data plate the same holds of any such layer, for all rows meet in its logarithm.
"""

from __future__ import annotations

from typing import Any

from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.guides import DependsOn
from ppl_dgp.objectives.loss_steps import Probe


def check_discrete(probe: Probe, exact: bool) -> None:
    """Refuse discrete latents that cannot be summed out row by row.

    :param exact: whether the objective is to bound the evidence of the exact model, functions integrated out.
    :raises ValueError: if a latent outside the data plate depends on one of them, or a hidden layer whose q follows its
        function does where that would be no bound.
    """
    roles = probe.roles
    discrete = {*roles.summed, *roles.guided_discrete, *roles.summed_outside}
    if not discrete:
        return
    parents = probe.prior_parents()
    for name in roles.global_sites:
        if found := sorted(parents.get(name, set()) & discrete):
            raise ValueError(
                f"model: found the latent {name!r}, outside the data plate, to depend on the discrete sites {found}, "
                "which are summed out; expected rows alone to depend on them"
            )
    of_rows = {*roles.summed, *roles.guided_discrete}
    for name in roles.factors:
        elsewhere = {site for site in of_rows if roles.groups[site] != roles.groups[name]}
        if found := sorted(parents.get(name, set()) & elsewhere):
            raise ValueError(
                f"model: found {name!r} to depend on the discrete sites {found} of another plate, which are summed out "
                "row by row; expected their own rows alone to depend on them"
            )
    for name in roles.local_sites if exact else ():
        rule: Any = getattr(unwrap(probe.guide[name]["fn"]), "rule", None)
        follows = rule is not None and rule.depends_on in (DependsOn.F, DependsOn.MODEL)
        # under a q(z) of the guide each value is averaged on its own; z outside the plate sees all rows' f
        seen = {*(parents.get(name, set()) & set(roles.summed)), *roles.summed_outside}
        if follows and (found := sorted(seen)):
            raise ValueError(
                f"hidden: found {rule} for {name!r} beside the discrete sites {found}, at alpha=0, where f drawn apart "
                "for each of their values, or for each row, gives no bound; take hidden=MeanField(), an alpha above 0, "
                "ImportanceWeighted(alpha=0.0), or a hidden layer with outputs for each value, of which y takes one"
            )


def check_outside(probe: Probe, objective: Any, refused: bool) -> None:
    """Refuse discrete latents outside the data plate where the logarithm of their sum is not to be had.

    :param refused: whether it has θ inside its logarithm, or draws functions row by row.
    :raises ValueError: if it has, or for a minibatch.
    """
    sites = probe.roles.summed_outside
    if not sites:
        return
    if refused:
        raise ValueError(
            f"{type(objective).__name__}: found the discrete sites {sites} outside the data plate, whose sum stands "
            "above all rows, u one draw for them; take PowerEP, or alpha=0"
        )
    for group, scale in probe.roles.scales.items():
        if scale != 1.0:
            raise ValueError(
                f"model: found a minibatch of the plate {group!r} beside the discrete sites {sites} outside it, the "
                "logarithm of whose sum over all rows it cannot estimate; leave batch_size out"
            )
