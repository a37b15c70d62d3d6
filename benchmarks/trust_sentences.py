"""The figures that the sentences of docs/which-to-trust.md quote, from benchmarks/trust.csv, sentence by sentence.

    python -m benchmarks.trust_sentences

KL are in thousandths of a nat; fits that have not converged are left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.trust import CSV
from benchmarks.trust_again import pairs
from benchmarks.trust_cases import ALPHAS, DEEP, SERIES
from benchmarks.trust_judged import converged, judged, mean_correlations, rank_correlations


def said(title: str, values: pd.Series | pd.DataFrame) -> None:
    """A heading and what is found."""
    print(f"\n{title}\n{values.to_string(float_format=lambda value: f'{value:.3g}')}")


def main() -> None:
    """Print them."""
    table = pd.read_csv(CSV)
    table = table.assign(kl=1000 * table.kl_fitc, dense=1000 * table.kl_dense)
    settled = converged(table)
    points = judged(table)
    power = points[points.objective == "PowerEP"]
    shallow = power[~power.problem.isin((*DEEP, *SERIES))]

    both = pairs(table)
    left = both.left.rename("left of the distance by a q of hyperparameters")
    print(f"1. {(left < 1).sum()} of {len(both)} pairs are nearer with a q of hyperparameters")
    said("   the median left of the distance", left.groupby(both.problem, sort=False).median())
    said("   by guide", left.groupby([both.problem, both.rule], sort=False).median())
    least = points.loc[points.groupby("problem", sort=False).kl.idxmin()]
    said("   nearest with points", least.set_index("problem")[["rule", "objective", "alpha", "kl", "dense"]])

    ratio = lambda fits: np.exp(fits.groupby(["problem", "alpha"], sort=False).spread_fitc.median()).unstack()
    said("2. deviation of f in that of the reference, points", ratio(power))
    said("   with a q", ratio(settled[(settled.hyper == "sampled") & (settled.objective == "PowerEP")]))

    for kind in ("kl", "dense"):
        medians = points.groupby(["problem", "objective", "alpha"], sort=False)[kind].median()
        said(f"3. median KL, {kind}", medians.unstack(["objective", "alpha"]))
        of_u = shallow[shallow.rule.isin(("full-rank", "diagonal"))]
        said(f"   of one function, {kind}", of_u.set_index(["problem", "rule", "alpha"])[kind].unstack())

    found = rank_correlations(table)
    said("4, 5, 6. rank correlations", found.astype(float))
    said("   means, and their errors", mean_correlations(found))
    boston = points[points.problem == "boston"]
    said("6. boston by k-hat above 0.7", boston.groupby(boston.khat.astype(float) > 0.7).kl.median())

    lost = settled[(settled.problem == "boston") & (settled.hyper == "sampled")]
    said("7. boston with a q", lost.set_index(["rule", "alpha"])[["mean_fitc", "kl", "dense"]])

    path = table[table.problem.isin(SERIES) & (table.objective == "PowerEP") & (table.hyper == "points")]
    said(
        "8. along the path", path.set_index(["rule", "alpha"])[["kl", "converged", "loo", "iw_bound", "elbo"]]
    )

    decoupled = shallow[shallow.rule == "decoupled"].set_index(["problem", "alpha"])
    said("9. decoupled", decoupled.kl.unstack())

    chains = table[table.objective == "SGHMC"].set_index(["problem", "alpha"])
    said("10. SGHMC", chains[["kl", "dense", "seconds"]])
    said("    nearest of the others", settled.groupby("problem", sort=False).kl.min())
    for kind in ("kl", "dense"):
        nearer = [
            power[power.alpha == alpha].groupby("problem", sort=False)[kind].median() for alpha in ALPHAS
        ]
        said(f"    medians of points by α, {kind}", pd.concat(nearer, axis=1, keys=ALPHAS))


if __name__ == "__main__":
    main()
