"""A Gaussian process is a sampled function (docs/design.md, 1.1).

``f = sparse_gp("layer1", kernel, inducing, num_outputs)`` samples the whitened inducing outputs and returns a function;
``f(h)`` is its marginal at inputs h given u; ``f(h).noisy(variance)`` and ``f(h).observe(likelihood)`` are NumPyro
distributions to sample from or to observe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from ppl_dgp.gp import features
from ppl_dgp.gp.contract import JITTER_SUFFIX, check_columns, inducing_role, inducing_site
from ppl_dgp.gp.features import Functionals, InducingFeatures
from ppl_dgp.gp.marginal import Marginal, WeightedMarginal
from ppl_dgp.gp.means import Mean, Zero
from ppl_dgp.gp.moment_matching import linearised, matched
from ppl_dgp.gp.representation import answered, offer, offer_inducing
from ppl_dgp.gp.separate import covariance_given_u, is_separate, kernels_together, weights_and_residual
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian, project
from ppl_dgp.numerics.linalg import whitening, with_jitter
from ppl_dgp.numerics.structured_root import InverseRoot
from ppl_dgp.numerics.weighted_gaussian import WeightedGaussian


def sparse_gp(
    name: str,
    kernel: Kernel | Sequence[Kernel],
    inducing: Float[Array, "M D"] | Float[Array, "P M D"] | InducingFeatures,
    num_outputs: int = 1,
    *,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
    begin_at: Callable[[], tuple[Array, Array, Any]] | None = None,
    start: Callable[[], Float[Array, "P M"]] | None = None,
    behind: SparseGP | None = None,
    jitter: float | None = None,
) -> SparseGP:
    """Sample a sparse GP's whitened inducing outputs v ~ N(0, I), u = m(Z) + L v, and return the function.

    :param name: prefix of the sites; the inducing outputs are the site ``name/u`` of shape (P, M).
    :param kernel: shared by the P independent outputs, or one for each of them, of one structure; values may come from
        ``numpyro.param`` or ``sample``.
    :param inducing: inputs Z, (M, D), of each output's own (P, M, D) where kernels are; or other functionals of f than
        its values, such as ``Derivatives`` and ``Averages``, and ``Fourier`` features (:mod:`ppl_dgp.gp.features`),
        whose root of Kuu is not triangular: the L of this page is then any with L Lᵀ = Kuu.
    :param num_outputs: P.
    :param mean: mean function (B, D) → (B, P); zero if not given.
    :param reused: whether the function is evaluated more than once per datum (a transition along a trajectory); then
        u is always carried as one joint draw (docs/design.md, 1.5).
    :param initial_scale: where guides start the scale of q(u); small for a layer that should begin deterministic.
    :param begin_at: what gives inputs (B, D), targets (B, P) and the variance of their noise, a number, (P,) or (B, P):
        where guides start the mean of q(u), the regression on them; 0 if not given.
    :param start: gives that mean itself, (P, M) of the whitened u, in the place of ``begin_at``.
    :param behind: the function whose values are this one's inputs, of a layer in a deep model: under
        ``GlobalInducing()`` its draw at its inducing inputs takes the place of ``inducing``.
    :param jitter: first jitter of Kzz relative to its mean diagonal; by default 1e-8 (64 bits) or 1e-5 (32 bits).
        Features that have a root of Kuu by its structure need none, and get none.
    :raises ValueError: if Z is not a matrix, ``num_outputs`` is not positive, or kernels are not one for each output.
    """
    if num_outputs < 1:
        raise ValueError(f"num_outputs: found {num_outputs}, expected at least 1")
    inducing = offer_inducing(name, inducing, behind)
    kernel, inducing = _checked_kernels(kernel, inducing, num_outputs)
    whiten, used, nugget = _whitened(kernel, inducing, jitter)
    numpyro.deterministic(name + JITTER_SUFFIX, used.max())
    prior = dist.Normal(0.0, 1.0).expand((num_outputs, inducing.shape[-2])).to_event(2)
    mean = Zero(num_outputs) if mean is None else mean
    if begin_at is not None:
        start = lambda: _regression_start(kernel, inducing, whiten, mean, *begin_at())
    at_inducing = lambda: _at_inducing(kernel, inducing, whiten, mean)
    gram = None
    if inducing.ndim == 2 and not isinstance(whiten, InverseRoot):
        gram = lambda: (with_jitter(features.covariance(kernel, inducing), jitter), whiten)
    role = inducing_role(
        start, initial_scale=initial_scale, reused=reused, at_inducing=at_inducing, gram=gram
    )
    draw = numpyro.sample(inducing_site(name), prior, infer=role)
    u = offer(inducing_site(name), draw)
    return SparseGP(name, kernel, inducing, whiten, mean, u, nugget, reused)


def _whitened(
    kernel: Kernel, inducing: Array | InducingFeatures, jitter: float | None
) -> tuple[Array | InverseRoot, Float[Array, "*P"], Float[Array, "*P"]]:
    """L⁻¹, the jitter that it needed, and what that is in units of Kuu."""
    root = inducing.root(kernel) if isinstance(inducing, InducingFeatures) else None
    if root is not None:
        return InverseRoot(root), jnp.zeros(()), jnp.zeros(())
    matrices, scale = (jax.vmap(_gram) if inducing.ndim == 3 else _gram)(kernel, inducing)
    whiten, used = whitening(matrices, jitter)
    used = jax.lax.stop_gradient(used)
    return whiten, used, used * scale


def _gram(kernel: Kernel, z: Array | InducingFeatures) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """Kuu and its mean diagonal."""
    matrix = features.covariance(kernel, z)
    return matrix, (jnp.diagonal(matrix) if isinstance(z, InducingFeatures) else kernel.diag(z)).mean()


def _at_inducing(
    kernel: Kernel, z: Array | InducingFeatures, whiten: Float[Array, "*P M M"] | InverseRoot, mean: Mean
) -> tuple[Float[Array, "*P M M"], Float[Array, "M P"]]:
    """A = Kuu L⁻ᵀ and m(Z), of separate outputs each at its own: f at the inducing inputs is m(Z) + A v."""
    if z.ndim == 2:
        return features.covariance(kernel, z) @ whiten.T, features.mean_at(mean, z)
    root = lambda kernel, z, whiten: features.covariance(kernel, z) @ whiten.T
    inputs = features.inducing_points(z)
    outputs, size, dims = inputs.shape
    means = mean(inputs.reshape(-1, dims)).reshape(outputs, size, outputs)
    return jax.vmap(root)(kernel, inputs, whiten), jnp.diagonal(means, axis1=0, axis2=2)


def _checked_kernels(
    kernel: Kernel | Sequence[Kernel], inducing: Array | InducingFeatures, num_outputs: int
) -> tuple[Kernel, Array | InducingFeatures]:
    """One kernel with Z (M, D), or those of the outputs as one with Z (P, M, D)."""
    if isinstance(inducing, InducingFeatures):
        if isinstance(kernel, Kernel):
            return kernel, inducing
        raise ValueError(
            f"inducing: found {type(inducing).__name__} with a kernel for each output, expected inducing inputs; take "
            "one kernel for all outputs, or functions of one output each"
        )
    if isinstance(kernel, Kernel):
        if jnp.ndim(inducing) != 2:
            raise ValueError(
                f"inducing: found shape {jnp.shape(inducing)}, expected (M, D); give one row per input"
            )
        return kernel, inducing
    if len(kernel) != num_outputs:
        raise ValueError(
            f"kernel: found {len(kernel)} of them, expected one, or {num_outputs} as there are outputs"
        )
    if jnp.ndim(inducing) == 2:
        inducing = jnp.broadcast_to(inducing, (num_outputs, *inducing.shape))
    if jnp.ndim(inducing) != 3 or inducing.shape[0] != num_outputs:
        raise ValueError(
            f"inducing: found shape {jnp.shape(inducing)}, expected (M, D) or ({num_outputs}, M, D), as many sets as "
            "kernels; give one row per input"
        )
    return kernels_together(kernel), inducing


def _regression_start(
    kernel: Kernel,
    z: Array | InducingFeatures,
    whiten: Array | InverseRoot,
    mean: Mean,
    inputs: Array,
    targets: Array,
    noise: Any,
) -> Float[Array, "P M"]:
    """E[v | targets] of each output, whose noise has the given variance."""
    left = targets - mean(inputs)
    if z.ndim == 2:
        return _regressed(features.cross(kernel, inputs, z) @ whiten.T, left, noise)
    noises = jnp.broadcast_to(noise, left.shape)

    def of_one(kernel: Kernel, whiten: Array | InverseRoot, z: Array, left: Array, noise: Array) -> Array:
        return _regressed(kernel(inputs, z) @ whiten.T, left[:, None], noise[:, None])[0]

    z = features.inducing_points(z)
    coefficients: Array = jax.vmap(of_one)(kernel, whiten, z, left.T, noises.T)
    return coefficients


def _regressed(weights: Float[Array, "B M"], left: Float[Array, "B P"], noise: Any) -> Float[Array, "P M"]:
    """(s² I + φᵀφ)⁻¹ φᵀ(y − m(h)), φ = k(h, Z) L⁻ᵀ; of noise a product of rows and outputs too."""
    if jnp.ndim(noise) == 2:
        share = jax.lax.rsqrt(noise.mean(1, keepdims=True) / noise.mean())
        weights, left, noise = share * weights, share * left, noise.mean(0)
    noises, unit = jnp.broadcast_to(noise, left.shape[1:]), jnp.eye(weights.shape[1], dtype=weights.dtype)
    gram = weights.T @ weights + noises[:, None, None] * unit
    coefficients: Array = jnp.linalg.solve(gram, (left.T @ weights)[..., None])[..., 0]
    return coefficients


@dataclass(frozen=True, eq=False)
class SparseGP:
    """f | u, with u a draw (P, M), one draw per datum (B, P, M), or moments; ``nugget`` is added to k(z, z).

    ``reused`` says whether it was sampled as a function that a datum has several values of.

    Where each output has a kernel and inducing inputs of its own, their arrays have a leading axis of outputs (see
    :mod:`ppl_dgp.gp.separate`).
    """

    name: str
    kernel: Kernel
    inducing: Float[Array, "*P M D"] | InducingFeatures
    whiten: Float[Array, "*P M M"] | InverseRoot
    mean: Mean
    u: Array | Gaussian
    nugget: Float[Array, "*P"] | float = 0.0
    reused: bool = False

    @property
    def num_inputs(self) -> int:
        """D."""
        return self.inducing.shape[-1]

    @property
    def num_inducing(self) -> int:
        """M, of each output."""
        return self.inducing.shape[-2]

    def at_inducing(self) -> Float[Array, "P M"]:
        """u = m(Z) + L v, the mean of f at each output's inducing inputs, or of the functionals of f."""
        whitened = self.u.mean if isinstance(self.u, Gaussian) else self.u
        roots, mean = _at_inducing(self.kernel, self.inducing, self.whiten, self.mean)
        return mean.T + (roots @ whitened[..., None])[..., 0]

    def __call__(self, h: Float[Array, "B D"] | Gaussian | Functionals) -> Marginal:
        """The marginals of f at the rows of h: mean m(h) + A v, variance k(h,h) − ‖A‖² (+ A S Aᵀ), A = k(h,Z) L⁻ᵀ.

        Where h is carried as moments, those of f(h): matched, or linearised if the moments ask for it. Of functionals,
        such as ``Derivatives``, those of slopes of f, averages or integrals, that were measured themselves.

        :raises ValueError: if h is not (B, D) with the D of the inducing inputs.
        """
        return offered_marginal(self.marginal(h))

    def marginal(self, h: Float[Array, "B D"] | Gaussian | Functionals) -> Marginal:
        """The same, of which no objective hears."""
        shape = jnp.shape(h.mean if isinstance(h, Gaussian) else h)
        check_columns(self.name, shape, self.num_inputs)
        if isinstance(h, Gaussian):
            moments = linearised(self, h)[0] if h.linearise else matched(self, h)
            return Marginal(self, h, moments.weights, moments.mean, moments.residual, moments.beyond)
        weights, residual = weights_and_residual(self.kernel, self.whiten, h, self.inducing)
        residual = residual if is_separate(self) else residual[:, None]
        if isinstance(self.u, Gaussian):
            centre, from_u = self.u.projected_mean(weights), self.u.projected_variance(weights)
        else:
            centre = project(weights, self.u)
            from_u = jnp.zeros_like(centre)
        mean = features.mean_at(self.mean, h)
        if isinstance(self.u, WeightedGaussian):
            across, prior = features.cross(self.kernel, h, self.inducing), features.variance(self.kernel, h)
            centre, total = self.u.of_function(across, prior)
            return WeightedMarginal(self, h, weights, mean + centre, residual, from_u, total)
        return Marginal(self, h, weights, mean + centre, residual, from_u)

    def for_several(self, count: int) -> SparseGP:
        """The function for ``count`` rows in the place of each: a draw of u for each row is one for all of them."""
        if isinstance(self.u, Gaussian) or self.u.ndim == 2:
            return self
        return replace(self, u=jnp.repeat(self.u, count, 0))

    def joint(
        self, h: Float[Array, "B D"] | Functionals
    ) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        """Mean (B, P) and full covariance (P, B, B) of f at the rows of h, given u or under its moments."""
        marginal = self(h)
        weights = marginal.weights
        covariance = covariance_given_u(self.kernel, weights, h)
        if not is_separate(self):
            covariance = jnp.broadcast_to(covariance, (marginal.mean.shape[1], *covariance.shape))
        if isinstance(self.u, Gaussian):
            covariance = covariance + self.u.projected_covariance(weights)
        return marginal.mean, covariance


def offered_marginal(marginal: Marginal) -> Marginal:
    """Offer a function's marginals to an objective that would rather have a draw of it (as ``offer`` does of u)."""
    return answered(marginal, type="evaluate", marginal=marginal)  # type: ignore[no-any-return]
