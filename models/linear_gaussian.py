r"""The linear-Gaussian state space model, its states integrated out (Kalman 1960; Shumway & Stoffer 1982).

    x_0 ~ N(m_0, s_0² I)                                      of each sequence
    x_t = A x_{t−1} + B c_t + b + ε,   ε ~ N(0, diag(Q))      t = 1 … T
    y_t = C x_t + d + ε,   ε ~ N(0, diag(R))

Card. The oracle and the baseline of :mod:`ppl_dgp.models.gpssm`: its likelihood is exact, O(T), and there is nothing to
approximate, so no guide is needed (``fit_lbfgs(key, model, x, y)``). It begins at the optimum that EM finds, often all
that is wanted (``steps=1``). Sites: ``y`` (T, P), a :class:`ppl_dgp.state_space.linear_gaussian_em.LinearSeries`, whose
``states_given(y)`` smooths and forecasts; parameters, in the names of gpssm: ``transition/weights`` (A beside B,
transposed), ``transition/bias``, ``transition/noise``, ``emission/weights`` (Cᵀ), ``emission/bias``,
``likelihood/noise``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.models.parts import as_columns
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.states import checked_start, states_as_observed, states_by_subspace
from ppl_dgp.models.zoo_model import ZooModel
from ppl_dgp.state_space.linear_gaussian_em import LinearSeries, LinearSystem, linear_dynamics
from ppl_dgp.state_space.sequences import Layout, layout, sequence_numbers

LINEAR_EMISSIONS = ("linear", "identity")
LINEAR_STARTS = ("outputs", "subspace")
#: both noises where there is no y to begin at
NOISE = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class linear_gaussian_ssm(ZooModel):
    """A linear-Gaussian state space model as a NumPyro model ``model(x, y=None, index=None, size=None)``.

    Its x are the controls (T, C), C = 0 for none; of several sequences the last column is the number of each row's.

    :param num_outputs: P columns of y.
    :param latent: Q dimensions of the state, fewer or more than P; P if not given.
    :param emission: "linear" (learnt), or "identity": the first dimensions of the state are what is observed.
    :param initial: m_0 and s_0² of every dimension of x_0.
    :param start: the states that EM begins at: "outputs", as y and its earlier values, or "subspace", found by a
        subspace method (:mod:`ppl_dgp.state_space.subspace`), better where y hides them, of more than a few rows.
    :param num_sequences: S; their rows come one sequence after the other.
    :param missing: whether NaN in y stands for an entry that was not observed.
    :param iterations: of EM, where the parameters begin.
    :raises ValueError: for an unknown emission, fewer states than an identity emission needs, a variance that is not
        positive, where shapes do not fit, or for a minibatch, which would tear the steps apart.
    """

    num_outputs: int
    latent: int | None = None
    _: KW_ONLY
    emission: str = "linear"
    initial: tuple[float, float] = (0.0, 1.0)
    start: str = "outputs"
    num_sequences: int = 1
    missing: bool = False
    iterations: int = 50

    def __post_init__(self) -> None:
        checked_start(self.start, self.emission)
        self._settle(**checked_settings(self, emission=LINEAR_EMISSIONS, start=LINEAR_STARTS))
        if self.emission == "identity" and self.width < self.num_outputs:
            raise ValueError(
                f"latent: found {self.width}, expected at least {self.num_outputs}, the dimensions that an identity "
                "emission observes; take emission='linear'"
            )

    @property
    def width(self) -> int:
        """Q."""
        return self.num_outputs if self.latent is None else self.latent

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        if index is not None:
            raise ValueError(
                "index: found a minibatch, expected all rows in their order; leave batch_size out"
            )
        y = as_columns(x, y, self.num_outputs)
        controls, numbers = (x, None) if self.num_sequences == 1 else (x[:, :-1], sequence_numbers(x))
        width = self.width
        where = layout(x.shape[0], numbers, self.num_sequences)

        @cache
        def begin() -> LinearSystem:
            return _initial_dynamics(
                y,
                controls,
                where,
                width,
                self.num_outputs,
                self.emission == "identity",
                self.start,
                self.initial,
                self.iterations,
            )

        positive = constraints.positive
        transition = numpyro.param("transition/weights", lambda _: begin().transition.T)
        bias = numpyro.param("transition/bias", lambda _: begin().bias)
        noise = numpyro.param("transition/noise", lambda _: begin().noise, constraint=positive)
        weights, offset = jnp.eye(width, self.num_outputs), jnp.zeros(self.num_outputs)
        if self.emission == "linear":
            weights = numpyro.param("emission/weights", lambda _: begin().weights.T)
            offset = numpyro.param("emission/bias", lambda _: begin().offset)
        r = numpyro.param("likelihood/noise", lambda _: begin().observation_noise, constraint=positive)
        system = LinearSystem(transition.T, bias, noise, weights.T, offset, r)
        return numpyro.sample("y", LinearSeries(system, controls, where, self.initial, self.missing), obs=y)


def _initial_dynamics(
    y: Array | None,
    controls: Float[Array, "T C"],
    where: Layout,
    width: int,
    outputs: int,
    identity: bool,
    start: str,
    initial: tuple[float, float],
    iterations: int,
) -> LinearSystem:
    """What EM finds, or a random walk where there is no y."""
    if y is None:
        walk = jnp.eye(width, width + controls.shape[1]), jnp.zeros(width), jnp.full(width, NOISE)
        return LinearSystem(*walk, jnp.eye(outputs, width), jnp.zeros(outputs), jnp.full(outputs, NOISE))
    if start == "subspace":
        states = states_by_subspace(y, controls, where, width, True, initial)
    else:
        states = states_as_observed(y, where, (width, outputs), True)[0]
    settings: dict[str, Any] = {"iterations": iterations, "initial": initial, "fixed_emission": identity}
    return linear_dynamics(y.astype(float), controls, states, where, **settings).system
