"""Prediction of an exact GP: its posterior is made of training rows and hyperparameters, and nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit.full_batch import no_latents
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.exact_gp import ExactGP
from ppl_dgp.gp.parameters import ParameterCheck


def is_exact(fit: Posterior) -> bool:
    """Whether f was integrated out, so that there is no guide."""
    return fit.guide is no_latents


def exact_moments(
    fit: Posterior, x: Float[np.ndarray, "B D"], batch_size: int
) -> tuple[Float[np.ndarray, "B P"], Float[np.ndarray, "B P"], Float[np.ndarray, ""]]:
    """Mean and variance of f at new rows, and the variance of their noise.

    :raises ValueError: if the training rows are not at hand, or the parameters are not those of the model.
    :raises TypeError: if the model is no ``exact_gp_regression``.
    """
    gp, y = trained_gp(fit)
    new = _exact_gp(fit, (jnp.asarray(x[:1]),))
    pieces = [
        gp.predictive(y, jnp.asarray(x[begin : begin + batch_size])) for begin in range(0, len(x), batch_size)
    ]
    mean = np.concatenate([np.asarray(mean) for mean, _ in pieces])
    variance = np.concatenate([np.asarray(variance) for _, variance in pieces])
    return mean, np.broadcast_to(variance[:, None], mean.shape), np.asarray(new.noise[0])


def exact_joint(
    fit: Posterior, x: Float[Array, "B D"], prior: bool = False
) -> tuple[Float[Array, "B P"], Float[Array, "B B"]]:
    """Mean and covariance of f over new rows, the covariance that of each column; raises as :func:`exact_moments`.

    :param prior: whether those of the prior, at the fit's hyperparameters.
    """
    gp, y = trained_gp(fit)
    if prior:
        return jnp.zeros((len(x), y.shape[1]), y.dtype), gp.kernel(x, x)
    return gp.joint_predictive(y, x)


def exact_quantiles(
    mean: Float[np.ndarray, "B P"], variance: Float[np.ndarray, "B P"], levels: Sequence[float]
) -> Float[np.ndarray, "K B P"]:
    """Of a Gaussian."""
    return np.stack([mean + float(norm.ppf(level)) * np.sqrt(variance) for level in levels])


def trained_gp(fit: Posterior) -> tuple[ExactGP, Array]:
    """The GP with its training rows, and their targets; raises as :func:`exact_moments`."""
    if fit.data is None:
        raise ValueError(
            "fit: found no training rows, which an exact GP predicts from; take the fit of fit_lbfgs, or "
            "Posterior(model, no_latents, params, data=(x, y))"
        )
    x, y = (jnp.asarray(rows) for rows in fit.data)
    return _exact_gp(fit, (x, y)), y.reshape(len(y), -1)


def _exact_gp(fit: Posterior, arguments: tuple[Array, ...]) -> ExactGP:
    program = substitute(seed(fit.model, jax.random.PRNGKey(0)), fit.params)
    given = ParameterCheck(fit.params)
    with given:
        sites = trace(program).get_trace(*arguments)
    gp = sites["y"]["fn"] if "y" in sites else None
    if not isinstance(gp, ExactGP):
        raise TypeError(
            f"model: found {type(gp).__name__} at site 'y' of a fit without a guide, expected exact_gp_regression; fit "
            "other models with a guide"
        )
    given.check_known()
    return gp
