"""A GP of a GP with both functions integrated out, as NUTS mixes in it best: sites are its hyperparameters and noise.

The posterior of hyperparameters and of the hidden layer h is that of ``deep_gp((1,), …)`` under Gaussian noise; with
neither u nor f among the sites no value is tied to another but by the data:

    h = m(x) + L e,  e ~ N(0, I),  L Lᵀ = C₁(x) + s₁² I,      y ~ N(0, C₂(h) + s² I)

C is the kernel where functions are joint at all inputs, and Q + diag(K − Q) where f_n are independent given u (FITC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp import RBF
from ppl_dgp.gp.means import layer_map
from ppl_dgp.kernels import Kernel
from ppl_dgp.likelihoods.quadrature import plain_nodes
from ppl_dgp.models.deep_gp import INNER_NOISE
from ppl_dgp.models.kernel_values import kernel_parameters
from ppl_dgp.models.parts import as_columns

#: nodes of the hidden value at a place, and what is added to kernel matrices
NODES, JITTER = 100, 1e-8


@dataclass(frozen=True, eq=False)
class MarginalLayers:
    """The model, called as ``model(x, y)`` at training rows alone.

    :param rows: training inputs (N, D).
    :param inducing: inputs (M, D) and (M, 1) of the two layers under FITC; None where functions are joint.
    """

    rows: np.ndarray
    inducing: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, x: Any, y: Any = None) -> None:
        x = jnp.asarray(x)
        y = as_columns(x, y, 1)
        kernel = kernel_parameters("layer1", RBF, x.shape[1])
        positive = constraints.positive
        inner = numpyro.param("layer1/noise", jnp.asarray(INNER_NOISE), constraint=positive)
        after = kernel_parameters("layer2", RBF, 1)
        noise = numpyro.param("likelihood/noise", jnp.asarray(0.1), constraint=positive)
        e = numpyro.sample("layer1/e", dist.Normal(0.0, 1.0).expand([len(x), 1]).to_event(2))
        factor = jnp.linalg.cholesky(self.covariance(0, kernel, x) + inner * jnp.eye(len(x)))
        hidden = numpyro.deterministic("layer1/hidden", x @ layer_map(x, 1) + factor @ e)
        covariance = self.covariance(1, after, hidden) + noise * jnp.eye(len(x))
        numpyro.sample(
            "y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=None if y is None else y[:, 0]
        )

    def covariance(self, layer: int, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N N"]:
        """Prior covariance of f at the training rows' inputs."""
        jitter = JITTER * kernel.diag(x).mean()
        if self.inducing is None:
            return kernel(x, x) + jitter * jnp.eye(len(x))
        known = self._features(layer, kernel, x)
        return known.T @ known + jnp.diag(kernel.diag(x) - jnp.square(known).sum(0) + jitter)

    def at_places(self, sites: Mapping[str, Any], places: Any, values: Any) -> tuple[Any, Any, Any]:
        """Moments of f at places (S, 1) and log densities of y there at values (S, G), hidden values integrated out."""
        value = lambda name: sites[name]["value"]
        kernels = [
            RBF(value(f"layer{layer}/variance"), value(f"layer{layer}/lengthscale")) for layer in (1, 2)
        ]
        x, hidden, y = jnp.asarray(self.rows), value("layer1/hidden"), value("y")[:, None]
        inner, noise, linear = value("layer1/noise"), value("likelihood/noise"), layer_map(x, 1)
        mean, variance = self.posterior(0, kernels[0], x, hidden - x @ linear, inner, places)
        mean = places @ linear + mean
        z, log_weights = plain_nodes(NODES, jnp.zeros(()))
        weights = jnp.exp(log_weights)
        # (S, K) hidden values of a place, each with a mean and a variance of f there
        there = mean + jnp.sqrt(variance + inner)[:, None] * z
        at = lambda inputs: self.posterior(1, kernels[1], hidden, y, noise, inputs[:, None])
        f_mean, f_variance = jax.vmap(at)(there)
        f_mean = f_mean[..., 0]
        average = (weights * f_mean).sum(1)
        spread = (weights * (f_variance + jnp.square(f_mean - average[:, None]))).sum(1)
        density = dist.Normal(f_mean[..., None], jnp.sqrt(f_variance + noise)[..., None]).log_prob(values)
        return average[:, None], spread[:, None], logsumexp(density, 1, b=weights[:, None])

    def posterior(
        self,
        layer: int,
        kernel: Kernel,
        x: Array,
        y: Float[Array, "N 1"],
        noise: Array,
        places: Float[Array, "S D"],
    ) -> tuple[Float[Array, "S 1"], Float[Array, " S"]]:
        """Mean and variance of f at new inputs, given values of f at x with noise."""
        total = self.covariance(layer, kernel, x) + noise * jnp.eye(len(x))
        if self.inducing is None:
            cross = kernel(x, places)
        else:
            cross = self._features(layer, kernel, x).T @ self._features(layer, kernel, places)
        factor = jnp.linalg.cholesky(total)
        solved = solve_triangular(factor, cross, lower=True)
        mean = cross.T @ cho_solve((factor, True), y)
        return mean, jnp.maximum(kernel.diag(places) - jnp.square(solved).sum(0), 0.0)

    def _features(self, layer: int, kernel: Kernel, x: Array) -> Float[Array, "M N"]:
        """φ(x), K_zz^{−½} k(z, x)."""
        assert self.inducing is not None
        z = jnp.asarray(self.inducing[layer])
        gram = kernel(z, z) + JITTER * kernel.diag(z).mean() * jnp.eye(len(z))
        return solve_triangular(jnp.linalg.cholesky(gram), kernel(z, x), lower=True)
