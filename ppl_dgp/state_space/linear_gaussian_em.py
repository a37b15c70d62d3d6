r"""The linear-Gaussian state space model, fitted by EM in closed form (Shumway & Stoffer 1982).

.. math::
    x_0 \sim N(m_0, s_0^2 I), \quad x_t = A x_{t-1} + B c_t + b + N(0, Q), \quad y_t = C x_t + d + N(0, R)

Q and R are diagonal; x_0 is not observed, and its prior is held. Shapes: T steps of S sequences, laid out as in
:mod:`ppl_dgp.state_space.sequences`, T + S slots of states; P outputs, C controls, Q state dimensions. The E step is
Kalman's smoother, the M step two regressions on its moments.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Num
from numpyro.distributions import constraints

from ppl_dgp.numerics.host import on_host
from ppl_dgp.numerics.products import multiplying_in_full
from ppl_dgp.state_space.kalman import LinearEmission, filtered, smoothed_posterior
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain
from ppl_dgp.state_space.sequences import Layout

#: the states at the start are taken to be known up to this share of their variance
START_SHARE = 0.03
#: noise variances at least, relative to the variance of what they belong to
LINEAR_NOISE_FLOOR = 1e-6
#: the spectral radius of a transition that is to be stable, at most
RADIUS = 0.999


class LinearSystem(NamedTuple):
    """The values of the model: a pytree."""

    #: A beside B
    transition: Float[Array, "Q QC"]
    #: b
    bias: Float[Array, " Q"]
    #: the diagonal of Q
    noise: Float[Array, " Q"]
    #: C
    weights: Float[Array, "P Q"]
    #: d
    offset: Float[Array, " P"]
    #: the diagonal of R
    observation_noise: Float[Array, " P"]

    def chain(
        self, controls: Float[Array, "T C"], layout: Layout, initial: tuple[float, float] = (0.0, 1.0)
    ) -> LinearGaussianChain:
        """p(x), the states of all slots as one chain, each sequence starting from nothing.

        :param initial: m_0 and s_0² of every dimension.
        """
        width, steps = self.bias.shape[0], controls.shape[0]
        unit, shape = jnp.eye(width, dtype=self.bias.dtype), (layout.num_sequences, width)
        every = jnp.broadcast_to
        slopes = every(self.transition[:, :width], (steps, width, width))
        offsets = controls @ self.transition[:, width:].T + self.bias
        scales = every(jnp.diag(jnp.sqrt(self.noise)), slopes.shape)
        slopes = layout.path(jnp.zeros((*shape, width), slopes.dtype), slopes)
        offsets = layout.path(jnp.full(shape, initial[0], offsets.dtype), offsets)
        scales = layout.path(every(initial[1] ** 0.5 * unit, (*shape, width)), scales)
        return LinearGaussianChain(offsets[0], scales[0], slopes[1:], offsets[1:], scales[1:])

    @property
    def emission(self) -> LinearEmission:
        """p(y_t | x_t)."""
        return LinearEmission(self.weights, self.offset, jnp.diag(jnp.sqrt(self.observation_noise)))


class LinearSeries(dist.Distribution):
    """y of S sequences, the states integrated out by Kalman's filter: batch (), event (T, P). NaN is a missing entry.

    :param controls: (T, C).
    :param layout: which steps begin a sequence.
    :param initial: m_0 and s_0² of every dimension of x_0.
    :param partly: whether entries are expected to be missing.
    """

    def __init__(
        self,
        system: LinearSystem,
        controls: Float[Array, "T C"],
        layout: Layout,
        initial: tuple[float, float] = (0.0, 1.0),
        partly: bool = False,
    ) -> None:
        self.system, self.layout, self.partly = system, layout, partly
        self.chain = system.chain(controls, layout, initial)
        super().__init__((), (controls.shape[0], system.offset.shape[0]), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real_matrix

    def log_prob(self, value: Float[Array, "*S T P"]) -> Float[Array, "*S"]:
        """log p(y), of what is there."""

        def one(y: Float[Array, "T P"]) -> Float[Array, ""]:
            return filtered(self.chain, in_slots(y, self.layout), self.system.emission).log_predictive.sum()

        log_density: Array = jnp.vectorize(one, signature="(t,p)->()")(value)
        return log_density

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*S T P"]:
        """Series, states and noise drawn."""
        key_states, key_noise = jax.random.split(key)
        means = self._seen(self.chain.sample(key_states, sample_shape))
        return means + jnp.sqrt(self.system.observation_noise) * jax.random.normal(
            key_noise, means.shape, means.dtype
        )

    def states_given(self, value: Float[Array, "T P"]) -> LinearGaussianChain:
        """p(x | y), the states of all slots. Rows of NaN at the end of a sequence are steps to forecast."""
        return smoothed_posterior(self.chain, in_slots(value, self.layout), self.system.emission)[0]

    @property
    def mean(self) -> Float[Array, "T P"]:
        return self._seen(self.chain.marginals().means)

    @property
    def variance(self) -> Float[Array, "T P"]:
        weights = self.system.weights
        spread = jnp.einsum(
            "pi,tij,pj->tp", weights, self.chain.marginals().covariances[self.layout.after], weights
        )
        return spread + self.system.observation_noise

    def _seen(self, states: Float[Array, "*S slots Q"]) -> Float[Array, "*S T P"]:
        return states[..., self.layout.after, :] @ self.system.weights.T + self.system.offset


class LinearDynamics(NamedTuple):
    """A fitted system, the moments of its states given y, and log p(y) after each iteration: a pytree."""

    system: LinearSystem
    means: Float[Array, "slots Q"]
    variances: Float[Array, "slots Q"]
    log_likelihood: Float[Array, " iterations"]


class _StateMoments(NamedTuple):
    """Moments of the states in all slots: means, covariances, Cov(x_t, x_{t−1})."""

    means: Float[Array, "slots Q"]
    covariances: Float[Array, "slots Q Q"]
    cross: Float[Array, "T Q Q"]


class _Steps(NamedTuple):
    """Moments of the states of T steps, and of those before them."""

    means: Float[Array, "T Q"]
    covariances: Float[Array, "T Q Q"]
    before: Float[Array, "T Q"]
    covariances_before: Float[Array, "T Q Q"]
    cross: Float[Array, "T Q Q"]


def linear_dynamics(
    y: Num[Array, "T P"],
    controls: Float[Array, "_ C"],
    states: Float[Array, "_ Q"],
    layout: Layout,
    *,
    iterations: int = 50,
    initial: tuple[float, float] = (0.0, 1.0),
    fixed_emission: bool = False,
    stable: bool = False,
) -> LinearDynamics:
    """EM from given states; no iteration decreases log p(y). Works inside jit.

    :param y: NaN where an entry is missing.
    :param controls: C = 0 for none.
    :param states: guesses of x_1 … x_T, on which the regressions begin: principal components of y, or its lags.
    :param layout: which steps begin a sequence.
    :param iterations: how many.
    :param initial: m_0 and s_0² of every dimension of x_0, held.
    :param fixed_emission: whether C = [I 0] and d = 0 are held, the first P dimensions being what is observed.
    :param stable: whether a transition under which states would grow without end gives way to the nearest one in its
        own eigenvectors whose spectral radius is 0.999; the rest is fitted once more beside it, as often.
    :raises ValueError: if rows do not agree, for fewer states than a fixed emission needs, or without iterations.
    """
    for name, value in (("controls", controls), ("states", states)):
        if value.shape[0] != y.shape[0]:
            raise ValueError(
                f"{name}: found {value.shape[0]} rows, expected {y.shape[0]} as y has; give one per step"
            )
    if fixed_emission and states.shape[1] < y.shape[1]:
        raise ValueError(
            f"states: found {states.shape[1]} dimensions, expected at least {y.shape[1]}, which a fixed emission "
            "observes; take fixed_emission=False"
        )
    if iterations < 1:
        raise ValueError(f"iterations: found {iterations}, expected at least 1")
    settings = layout.num_sequences, iterations, initial, fixed_emission, stable
    dynamics: LinearDynamics = _em_fit(y, controls, states, layout.first, *settings)
    return dynamics


def in_slots(y: Float[Array, "T P"], layout: Layout) -> Float[Array, "slots P"]:
    """Observations as Kalman's filter has them: the slots of the initial states are missing."""
    return layout.path(jnp.full((layout.num_sequences, y.shape[1]), jnp.nan, y.dtype), y)


