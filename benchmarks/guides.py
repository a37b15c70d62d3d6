"""Which dependencies are worth modelling? Rules for the hidden variables and for q(u), trained until they converge.

    python -m benchmarks.guides run --data DIR --sets step,boston --seeds 0-4    # appends what the CSV does not hold
    python -m benchmarks.guides page                                             # tables, paired differences, figure
    python -m benchmarks.guides batches ALL.csv SOME.csv    # bounds by minibatches beside those by all rows

DIR holds ``uci/<set>.npz`` with arrays X, y and the splits' row indices train and test. All fits of a set and a seed
are one ``compare``: ``steps="auto"`` with a larger budget than the default, and a rule that contains others starts at
the best of those. The seed is that of the synthetic data, or the number of the split; rows are written when all rules
of a set and seed are there; where some are there already, those that are left are compared among themselves.
``--rules``, ``--rows``, ``--batch``, ``--budget`` and ``--out`` are for rows of another kind, in a CSV of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from benchmarks.folding import folded  # noqa: E402
from benchmarks.rows import append, done, numbers  # noqa: E402
from ppl_dgp.data import Standardiser, load_table, split  # noqa: E402
from ppl_dgp.diagnostics import compare  # noqa: E402
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES, Guide  # noqa: E402
from ppl_dgp.models import deep_gp  # noqa: E402

CSV, PAGE, FIGURE = Path("benchmarks/guides.csv"), Path("docs/which-guide.md"), Path("docs/which-guide.png")
TABLES = "<!-- tables -->"
#: M, most steps, rows of a minibatch (None: all), most training rows
SETS: dict[str, tuple[int, int, int | None, int | None]] = {
    "step": (20, 52_800, None, None),
    "sinusoids": (20, 52_800, None, None),
    "boston": (20, 27_200, None, 300),
    "energy": (20, 27_200, None, 300),
    "wine_red": (20, 27_200, None, 300),
    "kin8nm": (20, 27_200, None, 300),
    "naval": (20, 27_200, None, 300),
    "protein": (20, 27_200, None, 300),
    "yacht": (20, 27_200, None, 300),
}
_SETTINGS = ("budget", "batch", "most")
SYNTHETIC = ("step", "sinusoids")
#: (hidden, inducing), poorer ones first
PAIRS = [
    *((hidden, "full-rank") for hidden in (
        "doubly-stochastic", "mean-field", "markov", "conditional", "conditional-markov", "conditional-tied",
        "conditional-free", "amortised", "moment-matched",
    )),
    *(("doubly-stochastic", inducing) for inducing in ("diagonal", "low-rank", "layer-chain", "global")),
]  # fmt: skip
BASE = PAIRS[0]
KEY = ["set", "depth", "seed"]
MEASURES = [
    "elbo", "elbo_se", "iw_bound", "khat", "test_log_density", "test_rmse", "gap", "seconds", "parameters",
]  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Compare what the CSV does not hold yet."""
    finished = done(options.out, [*KEY, "hidden", "inducing"])
    wanted = [pair for pair in PAIRS if options.rules is None or _label(*pair) in options.rules.split(",")]
    others = {"budget": options.budget, "batch": options.batch, "most": options.rows}
    others = {name: value for name, value in others.items() if value is not None}
    for name in options.sets.split(","):
        for seed in numbers(options.seeds):
            left = [pair for pair in wanted if (name, str(options.depth), str(seed), *pair) not in finished]
            for row in compared(name, options.depth, seed, options.data, left, **others) if left else ():
                append(options.out, [*KEY, "hidden", "inducing", *MEASURES, "converged"], row)
                print(*row, flush=True)


