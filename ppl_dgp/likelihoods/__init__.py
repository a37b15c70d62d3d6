"""Likelihoods p(y | f) as frozen pytrees: tempered expectations under f ~ N(m, v), draws, predictive moments.

Closed forms where there are any, quadrature that adapts to the integrand else (:mod:`ppl_dgp.likelihoods.quadrature`);
what all of them offer is :class:`Likelihood`.
"""

from functools import partial
from typing import Any

from ppl_dgp.likelihoods.classes import Bernoulli, Ordinal
from ppl_dgp.likelihoods.gaussian import Gaussian
from ppl_dgp.likelihoods.heteroscedastic import Heteroscedastic
from ppl_dgp.likelihoods.likelihood import Likelihood
from ppl_dgp.likelihoods.linked import Beta, Gamma, NegativeBinomial, Poisson
from ppl_dgp.likelihoods.mixed import MixedLikelihood
from ppl_dgp.likelihoods.real import Laplace, StudentT
from ppl_dgp.likelihoods.scalar import Elementwise, Scalar
from ppl_dgp.likelihoods.several import RobustMax, Softmax

#: the likelihoods by the names that models, estimators and the command line give them; what y is says ``target``, where
#: values begin to be learnt, and within what, the metadata of their fields
LIKELIHOODS: dict[str, type[Likelihood] | partial[Any]] = {
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


def likelihood_class(made_by: type[Likelihood] | partial[Any]) -> type[Likelihood]:
    """The class of what an entry of ``LIKELIHOODS`` makes."""
    return made_by.func if isinstance(made_by, partial) else made_by  # type: ignore[return-value]


def names_of(*targets: str) -> tuple[str, ...]:
    """The names of likelihoods whose y is any of these, such as "numbers"."""
    return tuple(name for name, entry in LIKELIHOODS.items() if likelihood_class(entry).target in targets)


__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "Elementwise",
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
    "likelihood_class",
    "names_of",
]
