"""Which dependencies are worth modelling? Hidden × inducing rules on several sets, a row per fit, and the page of them.

    python benchmarks/guides.py run --data DIR        # appends to benchmarks/guides.csv what it does not hold yet
    python benchmarks/guides.py page                  # docs/which-guide.md and its figure, from the CSV

DIR holds ``uci/<set>.npz`` with arrays X, y and the splits' row indices train and test. Steps, learning rate and start
are the same for all rules of a set; the seed is also that of the synthetic data, or the number of the split.
"""

from __future__ import annotations

import argparse
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import numpyro
import optax
import pandas as pd
import rows

numpyro.enable_x64()

from matplotlib.figure import Figure  # noqa: E402

from ppl_dgp.data import Standardiser, Table, load_table, split  # noqa: E402
from ppl_dgp.diagnostics import compare  # noqa: E402
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES, Guide  # noqa: E402
from ppl_dgp.models import deep_gp  # noqa: E402

CSV, PAGE, FIGURE = Path("benchmarks/guides.csv"), Path("docs/which-guide.md"), Path("docs/which-guide.png")
#: M, steps, batch (None: all rows), most training rows
SETS: dict[str, tuple[int, int, int | None, int | None]] = {
    "step": (20, 5000, None, None),
    "sinusoids": (20, 5000, None, None),
    "boston": (50, 2000, 256, None),
    "energy": (50, 2000, 256, None),
    "kin8nm": (50, 2000, 500, 5000),
}
#: with q(u) full rank; "conditional-across" has N M Q² parameters and means something where layers have several outputs
HIDDEN = [
    "doubly-stochastic", "mean-field", "markov", "conditional", "conditional-tied", "conditional-free",
    "conditional-across", "amortised", "moment-matched", "nested-compression",
]  # fmt: skip
#: the hidden rules that the other inducing rules are run with; of the mean field its theory says something (4.5)
OTHER_INDUCING = {
    "diagonal": ("doubly-stochastic", "conditional"),
    "low-rank": ("doubly-stochastic", "conditional"),
    "across-outputs": ("doubly-stochastic", "conditional"),
    "layer-chain": ("doubly-stochastic", "conditional", "mean-field"),
    "coupled": ("doubly-stochastic", "conditional"),
}
#: a richer rule that begins at the optimum of a poorer one, which is trained first: (richer, poorer)
AFTER = [("markov", "mean-field"), ("conditional", "mean-field"), ("conditional", "doubly-stochastic")]
LAST_RATE = 1e-4
KEY = ["set", "depth", "hidden", "inducing", "seed"]
MEASURES = [
    "elbo", "elbo_se", "iw_bound", "khat", "test_log_density", "test_rmse", "ms_per_step", "parameters",
]  # fmt: skip


def pairs(name: str) -> list[tuple[str, str]]:
    """The (hidden, inducing) pairs that mean something for a set: layers of one output have nothing across outputs."""
    found = [(hidden, "full-rank") for hidden in HIDDEN]
    found += [(f"{richer} after {poorer}", "full-rank") for richer, poorer in AFTER]
    found += [(hidden, inducing) for inducing, wanted in OTHER_INDUCING.items() for hidden in wanted]
    narrow = name in ("step", "sinusoids")
    return [
        pair for pair in found if not (narrow and ("conditional-across" in pair or "across-outputs" in pair))
    ]


def table_of(name: str, seed: int, data: Path) -> tuple[Table, np.ndarray, np.ndarray]:
    """A set with its training and test rows."""
    built_in = name in ("step", "sinusoids")
    table = load_table(name, seed=seed) if built_in else load_table(str(data / "uci" / f"{name}.npz"))
    train, test = split(table, 0 if built_in else seed)
    most = SETS[name][3]
    return table, train[:most], test


def run(options: argparse.Namespace) -> None:
    """Fit what the CSV does not hold yet; the seeds of a pair follow each other and share what is compiled."""
    finished = rows.done(CSV, KEY)
    for name in options.sets.split(","):
        for depth in map(int, options.depths.split(",")):
            for hidden, inducing in pairs(name):
                if hidden in options.without.split(",") or inducing not in options.inducing.split(","):
                    continue
                made: tuple[Any, dict[str, Guide]] | None = None
                for seed in map(int, options.seeds.split(",")):
                    if (name, str(depth), hidden, inducing, str(seed)) in finished:
                        continue
                    table, train, test = table_of(name, seed, options.data)
                    made = made or guided(name, depth, hidden, inducing, table)
                    row = [name, depth, hidden, inducing, seed, *fit(name, made, seed, table, train, test)]
                    rows.append(CSV, KEY + MEASURES, row)
                    print(*row, flush=True)
                jax.clear_caches()


def guided(name: str, depth: int, hidden: str, inducing: str, table: Table) -> tuple[Any, dict[str, Guide]]:
    """The model, hidden layers as wide as the inputs, and its guide, before it the one at whose optimum it begins."""
    model = deep_gp((table.X.shape[1],) * (depth - 1), SETS[name][0], num_outputs=table.y.shape[1])
    rules = reversed(hidden.split(" after "))
    return model, {
        rule: Guide(model, hidden=HIDDEN_RULES[rule], inducing=INDUCING_RULES[inducing]) for rule in rules
    }


