"""The settings of one fit: checked before anything is loaded or compiled, kept in the run directory as JSON.

The names here are those of the tables in ``guides``, ``objectives`` and ``kernels``, written again with what they mean,
so that help needs none of the heavy imports.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.uses import OWN_ROWS, SEVERAL_TARGETS, check_unused

MODELS = {
    "gp": "exact GP regression: closed form, O(N³), for up to a few thousand rows",
    "sparse-gp": "sparse GP regression: inducing points, minibatches",
    "deep-gp": "deep GP: layers of sparse GPs, for steps and changing lengthscales",
    "additive-gp": "a sum of sparse GPs, one of each feature, and which of them explains what",
    "multi-output-gp": "several targets that mix the same functions; entries may be missing",
    "convolved-gp": "several targets that smooth the same functions, each as it likes; entries may be missing",
    "binned-counts-gp": "counts in bins, lower ends before upper ones: a rate that varies over them",
    "gp-with-derivatives": "sparse GP regression on values and on slopes",
    "gplvm": "latents of a table's rows, all its columns alike; missing entries filled in",
    "gpssm": "states of a series and how they move: to smooth, forecast and simulate",
}
#: what a gplvm offers for --hidden, the first unless told
LATENTS = {
    "mean-field": "one Gaussian per row",
    "mean-field-full": "the same with correlated dimensions, for tables with many holes",
    "amortised": "one Gaussian per row, from a network of the row's entries",
    "point-estimate": "one value per row",
}
#: the same of a gpssm
STATES = {
    "markov": "a linear-Gaussian chain, its bound in closed form",
    "mean-field": "one Gaussian per step",
    "conditional": "each state follows the transition function; begins where markov has ended",
    "conditional-markov": "the same and the state before, linearly; contains markov and conditional",
    "doubly-stochastic": "the model's own transition, nothing learnt per step",
}
HIDDEN = {
    "mean-field": "one Gaussian per datum and layer",
    "markov": "linear in the layer before",
    "conditional": "the model's own function and a free Gaussian, mixed per datum; contains the first and the last",
    "conditional-markov": "the same and the layer before, linearly; contains markov and conditional",
    "conditional-tied": "conditional with one draw of the function's inducing outputs",
    "conditional-free": "free linear map of the inducing outputs per datum",
    "conditional-across": "the same from the inducing outputs of all outputs, their noise correlated",
    "doubly-stochastic": "the model's own conditional, nothing learnt per datum",
    "moment-matched": "the same with layers as Gaussian moments instead of draws; no bound beyond two layers",
    "nested-compression": "layers as moments, each a map of its inducing outputs that is not learnt; the ELBO only",
    "amortised": "conditional, its values per datum given by a network of the datum",
}
#: from the states of a gpssm to its targets
EMISSION_RULES = {
    "linear": "learnt",
    "identity": "the first states are what is observed",
    "gp": "a function, learnt: a sparse GP of the states",
}
INDUCING = {
    "full-rank": "q(u) with a full covariance for each output",
    "diagonal": "q(u) with a diagonal covariance",
    "low-rank": "q(u) with a diagonal covariance and ten factors for each output",
    "across-outputs": "q(u) with one full covariance for all outputs of a layer",
    "layer-chain": "q(u) of a layer linear in the u of the layer before",
    "coupled": "q(u) of a layer linear in the u of all layers before",
    "decoupled": "q(u) with a full covariance at the first 100 inducing inputs, beyond them a mean alone",
    "global": "q(u) of each layer given pseudo-observations at the draw of the layer before",
}
OBJECTIVE_HELP = {
    "power-ep": "a lower bound at every α, the ELBO at 0",
    "black-box-alpha": "an energy, no bound for α > 0; the ELBO at 0",
}
# what offered a layer as moments needs u integrated out, layer by layer and output by output, and nothing drawn
CARRIES_MOMENTS = ("moment-matched", "nested-compression")
DRAWS_INDUCING = ("across-outputs", "layer-chain", "coupled", "global")
KERNEL_HELP = {
    "rbf": "smooth functions",
    "matern12": "rough functions",
    "matern32": "functions with one derivative",
    "matern52": "functions with two",
    "rational-quadratic": "smooth functions of many lengthscales",
    "periodic": "functions that repeat themselves",
    "linear": "linear functions through the origin",
    "constant": "an offset",
}
#: those of real targets, which standardising leaves what they are
LIKELIHOOD_HELP = {
    "gaussian": "noise of one variance",
    "student-t": "noise with heavy tails, which outliers hardly move",
    "laplace": "noise with heavier tails than Gaussian",
    "heteroscedastic": "Gaussian noise whose variance is a function of the features",
}
#: those of a binned-counts-gp, the first unless told
COUNTS = ("poisson", "negative-binomial")
#: models that take another than gaussian
WITH_LIKELIHOOD = ("sparse-gp", "additive-gp", "deep-gp")
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


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers of a fit, besides the data."""

    model: str = "deep-gp"
    hidden: str = "doubly-stochastic"
    inducing_rule: str = "full-rank"
    objective: str = "power-ep"
    alpha: float = 0.0
    widths: tuple[int, ...] = (2, 2)
    latent: int | None = None
    inducing: int | None = None
    kernel: str = "rbf"
    likelihood: str = "gaussian"
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
    drop_missing: bool = False
    split: int | None = None
    test_fraction: float = 0.1

    def check(self) -> None:
        """Raise BadInput for the first setting that no data could make right."""
        for option, value, allowed in (
            ("--model", self.model, MODELS),
            ("--hidden", self.hidden, {"gplvm": LATENTS, "gpssm": STATES}.get(self.model, HIDDEN)),
            ("--emission", self.emission, EMISSION_RULES),
            ("--inducing-rule", self.inducing_rule, INDUCING),
            ("--objective", self.objective, OBJECTIVE_HELP),
            (
                "--likelihood",
                self.likelihood,
                ("gaussian", *COUNTS) if self.model == "binned-counts-gp" else LIKELIHOOD_HELP,
            ),
            *(("--kernel", name.strip(), KERNEL_HELP) for name in re.split(r"[+*]", self.kernel)),
        ):
            if value not in allowed:
                raise BadInput(
                    f"{option} is {value!r}, which is unknown", f"choose from {', '.join(allowed)}"
                )
        if self.likelihood != "gaussian" and self.model not in (*WITH_LIKELIHOOD, "binned-counts-gp"):
            raise BadInput(
                f"--likelihood is {self.likelihood}, but a {self.model} takes gaussian",
                f"leave it out, or take --model {' or '.join(WITH_LIKELIHOOD)}",
            )
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
            ("--restarts", self.restarts),
        ):
            if isinstance(number, str) or (number is not None and number < 1):
                raise BadInput(f"{option} is {number}", "give a whole number of at least 1")
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"--seed is {self.seed}", "give a whole number from 0 to 4294967295")
        for option, real in (("--learning-rate", self.learning_rate), ("--tolerance", self.tolerance)):
            if real is not None and not (math.isfinite(real) and real > 0.0):
                raise BadInput(f"{option} is {real:g}", "give a positive number, such as 0.01")
        fewest = LEAST_BUDGET[self.learning_rate is not None]
        if self.steps == AUTO and self.model != "gp" and self.budget is not None and self.budget < fewest:
            raise BadInput(f"--budget is {self.budget}", f"give at least {fewest} steps, or --steps")
        if self.model == "deep-gp" and self.hidden in CARRIES_MOMENTS:
            self._check_moments()
        if self.model == "gplvm":
            if self.alpha > 0.0 or self.objective != "power-ep":
                raise BadInput(
                    f"--objective is {self.objective} and --alpha {self.alpha:g}, but a gplvm is trained by its bound",
                    "leave both out",
                )
            if self.restarts > 1:
                raise BadInput(f"--restarts is {self.restarts}, but a gplvm is fitted once", "vary --seed")
        if self.model == "gp-with-derivatives" and self.slope_column is None:
            raise BadInput(
                "--slope-column is not given, but a gp-with-derivatives needs to know what targets are",
                "name the column that has 0 for values, and d for slopes along the d-th feature",
            )
        if self.model == "gp-with-derivatives" and "matern12" in self.kernel:
            raise BadInput(
                f"--kernel is {self.kernel}, whose functions have no slopes", "take rbf or matern32"
            )
        check_unused(self)
        self._check_series()

    def _check_series(self) -> None:
        """Raise BadInput for what a series cannot be combined with."""
        if self.model != "gpssm":
            return
        for option, value, kept in (
            ("--objective", self.objective, "power-ep"),
            ("--inducing-rule", self.inducing_rule, "full-rank"),
        ):
            if value != kept:
                raise BadInput(f"{option} is {value}, but a gpssm takes {kept}", "leave it out")
        for option, given, why in (
            (
                "--batch",
                self.batch is not None and self.window is None,
                "sees all its steps at once, but for --window",
            ),
            (
                "--drop-missing",
                self.drop_missing,
                "needs every step; it takes targets that are missing as they are",
            ),
        ):
            if given:
                raise BadInput(f"{option} is given, but a gpssm {why}", "leave it out")
        if self.window is not None and self.batch is not None and self.batch % self.window:
            raise BadInput(
                f"--batch is {self.batch} rows, which are no whole number of windows of {self.window} steps",
                f"give a multiple of {self.window}",
            )

    def _check_moments(self) -> None:
        """Raise BadInput for what a rule that offered layers as moments cannot be combined with."""
        rule = f"--hidden {self.hidden} offered the layers as moments"
        if self.inducing_rule in DRAWS_INDUCING:
            raise BadInput(
                f"--inducing-rule is {self.inducing_rule}, but {rule}, which needs q(u) independent between outputs "
                "and layers",
                "take --inducing-rule full-rank, diagonal or low-rank",
            )
        nested = self.hidden == "nested-compression"
        if self.alpha > 0.0 and (nested or self.objective == "power-ep"):
            other = "" if nested else ", or --objective black-box-alpha"
            raise BadInput(
                f"--alpha is {self.alpha:g}, but {rule}, for which {self.objective} takes α = 0 alone",
                f"give --alpha 0{other}, or a --hidden rule that draws, such as doubly-stochastic",
            )

    def resolve(self, num_rows: int, num_targets: int = 1) -> Settings:
        """Defaults that depend on the ``num_rows`` rows to train on, and on the targets, filled in.

        :raises BadInput: if more is asked, or there is one target where there should be several.
        """
        if self.model in SEVERAL_TARGETS and num_targets < 2:
            raise BadInput(
                f"--model is {self.model}, which is of several targets, but there is 1",
                "name them, as in --target a,b, or take --model sparse-gp",
            )
        rows = f"{num_rows} rows to train on"
        if self.model != "gp" and self.inducing is not None and self.inducing > num_rows:
            raise BadInput(
                f"--inducing is {self.inducing}, more than the {rows}", f"lower it to at most {num_rows}"
            )
        most, usual = num_rows, DEFAULT_BATCH if num_rows > FULL_BATCH_ROWS else None
        if self.model == "gpssm":
            # windows overlap: of n steps there are n + L - 1, and more of several sequences
            most = num_rows if self.window is None else self.window * (num_rows + self.window - 1)
            usual = None if self.window is None else min(WINDOWS_PER_STEP * self.window, most)
        if self.model != "gp" and self.batch is not None and self.batch > most:
            more = f"the {rows}" if self.window is None else f"all windows of the {rows}"
            raise BadInput(f"--batch is {self.batch}, more than {more}", f"lower it to at most {most}")
        batch = self.batch or (None if self.model == "gp" else usual)
        inducing = {"gplvm": GPLVM_INDUCING, "gpssm": SERIES_INDUCING}.get(self.model, DEFAULT_INDUCING)
        latent = {"gpssm": num_targets} | dict.fromkeys(SEVERAL_TARGETS, min(LATENT, num_targets))
        return dataclasses.replace(
            self,
            inducing=self.inducing or min(inducing, num_rows),
            latent=self.latent
            or (None if self.model in ("additive-gp", *OWN_ROWS) else latent.get(self.model, LATENT)),
            batch=batch,
            likelihood=COUNTS[0]
            if self.model == "binned-counts-gp" and self.likelihood == "gaussian"
            else self.likelihood,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self) | {"widths": list(self.widths)}

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
            "exposure": None,
            "slope_column": None,
            "budget": None,
            "tolerance": None,
            **values,
        }
        fields = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        fields["widths"] = tuple(fields["widths"])
        kinds = get_type_hints(cls) | {"widths": int}
        for name, value in fields.items():
            for each in value if name == "widths" else (value,):
                if not any(_is_of(each, kind) for kind in get_args(kinds[name]) or (kinds[name],)):
                    raise TypeError
        settings = cls(**fields)
        settings.check()
        return settings


def _is_of(value: Any, kind: type) -> bool:
    """Whether JSON has a value of this type; whole numbers are numbers, but none of them is true or false."""
    if isinstance(value, str):
        value.encode()  # a half of a surrogate pair can be neither shown nor written
    if isinstance(value, bool) or kind not in (int, float):
        return isinstance(value, kind)
    return isinstance(value, int | kind) and abs(value) < 2**63
