"""Chapter 3 of Chamberlin (2016) again: GP and deep GP on a step and a sum of sinusoids, with three kinds of training.

    python -m benchmarks.thesis run       # benchmarks/thesis.csv and the figures docs/thesis-*.png
    python -m benchmarks.thesis page      # the tables of docs/thesis.md, from the CSV

The deep GP has one hidden unit and a mean-field q(h). Its bound with q(u) at its optimum is maximised by L-BFGS, from
its usual start and from its shallow one, and by Adam; the same bound with a free q(u) by Adam and by natural gradients.
Beside them is what is trained without a word on how. A run of a given number of steps is stopped and resumed (bit for
bit the run that never stopped) to look at the gradient on the way.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd

from benchmarks import rows
from benchmarks.folding import folded

numpyro.enable_x64()

from matplotlib.figure import Figure  # noqa: E402
from numpyro.infer import ELBO, SVI  # noqa: E402
from numpyro.infer.util import transform_fn  # noqa: E402

from ppl_dgp.cli.loading import load_task  # noqa: E402
from ppl_dgp.cli.report import in_units  # noqa: E402
from ppl_dgp.cli.settings import Settings  # noqa: E402
from ppl_dgp.cli.task import Task  # noqa: E402
from ppl_dgp.diagnostics import layer_maps, plot_fit, plot_layers  # noqa: E402
from ppl_dgp.diagnostics.figures import COLOURS  # noqa: E402
from ppl_dgp.diagnostics.scores import held_out_scores  # noqa: E402
from ppl_dgp.fit import Fit, fit_lbfgs, fit_svi, natural_adam, shallow_start  # noqa: E402
from ppl_dgp.guides import Conditional, Guide, MeanField  # noqa: E402
from ppl_dgp.models import deep_gp, sparse_gp_regression  # noqa: E402
from ppl_dgp.objectives import Collapsed, PowerEP  # noqa: E402
from ppl_dgp.prediction.joint import sample_functions  # noqa: E402
from ppl_dgp.prediction.predict import predict  # noqa: E402

CSV, PAGE, DOCS = Path("benchmarks/thesis.csv"), Path("docs/thesis.md"), Path("docs")
SETS, SEEDS, NUM_INDUCING, KEY = ("step", "sinusoids"), (0, 1, 2, 3, 4), 20, jax.random.key(0)
LBFGS_STEPS, STEPS, BUDGET = 3000, 5000, 52_800
FIELDS = [
    "set",
    "seed",
    "fit",
    "bound",
    "test_log_density",
    "squared_error",
    "iterations",
    "seconds",
    "gradient",
    "gap",
    "converged",
]
SPARSE, DEEP = "sparse GP, L-BFGS", "deep GP, L-BFGS"


@dataclass(frozen=True, eq=False)
class Program:
    """What is trained, by which optimiser (Adam by default), from which start; without ``steps`` by the default."""

    model: Any
    guide: Guide
    objective: ELBO
    steps: int | None = None
    optimizer: Any = None
    shallow: bool = False
    path: tuple[Any, ...] = ()

    def fit(self, x: Any, y: Any, steps: int, folder: Path, resume: bool) -> Fit:
        """The fit after ``steps`` steps, those before a resumption included."""
        saved: dict[str, Any] = {"steps": steps, "checkpoint": folder, "resume": resume}
        if self.optimizer == "L-BFGS":
            start = self.shallow_start(x, y) if self.shallow else None
            about = {"guide": self.guide, "objective": self.objective, "start": start}
            return fit_lbfgs(KEY, self.model, x, y, **about, **saved)
        about = KEY, self.model, self.guide, self.objective, x, y
        if self.steps is None:
            return fit_svi(*about, budget=BUDGET, path=self.path or None)
        return fit_svi(*about, optimizer=self.optimizer, chunk=10, **saved)

    def shallow_start(self, x: Any, y: Any) -> dict[str, Any]:
        """The shallow start but for q(u), which is at its optimum by itself."""
        start = shallow_start(KEY, self.model, Guide(self.model), x, y)
        return {name: value for name, value in start.items() if "/u_" not in name}


def programs() -> dict[str, Program]:
    """The fits, by name: the thesis' two, then the same deep GP trained in other ways, then with a richer q(h)."""
    sparse, deep = sparse_gp_regression(NUM_INDUCING), deep_gp((1,), NUM_INDUCING)
    field, coupled = Guide(deep, hidden=MeanField()), Guide(deep, hidden=Conditional())
    closed = PowerEP(0.0, propagation="moments")
    return {
        SPARSE: Program(sparse, Guide(sparse), Collapsed(), LBFGS_STEPS, "L-BFGS"),
        DEEP: Program(deep, field, Collapsed(), LBFGS_STEPS, "L-BFGS"),
        "deep GP, Adam at the optimal q(u)": Program(deep, field, Collapsed(), STEPS),
        "deep GP, Adam": Program(deep, field, closed, STEPS),
        "deep GP, natural gradients and Adam": Program(deep, field, closed, STEPS, natural_adam(0.1, 0.01)),
        "deep GP, L-BFGS from the shallow start": Program(
            deep, field, Collapsed(), LBFGS_STEPS, "L-BFGS", shallow=True
        ),
        "deep GP, the default": Program(deep, field, closed),
        "deep GP, coupled q(h), the default from there": Program(
            deep, coupled, PowerEP(0.0), path=(MeanField(),)
        ),
    }