@partial(jax.jit, static_argnums=(4, 5, 6, 7, 8))
@multiplying_in_full
def _em_fit(
    y: Num[Array, "T P"],
    controls: Float[Array, "T C"],
    states: Float[Array, "T Q"],
    first: Bool[Array, " T"],
    sequences: int,
    iterations: int,
    initial: tuple[float, float],
    fixed_emission: bool,
    stable: bool,
) -> LinearDynamics:
    y, layout = y.astype(states.dtype), Layout(first, sequences)
    observations, before = in_slots(y, layout), layout.after - 1
    spread = states.var(0)
    least = _least(spread), _least(jnp.nanvar(y, 0))

    def iteration(
        moments: _StateMoments, _: None, slopes: Float[Array, "Q Q"] | None = None
    ) -> tuple[_StateMoments, tuple[LinearSystem, Array]]:
        means, covariances, cross = moments
        pairs = means[layout.after], covariances[layout.after], means[before], covariances[before]
        steps = _Steps(*pairs, cross[before])
        emission = _fixed(steps, y) if fixed_emission else _emission_regression(steps, y)
        system = LinearSystem(*_transition(steps, controls, slopes), *emission)
        floors = jnp.maximum(system.noise, least[0]), jnp.maximum(system.observation_noise, least[1])
        system = system._replace(noise=floors[0], observation_noise=floors[1])
        posterior, evidence = smoothed_posterior(
            system.chain(controls, layout, initial), observations, system.emission
        )
        return _StateMoments(*posterior.marginals()), (system, evidence)

    # noise of both kinds, and a ridge on the states, come of what is not known of these
    means = layout.path(states[layout.beginning], states)
    unknown = jnp.broadcast_to(START_SHARE * jnp.diag(spread), (*means.shape, means.shape[1]))
    start = _StateMoments(means, unknown, jnp.zeros_like(unknown[1:]))
    moments, (systems, evidences) = jax.lax.scan(iteration, start, None, iterations + 1)
    system = jax.tree.map(lambda leaf: leaf[-1], systems)
    if stable:
        slopes, grows = contracted(system.transition[:, : states.shape[1]])

        def again(_: None) -> tuple[_StateMoments, LinearSystem, Array]:
            held = partial(iteration, slopes=slopes)
            moved, (others, values) = jax.lax.scan(held, moments, None, iterations + 1)
            return moved, jax.tree.map(lambda leaf: leaf[-1], others), values

        as_they_are = lambda _: (moments, system, evidences)
        moments, system, evidences = jax.lax.cond(grows, again, as_they_are, None)
    variances = jnp.diagonal(moments.covariances, axis1=-2, axis2=-1)
    return LinearDynamics(system, moments.means, variances, evidences[1:])


