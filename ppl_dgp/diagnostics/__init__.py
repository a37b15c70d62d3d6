"""What a fit is worth: ArviZ export, Pareto k-hat, comparison tables, scores, latents in one frame, plots."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# a module of the same name would take its place
from ppl_dgp.diagnostics.scores import crps, held_out_scores, scores

if TYPE_CHECKING:
    from ppl_dgp.diagnostics.alignment import aligned
    from ppl_dgp.diagnostics.arviz_api import read_netcdf as load_arviz
    from ppl_dgp.diagnostics.arviz_api import write_netcdf as save_arviz
    from ppl_dgp.diagnostics.arviz_export import to_arviz
    from ppl_dgp.diagnostics.candidates import Candidate
    from ppl_dgp.diagnostics.class_measures import class_scores, confusion_counts
    from ppl_dgp.diagnostics.class_plots import plot_confusion, plot_reliability
    from ppl_dgp.diagnostics.comparing import compare, compare_fits
    from ppl_dgp.diagnostics.comparison import Comparison, tabulate
    from ppl_dgp.diagnostics.cross_validation import CrossValidation, compare_elpd, cross_validate
    from ppl_dgp.diagnostics.figures import save_figure
    from ppl_dgp.diagnostics.folds import Splitter, forward_folds
    from ppl_dgp.diagnostics.horizon_plots import plot_horizons
    from ppl_dgp.diagnostics.horizons import HorizonScores, horizon_scores
    from ppl_dgp.diagnostics.hyperparameters import summary
    from ppl_dgp.diagnostics.khat import ParetoK, elbo, importance_weighted_bound, pareto_k
    from ppl_dgp.diagnostics.latent_plots import plot_grid, plot_latents, plot_relevance, plot_views
    from ppl_dgp.diagnostics.layer_plots import plot_layer_draws, plot_layers
    from ppl_dgp.diagnostics.layers import LayerMap, explained, layer_maps
    from ppl_dgp.diagnostics.plots import plot_calibration, plot_fit, plot_losses, plot_predicted
    from ppl_dgp.diagnostics.predictive_plots import plot_prior_posterior
    from ppl_dgp.diagnostics.sensitivity import Dependence, partial_dependence
    from ppl_dgp.diagnostics.sensitivity_plots import plot_dependence, plot_ranking
    from ppl_dgp.diagnostics.series_plots import plot_series, plot_states
    from ppl_dgp.diagnostics.simulation import (
        SimulationChoice,
        SimulationScore,
        choose_by_simulation,
    )
    from ppl_dgp.diagnostics.training_plots import plot_convergence, plot_hyperparameters
    from ppl_dgp.diagnostics.transition_plots import plot_transition, plot_vector_field

__all__ = [
    "Candidate",
    "Comparison",
    "CrossValidation",
    "Dependence",
    "HorizonScores",
    "LayerMap",
    "ParetoK",
    "SimulationChoice",
    "SimulationScore",
    "Splitter",
    "aligned",
    "choose_by_simulation",
    "class_scores",
    "compare",
    "compare_elpd",
    "compare_fits",
    "confusion_counts",
    "cross_validate",
    "crps",
    "elbo",
    "explained",
    "forward_folds",
    "held_out_scores",
    "horizon_scores",
    "importance_weighted_bound",
    "layer_maps",
    "load_arviz",
    "pareto_k",
    "partial_dependence",
    "plot_calibration",
    "plot_confusion",
    "plot_convergence",
    "plot_dependence",
    "plot_fit",
    "plot_grid",
    "plot_horizons",
    "plot_hyperparameters",
    "plot_latents",
    "plot_layer_draws",
    "plot_layers",
    "plot_losses",
    "plot_predicted",
    "plot_prior_posterior",
    "plot_ranking",
    "plot_relevance",
    "plot_reliability",
    "plot_series",
    "plot_states",
    "plot_transition",
    "plot_vector_field",
    "plot_views",
    "save_arviz",
    "save_figure",
    "scores",
    "summary",
    "tabulate",
    "to_arviz",
]

#: the file of each name, imported when one is first used: pictures need an extra, and others take seconds
_FILES = {
    "alignment": ("aligned",),
    "arviz_api": (
        "load_arviz",
        "save_arviz",
    ),
    "arviz_export": ("to_arviz",),
    "candidates": ("Candidate",),
    "class_measures": (
        "class_scores",
        "confusion_counts",
    ),
    "class_plots": (
        "plot_confusion",
        "plot_reliability",
    ),
    "comparing": (
        "compare",
        "compare_fits",
    ),
    "comparison": (
        "Comparison",
        "tabulate",
    ),
    "cross_validation": (
        "CrossValidation",
        "compare_elpd",
        "cross_validate",
    ),
    "figures": ("save_figure",),
    "folds": (
        "Splitter",
        "forward_folds",
    ),
    "horizon_plots": ("plot_horizons",),
    "horizons": (
        "HorizonScores",
        "horizon_scores",
    ),
    "hyperparameters": ("summary",),
    "khat": (
        "ParetoK",
        "elbo",
        "importance_weighted_bound",
        "pareto_k",
    ),
    "latent_plots": (
        "plot_grid",
        "plot_latents",
        "plot_relevance",
        "plot_views",
    ),
    "layer_plots": (
        "plot_layer_draws",
        "plot_layers",
    ),
    "layers": (
        "LayerMap",
        "explained",
        "layer_maps",
    ),
    "plots": (
        "plot_calibration",
        "plot_fit",
        "plot_losses",
        "plot_predicted",
    ),
    "predictive_plots": ("plot_prior_posterior",),
    "sensitivity": (
        "Dependence",
        "partial_dependence",
    ),
    "sensitivity_plots": (
        "plot_dependence",
        "plot_ranking",
    ),
    "series_plots": (
        "plot_series",
        "plot_states",
    ),
    "simulation": (
        "SimulationChoice",
        "SimulationScore",
        "choose_by_simulation",
    ),
    "training_plots": (
        "plot_convergence",
        "plot_hyperparameters",
    ),
    "transition_plots": (
        "plot_transition",
        "plot_vector_field",
    ),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}
#: names that are others in their files
_THERE = {"load_arviz": "read_netcdf", "save_arviz": "write_netcdf"}


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    file = import_module(f"{__name__}.{_FILE_OF[name]}")
    value = globals()[name] = getattr(file, _THERE.get(name, name))
    return value
