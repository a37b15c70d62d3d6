"""ppl_dgp: deep Gaussian processes as declarative NumPyro models.

Everything public is here. Names are imported when first used, so that ``import ppl_dgp`` costs next to nothing; type
checkers read the same names from the stub beside this file. ``Linear``, ``Constant`` and ``Gaussian``, of which there
are a kernel or likelihood and a mean or distribution, are told apart by their rooms: ``ppl_dgp.kernels.Linear``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_HOMES = {
    "ppl_dgp.checkpoint": ("CheckpointError",),
    "ppl_dgp.data": (
        "DataError",
        "RowSource",
        "Series",
        "Standardiser",
        "Table",
        "load_columns",
        "load_entries",
        "load_rows",
        "load_series",
        "load_steps",
        "load_table",
        "open_rows",
        "split",
        "split_series",
    ),
    "ppl_dgp.diagnostics": (
        "Comparison",
        "LayerMap",
        "ParetoK",
        "aligned",
        "compare",
        "compare_fits",
        "elbo",
        "held_out_scores",
        "importance_weighted_bound",
        "layer_maps",
        "load_arviz",
        "pareto_k",
        "plot_calibration",
        "plot_fit",
        "plot_grid",
        "plot_latents",
        "plot_layers",
        "plot_losses",
        "plot_predicted",
        "plot_relevance",
        "plot_series",
        "plot_states",
        "plot_transition",
        "plot_vector_field",
        "plot_views",
        "save_arviz",
        "scores",
        "summary",
        "tabulate",
        "to_arviz",
    ),
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
        "JitterWarning",
        "Posterior",
        "ResumeWarning",
        "SaveWarning",
        "SamplingWarning",
        "SiteWarning",
        "energy",
        "fit_lbfgs",
        "fit_many",
        "fit_nuts",
        "fit_power_ep",
        "fit_series",
        "fit_stream",
        "fit_svi",
        "fit_table",
        "gaussian_factors",
        "load_fit",
        "natural_adam",
        "optimal_inducing",
        "save_fit",
        "shallow_start",
    ),
    "ppl_dgp.fit.full_batch": ("no_latents",),
    "ppl_dgp.gp.contract": (
        "Model",
        "SiteRole",
        "hidden_role",
        "inducing_role",
        "role_of",
    ),
    "ppl_dgp.gp.emission": (
        "Emission",
        "JointEmission",
        "emission_of",
    ),
    "ppl_dgp.gp.linear_map": ("Affine",),
    "ppl_dgp.gp.marginal": ("Marginal",),
    "ppl_dgp.gp.representation": ("offer",),
    "ppl_dgp.gp.sparse_gp": (
        "SparseGP",
        "sparse_gp",
    ),
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
        "EmpiricalPosterior",
        "FullRank",
        "Guide",
        "HIDDEN_RULES",
        "HiddenRule",
        "INDUCING_RULES",
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
    "ppl_dgp.kernels": (
        "KERNELS",
        "Kernel",
        "Matern12",
        "Matern32",
        "Matern52",
        "Periodic",
        "Product",
        "RBF",
        "RationalQuadratic",
        "Stationary",
        "Sum",
        "White",
    ),
    "ppl_dgp.likelihoods": (
        "Bernoulli",
        "Beta",
        "Elementwise",
        "Gamma",
        "Heteroscedastic",
        "LIKELIHOODS",
        "Laplace",
        "Likelihood",
        "MixedLikelihood",
        "NegativeBinomial",
        "Ordinal",
        "Poisson",
        "RobustMax",
        "Scalar",
        "Softmax",
        "StudentT",
    ),
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
    "ppl_dgp.objectives": (
        "AlphaDivergence",
        "ApproximatePowerEP",
        "BlackBoxAlpha",
        "Collapsed",
        "ImportanceWeighted",
        "OBJECTIVES",
        "PathWarning",
        "Pathwise",
        "PowerEP",
        "SiteEnergy",
        "WeightedKL",
        "collapsed_energy",
        "collapsed_posterior",
    ),
    "ppl_dgp.prediction.forecast": (
        "Forecast",
        "Smoothed",
        "forecast",
        "simulate",
        "smooth",
        "transition_function",
        "transition_moments",
    ),
    "ppl_dgp.prediction.joint": (
        "joint_prediction",
        "sample_functions",
    ),
    "ppl_dgp.prediction.latents": (
        "Latents",
        "infer_latents",
        "relevance",
        "row_log_density",
    ),
    "ppl_dgp.prediction.narx": (
        "Lagged",
        "lagged",
        "simulate_narx",
    ),
    "ppl_dgp.prediction.particle_filter": (
        "ParticleFiltered",
        "filter_forward",
    ),
    "ppl_dgp.prediction.predict": (
        "Prediction",
        "log_likelihood",
        "predict",
    ),
    "ppl_dgp.prediction.regimes": ("regime_probabilities",),
    "ppl_dgp.state_space.sequences": (
        "Layout",
        "layout",
    ),
    "ppl_dgp.state_space.trajectory": ("Trajectory",),
    "ppl_dgp.streaming": (
        "Greedy",
        "InducingChoice",
        "Keep",
        "ReplacedAtRandom",
        "Stream",
        "move_inducing",
        "store_posterior",
        "streamed",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

#: the rooms, for ``ppl_dgp.kernels`` and so on
_ROOMS = (
    "data",
    "diagnostics",
    "estimators",
    "fit",
    "gp",
    "guides",
    "kernels",
    "likelihoods",
    "models",
    "objectives",
    "prediction",
    "state_space",
    "streaming",
    "testing",
)

try:
    __version__ = version("ppl-dgp")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"

__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"ppl_dgp.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ppl_dgp' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
