"""The same data and model under several guides and α: one table, one figure (which approximation is to be trusted?)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from ppl_dgp.diagnostics.draws import columns, inputs_of, joint_draws
from ppl_dgp.diagnostics.khat import elbo, expected_log_density, importance_weighted, sites_khat
from ppl_dgp.diagnostics.plots import COLOURS, INK
from ppl_dgp.diagnostics.scores import held_out_scores, positive_scale
from ppl_dgp.fit import Fit, Posterior, fit_svi
from ppl_dgp.fit.advice import LARGEST_K_HAT, advice_of
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.path import bounds, compared
from ppl_dgp.gp.contract import Model
from ppl_dgp.guides import HIDDEN_RULES, Guide, HiddenRule
from ppl_dgp.guides.names import named
from ppl_dgp.guides.nesting import contains, nested_start
from ppl_dgp.objectives import AlphaDivergence, PowerEP

MakeModel = Callable[[], Model]
#: a guide of a model: what makes it, a rule of the hidden layers, or the name of one
MakeGuide = Callable[[Model], Any] | HiddenRule | str

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
    "gap": ("nats to gain", ",.2g"),
    "seconds": ("seconds", ",.1f"),
    "parameters": ("parameters", ",.0f"),
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """One row per fit and α.

    ``table`` has the columns fit, alpha, then ``elbo`` ± ``elbo_se``, ``iw_bound``, ``loo`` in total nats over the
    training rows on the scale of training; ``khat`` of the global sites; ``test_log_density`` (mean per test row),
    ``test_rmse``, ``coverage95`` in original units; ``gap``, an estimate of the nats that training would yet gain, and
    whether it has ``converged``; ``seconds`` of training; ``parameters`` trained; NaN where there is no such figure.
    ``iw_bound``, ``khat`` and ``loo`` are of the t_1 (FITC) model. Rows that have not converged are marked, and none of
    them is called the best. ``fits`` has the fit of each row by (fit, alpha).
    """

    table: pd.DataFrame
    fits: dict[tuple[str, float], Fit] = field(default_factory=dict)

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

        The best value of a column stands in bold; fits that have not converged are none of the best, and their gap has
        an asterisk.
        """
        shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        shown.add_column("fit", no_wrap=True)
        shown.add_column("α", justify="right", no_wrap=True)
        names = [name for name in MEASURES if name != "elbo_se"]
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

        Of several a k-hat is the worst.
        """
        found: dict[str, list[str]] = {}
        fits = {_label(*key): fit for key, fit in self.fits.items()}
        worst = self.table["khat"].max()
        for _, row in self.table.iterrows():
            label = _label(row["fit"], row["alpha"])
            if label not in fits:
                continue
            khat = None if pd.isna(row["khat"]) else float(row["khat"])
            if khat is not None and khat > LARGEST_K_HAT:
                khat = float(worst)
            bound = max(row["elbo"], row["iw_bound"]), row["elbo_se"]
            for text in advice_of(fits[label], khat, None if np.isnan(bound).any() else bound):
                found.setdefault(text, []).append(label)
        return tuple(f"{'; '.join(labels)}: {text}" for text, labels in found.items())

    def figure(self) -> Figure:
        """Row by row: ELBO ± 2 s.e. and importance-weighted bound, test log density (or LOO), k-hat."""
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
        return figure


def compare(
    key: Array,
    model: MakeModel,
    guides: Mapping[str, MakeGuide | tuple[MakeModel, MakeGuide]],
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    alphas: Sequence[float] = (0.0,),
    *,
    steps: int | str = "auto",
    objective: Callable[[float], AlphaDivergence] = PowerEP,
    num_draws: int = 200,
    num_locals: int = 8,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
    starts: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    **fit_settings: Any,
) -> Comparison:
    """Fit every guide at every α on the same rows, with the same key, and judge each by the same measures.

    :param model: makes the model, ``lambda: deep_gp((2,), 50)``.
    :param guides: by the name of the row, a rule of the hidden layers, its name (one of ``HIDDEN_RULES``), or what
        makes a guide of the model: ``lambda m: Guide(m, inducing=Diagonal())``; or a pair of makers for a row with a
        model of its own: ``(lambda: sparse_gp_regression(50), Guide)``.
    :param x: training inputs (N, D), y targets (N, P) or (N,), as the model is to see them (standardised).
    :param x_test: test inputs, y_test their targets, on the same scale; None where there are no test rows.
    :param alphas: each in [0, 1].
    :param steps: of training each; "auto" goes on until it has converged, or its budget is spent.
    :param objective: ``PowerEP`` or ``BlackBoxAlpha``, called with α.
    :param num_draws: of θ, for ELBO, importance-weighted bound, k-hat and LOO; each with ``num_locals`` of the locals.
    :param num_samples: of the hidden layers, for prediction.
    :param target_scale: standard deviation, scalar or (P,), by which the targets were divided: test figures are
        reported in original units (an offset changes none of them).
    :param starts: for a richer guide the poorer one before it at whose optimum it starts, at the same α, as
        :func:`nested_start` has it: ``{"markov": "mean-field"}``; its ``steps`` and ``seconds`` come on top. If None
        each starts at that of the poorer ones before it whose bound is the highest; ``{}`` for none. One that ends
        below the one it started at has not converged.
    :param say: is told which row is being fitted, ``"2 of 5: markov, α = 0"``.
    :param fit_settings: for ``fit_svi``: ``batch_size``, ``learning_rate``, ``progress`` ….
    :raises ValueError: without guides or alphas, for a scale that is not positive, or a start that is not before.
    :raises TypeError: if a guide in ``starts`` is not made of rules.
    """
    names = list(guides)
    for richer, poorer in (starts or {}).items():
        if richer not in names or poorer not in names[: names.index(richer)]:
            raise ValueError(
                f"starts: found {poorer!r} for {richer!r}, expected a guide listed before it; reorder them"
            )
    for name, given in (("guides", guides), ("alphas", alphas)):
        if not len(given):
            raise ValueError(f"{name}: found none, expected at least one to compare")
    scale = positive_scale(target_scale)
    train = jnp.asarray(x), columns(y)
    key_fit, key_measure, key_test = jax.random.split(key, 3)
    fits: dict[tuple[str, float], Fit] = {}
    measured = _measurements(train, (x_test, y_test), num_draws, num_locals, num_samples, scale)
    shared = model()

    def made(name: str) -> tuple[Model, Any]:
        """A row's model and its guide, which is new for each fit."""
        maker = guides[name]
        built, make_guide = (maker[0](), maker[1]) if isinstance(maker, tuple) else (shared, maker)
        if isinstance(make_guide, str):
            make_guide = named("guides", make_guide, HIDDEN_RULES)
        return built, Guide(built, hidden=make_guide) if isinstance(make_guide, HiddenRule) else make_guide(
            built
        )

    for name in dict.fromkeys([*(starts or {}), *(starts or {}).values()]):
        kind = type(made(name)[1])
        if not issubclass(kind, Guide):
            raise TypeError(f"starts: found a {kind.__name__} for {name!r}, expected a Guide; leave it out")

    def row(name: str, alpha: float) -> dict[str, Any]:
        (built, guide), start = made(name), None
        before = [fits[earlier, alpha] for earlier in names[: names.index(name)]]
        if starts is not None:
            before = [fits[starts[name], alpha]] if name in starts else []
        elif isinstance(guide, Guide):
            before = [
                each for each in before if isinstance(each.guide, Guide) and contains(guide, each.guide)
            ]
        else:
            before = []
        poorer = max(before, key=lambda each: bounds(key_fit, each, *train).mean(), default=None)
        if poorer is not None:
            start = nested_start(poorer.guide, guide, poorer.params, *train)  # type: ignore[arg-type]
        settings = {"steps": steps, "start": start, **fit_settings}
        fit = fit_svi(key_fit, built, guide, objective(alpha), *train, **settings)
        if poorer is not None:
            fit = compared(key_fit, poorer, fit, *train)
        fits[name, alpha] = fit
        return measured((key_measure, key_test), fit)

    rows = {(name, float(alpha)): partial(row, name, float(alpha)) for name in guides for alpha in alphas}
    return replace(tabulate(rows, say), fits=fits)


