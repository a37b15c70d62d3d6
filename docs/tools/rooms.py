"""The pages of the API reference: which public name is on which, read from the package without importing it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Page:
    """A page of the reference.

    title: of the page. about: what it has, in a sentence or two. rooms: of whose names it is. members: of which
    classes methods are shown, all unless told. first: names whose files come before the others, those of alphabetical
    order.
    """

    title: str
    about: str
    rooms: tuple[str, ...]
    members: tuple[str, ...] | None = None
    first: tuple[str, ...] = ()


PAGES = {
    "models": Page(
        "Models",
        "The zoo: each is a NumPyro program `model(x, y=None, index=None, size=None)`. What stands above the names of "
        "a family is its equation and its card: when to use it, and which guides suit it.",
        ("models",),
        members=(),
        first=("sparse_gp_regression", "deep_gp", "sparse_gp_classification", "stack", "gplvm", "gpssm"),
    ),
    "guides": Page(
        "Guides",
        "Approximate posteriors. `Guide(model, hidden=…, inducing=…)` composes a rule for hidden variables with one "
        "for inducing outputs. See [Which guide?](../which-guide.md).",
        ("guides",),
        members=("Guide", "HiddenRule", "InducingRule", "LinearConditional", "DependsOn", "Containment"),
        first=("Guide", "DoublyStochastic", "Conditional", "FullRank", "Amortised"),
    ),
    "objectives": Page(
        "Objectives",
        "What is maximised: power EP and its relatives, all of them the ELBO at α = 0. See "
        "[Which α?](../which-alpha.md).",
        ("objectives",),
        members=("Collapsed",),
        first=("PowerEP", "Collapsed", "ImportanceWeighted"),
    ),
    "fit": Page(
        "Fit",
        "Training, and the fit it results in. Verbs of a fit, such as `fit.predict(key, x)`, are the functions of "
        "[Prediction](prediction.md) and [Diagnostics](diagnostics.md) with the fit in the place of their argument "
        "`fit`.",
        ("fit",),
        first=(
            "fit_svi",
            "Fit",
            "Posterior",
            "fit_table",
            "fit_series",
            "fit_lbfgs",
            "fit_many",
            "fit_nuts",
            "fit_sghmc",
        ),
    ),
    "prediction": Page(
        "Prediction",
        "What a fit says of new rows, of latents, and of the future of a series. Each function is a verb of a fit too.",
        ("prediction",),
        first=("predict", "joint_prediction", "forecast", "infer_latents"),
    ),
    "diagnostics": Page(
        "Diagnostics",
        "What a fit is worth: bounds, k-hat, held-out scores, comparisons, export to ArviZ, figures.",
        ("diagnostics",),
        first=("compare", "Comparison", "elbo", "scores", "summary", "to_arviz"),
    ),
    "gp": Page(
        "GPs, kernels, features",
        "The sparse GP as a NumPyro program, its kernels, and what may stand in the place of inducing points.",
        ("kernels", "gp"),
        members=("Kernel", "SparseGP", "Marginal", "Functionals", "InducingFeatures", "Model", "Emission"),
        first=("RBF", "Kernel", "White", "sparse_gp", "SparseGP", "Marginal", "data_plate", "Model"),
    ),
    "likelihoods": Page(
        "Likelihoods",
        "Noise and classes: each gives the tempered expectations that objectives ask for.",
        ("likelihoods",),
        members=("Likelihood", "Scalar", "Elementwise"),
    ),
    "state-space": Page(
        "State space",
        "Trajectories and sequences. The models are on [Models](models.md), forecasts on [Prediction](prediction.md).",
        ("state_space",),
    ),
    "estimators": Page(
        "Estimators",
        "scikit-learn estimators of the usual models: `fit`, `predict`, `score`, pipelines, grid search.",
        ("estimators",),
    ),
    "data": Page(
        "Data",
        "From a source of data to arrays: loading, splitting, standardising, rows that do not fit in memory.",
        ("data", "checkpoint", "messages"),
        first=("load_table", "Table", "open_rows"),
    ),
    "streaming": Page(
        "Streaming",
        "Rows that come one batch after another, and are not kept. See [Learning from a stream](../streaming.md).",
        ("streaming",),
        first=("Stream",),
    ),
    "testing": Page(
        "Testing",
        "Checks of a part of your own, the same that those of the package pass.",
        ("testing",),
    ),
}
#: public by their rooms: names that two rooms have
BY_ROOM = {"kernels": ("Linear", "Constant"), "likelihoods": ("Gaussian",)}
#: words of files that are not written as they stand
ACRONYMS = ("GP", "GPSSM", "GPLVM", "NARX", "EP", "NUTS", "SGHMC", "KL")
SPELLED = {name.lower(): name for name in (*ACRONYMS, "Kalman", "Fourier")}
SPELLED |= {"arviz": "ArviZ", "khat": "k-hat"}


def source(module: str) -> Path:
    """The file of a module; the zoo stands beside the package."""
    parts = module.split(".")
    path = (
        ROOT.joinpath("models", *parts[2:]) if parts[:2] == ["ppl_dgp", "models"] else ROOT.joinpath(*parts)
    )
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """Where the names that a room takes from its files come from: module and name there."""
    found = {}
    for statement in ast.walk(ast.parse(source(module).read_text())):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for each in statement.names:
                found[each.asname or each.name] = statement.module, each.name
    return found


@cache
def public() -> dict[str, tuple[str, ...]]:
    """The names of each home, as ``ppl_dgp/__init__.py`` has them, and those of ``ppl_dgp.testing``."""
    homes: dict[str, tuple[str, ...]] = {}
    for module, wanted in (("ppl_dgp", "_HOMES"), ("ppl_dgp.testing", "__all__")):
        for statement in ast.parse(source(module).read_text()).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == wanted:
                value = ast.literal_eval(statement.value)
                homes |= value if isinstance(value, dict) else {module: tuple(value)}
    return homes


@cache
def contents(page: str) -> dict[str, dict[str, str]]:
    """The modules of a page, in alphabetical order, and of each the public names with what it calls them itself."""
    found: dict[str, dict[str, str]] = {}
    for room in PAGES[page].rooms:
        for home, names in public().items():
            if home.split(".")[1] != room:
                continue
            for name in (*names, *(BY_ROOM.get(room, ()) if home.count(".") == 1 else ())):
                module, own = imported(home).get(name, (home, name))
                found.setdefault(module, {})[name] = own
    first = PAGES[page].first

    def place(module: str) -> tuple[int, int, str]:
        number = min((first.index(name) for name in found[module] if name in first), default=len(first))
        return PAGES[page].rooms.index(module.split(".")[1]), number, module

    order = sorted(found, key=place)
    return {module: found[module] for module in order}


@cache
def places() -> dict[str, str]:
    """The path under which the reference shows each public name."""
    return {
        name: f"{module}.{own}"
        for page in PAGES
        for module, names in contents(page).items()
        for name, own in names.items()
    }


def heading(module: str) -> str:
    """What a module is called above its names: the words of its file."""
    if source(module).name == "__init__.py":
        return "Checks" if module == "ppl_dgp.testing" else "By name"
    words = " ".join(SPELLED.get(word, word) for word in module.rsplit(".", 1)[-1].split("_"))
    return words[0].upper() + words[1:]


def written(page: str) -> str:
    """The Markdown of a page of the reference, for mkdocstrings to fill in."""
    about = PAGES[page]
    parts = [f"# {about.title}\n\n{about.about}\n"]
    for module, names in contents(page).items():
        parts.append(
            f"## {heading(module)}\n\n::: {module}\n    options:\n      members: false\n"
            "      show_root_heading: false\n      show_root_toc_entry: false\n      show_source: false\n"
        )
        for name, own in names.items():
            methods = "" if about.members is None or name in about.members else "      members: false\n"
            parts.append(
                f"::: {module}.{own}\n    options:\n      heading: {name}\n      toc_label: {name}\n{methods}"
            )
    return "\n".join(parts)
