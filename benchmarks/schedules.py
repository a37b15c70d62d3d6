"""Which learning rates: the losses that schedules of Adam's rate end at, on the twelve problems of ``benchmarks.gap``.

    python -m benchmarks.schedules --data DIR --steps 3500 --seeds 2 --out benchmarks/schedules.csv
    python -m benchmarks.schedules --data DIR --bits 32 --seeds 1 --out benchmarks/schedules-32.csv

A row is appended for each fit, and fits that have rows are not made again. Prints, for every schedule, how many nats
its fits end above the best of their problem and seed: the median, the mean and the worst.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

from benchmarks.gap import problems
from benchmarks.rows import append, done, read
from ppl_dgp.fit import fit_svi

FIELDS = ("problem", "seed", "schedule", "steps", "loss", "rejected", "seconds")


def ramped(peak: float, steps: int, share: float) -> optax.Schedule:
    """A linear rise from a hundredth of the peak in a share of the steps, then half a cosine back to it."""
    return optax.warmup_cosine_decay_schedule(0.01 * peak, peak, int(share * steps), steps, 0.01 * peak)


def cycles(peak: float, steps: int, share: float) -> Callable[[jax.Array], jax.Array]:
    """Three of them, each twice as long."""
    first = steps // 7
    lengths = np.array([first, 2 * first, steps - 3 * first])
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    each = [ramped(peak, int(length), share) for length in lengths]

    def rate(step: jax.Array) -> jax.Array:
        number = jnp.sum(step >= begins[1:])
        values = jnp.stack([one(step - begin) for one, begin in zip(each, begins, strict=True)])
        return values[number]

    return rate


def schedules(steps: int) -> dict[str, optax.Schedule]:
    """By name."""
    return {
        "0.01": lambda step: jnp.asarray(0.01),
        "cosine, 0.03": ramped(0.03, steps, 0.0),
        "cosine, 0.1": ramped(0.1, steps, 0.0),
        "ramp ¼, 0.03": ramped(0.03, steps, 0.25),
        "ramp ¼, 0.1": ramped(0.1, steps, 0.25),
        "ramp ¼, 0.3": ramped(0.3, steps, 0.25),
        "ramp ½, 0.1": ramped(0.1, steps, 0.5),
        "cycles, 0.1": cycles(0.1, steps, 0.0),
        "cycles, ramps ¼, 0.1": cycles(0.1, steps, 0.25),
    }


def main() -> int:
    """Run the fits that are left and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--bits", type=int, choices=(32, 64), default=64)
    parser.add_argument("--only", help="schedules, by name, separated by semicolons")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/schedules.csv"))
    options = parser.parse_args()
    numpyro.enable_x64(options.bits == 64)
    known = done(options.out, ["problem", "seed", "schedule"])
    for seed in range(options.seeds):
        for name, make in problems(options.data).items():
            for schedule, rate in schedules(options.steps).items():
                if options.only and schedule not in options.only.split(";"):
                    continue
                if (name, str(seed), schedule) in known:
                    continue
                began = time.perf_counter()
                fit = fit_svi(
                    jax.random.PRNGKey(seed), **make(), steps=options.steps, learning_rate=rate, tolerance=1.0
                )
                loss = float(np.nanmean(fit.losses[0, -max(100, options.steps // 20) :]))
                row = [name, seed, schedule, options.steps, f"{loss:.6g}", fit.rejected_steps]
                append(options.out, FIELDS, [*row, f"{time.perf_counter() - began:.1f}"])
    rows = read(options.out)
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["problem"], row["seed"]
        best[key] = min(best.get(key, np.inf), float(row["loss"]))
    for schedule in schedules(options.steps):
        above = [float(r["loss"]) - best[r["problem"], r["seed"]] for r in rows if r["schedule"] == schedule]
        if above:
            print(
                f"{schedule:<22} {np.median(above):8.2f} {np.mean(above):8.2f} {max(above):8.2f}  of {len(above)}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
