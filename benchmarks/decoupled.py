"""Decoupled q(u) beside a full-rank one: what a step costs, and what a mean of many inducing inputs is worth.

    python -m benchmarks.decoupled cost --dtype float32             # milliseconds of a training step, by M
    python -m benchmarks.decoupled optima --data DIR                 # every rule's best q(u) at one sparse GP's values
    python -m benchmarks.decoupled fits --data DIR --steps 3000      # a sparse GP of kin8nm on minibatches

DIR holds ``uci/<set>.npz`` (X, y, and the rows of each split, train and test); the first split is taken. Rows are added
to decoupled-cost.csv, decoupled-optima.csv and decoupled-fits.csv. A step's time is the least of several, by the clock
and of all threads together, for others may use the machine too.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import numpyro
import optax
from numpyro.infer import SVI

from benchmarks import rows
from ppl_dgp import (
    Collapsed,
    Decoupled,
    FullRank,
    Guide,
    Optimal,
    Posterior,
    PowerEP,
    energy,
    fit_lbfgs,
    fit_svi,
    optimal_inducing,
    predict,
    sparse_gp_regression,
)
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.models.inducing import initial_inducing
from ppl_dgp.numerics.gaussian import Gaussian

HERE = Path(__file__).parent
COST = ["device", "dtype", "outputs", "inducing", "rule", "ms", "cpu_ms"]
FITS = [
    "set",
    "dtype",
    "rule",
    "inducing",
    "steps",
    "bound",
    "rmse",
    "log_density",
    "gap",
    "converged",
    "seconds",
]
OPTIMA = ["set", "rule", "inducing", "bound", "rmse", "log_density"]
BATCH = 1000
#: covariances of a hundred inducing inputs, and of all
RULES = {
    "full-rank": FullRank(),
    "decoupled": Decoupled(100),
    "decoupled, weights": Decoupled(100, "weights"),
    "decoupled, diagonal": Decoupled(100, "diagonal"),
    "SOLVE-GP": Decoupled(100, "full"),
}
#: that of the fits: a rule and its inducing inputs
FITTED = [
    ("full-rank", 100),
    ("decoupled, weights", 1100),
    ("decoupled", 1100),
    ("decoupled, diagonal", 1100),
]


def cost(options: argparse.Namespace) -> None:
    """A step of Adam for a thousand rows of eight columns."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4 * BATCH, 8))
    for outputs, size in ((1, 100), (1, 1000), (8, 1000), (1, 2000)):
        y = random.normal(size=(len(x), outputs))
        inducing = random.normal(size=(size, 8))
        model = sparse_gp_regression(size, num_outputs=outputs, inducing=inducing)
        for name, rule in RULES.items():
            if size > 100 or name == "full-rank":
                svi = SVI(model, Guide(model, inducing=rule), numpyro.optim.Adam(0.01), PowerEP(0.0))
                spent = step_seconds(svi, jax.numpy.asarray(x), jax.numpy.asarray(y), options.repeats)
                shown = [f"{1e3 * seconds:.1f}" for seconds in spent]
                row = [jax.local_devices()[0].device_kind, options.dtype, outputs, size, name, *shown]
                rows.append_shown(HERE / "decoupled-cost.csv", COST, dict(zip(COST, row, strict=True)))


def step_seconds(svi: SVI, x: jax.Array, y: jax.Array, repeats: int) -> tuple[float, float]:
    """The least that a compiled step took, by the clock and of processors' time."""
    state = svi.init(jax.random.key(0), x, y)
    index = jax.numpy.arange(BATCH)
    step = jax.jit(lambda state: svi.update(state, x[:BATCH], y[:BATCH], index=index, size=len(x)))
    state, _ = jax.block_until_ready(step(state))
    spent = []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        state, loss = jax.block_until_ready(step(state))
        spent.append((time.perf_counter() - started, time.process_time() - used))
        if not np.isfinite(loss):
            raise FloatingPointError(f"loss: found {loss}, expected a number")
    clock, processors = zip(*spent, strict=True)
    return min(clock), min(processors)


