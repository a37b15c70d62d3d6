"""The smooth kink at R = 0.08 under every rule for the states, trained until it converges: five series.

    python -m benchmarks.kink --data DIR --series 0-4     # appends what benchmarks/kink.csv does not hold
    python -m benchmarks.kink --table                     # of what it holds, differences series by series

DIR holds ``sysid/kink.npz`` (Ialongo et al. 2019: Q = 0.0025, T = 599). Chains are trained by natural gradients in
closed form, what follows f from their optimum by Adam on draws, by ``fit_series``; bounds are means of 400 draws each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

from benchmarks.kinks import scores_of_function, smooth_kink
from benchmarks.rows import append, done, numbers, read
from ppl_dgp.fit import fit_series
from ppl_dgp.fit.energy import drawn_energies
from ppl_dgp.fit.result import checked_data
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import PowerEP

CSV = Path("benchmarks/kink.csv")
RULES = {
    "mean field": MeanField(), "markov": Markov(), "coupled": Conditional(), "union": Conditional(markov=True),
    "doubly stochastic": DoublyStochastic(),
}  # fmt: skip
FIELDS = (
    "series", "guide", "bound", "bound_error", "gap", "converged", "process", "observation", "rmse", "log_density",
    "steps", "seconds",
)  # fmt: skip
LEVEL, NUM_INDUCING, DRAWS = 1, 20, 400


def learnt(states: np.ndarray, y: np.ndarray, rule: Any, budget: int) -> dict[str, Any]:
    """A fit: its bound, how far it is from its optimum, both noises, and f on a grid of where the states were."""
    key, model = jax.random.key(0), gpssm(1, 1, NUM_INDUCING, emission="identity")
    guide = Guide(model, hidden=rule)
    objective = CLOSED if rule in (MeanField(), Markov()) else PowerEP(0.0)
    fit = fit_series(key, model, guide, objective, None, y, budget=budget)
    drawn = drawn_energies(model, guide, PowerEP(0.0), DRAWS)(
        jax.random.key(1), fit.params, *checked_data(None, y, model)
    )
    rmse, log_density = scores_of_function(smooth_kink, fit, y, states)
    return {
        "bound": float(np.mean(drawn)), "bound_error": float(np.std(drawn) / np.sqrt(DRAWS)), "gap": fit.gap,
        "converged": fit.converged, "process": float(np.mean(fit.params["transition/noise"])),
        "observation": float(np.mean(fit.params["likelihood/noise"])),
        "rmse": rmse, "log_density": log_density,
        "steps": fit.steps, "seconds": fit.seconds,
    }  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet."""
    known = done(CSV, ["series", "guide"])
    with np.load(options.data / "sysid" / "kink.npz") as file:
        states, observed, variance = file["x"][LEVEL], file["y"][LEVEL], float(file["noise_variance"][LEVEL])
    assert variance == 0.08, variance
    for number in numbers(options.series):
        for name in options.guides.split(","):
            if (str(number), name) in known:
                continue
            row = {"series": number, "guide": name}
            row |= learnt(states[number], observed[number][1:, None], RULES[name], options.budget)
            text = [f"{row[field]:.6g}" if isinstance(row[field], float) else row[field] for field in FIELDS]
            append(CSV, FIELDS, text)
            print(*text, flush=True)


def table() -> str:
    """Markdown: means over series, differences from the chain series by series with their standard errors."""
    rows = read(CSV)
    values = lambda name, field: {
        row["series"]: float(row[field]) for row in rows if row["guide"] == name and row[field]
    }
    columns = (
        "guide", "bound", "less that of markov", "Q", "R", "RMSE of f", "log density of f", "less that of markov",
        "to gain", "converged",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]

    def paired(name: str, field: str) -> str:
        ours, base = values(name, field), values("markov", field)
        differences = np.asarray([ours[each] - base[each] for each in ours if each in base])
        if name == "markov" or len(differences) < 2:
            return ""
        return f"{differences.mean():+.2f} ± {differences.std(ddof=1) / np.sqrt(len(differences)):.2f}"

    for name in RULES:
        of_name = [row for row in rows if row["guide"] == name]
        if not of_name:
            continue
        mean = lambda field, name=name: np.mean(list(values(name, field).values()))
        cells = [
            name, f"{mean('bound'):.1f}", paired(name, "bound"), f"{mean('process'):.4f}", f"{mean('observation'):.4f}",
            f"{mean('rmse'):.4f}", f"{mean('log_density'):.2f}", paired(name, "log_density"),
            f"{np.median(list(values(name, 'gap').values())):.2g}",
            f"{sum(row['converged'] == 'True' for row in of_name)} of {len(of_name)}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run what is left, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--series", default="0-4")
    parser.add_argument("--guides", default=",".join(RULES))
    parser.add_argument("--budget", type=int, default=14_400)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table())
        return 0
    if options.data is None:
        parser.error("--data: found none, expected the directory that holds sysid/kink.npz")
    numpyro.enable_x64()
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
