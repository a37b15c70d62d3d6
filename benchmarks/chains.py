"""Chains of the kinks by natural gradients, beside Adam and L-BFGS: bound, updates and seconds.

    JAX_ENABLE_COMPILATION_CACHE=false python -m benchmarks.chains --data DIR

DIR holds ``sysid/kink.npz``. Rows are appended to benchmarks/chains.csv as they come, and what it holds is not done
again.
``after_50`` and ``after_100`` are the bound after so many updates, ``seconds`` those of a first fit, for which all is
compiled, ``again`` of a second, for which nothing is (of Adam ten times those of a tenth of the steps).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpyro
import optax

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from benchmarks.kink import PROBLEMS, problem  # noqa: E402
from ppl_dgp import Collapsed, Guide, Markov, MeanField, Optimal, fit_lbfgs, fit_svi, gpssm  # noqa: E402
from ppl_dgp.fit.series import CLOSED  # noqa: E402

OUT = Path("benchmarks/chains.csv")
FIELDS = [
    "series",
    "noise",
    "guide",
    "method",
    "updates",
    "bound",
    "after_50",
    "after_100",
    "seconds",
    "again",
]
RULES = {"markov": Markov(), "mean field": MeanField()}
ADAM_STEPS, LBFGS_STEPS, NATURAL_STEPS = 6000, 600, 100
CONSTANT, COSINE = optax.adam(0.01), optax.adam(optax.cosine_decay_schedule(0.03, ADAM_STEPS, 0.02))
COLLAPSED = Collapsed()
METHODS = ("natural", "adam 0.01", "adam 0.03, cosine", "l-bfgs")


def fitted(method: str, model: Any, rule: Any, y: Any, share: float = 1.0) -> Any:
    """One fit; of Adam a ``share`` of the steps."""
    key = jax.random.key(0)
    if method.startswith("adam"):
        optimizer, steps = CONSTANT if method == "adam 0.01" else COSINE, round(share * ADAM_STEPS)
        return fit_svi(
            key, model, Guide(model, hidden=rule), CLOSED, None, y, steps=steps, optimizer=optimizer
        )
    natural = method == "natural"
    guide, steps = Guide(model, hidden=rule, inducing=Optimal()), NATURAL_STEPS if natural else LBFGS_STEPS
    return fit_lbfgs(key, model, None, y, guide=guide, objective=COLLAPSED, steps=steps, natural=natural)


def main() -> None:
    """All methods on all kinks under both guides that make a chain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the directory that holds sysid/")
    options = parser.parse_args()
    done = rows.done(OUT, FIELDS[:4])
    series = [
        ("broken line" if name == "broken" else "smooth kink", problem(name, 0, options.data))
        for name in PROBLEMS
    ]
    for method in METHODS:
        for name, given in series:
            noise, y = given.observation, given.y
            for guide, rule in RULES.items():
                if (name, str(noise), guide, method) in done:
                    continue
                model = gpssm(1, 1, 30 if name == "broken line" else 20, emission="identity")
                jax.clear_caches()
                fit = fitted(method, model, rule, y)
                bounds = -fit.losses[0]
                share = 0.1 if method.startswith("adam") else 1.0
                since = time.perf_counter()
                fitted(method, model, rule, y, share)
                again = (time.perf_counter() - since) / share
                after = [bounds[min(steps, len(bounds)) - 1] for steps in (50, 100)]
                row = [name, noise, guide, method, len(bounds)]
                row += [f"{value:.6g}" for value in (bounds[-1], *after, fit.seconds, again)]
                rows.append(OUT, FIELDS, row)
                print(*row, flush=True)


if __name__ == "__main__":
    main()
