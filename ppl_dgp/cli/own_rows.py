"""Models whose columns are more than features: bins of counts, and rows of values and of slopes.

A ``binned-counts-gp`` has the lower ends of each bin, its upper ends, and its exposure behind them; the last column of
a ``gp-with-derivatives`` says what a row's target is. What changes the units of one changes those of the others.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.settings import Settings
from ppl_dgp.data import Standardiser, Table
from ppl_dgp.messages import nearest_of


def arranged(table: Table, settings: Settings) -> Table:
    """The table with the column that ``settings`` name behind all others. Raises BadInput for one that it has not."""
    option, name = _named(settings)
    if name is None:
        return table
    if name not in table.feature_names:
        raise BadInput(
            f"{option} is {name!r}, which is no feature of {table.name}",
            nearest_of(name, table.feature_names),
        )
    place = table.feature_names.index(name)
    order = [number for number in range(len(table.feature_names)) if number != place] + [place]
    names = tuple(table.feature_names[number] for number in order)
    return dataclasses.replace(table, X=table.X[:, order], feature_names=names)


def check_rows(
    settings: Settings,
    names: tuple[str, ...],
    X: Float[np.ndarray, "N D"],
) -> None:
    """Raise BadInput for rows that the model cannot take, as the model would when it is run."""
    if settings.model == "gp-with-derivatives":
        kinds, dims = X[:, -1], X.shape[1] - 1
        if dims < 1:
            raise BadInput("there is no feature beside --slope-column", "give at least one")
        wrong = kinds[~np.isin(kinds, np.arange(dims + 1))]
        if len(wrong):
            raise BadInput(
                f"--slope-column {names[-1]!r} has {wrong[0]:g}",
                f"give 0 for rows of values, and for slopes the number of a feature, 1 to {dims}: "
                f"{', '.join(names[:-1])}",
            )
        return
    corners = X.shape[1] - (settings.exposure is not None)
    if corners < 2 or corners % 2:
        raise BadInput(
            f"a binned-counts-gp has {corners} feature{'s' * (corners != 1)}, {', '.join(names[:corners])}, no ends of "
            "bins, all lower ones first",
            "give two columns for each dimension, and name what else there is by --exposure",
        )
    widths = X[:, corners // 2 : corners] - X[:, : corners // 2]
    if not widths.min() > 0.0:
        row, d = np.unravel_index(widths.argmin(), widths.shape)
        raise BadInput(
            f"a bin has {names[d]} {X[row, d]:g} and {names[corners // 2 + d]} {X[row, corners // 2 + d]:g}",
            "put lower ends before upper ones",
        )
    if settings.exposure is not None and not X[:, -1].min() > 0.0:
        raise BadInput(
            f"--exposure {settings.exposure!r} has {X[:, -1].min():g}",
            "leave such rows out, nothing was seen there",
        )


def units(
    settings: Settings, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N P"]
) -> tuple[Standardiser, Standardiser]:
    """Of the columns, and of the targets: counts are as they are, values have the units that slopes go along with."""
    if settings.model == "gp-with-derivatives":
        kinds = X[:, -1].astype(int)
        found = Standardiser.fit(X[:, :-1])
        inputs = Standardiser(np.append(found.mean, 0.0), np.append(found.scale, 1.0))
        values = y[kinds == 0]
        if len(values) < 2:  # slopes alone: changes of the target with one standard deviation of a feature
            found = Standardiser.fit(y * _along(inputs, kinds))
            return inputs, Standardiser(np.zeros_like(found.mean), found.scale)
        return inputs, Standardiser.fit(values)
    corners = X.shape[1] - (settings.exposure is not None)
    low, high = X[:, : corners // 2], X[:, corners // 2 : corners]
    ends = Standardiser.fit(np.concatenate([low, high]))
    mean, scale = np.tile(ends.mean, 2), np.tile(ends.scale, 2)
    if settings.exposure is not None:
        mean, scale = np.append(mean, 0.0), np.append(scale, 1.0)
    return Standardiser(mean, scale), Standardiser(np.zeros(y.shape[1]), np.ones(y.shape[1]))


def units_at(
    settings: Settings, x_units: Standardiser, y_units: Standardiser, X: Float[np.ndarray, "N D"]
) -> Standardiser:
    """The units of the targets of these rows; of slopes those of values over those of the feature."""
    if settings.model != "gp-with-derivatives":
        return y_units
    kinds = X[:, -1].astype(int)
    mean = np.where(kinds[:, None] == 0, y_units.mean, 0.0)
    return Standardiser(mean, y_units.scale / _along(x_units, kinds))


def _along(x_units: Standardiser, kinds: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N 1"]:
    """The unit of the feature that each slope is along, 1 of values."""
    return np.where(kinds == 0, 1.0, x_units.scale[kinds - 1])[:, None]


def _named(settings: Settings) -> tuple[str, str | None]:
    if settings.model == "gp-with-derivatives":
        return "--slope-column", settings.slope_column
    return "--exposure", settings.exposure
