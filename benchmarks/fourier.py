"""Seconds of a step with Fourier features of one input, beside inducing points of the same number, for N rows.

    python -m benchmarks.fourier
    python -m benchmarks.fourier --rows 10000,100000 --size 101

A step is one value and gradient of what is minimised, of which an iteration of L-BFGS takes one or two: ``Collapsed()``
on all rows, or ``PowerEP(0.0)`` on a minibatch of 1000 with a full-rank q(u), or a mean-field one. ``pass_seconds`` are
those of the sums over rows, taken once. Rows are appended to fourier.csv, and what is there is not measured again.
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
import numpyro
from numpyro.distributions import constraints
from numpyro.infer import ELBO, SVI

from benchmarks import rows
from ppl_dgp import Fourier, data_plate, sparse_gp
from ppl_dgp.fit.initial import initialise
from ppl_dgp.fit.session import one_blas_thread
from ppl_dgp.guides import Diagonal, FullRank, Guide, InducingRule, Optimal
from ppl_dgp.kernels import Matern32
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.objectives.row_sums import KnownSums, double_sums

CSV = Path(__file__).parent / "fourier.csv"
COLUMNS = ["device", "inducing", "objective", "batch", "N", "M", "pass_seconds", "step_seconds"]
KEY = ("device", "inducing", "objective", "batch", "N", "M")
BATCH = 1000
#: seconds that steps are repeated for, of quick ones and of slow ones
LEAST, MOST = 10.0, 120.0
#: objective, rule of q(u), minibatches
WORKS: dict[str, tuple[ELBO, InducingRule, bool]] = {
    "Collapsed()": (Collapsed(), Optimal(), False),
    "PowerEP(0.0) FullRank()": (PowerEP(0.0), FullRank(), True),
    "PowerEP(0.0) Diagonal()": (PowerEP(0.0), Diagonal(), True),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--size", type=int, default=501, help="features, or inducing points; odd")
    parser.add_argument(
        "--steps", type=int, default=5, help="at least; the fastest counts, for machines are shared"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    finished = rows.done(CSV, KEY)
    for number in rows.numbers(options.rows):
        x, y = data(number)
        for inducing in ("Fourier", "points"):
            for name, (objective, rule, minibatches) in WORKS.items():
                batch = BATCH if minibatches else number
                begun = jax.default_backend(), inducing, name, batch, number, options.size
                if tuple(map(str, begun)) in finished:
                    continue
                index = jnp.arange(BATCH) if minibatches else None
                found = timed(objective, rule, model_of(inducing, options.size), x, y, index, options.steps)
                rows.append_shown(CSV, COLUMNS, dict(zip(COLUMNS, (*begun, *found), strict=True)))


def data(number: int) -> tuple[jax.Array, jax.Array]:
    """A fast oscillation on a slow one, 5 and 60 periods, in noise."""
    random = np.random.default_rng(0)
    x = random.uniform(0.0, 10.0, (number, 1))
    y = np.sin(np.pi * x) + 0.5 * np.sin(12.0 * np.pi * x) + 0.3 * random.normal(size=x.shape)
    return jnp.asarray(x), jnp.asarray(y)


def model_of(inducing: str, size: int) -> Callable[..., Any]:
    """Regression on one input."""

    def model(x: Any, y: Any = None, index: Any = None, number: Any = None) -> Any:
        positive = lambda name, start: numpyro.param(
            name, jnp.asarray(start), constraint=constraints.positive
        )
        kernel = Matern32(positive("variance", 1.0), positive("lengthscale", 0.3))
        f = sparse_gp("f", kernel, features())
        with data_plate(number or x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(positive("noise", 0.2)), obs=y)

    def features() -> Any:
        if inducing == "Fourier":
            return Fourier(-1.0, 11.0, (size - 1) // 2)
        return numpyro.param("inducing", jnp.linspace(0.0, 10.0, size)[:, None])

    return model


def timed(
    objective: ELBO,
    rule: InducingRule,
    model: Callable[..., Any],
    x: jax.Array,
    y: jax.Array,
    index: jax.Array | None,
    steps: int,
) -> tuple[str, str]:
    """Seconds of the sums over rows, empty where there are none, and of a step."""
    guide = Guide(model, inducing=rule)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), objective)
    params = svi.get_params(initialise(svi, jax.random.key(0), x, y))
    sums, seconds = {}, ""
    if isinstance(objective, Collapsed):
        fixed = jax.jit(lambda x, y: objective.fixed_rows(params, model, guide, x, y))(x, y)
        double_sums(fixed)
        begun = time.perf_counter()
        sums = jax.block_until_ready(double_sums(fixed))
        seconds = f"{time.perf_counter() - begun:.3g}" if sums else ""

    @jax.jit
    def step(params: Any, x: Any, y: Any, sums: Any) -> Any:
        batch = (x, y) if index is None else (x[index], y[index], index, len(x))

        def loss(values: Any) -> Any:
            with KnownSums(sums):
                return objective.loss(jax.random.key(1), values, model, guide, *batch)

        return jax.value_and_grad(loss)(params)

    with one_blas_thread():
        jax.block_until_ready(step(params, x, y, sums))
        each = []
        while sum(each) < (LEAST if len(each) >= steps else MOST):
            begun = time.perf_counter()
            jax.block_until_ready(step(params, x, y, sums))
            each.append(time.perf_counter() - begun)
    return seconds, f"{min(each):.3g}"


if __name__ == "__main__":
    main()