def compared(
    name: str, depth: int, seed: int, data: Path, pairs: list[tuple[str, str]], **others: int
) -> Iterator[list[Any]]:
    """The rows of one set and seed, when all are there; ``others`` in the place of what SETS says."""
    num_inducing, *usual = SETS[name]
    budget, batch, most = (others.get(key, value) for key, value in zip(_SETTINGS, usual, strict=True))
    table = (
        load_table(name, seed=seed) if name in SYNTHETIC else load_table(str(data / "uci" / f"{name}.npz"))
    )
    train, test = split(table, 0 if name in SYNTHETIC else seed)
    train = train[:most]
    inputs, targets = Standardiser.fit(table.X[train]), Standardiser.fit(table.y[train])
    x, y = inputs.transform(table.X), targets.transform(table.y)
    model = deep_gp((table.X.shape[1],) * (depth - 1), num_inducing, num_outputs=table.y.shape[1])

    def maker(hidden: str, inducing: str) -> Any:
        return lambda _: Guide(model, hidden=HIDDEN_RULES[hidden], inducing=INDUCING_RULES[inducing])

    found = compare(
        jax.random.key(seed), lambda: model, {_label(*pair): maker(*pair) for pair in pairs},
        x[train], y[train], x[test], y[test],
        budget=budget, batch_size=batch, num_draws=100, num_locals=4, num_samples=200, target_scale=targets.scale,
        say=lambda text: print(name, seed, text, file=sys.stderr, flush=True),
    )  # fmt: skip
    rows = found.table.set_index("fit")
    for pair in pairs:
        row = rows.loc[_label(*pair)]
        values = [f"{row[measure]:.6g}" for measure in MEASURES]
        yield [name, depth, seed, *pair, *values, bool(row["converged"])]


def _label(hidden: str, inducing: str) -> str:
    return hidden if inducing == "full-rank" else f"{hidden} × {inducing}"


def page(_options: argparse.Namespace) -> None:
    """Write the tables and the figure; what stands before the marker is kept."""
    table = pd.read_csv(CSV)
    table["rule"] = [_label(*pair) for pair in zip(table.hidden, table.inducing, strict=True)]
    figure(table)
    head = PAGE.read_text(encoding="utf-8").split(TABLES)[0] if PAGE.exists() else "# Which guide?\n"
    parts = [head.rstrip(), "", TABLES, "", f"![{FIGURE.stem}]({FIGURE.name})", ""]
    for (name, depth), group in table.groupby(["set", "depth"], sort=False):
        num_inducing, budget, batch, most = SETS[str(name)]
        about = f"M = {num_inducing}, {f'minibatches of {batch}' if batch else 'all'} rows, at most {budget:,} steps"
        about += f", {most} training rows" if most else ""
        count = group.seed.nunique()
        parts += [f"## {name}, {depth} layers", "", f"{about}; {count} seed{'s' * (count > 1)}.", ""]
        columns = ["hidden × inducing", "ELBO", "less that of doubly stochastic", "test log density",
                   "less that of doubly stochastic", "k-hat", "to gain", "converged", "seconds"]  # fmt: skip
        parts += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        base = group[group.rule == _label(*BASE)].set_index("seed")
        for rule, each in group.groupby("rule", sort=False):
            of_seed = each.set_index("seed")
            cells = [
                str(rule), f"{each.elbo.mean():.1f}", paired(of_seed.elbo - base.elbo, ".1f"),
                f"{each.test_log_density.mean():.3f}", paired(of_seed.test_log_density - base.test_log_density, ".3f"),
                f"{each.khat.mean():.2f}", f"{each.gap.median():.2g}", f"{each.converged.sum()} of {len(each)}",
                f"{each.seconds.mean():.0f}",
            ]  # fmt: skip
            parts.append("| " + " | ".join(cells) + " |")
        parts.append("")
    PAGE.write_text(folded("\n".join(parts)), encoding="utf-8")


