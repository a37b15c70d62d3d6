"""Models in 32 bits beside 64: rejected steps, and the test log density after the same steps.

    python -m benchmarks.precision --data DIR                     # every set and model that precision.csv lacks
    python -m benchmarks.precision --data DIR --sets boston --models sparse-gp --steps 200

DIR holds ``uci/<set>.npz`` (X, y, and the rows of each split, train and test); the first split is taken. Adam's rate
falls to 0 by a cosine, for at a constant rate the last steps of two seeds may be 20 % apart, more than bits ever are.
Fits of one seed start alike and see the same minibatches and the same draws, which are drawn in 32 bits for both.
Another seed in 64 bits, of two models, tells how much what is drawn matters.
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

from benchmarks import rows
from ppl_dgp import (
    Conditional,
    DoublyStochastic,
    Guide,
    MeanField,
    PowerEP,
    deep_gp,
    fit_svi,
    gplvm,
    sparse_gp_regression,
)
from ppl_dgp.models import (
    deep_gp_classification,
    deep_heteroscedastic_gp,
    latent_input_gp,
    sparse_heteroscedastic_gp,
)
from ppl_dgp.prediction.predict import predict

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
    "deep classification": (lambda size: deep_gp_classification(2, (3,), size), DoublyStochastic()),
    "latent input": (lambda size: latent_input_gp(1, (), size), MeanField()),
    "gplvm": (lambda columns: gplvm(columns, 2, 50), MeanField()),
}
#: also from another seed
RESEEDED = ("sparse-gp", "deep-gp")


def trained(path: Path, name: str, dtype: str, steps: int, seed: int) -> list[float]:
    """Rejected steps, and of the test rows the log density (nats a row, source units) and the RMSE.

    Labels are whether y is above its median, their density has no units; of a table's columns modelled together the
    bound of the rows trained on, nats a row in standardised units, is taken, and no RMSE.
    """
    found, (make, rule) = np.load(path), MODELS[name]
    train, test = found["train"][0], found["test"][0]
    x, y = found["X"].astype(float), found["y"].astype(float).reshape(len(found["X"]), -1)
    scale = np.where(x[train].std(0) > 0.0, x[train].std(0), 1.0)
    x, centre, unit = (x - x[train].mean(0)) / scale, y[train].mean(0), y[train].std(0)
    y = (y - centre) / unit
    labels, together = "classification" in name, name == "gplvm"
    if labels:
        y, unit = (y > np.median(y[train])).astype(np.int32), np.ones(1)
    if together:
        # a column that does not vary has no density
        x, y = np.zeros((len(x), 0)), np.column_stack([x[:, x[train].std(0) > 0.0], y])
    narrow = lambda a: a.astype(a.dtype if a.dtype == np.int32 else dtype)
    with jax.enable_x64(dtype == "float64"):
        key = jax.random.PRNGKey(seed)
        model = make(y.shape[1] if together else min(50, len(train)))
        guide = Guide(model, hidden=rule)
        batch = 500 if len(train) > 500 else None
        rate = optax.cosine_decay_schedule(0.01, steps)
        data = (None if together else narrow(x[train])), narrow(y[train])
        how = {"steps": steps, "batch_size": batch, "learning_rate": rate}
        fit = fit_svi(key, model, guide, PowerEP(0.0), *data, **how)
        if together:
            return [fit.rejected_steps, -float(np.mean(fit.losses[0, -100:])) / len(train), np.nan]
        about = narrow(x[test]), narrow(y[test])
        new = predict(key, fit, *about, num_samples=50)
    density = float(np.mean(new.log_density)) - float(np.log(unit).sum())
    if labels:
        return [fit.rejected_steps, density, np.nan]
    return [fit.rejected_steps, density, float(np.sqrt(np.mean(np.square((new.mean - about[1]) * unit))))]


def draw_alike() -> None:
    """Make JAX draw normal numbers in 32 bits whatever is asked for: in 64 the same key gives others."""
    draw = jax.random.normal

    def normal(key: Any, shape: Any = (), dtype: Any = float, **settings: Any) -> Any:
        return draw(key, shape, jnp.float32, **settings).astype(jnp.result_type(dtype))

    jax.random.normal = normal


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--models", default=";".join(MODELS), help="with semicolons between")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    draw_alike()
    done = rows.done(CSV, COLUMNS[:5])
    for model in options.models.split(";"):
        for name in options.sets.split(","):
            for dtype, seed in (("float64", 0), ("float32", 0), ("float64", 1))[
                : 3 if model in RESEEDED else 2
            ]:
                if (name, model, dtype, str(options.steps), str(seed)) in done:
                    continue
                started = time.perf_counter()
                row = trained(options.data / "uci" / f"{name}.npz", model, dtype, options.steps, seed)
                row = [name, model, dtype, options.steps, seed, *row, time.perf_counter() - started]
                rows.append(CSV, COLUMNS, row)
                print(*(f"{each:.4g}" if isinstance(each, float) else each for each in row), flush=True)


if __name__ == "__main__":
    main()
