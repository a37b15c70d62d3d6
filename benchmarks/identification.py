"""Free simulation of systems to identify, under one configuration: a GP emission, windows, recognised first states.

    python -m benchmarks.identification --data DIR --seeds 0-4    # appends what benchmarks/identification.csv lacks
    python -m benchmarks.identification --data DIR --choose        # the same to benchmarks/identification-chosen.csv
    python -m benchmarks.identification --table [--choose]

DIR holds ``sysid/<set>.npz``. Four states, linear in the mean, that begin at y and its earlier values; the model's own
transition (``DoublyStochastic``, one draw of u for a window: a bound); of several restarts the one with the best loss.
The second half is simulated from what q says of the end of the first; the validation record of the cascaded tanks does
not go on from there, and is simulated from a particle filter of its first twenty rows. RMSE in source units, log
density per step in standardised ones. With ``--choose`` three ways to train are compared by simulating the last fifth
of the first half, and the best is trained on all of it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pandas as pd

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from ppl_dgp import (  # noqa: E402
    Amortised,
    Candidate,
    DoublyStochastic,
    Guide,
    MeanField,
    PowerEP,
    PRSSMSurrogate,
    choose_by_simulation,
    gpssm,
)
from ppl_dgp.prediction.forecast import forecast  # noqa: E402

CSV = Path("benchmarks/identification.csv")
CHOSEN = Path("benchmarks/identification-chosen.csv")
SETS = "actuator,ballbeam,drive,dryer,tank,cascaded_tanks"
SEEN = 20
FIELDS = (
    "set", "seed", "steps", "restarts", "rmse", "mean_rmse", "log_density", "mean_log_density", "coverage95", "loss",
    "noise", "process", "seconds", "picked",
)  # fmt: skip
STATES, INDUCING, WINDOW, WINDOWS = 4, 20, 50, 10


def candidate(steps: int, restarts: int, outputs: int = 1, **changed: Any) -> Candidate:
    """A way to train for a number of steps; ``changed`` are settings of the model, or the guide's ``hidden`` rule."""
    hidden = changed.pop("hidden", DoublyStochastic())
    settings: dict[str, Any] = {"mean": "linear", "emission": "gp", "window": WINDOW, "process_noise": 1e-4}
    model = gpssm(outputs, STATES, INDUCING, **{**settings, **changed})
    guide = Guide(model, hidden=hidden, latent=Amortised((32,), MeanField(), around=8))
    falling = optax.adam(optax.cosine_decay_schedule(0.05, steps, 0.02))
    training: dict[str, Any] = {"batch_size": WINDOW * WINDOWS, "optimizer": falling, "warm_steps": 0}
    return Candidate(model, guide, PowerEP(0.0), training | {"steps": steps, "restarts": restarts})


def candidates(steps: int, restarts: int, outputs: int) -> dict[str, Candidate]:
    """Those that are chosen among: how much of the states is known at the start, what is observed of them."""
    return {
        "gp emission": candidate(steps, restarts, outputs),
        "gp emission, linear start": candidate(steps // 3, 1, outputs, start="linear"),
        "first state observed": candidate(
            steps // 3, 1, outputs, start="linear", emission="identity", hidden=PRSSMSurrogate()
        ),
    }


def identified(path: Path, seed: int, steps: int, restarts: int, choose: bool) -> dict[str, Any]:
    """A fit to the first half, and what its simulation of the second is worth."""
    data = np.load(path)
    train, test = data["train"], data["test"]
    columns = [data[name].reshape(len(data[name]), -1).astype(float) for name in ("u", "y")]
    scale = columns[1][train].std(0)
    u, y = ((each - each[train].mean(0)) / each[train].std(0) for each in columns)
    key, since, picked = jax.random.key(seed), time.perf_counter(), "gp emission"
    if choose:
        choice = choose_by_simulation(key, candidates(steps, restarts, y.shape[1]), u[train], y[train])
        fit, picked = choice.fit, choice.best.candidate
    else:
        fit = candidate(steps, restarts, y.shape[1]).trained(key, u[train], y[train], steps, {})
    seconds = time.perf_counter() - since
    begin: dict[str, Any] = {}
    if path.stem == "cascaded_tanks":
        seen, test = test[:SEEN], test[SEEN:]
        begin = {"sequence": None, "seen": (jnp.asarray(u[seen]), jnp.asarray(y[seen]))}
    found = forecast(
        jax.random.key(1), fit, jnp.asarray(u[train]), jnp.asarray(y[train]), jnp.asarray(u[test]),
        y_future=jnp.asarray(y[test]), function="independent", **begin,
    )  # fmt: skip
    assert found.log_density is not None
    low, high = np.quantile(found.samples, (0.025, 0.975), axis=0)
    # the first half is standardised: its mean is 0 and its variance 1
    return {
        "rmse": float(np.sqrt(np.square((found.mean - y[test]) * scale).mean())),
        "mean_rmse": float(np.sqrt(np.square(y[test] * scale).mean())),
        "log_density": float(found.log_density.mean()),
        "mean_log_density": float((-0.5 * np.square(y[test]) - 0.5 * np.log(2.0 * np.pi)).mean()),
        "coverage95": float(((low <= y[test]) & (y[test] <= high)).mean()),
        "loss": float(fit.losses[fit.best, -100:].mean()),
        "noise": float(np.mean(fit.params["likelihood/noise"])),
        "process": float(np.mean(fit.params["transition/noise"])),
        "seconds": seconds, "picked": picked,
    }  # fmt: skip


def main() -> None:
    """Run what is not there yet, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_args()
    options.out = options.out or (CHOSEN if options.choose else CSV)
    if options.table:
        frame = pd.read_csv(options.out)
        print(
            frame.drop(columns="picked").groupby("set", sort=False).agg(["mean", "sem"]).round(3).to_string()
        )
        return
    found = rows.done(options.out, FIELDS[:2])
    for seed in rows.numbers(options.seeds):
        for name in options.sets.split(","):
            if (name, str(seed)) in found:
                continue
            restarts = options.restarts
            path = options.data / "sysid" / f"{name}.npz"
            row = identified(path, seed, options.steps, restarts, options.choose)
            row |= {"set": name, "seed": seed, "steps": options.steps, "restarts": restarts}
            rows.append(options.out, FIELDS, [row[field] for field in FIELDS])
            print(*(f"{field}={row[field]}" for field in FIELDS), flush=True)


if __name__ == "__main__":
    main()
