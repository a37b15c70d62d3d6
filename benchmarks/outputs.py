"""Do outputs know of each other? Entries that were held out, by mixed outputs and by functions of one output each.

    python -m benchmarks.outputs --data DIR --splits 0-9      # appends what the CSV lacks
    python -m benchmarks.outputs --table

DIR holds ``latent/robot_wireless.npz`` (signal strengths of 30 access points at places of a floor, of which a robot saw
some at each) and ``latent/guo_qpcr.npz`` (48 genes of 437 cells). Outputs of the first are functions of the place; of
the second, of the eight genes that vary most, the twenty next. Held out are a fifth of the entries, "scattered", or of
the first, whose rows have an order, of every output a run of a fifth of its rows, along the first input, "in runs".
``mixed`` is ``multi_output_gp`` with Q functions of kernels of their own, ``independent`` the same with W = I, so a
function for each output, all with one kernel; M = 50, a noise for each output; 1 500 steps of Adam, then natural L-BFGS
until it converges. Errors and log densities are of standardised entries.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

import pandas as pd  # noqa: E402

from benchmarks import rows  # noqa: E402
from ppl_dgp import Guide, PowerEP, fit_lbfgs, fit_svi, multi_output_gp  # noqa: E402

CSV = Path("benchmarks/outputs.csv")
FIELDS = (
    "set", "held_out", "split", "model", "rmse", "log_density", "coverage95", "elbo", "gap", "converged", "steps",
    "seconds",
)  # fmt: skip
INDUCING, SHARE, LATENTS, INPUT_GENES, OUTPUT_GENES = 50, 0.2, 6, 8, 20
#: of Adam, before at most so many of L-BFGS
STEPS, RATE, MOST = 1500, 0.05, 12_000
#: how entries of a set are held out
HOWS = {"robot": ("scattered", "in runs"), "qpcr": ("scattered",)}
#: rows below which an output says nothing of itself
FEWEST = 20


def table(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (N, D) and outputs (N, P), NaN where nothing was seen."""
    if name == "robot":
        file = np.load(data / "latent" / "robot_wireless.npz")
        y = np.where(file["observed"], file["Y"], np.nan)
        x = file["position"]
    else:
        file = np.load(data / "latent" / "guo_qpcr.npz")
        order = np.argsort(-file["Y"].var(0))
        genes = file["Y"][:, order[: INPUT_GENES + OUTPUT_GENES]]
        x, y = genes[:, :INPUT_GENES], genes[:, INPUT_GENES:]
    y = y[:, (~np.isnan(y)).sum(0) >= FEWEST]
    return (x - x.mean(0)) / x.std(0), y


def held_out(x: np.ndarray, y: np.ndarray, how: str, split: int) -> np.ndarray:
    """Which of the entries that were seen are held out (N, P)."""
    random, seen = np.random.default_rng(split), ~np.isnan(y)
    if how == "scattered":
        return seen & (random.uniform(size=y.shape) < SHARE)
    chosen = np.zeros_like(seen)
    for column in range(y.shape[1]):
        there = np.flatnonzero(seen[:, column])
        there = there[np.argsort(x[there, 0], kind="stable")]
        count = int(SHARE * len(there))
        begin = random.integers(0, len(there) - count + 1)
        chosen[there[begin : begin + count], column] = True
    return chosen


def fitted(name: str, how: str, split: int, model_name: str, data: Path) -> dict[str, Any]:
    """One row."""
    x, y = table(data, name)
    test = held_out(x, y, how, split)
    known = np.where(test, np.nan, y)
    centre, spread = np.nanmean(known, 0), np.nanstd(known, 0)
    known, truth = (known - centre) / spread, (y - centre) / spread
    outputs = y.shape[1]
    if model_name == "mixed":
        model = multi_output_gp(outputs, LATENTS, INDUCING, separate=True)
    else:
        model = multi_output_gp(outputs, outputs, INDUCING, weights=np.eye(outputs))
    since = time.perf_counter()
    guide, key = Guide(model), jax.random.key(split)
    near = fit_svi(key, model, guide, PowerEP(0.0), x, known, steps=STEPS, learning_rate=RATE)
    settings = {"guide": guide, "objective": PowerEP(0.0), "natural": True, "start": near.params}
    fit = fit_lbfgs(key, model, x, known, budget=MOST, **settings)
    seconds = time.perf_counter() - since
    found = fit.predict(jax.random.key(1), x)
    mean, variance = np.asarray(found.mean)[test], np.asarray(found.variance)[test]
    error = truth[test] - mean
    density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * np.square(error) / variance
    return {
        "set": name, "held_out": how, "split": split, "model": model_name, "rmse": np.sqrt(np.mean(error**2)),
        "log_density": density.mean(), "coverage95": np.mean(np.abs(error) < 1.96 * np.sqrt(variance)),
        "elbo": -fit.losses[fit.best, -1], "gap": fit.gap, "converged": fit.converged,
        "steps": fit.steps, "seconds": seconds,
    }  # fmt: skip


def shown() -> None:
    """The table: means over the splits, and paired differences."""
    if not CSV.exists():
        raise SystemExit(f"{CSV}: found none, expected rows; run the benchmark first")
    frame = pd.read_csv(CSV)
    measures = ["rmse", "log_density", "coverage95", "elbo", "gap", "converged", "seconds"]
    print(frame.groupby(["set", "held_out", "model"], sort=False)[measures].mean().round(3).to_string())
    wide = frame.pivot_table(
        index=["set", "held_out", "split"], columns="model", values=["rmse", "log_density"]
    )
    for measure in ("rmse", "log_density"):
        gain = (wide[measure, "mixed"] - wide[measure, "independent"]).groupby(["set", "held_out"])
        print(
            measure,
            "mixed less independent",
            gain.agg(["mean", "sem", "count"]).round(4).to_string(),
            sep="\n",
        )


def main() -> None:
    """Run what is not there yet, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="robot,qpcr")
    parser.add_argument("--splits", default="0-9")
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return shown()
    found = rows.done(options.out, FIELDS[:4])
    for split in rows.numbers(options.splits):
        for name in options.sets.split(","):
            for how in HOWS[name]:
                for model in ("mixed", "independent"):
                    if (name, how, str(split), model) not in found:
                        rows.append_shown(options.out, FIELDS, fitted(name, how, split, model, options.data))


if __name__ == "__main__":
    main()
