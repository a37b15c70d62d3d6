r"""The Bayesian Gaussian process latent variable model (Titsias & Lawrence 2010; Lawrence 2005).

    x_n ~ N(0, I_Q)
    f_p ~ GP(0, k),   k an RBF with a lengthscale for each latent dimension (ARD)
    y_np = f_p(x_n) + ε,   ε ~ N(0, s²),   or y_np ~ p(y | f_p(x_n))

Card. For tables that vary in fewer ways than they have columns: to see their rows in two dimensions, to fill in missing
entries, to draw more of them. It is a sparse GP whose inputs are hidden sites with a prior. Guides:
``Guide(model, hidden=MeanField())``, with ``Collapsed()`` and ``fit_lbfgs`` up to some thousand rows, beyond that
``PowerEP(0.0, propagation="moments")`` on minibatches; ``hidden=Amortised(base=MeanField())`` where rows are too many
to have parameters each, or new ones arrive; ``hidden=PointEstimate()`` is the GPLVM of 2005. Sites: ``x``, ``gp/u``,
``y``; parameters ``gp/lengthscale``, ``gp/inducing``, ``likelihood/noise``, …. It is called as ``model(x, y)`` like the
other models; a plain GPLVM knows nothing of a row before y, so that its x has no columns: ``fit_svi(…, None, y)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpyro
from jaxtyping import Array

from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF, Kernel
from ppl_dgp.models.latents import latents_around, standard_normal, where_latents_begin
from ppl_dgp.models.observation import Observed, checked_columns, emission, observed_by
from ppl_dgp.models.parts import Composed, as_columns, inducing_inputs, kernel_parameters


def gplvm(
    num_outputs: int,
    latent: int = 2,
    num_inducing: int = 50,
    *,
    kernel: Callable[..., Kernel] | Composed = RBF,
    noise: float | str | None = None,
    likelihood: Observed | Sequence[Observed] | None = None,
    start: str = "pca",
    missing: bool = False,
    train_inducing: bool = True,
    jitter: float | None = None,
) -> Callable[..., Any]:
    """A GPLVM as a NumPyro model ``model(x, y=None, index=None, size=None)``, its x (N, 0).

    :param num_outputs: P columns of y.
    :param latent: Q dimensions of x.
    :param num_inducing: M, at most the number of rows.
    :param kernel: a kernel class, several ``Composed``, or a function Q → kernel.
    :param noise: variance of Gaussian noise: None to learn one for all columns, "per-column" to learn one for each, or
        a number to fix it.
    :param likelihood: instead of Gaussian noise one for all columns, or a sequence of one for each: names of
        ``LIKELIHOODS``, likelihoods, or functions that make one; see :func:`ppl_dgp.models.sparse_gp_regression`.
    :param start: where latents begin: "pca", principal components with their spectrum in the lengthscales, or "random",
        a random mixture of them, for restarts that differ.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param train_inducing: whether the inducing inputs are learnt.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for fewer than one latent dimension, an unknown likelihood or start, targets that a likelihood
        cannot have, or where shapes do not fit.
    """
    checked_latent(latent)
    observed = checked_columns(likelihood, noise, num_outputs)

    def model(x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None) -> Any:
        y = as_columns(x, y, num_outputs)
        given = observed_by(observed, y)
        scores, lengthscale = where_latents_begin("x", x, y, latent, start, missing)
        inducing = inducing_inputs("gp", scores, num_inducing, train_inducing)
        k = kernel_parameters("gp", kernel, latent, lengthscale)
        f = sparse_gp("gp", k, inducing, given.num_functions(num_outputs), jitter=jitter)
        with data_plate(size or x.shape[0], index):
            h = standard_normal("x", latent, lambda: latents_around(scores))
            return numpyro.sample("y", emission(f(h), given, index, y is not None, missing), obs=y)

    return model


def checked_latent(latent: int) -> None:
    """Refuse fewer than one latent dimension, by a ValueError."""
    if latent < 1:
        raise ValueError(f"latent: found {latent}, expected at least 1 dimension")
