"""Which α? Power EP on drawn functions, on tables of numbers and of classes, in deep GPs; rows and the page of them.

    python -m benchmarks.power_ep sweep                    # (a) drawn functions: α × M                (Bui 2017, 2.4.1)
    python -m benchmarks.power_ep regression --data DIR    # (b) tables of numbers, (e) kin8nm         (2.4.2)
    python -m benchmarks.power_ep classification --data DIR  # (c) tied factors against sites          (2.4.3, 2.6)
    python -m benchmarks.power_ep deep                     # (d) deep GPs on a step and a sinusoid     (4.7.1)
    python -m benchmarks.power_ep digits                   # ten classes by a deep GP
    python -m benchmarks.power_ep objectives               # the three objectives against α, and the exact evidence
    python -m benchmarks.power_ep page                     # docs/which-alpha.md and its figures, from the CSVs

Each appends to benchmarks/alpha-<name>.csv what it does not hold yet. DIR holds ``uci/<set>.npz`` and
``classification/<set>.npz`` with arrays X, y and the splits' row indices train and test.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

from benchmarks import rows
from benchmarks.alpha_page import (
    CALIBRATION,
    CLASSIFICATION,
    DEEP,
    DIGITS,
    OBJECTIVES,
    REGRESSION,
    SWEEP,
    page,
)
from benchmarks.closed_fits import run_closed

numpyro.enable_x64()

from sklearn.datasets import load_breast_cancer, load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

from ppl_dgp.data import Standardiser, load_table, split  # noqa: E402
from ppl_dgp.fit import fit_lbfgs, fit_power_ep, fit_svi  # noqa: E402
from ppl_dgp.guides import HIDDEN_RULES, Guide, MomentMatched  # noqa: E402
from ppl_dgp.kernels import RBF  # noqa: E402
from ppl_dgp.models import (  # noqa: E402
    deep_gp,
    deep_gp_classification,
    sparse_gp_classification,
    sparse_gp_regression,
)
from ppl_dgp.objectives import (  # noqa: E402
    ApproximatePowerEP,
    BlackBoxAlpha,
    PowerEP,
)
from ppl_dgp.prediction.predict import predict  # noqa: E402

TABLES = ("boston", "energy", "yacht", "wine_red", "kin8nm")
CLASS_TABLES = ("breast-cancer", "banana", "ionosphere", "digits")
Array = jax.Array


def sweep(_: argparse.Namespace) -> None:
    """Five functions drawn from a GP with an ARD kernel in five dimensions, 500 rows to train and 500 to test."""
    sets = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        x = random.uniform(-2.0, 2.0, (1000, 5))
        kernel = RBF(1.0, jnp.asarray(random.uniform(1.0, 3.0, 5)))
        lower = np.linalg.cholesky(np.asarray(kernel(jnp.asarray(x), jnp.asarray(x))) + 1e-9 * np.eye(1000))
        y = lower @ random.normal(size=(1000, 1)) + 0.1 * random.normal(size=(1000, 1))
        sets.append((x[:500], y[:500], x[500:], y[500:]))
    run_closed(SWEEP, "drawn", sets, (10, 20, 50, 100, 200), with_exact=True)


def regression(options: argparse.Namespace) -> None:
    """Five of the standard splits of each table, side by side."""
    for name in options.sets.split(","):
        large = name == "kin8nm"
        sets = []
        for number in range(1 if large else 5):
            table = load_table(str(options.data / "uci" / f"{name}.npz"))
            train, test = split(table, number)
            x, y = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
            at, of = x.transform(table.X), y.transform(table.y)
            sets.append((at[train], of[train], at[test], of[test]))
        run_closed(REGRESSION, name, sets, (100,) if large else (10, 50, 100), with_exact=False)


CLASSES = ["set", "split", "method", "alpha", "error", "nll", "energy", "gap", "converged", "seconds"]


def class_table(name: str, number: int, data: Path) -> tuple[np.ndarray, ...]:
    """Standardised inputs, labels 0 … C − 1 as a column: training, then test."""
    if name in ("breast-cancer", "digits"):
        x, y = (load_breast_cancer if name == "breast-cancer" else load_digits)(return_X_y=True)
        x, new, y, target = train_test_split(x, y, test_size=0.2, random_state=number, stratify=y)
    else:
        found = np.load(data / "classification" / f"{name}.npz")
        labels = np.unique(found["y"], return_inverse=True)[1].reshape(-1)
        splits = [np.atleast_2d(found[part]) for part in ("train", "test")]
        if number < len(splits[0]):
            train, test = (part[number] for part in splits)
        else:  # another one of the same sizes
            rows, share = np.arange(len(labels)), splits[1].shape[1] / len(labels)
            train, test = train_test_split(rows, test_size=share, random_state=number, stratify=labels)
        x, new, y, target = found["X"][train], found["X"][test], labels[train], labels[test]
    units = Standardiser.fit(np.asarray(x, float))
    return units.transform(x), y[:, None].astype(float), units.transform(new), target[:, None].astype(float)


def judged(
    key: Array, fit: Any, new: np.ndarray, target: np.ndarray, draws: int = 1
) -> tuple[np.ndarray, float, float]:
    """Probabilities of the classes, test error, and minus the mean log probability."""
    found = predict(key, fit, new, target, num_samples=draws)
    chances = found.mean if found.mean.shape[1] > 1 else np.concatenate([1 - found.mean, found.mean], 1)
    error = float((chances.argmax(1) != target[:, 0]).mean())
    return chances, error, float(-np.mean(found.log_density))


def classification(options: argparse.Namespace) -> None:
    """Tied factors in closed form, and sites from their optimum, until they converge; M = 50, or 100 for digits."""
    done = rows.done(CLASSIFICATION, CLASSES[:4])
    for name in options.sets.split(","):
        for number in range(options.splits):
            x, y, new, target = class_table(name, number, options.data)
            classes = int(y.max()) + 1
            model = sparse_gp_classification(classes, 100 if classes > 2 else 50)
            guide, key = Guide(model), jax.random.key(number)
            for alpha in (0.0, 0.5, 1.0):
                # several functions have no sites of one number each, and at α = 0 sites have the bound of tied factors
                for method in ("tied", "sites") if classes == 2 and alpha and options.sites else ("tied",):
                    if (name, str(number), method, f"{alpha:g}") in done:
                        continue
                    began = perf_counter()
                    tied = fit_lbfgs(
                        key, model, x, y, guide=guide, objective=ApproximatePowerEP(alpha, 1), budget=3200
                    )
                    fit = tied if method == "tied" else _by_sites(key, model, guide, x, y, alpha, tied)
                    _, error, nll = judged(key, fit, new, target)
                    measured = [f"{v:.5g}" for v in (error, nll, -fit.losses[0, -1], fit.gap)]
                    row = [name, number, method, f"{alpha:g}", *measured, fit.converged]
                    rows.append(CLASSIFICATION, CLASSES, [*row, f"{perf_counter() - began:.1f}"])
                    print(*row, flush=True)
            jax.clear_caches()


def _by_sites(
    key: Array, model: Any, guide: Guide, x: np.ndarray, y: np.ndarray, alpha: float, tied: Any
) -> Any:
    """Power EP by iteration, its hyperparameters from the optimum of tied factors."""
    start = {name: value for name, value in tied.params.items() if "/u_" not in name}
    rate = optax.cosine_decay_schedule(0.03, 300, 0.01)
    return fit_power_ep(
        key, model, guide, x, y, alpha=alpha, hyper_steps=300, learning_rate=rate, start=start
    )


def digits(options: argparse.Namespace) -> None:
    """A deep GP of two layers, robust-max, M = 100, on scikit-learn's 1797 digits, a fifth of them held out."""
    x, y, new, target = class_table("digits", 0, Path())
    model = deep_gp_classification(10, (options.width,), num_inducing=100)
    key, began = jax.random.key(0), perf_counter()
    rate = optax.cosine_decay_schedule(options.rate, options.steps, 0.02)
    fit = fit_svi(
        key, model, Guide(model, hidden=HIDDEN_RULES[options.hidden]), PowerEP(0.0), x, y,
        steps=options.steps, batch_size=options.batch, learning_rate=rate, progress=True,
    )  # fmt: skip
    seconds = perf_counter() - began
    chances, error, nll = judged(key, fit, new, target, 50)
    row = [options.width, options.steps, options.batch, f"{1 - error:.4f}", f"{nll:.4f}", f"{seconds:.0f}"]
    rows.append(DIGITS, ["width", "steps", "batch", "accuracy", "nll", "seconds"], row)
    print(*row, flush=True)
    CALIBRATION.unlink(missing_ok=True)
    sure, right = chances.max(1), chances.argmax(1) == target[:, 0]
    for low in np.arange(0.1, 1.0, 0.1):
        inside = (sure > low) & (sure <= low + 0.1)
        if inside.any():
            measured = [f"{sure[inside].mean():.4f}", f"{right[inside].mean():.4f}", int(inside.sum())]
            rows.append(CALIBRATION, ["confidence", "accuracy", "rows"], measured)


