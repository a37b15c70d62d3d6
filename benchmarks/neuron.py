"""Hodgkin-Huxley's neuron under currents that were not trained on: simulated 100 steps ahead, several seeds.

    python -m benchmarks.neuron run --seeds 0-2     # appends what benchmarks/neuron.csv lacks, draws docs/neuron-*.png
    python -m benchmarks.neuron table

V, m, h and n, observed with a deviation of 0.05 of their own every 0.4 ms, 500 steps under two pulses and a ramp of
current; then a pulse of another height, and a falling ramp, of which nothing but the current is known. The four states
are what is observed, each with a kernel and inducing inputs of its own: ``Markov()`` in closed form until it converges,
and ``Conditional()`` from its optimum. A seed is one of the noise. Errors are of the states without noise, in units of
the training part; densities (of all four, a step) and bands are of rows to come with the noise that there was.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from benchmarks.hodgkin_huxley import NOISE, TRAINED, UNSEEN, records  # noqa: E402
from ppl_dgp import Conditional, Fit, Guide, Markov, PowerEP, fit_series, gpssm  # noqa: E402
from ppl_dgp.diagnostics import plot_series  # noqa: E402
from ppl_dgp.fit.result import checked_data, last_losses  # noqa: E402
from ppl_dgp.fit.series import CLOSED  # noqa: E402
from ppl_dgp.guides.following import following_start  # noqa: E402
from ppl_dgp.prediction.forecast import forecast  # noqa: E402

CSV, DOCS = Path("benchmarks/neuron.csv"), Path("docs")
FIELDS = (
    "seed",
    "guide",
    "current",
    "rmse",
    "log_density",
    "inside_2sd",
    "bound",
    "gap",
    "converged",
    "steps",
    "seconds",
)
INDUCING = 50


def fits(seed: int, u: np.ndarray, y: np.ndarray, budget: int) -> Iterator[tuple[str, Fit]]:
    """``Markov()``, and ``Conditional()`` from its optimum."""
    model = gpssm(4, 4, INDUCING, emission="identity", separate=True, process_noise=1e-3)
    key = jax.random.key(seed)
    chain, following = Guide(model, hidden=Markov()), Guide(model, hidden=Conditional())
    first = fit_series(key, model, chain, CLOSED, u, y)
    yield "markov", first
    start = following_start(chain, following, first.params, *checked_data(u, y, model))
    yield "coupled", fit_series(key, model, following, PowerEP(0.0), u, y, start=start, budget=budget)


def drawn(name: str, seen: np.ndarray, ahead: Any, future: np.ndarray) -> None:
    """A figure of all four."""
    figure, axes = plt.subplots(4, 1, figsize=(8, 7), sharex=True, constrained_layout=True)
    for column, axis in enumerate(axes):
        plot_series(seen, ahead, future, column=column, shown=100, label="Vmhn"[column], axes=axis)
    figure.savefig(DOCS / f"neuron-{name}.png", dpi=100)
    plt.close(figure)


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet."""
    found, data = rows.done(CSV, FIELDS[:1]), records()
    for seed in rows.numbers(options.seeds):
        if (str(seed),) in found:
            continue
        random, lines = np.random.default_rng(seed), []
        u, y = data.u["step"][:TRAINED], data.y["step"][:TRAINED]
        seen, since = y + NOISE * random.normal(size=y.shape), time.perf_counter()
        for guide, fit in fits(seed, u, seen, options.budget):
            seconds = time.perf_counter() - since
            for name in UNSEEN:
                future = data.y[name][TRAINED:]
                came = future + NOISE * random.normal(size=future.shape)
                ahead = forecast(
                    jax.random.key(1), fit, u, seen, data.u[name][TRAINED:], y_future=came, function="path",
                    num_samples=200,
                )  # fmt: skip
                assert ahead.log_density is not None
                inside = float(np.mean(abs(came - ahead.mean) < 2.0 * np.sqrt(ahead.variance)))
                error = float(np.sqrt(np.mean(np.square(ahead.mean - future))))
                bound = -float(last_losses(fit.losses)[fit.best])
                lines.append(
                    [seed, guide, name, error, float(ahead.log_density.mean()), inside, bound, fit.gap, fit.converged,
                     fit.steps, seconds]
                )  # fmt: skip
                print(*lines[-1], flush=True)
                if seed == 0 and guide == "coupled":
                    drawn(name, seen, ahead, future)
        for line in lines:
            rows.append(CSV, FIELDS, line)


def table(_: argparse.Namespace) -> None:
    """Means over seeds and their standard errors."""
    frame = pd.read_csv(CSV).groupby(["guide", "current"], sort=False)
    columns = ["rmse", "log_density", "inside_2sd", "bound", "gap", "seconds"]
    print(frame[columns].agg(["mean", "sem"]).round(3).to_string())
    print(frame["converged"].sum())


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    each = commands.add_parser("run", help=run.__doc__)
    each.add_argument("--seeds", default="0-2")
    each.add_argument("--budget", type=int, default=10000)
    each.set_defaults(does=run)
    commands.add_parser("table", help=table.__doc__).set_defaults(does=table)
    options = parser.parse_args()
    options.does(options)


if __name__ == "__main__":
    main()
