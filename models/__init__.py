"""The zoo: generative models as NumPyro programs."""

from ppl_dgp.models.additive_gp import additive_gp
from ppl_dgp.models.binned_counts_gp import binned_counts_gp
from ppl_dgp.models.classification import (
    deep_gp_classification,
    sparse_gp_classification,
    stack_classification,
)
from ppl_dgp.models.conditioned_gplvm import conditioned_gplvm, dynamical_gplvm
from ppl_dgp.models.convolutional_gp import convolutional_gp
from ppl_dgp.models.convolved_gp import convolved_gp
from ppl_dgp.models.deep_convolutional_gp import deep_convolutional_gp
from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.deep_gplvm import deep_gplvm, latent_input_gp
from ppl_dgp.models.gp_narx import gp_narx
from ppl_dgp.models.gp_regression import exact_gp_regression, sparse_gp_regression
from ppl_dgp.models.gp_with_derivatives import gp_with_derivatives
from ppl_dgp.models.gplvm import gplvm
from ppl_dgp.models.gpssm import gpssm
from ppl_dgp.models.heteroscedastic import deep_heteroscedastic_gp, sparse_heteroscedastic_gp
from ppl_dgp.models.linear_gaussian import linear_gaussian_ssm
from ppl_dgp.models.mixture import mixture_of_experts_gp, mixture_of_functions
from ppl_dgp.models.multi_output_gp import multi_output_gp
from ppl_dgp.models.shared_gplvm import shared_gplvm
from ppl_dgp.models.stack import stack
from ppl_dgp.models.switching_gpssm import switching_gpssm

__all__ = [
    "additive_gp",
    "binned_counts_gp",
    "conditioned_gplvm",
    "convolutional_gp",
    "convolved_gp",
    "deep_convolutional_gp",
    "deep_gp",
    "deep_gp_classification",
    "deep_gplvm",
    "deep_heteroscedastic_gp",
    "dynamical_gplvm",
    "exact_gp_regression",
    "gp_narx",
    "gp_with_derivatives",
    "gplvm",
    "gpssm",
    "latent_input_gp",
    "linear_gaussian_ssm",
    "mixture_of_experts_gp",
    "mixture_of_functions",
    "multi_output_gp",
    "shared_gplvm",
    "sparse_gp_classification",
    "sparse_gp_regression",
    "sparse_heteroscedastic_gp",
    "stack",
    "stack_classification",
    "switching_gpssm",
]