DEEPS = ["set", "seed", "layers", "alpha", "energy", "test_log_density", "rmse", "noise", "gap", "converged"]


def deep(_: argparse.Namespace) -> None:
    """Tied factors and moments through the layers, as in the thesis (4.7.1), until they converge; M = 20."""
    done = rows.done(DEEP, DEEPS[:4])
    for name in ("step", "periodic"):
        for layers in (1, 2):
            model = deep_gp((3,) * (layers - 1), 20)
            guide = Guide(model, hidden=MomentMatched())
            for alpha in (0.001, 0.5, 1.0):
                objective = ApproximatePowerEP(alpha, 1)
                for seed in range(5):
                    if (name, str(seed), str(layers), f"{alpha:g}") in done:
                        continue
                    table = load_table(name, seed=seed)
                    train, test = split(table, 0)
                    x, y = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
                    at, of = x.transform(table.X), y.transform(table.y)
                    key = jax.random.key(seed)
                    fit = fit_svi(
                        key, model, guide, objective, at[train], of[train], budget=52_800, restarts=4
                    )
                    energy = -float(np.mean(fit.losses[0, -100:]))
                    found = predict(key, fit, at[test], of[test], propagation="moments")
                    scale = float(y.scale[0])
                    density = float(np.mean(found.log_density)) - np.log(scale)
                    rmse = scale * float(np.sqrt(np.square(found.mean - of[test]).mean()))
                    noise = scale**2 * float(fit.params["likelihood/noise"])
                    measured = [f"{alpha:g}", *(f"{v:.5g}" for v in (energy, density, rmse, noise, fit.gap))]
                    row = [name, seed, layers, *measured, fit.converged]
                    rows.append(DEEP, DEEPS, row)
                    print(*row, flush=True)
            jax.clear_caches()


