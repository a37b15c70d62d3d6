"""Deep GPs on the standard regression tables as in Salimbeni & Deisenroth (2017), all splits of a set in one program.

    python -m benchmarks.uci --data DIR --sets energy,boston --depths 2,3 --splits 0-4 --steps 2000
    python -m benchmarks.uci --data DIR --sets kin8nm --depths 1,2,3,4,5 --splits all --objective power-ep --alpha 0.5
    python -m benchmarks.uci throughput --data DIR   # splits together against one after another
    python -m benchmarks.uci page                    # docs/uci.md from the CSVs

DIR holds ``uci/<set>.npz`` with arrays X, y and the splits' row indices train and test. Rows are appended to uci.csv as
programs end, and what it holds is not done again. M = 100 a layer, hidden width min(30, D), RBF-ARD from lengthscales
and variances of 1, Adam at 0.01, batches of min(--batch, N) rows, 100 draws of the hidden layers to predict.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from benchmarks import rows
from benchmarks.uci_page import CSV, THROUGHPUT, page
from ppl_dgp.data import Standardiser, Table, load_table, split
from ppl_dgp.diagnostics import held_out_scores
from ppl_dgp.fit import Fit, fit_many, fit_svi
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.models import deep_gp
from ppl_dgp.objectives import PowerEP

FIELDS = [
    "set", "split", "depth", "objective", "alpha", "particles", "steps", "batch", "bits", "bound", "test_log_density",
    "rmse", "rejected_steps", "together", "seconds_each",
]  # fmt: skip
KEYS = FIELDS[:9]
SPEED = [
    "set",
    "depth",
    "bits",
    "device",
    "steps",
    "together",
    "fits_per_hour",
    "fits_per_hour_alone",
    "ratio",
]


class Work:
    """The fits of a set at one depth."""

    def __init__(self, table: Table, depth: int, options: argparse.Namespace) -> None:
        self.table = table
        alpha = 0.0 if options.objective == "dsvi" else options.alpha
        self.objective = PowerEP(alpha, num_particles=options.particles)
        train = len(split(table, 0)[0])
        inputs = table.X.shape[1]
        self.model = deep_gp((min(30, inputs),) * (depth - 1), min(100, train))
        self.guide = Guide(self.model, DoublyStochastic())
        # all rows are at hand where a batch would hold as many
        self.settings = {
            "steps": options.steps,
            "batch_size": options.batch if options.batch < train else None,
        }

    @cache  # noqa: B019  a work lives as long as its splits
    def rows(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Standardised by the training rows: x, y, then x, y held out, and what y was divided by."""
        train, test = split(self.table, number)
        inputs, targets = (Standardiser.fit(values[train]) for values in (self.table.X, self.table.y))
        x, y = inputs.transform(self.table.X), targets.transform(self.table.y)
        return x[train], y[train], x[test], y[test], targets.scale

    def together(self, numbers: Sequence[int]) -> list[Fit]:
        """The fits of some splits in one program."""
        about = self.model, self.guide, self.objective
        xs, ys = ([self.rows(number)[place] for number in numbers] for place in (0, 1))
        return fit_many(keys(numbers), *about, xs, ys, **self.settings)

    def alone(self, number: int) -> Fit:
        """The fit of a split by itself."""
        about = self.model, self.guide, self.objective
        return fit_svi(keys([number])[0], *about, *self.rows(number)[:2], **self.settings)

    def measured(self, number: int, fit: Fit) -> list[str]:
        """The columns of the CSV from ``bound`` to ``rmse``: log density and RMSE in the units of y."""
        _, _, x, y, scale = self.rows(number)
        found = held_out_scores(jax.random.key(1), fit, x, y, num_samples=100, target_scale=scale)
        bound = -np.nanmean(fit.losses[0, -100:])
        return [f"{value:.6g}" for value in (bound, found["test_log_density"], found["test_rmse"])]


def keys(numbers: Sequence[int]) -> jax.Array:
    """A key for each split, whichever others are trained beside it."""
    return jnp.stack([jax.random.key(number) for number in numbers])


