r"""Orthogonally decoupled q(u): the mean from all M inducing inputs, a dense covariance from the first of them.

With Z the first K inducing inputs, O the others, f = g + h: g the projection of f on u = f(Z), h what is left, whose
kernel is :math:`k(x, x') - k(x, Z) K_{ZZ}^{-1} k(Z, x')`, and v = h(O). q(u) = N(µ, S) and q(v) are independent:

.. math::
    KL[q \| p] = KL[q(u) \| p(u)] + KL[q(v) \| p(v)], \qquad p(v) = N(0, C), \quad
    C = K_{OO} - K_{OZ} K_{ZZ}^{-1} K_{ZO}

q(v) = N(C a, C) is the orthogonally decoupled q of Salimbeni et al. (2018), its KL ½ aᵀ C a; any N(m, S_v) is SOLVE-GP
(Shi et al. 2020). The Cholesky factor of k at Z and O together is [[L, 0], [·, L_v]], L Lᵀ = K_ZZ and L_v L_vᵀ = C, so
that the whitened u of ``sparse_gp`` at both holds L⁻¹u before L_v⁻¹v: q is a Gaussian of two independent blocks there,
and the second one's covariance is I where q(v) has the prior's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.scipy.linalg import block_diag, solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import LOC_SUFFIX, SCALE_SUFFIX, Parameters, SiteRole
from ppl_dgp.guides.blocks import InducingBlocks, InducingWeights
from ppl_dgp.guides.containment import Containment
from ppl_dgp.guides.inducing import Diagonal, Earlier, InducingRule
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import inverse_lower, lower_inverse_root

#: behind an inducing site's name: the two blocks, each with a ``_loc`` and a ``_scale``
FIRST_SUFFIX, ORTHOGONAL_SUFFIX = "_first", "_orthogonal"
#: behind the second block's name: weights a in the place of its mean
WEIGHTS_SUFFIX = "_weights"
#: the covariance of q(v), each contained in the next; then the first of them by weights
ORTHOGONAL = ("prior", "diagonal", "full", "weights")


@dataclass(frozen=True)
class Decoupled(InducingRule):
    """q(u_p) = N(µ_p, blockdiag(S_p, S'_p)) for each output, S of the first inducing inputs: O(P (M + K²)) parameters.

    For a mean with M of a thousand and more: what is learnt of the covariance stays small. Which inducing inputs carry
    it is said by their order; those that models start at k-means centres are spread from the first on.

    Of each site the parameters are ``…/u_first_loc`` (P, K), ``…/u_first_scale`` (P, K, K), Cholesky factors, and of
    the others ``…/u_orthogonal_loc`` (P, M − K) and, but for "prior", ``…/u_orthogonal_scale``. ``gaussian_factors``
    has natural gradients of every block with a scale.

    "weights" is the q of "prior" with its mean by weights a of k̃(·, O), ``…/u_orthogonal_weights`` (P, M − K). Where u
    is carried as moments at α = 0, as under ``DoublyStochastic`` and ``MeanField``, a step factorises K × K alone and
    costs O(B M K + M² (D + P) + M K²); a is worse conditioned than whitened means, and takes Adam more steps. All else,
    draws of u among it, is as of "prior", at the cost of Kuu's factor.

    :param num_covariance: K, at least 1; where there are no more inducing inputs than that, it is ``FullRank``.
    :param orthogonal: S', whitened: "prior", which is I (orthogonally decoupled), "diagonal", or "full" (SOLVE-GP); or
        "weights".
    :raises ValueError: if ``num_covariance`` is not positive, or for another covariance.
    """

    num_covariance: int = 100
    orthogonal: str = "prior"

    def __post_init__(self) -> None:
        if self.num_covariance < 1:
            raise ValueError(
                f"num_covariance: found {self.num_covariance}, expected at least 1; take Decoupled(1) for a mean alone"
            )
        if self.orthogonal not in ORTHOGONAL:
            raise ValueError(
                f"orthogonal: found {self.orthogonal!r}, expected one of {', '.join(ORTHOGONAL)}; change it"
            )

    def of_site(
        self, name: str, shape: tuple[int, int], role: SiteRole, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        """q(u), its means started where the model says."""
        outputs, size = shape
        first = min(self.num_covariance, size)

        def means(block: slice) -> Callable[[Array], Array]:
            return lambda _key: (jnp.zeros(shape) if role.start is None else role.start())[:, block]

        def factors(head: str, size: int) -> Array:
            start = jnp.broadcast_to(role.initial_scale * jnp.eye(size), (outputs, size, size))
            return _param(head + SCALE_SUFFIX, start, constraint=constraints.lower_cholesky)

        head, other = name + FIRST_SUFFIX, name + ORTHOGONAL_SUFFIX
        loc, lower = _param(head + LOC_SUFFIX, means(slice(first))), factors(head, first)
        if first == size:
            return InducingGaussian(loc, lower)
        if self.orthogonal == "weights":
            if role.gram is None:
                raise ValueError(
                    f"orthogonal: found 'weights' for the site {name!r}, of which Kuu is not known or is each output's "
                    "own, expected one of a sparse_gp with one kernel; take Decoupled(orthogonal='prior')"
                )
            gram, whiten = role.gram()
            as_weights = lambda key: _weights_of(means(slice(first, None))(key), gram, whiten)
            return InducingWeights(loc, lower, _param(other + WEIGHTS_SUFFIX, as_weights), gram, whiten)
        loc = jnp.concatenate([loc, _param(other + LOC_SUFFIX, means(slice(first, None)))], 1)
        if self.orthogonal == "full":
            return InducingGaussian(loc, jax.vmap(block_diag)(lower, factors(other, size - first)))
        deviations = jnp.ones((outputs, size - first), loc.dtype)
        if self.orthogonal == "diagonal":
            start = role.initial_scale * deviations
            deviations = _param(other + SCALE_SUFFIX, start, constraint=constraints.positive)
        return InducingBlocks(loc, lower, deviations)

    def distribution(
        self, name: str, shape: tuple[int, int], initial_scale: float, earlier: Mapping[str, Earlier]
    ) -> InducingGaussian:
        return self.of_site(name, shape, SiteRole("inducing", initial_scale=initial_scale), earlier)

    def nearest(self, site: str, q: Gaussian, gram: tuple[Array, Array] | None = None) -> Parameters:
        """The parameters of a site at which KL[this ‖ q] is least: the blocks' precisions are those of q.

        Under Gaussian noise, q the optimal full-rank q(u), it is this family's optimum.

        :param q: (P, M), its scale deviations or lower Cholesky factors.
        :param gram: Kuu with its jitter, and L⁻¹, as the site's role gives them; without them weights are left out.
        """
        first = min(self.num_covariance, q.mean.shape[1])
        root = jnp.swapaxes(inverse_lower(q.scale_tril), -1, -2)  # q⁻¹ = root rootᵀ
        of_block = lambda rows: lower_inverse_root(rows @ jnp.swapaxes(rows, -1, -2))
        head, other = site + FIRST_SUFFIX, site + ORTHOGONAL_SUFFIX
        found = {
            head + LOC_SUFFIX: q.mean[:, :first],
            head + SCALE_SUFFIX: of_block(root[:, :first]),
        }
        if first == q.mean.shape[1]:
            return found
        if self.orthogonal == "weights":
            if gram is not None:
                found[other + WEIGHTS_SUFFIX] = _weights_of(q.mean[:, first:], *gram)
            return found
        found[other + LOC_SUFFIX] = q.mean[:, first:]
        if self.orthogonal == "full":
            found[other + SCALE_SUFFIX] = of_block(root[:, first:])
        elif self.orthogonal == "diagonal":
            found[other + SCALE_SUFFIX] = 1.0 / jnp.sqrt(jnp.square(root[:, first:]).sum(-1))
        return found

    def contains(self, other: InducingRule) -> Containment | None:
        if type(other) is Diagonal and self.orthogonal in ("diagonal", "full"):
            return Containment(translate=partial(_from_diagonal, self))
        if type(other) is not Decoupled or "weights" in (self.orthogonal, other.orthogonal):
            return None
        richer, poorer = (ORTHOGONAL.index(rule.orthogonal) for rule in (self, other))
        # a dense second block of fewer is none of ours
        aligned = other.num_covariance == self.num_covariance or (
            other.num_covariance < self.num_covariance and other.orthogonal != "full"
        )
        return Containment(translate=partial(_from_decoupled, self)) if aligned and richer >= poorer else None

    def in_full_rank(self) -> Containment | None:
        # what weights are whitened is not known from parameters alone
        return None if self.orthogonal == "weights" else Containment(translate=_as_full_rank)


def _weights_of(
    means: Float[Array, "P R"], gram: Float[Array, "M M"], whiten: Float[Array, "M M"]
) -> Float[Array, "P R"]:
    """a of whitened means L_vᵀ a, L_vᵀ the last block of L⁻¹ K."""
    first = gram.shape[0] - means.shape[1]
    weights: Array = solve_triangular(whiten[first:] @ gram[:, first:], means.T).T
    return weights


def _param(name: str, start: Any, **settings: Any) -> Array:
    value: Array = numpyro.param(name, start, **settings)
    return value


def _as_full_rank(site: str, before: str | None, params: Parameters) -> Parameters:
    """The two blocks as one Gaussian for each output, ``u_loc`` and ``u_scale``."""
    head, other = site + FIRST_SUFFIX, site + ORTHOGONAL_SUFFIX
    left = dict(params)
    loc, lower = left.pop(head + LOC_SUFFIX), left.pop(head + SCALE_SUFFIX)
    if other + LOC_SUFFIX in left:
        means = left.pop(other + LOC_SUFFIX)
        scale = left.pop(other + SCALE_SUFFIX, jnp.ones_like(means))
        loc = jnp.concatenate([loc, means], 1)
        lower = jax.vmap(block_diag)(lower, Gaussian(means, scale).scale_tril)
    return left | {site + LOC_SUFFIX: loc, site + SCALE_SUFFIX: lower}


def _from_diagonal(rule: Decoupled, site: str, before: str | None, params: Parameters) -> Parameters:
    """One Gaussian for each output, which is of this family, as its blocks."""
    left = dict(params)
    return left | rule.nearest(site, Gaussian(left.pop(site + LOC_SUFFIX), left.pop(site + SCALE_SUFFIX)))


def _from_decoupled(rule: Decoupled, site: str, before: str | None, params: Parameters) -> Parameters:
    """The blocks of a poorer rule as those of this one."""
    return _from_diagonal(rule, site, before, _as_full_rank(site, before, params))
