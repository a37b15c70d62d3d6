"""Training: any NumPyro model under any guide and any ELBO, by stochastic or full-batch optimisation."""

from typing import TYPE_CHECKING, Any

from ppl_dgp.fit.cache import keep_compiled
from ppl_dgp.fit.chains import SamplingWarning
from ppl_dgp.fit.energy import energy, optimal_inducing
from ppl_dgp.fit.factors import gaussian_factors
from ppl_dgp.fit.files import load_fit, save_fit
from ppl_dgp.fit.full_batch import fit_lbfgs
from ppl_dgp.fit.held_draws import HeldDrawsWarning
from ppl_dgp.fit.jitter import JitterWarning
from ppl_dgp.fit.many import FailedFitWarning, fit_many
from ppl_dgp.fit.natural import natural_adam
from ppl_dgp.fit.nuts import fit_nuts
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.fit.power_ep import SiteWarning, fit_power_ep
from ppl_dgp.fit.result import Fit, FitError, Interrupted
from ppl_dgp.fit.saving import SaveWarning
from ppl_dgp.fit.series import fit_series
from ppl_dgp.fit.sghmc import fit_sghmc
from ppl_dgp.fit.shallow import shallow_start
from ppl_dgp.fit.stochastic import fit_svi
from ppl_dgp.fit.table import fit_table
from ppl_dgp.fit.training import ResumeWarning
from ppl_dgp.fit.watching import ChunkReport

if TYPE_CHECKING:
    from ppl_dgp.fit.streamed import fit_stream

keep_compiled()

__all__ = [
    "ChunkReport",
    "FailedFitWarning",
    "Fit",
    "FitError",
    "Interrupted",
    "HeldDrawsWarning",
    "JitterWarning",
    "ResumeWarning",
    "SaveWarning",
    "Posterior",
    "SamplingWarning",
    "SiteWarning",
    "energy",
    "fit_lbfgs",
    "fit_many",
    "fit_nuts",
    "fit_power_ep",
    "fit_series",
    "fit_sghmc",
    "fit_stream",
    "fit_svi",
    "fit_table",
    "gaussian_factors",
    "load_fit",
    "natural_adam",
    "optimal_inducing",
    "save_fit",
    "shallow_start",
]


def __getattr__(name: str) -> Any:
    # streams read tables, by pandas and pyarrow, which take as long to import as all else of a fit
    if name == "fit_stream":
        from ppl_dgp.fit.streamed import fit_stream

        return fit_stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
