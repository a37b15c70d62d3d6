"""Nasty fits, drawn from a seed: any model, rules, objective, likelihood, precision, on data that nobody wishes for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_dgp import BayesianLayer, DeterministicNetwork, GPLayer, LatentInputs, models
from ppl_dgp.guides import HIDDEN_RULES, INDUCING_RULES, Guide, Optimal
from ppl_dgp.kernels import KERNELS

OBJECTIVES = (
    "PowerEP",
    "BlackBoxAlpha",
    "ApproximatePowerEP",
    "ImportanceWeighted",
    "Collapsed",
    "Trace_ELBO",
)
REAL = ("gaussian", "student-t", "laplace", "heteroscedastic")
COUNTS = ("poisson", "negative-binomial")
LIKELIHOODS = (*REAL, *COUNTS, "gamma", "beta")
CLASSES = ("bernoulli", "bernoulli-logit", "ordinal", "softmax", "robust-max")
FUNCTIONS = ("sparse_gp_regression", "deep_gp", "latent_input_gp", "gplvm", "deep_gplvm", "gpssm")
SERIES = ("gpssm", "switching_gpssm", "linear_gaussian_ssm")
LATENT = ("gplvm", "deep_gplvm", "conditioned_gplvm", "dynamical_gplvm", "shared_gplvm")
#: what is done to the data, and how often
TROUBLES = {
    "none": 2.0, "duplicates": 2.0, "collinear": 2.0, "constant input": 2.0, "constant target": 2.0, "huge scale": 2.0,
    "tiny scale": 2.0, "outlier": 2.0, "ties": 2.0, "large counts": 2.0, "NaN in x": 0.3, "NaN in y": 1.0,
    "NaN in a column": 0.3, "NaN in all y": 0.3, "infinity": 0.3,
}  # fmt: skip
#: of the objectives, in their order: most combinations refuse Collapsed
SHARES = (3.0, 2.0, 1.0, 2.0, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """One fit; ``number`` draws all of it."""

    number: int
    model: str
    hidden: str
    inducing: str
    objective: str
    alpha: float
    likelihood: str
    kernel: str
    trouble: str
    rows: int
    inputs: int
    outputs: int
    num_inducing: int
    batch_size: int | None
    wide: bool


def drawn(number: int) -> Case:
    """The case of a number."""
    rng = np.random.default_rng([number, 19])
    pick = lambda names: str(rng.choice(list(names)))
    model = pick(name for name in models.__all__ if name != "exact_gp_regression")
    likelihood = "gaussian"
    if "classification" in model:
        likelihood = pick(CLASSES)
    elif model in FUNCTIONS:
        likelihood = pick(LIKELIHOODS)
    rows = int(rng.choice([1, 2, 3, 5, 8, 13, 30]))
    outputs = int(rng.choice([1, 2, 3]))
    often = lambda names, shares: str(rng.choice(list(names), p=np.asarray(shares) / np.sum(shares)))
    whole = model in SERIES or rng.random() < 0.7
    objective, inducing = often(OBJECTIVES, SHARES), pick(INDUCING_RULES)
    if objective == "Collapsed" and rng.random() < 0.8:  # which refuses the others
        inducing = pick(("optimal", "full-rank"))
    several = model not in ("mixture_of_functions", "sparse_gp_classification", "deep_gp_classification")
    return Case(
        number, model, pick(HIDDEN_RULES), inducing, objective,
        float(rng.choice([0.0, 0.5, 1.0])), likelihood, pick(KERNELS), often(TROUBLES, list(TROUBLES.values())), rows,
        int(rng.choice([1, 2, 7])) if model != "gp_narx" else 7, outputs if several else 1,
        rows + 1 if rng.random() < 0.03 else int(rng.choice([1, min(2, rows), min(4, rows), rows])),
        None if whole else int(rng.integers(1, rows + 1)), bool(rng.random() < 0.5),
    )  # fmt: skip


def data_of(case: Case) -> tuple[np.ndarray | None, np.ndarray]:
    """Inputs, None where the model has none, and targets, as the likelihood wants them, then troubled."""
    rng = np.random.default_rng([case.number, 20])
    n, trouble = case.rows, case.trouble
    x = rng.normal(size=(n, case.inputs))
    columns = case.outputs + (case.model == "shared_gplvm")  # which has a view of one column beside
    f = np.sin(2.0 * x[:, :1]) + 0.1 * rng.normal(size=(n, columns))
    if case.likelihood in COUNTS:
        y = rng.poisson(np.exp(f)).astype(float) * (1e6 if trouble == "large counts" else 1.0)
    elif case.likelihood == "gamma":
        y = np.exp(f)
    elif case.likelihood == "beta":
        y = 1.0 / (1.0 + np.exp(-f))
    elif case.likelihood in CLASSES:
        y = (rng.integers(0, 2 if case.likelihood.startswith("bernoulli") else 3, (n, 1))).astype(int)
    else:
        y = f
    if trouble == "duplicates":
        x = x[np.zeros(n, int)]
    elif trouble == "collinear":
        x = x[:, :1] * np.ones(case.inputs)
    elif trouble == "constant input":
        x[:, 0] = 3.0
    elif trouble == "constant target":
        y = y[np.zeros(n, int)]
    elif trouble in ("huge scale", "tiny scale"):
        scale = 1e12 if trouble == "huge scale" else 1e-12
        x = x * scale
        y = y * scale if case.likelihood in REAL else y
    elif trouble == "outlier" and case.likelihood in REAL:
        y[rng.integers(n), 0] = 1e6
    elif trouble == "ties":
        x = np.round(x)
    elif trouble == "NaN in x":
        x[rng.integers(n), 0] = np.nan
    elif trouble.startswith("NaN") or trouble == "infinity":
        y = y.astype(float)
        place = rng.integers(n)
        value = np.inf if trouble == "infinity" else np.nan
        if trouble == "NaN in a column":
            y[:, 0] = value
        elif trouble == "NaN in all y":
            y[:] = value
        else:
            y[place, 0] = value
    if case.model in LATENT and case.model not in ("conditioned_gplvm", "dynamical_gplvm"):
        return None, y
    if case.model == "dynamical_gplvm":
        return np.sort(x[:, :1], 0), y
    if case.model in SERIES:
        return (None if case.inputs == 1 else x), y
    return x, y


def model_of(case: Case) -> Any:
    """The model."""
    make = getattr(models, case.model)
    settings: dict[str, Any] = {}
    if case.model == "linear_gaussian_ssm":
        return make(case.outputs, missing=case.number % 2 == 0)
    if case.model == "stack":
        gp = {"num_inducing": case.num_inducing, "kernel": case.kernel}
        below = [BayesianLayer(3), LatentInputs(1)] if case.number % 2 else [DeterministicNetwork((3, 2))]
        return make([*below, GPLayer(1, **gp), GPLayer(**gp)], num_outputs=case.outputs)
    settings["num_inducing"] = case.num_inducing
    if case.model not in ("dynamical_gplvm",):
        settings["kernel"] = case.kernel
    if case.model in (*LATENT, *SERIES):
        settings["missing"] = case.number % 2 == 0
    if case.model in FUNCTIONS and case.likelihood != "gaussian":
        settings["likelihood"] = case.likelihood
    if "classification" in case.model:
        two = case.likelihood.startswith("bernoulli")
        return make(2 if two else 3, **settings, likelihood=case.likelihood)
    if case.model == "shared_gplvm":
        return make((1, case.outputs), latent=2, **settings)
    if case.model == "conditioned_gplvm":
        settings["prior_inducing"] = min(3, case.rows)
    if case.model in ("gplvm", "deep_gplvm", "conditioned_gplvm", "dynamical_gplvm", *SERIES):
        return make(case.outputs, **settings)
    if case.model == "gp_narx":
        return make(case.outputs, **settings)
    if case.model == "mixture_of_functions":
        return make(2, **settings)
    return make(num_outputs=case.outputs, **settings)


def guide_of(case: Case, model: Any) -> Any:
    """The guide."""
    inducing = Optimal() if case.inducing == "optimal" else INDUCING_RULES[case.inducing]
    return Guide(model, hidden=HIDDEN_RULES[case.hidden], inducing=inducing)
