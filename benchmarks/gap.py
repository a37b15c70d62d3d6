"""How far ``fit.gap`` is from what going on gains: fits of many kinds, each watched to the end of its cycles.

    python -m benchmarks.gap --data DIR --budget 25600 --seeds 3
    python -m benchmarks.gap --only small --budget 54400 --seeds 13     # sets of 60 rows, which converge
    python -m benchmarks.gap --only closed --seeds 13 --out benchmarks/gap-closed.csv   # the same rows, by fit_table
    python -m benchmarks.gap --table

DIR holds ``uci``, ``classification``, ``latent`` and ``sysid``. A fit goes on to the end of its budget; at the end of
every cycle but the last two its gap, by the losses up to there, is set beside what the next two cycles gained, four
times the steps. A row is appended for each such end, and fits that have rows are not made again. Descents without draws
are compared with five times as many iterations. Prints how many ends that are called converged gained no more than
their gap and two standard errors.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

from benchmarks.rows import append, done, read
from ppl_dgp import models
from ppl_dgp.data import load_table, split
from ppl_dgp.fit import fit_svi
from ppl_dgp.fit.annealing import AutoSteps
from ppl_dgp.fit.convergence import checked_tolerance
from ppl_dgp.fit.shallow import planned
from ppl_dgp.fit.table import fit_table
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.objectives import PowerEP

FIELDS = (
    "problem", "seed", "steps", "loss", "gap", "error", "tolerance", "converged", "gained", "gained_error", "seconds",
)  # fmt: skip
SHIFT = 2  # cycles later, at four times the steps


def standardised(array: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1."""
    spread = array.std(0)
    return (array - array.mean(0)) / np.where(spread > 0.0, spread, 1.0)


