"""Transitions with a kink under every rule for the states, trained until they converge.

    python -m benchmarks.kink --data DIR                        # appends what benchmarks/kink.csv does not hold
    python -m benchmarks.kink --data DIR --problems "smooth 0.08" --alpha 0.5 --series 0-4
    python -m benchmarks.kink --table                           # of what it holds, differences series by series

DIR holds ``sysid/kink.npz`` (Ialongo et al. 2019: Q = 0.0025, R = 0.008, 0.08 and 0.8, T = 599); the broken line is
that of Bui 2017, 3.8.1 (Q = 0.2, R = 0.05, T = 200). Chains are trained by natural gradients in closed form, what
follows f from their optimum by Adam on draws, by ``fit_series``; what is tempered from the optimum of α = 0. Bounds are
means of 400 draws each, of the objective itself at every α. "ahead" is the log density of an observation over the next
twenty steps, of twenty continuations of the true state, under draws of the fit's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
from scipy.special import logsumexp

from benchmarks.kinks import broken_line, scores_of_function, smooth_kink
from benchmarks.rows import append, done, numbers, read
from ppl_dgp.fit import fit_series
from ppl_dgp.fit.energy import drawn_energies
from ppl_dgp.fit.result import checked_data
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.models import gpssm
from ppl_dgp.objectives import ApproximatePowerEP, PowerEP
from ppl_dgp.prediction.forecast import forecast

CSV = Path("benchmarks/kink.csv")
RULES = {
    "mean field": MeanField(), "markov": Markov(), "coupled": Conditional(), "union": Conditional(markov=True),
    "doubly stochastic": DoublyStochastic(),
}  # fmt: skip
FIELDS = (
    "problem", "alpha", "series", "guide", "bound", "bound_error", "gap", "converged", "process", "observation", "rmse",
    "log_density", "ahead", "steps", "seconds",
)  # fmt: skip
#: variance of the observation noise, and its place in the file
LEVELS = {"smooth 0.008": 0, "smooth 0.08": 1, "smooth 0.8": 2}
PROBLEMS = (*LEVELS, "broken")
NUM_INDUCING, DRAWS, AHEAD = 20, 400, 20
#: of the thesis' energy, which is no bound
APPROXIMATE = "approximate, "


class Problem(NamedTuple):
    """A transition, its noises, states x_0 … and observations of x_1 …"""

    f: Callable[[Any], Any]
    process: float
    observation: float
    states: np.ndarray
    y: np.ndarray


def problem(name: str, series: int, data: Path) -> Problem:
    """One series of a problem."""
    if name == "broken":
        random, x = np.random.default_rng(series), [0.5]
        for _ in range(200):
            x.append(float(broken_line(x[-1])) + 0.2**0.5 * random.normal())
        states = np.array(x)
        return Problem(
            broken_line, 0.2, 0.05, states, states[1:, None] + 0.05**0.5 * random.normal(size=(200, 1))
        )
    with np.load(data / "sysid" / "kink.npz") as file:
        level = LEVELS[name]
        states, observed = file["x"][level, series], file["y"][level, series]
        return Problem(smooth_kink, 0.0025, float(file["noise_variance"][level]), states, observed[1:, None])


def learnt(given: Problem, guide_name: str, alpha: float, budget: int) -> dict[str, Any]:
    """A fit: its objective, how far it is from its optimum, both noises, f where the states were, and what comes."""
    y = given.y
    key, model = jax.random.key(0), gpssm(1, 1, NUM_INDUCING, emission="identity")
    approximate = guide_name.startswith(APPROXIMATE)
    rule = RULES[guide_name.removeprefix(APPROXIMATE)]
    guide = Guide(model, hidden=rule)
    closed = rule in (MeanField(), Markov())
    fit = fit_series(key, model, guide, CLOSED if closed else PowerEP(0.0), None, y, budget=budget)
    objective: Any = PowerEP(0.0)
    if alpha > 0.0:
        objective = ApproximatePowerEP(alpha, propagation="moments") if approximate else PowerEP(alpha)
        start, warm = fit.params, None if closed else 0
        fit = fit_series(key, model, guide, objective, None, y, budget=budget, start=start, warm_steps=warm)
    if approximate:
        bound = [-float(fit.losses[fit.best, -1])]
    else:
        drawn = drawn_energies(model, guide, objective, DRAWS)
        bound = drawn(jax.random.key(1), fit.params, *checked_data(None, y, model))
    rmse, log_density = scores_of_function(given.f, fit, y, given.states)
    return {
        "bound": float(np.mean(bound)), "bound_error": float(np.std(bound) / np.sqrt(DRAWS)), "gap": fit.gap,
        "converged": fit.converged, "process": float(np.mean(fit.params["transition/noise"])),
        "observation": float(np.mean(fit.params["likelihood/noise"])),
        "rmse": rmse, "log_density": log_density, "ahead": ahead(given, fit),
        "steps": fit.steps, "seconds": fit.seconds,
    }  # fmt: skip


def ahead(given: Problem, fit: Any) -> float:
    """Mean log density of the next observations, over continuations of the true state."""
    random, futures = np.random.default_rng(1), []
    state = np.full(20, given.states[len(given.y)])
    for _ in range(AHEAD):
        state = given.f(state) + given.process**0.5 * random.normal(size=20)
        futures.append(state + given.observation**0.5 * random.normal(size=20))
    drawn = forecast(jax.random.key(1), fit, None, given.y, AHEAD, num_samples=500).states[:, :, 0]
    noise = float(np.mean(fit.params["likelihood/noise"]))
    errors = np.asarray(futures) - drawn[:, :, None]
    each = -0.5 * np.log(2.0 * np.pi * noise) - 0.5 * np.square(errors) / noise
    return float((logsumexp(each, axis=0) - np.log(len(drawn))).mean())


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet."""
    known = done(CSV, FIELDS[:4])
    for name in options.problems.split(","):
        if name not in PROBLEMS:
            raise SystemExit(f"--problems: found {name!r}, expected of {', '.join(PROBLEMS)}")
        for number in numbers(options.series):
            for guide in options.guides.split(","):
                guide = guide.replace(":", ", ")
                row = {"problem": name, "alpha": options.alpha, "series": number, "guide": guide}
                if tuple(str(row[field]) for field in FIELDS[:4]) in known:
                    continue
                row |= learnt(problem(name, number, options.data), guide, options.alpha, options.budget)
                text = [
                    f"{row[field]:.6g}" if isinstance(row[field], float) else row[field] for field in FIELDS
                ]
                append(CSV, FIELDS, text)
                print(*text, flush=True)