def run(options: argparse.Namespace) -> None:
    """Train what the CSV does not hold yet."""
    bits = 64 if options.float64 else 32
    objective = options.objective
    alpha = 0.0 if objective == "dsvi" else options.alpha
    for name in options.sets.split(","):
        table = load_table(str(options.data / "uci" / f"{name}.npz"))
        for depth in map(int, options.depths.split(",")):
            work = Work(table, depth, options)
            done = rows.done(CSV, KEYS)

            about = objective, alpha, work.objective.num_particles, options.steps, options.batch, bits
            keyed = {number: (name, number, depth, *about) for number in splits_of(options.splits, table)}
            wanted = [number for number, key in keyed.items() if tuple(map(str, key)) not in done]
            size = options.together or len(wanted)
            for begin in range(0, len(wanted), size or 1):
                group = wanted[begin : begin + size]
                fits = work.together(group)
                for number, fit in zip(group, fits, strict=True):
                    last = fit.rejected_steps, len(group), f"{fit.seconds / len(group):.4g}"
                    row = [*keyed[number], *work.measured(number, fit), *last]
                    rows.append(CSV, FIELDS, row)
                    print(*row, flush=True)


def splits_of(text: str, table: Table) -> list[int]:
    """The splits that ``all``, ``0-4`` or ``0,3,5`` names."""
    return list(range(table.num_splits)) if text == "all" else rows.numbers(text)


def throughput(options: argparse.Namespace) -> None:
    """Fits per hour of splits together and one after another, once all is compiled; in turns, so that drift cancels."""
    size = options.together or 5
    for name in options.sets.split(","):
        table = load_table(str(options.data / "uci" / f"{name}.npz"))
        for depth in map(int, options.depths.split(",")):
            work = Work(table, depth, options)
            several = list(range(size))
            each: dict[str, Callable[[], Any]] = {
                "together": lambda: work.together(several),  # noqa: B023  called before the next turn
                "alone": lambda: [work.alone(number) for number in several],  # noqa: B023
            }
            work.settings["steps"], steps = 2, options.steps
            for fits in each.values():
                fits()
            work.settings["steps"] = steps
            found: dict[str, list[float]] = {way: [] for way in each}
            for _ in range(options.rounds):
                for way, fits in each.items():
                    before = time.perf_counter()
                    fits()
                    found[way].append(3600.0 * size / (time.perf_counter() - before))
            ratio = float(np.median(np.array(found["together"]) / np.array(found["alone"])))
            hourly = [float(np.median(found[way])) for way in each]
            device = f"{jax.devices()[0].device_kind} × {jax.device_count()}"
            about = [name, depth, 64 if options.float64 else 32, device, steps, size]
            row = [*about, *(f"{value:.4g}" for value in (*hourly, ratio))]
            rows.append(THROUGHPUT, SPEED, row)
            print(*row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default="run", choices=["run", "throughput", "page"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="energy")
    parser.add_argument("--depths", default="2", help="layers; 1 is a sparse GP")
    parser.add_argument("--splits", default="all", help="all, 0-4, or 0,3,5")
    parser.add_argument("--objective", choices=["dsvi", "power-ep"], default="dsvi")
    parser.add_argument("--alpha", type=float, default=0.5, help="of power-ep")
    parser.add_argument(
        "--particles", type=int, help="draws of the hidden layers in training: 1 for dsvi, else 8"
    )
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--together", type=int, help="splits in a program; all that are wanted if not given")
    parser.add_argument("--rounds", type=int, default=3, help="of throughput")
    parser.add_argument("--float32", dest="float64", action="store_false")
    options = parser.parse_args()
    if options.task != "page" and options.data is None:
        parser.error("--data: found none, expected the folder that holds uci/<set>.npz")
    if options.float64:
        numpyro.enable_x64()
    {"run": run, "throughput": throughput, "page": page}[options.task](options)


if __name__ == "__main__":
    main()
