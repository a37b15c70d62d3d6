"""Which settings a model makes no use of: not shown of its runs, not varied in a comparison, or refused.

Runs of a gp, a sparse-gp and a deep-gp take settings of each other's, so that one command line does for all of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ppl_dgp.cli.errors import BadInput

#: models of one layer that are sums or mixtures of functions, which refuse what they do not use
STRICT = ("additive-gp", "multi-output-gp", "convolved-gp")
#: models of several targets, any of which may be missing
SEVERAL_TARGETS = ("multi-output-gp", "convolved-gp")
#: models whose columns are more than features, so that none is fitted to the same rows, and the option of each
OWN_ROWS = {"binned-counts-gp": "exposure", "gp-with-derivatives": "slope_column"}
_LAYERS = {"hidden", "widths"}
_SERIES = {"controls", "sequence_column", "step_column", "window", "emission", "separate"}
_OWN = set(OWN_ROWS.values())
UNUSED: dict[str, set[str]] = {
    "deep-gp": {"latent"} | _SERIES,
    "sparse-gp": _LAYERS | {"latent"} | _SERIES,
    "additive-gp": _LAYERS | {"latent"} | _SERIES,
    "multi-output-gp": _LAYERS | _SERIES,
    "convolved-gp": _LAYERS | {"kernel"} | _SERIES,
    "gpssm": {"inducing_rule", "objective", "widths", "drop_missing", "controls"},
    "gplvm": {"inducing_rule", "objective", "alpha", "particles", "restarts", "widths", "drop_missing"}
    | _SERIES,
    "gp": _LAYERS
    | {"latent"}
    | _SERIES
    | {"inducing", "inducing_rule", "objective", "alpha", "particles", "learning_rate", "restarts"},
    "binned-counts-gp": _LAYERS | {"latent"} | _SERIES,
    "gp-with-derivatives": _LAYERS | {"latent", "likelihood"} | _SERIES,
}
UNUSED = {model: names | (_OWN - {OWN_ROWS.get(model)}) for model, names in UNUSED.items()}


def unused_defaults(settings: Any) -> dict[str, Any]:
    """What the settings that its model makes no use of are unless given."""
    usual = {field.name: field.default for field in dataclasses.fields(settings)}
    return {name: usual[name] for name in sorted(UNUSED[settings.model])}


def check_unused(settings: Any) -> None:
    """Raise BadInput for a setting that only a series has, or that a strict model makes no use of."""
    model = settings.model
    for name, usual in unused_defaults(settings).items():
        value, option = getattr(settings, name), "--" + name.replace("_", "-")
        if value == usual or (model == "gpssm" and name not in _OWN):  # whose own are refused elsewhere
            continue
        if name in _OWN:
            its = next(each for each, own in OWN_ROWS.items() if own == name)
            raise BadInput(
                f"{option} is {value!r}, but is of a {its}", f"leave it out, or take --model {its}"
            )
        if name in _SERIES:
            raise BadInput(
                f"{option} is {value!r}, but a {model} has no time", "leave it out, or take --model gpssm"
            )
        if model in STRICT or model in OWN_ROWS:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            article = "an" if model[0] in "aeiou" else "a"
            found = f"{option} is {shown}, but {article} {model}"
            if name == "kernel":
                raise BadInput(f"{found} smooths functions of the kernel {usual} alone", "leave it out")
            raise BadInput(f"{found} makes no use of it", "leave it out, or take another --model")
