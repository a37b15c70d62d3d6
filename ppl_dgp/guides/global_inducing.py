r"""Global inducing points (Ober & Aitchison 2021): q(u) of a layer is a posterior given pseudo-observations of it.

.. math::
    q(v_p \mid Z) \propto N(v_p \mid 0, I)\, N(t_p \mid m_p(Z) + A v_p, \Lambda_p^{-1}), \quad A = K_{zz} L^{-\top}

v whitened, t the pseudo-observations, which are parameters like their precisions Λ. The inducing inputs Z of the first
layer are parameters of the model; those of each further one are the draw of the layer before at its own, so that
q follows the layers before it however they move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import SiteRole
from ppl_dgp.guides.inducing import Earlier, InducingRule
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import whitening

#: behind an inducing site's name: the parameters of its pseudo-observations
TARGETS_SUFFIX, PRECISION_SUFFIX = "_targets", "_precision"
#: how Λ is parametrised
PRECISIONS = ("full", "diagonal", "shared")
#: of a prior variance, the precision that is none
LEAST_PRECISION = 1e-6


@dataclass(frozen=True)
class GlobalInducing(InducingRule):
    """q(u^1) Π q(u^l | u^{l−1}), each the exact posterior of M pseudo-observations at the draw of the layer before.

    Of each site the parameters are ``…/u_targets`` (P, M), in the units of f, and ``…/u_precision``. Every layer but
    the last has one draw of u for all rows. A model of one's own says which function stands before another by
    ``sparse_gp(…, behind=f)``; without that its inducing inputs stay its own. The parameters of inducing inputs behind
    the first layer are not used.

    :param precision: Λ of each output by its Cholesky factor, "full" (P, M, M), its diagonal, "diagonal" (P, M), or one
        that the outputs of a layer share, "shared" (M,), with which one matrix is factored for all of them.
    :raises ValueError: for another precision.
    """

    precision: str = "full"
    pushes_inducing = True

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: found {self.precision!r}, expected one of {', '.join(PRECISIONS)}")

    def of_site(
        self, name: str, shape: tuple[int, int], role: SiteRole, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        if role.at_inducing is None:
            raise ValueError(
                f"inducing: found {self} for the site {name!r}, of which it is not known what f is at the inducing "
                "inputs, expected one of sparse_gp; take FullRank()"
            )
        weights, mean = role.at_inducing()

        def targets(_key: Array) -> Array:
            start = jnp.zeros(shape) if role.start is None else role.start()
            return mean.T + (weights @ start[..., None])[..., 0]

        def precisions(_key: Array) -> Array:
            # of f where q is to begin: so much of its prior variance
            variance = jnp.square(weights).sum(-1).mean()
            return self.precision_of(jnp.full(shape, 1.0 / (role.initial_scale**2 * variance)))

        target = numpyro.param(name + TARGETS_SUFFIX, targets)
        constraint = constraints.lower_cholesky if self.precision == "full" else constraints.positive
        precision = numpyro.param(name + PRECISION_SUFFIX, precisions, constraint=constraint)
        return pseudo_posterior(weights, target - mean.T, precision)

    def precision_of(self, each: Float[Array, "P M"]) -> Float[Array, "*_ M"]:
        """The parameter that stands for precisions of single pseudo-observations."""
        if self.precision == "full":
            return jnp.sqrt(each)[..., None] * jnp.eye(each.shape[-1], dtype=each.dtype)
        return each if self.precision == "diagonal" else each.mean(0)

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        """Refused: what f is at the inducing inputs has to be known."""
        return self.of_site(name, shape, SiteRole("inducing", initial_scale=initial_scale), earlier)


def pseudo_posterior(
    weights: Float[Array, "... M M"], targets: Float[Array, "P M"], precision: Float[Array, "... M"]
) -> InducingGaussian:
    """q(v_p) ∝ N(0, I) N(t_p | A_p v_p, Λ_p⁻¹): S = (I + Aᵀ Λ A)⁻¹, mean S Aᵀ Λ t.

    :param weights: A, (M, M) or of each output.
    :param precision: the diagonal of Λ, (M,) or of each output (P, M); or a lower Cholesky factor of it (P, M, M).
    """
    if precision.ndim == 3:
        across = jnp.swapaxes(precision, -1, -2)
        root, seen = across @ weights, (across @ targets[..., None])
    else:
        deviation = jnp.sqrt(precision)
        root, seen = deviation[..., None] * weights, (deviation * targets)[..., None]
    gram = jnp.swapaxes(root, -1, -2) @ root + jnp.eye(weights.shape[-1], dtype=root.dtype)
    # the lower Cholesky factor of an inverse, by that of the matrix read backwards
    inverse, _ = whitening(gram[..., ::-1, ::-1], 0.0)
    scale = jnp.swapaxes(inverse, -1, -2)[..., ::-1, ::-1]
    scale = jnp.broadcast_to(scale, (targets.shape[0], *scale.shape[-2:]))
    mean = scale @ (jnp.swapaxes(scale, -1, -2) @ (jnp.swapaxes(root, -1, -2) @ seen))
    return InducingGaussian(mean[..., 0], scale)


def pseudo_observations(
    weights: Float[Array, "... M M"], mean: Float[Array, "M P"], q: Gaussian
) -> tuple[Float[Array, "P M"], Float[Array, "P M"]]:
    """Targets and precisions of pseudo-observations that say of f at each inducing input alone what q(v) says.

    :param weights: A; f at the inducing inputs is m(Z) + A v.
    """
    root = weights @ q.scale
    prior = jnp.square(weights).sum(-1)
    left = 1.0 / jnp.square(root).sum(-1) - 1.0 / prior
    targets = mean.T + (weights @ q.mean[..., None])[..., 0]
    return targets, jnp.maximum(left, LEAST_PRECISION / prior)
