"""ppl_dgp: deep Gaussian processes as declarative NumPyro models.

Public names are imported when first used, so that `import ppl_dgp` costs next to nothing. Prediction
is `ppl_dgp.prediction.predict.predict`: the module has the name of its main function.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_HOMES = {
    "ppl_dgp.data": ("DataError", "Standardiser", "Table", "load_rows", "load_table", "open_rows", "split"),
    "ppl_dgp.diagnostics": ("compare", "to_arviz"),
    "ppl_dgp.estimators": (
        "GPLVM",
        "DeepGPClassifier",
        "DeepGPRegressor",
        "SparseGPClassifier",
        "SparseGPRegressor",
    ),
    "ppl_dgp.fit": (
        "Fit",
        "FitError",
        "Interrupted",
        "fit_lbfgs",
        "fit_many",
        "fit_nuts",
        "fit_power_ep",
        "fit_series",
        "fit_stream",
        "fit_svi",
        "natural_adam",
    ),
    "ppl_dgp.gp.sparse_gp": ("sparse_gp",),
    "ppl_dgp.gp.wrappers": ("data_plate",),
    "ppl_dgp.guides": (
        "AcrossOutputs",
        "Amortised",
        "Conditional",
        "Containment",
        "Coupled",
        "DependsOn",
        "Diagonal",
        "DoublyStochastic",
        "FullRank",
        "Guide",
        "HiddenRule",
        "InducingRule",
        "LayerChain",
        "LinearConditional",
        "LowRank",
        "Markov",
        "MeanField",
        "MomentMatched",
        "NestedCompression",
        "Optimal",
        "PRSSMSurrogate",
        "PointEstimate",
        "noise_of",
        "per_datum",
    ),
    "ppl_dgp.guides.nesting": ("nested_start",),
    "ppl_dgp.prediction.latents": ("Latents", "infer_latents", "relevance", "row_log_density"),
    "ppl_dgp.models": (
        "conditioned_gplvm",
        "deep_gp",
        "deep_gp_classification",
        "deep_gplvm",
        "deep_heteroscedastic_gp",
        "dynamical_gplvm",
        "exact_gp_regression",
        "gp_narx",
        "gplvm",
        "gpssm",
        "latent_input_gp",
        "linear_gaussian_ssm",
        "mixture_of_functions",
        "shared_gplvm",
        "sparse_gp_classification",
        "sparse_gp_regression",
        "sparse_heteroscedastic_gp",
        "switching_gpssm",
    ),
    "ppl_dgp.prediction.narx": ("lagged", "simulate_narx"),
    "ppl_dgp.objectives": (
        "ApproximatePowerEP",
        "BlackBoxAlpha",
        "Collapsed",
        "ImportanceWeighted",
        "Pathwise",
        "PowerEP",
        "collapsed_energy",
        "collapsed_posterior",
    ),
    "ppl_dgp.prediction.predict": ("Prediction", "joint_prediction", "log_likelihood", "sample_functions"),
    "ppl_dgp.state_space.switching_trajectory": ("regime_probabilities",),
    "ppl_dgp.streaming": ("Stream", "remember", "renew", "streamed"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

try:
    __version__ = version("ppl-dgp")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ppl_dgp' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
