"""The settings of one fit: checked before anything is loaded or compiled, kept in the run directory as JSON."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from ppl_dgp.cli.classes import CLASS_LIKELIHOODS, IMAGE_MODELS, TAKE_CLASSES, check_classes, is_of_classes
from ppl_dgp.cli.errors import BadInput, unknown
from ppl_dgp.cli.label_order import check_label_order
from ppl_dgp.cli.names import (
    EMISSION_RULES,
    FIGURE_FORMATS,
    HIDDEN,
    INDUCING,
    KERNEL_HELP,
    LATENTS,
    LIKELIHOOD_HELP,
    MODELS,
    OBJECTIVE_HELP,
    OWN_SCALE,
    STATES,
    WITH_LIKELIHOOD,
)
from ppl_dgp.cli.stacks import STACK, check_blocks
from ppl_dgp.cli.uses import (
    CARRIES_MOMENTS,
    COLLAPSE,
    COLLAPSED,
    COUNT_LIKELIHOODS,
    OWN_ROWS,
    SEVERAL_TARGETS,
    check_collapsed,
    check_moments,
    check_objective_settings,
    check_own_rows,
    check_series,
    check_unused,
)

DEFAULT_INDUCING = 100
GPLVM_INDUCING = 50
SERIES_INDUCING = 20
#: windows of a gpssm that a step sees
WINDOWS_PER_STEP = 10
AUTO = "auto"
#: the most steps of it, and iterations of L-BFGS; and of a deep GP the fewest with and without a learning rate
BUDGET, MOST_ITERATIONS = 14_400, 3000
LEAST_BUDGET = {True: 400, False: 500}
LATENT = 2  # dimensions of a gplvm, and functions that several targets mix, of no more targets than that
FULL_BATCH_ROWS = 2000  # up to so many rows every step sees them all
DEFAULT_BATCH = 1000
#: settings that are whole numbers in a row
_LISTS = ("widths", "image", "patch")


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers of a fit, besides the data, and what its figures are written as."""

    model: str = "deep-gp"
    hidden: str = "doubly-stochastic"
    inducing_rule: str = "full-rank"
    objective: str = "power-ep"
    alpha: float = 0.0
    widths: tuple[int, ...] = (2, 2)
    blocks: str | None = None
    latent: int | None = None
    inducing: int | None = None
    kernel: str = "rbf"
    likelihood: str = "gaussian"
    label_order: str | None = None
    particles: int | None = None
    steps: int | str = AUTO
    budget: int | None = None
    tolerance: float | None = None
    batch: int | None = None
    learning_rate: float | None = None
    restarts: int = 1
    seed: int = 0
    precision: str | None = None
    target: str | None = None
    controls: str | None = None
    sequence_column: str | None = None
    step_column: str | None = None
    window: int | None = None
    emission: str = "linear"
    separate: bool = False
    exposure: str | None = None
    slope_column: str | None = None
    image: tuple[int, ...] | None = None
    patch: tuple[int, ...] | None = None
    stride: int = 1
    located: bool = False
    features: str | None = None
    ignore: str | None = None
    drop_missing: bool = False
    split: int | None = None
    test_fraction: float = 0.1
    figures: str = FIGURE_FORMATS[0]

    def check(self) -> None:
        """Raise BadInput for the first setting that no data could make right."""
        choices: tuple[tuple[str, str, Any], ...] = (
            ("--model", self.model, MODELS),
            ("--hidden", self.hidden, {"gplvm": LATENTS, "gpssm": STATES}.get(self.model, HIDDEN)),
            ("--emission", self.emission, EMISSION_RULES),
            ("--inducing-rule", self.inducing_rule, INDUCING),
            ("--objective", self.objective, OBJECTIVE_HELP),
            ("--likelihood", self.likelihood, LIKELIHOOD_HELP | OWN_SCALE | CLASS_LIKELIHOODS),
            *(("--figures", name.strip(), FIGURE_FORMATS) for name in self.figures.split(",")),
            *(("--kernel", name.strip(), KERNEL_HELP) for name in re.split(r"[+*]", self.kernel)),
        )
        for option, value, allowed in choices:
            if value not in allowed:
                raise unknown(option, value, allowed)
        self._check_likelihood()
        if not 0.0 <= self.alpha <= 1.0:
            raise BadInput(
                f"--alpha is {self.alpha:g}, outside [0, 1]", "give a number from 0 (the ELBO) to 1"
            )
        for width in self.widths:
            if width < 1:
                raise BadInput(
                    f"--widths has a layer of width {width}", "every hidden layer needs at least 1 output"
                )
        for option, number in (
            ("--latent", self.latent),
            ("--inducing", self.inducing),
            ("--particles", self.particles),
            ("--steps", None if self.steps == AUTO else self.steps),
            ("--budget", self.budget),
            ("--batch", self.batch),
            ("--window", self.window),
            ("--stride", self.stride),
            ("--restarts", self.restarts),
        ):
            if isinstance(number, str) or (number is not None and number < 1):
                raise BadInput(f"{option} is {number}", "give a whole number of at least 1")
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"--seed is {self.seed}", "give a whole number from 0 to 4294967295")
        for option, real in (("--learning-rate", self.learning_rate), ("--tolerance", self.tolerance)):
            if real is not None and not (math.isfinite(real) and real > 0.0):
                raise BadInput(f"{option} is {real:g}", "give a positive number, such as 0.01")
        fewest, descends = LEAST_BUDGET[self.learning_rate is not None], self.model == "gp" or self.collapsed
        if self.steps == AUTO and not descends and self.budget is not None and self.budget < fewest:
            raise BadInput(f"--budget is {self.budget}", f"give at least {fewest} steps, or --steps")
        check_objective_settings(self)
        check_collapsed(self)
        if self.model in ("deep-gp", STACK) and self.hidden in CARRIES_MOMENTS:
            check_moments(self)
        if self.model == "gplvm":
            if self.alpha > 0.0 or self.objective != "power-ep":
                raise BadInput(
                    f"--objective is {self.objective} and --alpha {self.alpha:g}, but a gplvm is trained by its bound",
                    "leave both out",
                )
            if self.restarts > 1:
                raise BadInput(f"--restarts is {self.restarts}, but a gplvm is fitted once", "vary --seed")
        check_blocks(self)
        check_unused(self)
        check_own_rows(self)
        check_series(self)
        check_classes(self)
        check_label_order(self)

    def _check_likelihood(self) -> None:
        """Raise BadInput for a likelihood of another kind of targets than the model's."""
        if self.likelihood == "gaussian":  # or what takes its place
            return
        takers: tuple[str, ...] = WITH_LIKELIHOOD
        if self.likelihood in CLASS_LIKELIHOODS:
            takers = TAKE_CLASSES
        elif self.likelihood in COUNT_LIKELIHOODS:
            takers += ("binned-counts-gp",)
        if self.model not in takers:
            kinds = dict.fromkeys(WITH_LIKELIHOOD, "one of numbers") | dict.fromkeys(
                IMAGE_MODELS, "one of classes"
            )
            kinds["binned-counts-gp"] = " or ".join(COUNT_LIKELIHOODS)
            raise BadInput(
                f"--likelihood is {self.likelihood}, but a {self.model} takes {kinds.get(self.model, 'gaussian')}",
                f"leave it out, or take --model {' or '.join(takers)}",
            )

    @property
    def of_classes(self) -> bool:
        """Whether the target is one of classes."""
        return is_of_classes(self)

    @property
    def observed(self) -> str:
        """The likelihood, of counts in bins the first of theirs unless told."""
        counts = self.model == "binned-counts-gp" and self.likelihood == "gaussian"
        return COUNT_LIKELIHOODS[0] if counts else self.likelihood

    @property
    def collapsed(self) -> bool:
        """Whether q(u) is found in closed form, so that every step sees all rows."""
        return self.objective == COLLAPSED and self.model in COLLAPSE

    def resolve(self, num_rows: int, num_targets: int = 1, num_patches: int | None = None) -> Settings:
        """Defaults that depend on the ``num_rows`` rows to train on, and on the targets, filled in.

        :param num_patches: of images, those that inducing patches are chosen from.
        :raises BadInput: if more is asked, or there is one target where there should be several.
        """
        if self.model in SEVERAL_TARGETS and num_targets < 2:
            raise BadInput(
                f"--model is {self.model}, which is of several targets, but there is 1",
                "name them, as in --target a,b, or take --model sparse-gp",
            )
        rows = f"{num_rows} rows to train on"
        places = num_rows if num_patches is None else num_patches
        if self.model != "gp" and self.inducing is not None and self.inducing > places:
            found = rows if num_patches is None else f"{places} patches that they are chosen from"
            raise BadInput(
                f"--inducing is {self.inducing}, more than the {found}", f"lower it to at most {places}"
            )
        most, usual = num_rows, DEFAULT_BATCH if num_rows > FULL_BATCH_ROWS else None
        if self.model == "gpssm":
            # windows overlap: of n steps there are n + L - 1, and more of several sequences
            most = num_rows if self.window is None else self.window * (num_rows + self.window - 1)
            usual = None if self.window is None else min(WINDOWS_PER_STEP * self.window, most)
        if self.model != "gp" and self.batch is not None and self.batch > most:
            more = f"the {rows}" if self.window is None else f"all windows of the {rows}"
            raise BadInput(f"--batch is {self.batch}, more than {more}", f"lower it to at most {most}")
        batch = self.batch or (None if self.model == "gp" or self.collapsed else usual)
        inducing = {"gplvm": GPLVM_INDUCING, "gpssm": SERIES_INDUCING}.get(self.model, DEFAULT_INDUCING)
        latent = {"gpssm": num_targets} | dict.fromkeys(SEVERAL_TARGETS, min(LATENT, num_targets))
        without = ("additive-gp", STACK, *OWN_ROWS, *IMAGE_MODELS)
        return dataclasses.replace(
            self,
            inducing=self.inducing or min(inducing, places),
            latent=self.latent or (None if self.model in without else latent.get(self.model, LATENT)),
            batch=batch,
            likelihood=self.observed,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of ``to_json``. Raises KeyError, TypeError or ValueError if ``values`` is not of it."""
        # which earlier runs lack
        values = {
            "latent": LATENT,
            "controls": None,
            "sequence_column": None,
            "step_column": None,
            "window": None,
            "emission": "linear",
            "separate": False,
            "likelihood": "gaussian",
            "label_order": None,
            "exposure": None,
            "slope_column": None,
            "budget": None,
            "tolerance": None,
            "image": None,
            "blocks": None,
            "patch": None,
            "stride": 1,
            "located": False,
            "features": None,
            "ignore": None,
            "figures": FIGURE_FORMATS[-1],  # all that there was
            **values,
        }
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        for name in _LISTS:
            fields[name] = None if fields[name] is None and name != "widths" else tuple(fields[name])
        kinds = get_type_hints(cls) | dict.fromkeys(_LISTS, int)
        for name, value in fields.items():
            for each in value if isinstance(value, tuple) else () if name in _LISTS else (value,):
                if not any(_is_of(each, kind) for kind in get_args(kinds[name]) or (kinds[name],)):
                    raise TypeError
        settings = cls(**fields)
        settings.check()
        return settings


def _is_of(value: Any, kind: type) -> bool:
    """Whether JSON has a value of this type; whole numbers are numbers, but none of them is true or false."""
    if isinstance(value, str):
        value.encode()  # a half of a surrogate pair can be neither shown nor written
    if isinstance(value, bool):
        return kind is bool
    if kind not in (int, float):
        return isinstance(value, kind)
    return isinstance(value, int | kind) and abs(value) < 2**63