def table(options: argparse.Namespace) -> list[np.ndarray]:
    """x and y of the first split of a set, standardised, to train and to test."""
    held = np.load(Path(options.data) / "uci" / f"{options.set}.npz")
    train, test = held["train"][0], held["test"][0]
    x, y = held["X"], held["y"]
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = (y - y[train].mean(0)) / y[train].std(0)
    return [x[train], y[train], x[test], y[test]]


def optima(options: argparse.Namespace) -> None:
    """Kernel, noise and Z of a sparse GP trained with a hundred; a thousand k-means centres beside them."""
    x, y, x_test, y_test = table(options)
    key = jax.random.key(0)
    small = sparse_gp_regression(100)
    guide = Guide(small, inducing=Optimal())
    fit = fit_lbfgs(key, small, x, y, guide=guide, objective=Collapsed(), budget=options.steps)
    print(repr(fit), flush=True)
    centres = initial_inducing(key, jax.numpy.asarray(x), 1000)
    shared = {name: value for name, value in fit.params.items() if not name.startswith("gp/u")}
    for size in (100, 1100):
        inducing = jax.numpy.concatenate([fit.params["gp/inducing"], centres])[:size]
        model = sparse_gp_regression(size, inducing=np.asarray(inducing))
        values = shared | {"gp/inducing": inducing}
        full = optimal_inducing(Posterior(model, Guide(model), values | _placeholders(size)), x, y)
        q = Gaussian(full.params["gp/u_loc"], full.params["gp/u_scale"])
        for name, rule in RULES.items():
            if name == "decoupled, weights" or (size == 100 and name != "full-rank"):
                continue  # of which the first is "decoupled" by another name
            best = full.params if name == "full-rank" else values | rule.nearest("gp/u", q)
            posterior = Posterior(model, Guide(model, inducing=rule), best)
            bound = energy(key, posterior, x, y, objective=PowerEP(0.0))
            found = predict(key, posterior, x_test, y_test, num_samples=1)
            rmse = float(np.sqrt(np.mean(np.square(found.mean - y_test))))
            density = float(np.mean(found.log_density))
            row = [options.set, name, size, f"{bound:.1f}", f"{rmse:.4f}", f"{density:.4f}"]
            rows.append_shown(HERE / "decoupled-optima.csv", OPTIMA, dict(zip(OPTIMA, row, strict=True)))


def _placeholders(size: int) -> dict[str, jax.Array]:
    """Of a full-rank q(u) that is to be found."""
    return {"gp/u_loc": jax.numpy.zeros((1, size)), "gp/u_scale": jax.numpy.eye(size)[None]}


def fits(options: argparse.Namespace) -> None:
    """The first split of a set, standardised; all rules see the same minibatches."""
    x, y, x_test, y_test = table(options)
    key = jax.random.key(0)
    for name, size in FITTED:
        if options.rules and name not in options.rules:
            continue
        model = sparse_gp_regression(size)
        guide = Guide(model, inducing=RULES[name])
        started = time.perf_counter()
        fit = fit_svi(
            key,
            model,
            guide,
            PowerEP(0.0),
            x,
            y,
            steps=options.steps,
            batch_size=BATCH,
            learning_rate=optax.cosine_decay_schedule(0.03, options.steps),
        )
        seconds = time.perf_counter() - started
        found = predict(key, fit, x_test, y_test, num_samples=1)
        rmse = float(np.sqrt(np.mean(np.square(found.mean - y_test))))
        row = [
            options.set,
            options.dtype,
            name,
            size,
            options.steps,
            f"{energy(key, fit, x, y):.1f}",
            f"{rmse:.4f}",
            f"{float(np.mean(found.log_density)):.4f}",
            "" if fit.gap is None else f"{fit.gap:.1f}",
            fit.converged,
            f"{seconds:.0f}",
        ]
        rows.append_shown(HERE / "decoupled-fits.csv", FITS, dict(zip(FITS, row, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cost", "optima", "fits"])
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", default="shared/data")
    parser.add_argument("--set", default="kin8nm")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rules", nargs="*", help="of the fits; all if not given")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    with one_blas_thread():
        {"cost": cost, "optima": optima, "fits": fits}[options.what](options)


if __name__ == "__main__":
    main()
