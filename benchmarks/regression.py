"""Deep GPs on the standard regression tables: test log density, RMSE, ELBO and seconds, a row per fit.

    python -m benchmarks.regression --data DIR --sets energy,boston --splits 0,1,2,3,4 --hidden doubly-stochastic

DIR holds ``uci/<set>.npz`` with arrays X, y and the splits' row indices train and test. Rows are appended to the CSV as
they come, and fits that it already holds are not done again.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path

import jax
import numpyro

from benchmarks import rows

numpyro.enable_x64()

from ppl_dgp.data import Standardiser, load_table, split  # noqa: E402
from ppl_dgp.diagnostics import elbo, held_out_scores  # noqa: E402
from ppl_dgp.fit import fit_svi  # noqa: E402
from ppl_dgp.guides import HIDDEN_RULES, Guide  # noqa: E402
from ppl_dgp.models import deep_gp  # noqa: E402
from ppl_dgp.objectives import PowerEP  # noqa: E402

FIELDS = [
    "set", "split", "hidden", "depth", "alpha", "steps", "batch", "inner_noise", "elbo", "elbo_se", "test_log_density",
    "rmse", "train_seconds", "compile_seconds", "rejected_steps", "peak_gib",
]  # fmt: skip


def main() -> None:
    """Run what the CSV does not hold yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default="energy")
    parser.add_argument("--splits", default="0")
    parser.add_argument("--hidden", default="doubly-stochastic", help=",".join(HIDDEN_RULES))
    parser.add_argument("--depth", type=int, default=2, help="layers; 1 is a sparse GP")
    parser.add_argument("--alpha", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=0, help="0: full batch")
    parser.add_argument("--inner-noise", type=float, default=0.01, help="where hidden noise variances start")
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/regression.csv"))
    options = parser.parse_args()
    done = rows.done(options.out, FIELDS[:8])
    for name in options.sets.split(","):
        for number in map(int, options.splits.split(",")):
            for hidden in options.hidden.split(","):
                key = [name, number, hidden, options.depth, options.alpha, options.steps, options.batch]
                key.append(options.inner_noise)
                if tuple(map(str, key)) in done:
                    continue
                row = [*key, *_fit(name, number, hidden, options)]
                rows.append(options.out, FIELDS, row)
                print(*row, flush=True)


def _fit(name: str, number: int, hidden: str, options: argparse.Namespace) -> list[object]:
    table = load_table(str(options.data / "uci" / f"{name}.npz"))
    train, test = split(table, number)
    inputs, targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
    x, y = inputs.transform(table.X), targets.transform(table.y)
    widths = (x.shape[1],) * (options.depth - 1)
    number_inducing = min(options.inducing, len(train))
    model = deep_gp(widths, number_inducing, num_outputs=y.shape[1], inner_noise=options.inner_noise)
    guide = Guide(model, hidden=HIDDEN_RULES[hidden])
    objective = PowerEP(options.alpha)
    batch = min(options.batch, len(train)) or None
    data = x[train], y[train]
    settings = {"steps": options.steps, "batch_size": batch}
    fit = fit_svi(jax.random.key(number), model, guide, objective, *data, **settings)
    bound, error = elbo(jax.random.key(100), fit, *data, num_draws=20)
    scores = held_out_scores(
        jax.random.key(1), fit, x[test], y[test], num_samples=100, target_scale=targets.scale
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    numbers = [
        bound,
        error,
        scores["test_log_density"],
        scores["test_rmse"],
        fit.seconds,
        fit.compile_seconds,
    ]
    return [*(f"{value:.5g}" for value in numbers), fit.rejected_steps, f"{peak:.3g}"]


if __name__ == "__main__":
    main()
