"""How far ``fit.gap`` is from what going on gains: fits of twelve kinds, each watched to the end of its cycles.

    python -m benchmarks.gap --data DIR --budget 25600 --seeds 3 --out benchmarks/gap.csv

DIR holds ``uci``, ``classification``, ``latent`` and ``sysid``. A fit goes on to the end of its budget; at the end of
every cycle but the last two its gap, by the losses up to there, is set beside what the next two cycles gained, four
times the steps. A row is appended for each such end, and fits that have rows are not made again. Prints how many of the
ends that are called converged gained no more than their gap and two standard errors.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

from benchmarks.rows import append, done, read
from ppl_dgp import models
from ppl_dgp.fit import fit_svi
from ppl_dgp.fit.annealing import AutoSteps
from ppl_dgp.fit.convergence import checked_tolerance
from ppl_dgp.fit.plan import plan_of
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


def ends(name: str, seed: int, settings: dict[str, Any], budget: int) -> list[list[object]]:
    """The rows of a fit."""
    began = time.perf_counter()
    tolerance = checked_tolerance(None, len(settings["y"]))
    fit = fit_svi(jax.random.PRNGKey(seed), **settings, steps="auto", tolerance=1e-12, budget=budget)
    seconds, losses = time.perf_counter() - began, fit.losses[0]
    plan = plan_of("auto", budget, tolerance, None, None, 100, len(settings["y"]))
    assert isinstance(plan, AutoSteps)
    cycles = plan.ends(len(losses))[len(plan.peaks) :]
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


def main() -> int:
    """Run the fits that are left and print what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--budget", type=int, default=25_600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gap.csv"))
    options = parser.parse_args()
    numpyro.enable_x64()
    known = done(options.out, ["problem", "seed"])
    for seed in range(options.seeds):
        for name, make in problems(options.data).items():
            if (name, str(seed)) in known:
                continue
            for row in ends(name, seed, make(), options.budget):
                append(options.out, FIELDS, row)
            print(name, seed, flush=True)
    called = [row for row in read(options.out) if row["converged"] == "True"]
    within = [
        float(row["gained"])
        <= float(row["gap"]) + 2.0 * float(np.hypot(float(row["error"]), float(row["gained_error"])))
        for row in called
    ]
    print(
        f"{len(called)} ends called converged, {sum(within)} gained no more than their gap and two standard errors"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
