r"""The power-EP energy of one sparse layer with Gaussian noise, q(u) optimised in closed form.

.. math::
    \log N(y;\ m,\ Q + \alpha\,\mathrm{diag}(K - Q) + s^2 I)
    - \frac{1 - \alpha}{2\alpha} \sum_n \log\bigl(1 + \alpha (k_{nn} - q_{nn}) / s_n^2\bigr),
    \qquad Q = K_{xz} K_{zz}^{-1} K_{zx}

α → 0 is Titsias' bound (2009), α = 1 FITC (Snelson & Ghahramani 2006); at Z = X it is the exact evidence at every α.
Source: Bui, Yan & Turner 2017, "A unifying framework for Gaussian process pseudo-point approximations".
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import Any

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import ELBO

from ppl_dgp.gp import emission_of, mask_of
from ppl_dgp.kernels import Kernel
from ppl_dgp.likelihoods import Gaussian
from ppl_dgp.linalg import cholesky, inverse_lower
from ppl_dgp.means import Mean
from ppl_dgp.objectives.alpha import checked_alpha


def collapsed_energy(
    kernel: Kernel,
    inducing: Float[Array, "M D"],
    noise: Float[Array, ""] | Float[Array, "N 1"] | Float[Array, "N P"] | Float[Array, " P"] | float,
    x: Float[Array, "N D"],
    y: Float[Array, "N P"],
    alpha: float,
    mean: Mean | None = None,
    jitter: float | None = None,
) -> Float[Array, ""]:
    """The energy in total nats, summed over the P independent columns of y; O(N M² P), never N × N.

    :param noise: variance s²: scalar, per column (P,), or per row (N, 1) or (N, P).
    :param alpha: in [0, 1]; 0 is Titsias' bound.
    :param mean: mean function (N, D) → (N, P); zero if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp`.
    :raises ValueError: if alpha is outside [0, 1].
    """
    alpha = checked_alpha("collapsed_energy", alpha)
    lower, _ = cholesky(kernel(inducing, inducing), jitter)
    weights = kernel(x, inducing) @ inverse_lower(lower).T  # A = K_xz L⁻ᵀ, Q = A Aᵀ
    residual = jnp.maximum(kernel.diag(x) - jnp.square(weights).sum(1), 0.0)[:, None]
    difference = y if mean is None else y - mean(x)
    return _energy(weights, residual, difference, jnp.asarray(noise), alpha)


class Collapsed(ELBO):
    """Minus :func:`collapsed_energy` as an objective for ``sparse_gp_regression``, with any guide of its sites.

    The guide's q(u) is ignored: it is optimised away, so its parameters have no gradient. Latents that are not
    inducing outputs are an error.
    """

    def __init__(self, alpha: float = 0.0) -> None:
        """
        :param alpha: in [0, 1]; 0 is Titsias' bound, 1 FITC.
        :raises TypeError: if alpha is not a number.
        :raises ValueError: if alpha is outside [0, 1].
        """
        self.alpha = checked_alpha("Collapsed", alpha)
        super().__init__(1)

    def __repr__(self) -> str:
        return f"Collapsed(alpha={self.alpha:g})"

    def loss(
        self,
        rng_key: Array,
        param_map: dict[str, Array],
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Float[Array, ""]:
        """Minus the energy in total nats; takes no random draw.

        :raises ValueError: if the model has another latent than one layer's inducing outputs, or a minibatch.
        :raises TypeError: if its observations are not a GP with Gaussian noise.
        """
        found = trace(substitute(seed(model, rng_key), data=param_map)).get_trace(*args, **kwargs)
        sites = [site for site in found.values() if site["type"] == "sample"]
        latent = [site["name"] for site in sites if not site["is_observed"]]
        observed = [site for site in sites if site["is_observed"]]
        if len(latent) != 1 or found[latent[0]]["infer"].get("role") != "inducing" or len(observed) != 1:
            raise ValueError(
                f"model: found the latent sites {latent} and {len(observed)} observed ones, expected one layer's "
                "inducing outputs and one observed site, as sparse_gp_regression has; use PowerEP otherwise"
            )
        (site,) = observed
        emission = emission_of(site["fn"])
        if emission is None or not isinstance(emission.likelihood, Gaussian):
            raise TypeError(
                f"model: found {type(site['fn']).__name__} at {site['name']!r}, expected f(x).noisy(...)"
            )
        if site["scale"] is not None and site["scale"] != 1.0:
            raise ValueError(
                "model: found a minibatch, expected all rows; the closed form does not sum over rows"
            )
        if mask_of(site["fn"]) is not True:
            raise ValueError(
                "model: found masked rows, expected all to count; leave them out of x and y instead"
            )
        marginal = emission.marginal
        difference = site["value"] - marginal.function.mean(marginal.rows)
        noise = emission.likelihood.variance
        return -_energy(marginal.weights, marginal.residual, difference, noise, self.alpha)


def _energy(
    weights: Float[Array, "N M"],
    residual: Float[Array, "N 1"],
    difference: Float[Array, "N P"],
    noise: Array,
    alpha: float,
) -> Float[Array, ""]:
    # columns whose noise is the same share one factorisation
    columns = noise.shape[-1] if noise.ndim else 1
    noise = jnp.broadcast_to(noise, (difference.shape[0], columns))
    if columns == 1:
        return _column(weights, residual[:, 0], difference, noise[:, 0], alpha)
    parts = [
        _column(weights, residual[:, 0], difference[:, p : p + 1], noise[:, p], alpha) for p in range(columns)
    ]
    return jnp.stack(parts).sum()


def _column(
    weights: Float[Array, "N M"],
    residual: Float[Array, " N"],
    difference: Float[Array, "N P"],
    noise: Float[Array, " N"],
    alpha: float,
) -> Float[Array, ""]:
    """The energy of the columns that share ``noise``: log N by Woodbury's and Sylvester's identities."""
    rows, outputs = difference.shape
    # Λ = α diag(K − Q) + s²,  B = I + Aᵀ Λ⁻¹ A = L_B L_Bᵀ
    total = noise + alpha * residual
    scaled = weights / jnp.sqrt(total)[:, None]
    lower, _ = cholesky(jnp.eye(weights.shape[1], dtype=weights.dtype) + scaled.T @ scaled, 0.0)
    y = difference / jnp.sqrt(total)[:, None]
    # yᵀ(Λ + A Aᵀ)⁻¹y = |Λ^{-1/2} y|² − |L_B⁻¹ Aᵀ Λ⁻¹ y|²,  |Λ + A Aᵀ| = |Λ| |B|
    quadratic = jnp.square(y).sum() - jnp.square(solve_triangular(lower, scaled.T @ y, lower=True)).sum()
    log_det = jnp.log(total).sum() + 2.0 * jnp.log(jnp.diagonal(lower)).sum()
    log_normal = -0.5 * (outputs * (rows * log(2.0 * pi) + log_det) + quadratic)
    ratio = residual / noise
    if alpha == 0.0:
        return log_normal - 0.5 * outputs * ratio.sum()
    return log_normal - outputs * (1.0 - alpha) / (2.0 * alpha) * jnp.log1p(alpha * ratio).sum()
