"""A Gaussian process is a sampled function (design, section 1.1).

``f = sparse_gp("layer1", kernel, inducing, num_outputs)`` samples the whitened inducing outputs and returns a function;
``f(h)`` is its marginal at inputs h given u; ``f(h).noisy(variance)`` and ``f(h).observe(likelihood)`` are NumPyro
distributions to sample from or to observe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, Num
from numpyro.distributions import MaskedDistribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.primitives import _PYRO_STACK, apply_stack

from ppl_dgp import likelihoods
from ppl_dgp.gp.means import Mean, Zero
from ppl_dgp.gp.moment_matching import linearised, matched
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian, project
from ppl_dgp.numerics.linalg import whitening
from ppl_dgp.numerics.power_mean import Alpha

#: how u is carried: integrated out, one draw per datum, or one draw for all
Representation = Literal["marginal", "per_datum_sample", "shared_sample"]
#: how a hidden layer is carried: as draws, or as moments by one of the deterministic propagations
Propagation = Literal["draws", "moments", "full-moments", "linearised"]


def check_propagation(value: str) -> None:
    """Refuse what is no way of carrying h through the layers, by a ValueError."""
    if value not in get_args(Propagation):
        raise ValueError(f"propagation: found {value!r}, expected one of {', '.join(get_args(Propagation))}")


def offer(name: str, value: Array) -> Array | Gaussian:
    """Offer the draw of site ``name`` to guide and objective, who may answer with moments or per-datum draws.

    The message has a type of our own and no name, so that trace, replay and block pass it by; without an answer the
    draw itself comes back (design, section 1.2).
    """
    return _answered(value, type="offer", offered=name)


def _answered(value: Any, **about: Any) -> Any:
    """A value, or what a handler that knows messages of this type puts in its place."""
    if not _PYRO_STACK:
        return value
    message: dict[str, Any] = {
        **about, "fn": lambda: value, "args": (), "kwargs": {}, "value": None, "scale": None, "cond_indep_stack": [],
    }  # fmt: skip
    return apply_stack(message)["value"]


def sparse_gp(
    name: str,
    kernel: Kernel,
    inducing: Float[Array, "M D"],
    num_outputs: int = 1,
    *,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
    begin_at: Callable[[], tuple[Array, Array, Any]] | None = None,
    jitter: float | None = None,
) -> SparseGP:
    """Sample a sparse GP's whitened inducing outputs v ~ N(0, I), u = m(Z) + L v, and return the function.

    :param name: prefix of the sites; the inducing outputs are the site ``name/u`` of shape (P, M).
    :param kernel: shared by the P independent outputs; its values may come from ``numpyro.param`` or ``sample``.
    :param inducing: inputs Z, (M, D).
    :param num_outputs: P.
    :param mean: mean function (B, D) → (B, P); zero if not given.
    :param reused: whether the function is evaluated more than once per datum (a transition along a trajectory); then
        u is always carried as one joint draw (design, section 1.5).
    :param initial_scale: where guides start the scale of q(u); small for a layer that should begin deterministic.
    :param begin_at: what gives inputs (B, D), targets (B, P) and the variance of their noise, a number or (P,): where
        guides start the mean of q(u), the regression on them; 0 if not given.
    :param jitter: first jitter of Kzz relative to its mean diagonal; by default 1e-8 (64 bits) or 1e-5 (32 bits).
    :raises ValueError: if Z is not a matrix, or ``num_outputs`` is not positive.
    """
    if jnp.ndim(inducing) != 2:
        raise ValueError(
            f"inducing: found shape {jnp.shape(inducing)}, expected (M, D); give one row per input"
        )
    if num_outputs < 1:
        raise ValueError(f"num_outputs: found {num_outputs}, expected at least 1")
    whiten, used = whitening(kernel(inducing, inducing), jitter)
    nugget = jax.lax.stop_gradient(used) * kernel.diag(inducing).mean()
    numpyro.deterministic(f"{name}/jitter", jax.lax.stop_gradient(used))
    prior = dist.Normal(0.0, 1.0).expand((num_outputs, inducing.shape[0])).to_event(2)
    mean = Zero(num_outputs) if mean is None else mean
    infer: dict[str, Any] = {"role": "inducing", "reused": reused, "initial_scale": initial_scale}
    if begin_at is not None:
        infer["start"] = lambda: _regressed(kernel, inducing, whiten, mean, *begin_at())
    draw = numpyro.sample(f"{name}/u", prior, infer=infer)
    return SparseGP(name, kernel, inducing, whiten, mean, offer(f"{name}/u", draw), nugget)


def _regressed(
    kernel: Kernel, z: Array, whiten: Array, mean: Mean, inputs: Array, targets: Array, noise: Any
) -> Float[Array, "P M"]:
    """E[v | targets] = (s² I + φᵀφ)⁻¹ φᵀ(y − m(h)), φ = k(h, Z) L⁻ᵀ."""
    weights = kernel(inputs, z) @ whiten.T
    noises, unit = jnp.broadcast_to(noise, targets.shape[1:]), jnp.eye(z.shape[0], dtype=weights.dtype)
    gram = weights.T @ weights + noises[:, None, None] * unit
    return jnp.linalg.solve(gram, ((targets - mean(inputs)).T @ weights)[..., None])[..., 0]


@dataclass(frozen=True, eq=False)
class SparseGP:
    """f | u, with u a draw (P, M), one draw per datum (B, P, M), or moments; ``nugget`` is added to k(z, z)."""

    name: str
    kernel: Kernel
    inducing: Float[Array, "M D"]
    whiten: Float[Array, "M M"]
    mean: Mean
    u: Array | Gaussian
    nugget: Float[Array, ""] | float = 0.0

    def __call__(self, h: Float[Array, "B D"] | Gaussian) -> Marginal:
        """The marginals of f at the rows of h: mean m(h) + A v, variance k(h,h) − ‖A‖² (+ A S Aᵀ), A = k(h,Z) L⁻ᵀ.

        Where h is carried as moments, those of f(h): matched, or linearised if the moments ask for it.

        :raises ValueError: if h is not (B, D) with the D of the inducing inputs.
        """
        found = jnp.shape(h.mean if isinstance(h, Gaussian) else h)
        if len(found) != 2 or found[1] != self.inducing.shape[1]:
            expected = f"(B, {self.inducing.shape[1]})"
            raise ValueError(f"{self.name}: found inputs of shape {found}, expected {expected}, as Z has")
        if isinstance(h, Gaussian):
            known = linearised(self, h)[0] if h.linearise else matched(self, h)
            return _evaluated(Marginal(self, h, known.weights, known.mean, known.residual, known.beyond))
        weights = self.kernel(h, self.inducing) @ self.whiten.T
        residual = self.kernel.diag(h) - jnp.square(weights).sum(1)
        # k(h,h) ≥ ‖A‖² in exact arithmetic; rounding alone can bring it below, by a few ulps of k
        residual = jnp.maximum(residual, 0.0)[:, None]
        if isinstance(self.u, Gaussian):
            centre, from_u = self.u.projected_mean(weights), self.u.projected_variance(weights)
        else:
            centre = project(weights, self.u)
            from_u = jnp.zeros_like(centre)
        return _evaluated(Marginal(self, h, weights, self.mean(h) + centre, residual, from_u))

    def joint(self, h: Float[Array, "B D"]) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        """Mean (B, P) and full covariance (P, B, B) of f at the rows of h, given u or under its moments."""
        marginal = self(h)
        weights = marginal.weights
        covariance = self.kernel(h, h) - weights @ weights.T
        covariance = jnp.broadcast_to(covariance, (marginal.mean.shape[1], *covariance.shape))
        if isinstance(self.u, Gaussian):
            covariance = covariance + self.u.projected_covariance(weights)
        return marginal.mean, covariance


@dataclass(frozen=True, eq=False)
class Marginal:
    """Marginals of f at inputs h, and where they came from.

    ``residual`` (B, 1) is D(h), the variance of f given u; ``from_u`` (B, P) what the moments of u add to it, and those
    of the inputs where they are uncertain (``weights`` and ``residual`` are then averages).
    """

    function: SparseGP
    inputs: Float[Array, "B D"] | Gaussian
    weights: Float[Array, "B M"]
    mean: Float[Array, "B P"]
    residual: Float[Array, "B 1"]
    from_u: Float[Array, "B P"]

    @property
    def rows(self) -> Float[Array, "B D"]:
        """The inputs, where they are draws. Raises TypeError where they are carried as moments."""
        if isinstance(self.inputs, Gaussian):
            raise TypeError(f"{self.function.name}: found moments of the inputs, expected draws (B, D)")
        return self.inputs

    @property
    def variance(self) -> Float[Array, "B P"]:
        """Variance of f, (B, P)."""
        return self.residual + self.from_u

    def output(self, which: Int[Array, " B"]) -> Marginal:
        """The marginal of one output per row, (B, 1), as where a row belongs to one of several functions."""
        take = lambda values: jnp.take_along_axis(values, which[:, None], 1)
        return replace(self, mean=take(self.mean), from_u=take(self.from_u))

    def noisy(self, variance: Any) -> Emission:
        """f(h) + ε, ε ~ N(0, variance): scalar, per output (P,), or per row (B, 1) or (B, P)."""
        return Emission(self, likelihoods.Gaussian(jnp.asarray(variance)))

    def observe(self, likelihood: likelihoods.Likelihood | Callable[[Array], dist.Distribution]) -> Emission:
        """y | f(h) under a likelihood, or any scalar distribution: ``lambda f: dist.Poisson(jnp.exp(f))``.

        :raises ValueError: if the likelihood needs another number of functions than P.
        """
        known = isinstance(likelihood, likelihoods.Likelihood)
        return Emission(self, likelihood if known else likelihoods.Scalar(likelihood))  # type: ignore[arg-type]


def _evaluated(marginal: Marginal) -> Marginal:
    """Offer a function's marginals to an objective that would rather have a draw of it (as ``offer`` does of u)."""
    return _answered(marginal, type="evaluate", marginal=marginal)  # type: ignore[no-any-return]


