"""``report``: a run as one page of HTML, from what its directory holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ppl_dgp.cli import html
from ppl_dgp.cli.classes import CLASS_LIKELIHOODS, IMAGE_MODELS
from ppl_dgp.cli.equations import mathml, model_equations
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.names import (
    HIDDEN,
    INDUCING,
    KERNEL_HELP,
    LATENTS,
    LIKELIHOOD_HELP,
    MODELS,
    OBJECTIVE_HELP,
    OWN_SCALE,
    STATES,
)
from ppl_dgp.cli.report_words import CAPTIONS, EFFORT, MEANINGS, OF_LAYERS, OF_TRAINING
from ppl_dgp.cli.run_directory import Record
from ppl_dgp.cli.uses import UNUSED
from ppl_dgp.data.labels import shown_labels

#: columns of a table that are listed, and values that are not folded
MOST_COLUMNS, MOST_ROWS = 40, 30


def run_page(
    folder: Path,
    record: Record,
    params: Mapping[str, Any],
    table: pd.DataFrame | None,
    drawings: Mapping[str, str],
) -> str:
    """The page of a run that is done.

    :param params: its parameters.
    :param table: of its hyperparameters, as ``summary`` makes it; None where nobody can tell.
    :param drawings: figures by name, SVG as text, before those that the directory holds.
    """
    figures, elsewhere = figures_of(folder, drawings), (*OF_LAYERS, *OF_TRAINING, "hyperparameters")
    sections = [
        ("Advice", advice(record)),
        ("Metrics", metrics_section(record)),
        ("Data", data_section(record)),
        ("Model", model_section(record)),
        ("Convergence", convergence_section(record) + chosen(figures, OF_TRAINING)),
        ("Figures", chosen(figures, [name for name in figures if name not in elsewhere])),
        ("Layers", layers_section(params) + chosen(figures, OF_LAYERS)),
        ("Hyperparameters", hyperparameters_section(table) + chosen(figures, ("hyperparameters",))),
        ("Comparison", comparison_section(folder)),
        ("Settings", settings_section(record)),
    ]  # fmt: skip
    title = f"{record.settings.model} on {Path(record.source).name or record.source}"
    return html.page(title, sections, tiles(record))


def tiles(record: Record) -> str:
    """The few numbers that come first."""
    result = record.result
    shown = [("rows to train on", record.num_train), ("rows held out", record.num_test)]
    for name in ("test_log_density", "test_accuracy", "test_rmse", "coverage95", "elbo", "khat"):
        if result.get(name) is not None:
            shown.append((MEANINGS[name][0], result[name]))
    if isinstance(result.get("converged"), bool):
        shown.append(("converged", result["converged"]))
    cells = "".join(
        f'<div class="tile"><b>{html.text(_short(value))}</b><span>{html.text(name)}</span></div>'
        for name, value in shown
    )
    return f'<p class="faint">{html.text(record.source)}</p><div class="tiles">{cells}</div>'


def advice(record: Record) -> str:
    """What may be wrong, and what to do about it."""
    told = record.result.get("advice")
    if not told or not isinstance(told, list):
        return "<p>Nothing is known to be wrong with this fit.</p>"
    return "".join(f'<p class="advice">{html.text(each)}</p>' for each in told)


def metrics_section(record: Record) -> str:
    """Results with what they mean."""
    rows = [
        (*MEANINGS.get(name, (name.replace("_", " "), "")), _flat(value))
        for name, value in record.result.items()
        if name not in EFFORT and name not in ("advice", "explained") and value is not None
    ]
    found = html.table(("measure", "what it is", "value"), [(a, b, c) for a, b, c in rows]) if rows else ""
    if isinstance(record.result.get("explained"), list):
        shares = zip(record.feature_names, record.result["explained"], strict=True)
        found += html.table(("feature", "share of the variance that its term explains"), list(shares))
    return found


def data_section(record: Record) -> str:
    """Where the rows come from, and what their columns are like."""
    text = html.text
    notes = "".join(f"<li>{text(note)}</li>" for note in record.notes)
    lines = [
        f"<p>{text(record.num_train)} rows to train on, {text(record.num_test)} held out, from "
        f"<code>{text(record.source)}</code> (SHA-256 {text(record.fingerprint[:16])}…).</p>",
        f"<ul>{notes}</ul>" if notes else "",
    ]
    if record.labels:
        lines.append(f"<p>Labels: {text(shown_labels(record.labels))}.</p>")
    if len(record.sequences) > 1:
        lines.append(f"<p>Sequences: {text(len(record.sequences))}.</p>")
    if record.settings.model in IMAGE_MODELS:
        lines.append(f"<p>{text(len(record.feature_names))} pixels.</p>")
        return "".join(lines)
    kind = "control" if record.settings.model == "gpssm" else "feature"
    targets = _columns("target", record.target_names, record.y_units.mean, record.y_units.scale)
    if record.labels:  # which have neither mean nor deviation
        targets = [(name, "label", None, None) for name in record.target_names]
    given = _columns(kind, record.feature_names, record.x_units.mean, record.x_units.scale)
    if (
        kind == "control" and record.settings.step_column in record.feature_names
    ):  # the last, in units of its mean
        given[-1] = (given[-1][0], "time of a step", given[-1][-1], None)
    columns = [*given, *targets]
    lines.append(
        html.table(
            ("column", "is a", "mean", "deviation"),
            columns[:MOST_COLUMNS],
            "of the training rows, as standardised",
        )
    )
    if len(columns) > MOST_COLUMNS:
        lines.append(f'<p class="faint">and {len(columns) - MOST_COLUMNS} columns more</p>')
    return "".join(lines)


def model_section(record: Record) -> str:
    """The model and its approximation in words, and the model as equations."""
    settings, unused, text = record.settings, UNUSED[record.settings.model], html.text
    kernels = [name.strip() for name in re.split(r"[+*]", settings.kernel)]
    likelihoods = LIKELIHOOD_HELP | OWN_SCALE | CLASS_LIKELIHOODS
    words = {"model": f"{settings.model}: {MODELS[settings.model]}"}
    if "kernel" not in unused:
        words["kernel"] = (
            f"{settings.kernel}: {'; '.join(KERNEL_HELP[name] for name in dict.fromkeys(kernels))}"
        )
    if not (settings.of_classes and settings.likelihood == "gaussian"):
        words["likelihood"] = f"{settings.likelihood}: {likelihoods[settings.likelihood]}"
    if settings.inducing is not None and settings.model != "gp":
        words["inducing points"] = f"{settings.inducing} in each function"
    rules = {"gplvm": LATENTS, "gpssm": STATES}.get(settings.model, HIDDEN)
    if "hidden" not in unused:
        words["q of what is hidden"] = f"{settings.hidden}: {rules[settings.hidden]}"
    if "inducing_rule" not in unused:
        words["q of inducing outputs"] = f"{settings.inducing_rule}: {INDUCING[settings.inducing_rule]}"
    if "objective" not in unused:
        words["objective"] = (
            f"{settings.objective} at α = {settings.alpha:g}: {OBJECTIVE_HELP[settings.objective]}"
        )
    equations = "".join(f'<div class="equation">{mathml(each)}</div>' for each in model_equations(settings))
    lines = "".join(f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in words.items())
    return f'{equations}<div class="wide"><table><tbody>{lines}</tbody></table></div>'


def convergence_section(record: Record) -> str:
    """How training went."""
    rows = [
        (meaning, _flat(record.result[name])) for name, meaning in EFFORT.items() if name in record.result
    ]
    return html.table(("of the training", "value"), rows) if rows else ""


def layers_section(params: Mapping[str, Any]) -> str:
    """The functions of the model, and what each has for inducing inputs."""
    rows = []
    for name in sorted(params):
        layer, _, parameter = name.rpartition("/")
        if parameter == "inducing":
            shape = np.shape(params[name])
            numbers = sum(
                int(np.size(value)) for each, value in params.items() if each.startswith(f"{layer}/")
            )
            rows.append((layer, shape[-1], shape[-2] if len(shape) > 1 else shape[0], numbers))
    return html.table(("function", "inputs", "inducing points", "parameters"), rows) if rows else ""


def hyperparameters_section(table: pd.DataFrame | None) -> str:
    """In their constrained units, which are those of standardised data."""
    if table is None or not len(table):
        return ""
    keys: list[tuple[str, str, str]] = list(table.index)
    rows = [
        (*key, float(table["value"].loc[key]))
        for key in keys
        if key[0] != "training" and key[1] != "linear_map"
    ]
    table_of_all = html.table(("layer", "parameter", "dimension", "value"), rows, "of standardised data")
    if len(rows) <= MOST_ROWS:
        return table_of_all
    return f"<details><summary>All {len(rows)} values</summary>{table_of_all}</details>"


def comparison_section(folder: Path) -> str:
    """The comparison that the run is one of, if it stands beside it."""
    path = folder.resolve().parent / "comparison.csv"
    if not path.is_file():
        return ""
    try:
        table = pd.read_csv(path, index_col=0)
    except (OSError, ValueError):
        return ""
    return comparison_table(table)


def comparison_table(table: pd.DataFrame) -> str:
    """One row per fit."""
    names = [name for name in table.columns if table[name].notna().any()]
    heads = ["fit", *(MEANINGS.get(name, (EFFORT.get(name, name),))[0].replace("_", " ") for name in names)]
    rows = zip(table.index, table[names].to_numpy(object), strict=True)
    return html.table(heads, [[fit, *map(_plain, row)] for fit, row in rows])


def settings_section(record: Record) -> str:
    """Everything that was asked."""
    unused = UNUSED[record.settings.model]
    values = record.settings.to_json()
    rows = [
        (name.replace("_", " "), str(_flat(value)))
        for name, value in values.items()
        if value is not None and name not in unused
    ]
    return f"<details><summary>All settings</summary>{html.table(('setting', 'value'), rows)}</details>"


def figures_of(folder: Path, drawings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The figures of a run as HTML, in the order of their captions: SVG where it is there, else PNG."""
    held = {
        path.stem: path
        for suffix in ("png", "svg")
        for path in sorted((folder / "figures").glob(f"*.{suffix}"))
    }
    sources = {name: path for name, path in held.items()} | dict(drawings or {})
    order = list(CAPTIONS)

    def place(name: str) -> tuple[int, str]:
        stem = re.sub(r"-\d+$", "", name)
        return (order.index(stem) if stem in order else len(order)), name

    found = {}
    for name in sorted(sources, key=place):
        caption = CAPTIONS.get(re.sub(r"-\d+$", "", name), name)
        source = sources[name]
        if isinstance(source, Path) and source.suffix == ".png":
            found[name] = html.figure(name, html.image(source), caption)
            continue
        try:
            drawn = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        except UnicodeDecodeError:
            raise BadInput(f"figure {name} is no SVG", "remove it, or fit again") from None
        drawing, width = html.inline_svg(drawn, name)
        found[name] = html.figure(name, drawing, caption, width)
    return found


def chosen(figures: Mapping[str, str], names: Sequence[str]) -> str:
    """Those of them that there are."""
    return "".join(figures[name] for name in names if name in figures)


def _columns(kind: str, names: Sequence[str], mean: np.ndarray, scale: np.ndarray) -> list[tuple[Any, ...]]:
    return [(name, kind, float(m), float(s)) for name, m, s in zip(names, mean, scale, strict=True)]


def _flat(value: Any) -> Any:
    """Lists as text."""
    if not isinstance(value, list):
        return value
    return ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in value)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _short(value: Any) -> Any:
    return f"{value:.4g}".replace("-", "−") if isinstance(value, float) else value
