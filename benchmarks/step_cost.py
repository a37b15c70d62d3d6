"""What full-batch steps of the regression tables' deep GPs cost by the compiler's counts, and what all would on a GPU.

    python -m benchmarks.step_cost            # benchmarks/step-cost.csv, what it lacks
    python -m benchmarks.step_cost page       # the table of docs/performance.md

Each set and depth of ``benchmarks.uci``: M = 100, hidden width min(30, D), batches of at most 10 000 rows, 64 bits. The
step is compiled for its shapes, without data; XLA counts operations and bytes. Its calls of LAPACK are left out, whose
factorisations of M × M are next to nothing. Large: 100 000 rows a step, M = 500, three layers of five.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro
import pandas as pd
from numpyro.infer import SVI

numpyro.enable_x64()

from benchmarks import rows  # noqa: E402
from benchmarks.folding import folded  # noqa: E402
from ppl_dgp.fit import program  # noqa: E402
from ppl_dgp.fit.adam import adam  # noqa: E402
from ppl_dgp.guides import DoublyStochastic, Guide  # noqa: E402
from ppl_dgp.models import deep_gp, sparse_gp_regression  # noqa: E402
from ppl_dgp.objectives import PowerEP  # noqa: E402

CSV, PAGE = Path("benchmarks/step-cost.csv"), Path("docs/performance.md")
BEGIN, END = "<!-- step cost -->", "<!-- /step cost -->"
FIELDS = ("set", "rows", "inputs", "depth", "batch", "inducing", "bits", "gflop", "gbytes")
#: rows to train on and inputs, as of 90 % of the tables
SETS = {
    "yacht": (277, 6), "boston": (455, 13), "energy": (691, 8), "wine_red": (1439, 11), "kin8nm": (7373, 8),
    "naval": (10_741, 14), "protein": (41_157, 9),
}  # fmt: skip
LARGE = "large"
INDUCING, WIDEST, LARGEST_BATCH, DEPTHS = 100, 30, 10_000, range(1, 6)
#: of the plan: steps, splits, and the card's operations a second in 64 bits and bytes a second, as its maker says
STEPS, SPLITS, PEAK, MEMORY = 20_000, 20, 67e12, 3.35e12
#: of the peak, that steps of such sizes are reckoned to reach
SHARE = 0.1


def cost(inputs: int, depth: int, batch: int, count: int, inducing: int, width: int) -> tuple[float, float]:
    """Giga-operations and gigabytes of one step, its gradient and Adam's move included."""
    model = deep_gp((width,) * (depth - 1), inducing) if depth > 1 else sparse_gp_regression(inducing)
    guide = Guide(model, DoublyStochastic()) if depth > 1 else Guide(model)
    svi = SVI(model, guide, program.as_numpyro(adam(0.01)), PowerEP(0.0))
    # of a start that k-means need not be run for
    few = jnp.linspace(-1.0, 1.0, 2 * inducing * inputs).reshape(2 * inducing, inputs)
    state = svi.init(jax.random.key(0), few, few[:, :1])
    like = lambda columns: jax.ShapeDtypeStruct((batch, columns), jnp.float64)
    index = jax.ShapeDtypeStruct((batch,), jnp.int32)
    step = jax.jit(lambda state, x, y, index: svi.update(state, x, y, index=index, size=count))
    about = step.lower(state, like(inputs), like(1), index).compile().cost_analysis() or {}
    return about["flops"] / 1e9, about["bytes accessed"] / 1e9


def run() -> None:
    """The rows that the CSV lacks."""
    known = rows.done(CSV, ("set", "depth"))
    works = [
        (name, *SETS[name], depth, min(SETS[name][0], LARGEST_BATCH), INDUCING, min(WIDEST, SETS[name][1]))
        for name in SETS
        for depth in DEPTHS
    ]
    works.append((LARGE, 10_000_000, 8, 3, 100_000, 500, 5))
    for name, count, inputs, depth, batch, inducing, width in works:
        if (name, str(depth)) not in known:
            found = cost(inputs, depth, batch, count, inducing, width)
            row = (name, count, inputs, depth, batch, inducing, 64, *(f"{value:.6g}" for value in found))
            rows.append_shown(CSV, FIELDS, dict(zip(FIELDS, row, strict=True)))


def page(text: str, found: pd.DataFrame) -> str:
    """The page, of which all but what stands between the marks is kept."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    small, large = found[found.set != LARGE], found[found.set == LARGE]
    heads = ["set", "rows a step", *(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS)]
    lines = [BEGIN, "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, part in small.groupby("set", sort=False):
        costs = [f"{row.gflop:.2g}, {row.gbytes:.2g}" for row in part.sort_values("depth").itertuples()]
        lines.append(f"| {name} | {part.batch.iloc[0]} | {' | '.join(costs)} |")
    operations, moved = (STEPS * SPLITS * 1e9 * small[column].sum() for column in ("gflop", "gbytes"))
    peak, memory = operations / PEAK / 3600.0, moved / MEMORY / 3600.0
    lines += [
        "",
        f"All sets × depths × {SPLITS} splits × {STEPS} steps are {operations:.2g} operations and {moved:.2g} bytes:",
        f"{peak:.1f} hours at the peak of an H100 in 64 bits, {peak / SHARE:.1f} at {100 * SHARE:.0f} % of it, and "
        f"{memory:.1f} where memory is the limit",
        "and nothing more is fused than on the CPU.",
    ]
    for row in large.itertuples():
        milliseconds = 1e12 * row.gflop / (SHARE * PEAK)
        lines += [
            f"The large bench, {row.batch} rows a step, M = {row.inducing}, three layers: {row.gflop:.3g} GFLOP and",
            f"{row.gbytes:.3g} GB a step, {milliseconds:.0f} ms at that share.",
        ]
    return folded(before + "\n".join([*lines, "", END]) + after)


def main() -> None:
    """Count, or write the page."""
    if sys.argv[1:] == ["page"]:
        PAGE.write_text(page(PAGE.read_text(), pd.read_csv(CSV)))
    else:
        run()


if __name__ == "__main__":
    main()
