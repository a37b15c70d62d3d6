"""What settings may be, and what that means, for help.

The names are those of the tables in ``guides``, ``objectives`` and ``kernels``, written again so that help needs none
of the heavy imports.
"""

from __future__ import annotations

from ppl_dgp.cli.classes import IMAGE_MODELS
from ppl_dgp.cli.stacks import STACK

MODELS = {
    "gp": "exact GP regression: closed form, O(N³), for up to a few thousand rows",
    "sparse-gp": "sparse GP: inducing points, minibatches",
    "deep-gp": "deep GP: layers of sparse GPs, for steps and changing lengthscales",
    STACK: "GP layers, Bayesian and other networks and latents above each other, as --blocks says",
    "additive-gp": "a sum of sparse GPs, one of each feature, and which of them explains what",
    "multi-output-gp": "several targets that mix the same functions; entries may be missing",
    "convolved-gp": "several targets that smooth the same functions, each as it likes; entries may be missing",
    "binned-counts-gp": "counts in bins, lower ends before upper ones: a rate that varies over them",
    "gp-with-derivatives": "sparse GP regression on values and on slopes",
    "gplvm": "latents of a table's rows, all its columns alike; missing entries filled in",
    "gpssm": "states of a series and how they move: to smooth, forecast and simulate",
    **IMAGE_MODELS,
}
#: what a gplvm offers for --hidden, the first unless told
LATENTS = {
    "mean-field": "one Gaussian per row",
    "mean-field-full": "the same with correlated dimensions, for tables with many holes",
    "amortised": "one Gaussian per row, from a network of the row's entries",
    "point-estimate": "one value per row",
}
#: the same of a gpssm
STATES = {
    "markov": "a linear-Gaussian chain, its bound in closed form",
    "mean-field": "one Gaussian per step",
    "conditional": "each state follows the transition function; begins where markov has ended",
    "conditional-markov": "the same and the state before, linearly; contains markov and conditional",
    "doubly-stochastic": "the model's own transition, nothing learnt per step",
}
HIDDEN = {
    "mean-field": "one Gaussian per datum and layer",
    "markov": "linear in the layer before",
    "conditional": "the model's own function and a free Gaussian, mixed per datum; contains the first and the last",
    "conditional-markov": "the same and the layer before, linearly; contains markov and conditional",
    "conditional-tied": "conditional with one draw of the function's inducing outputs",
    "conditional-free": "free linear map of the inducing outputs per datum",
    "conditional-across": "the same from the inducing outputs of all outputs, their noise correlated",
    "doubly-stochastic": "the model's own conditional, nothing learnt per datum",
    "moment-matched": "the same with layers as Gaussian moments instead of draws; no bound beyond two layers",
    "nested-compression": "layers as moments, each a map of its inducing outputs that is not learnt; the ELBO only",
    "amortised": "conditional, its values per datum given by a network of the datum",
}
#: from the states of a gpssm to its targets
EMISSION_RULES = {
    "linear": "learnt",
    "identity": "the first states are what is observed",
    "gp": "a function, learnt: a sparse GP of the states",
}
INDUCING = {
    "full-rank": "q(u) with a full covariance for each output",
    "diagonal": "q(u) with a diagonal covariance",
    "low-rank": "q(u) with a diagonal covariance and ten factors for each output",
    "across-outputs": "q(u) with one full covariance for all outputs of a layer",
    "layer-chain": "q(u) of a layer linear in the u of the layer before",
    "coupled": "q(u) of a layer linear in the u of all layers before",
    "decoupled": "q(u) with a full covariance at the first 100 inducing inputs, beyond them a mean alone",
    "global": "q(u) of each layer given pseudo-observations at the draw of the layer before",
}
OBJECTIVE_HELP = {
    "power-ep": "a lower bound at every α, the ELBO at 0",
    "black-box-alpha": "an energy, no bound for α > 0; the ELBO at 0",
    "approximate-power-ep": "an energy with one factor for all rows, no bound for α > 0; the ELBO at 0",
    "collapsed": "q(u) in closed form, by L-BFGS under Gaussian noise; a lower bound at α = 0, an energy above",
    "importance-weighted": "a bound of --particles samples of hidden layers, for 0 < α ≤ 1",
}
#: of files that figures become, the first unless told
FIGURE_FORMATS = ("svg", "pdf", "png")
KERNEL_HELP = {
    "rbf": "smooth functions",
    "matern12": "rough functions",
    "matern32": "functions with one derivative",
    "matern52": "functions with two",
    "rational-quadratic": "smooth functions of many lengthscales",
    "periodic": "functions that repeat themselves",
    "linear": "linear functions through the origin",
    "constant": "an offset",
}
#: those of real targets, which standardising leaves what they are
LIKELIHOOD_HELP = {
    "gaussian": "noise of one variance",
    "student-t": "noise with heavy tails, which outliers hardly move",
    "laplace": "noise with heavier tails than Gaussian",
    "heteroscedastic": "Gaussian noise whose variance is a function of the features",
}
#: those of numbers that mean nothing in other units, and are not standardised
OWN_SCALE = {
    "poisson": "counts that vary as much as their mean",
    "negative-binomial": "counts that vary more",
    "gamma": "positive numbers, whose deviation goes along with their mean",
    "beta": "fractions between 0 and 1, neither included",
}
#: models that take another than gaussian
WITH_LIKELIHOOD = ("sparse-gp", "additive-gp", "deep-gp", STACK)