@takes_fit
def compare_fits(
    key: Array,
    fit: Fit,
    x: ArrayLike | None,
    y: ArrayLike,
    others: Mapping[str, Fit] | Fit,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    name: str = "this fit",
    num_draws: int = 200,
    num_locals: int = 8,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
) -> Comparison:
    """Fits of the same rows judged by the same measures, as :func:`compare` judges those that it makes.

    :param fit: the first row of the table, called ``name``.
    :param x: training inputs (N, D), None for none; y targets (N, P) or (N,).
    :param others: further fits by name, or one, called "the other".
    :param x_test: as for :func:`compare`, like all else.
    :raises ValueError: if two fits have one name, or for a scale that is not positive.
    """
    rest = {"the other": others} if isinstance(others, Fit) else dict(others)
    if name in rest:
        raise ValueError(f"name: found {name!r} for two fits, expected distinct names; rename one")
    keys = tuple(jax.random.split(key))
    train = jnp.asarray(inputs_of(x, y)), columns(y)
    test, scale = (x_test, y_test), positive_scale(target_scale)
    measured = _measurements(train, test, num_draws, num_locals, num_samples, scale)
    fits = {(label, _alpha(one)): one for label, one in {name: fit, **rest}.items()}
    rows = {row: partial(measured, keys, one) for row, one in fits.items()}
    return replace(tabulate(rows), fits=fits)


