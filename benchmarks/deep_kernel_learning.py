"""Deep kernel learning over-fits small tables: its network beside layers of a Bayesian one, a deep GP and a GP.

    python -m benchmarks.deep_kernel_learning --data DIR --splits 0-4      # appends what the CSV lacks
    python -m benchmarks.deep_kernel_learning --table

DIR holds ``uci/yacht.npz`` and so on, with their standard splits, of whose training rows the first 100 are trained on,
or all with ``--rows 0``. Every model ends in a GP of M = 100 inducing points; below it are

    gp                nothing
    deep kernel       a network of parameters, 20 tanh units and 2 outputs (Wilson et al. 2016)
    stopped           the same after 1 000 steps of Adam, at a rate of 0.01
    bayesian          the same with Gaussian weights, each layer with its noise, q of full rank for each unit
    deep gp           2 GPs, M = 100

The first two are trained by ``fit_lbfgs`` with q(u) at its optimum, in closed form, the others by ``fit_svi``, all at
α = 0, but for one with ``steps="auto"``. Log densities and errors are in units of the standardised targets, of the
training rows and of those held out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpyro

numpyro.enable_x64()

import pandas as pd  # noqa: E402

from benchmarks import rows  # noqa: E402
from ppl_dgp import (  # noqa: E402
    BayesianLayer,
    Collapsed,
    DeterministicNetwork,
    GPLayer,
    Guide,
    Optimal,
    PowerEP,
    deep_gp,
    fit_lbfgs,
    fit_svi,
    held_out_scores,
    sparse_gp_regression,
    stack,
)
from ppl_dgp.data import Standardiser, load_table, split  # noqa: E402

CSV = Path("benchmarks/deep-kernel-learning.csv")
KEY = ("set", "rows", "split", "model")
FIELDS = (
    *KEY, "train_log_density", "train_rmse", "test_log_density", "test_rmse", "coverage95", "noise", "elbo", "gap",
    "converged", "steps", "seconds",
)  # fmt: skip
INDUCING, SAMPLES, STOPPED = 100, 200, 1000
MODELS = {
    "gp": sparse_gp_regression(INDUCING),
    "deep kernel": stack([DeterministicNetwork((20, 2)), GPLayer(num_inducing=INDUCING)]),
    "stopped": stack([DeterministicNetwork((20, 2)), GPLayer(num_inducing=INDUCING)]),
    "bayesian": stack([BayesianLayer(20), BayesianLayer(2, "tanh"), GPLayer(num_inducing=INDUCING)]),
    "deep gp": deep_gp((2,), INDUCING),
}
#: those of which nothing is drawn
CLOSED = ("gp", "deep kernel")


def fitted(options: argparse.Namespace, name: str, number: int, model_name: str) -> dict[str, Any]:
    """One row."""
    table = load_table(str(options.data / "uci" / f"{name}.npz"))
    train, test = split(table, number)
    train = train[: options.rows or None]
    x = Standardiser.fit(table.X[train]).transform(table.X)
    y = Standardiser.fit(table.y[train]).transform(table.y)
    model, key = MODELS[model_name], jax.random.key(number)
    data = x[train], y[train]
    if model_name in CLOSED:
        guide = Guide(model, inducing=Optimal())
        fit = fit_lbfgs(key, model, *data, guide=guide, objective=Collapsed(), budget=options.iterations)
    else:
        steps = STOPPED if model_name == "stopped" else "auto"
        fit = fit_svi(key, model, Guide(model), PowerEP(0.0), *data, steps=steps, budget=options.budget)
    score = lambda which: held_out_scores(jax.random.key(9), fit, x[which], y[which], num_samples=SAMPLES)
    at_train, at_test = score(train), score(test)
    return {
        "set": name, "rows": options.rows, "split": number, "model": model_name,
        "train_log_density": at_train["test_log_density"], "train_rmse": at_train["test_rmse"], **at_test,
        "noise": float(fit.params["likelihood/noise"]), "elbo": -float(fit.losses[fit.best, -1]),
        "gap": fit.gap, "converged": fit.converged, "steps": fit.steps, "seconds": fit.seconds,
    }  # fmt: skip


def summary(path: Path) -> None:
    """Means, of log densities medians, and what others have beyond the deep kernel on the same splits."""
    found = pd.read_csv(path)
    groups = found.groupby(["set", "rows", "model"])
    densities = groups[["train_log_density", "test_log_density"]].median()
    means = groups[["train_rmse", "test_rmse", "coverage95", "noise", "converged"]].mean()
    print(densities.join(means).join(groups.size().rename("splits")).round(3).to_string(), "\n")
    for figure in ("test_log_density", "test_rmse"):
        wide = found.pivot_table(index=["set", "rows", "split"], columns="model", values=figure)
        beyond = wide.drop(columns="deep kernel").sub(wide["deep kernel"], axis=0).groupby(["set", "rows"])
        print(f"{figure} beyond the deep kernel's: median, mean, its standard error")
        shown = {"median": beyond.median(), "mean": beyond.mean(), "±": beyond.sem()}
        print(pd.concat(shown, axis=1).round(3).to_string(), "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="boston,energy,yacht")
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--rows", type=int, default=100, help="to train on, 0 for all")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--iterations", type=int, default=10_000, help="of L-BFGS, at most")
    parser.add_argument("--budget", type=int, default=50_000, help="of the others, steps at most")
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--table", action="store_true", help="of what the CSV holds, and do no work")
    options = parser.parse_args()
    if options.table:
        summary(options.out)
        return
    there = rows.done(options.out, KEY)
    for number in rows.numbers(options.splits):
        for name in options.sets.split(","):
            for model in options.models.split(","):
                if (name, str(options.rows), str(number), model) not in there:
                    rows.append_shown(options.out, FIELDS, fitted(options, name, number, model))


if __name__ == "__main__":
    main()
