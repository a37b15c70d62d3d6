"""Sparse and deep GPs as scikit-learn estimators, for regression and classification; the GPLVM as a transformer; the
GPSSM as a forecaster of series.

Of both also stacks of GPs and networks; of regression sums of functions, and several targets that mix the same ones; of
classes images by patches.

Model, guide and objective are those of the zoo: the sparse GP (Titsias 2009; Hensman et al. 2013, 2015) and the deep GP
(Salimbeni and Deisenroth 2017) under the ELBO or a divergence of ``alpha``. Features are standardised inside, and so
are the targets of a regression; everything that comes out is in the units, or the labels, that went in.
"""

from ppl_dgp.extras import needed_for

with needed_for("an estimator"):
    import sklearn  # noqa: F401

from ppl_dgp.estimators.classifiers import DeepGPClassifier, SparseGPClassifier, StackClassifier
from ppl_dgp.estimators.forecaster import GPSSMForecaster
from ppl_dgp.estimators.images import ConvolutionalGPClassifier, DeepConvolutionalGPClassifier
from ppl_dgp.estimators.latent import GPLVM
from ppl_dgp.estimators.regressors import (
    AdditiveGPRegressor,
    DeepGPRegressor,
    MultiOutputGPRegressor,
    SparseGPRegressor,
    StackRegressor,
)
from ppl_dgp.estimators.scores import log_density_score

__all__ = [
    "GPLVM",
    "GPSSMForecaster",
    "AdditiveGPRegressor",
    "ConvolutionalGPClassifier",
    "DeepConvolutionalGPClassifier",
    "DeepGPClassifier",
    "DeepGPRegressor",
    "MultiOutputGPRegressor",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "StackClassifier",
    "StackRegressor",
    "log_density_score",
]