class Emission(dist.Distribution):
    """The distribution of a noisy or observed f(h): batch (B,), event (P,), or (1,) for labels from several functions.

    ``log_prob`` is t_1, the marginal density given u of the model in which the f_n are independent given u (FITC); an
    objective asks :meth:`tempered` for t_α instead. NumPyro's ``Trace_ELBO`` sees t_1 and bounds the FITC model.

    :param partly: whether NaN in a value stands for an entry that was not observed, which then counts for nothing.
    """

    def __init__(self, marginal: Marginal, likelihood: likelihoods.Likelihood, partly: bool = False) -> None:
        self.marginal, self.likelihood, self.partly = marginal, likelihood, partly
        batch, functions = marginal.mean.shape
        super().__init__((batch,), (likelihood.num_targets(functions),), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(self.likelihood.support, 1)

    @property
    def parts(self) -> tuple[Emission, ...]:
        """The emissions it is made of, of consecutive targets: itself."""
        return (self,)

    def split(self, value: Num[Array, "*S B P"]) -> list[Num[Array, "*S B _"]]:
        """The columns of each part."""
        return [value]

    def partly_observed(self) -> Emission:
        """The same, for values that may lack entries: NaN there."""
        return Emission(self.marginal, self.likelihood, partly=True)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        """t_α of each row, summed over targets; ``u_outside`` averages the variance of q(u) outside the log."""
        if not self.partly or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            return self._tempered(value, alpha, u_outside).sum(-1)
        there = ~jnp.isnan(value)
        # what stands in for a missing entry must be possible, or its gradient would not be finite
        each = self._tempered(jnp.where(there, value, self.likelihood.possible), alpha, u_outside)
        return jnp.where(there, each, 0.0).sum(-1)

    def _tempered(self, value: Array, alpha: Alpha, u_outside: bool) -> Float[Array, "B P"]:
        marginal = self.marginal
        if u_outside:
            parts = (marginal.mean, jnp.broadcast_to(marginal.residual, marginal.mean.shape), marginal.from_u)
            return self.likelihood.tempered_outside(value, *parts, alpha)
        return self.likelihood.tempered(value, marginal.mean, marginal.variance, alpha)

    @validate_sample
    def log_prob(self, value: Array) -> Float[Array, "B"]:
        """t_1(value), (B,)."""
        return self.tempered(value, 1.0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws of shape ``sample_shape`` + (B, P)."""
        shape = sample_shape + self.marginal.mean.shape
        mean, variance = (jnp.broadcast_to(a, shape) for a in (self.marginal.mean, self.marginal.variance))
        return self.likelihood.sample(key, mean, variance)

    @property
    def mean(self) -> Float[Array, "B _"]:
        """Of y, (B, P); of several classes the probabilities, (B, C)."""
        return self.likelihood.moments(self.marginal.mean, self.marginal.variance)[0]

    @property
    def variance(self) -> Float[Array, "B _"]:
        """Of y, or of the classes' indicators."""
        return self.likelihood.moments(self.marginal.mean, self.marginal.variance)[1]


class JointEmission(Emission):
    """Emissions of several functions side by side, such as the views of one latent: their targets are columns of y.

    Its event is (P,), P the sum of theirs; given the row they are independent.
    """

    def __init__(self, *parts: Emission) -> None:
        """:raises ValueError: if there are none, or their rows are not the same."""
        if not parts or len({part.batch_shape for part in parts}) != 1:
            raise ValueError(
                f"parts: found rows {[part.batch_shape for part in parts]}, expected emissions of the same rows"
            )
        self._parts = parts
        self._widths = [part.event_shape[0] for part in parts]
        dist.Distribution.__init__(self, parts[0].batch_shape, (sum(self._widths),), validate_args=False)

    @property
    def parts(self) -> tuple[Emission, ...]:
        return self._parts

    @property
    def partly(self) -> bool:  # type: ignore[override]
        """Whether any part may lack entries."""
        return any(part.partly for part in self._parts)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_vector

    def partly_observed(self) -> Emission:
        return JointEmission(*(part.partly_observed() for part in self._parts))

    def split(self, value: Num[Array, "*S B P"]) -> list[Num[Array, "*S B _"]]:
        """The columns of each part."""
        return jnp.split(value, np.cumsum(self._widths)[:-1], axis=-1)

    def tempered(self, value: Array, alpha: Alpha, *, u_outside: bool = False) -> Float[Array, "B"]:
        each = zip(self._parts, self.split(value), strict=True)
        rows = [part.tempered(columns, alpha, u_outside=u_outside) for part, columns in each]
        return jnp.stack(rows).sum(0)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        keys = jax.random.split(key, len(self._parts))
        draws = [part.sample(k, sample_shape) for k, part in zip(keys, self._parts, strict=True)]
        return jnp.concatenate(draws, -1)

    @property
    def mean(self) -> Float[Array, "B _"]:
        return jnp.concatenate([part.mean for part in self._parts], -1)

    @property
    def variance(self) -> Float[Array, "B _"]:
        return jnp.concatenate([part.variance for part in self._parts], -1)


def unwrap(distribution: dist.Distribution) -> dist.Distribution:
    """A site's distribution, freed of the wrappers that plates, masks and ``to_event`` put on."""
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def emission_of(distribution: dist.Distribution) -> Emission | None:
    """The emission inside a site's distribution, None where there is no GP."""
    inner = unwrap(distribution)
    return inner if isinstance(inner, Emission) else None


def mask_of(distribution: dist.Distribution) -> Any:
    """The mask that ``handlers.mask`` put on a site's distribution: rows without it count for nothing. True if none."""
    mask: Any = True
    while isinstance(distribution, dist.ExpandedDistribution | MaskedDistribution):
        if isinstance(distribution, MaskedDistribution):
            mask = jnp.logical_and(mask, distribution._mask)
        distribution = distribution.base_dist
    return mask


def data_plate(size: int, index: Array | None = None, subsample_size: int | None = None) -> numpyro.plate:
    """The plate ``data`` over ``size`` rows; ``index`` (B,) names the rows at hand, ``subsample_size`` draws them."""
    if index is None:
        return numpyro.plate("data", size, subsample_size)
    # a plate's indices come from a message like any other, so a substitution can answer it
    with numpyro.handlers.substitute(data={"data": index}):
        return numpyro.plate("data", size, subsample_size=index.shape[0])