def _alpha(fit: Fit) -> float:
    """The α of a fit's objective, NaN where it has none."""
    alpha = getattr(fit.objective, "alpha", None)
    return float(alpha) if isinstance(alpha, float) else float("nan")


def _measurements(
    train: tuple[Array, Array],
    test: tuple[ArrayLike | None, ArrayLike | None],
    num_draws: int,
    num_locals: int,
    num_samples: int,
    target_scale: np.ndarray,
) -> Callable[[tuple[Array, Array], Fit], dict[str, Any]]:
    """What measures a fit, of the keys for training rows and test rows."""

    def measured(keys: tuple[Array, Array], fit: Fit) -> dict[str, Any]:
        measures: dict[str, Any] = _bounds(keys[0], fit, train, num_draws, num_locals)
        x_test, y_test = test
        if x_test is not None and y_test is not None:
            measures |= held_out_scores(
                keys[1], fit, x_test, y_test, num_samples=num_samples, target_scale=target_scale
            )
        numbers = sum(value.size for value in fit.params.values())
        about = {"gap": fit.gap, "converged": fit.converged}
        return measures | about | {"seconds": fit.seconds, "parameters": numbers}

    return measured


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
    table = pd.DataFrame(table_rows, columns=["fit", "alpha", "converged", *MEASURES])
    return Comparison(table.astype({name: float for name in MEASURES if name != "parameters"}))


def _bounds(
    key: Array, fit: Posterior, train: tuple[Array, Array], num_draws: int, num_locals: int
) -> dict[str, float]:
    key_elbo, key_draws = jax.random.split(key)
    value, error = elbo(key_elbo, fit, *train, num_draws=num_draws)
    draws = joint_draws(key_draws, fit, *train, num_draws=num_draws, num_locals=num_locals)
    return {
        "elbo": value,
        "elbo_se": error,
        "iw_bound": importance_weighted(draws.log_ratio)[0],
        "khat": sites_khat(draws),
        "loo": expected_log_density(draws.log_likelihood)[0],
    }


def _label(name: str, alpha: float) -> str:
    return name if np.isnan(alpha) else f"{name}, α = {alpha:g}"


def _best(column: pd.Series, name: str) -> int:
    """Position of the best value, −1 where the column has no best."""
    if name in ("seconds", "parameters") or not column.notna().any():
        return -1
    values = column.to_numpy(float)
    if name == "coverage95":
        return int(np.nanargmin(np.abs(values - 0.95)))
    return int(np.nanargmin(values) if name in ("test_rmse", "khat") else np.nanargmax(values))


def _cell(row: pd.Series, name: str) -> str:
    if pd.isna(row[name]):
        return "–"
    text = format(row[name], MEASURES[name][1])
    if name == "gap" and row["converged"] is not None and not row["converged"]:
        return f"{text} *"
    return f"{text} ± {row['elbo_se']:{MEASURES['elbo_se'][1]}}" if name == "elbo" else text