def objectives(_: argparse.Namespace) -> None:
    """The three objectives of one layer against α: at a q(u) that is held, and at their best."""
    OBJECTIVES.unlink(missing_ok=True)
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(-2.0, 2.0, (20, 1)), 0)
    y = np.sin(2.5 * x) + 0.3 * random.normal(size=(20, 1))
    kernel = RBF(1.0, jnp.asarray([0.7]))
    covariance = np.asarray(kernel(jnp.asarray(x), jnp.asarray(x))) + 0.1 * np.eye(20)
    evidence = (
        -0.5 * (y.T @ np.linalg.solve(covariance, y)).item()
        - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    )
    model = sparse_gp_regression(6, kernel=lambda _: kernel, noise=0.1, train_inducing=False)
    guide = Guide(model)
    key = jax.random.key(0)
    held: dict[str, Array] | None = None
    for alpha in np.round(np.linspace(0.0, 1.0, 11), 2):
        for kind in (PowerEP, BlackBoxAlpha, ApproximatePowerEP):
            objective = kind(float(alpha), 1)
            fit = fit_svi(key, model, guide, objective, x, y, steps=2000, learning_rate=0.03)
            held = fit.params if held is None else held
            value = partial(objective.loss, key, model=model, guide=guide, x=jnp.asarray(x), y=jnp.asarray(y))
            values = [-float(value(each)) for each in (held, fit.params)]
            measured = [kind.__name__, f"{alpha:g}", *(f"{each:.6g}" for each in (*values, evidence))]
            rows.append(OBJECTIVES, ["objective", "alpha", "held", "best", "evidence"], measured)
            print(*measured, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    for part in (sweep, regression, classification, deep, digits, objectives, page):
        each = parts.add_parser(part.__name__)
        each.set_defaults(part=part)
        if part in (regression, classification):
            each.add_argument("--data", type=Path, required=True)
            each.add_argument("--sets", default=",".join(TABLES if part is regression else CLASS_TABLES))
        if part is classification:
            each.add_argument("--splits", type=int, default=3)
            each.add_argument("--sites", action=argparse.BooleanOptionalAction, default=True)
        if part is digits:
            each.add_argument("--width", type=int, default=16)
            each.add_argument("--steps", type=int, default=4000)
            each.add_argument("--batch", type=int, default=300)
            each.add_argument("--rate", type=float, default=0.02)
            each.add_argument("--hidden", default="doubly-stochastic", choices=HIDDEN_RULES)
    options = parser.parse_args()
    options.part(options)


if __name__ == "__main__":
    main()
