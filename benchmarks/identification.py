"""Free simulation of systems to identify, under one configuration: a GP emission, windows, recognised first states.

    python -m benchmarks.identification --data DIR --seeds 0-4    # appends what benchmarks/identification.csv lacks
    python -m benchmarks.identification --data DIR --choose        # the same to benchmarks/identification-chosen.csv
    python -m benchmarks.identification --table [--choose]

DIR holds ``sysid/<set>.npz``. Four states, linear in the mean, that begin at y and its earlier values; the model's own
transition (``DoublyStochastic``, one draw of u for a window: a bound); of several restarts the one with the best loss.
The second half is simulated from what q says of the end of the first; the validation record of the cascaded tanks does
not go on from there, and is simulated from a particle filter of its first twenty rows. RMSE in source units, log
density per step in standardised ones. With ``--choose`` five ways to train are compared by simulating the last fifth of
the first half, and the best is trained on all of it: the one above; the same at a fifth of the rate, by directions of
gradients; from the states of a linear model; from those of a subspace method, on windows of a fifth of the record (200
steps at most) and at a tenth of the rate, so that what is begun at is kept; and the first state observed, from a linear
model. The simulations of seed 0 are drawn to docs/identification-<set>.png.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
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
    Fit,
    Guide,
    MeanField,
    PowerEP,
    PRSSMSurrogate,
    choose_by_simulation,
    gpssm,
)
from ppl_dgp.diagnostics import plot_series  # noqa: E402
from ppl_dgp.guides import HiddenRule  # noqa: E402
from ppl_dgp.prediction.forecast import forecast  # noqa: E402

CSV = Path("benchmarks/identification.csv")
CHOSEN = Path("benchmarks/identification-chosen.csv")
DOCS = Path("docs")
SETS = "actuator,ballbeam,drive,dryer,tank,cascaded_tanks"
SEEN = 20
FIELDS = (
    "set", "seed", "steps", "restarts", "rmse", "mean_rmse", "log_density", "mean_log_density", "coverage95", "loss",
    "noise", "process", "seconds", "picked",
)  # fmt: skip
STATES, INDUCING, WINDOW, WINDOWS = 4, 20, 50, 10
OWN_TRANSITION = DoublyStochastic()


def candidate(
    steps: int,
    restarts: int,
    outputs: int = 1,
    *,
    hidden: HiddenRule = OWN_TRANSITION,
    windows: int = WINDOWS,
    rate: float = 0.05,
    directions: bool = False,
    **changed: Any,
) -> Candidate:
    """A way to train, ``windows`` at a step, at a rate that falls; ``changed`` are settings of the model.

    With ``directions`` a gradient counts by its direction alone, however far a window has run away.
    """
    settings: dict[str, Any] = {"mean": "linear", "emission": "gp", "window": WINDOW, "process_noise": 1e-4}
    settings |= changed
    model = gpssm(outputs, STATES, INDUCING, **settings)
    guide = Guide(model, hidden=hidden, latent=Amortised((32,), MeanField(), around=8))
    falling = optax.adam(optax.cosine_decay_schedule(rate, steps, 0.02))
    if directions:
        falling = optax.chain(optax.normalize_by_update_norm(), falling)
    training = {"batch_size": settings["window"] * windows, "optimizer": falling, "warm_steps": 0}
    return Candidate(model, guide, PowerEP(0.0), training | {"steps": steps, "restarts": restarts})


def candidates(steps: int, restarts: int, outputs: int, rows: int) -> dict[str, Candidate]:
    """Those that are chosen among: how much of the states is known at the start, what is observed of them."""
    begun: dict[str, Any] = {"start": "subspace", "window": min(rows // 5, 200), "windows": 3, "rate": 0.005}
    return {
        "gp emission": candidate(steps, restarts, outputs),
        "gp emission, slowly": candidate(steps, restarts, outputs, rate=0.01, directions=True),
        "gp emission, linear start": candidate(steps // 3, 1, outputs, start="linear"),
        "gp emission, subspace start": candidate(steps // 2, 1, outputs, **begun),
        "first state observed": candidate(
            steps // 3, 1, outputs, start="linear", emission="identity", hidden=PRSSMSurrogate()
        ),
    }


class Halves(NamedTuple):
    """Controls and outputs standardised by the first half, rows of both halves, and deviations of the outputs."""

    u: np.ndarray
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    scale: np.ndarray


def halves(path: Path) -> Halves:
    """A set of identification."""
    data = np.load(path)
    columns = [data[name].reshape(len(data[name]), -1).astype(float) for name in ("u", "y")]
    train = data["train"]
    u, y = ((each - each[train].mean(0)) / each[train].std(0) for each in columns)
    return Halves(u, y, train, data["test"], columns[1][train].std(0))


def simulated(
    fit: Fit,
    known: tuple[np.ndarray, np.ndarray],
    given: Halves,
    rows: np.ndarray,
    figure: Path | None = None,
    **begin: Any,
) -> dict[str, float]:
    """What a fit's free simulation of some rows is worth; ``known`` are the controls and outputs of its training."""
    u, y = given.u[rows], given.y[rows]
    found = forecast(
        jax.random.key(1), fit, *map(jnp.asarray, known), jnp.asarray(u), y_future=jnp.asarray(y),
        function="independent", **begin,
    )  # fmt: skip
    assert found.log_density is not None
    if figure is not None:
        shown, axes = plt.subplots(figsize=(9.0, 2.8), constrained_layout=True)
        plot_series(known[1], found, y, levels=(0.5, 0.95), shown=50, axes=axes)
        shown.savefig(figure, dpi=100)
        plt.close(shown)
    low, high = np.quantile(found.samples, (0.025, 0.975), axis=0)
    # the first half is standardised: its mean is 0 and its variance 1
    return {
        "rmse": float(np.sqrt(np.square((found.mean - y) * given.scale).mean())),
        "mean_rmse": float(np.sqrt(np.square(y * given.scale).mean())),
        "log_density": float(found.log_density.mean()),
        "mean_log_density": float((-0.5 * np.square(y) - 0.5 * np.log(2.0 * np.pi)).mean()),
        "coverage95": float(((low <= y) & (y <= high)).mean()),
        "loss": float(fit.losses[fit.best, -100:].mean()),
        "noise": float(np.mean(fit.params["likelihood/noise"])),
        "process": float(np.mean(fit.params["transition/noise"])),
    }


def identified(path: Path, seed: int, steps: int, restarts: int, choose: bool) -> dict[str, Any]:
    """A fit to the first half, and what its simulation of the second is worth."""
    given = halves(path)
    known, test = (given.u[given.train], given.y[given.train]), given.test
    outputs, key, since, picked = given.y.shape[1], jax.random.key(seed), time.perf_counter(), "gp emission"
    if choose:
        choice = choose_by_simulation(key, candidates(steps, restarts, outputs, len(known[0])), *known)
        fit, picked = choice.fit, choice.best.candidate
    else:
        fit = candidate(steps, restarts, outputs).trained(key, *known, steps, {})
    seconds = time.perf_counter() - since
    begin: dict[str, Any] = {}
    if path.stem == "cascaded_tanks":
        seen, test = test[:SEEN], test[SEEN:]
        begin = {"sequence": None, "seen": (jnp.asarray(given.u[seen]), jnp.asarray(given.y[seen]))}
    figure = DOCS / f"identification-{path.stem}.png" if choose and seed == 0 else None
    return simulated(fit, known, given, test, figure, **begin) | {"seconds": seconds, "picked": picked}


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
            rows.append_shown(options.out, FIELDS, row)


if __name__ == "__main__":
    main()
