"""Classes without order, one function each: softmax, and robust-max (Hernández-Lobato et al. 2011).

Shapes: labels y (B, 1) in 0 … C−1; means and variances (B, C), the functions independent given the row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.special import erfc, logsumexp
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.likelihoods.likelihood import FunctionRows, Likelihood, Targets
from ppl_dgp.likelihoods.quadrature import REACH, STEP, deviation, graded_nodes, sobol_normals
from ppl_dgp.numerics.power_mean import Alpha, log_power_mean

#: quasi-Monte-Carlo nodes of the means that stay outside the logarithm
OUTSIDE_DRAWS = 64


class Multiclass(Likelihood):
    """What softmax and robust-max share."""

    num_classes: int
    unordered = True
    target = "classes"

    @property
    def expects(self) -> str:  # type: ignore[override]
        return f"whole labels 0 … {self.num_classes - 1}"

    @property
    def support(self) -> constraints.Constraint:
        return constraints.integer_interval(0, self.num_classes - 1)

    def num_functions(self, num_targets: int) -> int:
        if num_targets != 1:
            raise ValueError(f"y: found {num_targets} columns, expected one of labels; fit each by itself")
        return self.num_classes

    def num_targets(self, num_functions: int) -> int:
        if num_functions != self.num_classes:
            raise ValueError(
                f"likelihood: found {num_functions} functions for {type(self).__name__} of {self.num_classes} classes, "
                f"expected one per class; make the GP with num_outputs={self.num_classes}"
            )
        return 1

    def class_log_probs(self, f: FunctionRows) -> FunctionRows:
        """log P(y = c | f) for all classes, (…, C)."""
        raise NotImplementedError

    def probabilities(self, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        """P(y = c) for all classes, (B, C), which sum to 1."""
        raise NotImplementedError

    def tempered_outside(
        self, y: Targets, mean: FunctionRows, inside: FunctionRows, outside: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """The outer mean of what α adds to t_0 by 64 quasi-Monte-Carlo nodes; 32 of softmax, which errs more inside."""
        number = self._outside_draws()
        nodes = sobol_normals(number, self.num_classes), np.full(number, 1.0 / number)
        return self._outside_at_nodes(y, mean, inside, outside, alpha, nodes)

    def _outside_draws(self) -> int:
        return OUTSIDE_DRAWS

    def sample(self, key: Array, mean: FunctionRows, variance: FunctionRows) -> Targets:
        key_f, key_y = jax.random.split(key)
        noise = jax.random.normal(key_f, jnp.shape(mean), jnp.result_type(mean))
        log_probs = self.class_log_probs(mean + deviation(variance) * noise)
        return jax.random.categorical(key_y, log_probs)[..., None]

    def moments(self, mean: FunctionRows, variance: FunctionRows) -> tuple[FunctionRows, FunctionRows]:
        """p and p(1 − p) of each class, (B, C)."""
        p = self.probabilities(mean, variance)
        return p, p * (1.0 - p)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Softmax(Multiclass):
    """P(y = c | f) = exp(f_c) / Σ_d exp(f_d).

    Expectations are over fixed quasi-Monte-Carlo nodes of all C functions: with 256 the probabilities are good to about
    3 · 10⁻³ at unit variances and ten classes, t_0 to 10⁻² and t_1 to 4 · 10⁻².
    """

    num_classes: int = field(metadata=dict(static=True))
    num_nodes: int = field(default=256, metadata=dict(static=True))

    def class_log_probs(self, f: FunctionRows) -> FunctionRows:
        return jax.nn.log_softmax(f)

    def _outside_draws(self) -> int:
        return OUTSIDE_DRAWS // 2

    def _at_nodes(self, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        """The functions, (K, …, C)."""
        nodes = sobol_normals(self.num_nodes, self.num_classes)
        z = jnp.asarray(nodes, jnp.result_type(mean)).reshape(self.num_nodes, *(1,) * (mean.ndim - 1), -1)
        return mean + deviation(variance) * z

    def _log_chances(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows
    ) -> Float[Array, "K *#targets"]:
        """log P(y | f) at the nodes."""
        f = self._at_nodes(mean, variance)
        label = jnp.broadcast_to(y.astype(int), (*f.shape[:-1], 1))
        return jnp.take_along_axis(f, label, -1) - logsumexp(f, -1, keepdims=True)

    def tempered(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        return log_power_mean(self._log_chances(y, mean, variance), alpha)

    def _added(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """At the same nodes, so that their gradient is taken once."""
        log_chances = self._log_chances(y, mean, variance)
        return log_power_mean(log_chances, alpha) - log_chances.mean(0)

    def probabilities(self, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        return jax.nn.softmax(self._at_nodes(mean, variance)).mean(0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RobustMax(Multiclass):
    r"""P(y = c | f) = 1 − ε if f_c is the largest, else ε/(C − 1): labels that are wrong by chance cost little.

    Everything follows from P = P(argmax f = y),

    .. math::
        P = \int N(z; 0, 1) \prod_{c ≠ y} Φ\Big(\frac{m_y + \sqrt{v_y} z - m_c}{\sqrt{v_c}}\Big) dz,
        \quad E[p^α] = (1-ε)^α P + \Big(\frac{ε}{C-1}\Big)^α (1 - P),

    by nodes that are the denser the nearer to where the product begins, so that functions of very different certainty
    cost no accuracy.

    :param epsilon: in (0, 1), below (C − 1)/C for the largest to be the likeliest.
    :param num_nodes: 64 reach 10⁻⁷ where variances are within a factor of 10⁴ of each other, 10⁻⁵ of 10⁸.
    """

    num_classes: int = field(metadata=dict(static=True))
    epsilon: float | Array = field(default=1e-3, metadata=dict(constraint=constraints.unit_interval))
    num_nodes: int = field(default=64, metadata=dict(static=True))

    def _levels(self) -> tuple[Array, Array]:
        """log(1 − ε) and log(ε/(C − 1))."""
        epsilon = jnp.asarray(self.epsilon)
        return jnp.log1p(-epsilon), jnp.log(epsilon) - jnp.log(self.num_classes - 1.0)

    def class_log_probs(self, f: FunctionRows) -> FunctionRows:
        right, wrong = self._levels()
        return jnp.where(jnp.arange(f.shape[-1]) == jnp.argmax(f, -1, keepdims=True), right, wrong)

    def chance(self, y: Targets, mean: FunctionRows, variance: FunctionRows) -> Float[Array, "*#targets"]:
        """P(argmax f = y), of the shape of y."""
        label = y.astype(int)
        others = jnp.arange(self.num_classes) != label
        variance = jnp.broadcast_to(variance, jnp.broadcast_shapes(mean.shape, others.shape))
        mean = jnp.broadcast_to(mean, variance.shape)
        # a step of width 0 would have no slope; this one has the same value but within 10⁻⁶ of the scale of f
        floor = 1e-6 if variance.dtype == jnp.float64 else 1e-4
        s = jnp.sqrt(jnp.maximum(variance, floor**2))
        own = lambda a: jnp.take_along_axis(a, label, -1)
        m_y, s_y = own(mean), own(s)
        z, log_weights = graded_nodes(*self._begin((mean - m_y) / s_y, s / s_y, others), self.num_nodes)
        standard = (m_y + s_y * z - mean) / s
        # an underflow to 0 has no gradient and weighs nothing: epsilon stands beside it
        below = jnp.maximum(0.5 * erfc(-sqrt(0.5) * standard), jnp.finfo(standard.dtype).tiny)
        log_below = jnp.where(others, jnp.log(below), 0.0).sum(-1, keepdims=True)
        return jnp.exp(log_below + log_weights).sum(0)

    def _begin(self, step: FunctionRows, width: FunctionRows, others: Array) -> tuple[Array, Array]:
        """Where the last of the steps begins, and the narrowest width of those not yet over there; (…, 1) each."""
        step, width = stop_gradient(step), stop_gradient(width)
        begin = jnp.where(others, step - STEP * width, -REACH).max(-1, keepdims=True)
        active = others & (step + STEP * width > begin)
        return begin, jnp.where(active, width, 1.0).min(-1, keepdims=True)

    def tempered(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """t_α from the two levels of p; t_0 = P log(1−ε) + (1−P) log(ε/(C−1))."""
        return self._tempered_chance(self.chance(y, mean, variance), alpha)

    def _added(
        self, y: Targets, mean: FunctionRows, variance: FunctionRows, alpha: Alpha
    ) -> Float[Array, "*#targets"]:
        """Of one P, so that its gradient is taken once."""
        chance = self._coarser().chance(y, mean, variance)
        return self._tempered_chance(chance, alpha) - self._tempered_chance(chance, 0.0)

    def _coarser(self) -> RobustMax:
        return replace(self, num_nodes=(self.num_nodes + 1) // 2)

    def _tempered_chance(self, chance: Float[Array, "*#targets"], alpha: Alpha) -> Float[Array, "*#targets"]:
        info = jnp.finfo(chance.dtype)
        chance = jnp.clip(chance, info.tiny, 1.0 - info.eps)
        right, wrong = (jnp.broadcast_to(level, chance.shape) for level in self._levels())
        return log_power_mean(
            jnp.stack([right, wrong]), alpha, jnp.stack([jnp.log(chance), jnp.log1p(-chance)])
        )

    def probabilities(self, mean: FunctionRows, variance: FunctionRows) -> FunctionRows:
        labels = jnp.arange(self.num_classes).reshape((-1,) + (1,) * mean.ndim)
        labels = jnp.broadcast_to(labels, (self.num_classes, *mean.shape[:-1], 1))
        chances = jnp.moveaxis(self.chance(labels, mean, variance)[..., 0], 0, -1)
        chances = chances / chances.sum(-1, keepdims=True)
        right, wrong = (jnp.exp(level) for level in self._levels())
        return right * chances + wrong * (1.0 - chances)
