"""What a fit is worth: ArviZ export, Pareto k-hat, comparison tables, scores, latents in one frame, plots."""

from ppl_dgp.diagnostics.alignment import aligned
from ppl_dgp.diagnostics.arviz_api import read_netcdf as load_arviz
from ppl_dgp.diagnostics.arviz_api import write_netcdf as save_arviz
from ppl_dgp.diagnostics.arviz_export import to_arviz
from ppl_dgp.diagnostics.candidates import Candidate
from ppl_dgp.diagnostics.class_measures import class_scores, confusion_counts
from ppl_dgp.diagnostics.class_plots import plot_confusion, plot_reliability
from ppl_dgp.diagnostics.compare import compare, compare_fits
from ppl_dgp.diagnostics.comparison import Comparison, tabulate
from ppl_dgp.diagnostics.figures import save_figure
from ppl_dgp.diagnostics.horizon_plots import plot_horizons
from ppl_dgp.diagnostics.horizons import HorizonScores, horizon_scores
from ppl_dgp.diagnostics.khat import ParetoK, elbo, importance_weighted_bound, pareto_k
from ppl_dgp.diagnostics.latent_plots import plot_grid, plot_latents, plot_relevance, plot_views
from ppl_dgp.diagnostics.layer_plots import plot_layer_draws, plot_layers
from ppl_dgp.diagnostics.layers import LayerMap, explained, layer_maps
from ppl_dgp.diagnostics.plots import plot_calibration, plot_fit, plot_losses, plot_predicted
from ppl_dgp.diagnostics.predictive_plots import plot_prior_posterior
from ppl_dgp.diagnostics.scores import crps, held_out_scores, scores
from ppl_dgp.diagnostics.sensitivity import Dependence, partial_dependence
from ppl_dgp.diagnostics.sensitivity_plots import plot_dependence, plot_ranking
from ppl_dgp.diagnostics.series_plots import plot_series, plot_states
from ppl_dgp.diagnostics.simulation import (
    SimulationChoice,
    SimulationScore,
    choose_by_simulation,
)
from ppl_dgp.diagnostics.summary import summary
from ppl_dgp.diagnostics.training_plots import plot_convergence, plot_hyperparameters
from ppl_dgp.diagnostics.transition_plots import plot_transition, plot_vector_field

__all__ = [
    "Candidate",
    "Comparison",
    "Dependence",
    "HorizonScores",
    "LayerMap",
    "ParetoK",
    "SimulationChoice",
    "SimulationScore",
    "aligned",
    "choose_by_simulation",
    "class_scores",
    "compare",
    "compare_fits",
    "confusion_counts",
    "crps",
    "elbo",
    "explained",
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
