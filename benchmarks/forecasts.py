"""Series, gaps and counts: additive GPs, Fourier features and Cox processes beside what others would take.

    python -m benchmarks.forecasts --data DIR --tasks series,counts,gaps     # appends what the CSV lacks
    python -m benchmarks.forecasts --data DIR --figure
    python -m benchmarks.forecasts --table

DIR holds ``regression/mauna_loa_co2.npz``, ``airline_passengers.npz``, ``solar_irradiance.npz``,
``coal_mining_events.npz`` and ``neural/hippocampus_linear_track.npz``. What is fitted is in
:mod:`benchmarks.forecasts_series`, :mod:`benchmarks.forecasts_counts` and :mod:`benchmarks.forecasts_gaps`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro

numpyro.enable_x64()

import pandas as pd  # noqa: E402

from benchmarks import forecasts_counts as counts  # noqa: E402
from benchmarks import forecasts_gaps as gaps  # noqa: E402
from benchmarks import forecasts_series as series  # noqa: E402
from benchmarks import rows  # noqa: E402

CSV = Path("benchmarks/forecasts.csv")
FIGURE = Path("docs/outputs-co2.png")
#: of the three converged fits of that model the one with the highest bound
FIGURE_SEED = 1
FIELDS = (
    "task", "set", "model", "split", "rmse", "log_density", "coverage95", "bound", "gap", "converged", "steps",
    "seconds",
)  # fmt: skip
Fitted = Callable[[Path, str, str, int], dict[str, Any]]
#: sets, models, number of splits or seeds, what fits; the model that others are compared with
TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, Fitted, str]] = {
    "series": (("airline", "co2"), series.MODELS, 3, series.fitted, "exact"),
    "counts": (("coal", "hippocampus"), counts.MODELS, 10, counts.fitted, "Cox process"),
    "gaps": (("solar",), gaps.MODELS, 10, gaps.fitted, "Matern52 points 50"),
}
#: heads of their columns, and digits
MEASURES = {
    "rmse": ("RMSE", 3), "log_density": ("log density", 3), "coverage95": ("within 95 %", 2),
    "bound": ("evidence or bound", 1), "seconds": ("seconds", 1),
}  # fmt: skip
#: measures of which paired differences from that model are shown
DIFFERENCES: dict[str, tuple[str, ...]] = {
    "series": (), "counts": ("log_density",), "gaps": ("rmse", "log_density"),
}  # fmt: skip


def shown() -> None:
    """Tables in Markdown: means over splits or seeds, and differences paired by them, with standard errors."""
    if not CSV.exists():
        raise SystemExit(f"{CSV}: found none, expected rows; run the benchmark first")
    frame = pd.read_csv(CSV)
    for (task, name), part in frame.groupby(["task", "set"], sort=False):
        _, models, _, _, base = TASKS[task]
        measures = [measure for measure in MEASURES if part[measure].notna().any()]
        heads = [
            "model",
            *(MEASURES[measure][0] for measure in measures),
            *(f"{MEASURES[measure][0]} less {base}" for measure in DIFFERENCES[task]),
            "converged",
        ]
        print(f"\n{task} {name}\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", sep="\n")
        indexed = {model: part[part["model"] == model].set_index("split") for model in models}
        for model, of_model in indexed.items():
            if of_model.empty:
                continue
            cells = [model]
            for measure in measures:
                digits = MEASURES[measure][1]
                values = of_model[measure].dropna()
                cells.append("" if values.empty else with_error(values, digits, measure != "seconds"))
            for measure in DIFFERENCES[task]:
                gain = (of_model[measure] - indexed[base][measure]).dropna()
                cells.append("" if model == base else with_error(gain, 3, True, sign="+"))
            converged = (of_model["converged"].astype(str) == "True").sum()
            cells.append(f"{converged} of {len(of_model)}")
            print(f"| {' | '.join(cells)} |")


def with_error(values: pd.Series, digits: int, error: bool, sign: str = "") -> str:
    """The mean, and its standard error where there are several values that differ."""
    text = f"{values.mean():{sign}.{digits}f}".replace("-", "−")
    return text + (f" ± {values.sem():.{digits}f}" if error and len(values) > 1 else "")


def drawn(data: Path) -> None:
    """The terms of CO2 with bands, and what is forecast."""
    from matplotlib.figure import Figure

    from ppl_dgp import explained, layer_maps

    found = series.record(data, "co2")
    fit = series.fit_of(found, "co2", "sum, q of each", FIGURE_SEED)
    print("explained", explained(fit, found.x[: found.train]), "converged", fit.converged)
    parts = {layer.name: layer for layer in layer_maps(fit, found.x, grid_size=2000)}
    prediction = fit.predict(jax.random.key(1), found.x, num_samples=200)
    years = np.ravel(np.load(data / "regression" / "mauna_loa_co2.npz")["X"])
    shift, spread = years[0] - found.x[0, 0], found.spread
    figure = Figure(figsize=(8.0, 9.0), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(1.6, 1, 1, 1))
    mean, deviation = np.ravel(prediction.mean), np.sqrt(np.ravel(prediction.variance))
    bands = [(years, mean, deviation)]
    bands += [
        (np.ravel(part.grid) + shift, np.ravel(part.grid_mean), np.ravel(part.grid_deviation))
        for part in (parts[name] for name in ("trend", "year", "medium"))
    ]
    labels = ("CO2 (ppm)", "trend (ppm)", "yearly (ppm)", "medium (ppm)")
    for number, (panel, (x, middle, width), label) in enumerate(zip(panels, bands, labels, strict=True)):
        offset = found.centre if number == 0 else 0.0
        low, high = (offset + spread * (middle + sign * 1.96 * width) for sign in (-1.0, 1.0))
        panel.fill_between(x, low, high, color="C0", alpha=0.25, linewidth=0, label="95 %")
        panel.plot(x, offset + spread * middle, color="C0", linewidth=1.0, label="mean")
        panel.axvline(years[found.train], color="0.4", linestyle="--", linewidth=1.0)
        panel.set_ylabel(label)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].plot(years, found.truth, ".", color="0.15", markersize=1.5, label="data")
    panels[0].legend(frameon=False, loc="upper left")
    panels[0].annotate(
        "forecast", (years[found.train], found.truth.min()), (5, 0), textcoords="offset points"
    )
    panels[-1].set(xlabel="year", xlim=(years[0], years[-1]))
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    """Run what is not there yet, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--sets", default="", help="all of the tasks if not given")
    parser.add_argument("--models", default="", help="parted by semicolons; all of the tasks if not given")
    parser.add_argument("--splits", default="", help="such as 0-2; all if not given")
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return shown()
    if options.data is None:
        raise SystemExit("data: found none, expected --data DIR")
    if options.figure:
        return drawn(options.data)
    found = rows.done(CSV, FIELDS[:4])
    for task in options.tasks.split(","):
        names, models, count, fitted, _ = TASKS[task]
        for split in rows.numbers(options.splits or f"0-{count - 1}"):
            for name in options.sets.split(",") if options.sets else names:
                for model in options.models.split(";") if options.models else models:
                    if (task, name, model, str(split)) in found:
                        continue
                    row = {"task": task, "set": name, "model": model, "split": split}
                    row |= fitted(options.data, name, model, split)
                    rows.append_shown(CSV, FIELDS, {field: row.get(field, "") for field in FIELDS})


if __name__ == "__main__":
    main()
