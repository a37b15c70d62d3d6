"""Deep GPs by SGHMC beside the variational fit that it starts from: test log density, errors, effective draws.

    python -m benchmarks.sghmc --data DIR --splits 0-4      # appends what the CSV lacks
    python -m benchmarks.sghmc --table

DIR holds ``uci/boston.npz`` and so on, with their standard splits. Layers have M = 100 inducing points and as many
outputs as there are inputs, but for the last. "variational" is ``DoublyStochastic()`` at α = 0, ``steps="auto"``;
"sghmc" starts there, all rows at a step, hyperparameters by Monte Carlo EM in the warm-up, α = 1 with so many
``particles`` of the hidden layers, four chains. Log densities and errors are in the units of the data; R-hat and
effective draws are those of the worst inducing output, and ``predictive_…`` those of the worst predictive mean of the
held-out rows, each a mean over so many draws of the hidden layers as ``HIDDEN_DRAWS``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.handlers import seed, substitute, trace

from benchmarks import rows
from benchmarks.posterior_at_places import held_and_drawn
from ppl_dgp import Fit, Guide, PowerEP, deep_gp, fit_sghmc, fit_svi, held_out_scores
from ppl_dgp.data import Standardiser, load_table, split
from ppl_dgp.fit import SamplingWarning
from ppl_dgp.gp.emission import emission_of

CSV = Path("benchmarks/sghmc.csv")
KEY = ("set", "depth", "split", "budget", "method", "particles")
FIELDS = (
    *KEY, "test_log_density", "test_rmse", "coverage95", "r_hat", "effective", "predictive_r_hat",
    "predictive_effective", "draws", "step_size", "converged", "gap", "seconds", "device",
)  # fmt: skip
INDUCING, SAMPLES, HIDDEN_DRAWS = 100, 500, 32


def predictive_means(fit: Fit, x: Any) -> Any:
    """What each draw of each chain says of y at rows x (N, D): means (C, S, N)."""
    held, draws = held_and_drawn(fit)

    def mean(draw: dict[str, Any], key: Any) -> Any:
        there = trace(substitute(seed(fit.model, key), data=held | draw)).get_trace(x, None)
        return emission_of(there["y"]["fn"]).marginal.mean[:, 0]

    def averaged(draw: dict[str, Any]) -> Any:
        keys = jax.random.split(jax.random.key(0), HIDDEN_DRAWS)
        return jax.vmap(mean, (None, 0))(draw, keys).mean(0)

    return jax.jit(lambda each: jax.lax.map(lambda chain: jax.lax.map(averaged, chain), each))(draws)


def fitted(options: argparse.Namespace, name: str, number: int, left: list[int | None]) -> None:
    """The rows of a split that are left: ``None`` for the variational fit, else particles."""
    table = load_table(str(options.data / "uci" / f"{name}.npz"))
    train, test = split(table, number)
    inputs, targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
    x, y = inputs.transform(table.X), targets.transform(table.y)
    model = deep_gp((table.X.shape[1],) * (options.depth - 1), INDUCING)
    start = fit_svi(
        jax.random.key(number), model, Guide(model), PowerEP(0.0), x[train], y[train], budget=options.budget
    )
    for particles in left:
        fit = start
        if particles is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SamplingWarning)
                fit = fit_sghmc(
                    jax.random.key(number), model, x[train], y[train],
                    objective=PowerEP(1.0, num_particles=particles), start=start, num_warmup=options.warmup,
                    num_samples=options.draws, thinning=options.thinning,
                )  # fmt: skip
        chains = fit.chains
        scores = held_out_scores(
            jax.random.key(9), fit, x[test], y[test], target_scale=targets.scale, num_samples=SAMPLES
        )
        row: dict[str, Any] = {
            "set": name, "depth": options.depth, "split": number, "budget": options.budget,
            "method": "variational" if particles is None else "sghmc", "particles": particles or "",
            **scores, "converged": fit.converged,
            "seconds": fit.seconds, "device": jax.devices()[0].device_kind,
            "gap": fit.gap,
            "r_hat": "", "effective": "", "predictive_r_hat": "", "predictive_effective": "", "draws": "",
            "step_size": "",
        }  # fmt: skip
        if chains is not None:
            said = np.asarray(predictive_means(fit, x[test]), float)
            row |= {
                "predictive_r_hat": float(split_gelman_rubin(said).max()),
                "predictive_effective": float(effective_sample_size(said).min()),
                "r_hat": max(chains.r_hat.values()), "effective": min(chains.effective_size.values()),
                "draws": chains.stats["diverging"].size, "step_size": chains.stats["step_size"][0, 0],
            }  # fmt: skip
        rows.append_shown(options.out, FIELDS, row)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", default="boston,energy")
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--particles", default="1,8")
    parser.add_argument("--budget", type=int, default=25_000)
    parser.add_argument("--warmup", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=100, help="of each chain")
    parser.add_argument("--thinning", type=int, default=50)
    parser.add_argument("--out", type=Path, default=CSV)
    parser.add_argument("--table", action="store_true", help="of what the CSV holds, and do no work")
    options = parser.parse_args()
    if options.table:
        print(
            pd.read_csv(options.out)
            .groupby(["set", "depth", "budget", "method", "particles"], dropna=False)
            .mean(numeric_only=True)
            .to_string()
        )
        return
    there = rows.done(options.out, KEY)
    wanted: list[int | None] = [None, *rows.numbers(options.particles)]
    for name in options.sets.split(","):
        for number in rows.numbers(options.splits):
            method = lambda each: ("variational", "") if each is None else ("sghmc", str(each))
            about = (name, str(options.depth), str(number), str(options.budget))
            if left := [each for each in wanted if (*about, *method(each)) not in there]:
                fitted(options, name, number, left)


if __name__ == "__main__":
    main()
