r"""Outputs that are mixtures of shared functions: the linear model of coregionalisation (tutorial, eqs. (24), (25)).

.. math::
    f(x) = W g(x), \quad g_q \text{ independent}; \quad
    \operatorname{cov}(f_p, f_{p'} \mid u) = \sum_q W_{pq} W_{p'q} D_q

Given u the outputs of a row are correlated, by what u leaves of g. At α = 0 a likelihood of single columns sees their
variances alone; at α > 0 the integral over a row's outputs is one, which Gaussian noise has in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from ppl_dgp import likelihoods
from ppl_dgp.gp.emission import Emission, check_shape
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.sums import FunctionSum, ScaledMarginal
from ppl_dgp.likelihoods.gaussian import tempered_jointly
from ppl_dgp.numerics.power_mean import Alpha, is_number


def mixed(marginal: Marginal, weights: Float[Array, "P Q"]) -> MixedMarginal:
    """f = W g of each row, g(x) the marginal of Q functions that are independent given u.

    To be observed, by noise or by a likelihood of each column, which may lack entries, and as a hidden layer under
    ``DoublyStochastic()``. Latent functions may add up, ``mixed(g(x) + h(z), W)``.

    :param marginal: of g, as ``sparse_gp`` functions and their sums have it.
    :param weights: W; one of Q = 1 columns is the intrinsic model of coregionalisation of rank 1.
    :raises ValueError: if W has another number of columns than there are functions.
    """
    if jnp.ndim(weights) != 2 or jnp.shape(weights)[1] != marginal.mean.shape[1]:
        raise ValueError(
            f"weights: found shape {jnp.shape(weights)}, expected (P, {marginal.mean.shape[1]}), a column for each "
            "function that is mixed"
        )
    squares = jnp.square(weights).T
    rows = marginal.mean.shape
    residual = jnp.broadcast_to(marginal.residual, rows) @ squares
    function: Any = FunctionSum(list(marginal.functions))
    return MixedMarginal(
        function,
        marginal.inputs,
        jnp.zeros((rows[0], 0), marginal.mean.dtype),
        marginal.mean @ weights.T,
        residual,
        marginal.from_u @ squares,
        marginal,
        weights,
    )


@dataclass(frozen=True, eq=False)
class MixedMarginal(Marginal):
    """Marginals of f = W g. Mean and variances are those of each output; what correlates them is in ``latents``."""

    latents: Marginal
    mixing: Float[Array, "P Q"]

    @property
    def terms(self) -> tuple[ScaledMarginal, ...]:
        """Those of g."""
        return self.latents.terms

    def covariance(self, of_latents: Float[Array, "B #Q"]) -> Float[Array, "B P P"]:
        """W diag(v) Wᵀ of each row, for variances v of g."""
        spread = jnp.broadcast_to(of_latents, self.latents.mean.shape)
        return jnp.einsum("pq,bq,rq->bpr", self.mixing, spread, self.mixing)

    def joint(self) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        _, covariance = self.latents.joint()
        return self.mean, jnp.einsum("pq,qbc->pbc", jnp.square(self.mixing), covariance)

    def draw(self, key: Array) -> Float[Array, "B P"]:
        return self.latents.draw(key) @ self.mixing.T

    def slope(self, num_inputs: int) -> Float[Array, "B P D"]:
        return jnp.einsum("pq,bqd->bpd", self.mixing, self.latents.slope(num_inputs))

    def noisy(self, variance: Any) -> Emission:
        return MixedEmission(self, likelihoods.Gaussian(jnp.asarray(variance)))

    def observe(self, likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution]) -> Emission:
        plain = super().observe(likelihood)
        if plain.likelihood.num_targets(self.mean.shape[1]) != self.mean.shape[1]:
            raise ValueError(
                f"likelihood: found {type(plain.likelihood).__name__}, whose targets are of several functions each, "
                "expected one of single columns"
            )
        return MixedEmission(self, plain.likelihood)

    def output(self, which: Int[Array, " B"]) -> Marginal:
        raise _refusal("one output per row")

    def __add__(self, other: Any) -> Any:
        raise _refusal("a sum")

    def __mul__(self, scale: Any) -> Any:
        raise _refusal("a multiple")

    __radd__ = __add__
    __rmul__ = __mul__


class MixedEmission(Emission):
    """Noisy or observed mixtures, whose outputs are correlated given u."""

    marginal: MixedMarginal
    correlated = True

    def partly_observed(self) -> Emission:
        return MixedEmission(self.marginal, self.likelihood, partly=True)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        """t_α of each row, its outputs together.

        :raises ValueError: at α > 0 under another likelihood than Gaussian noise.
        """
        if is_number(alpha, 0.0):
            return super().tempered(value, alpha, u_outside=u_outside)
        if not isinstance(self.likelihood, likelihoods.Gaussian):
            raise ValueError(
                f"alpha: found {alpha} for mixed outputs under {type(self.likelihood).__name__}, whose integral over "
                "the outputs of a row is known under Gaussian noise alone; take alpha=0"
            )
        check_shape(value, self)
        marginal = self.marginal
        seen = ~jnp.isnan(value) if self.partly else jnp.ones(value.shape, bool)
        noise = jnp.where(seen, self.likelihood.variance, jnp.inf)
        residual = jnp.where(seen, value, marginal.mean) - marginal.mean
        inside = marginal.latents.residual if u_outside else marginal.latents.variance
        covariance = marginal.covariance(inside)
        rows = tempered_jointly(residual, covariance, noise, alpha)
        if not u_outside:
            return rows
        # E over u of the quadratic form: the trace of what u adds
        root = jnp.where(seen, 1.0 / jnp.sqrt(jnp.where(seen, noise, 1.0)), 0.0)
        ratio = alpha * root[:, :, None] * covariance * root[:, None, :]
        loadings = root[:, :, None] * marginal.mixing
        solved = jnp.linalg.solve(jnp.eye(ratio.shape[-1], dtype=ratio.dtype) + ratio, loadings)
        added: Array = ((loadings * solved).sum(1) * marginal.latents.from_u).sum(1)
        return rows - 0.5 * added

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (B, P): of g, mixed, then of y."""
        key_g, key_y = jax.random.split(key)
        latents = self.marginal.latents
        noise = jax.random.normal(key_g, sample_shape + latents.mean.shape, latents.mean.dtype)
        drawn = (latents.mean + jnp.sqrt(latents.variance) * noise) @ self.marginal.mixing.T
        draws: Array = self.likelihood.sample(key_y, drawn, jnp.zeros_like(drawn))
        return draws


def _refusal(what: str) -> ValueError:
    return ValueError(
        f"mixed: found {what} of mixed outputs, expected them to be observed; mix sums and multiples, "
        "mixed(g(x) + h(z), W), and let an offset be the functions' mean"
    )
