"""A table of fits that are judged by the same measures, and its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ppl_dgp.extras import needed_for
from ppl_dgp.fit import Fit
from ppl_dgp.fit.advice import LARGEST_K_HAT, advice_of
from ppl_dgp.fit.convergence import Convergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
else:  # extras: a comparison has its numbers without them
    Figure = Table = Any

#: the measures of a row: the heading and the format each is shown with (elbo_se stands beside elbo)
MEASURES = {
    "elbo": ("ELBO ± s.e.", ",.2f"),
    "elbo_se": ("", ".2f"),
    "iw_bound": ("IW bound", ",.2f"),
    "khat": ("k-hat", ".2f"),
    "loo": ("LOO", ",.2f"),
    "test_log_density": ("test log density", ".3f"),
    "test_rmse": ("test RMSE", ".4g"),
    "coverage95": ("in 95 %", ".3f"),
    "test_accuracy": ("accuracy", ".3f"),
    "test_calibration_error": ("calibration error", ".3f"),
    "gap": ("to gain", ",.2g"),
    "seconds": ("s", ",.1f"),
    "parameters": ("params", ",.0f"),
}

#: those that numbers alone have, and those of classes in their place
OF_NUMBERS, OF_LABELS = ("test_rmse", "coverage95"), ("test_accuracy", "test_calibration_error")


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """One row per fit and α.

    ``table`` has the columns fit, alpha, then ``elbo`` ± ``elbo_se``, ``iw_bound``, ``loo`` in total nats over the
    training rows on the scale of training; ``khat`` of the global sites; ``test_log_density`` (mean per test row),
    ``test_rmse``, ``coverage95`` in original units, of classes in their place ``test_accuracy`` and
    ``test_calibration_error``; ``gap``, an estimate of the nats that training would yet gain, and
    whether it has ``converged``; ``seconds`` of training; ``parameters`` trained; NaN where there is no such figure.
    ``iw_bound``, ``khat`` and ``loo`` are of the t_1 (FITC) model. Rows that have not converged are marked, and none of
    them is called the best. ``fits`` has the fit of each row by (fit, alpha).
    """

    table: pd.DataFrame
    fits: dict[tuple[str, float], Fit] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.table.to_string(index=False, na_rep="", float_format="{:.4g}".format)

    def __add__(self, other: Comparison) -> Comparison:
        """Both tables, one below the other (two objectives on the same data).

        :raises ValueError: if a fit of one has the name and α of a fit of the other.
        """
        for shared in self.fits.keys() & other.fits.keys():
            raise ValueError(
                f"other: found {shared} in both comparisons, expected distinct names; rename one's guides"
            )
        return Comparison(
            pd.concat([self.table, other.table], ignore_index=True), {**self.fits, **other.fits}
        )

    def to_rich(self, title: str | None = None) -> Table:
        """For the terminal: ``rich.print(comparison.to_rich())``.

        The best value of a column stands in bold; fits that have not converged are none of the best, and what they have
        to gain, in nats, has an asterisk; a question mark where that is not known.
        """
        with needed_for("a table for the terminal"):
            from rich.box import SIMPLE_HEAD
            from rich.markup import escape
            from rich.table import Table
        shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        shown.add_column("fit", no_wrap=True)
        shown.add_column("α", justify="right", no_wrap=True)
        names = [name for name in self.table if name in MEASURES and name != "elbo_se"]
        for name in names:
            shown.add_column(MEASURES[name][0], justify="right")
        judged = self.table.where(~self.table["converged"].isin([False]))
        best = {name: _best(judged[name], name) for name in names}
        for position, (_, row) in enumerate(self.table.iterrows()):
            cells = [_cell(row, name) for name in names]
            bold = [
                f"[bold]{c}[/]" if best[name] == position else c for name, c in zip(names, cells, strict=True)
            ]
            alpha = "–" if pd.isna(row["alpha"]) else f"{row['alpha']:g}"
            shown.add_row(str(row["fit"]), alpha, *bold)
        if self.advice:
            shown.caption, shown.caption_justify = escape("\n".join(self.advice)), "left"
        return shown

    @property
    def advice(self) -> tuple[str, ...]:
        """What may be wrong with its fits and what to do about it, each said once, of the rows that it is true of.

        Of several a k-hat is the worst, and so are the nats that are left to gain.
        """
        found: dict[str, list[str]] = {}
        fits = {_label(*key): fit for key, fit in self.fits.items()}
        worst = self.table["khat"].max()
        left = [fit.convergence for fit in fits.values() if fit.convergence and _can_gain(fit.convergence)]
        furthest = max(left, key=lambda known: known.gap, default=None)
        for _, row in self.table.iterrows():
            label = _label(row["fit"], row["alpha"])
            if label not in fits:
                continue
            khat = None if pd.isna(row["khat"]) else float(row["khat"])
            if khat is not None and khat > LARGEST_K_HAT:
                khat = float(worst)
            bound, fit = (max(row["elbo"], row["iw_bound"]), row["elbo_se"]), fits[label]
            if fit.convergence and _can_gain(fit.convergence):
                fit = replace(fit, convergence=furthest)
            for text in advice_of(fit, khat, None if np.isnan(bound).any() else bound):
                found.setdefault(text, []).append(label)
        return tuple(f"{'; '.join(labels)}: {text}" for text, labels in found.items())

    def figure(self) -> Figure:
        """Row by row: ELBO ± 2 s.e. and importance-weighted bound, test log density (or LOO), k-hat."""
        from matplotlib.figure import Figure

        from ppl_dgp.diagnostics.figures import COLOURS, INK

        table, places = self.table, np.arange(len(self.table))[::-1]
        figure = Figure(figsize=(10.5, 1.4 + 0.42 * len(table)), layout="constrained")
        bounds, density, trust = figure.subplots(1, 3, sharey=True)
        error = 2 * table["elbo_se"]
        bounds.errorbar(table["elbo"], places, xerr=error, fmt="o", color=COLOURS[0], label="ELBO ± 2 s.e.")
        weighted = "importance-weighted bound (FITC)"
        bounds.plot(table["iw_bound"], places, "D", color=COLOURS[1], markersize=4.5, label=weighted)
        bounds.set_xlabel("nats, training rows")
        figure.legend(loc="outside upper left", frameon=False, fontsize="small", ncols=2)
        tested = bool(table["test_log_density"].notna().any())
        density.plot(table["test_log_density" if tested else "loo"], places, "o", color=COLOURS[2])
        density.set_xlabel("test log density, nats per row" if tested else "LOO, nats")
        khat = table["khat"].replace([np.inf, -np.inf], np.nan)
        trust.plot(khat, places, "o", color=INK)
        trust.axvline(0.7, color=COLOURS[1], linestyle="--", linewidth=1.0)
        trust.set_xlabel("Pareto k-hat (trust below 0.7)")
        labels = [_label(name, alpha) for name, alpha in zip(table["fit"], table["alpha"], strict=True)]
        bounds.set_yticks(places, labels)
        bounds.set_ylim(-0.6, len(table) - 0.4)
        for panel in (bounds, density, trust):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", alpha=0.25)
            panel.locator_params(axis="x", nbins=4)  # more of long numbers touch each other
        return figure


def tabulate(
    rows: Mapping[tuple[str, float], Callable[[], Mapping[str, Any]]],
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Fit and measure row after row: what :func:`compare` does, for fits made in another way.

    :param rows: by (name, α), a function that fits and returns the row's measures, those of ``MEASURES`` that it has;
        α is NaN for what has none.
    :param say: as in :func:`compare`.
    :raises ValueError: without rows.
    """
    if not rows:
        raise ValueError("rows: found none, expected at least one to compare")
    table_rows = []
    for number, ((name, alpha), run) in enumerate(rows.items(), start=1):
        if say is not None:
            say(f"{number} of {len(rows)}: {_label(name, alpha)}")
        measures = run()
        table_rows.append(
            {"fit": name, "alpha": alpha, "converged": measures.get("converged")}
            | {measure: measures.get(measure) for measure in MEASURES}
        )
    of_classes = any(row["test_accuracy"] is not None for row in table_rows)
    absent = OF_NUMBERS if of_classes else OF_LABELS
    names = [name for name in MEASURES if name not in absent]
    table = pd.DataFrame(table_rows, columns=["fit", "alpha", "converged", *names])
    return Comparison(table.astype({name: float for name in names if name != "parameters"}))


def _can_gain(known: Convergence) -> bool:
    """Whether a fit has nats left to gain that are known."""
    return bool(np.isfinite(known.gap)) and not known.converged and not known.shortfall


def _label(name: str, alpha: float) -> str:
    return name if np.isnan(alpha) else f"{name}, α = {alpha:g}"


def _best(column: pd.Series, name: str) -> int:
    """Position of the best value, −1 where the column has no best."""
    if name in ("seconds", "parameters") or not column.notna().any():
        return -1
    values = column.to_numpy(float)
    if name == "coverage95":
        return int(np.nanargmin(np.abs(values - 0.95)))
    least = ("test_rmse", "test_calibration_error", "khat")
    return int(np.nanargmin(values) if name in least else np.nanargmax(values))


def _cell(row: pd.Series, name: str) -> str:
    if pd.isna(row[name]):
        return "–"
    text = format(row[name], MEASURES[name][1]).replace("inf", "?")
    if name == "gap" and row["converged"] is not None and not row["converged"]:
        return f"{text} *"
    return f"{text} ± {row['elbo_se']:{MEASURES['elbo_se'][1]}}" if name == "elbo" else text