def batches(options: argparse.Namespace) -> None:
    """Print the bounds of the same fits by all rows and by minibatches."""
    both = pd.merge(
        *map(pd.read_csv, (options.whole, options.some)), on=[*KEY, "hidden", "inducing"], sort=False
    )
    print("| set | rule | all rows: bound | to gain | minibatches: bound | to gain | less, nats | seconds |")
    print("|---" * 8 + "|")
    for _, row in both.iterrows():
        less, noise = row.elbo_x - row.elbo_y, np.hypot(row.elbo_se_x, row.elbo_se_y)
        cells = [
            row.set, _label(row.hidden, row.inducing), f"{row.elbo_x:.1f}", f"{row.gap_x:.2g}", f"{row.elbo_y:.1f}",
            f"{row.gap_y:.2g}", f"{less:.1f} ± {noise:.1f}", f"{row.seconds_x:.0f}, {row.seconds_y:.0f}",
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |")


def paired(differences: pd.Series, form: str) -> str:
    """The mean of differences seed by seed, and its standard error."""
    known = differences.dropna()
    if not known.any():
        return ""
    error = f" ± {format(known.std(ddof=1) / np.sqrt(len(known)), form)}" if len(known) > 1 else ""
    return f"{format(known.mean(), '+' + form)}{error}"


def figure(table: pd.DataFrame) -> None:
    """ELBO and test log density of each rule less those of doubly stochastic inference, a column per set and depth."""
    groups, rules = list(table.groupby(["set", "depth"], sort=False)), list(dict.fromkeys(table.rule))
    drawn = Figure(figsize=(2.6 + 2.3 * len(groups), 1.4 + 0.5 * len(rules)), layout="constrained")
    panels = drawn.subplots(2, len(groups), sharey=True, squeeze=False)
    for column, ((name, depth), group) in enumerate(groups):
        base = group[group.rule == _label(*BASE)].set_index("seed")
        for line, measure in enumerate(("elbo", "test_log_density")):
            panel = panels[line, column]
            for place, rule in enumerate(reversed(rules)):
                each = group[group.rule == rule].set_index("seed")
                gain = (each[measure] - base[measure]).dropna()
                for said, marker in ((True, "o"), (False, "x")):
                    shown = gain[each.converged.reindex(gain.index) == said]
                    panel.plot(shown, [place] * len(shown), marker, color="C0", alpha=0.8, markersize=5)
            panel.axvline(0.0, color="0.6", linewidth=0.8)
            threshold = 10.0 if line == 0 else 0.1
            # a range of less than two of its decades has no ticks worth reading
            if np.abs(panel.get_xlim()).max() > 2 * threshold:
                panel.set_xscale("symlog", linthresh=threshold)
            else:
                panel.locator_params(axis="x", nbins=4)
            panel.margins(x=0.08)
            panel.grid(axis="y", alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(axis="x", labelsize=7)
            if line == 0:
                panel.set_title(f"{name}, {depth} layers", fontsize=9)
            panel.set_xlabel("ELBO, nats" if line == 0 else "test log density, nats a row", fontsize=8)
    for line in (0, 1):
        panels[line, 0].set_yticks(range(len(rules)), list(reversed(rules)), fontsize=8)
    drawn.suptitle(
        "Less doubly stochastic × full rank, seed by seed\n(crosses: not converged; wide ranges: symmetric log scale)",
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
    runner.add_argument("--depth", type=int, default=2)
    runner.add_argument("--seeds", default="0-1")
    runner.add_argument(
        "--rules", help="of the rows of the tables, as they are called there; all unless told"
    )
    runner.add_argument("--rows", type=int, help="training rows, at most")
    runner.add_argument("--batch", type=int, help="rows of a minibatch")
    runner.add_argument("--budget", type=int, help="steps, at most")
    runner.add_argument("--out", type=Path, default=CSV)
    runner.set_defaults(main=run)
    commands.add_parser("page").set_defaults(main=page)
    beside = commands.add_parser("batches")
    beside.add_argument("whole", type=Path)
    beside.add_argument("some", type=Path)
    beside.set_defaults(main=batches)
    options = parser.parse_args()
    options.main(options)


if __name__ == "__main__":
    main()
