r"""Where discrete latents may not be summed out, because of what depends on them.

A hidden layer h_z whose distribution depends on z, its q with f inside (the model's own conditional, or a rule that
follows f), is drawn for every z from one noise, as if f had the same residual at the inputs of all z. With the f_n of
the rows independent given u, as at α > 0, that is a bound of the (FITC) evidence: Jensen's inequality asks for the
marginals of the h_z alone. The bound of the exact model, at α = 0, asks for more: its q(f) must be p(f | u) for all
rows together, and a q(z | noise) changes it. Two rows of which one is likely under f_1 f_2 > 0 and the other under
f_1 f_2 < 0 are a counterexample.
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
    discrete = {*roles.summed, *roles.guided_discrete}
    if not discrete or not (roles.local_sites or roles.global_sites):
        return
    parents = probe.prior_parents()
    for name in roles.global_sites:
        if found := sorted(parents.get(name, set()) & discrete):
            raise ValueError(
                f"model: found the latent {name!r}, outside the data plate, to depend on the discrete sites {found}, "
                "which are summed out row by row; expected rows alone to depend on them"
            )
    for name in roles.local_sites if exact else ():
        rule: Any = getattr(unwrap(probe.guide[name]["fn"]), "rule", None)
        follows = rule is not None and rule.depends_on in (DependsOn.F, DependsOn.MODEL)
        # under a q(z) of the guide each value is averaged on its own
        if follows and (found := sorted(parents.get(name, set()) & set(roles.summed))):
            raise ValueError(
                f"hidden: found {rule} for {name!r}, which depends on the discrete sites {found}, at alpha=0, where f "
                "drawn apart for each of their values gives no bound; take hidden=MeanField(), an alpha above 0, "
                "ImportanceWeighted(alpha=0.0), or a hidden layer with outputs for each value, of which y takes one"
            )
