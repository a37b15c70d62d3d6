r"""What a Gaussian process remembers of data that are gone, as one factor of its inducing outputs.

After the old data the posterior of a = f(Z_a) is q_old(a), under the prior p_old(a) of the hyperparameters of then.
In the whitened v = L_a'^{-1}(a − m'(Z_a)) they are N(µ, S) and N(0, I), and all that the data have said is

.. math::
    \log t(v) = \log \frac{q_{old}(v)}{p_{old}(v)}
    = \tfrac12 \log|I + Λ| - \tfrac12 (v - µ)^\top Λ (v - µ) + µ^\top v - \tfrac12 µ^\top µ,
    \qquad Λ = S^{-1} - I = C C^\top .

No inverse of Λ is needed, which is singular where the data were silent; the terms are of order one where Λ is large.
Under a new function with inducing outputs v_b, v | v_b ~ N(B v_b + d, R), and t is one block of power EP:

.. math::
    t_α(v_b) = \tfrac1α \log E_{v | v_b}[t(v)^α]
    = \tfrac12 \log|I + Λ| + \tfrac12 µ^\top µ + µ^\top δ + \tfrac{α}{2} µ^\top R µ - \tfrac{1}{2α} \log|I + αE|
      - \tfrac12 (C^\top δ + αh)^\top (I + αE)^{-1} (C^\top δ + αh),

δ = B v_b + d − µ, E = CᵀRC, h = CᵀRµ; at α = 0 the logarithm is replaced by tr(E)/2. Source: Bui, Nguyen & Turner
2017, "Streaming sparse Gaussian process approximations", where Λ⁻¹ is D_a; blocks: Bui 2017, 2.3.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.features import inducing_points
from ppl_dgp.gp.separate import check_shared
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.wrappers import unwrap
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.numerics.power_mean import Alpha, is_number, log_det_ratio


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OldPosterior:
    """The old posterior of one GP: A old inducing inputs, M new ones, P outputs.

    :param inducing: Z_a, (A, D).
    :param whiten: L_a'⁻¹ of the prior of then, (A, A).
    :param offset: the mean function of then at Z_a, (A, P).
    :param mean: µ, (P, A).
    :param root: C, (P, A, A); zero where nothing was seen.
    :param shared: (A, M), 1 where a new inducing output continues an old one, so that both carry the same nugget
        (what is added to the diagonal of Kzz); else 0. With the identity, inputs and hyperparameters held, nothing
        is lost however often the memory is handed on.
    """

    inducing: Float[Array, "A D"]
    whiten: Float[Array, "A A"]
    offset: Float[Array, "A P"]
    mean: Float[Array, "P A"]
    root: Float[Array, "P A A"]
    shared: Float[Array, "A M"]

    @classmethod
    def of(cls, function: SparseGP, moments: Gaussian) -> OldPosterior:
        """Old posterior of data that left q(u) = N(moments).

        Directions in which q(u) is wider than its prior (noise of an optimiser; a likelihood that is not log-concave)
        count as silent.
        """
        full = moments.scale.ndim == 3 and moments.factor is None
        inverse = inverse_lower(moments.scale if full else cholesky(moments.covariance(), 0.0)[0])
        precision = jnp.swapaxes(inverse, -1, -2) @ inverse
        values, vectors = jnp.linalg.eigh(precision - jnp.eye(precision.shape[-1], dtype=precision.dtype))
        root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
        return cls(*_prior(function), moments.mean, root, jnp.eye(root.shape[-1], dtype=root.dtype))

    @classmethod
    def blank(cls, function: SparseGP) -> OldPosterior:
        """Old posterior of no data: its factor is 1."""
        prior = _prior(function)
        size, outputs = prior[2].shape
        zero = jnp.zeros((outputs, size), prior[0].dtype)
        return cls(
            *prior, zero, jnp.zeros((outputs, size, size), zero.dtype), jnp.eye(size, dtype=zero.dtype)
        )


def _prior(function: SparseGP) -> tuple[Array, Array, Array]:
    check_shared(function, f"{function.name}, whose old posterior is to be remembered")
    z = inducing_points(function.inducing)
    # of points it is an array
    whiten: Array = function.whiten  # type: ignore[assignment]
    return z, whiten, function.mean(z)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Site:
    """log t_α as a function of the new whitened u: constant + Σ_p [linear_pᵀ v_p − ½ |T_p v_p − r_p|²].

    It is a block of A rows of a regression on u, with features T (P, A, M), targets r (P, A) and noise 1.
    """

    features: Float[Array, "P A M"]
    targets: Float[Array, "P A"]
    linear: Float[Array, "P M"]
    constant: Float[Array, ""]

    def at(self, u: Float[Array, "*B P M"]) -> Float[Array, "*B"]:
        """The value at draws of u."""
        difference = jnp.einsum("pam,...pm->...pa", self.features, u) - self.targets
        return self.constant + (self.linear * u).sum((-2, -1)) - 0.5 * jnp.square(difference).sum((-2, -1))

    def spread(self, covariance: Float[Array, "P M M"]) -> Float[Array, ""]:
        """How much lower its expectation is than its value at E u, u of that covariance."""
        return 0.5 * jnp.einsum("pam,pmk,pak->", self.features, covariance, self.features)


class OldPosteriorFactor(dist.Distribution):
    """Old posterior as an observed factor of a model, under its new function; its value is a 0 that means nothing.

    ``log_prob`` is t_1; objectives ask :meth:`tempered` for t_α.
    """

    support = constraints.real

    def __init__(self, function: SparseGP, memory: OldPosterior) -> None:
        self.function, self.memory = function, memory
        super().__init__((), (), validate_args=False)

    def tempered(self, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, ""]:
        """t_α, in nats over all outputs.

        u is a draw, draws per datum (of which the mean is taken, an estimate of the expectation), or moments, whose
        variance ``u_outside`` averages outside the logarithm.
        """
        u = self.function.u
        if not isinstance(u, Gaussian):
            return self.site(alpha).at(u).mean()
        if u_outside or is_number(alpha, 0.0):
            site = self.site(alpha)
            return site.at(u.mean).mean() - site.spread(u.covariance())
        return self.site(alpha, u).at(u.mean).mean()

    def site(self, alpha: Alpha, inside: Gaussian | None = None) -> Site:
        """t_α as a function of u, or of E u where the moments ``inside`` are averaged within the logarithm."""
        f, memory = self.function, self.memory
        old, whiten = memory.inducing, memory.whiten
        nugget = f.nugget * jnp.eye(old.shape[0], dtype=old.dtype)
        weights = (
            whiten @ (f.kernel(old, inducing_points(f.inducing)) + f.nugget * memory.shared) @ f.whiten.T
        )
        residual = whiten @ (f.kernel(old, old) + nugget) @ whiten.T - weights @ weights.T
        mean, root = memory.mean, memory.root
        residual = jnp.broadcast_to(residual, root.shape)
        if inside is not None:
            residual = residual + inside.projected_covariance(weights)
        shift = (whiten @ (f.mean(old) - memory.offset)).T - mean
        identity = jnp.eye(root.shape[-1], dtype=root.dtype)
        left = jnp.swapaxes(root, -1, -2)
        # E and h
        inner = left @ residual @ root
        cross = jnp.einsum("pka,pab,pb->pk", left, residual, mean)
        lower, _ = cholesky(identity + alpha * inner, 0.0)
        solve = lambda matrix: solve_triangular(lower, matrix, lower=True)
        centre = jnp.einsum("pka,pa->pk", left, shift) + alpha * cross
        information = _log_det(cholesky(identity + left @ root, 0.0)[0])
        averaged = jnp.einsum("pa,pab,pb->", mean, residual, mean)
        constant = 0.5 * information.sum() + 0.5 * jnp.square(mean).sum() + (mean * shift).sum()
        constant = (
            constant + 0.5 * alpha * averaged - 0.5 * log_det_ratio(alpha, inner, _log_det(lower)).sum()
        )
        return Site(
            solve(left @ weights), -solve(centre[..., None])[..., 0], mean @ weights, jnp.asarray(constant)
        )

    def log_prob(self, value: Array) -> Float[Array, ""]:
        """t_1, whatever the value."""
        return self.tempered(1.0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Zeros."""
        return jnp.zeros(sample_shape)


