"""The same data and model under several guides and α: one table, one figure (which approximation is to be trusted?)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.typing import ArrayLike
from jaxtyping import Array
from matplotlib.figure import Figure
from rich.table import Table

from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.diagnostics.khat import elbo, expected_log_density, importance_weighted, sites_khat
from ppl_dgp.diagnostics.plots import COLOURS, INK
from ppl_dgp.fit import Fit, fit_svi
from ppl_dgp.objectives import AlphaDivergence, PowerEP
from ppl_dgp.predict import predict

Model = Callable[..., Any]

#: the figures of a row, and how many decimals each is shown with
DECIMALS = {
    "elbo": 2, "elbo_se": 2, "iw_bound": 2, "khat": 2, "loo": 2, "test_log_density": 3, "rmse": 4, "coverage95": 3,
    "seconds": 1, "parameters": 0,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Comparison:
    """One row per guide and α.

    ``table`` has the columns guide, alpha, then ``elbo`` ± ``elbo_se``, ``iw_bound``, ``loo`` in total nats over the
    training rows on the scale of training; ``khat`` of the global sites; ``test_log_density`` (mean per test row),
    ``rmse``, ``coverage95`` in original units; ``seconds`` of training; ``parameters`` trained. ``iw_bound``, ``khat``
    and ``loo`` are of the t_1 (FITC) model. ``fits`` has the fit of each row by (guide, alpha).
    """

    table: pd.DataFrame
    fits: dict[tuple[str, float], Fit] = field(default_factory=dict)

    def __add__(self, other: Comparison) -> Comparison:
        """Both tables, one below the other (two models on the same data)."""
        return Comparison(pd.concat([self.table, other.table], ignore_index=True), {**self.fits, **other.fits})

    def to_rich(self, title: str | None = None) -> Table:
        """For the terminal: ``rich.print(comparison.to_rich())``; the best value of a column stands in bold."""
        shown = Table(title=title)
        shown.add_column("guide")
        shown.add_column("α", justify="right")
        heads = [name for name in DECIMALS if name != "elbo_se"]
        for name in heads:
            shown.add_column("elbo ± s.e." if name == "elbo" else name.replace("_", " "), justify="right")
        best = {name: _best(self.table[name], name) for name in heads}
        for position, (_, row) in enumerate(self.table.iterrows()):
            cells = [_cell(row, name) for name in heads]
            bold = [f"[bold]{c}[/]" if best[name] == position else c for name, c in zip(heads, cells, strict=True)]
            shown.add_row(str(row["guide"]), f"{row['alpha']:g}", *bold)
        return shown

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
        labels = [f"{guide}, α = {alpha:g}" for guide, alpha in zip(table["guide"], table["alpha"], strict=True)]
        bounds.set_yticks(places, labels)
        bounds.set_ylim(-0.6, len(table) - 0.4)
        for panel in (bounds, density, trust):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", alpha=0.25)
        return figure


def compare(
    key: Array,
    x: ArrayLike,
    y: ArrayLike,
    x_test: ArrayLike | None,
    y_test: ArrayLike | None,
    model: Callable[[], Model],
    guides: Mapping[str, Callable[[Model], Any]],
    alphas: Sequence[float] = (0.0,),
    *,
    steps: int = 2000,
    objective: Callable[[float], AlphaDivergence] = PowerEP,
    num_draws: int = 200,
    num_locals: int = 8,
    num_samples: int = 200,
    target_scale: ArrayLike = 1.0,
    on_row: Callable[[str, float, Fit], None] | None = None,
    **fit_settings: Any,
) -> Comparison:
    """Fit every guide at every α on the same rows, with the same key, and judge each by the same measures.

    :param x: training inputs (N, D), y targets (N, P) or (N,), as the model is to see them (standardised).
    :param x_test: test inputs, y_test their targets, on the same scale; None where there are no test rows.
    :param model: makes the model, ``lambda: deep_gp((2,), 50)``.
    :param guides: by name, makes a guide of the model: ``{"coupled": lambda m: Guide(m, hidden=Conditional())}``.
    :param alphas: each in [0, 1].
    :param steps: of training each.
    :param objective: ``PowerEP`` or ``BlackBoxAlpha``, called with α.
    :param num_draws: of θ, for ELBO, importance-weighted bound, k-hat and LOO; each with ``num_locals`` of the locals.
    :param num_samples: of the hidden layers, for prediction.
    :param target_scale: standard deviation, scalar or (P,), by which the targets were divided: test figures are
        reported in original units (an offset changes none of them).
    :param on_row: called with guide, alpha and fit after each training.
    :param fit_settings: for ``fit_svi``: ``batch_size``, ``learning_rate``, ``progress`` ….
    :raises ValueError: without guides or alphas, or for a scale that is not positive.
    """
    scale = np.asarray(target_scale, float)
    for name, given in (("guides", guides), ("alphas", alphas)):
        if not len(given):
            raise ValueError(f"{name}: found none, expected at least one to compare")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(f"target_scale: found {scale}, expected positive numbers; pass the targets' deviation")
    train = jnp.asarray(x), _columns(y)
    test = None if x_test is None or y_test is None else (jnp.asarray(x_test), _columns(y_test))
    key_fit, key_measure, key_test = jax.random.split(key, 3)
    rows, fits = [], {}
    for name, make_guide in guides.items():
        for alpha in alphas:
            built = model()
            fit = fit_svi(key_fit, built, make_guide(built), objective(alpha), *train, steps=steps, **fit_settings)
            if on_row is not None:
                on_row(name, float(alpha), fit)
            row: dict[str, Any] = {"guide": name, "alpha": float(alpha)}
            row |= _bounds(key_measure, fit, train, num_draws, num_locals)
            row |= _predictions(key_test, fit, test, num_samples, scale)
            row |= {"seconds": fit.seconds, "parameters": sum(value.size for value in fit.params.values())}
            rows.append(row)
            fits[name, float(alpha)] = fit
    return Comparison(pd.DataFrame(rows, columns=["guide", "alpha", *DECIMALS]), fits)


def _bounds(key: Array, fit: Fit, train: tuple[Array, Array], num_draws: int, num_locals: int) -> dict[str, float]:
    key_elbo, key_draws = jax.random.split(key)
    value, error = elbo(key_elbo, fit, *train, num_draws=num_draws)
    program = (fit.model, fit.guide, fit.params, *train)
    draws = joint_draws(key_draws, *program, num_draws=num_draws, num_locals=num_locals)
    return {
        "elbo": value,
        "elbo_se": error,
        "iw_bound": importance_weighted(draws.log_ratio)[0],
        "khat": sites_khat(draws),
        "loo": expected_log_density(draws.log_likelihood)[0],
    }


def _predictions(
    key: Array, fit: Fit, test: tuple[Array, Array] | None, num_samples: int, scale: np.ndarray
) -> dict[str, float]:
    if test is None:
        return {"test_log_density": np.nan, "rmse": np.nan, "coverage95": np.nan}
    found = predict(key, fit.model, fit.guide, fit.params, *test, num_samples=num_samples, levels=(0.025, 0.975))
    y = np.asarray(test[1])
    assert found.quantiles is not None and found.log_density is not None
    low, high = found.quantiles
    # log |dy/dy'| of the change of units, per row
    jacobian = np.log(np.broadcast_to(scale, y.shape[1:])).sum()
    return {
        "test_log_density": float(found.log_density.mean() - jacobian),
        "rmse": float(np.sqrt(np.square((found.mean - y) * scale).mean())),
        "coverage95": float(((low <= y) & (y <= high)).mean()),
    }


def _columns(y: ArrayLike) -> Array:
    rows = jnp.asarray(y)
    return rows.reshape(rows.shape[0], -1)


def _best(column: pd.Series, name: str) -> int:
    """Position of the best value, −1 where the column has no best."""
    if name in ("seconds", "parameters") or not column.notna().any():
        return -1
    values = column.to_numpy(float)
    if name == "coverage95":
        return int(np.nanargmin(np.abs(values - 0.95)))
    return int(np.nanargmin(values) if name in ("rmse", "khat") else np.nanargmax(values))


def _cell(row: pd.Series, name: str) -> str:
    if pd.isna(row[name]):
        return "–"
    text = f"{row[name]:,.{DECIMALS[name]}f}"
    return f"{text} ± {row['elbo_se']:.{DECIMALS['elbo_se']}f}" if name == "elbo" else text