def table() -> str:
    """Markdown: means over series, differences from the chain series by series with their standard errors."""
    rows = read(CSV)
    parts = dict.fromkeys((row["problem"], row["alpha"]) for row in rows)
    return "\n\n".join(
        part_of_table(*part, rows) for part in sorted(parts, key=lambda part: (part[1], part[0]))
    )


def part_of_table(name: str, alpha: str, rows: list[dict[str, str]]) -> str:
    """The rules on one problem, at one α."""
    rows = [row for row in rows if (row["problem"], row["alpha"]) == (name, alpha)]
    values = lambda guide, field: {
        row["series"]: float(row[field]) for row in rows if row["guide"] == guide and row[field]
    }
    columns = (
        "guide", "bound", "less that of markov", "Q", "R", "RMSE of f", "log density of f", "less that of markov",
        "20 steps ahead", "to gain", "converged",
    )  # fmt: skip
    lines = [f"**{name}**, α = {alpha}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]

    def paired(guide: str, field: str) -> str:
        ours, base = values(guide, field), values("markov", field)
        differences = np.asarray([ours[each] - base[each] for each in ours if each in base])
        if guide == "markov" or len(differences) < 2:
            return ""
        return f"{differences.mean():+.2f} ± {differences.std(ddof=1) / np.sqrt(len(differences)):.2f}"

    for guide in dict.fromkeys(row["guide"] for row in rows):
        of_guide = [row for row in rows if row["guide"] == guide]
        mean = lambda field, guide=guide: np.mean(list(values(guide, field).values()))
        cells = [
            guide, f"{mean('bound'):.1f}", "" if guide.startswith(APPROXIMATE) else paired(guide, "bound"),
            f"{mean('process'):.4f}", f"{mean('observation'):.4f}", f"{mean('rmse'):.4f}",
            f"{mean('log_density'):.2f}", paired(guide, "log_density"), f"{mean('ahead'):.2f}",
            f"{np.median(list(values(guide, 'gap').values())):.2g}",
            f"{sum(row['converged'] == 'True' for row in of_guide)} of {len(of_guide)}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run what is left, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--alpha", type=float, default=0.0)
    parser.add_argument("--series", default="0-4")
    parser.add_argument(
        "--guides", default=",".join(RULES), help='or "approximate:markov", for the energy of the thesis'
    )
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
