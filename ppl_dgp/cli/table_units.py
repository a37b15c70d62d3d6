"""What a fit says in units of training, in the units and names of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ppl_dgp.cli.run_directory import Record

if TYPE_CHECKING:  # commands that draw nothing need no figures
    from ppl_dgp.diagnostics import Dependence, LayerMap

#: models whose first function takes the features and whose last one gives the targets, and likelihoods on whose scale
THROUGH = ("gp", "sparse-gp", "deep-gp")
SAME_SCALE = ("gaussian", "student-t", "laplace")
#: what the first function of a model is called
FIRST = ("gp", "layer1")


def gives_targets(record: Record) -> bool:
    """Whether the last function is the targets' mean, but for units."""
    settings = record.settings
    return settings.model in THROUGH and settings.likelihood in SAME_SCALE and not record.labels


def named_maps(maps: Sequence[LayerMap], record: Record) -> list[LayerMap]:
    """The first map over the features, the last one up to the targets, in their units; hidden ones as they are.

    Functions of classes, one for each, are called as the labels are.
    """
    found = list(maps)
    x, y, features, targets = record.x_units, record.y_units, record.feature_names, record.target_names
    if record.settings.model in THROUGH and found[0].inputs.shape[1] == len(features):
        found[0] = _scaled(found[0], ("inputs", "inducing", "grid"), x.scale, x.mean)
        found[0] = dataclasses.replace(found[0], input_names=tuple(features))
    if record.labels and found[-1].mean.shape[1] == len(record.labels):
        found[-1] = dataclasses.replace(found[-1], output_names=tuple(map(str, record.labels)))
    if gives_targets(record) and found[-1].mean.shape[1] == len(targets):
        found[-1] = _scaled(found[-1], ("mean", "inducing_mean", "grid_mean"), y.scale, y.mean)
        found[-1] = _scaled(found[-1], ("deviation", "grid_deviation"), y.scale, 0.0)
        found[-1] = dataclasses.replace(found[-1], output_names=tuple(targets))
    return found


def named_dependence(dependence: Dependence, record: Record) -> Dependence:
    """One of a feature and the targets, in their units."""
    x, y, d = record.x_units, record.y_units, dependence.column
    return dataclasses.replace(
        dependence,
        values=dependence.values * x.scale[d] + x.mean[d],
        mean=y.inverse(dependence.mean),
        deviation=dependence.deviation * y.scale,
        rows=y.inverse(dependence.rows),
    )


def lengthscales_of_features(params: Mapping[str, Any], num_features: int) -> list[str]:
    """Names of the lengthscales of the first function, where there is one for each feature."""
    endings = [f"{name}/" for name in FIRST]
    return [
        name
        for name, value in sorted(params.items())
        if name.startswith(tuple(endings))
        and name.endswith("/lengthscale")
        and np.shape(value) == (num_features,)
    ]


def ranking(params: Mapping[str, Any], num_features: int) -> Float[np.ndarray, " D"] | None:
    """1 / lengthscale of each standardised feature, of the first kernel that has them; None of one feature.

    None of several layers too: what the first has made of the features others may leave out again.
    """
    names = [
        name for name in lengthscales_of_features(params, num_features) if name.startswith(f"{FIRST[0]}/")
    ]
    if num_features < 2 or not names:
        return None
    weights: np.ndarray = 1.0 / np.asarray(params[names[0]], float)
    return weights


def _scaled(layer: LayerMap, names: Sequence[str], scale: Any, mean: Any) -> LayerMap:
    values = {name: getattr(layer, name) for name in names}
    return dataclasses.replace(
        layer, **{name: value * scale + mean for name, value in values.items() if value is not None}
    )
