"""The configurations that others have published for the sets of identification, under this library's objectives.

    python -m benchmarks.identification_published --data DIR --seeds 0-2    # appends what the CSV lacks
    python -m benchmarks.identification_published --table

DIR holds ``sysid/<set>.npz``. Four states, the first of which is observed, M = 20, identity mean, Z uniform on [−2, 2]
(of VCDT where the library begins). PR-SSM (Doerr et al. 2018, settings of their published code): one kernel for all
outputs, begun at lengthscales of 2 and a variance of ¼, a diagonal q(u) begun near zero, R = 1 and Q = 0.002², ten
windows of 50 steps under 50 particles, a point for each window's first state by a network of the rows around it, Adam
at 0.1 for 3 000 steps, a likelihood summed over particles, which is a KL[q(u)] that counts 1/50 of what it should (and
half of that where the batch is twice the series). EnVI (Lin et al. 2024, theirs): a kernel for each output, sequences
of 50 steps end to end, 50 members with perturbed observations, R = Q = 1, Adam at 0.005 for 600 steps, weight 1/50;
first states are those of p(x_0) and not a network's. VCDT (Ialongo et al. 2019, who report on none of these sets):
``Conditional()`` on the whole series after ``Markov()``, a kernel for each output, weight 1, Adam, as long as the bound
rises. Free simulation of the second half from the end of the first, RMSE in source units, log density per step in
standardised ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from benchmarks import rows
from benchmarks.identification import Halves, halves, simulated
from ppl_dgp import (
    Amortised,
    Conditional,
    EnsembleKalman,
    EnsembleSmoother,
    Fit,
    Guide,
    PowerEP,
    PRSSMSurrogate,
    WeightedKL,
    fit_series,
    gpssm,
)
from ppl_dgp.guides import Diagonal, PointEstimate

CSV = Path("benchmarks/identification-published.csv")
SETS = "actuator,ballbeam,drive,dryer"
FIELDS = (
    "method", "set", "seed", "rmse", "mean_rmse", "log_density", "mean_log_density", "coverage95", "loss", "noise",
    "process", "seconds",
)  # fmt: skip
STATES, INDUCING, LENGTH, WINDOWS, PARTICLES = 4, 20, 50, 10, 50
MODEL: dict[str, Any] = {"mean": "identity", "emission": "identity"}
#: a fit, and the controls and outputs that it was fitted to
Trained = tuple[Fit, tuple[np.ndarray, np.ndarray]]


def spread(seed: int, outputs: tuple[int, ...] = ()) -> np.ndarray:
    """Z, uniform on [−2, 2], of states and one control."""
    return np.random.default_rng(seed).uniform(-2.0, 2.0, (*outputs, INDUCING, STATES + 1))


def pr_ssm(seed: int, given: Halves) -> Trained:
    """Doerr et al."""
    u, y = known = given.u[given.train], given.y[given.train]
    model = gpssm(1, STATES, INDUCING, window=LENGTH, process_noise=0.002**2, **MODEL)
    latent = Amortised((16,), PointEstimate(), around=16)
    guide = Guide(model, hidden=PRSSMSurrogate(), latent=latent, inducing=Diagonal())
    batch = LENGTH * WINDOWS
    objective = WeightedKL(PowerEP(0.0, PARTICLES), len(y) / batch / PARTICLES)
    random = np.random.default_rng(seed)
    start = {
        "likelihood/noise": jnp.asarray(1.0),
        "transition/inducing": jnp.asarray(spread(seed)),
        "transition/lengthscale": jnp.full(STATES + 1, 2.0),
        "transition/variance": jnp.asarray(0.25),
        "transition/u_loc": jnp.asarray(0.1 * random.normal(size=(STATES, INDUCING))),
        "transition/u_scale": jnp.full((STATES, INDUCING), 0.02),
    }
    fit = fit_series(
        jax.random.key(seed), model, guide, objective, u, y, steps=3000, batch_size=batch, start=start,
        optimizer=optax.adam(0.1),
    )  # fmt: skip
    return fit, known


def envi(seed: int, given: Halves) -> Trained:
    """Lin et al."""
    last = given.train[-(len(given.train) // LENGTH) * LENGTH :]
    number = len(last) // LENGTH
    known = np.column_stack([given.u[last], np.repeat(np.arange(number), LENGTH)]), given.y[last]
    model = gpssm(1, STATES, INDUCING, separate=True, num_sequences=number, process_noise=1.0, **MODEL)
    objective = WeightedKL(EnsembleKalman(PARTICLES, "perturbed"), 1.0 / LENGTH)
    start = {
        "likelihood/noise": jnp.asarray(1.0),
        "transition/inducing": jnp.asarray(spread(seed, (STATES,))),
        "transition/u_loc": jnp.zeros((STATES, INDUCING)),
    }
    fit = fit_series(
        jax.random.key(seed), model, Guide(model, hidden=EnsembleSmoother()), objective, *known, steps=600,
        warm_steps=0, start=start, optimizer=optax.adam(0.005),
    )  # fmt: skip
    return fit, known


def vcdt(seed: int, given: Halves) -> Trained:
    """Ialongo et al."""
    known = given.u[given.train], given.y[given.train]
    model = gpssm(1, STATES, INDUCING, separate=True, **MODEL)
    guide = Guide(model, hidden=Conditional())
    fit = fit_series(jax.random.key(seed), model, guide, PowerEP(0.0), *known)
    return fit, known


METHODS: dict[str, Callable[[int, Halves], Trained]] = {"PR-SSM": pr_ssm, "EnVI": envi, "VCDT": vcdt}


def main() -> None:
    """Run what is not there yet, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        frame = pd.read_csv(CSV).groupby(["method", "set"], sort=False)
        print(frame.agg(["mean", "sem"]).round(3).to_string())
        return
    found = rows.done(CSV, FIELDS[:3])
    for seed in rows.numbers(options.seeds):
        for method in options.methods.split(","):
            for name in options.sets.split(","):
                if (method, name, str(seed)) in found:
                    continue
                given, since = halves(options.data / "sysid" / f"{name}.npz"), time.perf_counter()
                fit, known = METHODS[method](seed, given)
                seconds = time.perf_counter() - since
                # of several sequences the last one is gone on from
                begin = {"sequence": fit.model.num_sequences - 1} if fit.model.num_sequences > 1 else {}
                row = simulated(fit, known, given, given.test, **begin)
                row |= {"method": method, "set": name, "seed": seed, "seconds": seconds}
                rows.append_shown(CSV, FIELDS, row)


if __name__ == "__main__":
    main()