def gradient_norm(program: Program, x: Any, y: Any) -> Callable[[Fit], float]:
    """The norm of the objective's gradient in the unconstrained parameters."""
    svi = SVI(program.model, program.guide, numpyro.optim.Adam(0.01), program.objective)
    svi.init(KEY, x, y)
    transforms = svi.constrain_fn.args[0]

    @jax.jit
    def norm(free: Any) -> Any:
        def loss(free: Any) -> Any:
            params = svi.constrain_fn(free)
            return program.objective.loss(KEY, params, program.model, program.guide, x, y)

        squares = [jnp.square(leaf).sum() for leaf in jax.tree.leaves(jax.grad(loss)(free))]
        return jnp.sqrt(jnp.stack(squares).sum())

    return lambda fit: float(norm(transform_fn(transforms, fit.params, invert=True)))


def stops(steps: int) -> list[int]:
    """Where a run is looked at: 1, 2, 5, 10, 20, 50, … steps."""
    found = [int(lead * 10**power) for power in range(6) for lead in (1, 2, 5)]
    return [stop for stop in found if stop < steps] + [steps]


def trained(program: Program, x: Any, y: Any, trace: bool) -> tuple[Fit, list[tuple[int, float]]]:
    """The fit, and the gradient's norm after so many steps."""
    if program.steps is None:
        return program.fit(x, y, 0, Path(), resume=False), []
    norm, norms = gradient_norm(program, x, y), []
    with tempfile.TemporaryDirectory() as folder:
        fit = None
        for stop in stops(program.steps) if trace else [program.steps]:
            fit = program.fit(x, y, stop, Path(folder) / "state", resume=fit is not None)
            norms.append((fit.steps, norm(fit)))
            if fit.steps < stop:
                break
    assert fit is not None
    return fit, norms


def run(_options: argparse.Namespace) -> None:
    """All fits, the row of each appended to the CSV; the figures of seed 0."""
    done = rows.done(CSV, FIELDS[:3])
    made = programs()
    for name in SETS:
        for seed in SEEDS:
            if all((name, str(seed), each) in done for each in made):
                continue
            task = load_task(name, Settings(seed=seed))
            fits: dict[str, tuple[Fit, list[tuple[int, float]]]] = {}
            for each, program in made.items():
                x, y = task.rows(task.train_rows)
                fits[each] = trained(program, jnp.asarray(x), jnp.asarray(y), trace=seed == 0)
                row = measured(task, *fits[each])
                if (name, str(seed), each) not in done:
                    rows.append(CSV, FIELDS, [name, seed, each, *row])
                print(name, seed, each, *row, flush=True)
            if seed == 0:
                draw(task, fits)


def measured(task: Task, fit: Fit, norms: list[tuple[int, float]]) -> list[str]:
    """The columns of the CSV from ``bound`` on; log density and squared error are sums over the test rows."""
    x, y = task.rows(task.test_rows)
    scale, number = task.y_units.scale, len(y)
    found = held_out_scores(KEY, fit, x, y, num_samples=500, target_scale=scale)
    # a bound that is sampled: the mean of the last hundred steps
    last = 1 if isinstance(fit.objective, Collapsed) else 100
    values = [
        -np.nanmean(fit.losses[0, -last:]), number * found["test_log_density"], number * found["test_rmse"] ** 2,
        fit.steps, fit.seconds, norms[-1][1] if norms else np.nan, fit.gap,
    ]  # fmt: skip
    return [*(f"{value:.6g}" for value in values), str(fit.converged)]


