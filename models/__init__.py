"""The zoo: generative models as NumPyro programs."""

from ppl_dgp.models.classification import deep_gp_classification, sparse_gp_classification
from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.gp_regression import exact_gp_regression, sparse_gp_regression
from ppl_dgp.models.heteroscedastic import deep_heteroscedastic_gp, sparse_heteroscedastic_gp
from ppl_dgp.models.mixture import mixture_of_functions

__all__ = [
    "deep_gp",
    "deep_gp_classification",
    "deep_heteroscedastic_gp",
    "exact_gp_regression",
    "mixture_of_functions",
    "sparse_gp_classification",
    "sparse_gp_regression",
    "sparse_heteroscedastic_gp",
]
