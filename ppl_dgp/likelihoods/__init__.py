"""Likelihoods p(y | f) as frozen pytrees: tempered expectations under f ~ N(m, v), draws, predictive moments.

Closed forms where there are any, quadrature that adapts to the integrand else (:mod:`ppl_dgp.likelihoods.quadrature`);
what all of them offer is :class:`Likelihood`.
"""

from collections.abc import Callable
from functools import partial

from ppl_dgp.likelihoods.classes import Bernoulli, Ordinal
from ppl_dgp.likelihoods.gaussian import Gaussian
from ppl_dgp.likelihoods.heteroscedastic import Heteroscedastic
from ppl_dgp.likelihoods.likelihood import Likelihood
from ppl_dgp.likelihoods.linked import Beta, Gamma, NegativeBinomial, Poisson
from ppl_dgp.likelihoods.mixed import MixedLikelihood
from ppl_dgp.likelihoods.real import Laplace, StudentT
from ppl_dgp.likelihoods.scalar import Scalar
from ppl_dgp.likelihoods.several import RobustMax, Softmax

#: the likelihoods by name; called with their parameters, and with ``num_classes`` where there are several functions
LIKELIHOODS: dict[str, Callable[..., Likelihood]] = {
    "gaussian": Gaussian,
    "student-t": StudentT,
    "laplace": Laplace,
    "heteroscedastic": Heteroscedastic,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "gamma": Gamma,
    "beta": Beta,
    "bernoulli": Bernoulli,
    "bernoulli-logit": partial(Bernoulli, link="logit"),
    "ordinal": Ordinal,
    "softmax": Softmax,
    "robust-max": RobustMax,
}

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "Gamma",
    "Gaussian",
    "Heteroscedastic",
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
]