def contracted(slopes: Float[Array, "Q Q"]) -> tuple[Float[Array, "Q Q"], Bool[Array, ""]]:
    """A with eigenvalues beyond ``RADIUS`` moved there, on its own eigenvectors; and whether there are any."""
    nearer, grows = on_host(_contracted, (slopes, jnp.zeros((), slopes.dtype)), slopes)
    return nearer, grows > 0.0


def _contracted(slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eig(slopes)
    size = np.abs(values)
    grows = np.asarray(size.max() > RADIUS, slopes.dtype)
    nearer = (vectors * (values * np.minimum(1.0, RADIUS / np.maximum(size, RADIUS)))) @ np.linalg.pinv(
        vectors
    )
    if not np.abs(np.linalg.eigvals(nearer.real)).max() <= 1.0:  # eigenvectors that are all but the same
        nearer = slopes * RADIUS / size.max()
    return np.ascontiguousarray(nearer.real, slopes.dtype), grows


def _transition(
    steps: _Steps, controls: Array, slopes: Float[Array, "Q Q"] | None = None
) -> tuple[Array, Array, Array]:
    """A beside B, b and Q: the regression of x_t on x_{t−1}, c_t and 1, or of x_t − A x_{t−1} on the latter."""
    width = steps.means.shape[1]
    inputs = jnp.concatenate([steps.before, controls, jnp.ones((controls.shape[0], 1), controls.dtype)], 1)
    before, across = steps.covariances_before.sum(0), steps.cross.sum(0)
    if slopes is None:
        gram = (inputs.T @ inputs).at[:width, :width].add(before)
        weights = (steps.means.T @ inputs).at[:, :width].add(across) @ jnp.linalg.pinv(gram, hermitian=True)
    else:
        others, left = inputs[:, width:], steps.means - steps.before @ slopes.T
        rest = (left.T @ others) @ jnp.linalg.pinv(others.T @ others, hermitian=True)
        weights = jnp.concatenate([slopes, rest], 1)
    residual = jnp.square(steps.means - inputs @ weights.T).sum(0)
    # Var(x_t − A x_{t−1} | y), its diagonal
    slope = weights[:, :width]
    before = jnp.einsum("ij,jk,ik->i", slope, before, slope)
    around = jnp.diagonal(steps.covariances.sum(0)) - 2.0 * jnp.einsum("ij,ij->i", slope, across) + before
    return weights[:, :-1], weights[:, -1], (residual + around) / inputs.shape[0]


def _emission_regression(steps: _Steps, y: Array) -> tuple[Array, Array, Array]:
    """C, d and R: the regression of each column on x_t and 1, at the steps where it was observed."""
    width = steps.means.shape[1]
    there = (~jnp.isnan(y)).astype(steps.means.dtype)
    inputs = jnp.concatenate([steps.means, jnp.ones((y.shape[0], 1), y.dtype)], 1)
    gram = jnp.einsum("tp,ti,tj->pij", there, inputs, inputs)
    gram = gram.at[:, :width, :width].add(jnp.einsum("tp,tij->pij", there, steps.covariances))
    across = jnp.where(there > 0.0, y, 0.0).T @ inputs
    weights = jnp.einsum("pij,pj->pi", jnp.linalg.pinv(gram, hermitian=True), across)
    c, d = weights[:, :-1], weights[:, -1]
    return c, d, _observation_noise(steps, y, c, d)


def _fixed(steps: _Steps, y: Array) -> tuple[Array, Array, Array]:
    """C = [I 0] and d = 0, and R."""
    c, d = jnp.eye(y.shape[1], steps.means.shape[1], dtype=y.dtype), jnp.zeros(y.shape[1], y.dtype)
    return c, d, _observation_noise(steps, y, c, d)


def _observation_noise(steps: _Steps, y: Array, c: Array, d: Array) -> Array:
    """R: the mean of E(y − C x − d)² over the steps where a column was observed."""
    there = ~jnp.isnan(y)
    error = jnp.where(there, y, 0.0) - steps.means @ c.T - d
    squared = jnp.square(error) + jnp.einsum("pi,tij,pj->tp", c, steps.covariances, c)
    return jnp.where(there, squared, 0.0).sum(0) / jnp.maximum(there.sum(0), 1)


def _least(variance: Array) -> Array:
    """The least noise variance of each dimension; what never varies has one as well."""
    variance = jnp.nan_to_num(variance)
    # what does not vary has no scale of its own
    return LINEAR_NOISE_FLOOR * jnp.where(variance > 0.0, jnp.maximum(variance, LINEAR_NOISE_FLOOR), 1.0)
