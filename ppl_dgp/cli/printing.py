"""What commands say on standard output: a record as a table, or one JSON object."""

from __future__ import annotations

import json
import sys
from typing import Any

from ppl_dgp.cli import classes
from ppl_dgp.cli.uses import UNUSED


def print_json(values: dict[str, Any]) -> None:
    """On one line."""
    sys.stdout.write(json.dumps(values, allow_nan=False, default=str) + "\n")


def print_record(folder: str, record: Any) -> None:
    """What a run was asked and what it found, a row each, and its advice below."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from ppl_dgp.data.labels import shown_labels

    def plain(text: str) -> Text:
        """Text as it is: no markup, and nothing that a terminal or a file in UTF-8 cannot take."""
        return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))

    title = f"{record.settings.model} on {record.source} ({record.status})"
    table = Table("", Column(plain(folder)), title=plain(title))
    shown = {"rows": f"{record.num_train} to train on, {record.num_test} to test"}
    features = "controls" if record.settings.model == "gpssm" else "features"
    columns = ", ".join(record.feature_names)
    if record.settings.model in classes.IMAGE_MODELS:
        features, columns = "pixels", str(len(record.feature_names))
    shown |= {features: columns, "targets": ", ".join(record.target_names)}
    unused = UNUSED[record.settings.model]
    settings = {
        name: value
        for name, value in record.settings.to_json().items()
        if value is not None and name not in unused
    }
    result = dict(record.result)
    advice = result.pop("advice", ())
    if record.notes:
        shown["read"] = "; ".join(record.notes)
    if record.labels:
        shown["labels"] = shown_labels(record.labels)
    if "explained" in result:
        shares = zip(record.feature_names, result["explained"], strict=True)
        result["explained"] = ", ".join(f"{name} {share:.3g}" for name, share in shares)
    for name, value in (shown | settings | result).items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(plain(name.replace("_", " ")), plain(text))
    console = Console()
    console.print(table)
    for text in advice if isinstance(advice, list) else ():
        console.print(plain(f"advice: {text}"))
