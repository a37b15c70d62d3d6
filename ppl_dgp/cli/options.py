"""Options of ``ppl-dgp``: those that commands share, and one for every setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ppl_dgp.cli import classes
from ppl_dgp.cli import names as choices
from ppl_dgp.cli.settings import BUDGET, MOST_ITERATIONS
from ppl_dgp.cli.stacks import BLOCKS

RUNS, SEVERAL = "Run", "One fit over several processes"
#: the settings in the groups of ``--help``
GROUPS = {
    "Data": ("target", "features", "ignore", "drop_missing", "split", "test_fraction"),
    "Model": ("model", "likelihood", "label_order", "kernel", "inducing", "widths", "blocks", "latent"),
    "Approximation": ("hidden", "inducing_rule", "objective", "alpha", "particles"),
    "Training": (
        *("steps", "budget", "tolerance", "batch", "learning_rate", "restarts", "seed", "float32", "float64"),
    ),
    "Series, of a gpssm": ("controls", "sequence_column", "step_column", "window", "emission", "separate"),
    "Images, of a convolutional-gp or deep-convolutional-gp": ("image", "patch", "stride", "located"),
    "Bins and slopes": ("exposure", "slope_column"),
    RUNS: ("figures",),
}


def option(help: str, *names: str, group: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=group)


def setting_option(name: str, meaning: str, usual: str | None = None, group: str | None = None) -> Any:
    """The option of a setting; its default, which may depend on the data, is only told."""
    told = f"{meaning} (default {usual})" if usual else meaning
    return option(told, "--" + name.replace("_", "-"), group=group)


SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A built-in name, a .csv, .tsv, .xlsx, .parquet or .npz, or a directory of .parquet."
    ),
]
RunDir = Annotated[str, typer.Argument(help="A directory that 'ppl-dgp fit' wrote.")]
Out = Annotated[str | None, option("Directory to write (default runs/NAME-NUMBER).", "--out", group=RUNS)]
Resume = Annotated[bool, option("Continue the run in --out.", "--resume", group=RUNS)]
Json = Annotated[
    bool, option("Print one JSON object, and nothing else, on standard output.", "--json", group=RUNS)
]
Quiet = Annotated[bool, option("No progress and no notes.", "--quiet", group=RUNS)]


#: type, meaning and default, in words, of the option for every setting
SETTINGS: dict[str, tuple[type, str, str | None]] = {
    "model": (str, " | ".join(choices.MODELS), "deep-gp"),
    "hidden": (
        str,
        " | ".join(choices.HIDDEN)
        + "; of a gplvm "
        + " | ".join(choices.LATENTS)
        + "; of a gpssm "
        + " | ".join(choices.STATES),
        "doubly-stochastic, of a gplvm mean-field, of a gpssm markov",
    ),
    "inducing_rule": (str, " | ".join(choices.INDUCING), "full-rank"),
    "objective": (str, " | ".join(choices.OBJECTIVE_HELP), "power-ep"),
    "alpha": (float, "Divergence, from 0 (the ELBO) to 1", "0"),
    "widths": (
        str,
        "Widths of the hidden layers, of a deep-convolutional-gp their channels",
        "2,2, of a deep-convolutional-gp 4",
    ),
    "blocks": (
        str,
        "Blocks of a stack, from the features to the targets: "
        + " | ".join(BLOCKS)
        + ", each but the last with its "
        "number of outputs, as in bayesian:20,gp",
        None,
    ),
    "latent": (
        int,
        "Latent dimensions of a gplvm, state dimensions of a gpssm, or functions that the targets of a multi-output-gp "
        "or convolved-gp have in common",
        "2, of a gpssm as many as targets",
    ),
    "inducing": (int, "Inducing points per layer", "100 (gplvm 50, gpssm 20), or fewer rows"),
    "kernel": (str, " | ".join(choices.KERNEL_HELP) + ", or several with + and * between", "rbf"),
    "likelihood": (
        str,
        " | ".join(choices.LIKELIHOOD_HELP | choices.OWN_SCALE)
        + ", of most models of numbers"
        + "; of classes, words or numbers, of a sparse-gp, deep-gp, stack or images "
        + " | ".join(classes.CLASS_LIKELIHOODS),
        "gaussian, of a binned-counts-gp poisson, of images bernoulli for two labels and robust-max for more",
    ),
    "label_order": (
        str,
        "Labels under --likelihood ordinal from the lowest to the highest, with commas between",
        "as they are sorted, numbers by size and words by letters",
    ),
    "particles": (int, "Draws per step", "1 at α = 0, else 8"),
    "steps": (str, "Training steps, or auto: until the fit has converged or the budget is spent", "auto"),
    "budget": (
        int,
        "Most steps of auto",
        f"{BUDGET}, of L-BFGS {MOST_ITERATIONS}",
    ),
    "tolerance": (float, "Nats left to gain that are as good as none", "0.001 a row, at least 0.5"),
    "batch": (int, "Rows per step", "all up to 2000 rows, else 1000; of a gpssm all, or 10 windows"),
    "learning_rate": (
        float,
        "Learning rate of Adam, of auto the first peak",
        "0.01, of auto the best of several",
    ),
    "restarts": (int, "Independent fits side by side; the best is kept", "1"),
    "seed": (int, "Seed of splits, synthetic data and training", "0"),
    "target": (
        str,
        "Target columns with commas between, or the target array of an .npz; of a gplvm the rows' labels",
        "the last one, or y of an .npz; none",
    ),
    "features": (str, "Columns to be features, with commas between", "all but the targets"),
    "ignore": (str, "Columns to leave out, with commas between", "none"),
    "controls": (
        str,
        "Columns that drive the series of a gpssm, with commas between, or an array of an .npz",
        "none, or u of an .npz",
    ),
    "sequence_column": (
        str,
        "Column that names the sequences of a gpssm, the rows of each together",
        "one sequence",
    ),
    "step_column": (
        str,
        "Column with the time since the row before, or with dates, where rows of a gpssm are not equally far apart",
        "equal steps",
    ),
    "window": (
        int,
        "Steps of a window, where a gpssm is to see windows of its series at a time, at any offset",
        "the whole series at once",
    ),
    "emission": (
        str,
        "From the states of a gpssm to its targets: " + " | ".join(choices.EMISSION_RULES),
        "linear",
    ),
    "exposure": (
        str,
        "Column with the exposure of each bin of a binned-counts-gp, such as the time that it was looked at",
        "the bin's volume",
    ),
    "slope_column": (
        str,
        "Column that says what the target of each row of a gp-with-derivatives is: 0 a value, d the slope along the "
        "d-th feature",
        None,
    ),
    "separate": (bool, "Give every state of a gpssm a kernel and inducing inputs of its own", None),
    "image": (
        str,
        "Height and width, and channels if there are several, of the images that rows are, pixel by pixel with their "
        "channels together",
        "a square",
    ),
    "patch": (str, "Height and width of the patches of images", "5,5, or what fits"),
    "stride": (
        int,
        "Rows and columns from one patch to the next; the last layer of several keeps 1",
        "1",
    ),
    "located": (bool, "Let what is said of a patch depend on where it is", None),
    "drop_missing": (
        bool,
        "Leave out rows with missing or infinite values; of a multi-output-gp or convolved-gp, which take targets that "
        "are missing as they are, those of features; `predict` keeps rows without a target",
        None,
    ),
    "split": (int, "Which split", "0"),
    "test_fraction": (float, "Share of the rows kept for the test, of a gpssm the last, 0 for none", "0.1"),
    "figures": (
        str,
        "Files that figures become: "
        + ", ".join(choices.FIGURE_FORMATS)
        + ", or several with commas between",
        "svg",
    ),
    "float32": (bool, "Compute in 32 bits", None),
    "float64": (bool, "Compute in 64 bits, as is usual on a CPU", None),
}


def with_settings(**defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every setting, before those of its own; they arrive as its ``given``.

    ``defaults`` are those settings that it takes as comma lists, and what it takes unless told.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        source, *extra_options = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        options = []
        for name, group in ((name, group) for group, names in GROUPS.items() for name in names):
            kind, meaning, usual = SETTINGS[name]
            if name in defaults:
                kind, usual = str, None
                meaning = f"{meaning} (several with commas between)"
            annotation = Annotated[kind | None, setting_option(name, meaning, usual, group)]  # type: ignore[valid-type]
            default = defaults.get(name)
            options.append(inspect.Parameter(name, source.kind, default=default, annotation=annotation))
        parameters = [source, *options, *extra_options]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate
