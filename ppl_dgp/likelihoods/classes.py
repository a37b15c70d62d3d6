"""Classes by one function: two of them (Bernoulli), or several in an order (ordinal regression)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.nn import log_sigmoid
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows, Targets
from ppl_dgp.likelihoods.quadrature import QuadratureNodes, tilted_nodes
from ppl_dgp.likelihoods.scalar import Elementwise
from ppl_dgp.numerics.power_mean import Alpha, is_number

LinkName = Literal["probit", "logit"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bernoulli(Elementwise):
    """Two classes, y in {0, 1}: P(y = 1 | f) is Φ(f) (probit) or 1/(1 + exp(−f)) (logit).

    :raises ValueError: for another link.
    """

    link: LinkName = field(default="probit", metadata=dict(static=True))
    num_nodes: int = field(default=64, metadata=dict(static=True))

    expects = "labels 0 and 1"
    target = "two classes"

    def __post_init__(self) -> None:
        if self.link not in get_args(LinkName):
            raise ValueError(f"link: found {self.link!r}, expected one of {', '.join(get_args(LinkName))}")

    @property
    def support(self) -> constraints.Constraint:
        return constraints.boolean

    def of(self, f: Array) -> dist.Distribution:
        return dist.Bernoulli(probs=ndtr(f)) if self.link == "probit" else dist.Bernoulli(logits=f)

    def log_prob(self, y: Array, f: Array) -> Array:
        signed = (2.0 * y - 1.0) * f
        return log_ndtr(signed) if self.link == "probit" else log_sigmoid(signed)

    def nodes(
        self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha, number: int
    ) -> QuadratureNodes:
        # the step is at f = 0, however far from the mode
        log_p = lambda f: self.log_prob(y, f)
        return tilted_nodes(log_p, mean, variance, alpha, number, jnp.zeros_like(mean))

    def _coarser(self) -> Bernoulli:
        return replace(self, num_nodes=(self.num_nodes + 1) // 2)

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """Probit: t_1 = log Φ(±m/√(1 + v)); quadrature else."""
        if self.link == "probit" and is_number(alpha, 1.0):
            return log_ndtr((2.0 * y - 1.0) * mean / jnp.sqrt(1.0 + variance))
        return super().tempered(y, mean, variance, alpha)

    def probabilities(self, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        """P(y = 1), of the shape of ``mean``."""
        return jnp.exp(self.log_density(jnp.ones_like(mean), mean, variance))

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """p = P(y = 1) and p(1 − p)."""
        p = self.probabilities(mean, variance)
        return p, p * (1.0 - p)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ordinal(Elementwise):
    """C classes in an order, y in 0 … C−1 (Chu & Ghahramani 2005): y = k where b_{k−1} < f + scale · ε < b_k.

    P(y = k | f) = Φ((b_k − f)/scale) − Φ((b_{k−1} − f)/scale), with b_{−1} = −∞ and b_{C−1} = ∞.

    :param cuts: the C − 1 increasing b_k.
    :param scale: of the noise, never learnt; the scale of f is free, so that 1 loses nothing.
    :raises ValueError: for cuts that are no row of at least one number.
    """

    cuts: Float[Array, " cuts"] = field(metadata=dict(constraint=constraints.ordered_vector))
    scale: float | Array = field(default=1.0, metadata=dict(learnt=False))
    num_nodes: int = field(default=64, metadata=dict(static=True))

    target = "ordered classes"

    def __post_init__(self) -> None:
        if hasattr(self.cuts, "shape") and (len(self.cuts.shape) != 1 or self.cuts.shape[0] < 1):
            raise ValueError(f"cuts: found shape {self.cuts.shape}, expected (C − 1,) for C ≥ 2 classes")

    @property
    def num_classes(self) -> int:
        return self.cuts.shape[0] + 1

    @property
    def expects(self) -> str:  # type: ignore[override]
        return f"whole labels 0 … {self.num_classes - 1}"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.num_classes - 1)

    def num_functions(self, num_targets: int) -> int:
        if num_targets != 1:
            raise ValueError(f"y: found {num_targets} columns, expected one of labels for Ordinal; fit each")
        return 1

    def num_targets(self, num_functions: int) -> int:
        if num_functions != 1:
            raise ValueError(f"likelihood: found {num_functions} functions, expected 1 for Ordinal")
        return 1

    def _log_prob(self, y: Array, f: Array, scale: Array) -> Array:
        # an infinite edge would carry NaN into the gradient of the scale
        edges = jnp.concatenate([self.cuts[:1], self.cuts, self.cuts[-1:]]).astype(f.dtype)
        label = y.astype(int)
        low = jnp.where(label > 0, (edges[label] - f) / scale, -jnp.inf)
        high = jnp.where(label < self.num_classes - 1, (edges[label + 1] - f) / scale, jnp.inf)
        return _log_ndtr_difference(low, high)

    def log_prob(self, y: Array, f: Array) -> Array:
        return self._log_prob(y, f, jnp.asarray(self.scale))

    def of(self, f: Array) -> dist.Distribution:
        labels = jnp.arange(self.num_classes)
        return dist.Categorical(logits=self.log_prob(labels, f[..., None]))

    def tempered(self, y: Array, mean: FunctionRows, variance: FunctionRows, alpha: Alpha) -> FunctionRows:
        """t_1 is log p with the scale √(scale² + v); quadrature else."""
        if is_number(alpha, 1.0):
            return self._log_prob(y, mean, jnp.sqrt(jnp.square(self.scale) + variance))
        return super().tempered(y, mean, variance, alpha)

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        deviate = jnp.sqrt(jnp.square(self.scale) + variance)
        noisy = mean + deviate * jax.random.normal(key, jnp.shape(mean), jnp.result_type(mean))
        return (noisy[..., None] > self.cuts).sum(-1)

    def probabilities(self, mean: FunctionRows, variance: FunctionRows) -> Float[Array, "*#rows"]:
        """P(y = k) for all classes, (…, C)."""
        deviate = jnp.sqrt(jnp.square(self.scale) + variance)
        return jnp.exp(self._log_prob(jnp.arange(self.num_classes), mean, deviate))

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """p and p(1 − p) of each class, (…, C)."""
        p = self.probabilities(mean, variance)
        return p, p * (1.0 - p)


def _log_ndtr_difference(low: Array, high: Array) -> Array:
    """log(Φ(high) − Φ(low)) for low < high, either infinite, without cancellation."""
    # by symmetry on the side where both are below 0, or the interval holds it
    flip = low > 0.0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    bounded, below = jnp.isfinite(high), jnp.isfinite(low)
    top = jnp.where(bounded, log_ndtr(jnp.where(bounded, high, 0.0)), 0.0)
    gap = jnp.where(below, log_ndtr(jnp.where(below, low, 0.0)) - top, -1.0)
    # log(1 − exp(gap)), gap < 0
    gap = jnp.minimum(gap, -jnp.finfo(gap.dtype).tiny)
    rest = jnp.where(gap > -0.69, jnp.log(-jnp.expm1(gap)), jnp.log1p(-jnp.exp(gap)))
    return top + jnp.where(below, rest, 0.0)