def _log_det(lower: Float[Array, "P A A"]) -> Float[Array, " P"]:
    return 2.0 * jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)).sum(-1)


def old_posterior_of(distribution: dist.Distribution) -> OldPosteriorFactor | None:
    """Old posterior's factor inside a site's distribution, None where there is none."""
    inner = unwrap(distribution)
    return inner if isinstance(inner, OldPosteriorFactor) else None


def recalled(function: SparseGP) -> Array:
    """Observe the old posterior of ``function``: the site ``name/memory``, its contents parameters ``name/memory/…``.

    They are parameters so that one compiled program serves every batch and a fit saves them with all else; their
    gradient is zero, and an optimiser without weight decay leaves them as they are. They start as those of no data.
    """
    name, blank = function.name, OldPosterior.blank(function)
    fields = {
        key: jax.lax.stop_gradient(numpyro.param(site, vars(blank)[key])) for key, site in sites(name).items()
    }
    value = numpyro.sample(
        f"{name}/memory", OldPosteriorFactor(function, OldPosterior(**fields)), obs=jnp.zeros(())
    )
    return jnp.asarray(value)


def sites(name: str) -> dict[str, str]:
    """Parameters that hold the old posterior of the GP ``name``, by the fields of :class:`OldPosterior`."""
    return {key: f"{name}/memory/{key}" for key in OldPosterior.__dataclass_fields__}