def fit(
    name: str,
    made: tuple[Any, dict[str, Guide]],
    seed: int,
    table: Table,
    train: np.ndarray,
    test: np.ndarray,
) -> list[str]:
    """Train one pair and measure it."""
    model, guides = made
    *poorer, wanted = guides
    _, steps, batch, _ = SETS[name]
    times: list[float] = []
    inputs, targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
    x, y = inputs.transform(table.X), targets.transform(table.y)
    found = compare(
        jax.random.key(seed), lambda: model,
        {rule: lambda _, guide=guide: guide for rule, guide in guides.items()},
        x[train], y[train], x[test], y[test],
        starts=dict([(wanted, each) for each in poorer]), steps=steps, batch_size=batch, learning_rate=rate(steps),
        num_draws=50, num_locals=4, num_samples=100,
        target_scale=targets.scale, on_chunk=lambda *_: times.append(perf_counter()),
    )  # fmt: skip
    row = found.table.iloc[-1].to_dict()
    # chunks of a hundred steps, compilation being in the first
    row["ms_per_step"] = 1e3 * np.median(np.diff(times)) / 100
    return [f"{row[measure]:.6g}" for measure in MEASURES]


@lru_cache
def rate(steps: int) -> optax.Schedule:
    """Adam's rate, the same for all: 0.01, and a decay over the last third, for parameters of single rows are noisy."""
    begin = 2 * steps // 3
    decay = optax.cosine_decay_schedule(0.01, steps - begin, LAST_RATE / 0.01)
    return optax.join_schedules([optax.constant_schedule(0.01), decay], [begin])


def page(_options: argparse.Namespace) -> None:
    """Write the tables and the figure; the verdict between its markers is kept."""
    table = pd.read_csv(CSV)
    table["rule"] = table.hidden + np.where(table.inducing == "full-rank", "", " × " + table.inducing)
    figure(table)
    text = PAGE.read_text() if PAGE.exists() else "# Which guide?\n\n<!-- tables -->\n"
    head = text.split("<!-- tables -->")[0]
    parts = [head.rstrip(), "", "<!-- tables -->", "", f"![{FIGURE.stem}]({FIGURE.name})", ""]
    for (name, depth), group in table.groupby(["set", "depth"], sort=False):
        number, steps, batch, most = SETS[str(name)]
        about = f"M = {number}, {steps} steps of {batch or 'all'} rows" + (
            f", {most} training rows" if most else ""
        )
        parts += [f"## {name}, {depth} layers", "", f"{about}; {group.seed.nunique()} seed(s), means.", ""]
        columns = ["hidden × inducing", "seeds", "ELBO", "± s.e.", "IW bound", "k-hat", "test log density", "RMSE",
                   "ms a step", "parameters"]  # fmt: skip
        parts += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for rule, each in group.groupby("rule", sort=False):
            mean = each[MEASURES].mean()
            error = np.sqrt(np.square(each.elbo_se).sum()) / len(each)
            cells = [str(rule), str(len(each)), f"{mean.elbo:.1f}", f"{error:.1f}", f"{mean.iw_bound:.1f}",
                     f"{mean.khat:.2f}", f"{mean.test_log_density:.3f}", f"{mean.test_rmse:.4g}",
                     f"{mean.ms_per_step:.2f}", f"{mean.parameters:.0f}"]  # fmt: skip
            parts.append("| " + " | ".join(cells) + " |")
        parts.append("")
    PAGE.write_text("\n".join(parts))


def figure(table: pd.DataFrame) -> None:
    """Test log density and ELBO of each pair less those of doubly stochastic inference, a column per set and depth."""
    groups = list(table.groupby(["set", "depth"], sort=False))
    rules = list(dict.fromkeys(table.rule))
    drawn = Figure(figsize=(2.6 + 2.3 * len(groups), 1.2 + 0.62 * len(rules)), layout="constrained")
    panels = drawn.subplots(2, len(groups), sharey=True, squeeze=False)
    for column, ((name, depth), group) in enumerate(groups):
        size = {"step": 100, "sinusoids": 100}.get(str(name))
        base = group[(group.rule == "doubly-stochastic")].set_index("seed")
        for line, measure in enumerate(("elbo", "test_log_density")):
            panel = panels[line, column]
            for place, rule in enumerate(reversed(rules)):
                each = group[group.rule == rule].set_index("seed")
                gain = (each[measure] - base[measure]).dropna()
                panel.plot(gain, [place] * len(gain), "o", color="C0", alpha=0.8, markersize=5)
            panel.axvline(0.0, color="0.6", linewidth=0.8)
            threshold = 10.0 if line == 0 else 0.1
            # a range of less than two of its decades has no ticks worth reading
            if np.abs(panel.get_xlim()).max() > 2 * threshold:
                panel.set_xscale("symlog", linthresh=threshold)
            panel.margins(x=0.08)
            panel.grid(axis="y", alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(axis="x", labelsize=7)
            if line == 0:
                panel.set_title(f"{name}, {depth} layers" + (f"\nN = {size}" if size else ""), fontsize=9)
            panel.set_xlabel("ELBO, nats" if line == 0 else "test log density, nats a row", fontsize=8)
    for line in (0, 1):
        panels[line, 0].set_yticks(range(len(rules)), list(reversed(rules)), fontsize=8)
    drawn.suptitle(
        "Gain over doubly-stochastic × full-rank (a dot per seed; wide ranges on a symmetric log scale)",
        fontsize=10,
    )
    drawn.savefig(FIGURE, dpi=110)


def main() -> None:
    """Run the benchmark or write its page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--data", type=Path, required=True)
    runner.add_argument("--sets", default=",".join(SETS))
    runner.add_argument("--depths", default="2,3")
    runner.add_argument("--seeds", default="0,1,2")
    runner.add_argument("--inducing", default=",".join(["full-rank", *OTHER_INDUCING]))
    runner.add_argument(
        "--without", default="", help="hidden rules that are left out, such as nested-compression"
    )
    runner.set_defaults(main=run)
    commands.add_parser("page").set_defaults(main=page)
    options = parser.parse_args()
    options.main(options)


if __name__ == "__main__":
    main()
