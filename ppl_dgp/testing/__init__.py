"""Checks of a user's own parts, the same that those of the package pass; each prints a table of what holds."""

from ppl_dgp.testing.hidden_rules import check_rule
from ppl_dgp.testing.inducing_rules import check_inducing_rule
from ppl_dgp.testing.kernels import check_kernel
from ppl_dgp.testing.likelihoods import check_likelihood
from ppl_dgp.testing.objectives import check_objective
from ppl_dgp.testing.report import CheckFailed, CheckReport, CheckRow

__all__ = [
    "CheckFailed",
    "CheckReport",
    "CheckRow",
    "check_inducing_rule",
    "check_kernel",
    "check_likelihood",
    "check_objective",
    "check_rule",
]
