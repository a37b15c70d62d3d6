"""The order of labels under --likelihood ordinal: told where another may be meant, or as --label-order says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.data import Table
from ppl_dgp.data.labels import shown_labels

ORDINAL = "ordinal"


def check_label_order(settings: Any) -> None:
    """Raise BadInput for an order of labels under a likelihood that makes nothing of it."""
    if settings.label_order is not None and settings.likelihood != ORDINAL:
        raise BadInput(
            f"--label-order is {settings.label_order!r}, but --likelihood {settings.likelihood} knows no order",
            "leave it out, or take --likelihood ordinal",
        )


def labels_in_order(table: Table, settings: Any) -> Table:
    """A table of classes with its labels in the order asked for; a note tells of words that no order was asked of.

    :raises BadInput: for an order that is not exactly of its labels.
    """
    if settings.likelihood != ORDINAL:
        return table
    names = [str(label) for label in table.labels]
    if settings.label_order is None:
        if not isinstance(table.labels[0], str):
            return table
        note = (
            f"ordinal takes the labels in this order: {' < '.join(names)}; if they have another, give it, the lowest "
            "first, by --label-order"
        )
        return dataclasses.replace(table, notes=(*table.notes, note))
    asked = [name.strip() for name in settings.label_order.split(",")]
    if sorted(asked) != sorted(names):
        raise BadInput(
            f"--label-order is {settings.label_order!r}, but the labels of target {table.target_names[0]!r} of "
            f"{table.name} are {shown_labels(table.labels)}",
            "name each of them once, the lowest first, with commas between",
        )
    places = np.array([asked.index(name) for name in names], np.float64)
    labels = tuple(table.labels[names.index(name)] for name in asked)
    return dataclasses.replace(table, y=places[table.y.astype(int)], labels=labels)
