"""What the settings of models may be: a name means the same in every model of the zoo."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ppl_dgp.models.checks import (
    at_least_zero,
    checked_flag,
    checked_whole,
    choice,
    positive,
    state_prior,
    whole_sequence,
)
from ppl_dgp.models.inducing import checked_inducing, checked_layers
from ppl_dgp.models.kernel_values import checked_kernel
from ppl_dgp.models.observation import checked_observation
from ppl_dgp.models.value import settings_of

WHOLE_SETTINGS = (
    "num_inducing",
    "num_outputs",
    "num_functions",
    "num_latents",
    "num_frequencies",
    "num_regimes",
    "num_sequences",
    "latent",
    "width",
    "lags",
    "times",
    "prior_inducing",
    "window",
    "stride",
    "iterations",
    "subsample_size",
)
FLAG_SETTINGS = ("train_inducing", "train_frequencies", "train_scales", "missing", "timed")
POSITIVE_SETTINGS = ("inner_noise", "prior_noise", "process_noise", "weight_scale")
KERNEL_SETTINGS = ("kernel", "prior_kernel", "emission_kernel")


def checked_settings(
    model: Any,
    *,
    without: Collection[str] = (),
    dims: int | None = None,
    num_functions: int | None = None,
    **choices: Collection[str],
) -> dict[str, Any]:
    """A model's settings by name, each checked and in the form that programs read.

    :param without: settings that the model checks itself.
    :param dims: the columns that inducing inputs have to have, where those are known before the data.
    :param num_functions: how many functions have inducing inputs of their own, one matrix for each; of a model of
        several ``widths`` the layers, else one function.
    :param choices: of a setting that is a name, the names it may be.
    :raises ValueError: for the first that cannot be right.
    """
    given = {
        entry.name: getattr(model, entry.name) for entry in settings_of(model) if entry.name not in without
    }
    usual = {entry.name: entry.default for entry in settings_of(model)}
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if value is None and usual[name] is None:
            continue
        if name in WHOLE_SETTINGS:
            checked |= checked_whole(**{name: value})
        elif name in FLAG_SETTINGS:
            checked[name] = checked_flag(name, value)
        elif name in POSITIVE_SETTINGS:
            positive(**{name: value})
        elif name in KERNEL_SETTINGS:
            checked[name] = checked_kernel(value, name)
        elif name in choices:
            choice(name, value, choices[name])
        elif name == "widths":
            checked[name] = whole_sequence(name, value, "whole numbers, the outputs per hidden layer")
            num_functions = len(checked[name]) + 1
        elif name == "initial":
            checked[name] = state_prior(value)
        elif name in ("jitter", "bias_scale"):
            at_least_zero(**{name: value})
    if "inducing" in given:
        size = checked["num_inducing"], usual["num_inducing"]
        if num_functions is None:
            inducing: Any = checked_inducing(given["inducing"], *size, dims)
        else:
            inducing = checked_layers(given["inducing"], num_functions, *size)
        checked["inducing"], checked["num_inducing"] = inducing
    if {"likelihood", "noise"} <= given.keys():
        observation = checked_observation(given["likelihood"], given["noise"], checked["num_outputs"])
        checked["likelihood"], checked["noise"] = observation
    return checked
