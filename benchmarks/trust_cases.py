"""Which fits benchmarks/trust.py makes of each problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reference_problems import family
from ppl_dgp import ApproximatePowerEP, BlackBoxAlpha, ImportanceWeighted, PowerEP
from ppl_dgp.guides import HIDDEN_RULES, Decoupled, LowRank

KEY = ("problem", "objective", "alpha", "rule", "hyper", "seed")
DEEP, SERIES = ("step", "chirp", "boston"), ("kink",)
ALPHAS = (0.0, 0.5, 1.0)
#: rules of u; "decoupled" has a covariance of half of the inducing inputs
INDUCING = {
    "full-rank": "full-rank", "diagonal": "diagonal", "low-rank": LowRank(2), "decoupled": Decoupled(4),
    "global": "global", "across-outputs": "across-outputs", "layer-chain": "layer-chain", "coupled": "coupled",
}  # fmt: skip
#: of them those that differ from full-rank where there is one function alone
OF_ONE = ("full-rank", "diagonal", "low-rank", "decoupled", "global")
#: three rules for the other objectives
OTHERS = ("full-rank", "diagonal", "low-rank"), ("doubly-stochastic", "conditional", "mean-field")
OBJECTIVES: dict[str, Callable[[float], Any]] = {
    "PowerEP": PowerEP,
    "BlackBoxAlpha": BlackBoxAlpha,
    "ApproximatePowerEP": ApproximatePowerEP,
    "ImportanceWeighted": lambda _: ImportanceWeighted(num_particles=8),
}


@dataclass(frozen=True)
class Case:
    """A row: how a problem is fitted."""

    problem: str
    objective: str
    alpha: float
    rule: str
    hyper: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """As the CSV has it."""
        # α of 0 and 1 without a point
        return tuple(f"{self.alpha:g}" if name == "alpha" else str(getattr(self, name)) for name in KEY)

    def path(self, store: Path) -> Path:
        """Where what it says is kept."""
        return store / ("_".join(self.key).replace(": ", "-") + ".npz")


def cases(names: list[str], seeds: dict[str, int]) -> Iterator[Case]:
    """All rows, those first that matter most."""
    for name in names:
        of = family(name)
        deep = of in DEEP + SERIES
        of_u = ("full-rank", "diagonal", "global", "layer-chain", "coupled") if of in DEEP else ()
        if not deep:
            of_u = tuple(INDUCING) if of in ("classes", "heteroscedastic") else OF_ONE
        rules = (*HIDDEN_RULES, *(f"u: {rule}" for rule in of_u[1:])) if deep else of_u
        central = OTHERS[deep]
        for number in range(seeds.get(of, 1)):
            for rule in rules:
                for alpha in ALPHAS:
                    yield Case(name, "PowerEP", alpha, rule, "points", number)
            for rule in central:
                for alpha in ALPHAS:
                    yield Case(name, "PowerEP", alpha, rule, "sampled", number)
                for objective in ("BlackBoxAlpha", "ApproximatePowerEP", "ImportanceWeighted"):
                    alpha = 1.0 if objective == "ImportanceWeighted" else 0.5
                    yield Case(name, objective, alpha, rule, "points", number)
            if of not in SERIES:
                for alpha in (0.0, 1.0):
                    yield Case(name, "SGHMC", alpha, "", "sampled", number)
