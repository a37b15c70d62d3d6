"""Models in 32 bits beside 64: rejected steps, and the test log density after the same steps.

    python benchmarks/precision.py --data DIR                     # every set and model that precision.csv lacks
    python benchmarks/precision.py --data DIR --sets boston --models sparse-gp --steps 200

DIR holds ``uci/<set>.npz`` (X, y, and the rows of each split, train and test); the first split is taken. Adam's rate
falls to 0 by a cosine, for at a constant rate the last steps of two seeds may be 20 % apart, more than bits ever are.
Fits of one seed start alike and see the same minibatches, but draws are others in 32 bits: a second seed tells what
draws do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import rows

from ppl_dgp import Conditional, DoublyStochastic, Guide, PowerEP, deep_gp, fit_svi, sparse_gp_regression
from ppl_dgp.models import deep_heteroscedastic_gp, sparse_heteroscedastic_gp
from ppl_dgp.predict import predict

CSV = Path(__file__).parent / "precision.csv"
COLUMNS = ["set", "model", "dtype", "steps", "seed", "rejected", "log_density", "rmse", "seconds"]
SETS = ("boston", "energy", "kin8nm", "naval", "protein", "wine_red", "yacht")
#: a model of so many inducing points, and the rule of its hidden layers
MODELS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "sparse-gp": (sparse_gp_regression, DoublyStochastic()),
    "deep-gp": (lambda size: deep_gp((3,), size), DoublyStochastic()),
    "deep-gp, coupled": (lambda size: deep_gp((3,), size), Conditional()),
    "sparse heteroscedastic": (sparse_heteroscedastic_gp, DoublyStochastic()),
    "deep heteroscedastic": (lambda size: deep_heteroscedastic_gp((3,), size), DoublyStochastic()),
}


def trained(path: Path, name: str, dtype: str, steps: int, seed: int) -> list[float]:
    """Rejected steps, and of the test rows the log density (nats a row, source units) and the RMSE."""
    found, (make, rule) = np.load(path), MODELS[name]
    train, test = found["train"][0], found["test"][0]
    x, y = found["X"].astype(float), found["y"].astype(float).reshape(len(found["X"]), -1)
    scale = np.where(x[train].std(0) > 0.0, x[train].std(0), 1.0)
    x, centre, unit = (x - x[train].mean(0)) / scale, y[train].mean(0), y[train].std(0)
    y = (y - centre) / unit
    with jax.enable_x64(dtype == "float64"):
        key, model = jax.random.PRNGKey(seed), make(min(50, len(train)))
        guide = Guide(model, hidden=rule)
        batch = 500 if len(train) > 500 else None
        data = x[train].astype(dtype), y[train].astype(dtype)
        rate = optax.cosine_decay_schedule(0.01, steps)
        fit = fit_svi(
            key, model, guide, PowerEP(0.0), *data, steps=steps, batch_size=batch, learning_rate=rate
        )
        about = x[test].astype(dtype), y[test].astype(dtype)
        new = predict(key, model, guide, fit.params, *about, num_samples=50)
    density = float(np.mean(new.log_density)) - float(np.log(unit).sum())
    return [fit.rejected_steps, density, float(np.sqrt(np.mean(np.square((new.mean - about[1]) * unit))))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--models", default=";".join(MODELS), help="with semicolons between")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    done = rows.done(CSV, COLUMNS[:5])
    for model in options.models.split(";"):
        for name in options.sets.split(","):
            for dtype, seed in (("float64", 0), ("float32", 0), ("float64", 1)):
                if (name, model, dtype, str(options.steps), str(seed)) in done:
                    continue
                started = time.perf_counter()
                row = trained(options.data / "uci" / f"{name}.npz", model, dtype, options.steps, seed)
                row = [name, model, dtype, options.steps, seed, *row, time.perf_counter() - started]
                rows.append(CSV, COLUMNS, row)
                print(*(f"{each:.4g}" if isinstance(each, float) else each for each in row), flush=True)


if __name__ == "__main__":
    main()
