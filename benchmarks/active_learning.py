"""Samples that a transition's f takes to be learnt: controls chosen by expected information, and at random.

    python -m benchmarks.active_learning run --systems kink,pendulum --seeds 0-4   # appends what the CSV does not hold
    python -m benchmarks.active_learning table

A record begins with twenty steps under random controls; then ten at a time are added, under the sequence of 64 random
ones that ``expected_information`` prefers, or the first of them, and the model is fitted anew (``Markov()`` in closed
form, until it converges; from the usual start and from the last fit, the better of both). Both begin alike, and are
offered sequences of the same kind. The error of f is taken at the states and controls of a long record of random
controls. Controls are held for one or for five steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import numpyro

from benchmarks.kinks import smooth_kink
from benchmarks.rows import append, done, numbers, read
from ppl_dgp.fit import Fit, fit_series
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Guide, Markov
from ppl_dgp.models import gpssm
from ppl_dgp.prediction.exploration import expected_information
from ppl_dgp.prediction.forecast import transition_moments

CSV = Path("benchmarks/active_learning.csv")
FIELDS = ("system", "seed", "controls", "rows", "rmse", "log_density", "converged", "seconds")
METHODS = ("random", "informative")
FIRST, ADDED, LAST, CANDIDATES, TESTED = 20, 10, 100, 64, 400


@dataclass(frozen=True)
class System:
    """A step x_t = f(x_{t−1}, c_t) + ε, where it begins, how far controls go, and deviations of both noises."""

    step: Callable[[np.ndarray, np.ndarray], np.ndarray]
    start: np.ndarray
    reach: float
    process: float
    observation: float


def swung(x: np.ndarray, control: np.ndarray) -> np.ndarray:
    """A damped pendulum after a tenth of a second, its angle over 2 and its speed over 4."""
    angle, speed = 2.0 * x[..., 0], 4.0 * x[..., 1]
    for _ in range(5):
        speed = speed + 0.02 * (-9.8 * np.sin(angle) - 0.3 * speed + control[..., 0])
        angle = angle + 0.02 * speed
    return np.stack([angle / 2.0, speed / 4.0], -1)


SYSTEMS = {
    "kink": System(lambda x, control: smooth_kink(x) + control, np.zeros(1), 0.5, 0.05, 0.1),
    # never pushed over the top, where angles would go where no record has been
    "pendulum": System(swung, np.zeros(2), 6.0, 0.01, 0.03),
}


def controls(random: np.random.Generator, reach: float, steps: int) -> np.ndarray:
    """Random ones, each held for one step or for five."""
    held = random.choice([1, 5])
    return np.repeat(random.uniform(-reach, reach, -(-steps // held)), held)[:steps, None]


def moved(system: System, random: np.random.Generator, state: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The states under controls, after the first."""
    states = []
    for control in given:
        state = system.step(state, control) + system.process * random.normal(size=state.shape)
        states.append(state)
    return np.asarray(states)


def fits(
    key: jax.Array, model: gpssm, guide: Guide, given: np.ndarray, y: np.ndarray, values: dict[str, Any]
) -> Iterator[Fit]:
    """One from the usual start, and one from what was learnt of fewer rows, where there is such."""
    yield fit_series(key, model, guide, CLOSED, given, y)
    if values:
        yield fit_series(key, model, guide, CLOSED, given, y, start=values)


def learnt(system: System, seed: int, method: str) -> Iterator[list[Any]]:
    """After each fit rows, errors of f, and seconds."""
    random, choosing = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    far = np.random.default_rng(2000)
    tried = np.concatenate([controls(far, system.reach, 10) for _ in range(200)])
    places = moved(system, far, system.start, tried)
    test = slice(None, None, len(tried) // TESTED)
    at, beside = places[:-1][test], tried[1:][test]
    truth = system.step(at, beside)

    seen = lambda states: states + system.observation * random.normal(size=states.shape)
    given = controls(random, system.reach, FIRST)
    states = moved(system, random, system.start, given)
    y, width = seen(states), len(system.start)
    model = gpssm(width, width, 20, emission="identity")
    guide, values = Guide(model, hidden=Markov()), dict[str, Any]()
    while True:
        began = perf_counter()
        fit = min(
            fits(jax.random.key(seed), model, guide, given, y, values), key=lambda fit: fit.losses[0, -1]
        )
        values = {name: value for name, value in fit.params.items() if not name.startswith("x")}
        mean, variance = map(np.asarray, transition_moments(fit, given, y, at, beside))
        density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * np.square(truth - mean) / variance
        rmse = float(np.sqrt(np.square(truth - mean).mean()))
        yield [
            len(y),
            f"{rmse:.5g}",
            f"{density.sum(1).mean():.5g}",
            fit.converged,
            f"{perf_counter() - began:.1f}",
        ]
        if len(y) >= LAST:
            return
        offered = np.stack([controls(choosing, system.reach, ADDED) for _ in range(CANDIDATES)])
        best = 0
        if method == "informative":
            best = expected_information(jax.random.key(len(y)), fit, given, y, offered).best
        onward = moved(system, random, states[-1], offered[best])
        given, states = np.concatenate([given, offered[best]]), np.concatenate([states, onward])
        y = np.concatenate([y, seen(onward)])


def run(options: argparse.Namespace) -> None:
    """What the CSV does not hold yet."""
    known = done(CSV, ["system", "seed", "controls"])
    for name in options.systems.split(","):
        for seed in numbers(options.seeds):
            for method in METHODS:
                if (name, str(seed), method) in known:
                    continue
                for row in list(learnt(SYSTEMS[name], seed, method)):
                    append(CSV, FIELDS, [name, seed, method, *row])
                    print(name, seed, method, *row, flush=True)


def table(_: argparse.Namespace) -> None:
    """Markdown: the error of f by rows, both ways, and its difference seed by seed."""
    rows = read(CSV)
    print("| system | rows | random: RMSE of f | informative | less, seed by seed |")
    print("|---" * 5 + "|")
    for name in dict.fromkeys(row["system"] for row in rows):
        for size in dict.fromkeys(row["rows"] for row in rows if row["system"] == name):
            of_size = [row for row in rows if (row["system"], row["rows"]) == (name, size)]
            by_method = [
                {row["seed"]: float(row["rmse"]) for row in of_size if row["controls"] == way}
                for way in METHODS
            ]
            both = sorted(by_method[0].keys() & by_method[1].keys())
            values = np.array([[each[seed] for seed in both] for each in by_method])
            less = values[1] - values[0]
            error = less.std(ddof=1) / np.sqrt(len(less)) if len(less) > 1 else np.nan
            means = " | ".join(f"{each:.4f}" for each in values.mean(1))
            print(f"| {name} | {size} | {means} | {less.mean():+.4f} ± {error:.4f} |")


def main() -> int:
    """Run the benchmark or print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--systems", default=",".join(SYSTEMS))
    runner.add_argument("--seeds", default="0-4")
    runner.set_defaults(main=run)
    commands.add_parser("table").set_defaults(main=table)
    options = parser.parse_args()
    numpyro.enable_x64()
    options.main(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
