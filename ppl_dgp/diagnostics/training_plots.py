"""Pictures of how a fit has come to be: how far it is from its optimum, whether chains agree, its hyperparameters.

As in :mod:`ppl_dgp.diagnostics.plots`, every function returns a matplotlib ``Figure`` without pyplot state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ppl_dgp.diagnostics.figures import COLOURS, FAINT, INK, _legend, _panel, _rows_above, plain_label
from ppl_dgp.diagnostics.hyperparameters import MOST_NUMBERS, OF_GUIDE, summary
from ppl_dgp.extras import needed_for
from ppl_dgp.fit import Fit, Posterior
from ppl_dgp.fit.advice import LARGEST_R_HAT
from ppl_dgp.fit.chains import Chains
from ppl_dgp.fit.convergence import Convergence
from ppl_dgp.gp.contract import INDUCING_SUFFIX
from ppl_dgp.guides.empirical import DRAWS_SUFFIX

with needed_for("plotting"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

#: of a logarithmic axis, below which other numbers than powers of ten are written
FEW_DECADES = 2.5


def plot_convergence(fit: Fit | Convergence | Chains, *, axes: Axes | None = None) -> Figure:
    """Whether a fit has come to its end: losses at the ends of its parts, or what chains agree on.

    Of a fit: the loss at the end of each part that was kept, ± 2 standard errors, over its steps, and as a band where
    steps without end would lead, ± 2 standard errors; a fit that has converged lies within the tolerance above it. Of
    a fit by Markov chains: R-hat of each site and the number of draws that it is worth, and what is to be expected.

    :raises ValueError: for a fit of which nothing is known.
    """
    known: Fit | Convergence | Chains | None = fit
    if isinstance(fit, Fit):
        known = fit.chains if fit.chains is not None else fit.convergence
    if isinstance(known, Chains):
        return _chains_figure(known)
    kept = [phase for phase in known.phases if phase.kept] if isinstance(known, Convergence) else []
    if not kept or not isinstance(known, Convergence):
        raise ValueError(
            "fit: found nothing of its convergence, expected parts or chains; train for more steps"
        )
    steps, losses, errors = (
        np.asarray([getattr(each, name) for each in kept]) for name in ("end", "loss", "error")
    )
    figure, panel = _panel(axes, (7.0, 3.6))
    there = np.isfinite(losses)
    bars = np.where(np.isfinite(errors), 2.0 * errors, 0.0)
    panel.errorbar(
        steps[there], losses[there], bars[there], fmt="o-", color=COLOURS[0], markersize=4.5, linewidth=1.2,
        capsize=2.5, label="loss at the end of a part, ± 2 s.e.",
    )  # fmt: skip
    if np.isfinite(known.gap + known.error) and there[-1]:
        end = losses[-1] - known.gap
        panel.axhspan(
            end - 2.0 * known.error, end + 2.0 * known.error, color=COLOURS[2], alpha=0.2, linewidth=0,
            label="where it would end, ± 2 s.e.",
        )  # fmt: skip
        panel.axhline(end, color=COLOURS[2], linewidth=1.2)
        panel.axhline(
            end + known.tolerance, color=INK, linestyle="--", linewidth=1.0,
            label=f"{known.tolerance:.2g} nats above: the tolerance",
        )  # fmt: skip
    panel.set(xlabel="steps", ylabel="loss (nats)")
    if len(kept) > 2 and steps[0] > 0:
        panel.set_xscale("log", base=2)
        panel.set_xticks(steps, [str(int(step)) for step in steps], rotation=30, fontsize="small")
        panel.minorticks_off()
    _legend(panel)
    return figure


def plot_hyperparameters(
    fit: Posterior | pd.DataFrame, *, names: Mapping[str, Sequence[str]] | None = None, most: int = 60
) -> Figure:
    """A forest of the hyperparameters in their constrained units, layer by layer: positive ones on a logarithmic axis.

    A large dot is the fit's value. Of a fit with several restarts small dots are those of the others; of draws, as of
    ``fit_nuts`` under priors, it is the median, on a line that holds 95 % of them.

    :param fit: a fit, or the table that :func:`summary` makes of one.
    :param names: of a parameter's dimensions, by ``layer/parameter``, as of the lengthscales of named features.
    :param most: hyperparameters that are shown, the first of them.
    :raises ValueError: if there is none.
    """
    table = fit if isinstance(fit, pd.DataFrame) else summary(fit)
    keys: list[tuple[str, str, str]] = [key for key in table.index if _is_shown(key)]
    rows = [(*key, [float(table["value"].loc[key])]) for key in keys]
    around: dict[tuple[str, str, str], np.ndarray] = {}
    others: dict[tuple[str, str, str], np.ndarray] = {}
    if isinstance(fit, Posterior):
        around = _draws(fit)
        rows += [(*key, [float(np.median(values))]) for key, values in around.items()]
        if isinstance(fit, Fit):
            others = _restarts(fit)
    rows = rows[:most]
    if not rows:
        raise ValueError(
            "fit: found no hyperparameter, expected one at least; plot_layers shows what else it has"
        )
    every = [
        np.concatenate([value, around.get((a, b, c), []), others.get((a, b, c), [])])
        for a, b, c, value in rows
    ]
    positive = [bool((values > 0.0).all()) for values in every]
    kinds = [kind for kind in (True, False) if kind in positive]
    heights = [positive.count(kind) for kind in kinds]
    figure = Figure(figsize=(6.4, 1.1 + 0.24 * len(rows) + 0.5 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=heights)[:, 0]
    for kind, panel in zip(kinds, panels, strict=True):
        of_kind = [row for row, is_positive in zip(rows, positive, strict=True) if is_positive == kind]
        _forest(panel, of_kind, around, others, names or {})
        panel.set_xlabel("value, on a logarithmic scale" if kind else "value")
        if kind:
            panel.set_xscale("log")
            low, high = np.log10(panel.get_xlim())
            if high - low < FEW_DECADES:
                panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter(NullFormatter())
    figure.supylabel("hyperparameter", fontsize="medium")
    _rows_above(panels[0])
    return figure


def _is_shown(key: tuple[str, str, str]) -> bool:
    """Whether a row of the summary is a hyperparameter, not what is yet to gain, nor draws, nor a map that is held."""
    return key[0] != "training" and key[1] != "linear_map" and not key[1].endswith(DRAWS_SUFFIX)


def _forest(
    panel: Axes,
    rows: Sequence[tuple[str, str, str, list[float]]],
    around: Mapping[tuple[str, str, str], np.ndarray],
    others: Mapping[tuple[str, str, str], np.ndarray],
    names: Mapping[str, Sequence[str]],
) -> None:
    layers = list(dict.fromkeys(row[0] for row in rows))
    places = np.arange(len(rows))[::-1]
    of_draws = bool(around)
    titles = []
    for place, (layer, parameter, dimension, (value,)) in zip(places, rows, strict=True):
        colour = COLOURS[layers.index(layer) % len(COLOURS)]
        key = layer, parameter, dimension
        if key in around:
            panel.hlines(
                place, *np.quantile(around[key], (0.025, 0.975)), color=colour, alpha=0.6, linewidth=2.0
            )
        if key in others:
            panel.plot(others[key], np.full(len(others[key]), place), ".", color=FAINT, markersize=4)
        panel.plot(value, place, "o", color=colour, markersize=5.5, zorder=3)
        titles.append(_title(layer, parameter, dimension, names))
    panel.set_yticks(places, titles, fontsize="small")
    panel.set_ylim(-0.7, len(rows) - 0.3)
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    # one entry of each sign, in no layer's colour
    panel.plot([], [], "o", color=INK, markersize=5.5, label="median" if of_draws else "fit")
    if of_draws:
        panel.plot([], [], color=INK, alpha=0.6, linewidth=2.0, label="95 % of the draws")
    if others:
        panel.plot([], [], ".", color=FAINT, markersize=4, label="other restarts")


def _title(layer: str, parameter: str, dimension: str, names: Mapping[str, Sequence[str]]) -> str:
    title = plain_label(f"{layer}/{parameter}" if layer else parameter)
    given = names.get(f"{layer}/{parameter}")
    if given is not None and dimension.isdigit() and int(dimension) < len(given):
        return f"{title}, {plain_label(given[int(dimension)])}"
    return f"{title} [{dimension}]" if dimension else title


def _restarts(fit: Fit) -> dict[tuple[str, str, str], np.ndarray]:
    """What each restart but the best has, by layer, parameter and dimension."""
    count = len(fit.losses) if fit.chains is None else 1
    tables = []
    for number in range(count):
        if number != fit.best:
            params = {name: value[number] for name, value in fit.restart_params.items()}
            tables.append(summary(Posterior(fit.model, fit.guide, params))["value"])
    if not tables:
        return {}
    return {key: np.asarray([table.loc[key] for table in tables], float) for key in tables[0].index}


def _draws(fit: Posterior) -> dict[tuple[str, str, str], np.ndarray]:
    """Draws of hyperparameters, those of inducing outputs left out."""
    found = {}
    sites = getattr(fit.guide, "global_sites", ())
    for site in sorted(sites):
        values = fit.params.get(f"{site}{DRAWS_SUFFIX}")
        if values is None or site.endswith(INDUCING_SUFFIX) or OF_GUIDE.search(site):
            continue
        numbers = np.asarray(values)
        numbers = numbers.reshape(-1, *numbers.shape[2:])
        if numbers[0].size > MOST_NUMBERS:
            continue
        layer, _, parameter = site.rpartition("/")
        for place in np.ndindex(numbers.shape[1:]):
            found[layer, parameter, ", ".join(map(str, place))] = numbers[:, *place]
    return found


def _chains_figure(chains: Chains) -> Figure:
    sites = sorted(chains.r_hat, key=lambda name: chains.r_hat[name])
    places = np.arange(len(sites))
    figure = Figure(figsize=(7.5, 1.4 + 0.3 * len(sites)), layout="constrained")
    agreement, worth = figure.subplots(1, 2, sharey=True)
    agreement.plot([chains.r_hat[name] for name in sites], places, "o", color=COLOURS[0], label="R-hat")
    agreement.axvline(LARGEST_R_HAT, color=COLOURS[1], linestyle="--", label=f"at most {LARGEST_R_HAT}")
    agreement.set(xlabel="largest split R-hat of a site", ylabel="site")
    agreement.set_yticks(places, [plain_label(name) for name in sites], fontsize="small")
    draws = chains.stats["diverging"].size
    worth.plot(
        [chains.effective_size[name] for name in sites], places, "o", color=COLOURS[2], label="effective"
    )
    worth.axvline(draws, color=FAINT, linestyle="--", label=f"{draws} drawn, {chains.divergences} divergent")
    worth.set(xlabel="smallest effective number of draws")
    for panel in (agreement, worth):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25)
        _rows_above(panel)
    return figure
