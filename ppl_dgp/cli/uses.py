"""Which settings a model makes no use of: not shown of its runs, not varied in a comparison, or refused.

Runs of a gp, a sparse-gp and a deep-gp take settings of each other's, so that one command line does for all of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ppl_dgp.cli.classes import IMAGE_MODELS
from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.stacks import STACK

#: models of one layer that are sums or mixtures of functions, which refuse what they do not use
STRICT = ("additive-gp", "multi-output-gp", "convolved-gp")
#: models of several targets, any of which may be missing
SEVERAL_TARGETS = ("multi-output-gp", "convolved-gp")
#: models whose columns are more than features, so that none is fitted to the same rows, and the option of each
OWN_ROWS = {"binned-counts-gp": "exposure", "gp-with-derivatives": "slope_column"}
#: likelihoods of a binned-counts-gp, the first unless told
COUNT_LIKELIHOODS = ("poisson", "negative-binomial")
#: the objective with q(u) in closed form, models that it is of, rules of q(h) and kernels that it takes in a deep GP
COLLAPSED = "collapsed"
COLLAPSE = ("sparse-gp", "convolved-gp", "deep-gp")
COLLAPSE_HIDDEN = ("mean-field", "markov")
COLLAPSE_KERNELS = ("rbf", "linear", "constant")
#: outputs of hidden layers up to which other kernels do as well
FEW_OUTPUTS = 2
_LAYERS = {"hidden", "widths", "blocks"}
_SERIES = {"controls", "sequence_column", "step_column", "window", "emission", "separate"}
_OWN = set(OWN_ROWS.values())
_IMAGES = {"image", "patch", "stride", "located"}
_OTHERS = _SERIES | _IMAGES | _OWN
#: what an inducing rule that draws u for all layers, or all outputs, at once is called
DRAWS_INDUCING = ("across-outputs", "layer-chain", "coupled", "global")
#: those of them that link layers
LINKS_LAYERS = ("layer-chain", "coupled", "global")
# what offered a layer as moments needs u integrated out, layer by layer and output by output, and nothing drawn
CARRIES_MOMENTS = ("moment-matched", "nested-compression")
UNUSED: dict[str, set[str]] = {
    "deep-gp": {"latent", "blocks"} | _OTHERS,
    STACK: {"latent", "widths"} | _OTHERS,
    "sparse-gp": _LAYERS | {"latent"} | _OTHERS,
    "additive-gp": _LAYERS | {"latent"} | _OTHERS,
    "multi-output-gp": _LAYERS | _OTHERS,
    "convolved-gp": _LAYERS | {"kernel"} | _OTHERS,
    "convolutional-gp": _LAYERS | {"latent"} | _SERIES | _OWN,
    "deep-convolutional-gp": {"hidden", "latent", "blocks"} | _SERIES | _OWN,
    "gpssm": {"inducing_rule", "objective", "widths", "blocks", "drop_missing", "controls"} | _IMAGES | _OWN,
    "gplvm": {"inducing_rule", "objective", "alpha", "particles", "restarts", "widths", "drop_missing"}
    | {"blocks"}
    | _OTHERS,
    "gp": _LAYERS
    | {"latent"}
    | _OTHERS
    | {"inducing", "inducing_rule", "objective", "alpha", "particles", "learning_rate", "restarts"},
    "binned-counts-gp": (_LAYERS | {"latent"} | _OTHERS) - {"exposure"},
    "gp-with-derivatives": (_LAYERS | {"latent", "likelihood"} | _OTHERS) - {"slope_column"},
}


def unused_defaults(settings: Any) -> dict[str, Any]:
    """What the settings that its model makes no use of are unless given."""
    usual = {field.name: field.default for field in dataclasses.fields(settings)}
    return {name: usual[name] for name in sorted(UNUSED[settings.model])}


def check_unused(settings: Any) -> None:
    """Raise BadInput for a setting that only series or images have, or that a strict model makes no use of."""
    model = settings.model
    for name, usual in unused_defaults(settings).items():
        value, option = getattr(settings, name), "--" + name.replace("_", "-")
        # what else a series cannot be combined with is refused elsewhere
        if value == usual or (model == "gpssm" and name not in _IMAGES | _OWN):
            continue
        if name in _OWN:
            its = next(each for each, own in OWN_ROWS.items() if own == name)
            raise BadInput(
                f"{option} is {value!r}, but is of a {its}", f"leave it out, or take --model {its}"
            )
        if name in _IMAGES:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            raise BadInput(
                f"{option} is {shown}, but rows of a {model} are no images",
                f"leave it out, or take --model {' or '.join(IMAGE_MODELS)}",
            )
        if name in _SERIES:
            raise BadInput(
                f"{option} is {value!r}, but a {model} has no time", "leave it out, or take --model gpssm"
            )
        if model in (*STRICT, STACK, *OWN_ROWS, *IMAGE_MODELS):
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            article = "an" if model[0] in "aeiou" else "a"
            found = f"{option} is {shown}, but {article} {model}"
            if name == "kernel":
                raise BadInput(f"{found} smooths functions of the kernel {usual} alone", "leave it out")
            raise BadInput(f"{found} makes no use of it", "leave it out, or take another --model")


def check_own_rows(settings: Any) -> None:
    """Raise BadInput for what models whose columns are more than features cannot be combined with, or lack."""
    if settings.model != "gp-with-derivatives":
        return
    if settings.slope_column is None:
        raise BadInput(
            "--slope-column is not given, but a gp-with-derivatives needs to know what targets are",
            "name the column that has 0 for values, and d for slopes along the d-th feature",
        )
    if "matern12" in settings.kernel:
        raise BadInput(
            f"--kernel is {settings.kernel}, whose functions have no slopes", "take rbf or matern32"
        )


def check_series(settings: Any) -> None:
    """Raise BadInput for what a series cannot be combined with."""
    if settings.model != "gpssm":
        return
    for option, value, kept in (
        ("--objective", settings.objective, "power-ep"),
        ("--inducing-rule", settings.inducing_rule, "full-rank"),
    ):
        if value != kept:
            raise BadInput(f"{option} is {value}, but a gpssm takes {kept}", "leave it out")
    for option, given, why in (
        ("--features", settings.features is not None, "has no features, but --controls"),
        ("--ignore", settings.ignore is not None, "leaves out what nothing names"),
        (
            "--batch",
            settings.batch is not None and settings.window is None,
            "sees all its steps at once, but for --window",
        ),
        (
            "--drop-missing",
            settings.drop_missing,
            "needs every step; it takes targets that are missing as they are",
        ),
    ):
        if given:
            raise BadInput(f"{option} is given, but a gpssm {why}", "leave it out")
    if settings.window is not None and settings.batch is not None and settings.batch % settings.window:
        raise BadInput(
            f"--batch is {settings.batch} rows, which are no whole number of windows of {settings.window} steps",
            f"give a multiple of {settings.window}",
        )


def check_objective_settings(settings: Any) -> None:
    """Raise BadInput for what an objective cannot be combined with."""
    if settings.objective == "approximate-power-ep" and settings.inducing_rule in LINKS_LAYERS:
        raise BadInput(
            f"--inducing-rule is {settings.inducing_rule}, but approximate-power-ep needs layers independent in q(u)",
            "take --inducing-rule full-rank, or --objective power-ep",
        )
    if settings.objective != "importance-weighted":
        return
    if settings.alpha == 0.0:
        raise BadInput(
            "--objective is importance-weighted, which is the ELBO at --alpha 0",
            "give --alpha 1, or leave --objective out",
        )
    if settings.model == "convolved-gp" or settings.hidden in CARRIES_MOMENTS:
        found = (
            f"--model is {settings.model}"
            if settings.model == "convolved-gp"
            else f"--hidden is {settings.hidden}"
        )
        raise BadInput(f"{found}, of which importance-weighted knows nothing", "take --objective power-ep")


def check_collapsed(settings: Any) -> None:
    """Raise BadInput for what has no closed q(u), or for settings of draws and of minibatches beside one."""
    if settings.objective != COLLAPSED or settings.model in ("gp", "gplvm", "gpssm"):
        return  # which make no use of it, or refuse every other objective than their own
    other = "or --objective power-ep"
    if settings.model not in COLLAPSE:
        raise BadInput(
            f"--model is {settings.model}, whose q(u) has no closed form",
            f"take --model {' or '.join(COLLAPSE)}, {other}",
        )
    if settings.likelihood != "gaussian":
        raise BadInput(
            f"--likelihood is {settings.likelihood}, but collapsed is of Gaussian noise",
            f"leave it out, {other}",
        )
    for name, usual, why in (
        ("inducing_rule", "full-rank", "finds q(u) itself, full-rank"),
        ("batch", None, "sees all rows at every step"),
        ("particles", None, "draws nothing"),
        ("learning_rate", None, "is descended by L-BFGS, which finds its own"),
        ("restarts", 1, "is descended once"),
    ):
        if (value := getattr(settings, name)) != usual:
            raise BadInput(
                f"--{name.replace('_', '-')} is {value}, but collapsed {why}", f"leave it out, {other}"
            )
    if settings.model != "deep-gp":
        return
    if settings.hidden not in COLLAPSE_HIDDEN:
        raise BadInput(
            f"--hidden is {settings.hidden}, but collapsed needs a q of hidden layers that does not follow u",
            f"take --hidden {' or '.join(COLLAPSE_HIDDEN)}, {other}",
        )
    if settings.alpha > 0.0:
        raise BadInput(
            f"--alpha is {settings.alpha:g}, but collapsed is of one layer there", f"give --alpha 0, {other}"
        )
    closed = set(settings.kernel.replace(" ", "").split("+")) <= set(COLLAPSE_KERNELS)
    if not closed and max(settings.widths) > FEW_OUTPUTS:
        raise BadInput(
            f"--kernel is {settings.kernel}, but collapsed has closed expectations of {', '.join(COLLAPSE_KERNELS)} "
            "and their sums alone",
            f"take one of them, --widths of at most {FEW_OUTPUTS}, {other}",
        )


def check_moments(settings: Any) -> None:
    """Raise BadInput for what a rule that offered layers as moments cannot be combined with."""
    rule = f"--hidden {settings.hidden} offered the layers as moments"
    if settings.inducing_rule in DRAWS_INDUCING:
        raise BadInput(
            f"--inducing-rule is {settings.inducing_rule}, but {rule}, which needs q(u) independent between outputs "
            "and layers",
            "take --inducing-rule full-rank, diagonal or low-rank",
        )
    nested = settings.hidden == "nested-compression"
    if settings.alpha > 0.0 and (nested or settings.objective == "power-ep"):
        other = "" if nested else ", or --objective black-box-alpha"
        raise BadInput(
            f"--alpha is {settings.alpha:g}, but {rule}, for which {settings.objective} takes α = 0 alone",
            f"give --alpha 0{other}, or a --hidden rule that draws, such as doubly-stochastic",
        )
