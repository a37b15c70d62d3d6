"""Moments of f(h) where the input h ~ N(m, V) is uncertain: moment matching and linearisation.

Shapes: B rows, D inputs, P outputs, M inducing points. Sources: Bui 2017, eqs 4.24–4.26 (moment matching) and 3.71–3.73
(linearisation), with the mean function's cross term (docs/design.md, 4: "Moment matching with a linear mean"). Matched
moments are computed in 64 bits, for in 32 tr(Kzz⁻¹ ψ2) leaves no digit of a small variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp import expectations
from ppl_dgp.gp import feature_moments
from ppl_dgp.gp.features import InducingFeatures, cross, inducing_points
from ppl_dgp.gp.means import Mean, affine
from ppl_dgp.gp.separate import Pieces, for_each_output, is_separate
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.double_precision import in_double
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.structured_root import InverseRoot


@runtime_checkable
class Function(Protocol):
    """What is read of a sparse GP: f | u ~ GP with f = m + φ u + δ, φ(h) = k(h, Z) L⁻ᵀ, u whitened."""

    @property
    def kernel(self) -> Kernel: ...
    @property
    def inducing(self) -> Array | InducingFeatures: ...
    @property
    def whiten(self) -> Array | InverseRoot: ...
    @property
    def mean(self) -> Mean: ...
    @property
    def u(self) -> Array | Gaussian: ...


def pieces(f: Function) -> Pieces:
    """What is read of a function."""
    return Pieces(f.kernel, f.inducing, f.whiten, f.mean, f.u)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MatchedMoments:
    """⟨φ⟩ (B, M), the mean of f (B, P), ⟨D(h)⟩ (B, 1), and the variance beyond it (B, P).

    Where the outputs have kernels of their own, ⟨φ⟩ is (B, P, M) and ⟨D(h)⟩ (B, P).

    The variance beyond ⟨D(h)⟩ comes from u and from the input. For Gaussian noise t_0 is quadratic in f, so that mean
    and total variance give its exact expectation.
    """

    weights: Float[Array, "B *P M"]
    mean: Float[Array, "B P"]
    residual: Float[Array, "B #P"]
    beyond: Float[Array, "B P"]


def matched(f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None = None) -> MatchedMoments:
    """The exact first two moments of f(h) − slope·h, each output on its own.

    :param slope: a linear function of the input, one per datum, that is subtracted: what a Markov guide says of h.
    :raises ValueError: if u is carried as a draw or a mean per datum, where no moments can be shared by the rows.
    """
    arguments = pieces(f), inputs, slope
    # two parts, for a gradient goes through all of a part: who asks for averages alone does not pay for the rest
    return MatchedMoments(*in_double(_averages, *arguments), *in_double(_spreads, *arguments))


def _averages(f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None) -> tuple[Array, Array]:
    """⟨φ⟩ and the mean."""
    if is_separate(f):
        each, means = for_each_output(lambda one, slope: _averages(one, inputs, slope), f, slope)
        return jnp.moveaxis(each, 0, 1), means[..., 0].T
    mean_u, _ = _inducing_moments(f)
    weights, linear, bias, _ = _first_moments(f, inputs, slope)
    mean = weights @ mean_u.T + bias
    return weights, mean if linear is None else mean + jnp.einsum("bpd,bd->bp", linear, inputs.mean)


def _spreads(f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None) -> tuple[Array, Array]:
    """⟨D(h)⟩ and the variance beyond it."""
    if is_separate(f):
        residuals, rest = for_each_output(lambda one, slope: _spreads(one, inputs, slope), f, slope)
        return residuals[..., 0].T, rest[..., 0].T
    mean_u, covariance_u = _inducing_moments(f)
    weights, linear, _, cross = _first_moments(f, inputs, slope)
    precision = f.whiten.T @ f.whiten
    # with φ = W k: ⟨φᵀ S φ⟩ + Var[φᵀµ] = ⟨φ⟩ᵀ S ⟨φ⟩ + tr(Wᵀ (S + µµᵀ) W Cov[k])
    second = f.whiten.T @ (covariance_u + mean_u[:, :, None] * mean_u[:, None, :]) @ f.whiten
    matrices = jnp.concatenate([precision[None], second])
    quadratic = feature_moments.covariance_quadratic(f.kernel, inputs, f.inducing, matrices)
    residual = expectations.psi0(f.kernel, inputs) - jnp.square(weights).sum(1) - quadratic[:, 0]
    residual, beyond = residual[:, None], quadratic[:, 1:]
    if isinstance(f.u, Gaussian):
        beyond = beyond + f.u.projected_variance(weights)
    if linear is not None:
        beyond = beyond + _quadratic(linear, inputs) + 2.0 * jnp.einsum("bpd,bpd->bp", linear, cross)
    # neither is negative in exact arithmetic
    return jnp.maximum(residual, 0.0), jnp.maximum(beyond, 0.0)


def matched_covariance(
    f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None = None
) -> Float[Array, "B P P"]:
    """The covariance of the outputs of f(h), which an uncertain input correlates; the residual on its diagonal.

    :param slope: as of :func:`matched`.
    """
    return in_double(_matched_covariance, pieces(f), inputs, slope)


def _matched_covariance(
    f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None
) -> Float[Array, "B P P"]:
    residual, beyond = _spreads(f, inputs, slope)
    outputs = beyond.shape[1]
    if outputs == 1:
        return (residual + beyond)[..., None]
    first, second = np.triu_indices(outputs, 1)
    of_kernels, linear, cross = (_separate_pairs if is_separate(f) else _shared_pairs)(f, inputs, slope)
    off = of_kernels(first, second)
    if linear is not None:
        covariance = inputs.covariance()
        off = off + jnp.einsum("bkd,bde,bke->bk", linear[:, first], covariance, linear[:, second])
        off = off + jnp.einsum("bkd,bkd->bk", linear[:, first], cross[:, second])
        off = off + jnp.einsum("bkd,bkd->bk", linear[:, second], cross[:, first])
    full = jnp.zeros((*beyond.shape, outputs), beyond.dtype).at[:, first, second].set(off)
    full = full + jnp.swapaxes(full, -1, -2)
    return full + (residual + beyond)[..., None] * jnp.eye(outputs, dtype=full.dtype)


#: Cov(φ_p µ_p, φ_q µ_q) of pairs of outputs, (B, K); the mean's linear part, and Cov(h, φ_p µ_p), (B, P, D)
PairCovariances = tuple[Callable[[np.ndarray, np.ndarray], Array], Array | None, Array]


def _shared_pairs(f: Function, inputs: Gaussian, slope: Array | None) -> PairCovariances:
    mean_u, _ = _inducing_moments(f)
    _, linear, _, cross = _first_moments(f, inputs, slope)
    projected = mean_u @ f.whiten

    def of_kernels(first: np.ndarray, second: np.ndarray) -> Array:
        pairs = projected[first][:, :, None] * projected[second][:, None, :]
        return feature_moments.covariance_quadratic(f.kernel, inputs, f.inducing, pairs)

    return of_kernels, linear, cross


def _separate_pairs(f: Function, inputs: Gaussian, slope: Array | None) -> PairCovariances:
    def of_one(one: Function, slope: Array | None) -> tuple[Array, Array, Array, Array]:
        mean_u, _ = _inducing_moments(one)
        weights, linear, _, cross = _first_moments(one, inputs, slope)
        assert linear is not None  # outputs have a linear mean each, if only of zeros
        return (mean_u @ one.whiten)[0], (weights @ mean_u.T)[:, 0], linear[:, 0], cross[:, 0]

    projected, centre, linear, cross = for_each_output(of_one, f, slope)

    def of_kernels(first: np.ndarray, second: np.ndarray) -> Array:
        def pair(one: Kernel, other: Kernel, z: Array, z_other: Array, left: Array, right: Array) -> Array:
            products = expectations.psi2_between(one, other, inputs, z, z_other)
            return jnp.einsum("bmn,m,n->b", products, left, right, precision="highest")

        at = lambda which: jax.tree.map(lambda leaf: leaf[which], f.kernel)
        z = inducing_points(f.inducing)
        about = z[first], z[second], projected[first], projected[second]
        return (jax.vmap(pair)(at(first), at(second), *about) - centre[first] * centre[second]).T

    return of_kernels, jnp.moveaxis(linear, 0, 1), jnp.moveaxis(cross, 0, 1)


def linearised(
    f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None = None
) -> tuple[MatchedMoments, Float[Array, "B P D"]]:
    """f linearised at the input's mean, and its Jacobian there: often over-confident (Bui 2017, section 3.4).

    The GP's own variance is frozen at the mean, so it does not tend to the ELBO.

    :param slope: as of :func:`matched`, which the Jacobian is then without.
    """
    if is_separate(f):

        def of_one(one: Function, slope: Array | None) -> tuple[Array, ...]:
            moments, jacobian = linearised(one, inputs, slope)
            columns = moments.mean, moments.residual, moments.beyond, jacobian
            return moments.weights, *(column[:, 0] for column in columns)

        weights, mean, residual, beyond, jacobian = for_each_output(of_one, f, slope)
        moments = MatchedMoments(jnp.moveaxis(weights, 0, 1), mean.T, residual.T, beyond.T)
        return moments, jnp.moveaxis(jacobian, 0, 1)
    mean_u, _ = _inducing_moments(f)

    def centre(h: Float[Array, " D"]) -> Float[Array, " P"]:
        weights = cross(f.kernel, h[None], f.inducing) @ f.whiten.T
        return (f.mean(h[None]) + weights @ mean_u.T)[0]

    at = inputs.mean
    weights = cross(f.kernel, at, f.inducing) @ f.whiten.T
    residual = jnp.maximum(f.kernel.diag(at) - jnp.square(weights).sum(1), 0.0)[:, None]
    jacobian, mean = jax.vmap(jax.jacfwd(centre))(at), f.mean(at) + weights @ mean_u.T
    if slope is not None:
        jacobian, mean = jacobian - slope, mean - jnp.einsum("bpd,bd->bp", slope, at)
    beyond = _quadratic(jacobian, inputs)
    if isinstance(f.u, Gaussian):
        beyond = beyond + f.u.projected_variance(weights)
    return MatchedMoments(weights, mean, residual, beyond), jacobian


def _inducing_moments(f: Function) -> tuple[Float[Array, "P M"], Float[Array, "P M M"]]:
    u = f.u if isinstance(f.u, Gaussian) else Gaussian(f.u, jnp.zeros_like(f.u))
    if u.mean.ndim != 2:
        raise ValueError(
            "propagation: found a u for each datum, expected moments of u or one draw; moments of hidden layers need "
            "an inducing rule without links between layers, and alpha=0 or BlackBoxAlpha"
        )
    return u.mean, u.covariance()


def _first_moments(
    f: Function, inputs: Gaussian, slope: Float[Array, "B P D"] | None
) -> tuple[Array, Array | None, Array, Array]:
    """⟨φ⟩, the mean's linear part less ``slope`` (B, P, D), its bias, and Cov(h, φ µ_p), (B, P, D)."""
    mean_u, _ = _inducing_moments(f)
    plain = feature_moments.expected_cross(f.kernel, inputs, f.inducing)
    weights = plain @ f.whiten.T
    linear, bias = affine(f.mean, inputs.mean.shape[1])
    if linear is not None:
        linear = jnp.broadcast_to(linear.T, (inputs.mean.shape[0], *linear.T.shape))
    if slope is not None:
        linear = -slope if linear is None else linear - slope
    if linear is None:
        return weights, None, bias, jnp.zeros(())
    products = feature_moments.expected_input_cross(f.kernel, inputs, f.inducing)
    covariance = products - plain[:, :, None] * inputs.mean[:, None, :]
    return weights, linear, bias, jnp.einsum("bmd,pm->bpd", covariance, mean_u @ f.whiten)


def _quadratic(linear: Float[Array, "B P D"], inputs: Gaussian) -> Float[Array, "B P"]:
    """wᵀ V w for each output."""
    if inputs.diagonal:
        return jnp.einsum("bpd,bd->bp", jnp.square(linear), jnp.square(inputs.scale))
    return jnp.square(jnp.einsum("bpd,bde->bpe", linear, inputs.scale)).sum(-1)
