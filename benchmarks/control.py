"""The mountain car: dynamics learnt from 300 random steps, controls planned under draws of them.

    python -m benchmarks.control run --seeds 0-19     # appends what the CSV does not hold
    python -m benchmarks.control page                 # the table, and docs/mountain-car.png of one seed

The car of Moore (1990) with continuous controls: its engine is too weak for the hill, so that it has to swing.
Position and speed are seen without noise. Random controls, each held for ten steps, from rest near the valley's
floor, reach the goal on some seeds, and begin anew then; from 300 of them ``gpssm`` is fitted (``Markov()`` in closed
form, until it converges), then from rest again ``plan_controls`` plans 120 steps ahead after every ten, under ten
draws of f. An episode has 300 steps.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from benchmarks.rows import append, done, numbers, read
from ppl_dgp.fit import fit_series
from ppl_dgp.fit.series import CLOSED
from ppl_dgp.guides import Guide, Markov
from ppl_dgp.models import gpssm
from ppl_dgp.prediction.planning import plan_controls

CSV, FIGURE = Path("benchmarks/control.csv"), Path("docs/mountain-car.png")
FIELDS = ("seed", "controls", "reached", "steps", "furthest", "converged", "seconds")
GOAL, EPISODE, RECORD, HELD, AHEAD = 0.45, 300, 300, 10, 120


def step(state: np.ndarray, control: float) -> np.ndarray:
    """Position and speed after a step."""
    speed = np.clip(state[1] + 0.0015 * control - 0.0025 * np.cos(3.0 * state[0]), -0.07, 0.07)
    position = np.clip(state[0] + speed, -1.2, 0.6)
    return np.array([position, 0.0 if position <= -1.2 and speed < 0.0 else speed])


def driven(state: np.ndarray, controls: np.ndarray) -> np.ndarray:
    """States after each control, up to the goal."""
    states = []
    for control in np.ravel(controls):
        state = step(state, float(control))
        states.append(state)
        if state[0] >= GOAL:
            break
    return np.array(states)


def at_rest(random: np.random.Generator) -> np.ndarray:
    """Near the valley's floor."""
    return np.array([random.uniform(-0.6, -0.4), 0.0])


def random_controls(random: np.random.Generator, steps: int) -> np.ndarray:
    """Each held for ten steps."""
    return np.repeat(random.uniform(-1.0, 1.0, steps // HELD), HELD)[:, None]


def short_of(goal: float) -> Any:
    """How far the furthest position of a path is from the goal, and a little of how long it takes."""

    def cost(outputs: jax.Array, controls: jax.Array) -> jax.Array:
        missing = jnp.maximum(goal - outputs[:, 0], 0.0)
        return missing.min() + 0.1 * (missing > 0.0).mean()

    return cost


def episode(seed: int) -> dict[str, Any]:
    """A record of random controls, what is learnt of it, and the drive that is planned by it."""
    random = np.random.default_rng(seed)
    controls, begin = random_controls(random, RECORD), at_rest(random)
    record = driven(begin, controls)
    # who reaches the goal by chance begins a new sequence at rest
    lengths = [len(record)]
    while len(record) < RECORD:
        more = driven(at_rest(random), controls[len(record) :])
        record, lengths = np.concatenate([record, more]), [*lengths, len(more)]
    centre, scale = record.mean(0), record.std(0)
    several = len(lengths) > 1
    sequence = np.repeat(np.arange(len(lengths)), lengths)[:, None]
    x = jnp.asarray(np.concatenate([controls, sequence], 1) if several else controls)
    y = jnp.asarray((record - centre) / scale)
    since = perf_counter()
    model = gpssm(
        2,
        num_inducing=40,
        mean="linear",
        start="linear",
        emission="identity",
        noise=1e-4,
        num_sequences=len(lengths),
    )
    fit = fit_series(jax.random.key(seed), model, Guide(model, hidden=Markov()), CLOSED, x, y)
    cost = short_of(float((GOAL - centre[0]) / scale[0]))
    state, path, start = at_rest(random), [], None
    begun = state
    while len(path) < EPISODE and (not path or path[-1][0] < GOAL):
        plan = plan_controls(
            jax.random.key(len(path)), fit, x, y, cost, AHEAD, (-1.0, 1.0), state=(state - centre) / scale,
            start=start, hold=HELD,
        )  # fmt: skip
        new = driven(state, plan.controls[:HELD])
        path += list(new)
        state = new[-1]
        start = np.concatenate([plan.controls[HELD:], np.zeros((HELD, 1))])
    seconds = perf_counter() - since
    by_chance = driven(begun, random_controls(random, EPISODE))
    return {
        "planned": np.array(path), "random": by_chance, "record": record, "converged": fit.converged,
        "seconds": seconds, "begun": begun,
    }  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Rows that are not there yet."""
    there = done(args.out, ("seed",))
    for seed in numbers(args.seeds):
        if (str(seed),) in there:
            continue
        found = episode(seed)
        for name in ("random", "planned"):
            path = found[name]
            reached = bool(path[-1, 0] >= GOAL)
            row = (
                seed, name, reached, len(path), f"{path[:, 0].max():.3f}",
                found["converged"] if name == "planned" else "",
                f"{found['seconds']:.0f}" if name == "planned" else "",
            )  # fmt: skip
            append(args.out, FIELDS, row)
            print(*row, flush=True)


def page(args: argparse.Namespace) -> None:
    """The table, and one drive in the plane of position and speed."""
    rows = read(args.out)
    print("| controls | goal reached | steps, where it was | furthest position |\n|---|---|---|---|")
    for name in ("random", "planned"):
        mine = [row for row in rows if row["controls"] == name]
        reached = [int(row["steps"]) for row in mine if row["reached"] == "True"]
        furthest = np.array([float(row["furthest"]) for row in mine])
        steps = f"{np.mean(reached):.0f} ({min(reached)} to {max(reached)})" if reached else ""
        print(f"| {name} | {len(reached)} of {len(mine)} | {steps} | {furthest.mean():.2f} |")
    from matplotlib import pyplot as plt

    found = episode(args.seed)
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    record, planned = found["record"], np.vstack([found["begun"], found["planned"]])
    axes[0].plot(*record.T, ".", color="0.6", markersize=3, label="random, 300 steps")
    axes[0].plot(*planned.T, "-o", color="C0", markersize=2, label=f"planned, {len(planned) - 1} steps")
    axes[0].axvline(GOAL, color="C3", linewidth=1, label="goal")
    axes[0].set(xlabel="position", ylabel="speed")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    axes[1].plot(np.arange(len(record)), record[:, 0], color="0.6")
    axes[1].plot(np.arange(len(planned)), planned[:, 0], color="C0")
    axes[1].axhline(GOAL, color="C3", linewidth=1)
    axes[1].set(xlabel="step", ylabel="position")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    runner = parts.add_parser("run")
    runner.add_argument("--seeds", default="0-19")
    pager = parts.add_parser("page")
    pager.add_argument("--seed", type=int, default=0, help="of the figure")
    for each in (runner, pager):
        each.add_argument("--out", type=Path, default=CSV)
    args = parser.parse_args()
    numpyro.enable_x64()
    (run if args.part == "run" else page)(args)


if __name__ == "__main__":
    sys.exit(main())
