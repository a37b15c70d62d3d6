"""Names of the axes of a fit in ArviZ, and their labels: columns have their names, layers the axes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppl_dgp.diagnostics.draws import Draws

#: parts, at most, into which the draws of a single restart are cut, of no fewer draws than r-hat takes
PARTS, FEWEST_IN_PART = 4, 4


def parts_of(num_draws: int) -> int:
    """Chains that so many independent draws are cut into."""
    return next(
        parts
        for parts in range(PARTS, 0, -1)
        if parts == 1 or (num_draws % parts == 0 and num_draws >= parts * FEWEST_IN_PART)
    )


def column_names(**tables: Any) -> dict[str, Sequence[Any]]:
    """Of each table that is a DataFrame, the names of its columns."""
    return {
        axis: [str(name) for name in table.columns]
        for axis, table in tables.items()
        if hasattr(table, "columns")
    }


def labels_of(known: Mapping[str, Sequence[Any]], draws: Draws) -> dict[str, np.ndarray]:
    """Labels by axis, those of the columns of x and y for the axes of layers that are made of them, too."""
    found: dict[str, Sequence[Any]] = {}
    for of, layers, axis in (("input", draws.on_inputs, "input"), ("target", draws.to_targets, "output")):
        if of in known:
            found |= {axes_of(f"{layer}/{axis}", 1, [axis])[0]: known[of] for layer in layers}
    return {axis: np.asarray(labels) for axis, labels in (found | dict(known)).items()}


def check_coords(given: Mapping[str, Sequence[Any]], *sizes: Mapping[Any, int]) -> None:
    """Refuse labels of an axis that is not there, or more or fewer than it has places.

    :raises ValueError: naming the axis.
    """
    lengths = {str(axis): size for each in sizes for axis, size in each.items()}
    for axis, labels in given.items():
        if axis not in lengths:
            raise ValueError(
                f"coords: found labels of {axis!r}, expected some of {', '.join(sorted(lengths))}; rename them"
            )
        if len(labels) != lengths[axis]:
            raise ValueError(
                f"coords: found {len(labels)} labels of {axis!r}, expected {lengths[axis]}, one for each place"
            )


def variable_name(site: str) -> str:
    """The variable of a site: '/' becomes '.', for netCDF keeps '/' for groups."""
    return site.replace("/", ".")


def axes_of(site: str, number: int, named: list[str] | None) -> list[str]:
    """Names of a site's own axes: ``layer1_output``, ``layer1_inducing``, or numbered."""
    if named is not None:
        layer = site.rpartition("/")[0].replace("/", "_") or site
        return [f"{layer}_{axis}" for axis in named]
    return [f"{variable_name(site)}_dim_{axis}" for axis in range(number)]


def latent_axes(draws: Draws) -> dict[str, str]:
    """The last axis of each latent (S, N, Q): ``latent``, or where they are several, each its own."""
    sites = [site for site in sorted(draws.latents) if site in draws.hidden and draws.hidden[site].ndim == 3]
    return {site: "latent" if len(sites) == 1 else f"{variable_name(site)}_latent" for site in sites}
