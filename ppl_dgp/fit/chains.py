"""How Markov chains went: divergences, R-hat, effective sample sizes (Vehtari et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped
from numpyro.diagnostics import summary

from ppl_dgp.fit.advice import chains_advice


class SamplingWarning(UserWarning):
    """Draws that are not to be trusted as the posterior's: chains that disagree, or trajectories that diverged."""


@dataclass(frozen=True, eq=False)
class Chains:
    """C chains of S draws after ``num_warmup`` steps of adaptation each.

    ``r_hat`` is the largest split R-hat among the entries of each site, ``effective_size`` the smallest effective
    number of draws. ``stats`` are numbers of each draw (C, S) by ArviZ's names: ``diverging``, ``acceptance_rate``,
    ``n_steps``, ``energy``, ``step_size`` and ``potential_energy``, minus the log density of the unconstrained values;
    of ``fit_sghmc`` all but the second to the fourth. ``overwhelmed`` is the share of numbers whose slopes scatter,
    between minibatches, more than the noise that a step needs.
    """

    num_warmup: int
    r_hat: Mapping[str, float]
    effective_size: Mapping[str, float]
    stats: Mapping[str, Shaped[np.ndarray, "C S"]]
    overwhelmed: float = 0.0

    def __repr__(self) -> str:
        chains, draws = self.stats["diverging"].shape
        r_hat, size = max(self.r_hat.values()), min(self.effective_size.values())
        return (
            f"{type(self).__name__}({chains} of {draws} draws, R-hat up to {r_hat:.3g}, effective number of draws from "
            f"{size:.0f}, {self.divergences} divergences)"
        )

    @property
    def divergences(self) -> int:
        """Draws, over all chains, whose trajectory diverged."""
        return int(self.stats["diverging"].sum())

    @property
    def advice(self) -> str | None:
        """What is wrong with the chains and what to do about it; None if nothing is known to be."""
        return "; ".join(chains_advice(self)) or None


def chains_of(
    draws: Mapping[str, Shaped[np.ndarray, "C S ..."]],
    stats: Mapping[str, Shaped[np.ndarray, "C S"]],
    num_warmup: int,
    overwhelmed: float = 0.0,
) -> Chains:
    """What is to be said of draws (C, S, …) by site, and of the numbers of each draw (C, S)."""
    table = summary(dict(draws), group_by_chain=True)
    return Chains(
        num_warmup=num_warmup,
        r_hat={name: float(np.max(table[name]["r_hat"])) for name in draws},
        effective_size={name: float(np.min(table[name]["n_eff"])) for name in draws},
        stats=dict(stats),
        overwhelmed=overwhelmed,
    )