def draw(task: Task, fits: dict[str, tuple[Fit, list[tuple[int, float]]]]) -> None:
    """Predictions, layers and traces of one set."""
    name = task.table.name
    figure = Figure(figsize=(12.0, 4.2), layout="constrained")
    for panel, which in zip(figure.subplots(1, 2, sharey=True), (SPARSE, DEEP), strict=True):
        fit = fits[which][0]
        x_test, y_test = map(jnp.asarray, task.rows(task.test_rows))
        # beyond the data too, where uncertainty adds up through the layers
        wide = jnp.linspace(1.6 * x_test.min(), 1.6 * x_test.max(), 400)[:, None]
        found = predict(KEY, fit, wide, num_samples=1000, levels=(0.025, 0.975))
        draws = sample_functions(KEY, fit, wide, 5)
        prediction, samples = in_units(found, task.y_units), task.y_units.inverse(draws)
        shown = task.x_units.inverse(np.asarray(wide))
        plot_fit(prediction, shown, *task.raw(task.train_rows), samples=samples, axes=panel)
        panel.set_title(which)
    figure.savefig(DOCS / f"thesis-{name}-fit.png", dpi=100)
    fit = fits[DEEP][0]
    maps = layer_maps(fit, jnp.asarray(task.rows(task.train_rows)[0]))
    plot_layers(maps).savefig(DOCS / f"thesis-{name}-layers.png", dpi=100)
    traces(fits).savefig(DOCS / f"thesis-{name}-traces.png", dpi=100)


def traces(fits: dict[str, tuple[Fit, list[tuple[int, float]]]]) -> Figure:
    """Bound and gradient norm of the mean-field deep GP on the way."""
    figure = Figure(figsize=(12.0, 4.4), layout="constrained")
    bounds, slopes = figure.subplots(1, 2)
    shown = [name for name in fits if isinstance(fits[name][0].guide.hidden, MeanField) and fits[name][1]]
    for colour, name in zip(COLOURS, shown, strict=False):
        fit, norms = fits[name]
        bounds.plot(np.arange(1, fit.steps + 1), -fit.losses[0], color=colour, linewidth=1.4, label=name)
        slopes.plot(*zip(*norms, strict=True), "o-", color=colour, linewidth=1.2, markersize=3.5)
    best = max(-fits[name][0].losses[0, -1] for name in shown)
    bounds.set(xscale="log", xlabel="step", ylabel="bound (nats)", ylim=(best - 300, best + 15))
    slopes.set(
        xscale="log", yscale="log", xlabel="step", ylabel="norm of its gradient, unconstrained parameters"
    )
    figure.legend(frameon=False, fontsize="small", loc="outside upper left", ncols=len(shown))
    for panel in (bounds, slopes):
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def page(_options: argparse.Namespace) -> None:
    """Write the tables below the marker; what stands above it is kept."""
    table, marker = pd.read_csv(CSV), "<!-- tables -->"
    head = (
        PAGE.read_text().split(marker)[0] if PAGE.exists() else "# Chapter 3 of Chamberlin (2016) again\n\n"
    )
    parts = [head.rstrip(), "", marker]
    columns = [
        "fit",
        "bound",
        "to gain",
        "test log density, 321 points",
        "squared error",
        "iterations",
        "seconds",
    ]
    for name, group in table.groupby("set", sort=False):
        parts += ["", f"## {name}", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for fit, each in group.groupby("fit", sort=False):
            seeds = lambda measure, each=each: ", ".join(f"{value:.1f}" for value in each[measure])
            gaps = ", ".join(f"{value:.2g}" for value in each.gap)
            density = f"{each.test_log_density.mean():.1f} ({seeds('test_log_density')})"
            error, turns = f"{each.squared_error.mean():.2f}", ", ".join(map(str, each.iterations))
            cells = [str(fit), seeds("bound"), gaps, density, error, turns, seeds("seconds")]
            parts.append("| " + " | ".join(cells) + " |")
        parts += ["", f"![{name}: prediction](thesis-{name}-fit.png)", f"![{name}: layers](thesis-{name}-layers.png)",
                  f"![{name}: traces](thesis-{name}-traces.png)"]  # fmt: skip
    PAGE.write_text(folded("\n".join(parts) + "\n"))


def main() -> None:
    """Run the benchmark or write its page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    commands.add_parser("run").set_defaults(main=run)
    commands.add_parser("page").set_defaults(main=page)
    options = parser.parse_args()
    options.main(options)


if __name__ == "__main__":
    main()