def table(data: Path, name: str, rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """The first training rows of the first split of a table."""
    with np.load(data / "uci" / f"{name}.npz") as file:
        x, y = file["X"], file["y"].reshape(len(file["X"]), -1)
    order = np.random.default_rng(0).permutation(len(x))[:rows]
    return standardised(x[order].astype(float)), standardised(y[order].astype(float))


def labels(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a set of classes."""
    with np.load(data / "classification" / f"{name}.npz") as file:
        x, y = file["X"], np.ravel(file["y"])
    return standardised(x.astype(float)), np.unique(y, return_inverse=True)[1][:, None]


def kink(steps: int = 150) -> np.ndarray:
    """A series of the smooth kink, its noise 0.08."""
    rng = np.random.default_rng(0)
    x, y = 0.5, []
    for _ in range(steps):
        x = 0.8 + (x + 0.2) * (1.0 - 5.0 / (1.0 + np.exp(-2.0 * x))) + 0.05 * rng.normal()
        y.append(x + np.sqrt(0.08) * rng.normal())
    return np.asarray(y)[:, None]


def problems(data: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """What ``fit_svi`` is called with, key and steps apart."""

    def of(
        model: Any, x: Any, y: Any, rule: Any = None, alpha: float = 0.0, **settings: Any
    ) -> dict[str, Any]:
        guide = Guide(model) if rule is None else Guide(model, hidden=rule)
        return {"model": model, "guide": guide, "objective": PowerEP(alpha), "x": x, "y": y} | settings

    boston, energy, yacht = (lambda name=name: table(data, name) for name in ("boston", "energy", "yacht"))
    return {
        "sparse, boston": lambda: of(models.sparse_gp_regression(30), *boston()),
        "sparse, Student's t, boston": lambda: of(
            models.sparse_gp_regression(30, likelihood="student-t"), *boston()
        ),
        "sparse, minibatches, energy": lambda: of(models.sparse_gp_regression(30), *energy(), batch_size=100),
        "deep, yacht": lambda: of(models.deep_gp((3,), 30), *yacht(), DoublyStochastic()),
        "deep, boston": lambda: of(models.deep_gp((3,), 30), *boston(), DoublyStochastic()),
        "deep, minibatches, energy": lambda: of(
            models.deep_gp((3,), 30), *energy(), DoublyStochastic(), batch_size=100
        ),
        "deep, α = ½, yacht": lambda: of(models.deep_gp((3,), 30), *yacht(), DoublyStochastic(), 0.5),
        "deep, mean field, yacht": lambda: of(models.deep_gp((2,), 20), *yacht(), MeanField()),
        "deep, conditional, yacht": lambda: of(models.deep_gp((2,), 20), *yacht(), Conditional()),
        "classes, crabs": lambda: of(
            models.sparse_gp_classification(2, num_inducing=20), *labels(data, "crabs")
        ),
        "latent, oil": lambda: of(
            models.gplvm(12, latent=4, num_inducing=20),
            None,
            standardised(np.load(data / "latent" / "oil_flow.npz")["Y"].astype(float)[::10]),
            MeanField(),
        ),
        "chain, kink": lambda: of(models.gpssm(1, num_inducing=15), None, kink(), Markov()),
    }


def small() -> dict[str, Callable[[int], dict[str, Any]]]:
    """What ``fit_svi`` is called with for a seed of the data, 60 rows, key and steps apart."""

    def rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
        found = load_table(name, seed=seed)
        chosen = split(found, 0)[0][:60]
        return standardised(found.X[chosen]), standardised(found.y[chosen])

    def of(name: str, model: Any, seed: int, rule: Any = None) -> dict[str, Any]:
        x, y = rows(name, seed)
        guide = Guide(model) if rule is None else Guide(model, hidden=rule)
        return {"model": model, "guide": guide, "objective": PowerEP(0.0), "x": x, "y": y}

    sparse, deep = models.sparse_gp_regression(10), models.deep_gp((1,), 10)
    robust = models.sparse_gp_regression(10, likelihood="student-t")
    return {
        f"{name}, {label}": partial(of, name, model, rule=rule)
        for name in ("step", "sinusoids")
        for label, model, rule in (
            ("sparse", sparse, None), ("Student's t", robust, None), ("doubly stochastic", deep, DoublyStochastic()),
            ("coupled", deep, Conditional()),
        )
    }  # fmt: skip


def closed() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Of the same sets what ``fit_table`` trains without draws."""
    given = {name: make for name, make in small().items() if name.endswith(", sparse")}

    def mean_field(seed: int, like: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        model = models.deep_gp((1,), 10)
        return like(seed) | {"model": model, "guide": Guide(model, hidden=MeanField())}

    fields = {
        name.replace("sparse", "mean field"): partial(mean_field, like=make) for name, make in given.items()
    }
    return given | fields


def descent(name: str, seed: int, settings: dict[str, Any]) -> list[list[object]]:
    """The row of a fit that ``fit_table`` ends by itself, beside five times its iterations."""
    began, key = time.perf_counter(), jax.random.PRNGKey(seed)
    fit = fit_table(key, **settings)
    onward = fit_table(key, **settings, tolerance=1e-12, budget=5 * fit.steps)
    loss, seconds = fit.losses[0, -1], time.perf_counter() - began
    numbers = [loss, fit.gap, 0.0, checked_tolerance(None, len(settings["y"]))]
    measured = [f"{each:.6g}" for each in numbers]
    gained = f"{loss - onward.losses[0, -1]:.4g}"
    return [[name, seed, fit.steps, *measured, fit.converged, gained, "0", f"{seconds:.1f}"]]


def ends(name: str, seed: int, settings: dict[str, Any], budget: int) -> list[list[object]]:
    """The rows of a fit."""
    began = time.perf_counter()
    tolerance = checked_tolerance(None, len(settings["y"]))
    fit = fit_svi(jax.random.PRNGKey(seed), **settings, steps="auto", tolerance=1e-12, budget=budget)
    seconds, losses = time.perf_counter() - began, fit.losses[0]
    of_fit = settings["model"], settings["guide"], [(settings["x"], settings["y"])], None
    plan, _ = planned(*of_fit, "auto", budget, tolerance, None, None, 100, len(settings["y"]))
    assert isinstance(plan, AutoSteps)
    cycles = plan.ends(len(losses))[len(plan.trials) :]
    found = [plan.convergence(losses[:end]) for end in cycles]
    ended = [next(phase for phase in reversed(each.phases) if phase.kept) for each in found]
    rows: list[list[object]] = []
    for number, now in enumerate(found[: len(found) - SHIFT]):
        before, after = ended[number], ended[number + SHIFT]
        numbers = [before.loss, now.gap, now.error, now.tolerance]
        gained, error = before.loss - after.loss, float(np.hypot(before.error, after.error))
        rows.append(
            [name, seed, cycles[number], *(f"{each:.6g}" for each in numbers), now.converged]
            + [f"{gained:.4g}", f"{error:.3g}", f"{seconds:.1f}"]
        )
    return rows


def calibration(path: Path) -> str:
    """Markdown: of the ends of each kind how many are called converged, and how many of these gained too much."""
    rows = read(path)
    columns = (
        "problem",
        "ends",
        "called converged",
        "of these within the gap",
        "gap, median",
        "gained, median",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    every = [row for row in rows if row["converged"] == "True"]
    for name in (*dict.fromkeys(row["problem"] for row in rows), "all"):
        of_name = rows if name == "all" else [row for row in rows if row["problem"] == name]
        called = [row for row in of_name if row in every]
        middle = lambda field, of_name=of_name: np.median([float(row[field]) for row in of_name])
        cells = [
            name,
            len(of_name),
            len(called),
            sum(map(_within, called)),
            f"{middle('gap'):.2g}",
            f"{middle('gained'):.2g}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _within(row: dict[str, str]) -> bool:
    """Whether four times the steps gained no more than the gap and two standard errors."""
    noise = 2.0 * np.hypot(float(row["error"]), float(row["gained_error"]))
    return float(row["gained"]) <= float(row["gap"]) + noise


def main() -> int:
    """Run the fits that are left and print what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", choices=("twelve", "small", "closed"), default="twelve")
    parser.add_argument("--budget", type=int, default=25_600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gap.csv"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    numpyro.enable_x64()
    if not options.table:
        if options.only == "twelve" and options.data is None:
            parser.error(
                "--data: found none, expected the directory that holds uci, classification and latent"
            )
        known = done(options.out, ["problem", "seed"])
        made: dict[str, Any] = {"small": small, "closed": closed}.get(
            options.only, partial(problems, options.data)
        )()
        for seed in range(options.seeds):
            for name, make in made.items():
                if (name, str(seed)) in known:
                    continue
                settings = make() if options.only == "twelve" else make(seed)
                found = (
                    descent(name, seed, settings)
                    if options.only == "closed"
                    else ends(name, seed, settings, options.budget)
                )
                for row in found:
                    append(options.out, FIELDS, row)
                print(name, seed, flush=True)
    print(calibration(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
