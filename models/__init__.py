"""The zoo: generative models as NumPyro programs."""

from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.gp_regression import exact_gp_regression, sparse_gp_regression

__all__ = ["deep_gp", "exact_gp_regression", "sparse_gp_regression"]
