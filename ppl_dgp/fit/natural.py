r"""Natural gradients for the Gaussian factors of q and Adam for everything else, in one optimiser.

A factor's natural parameters take the step θ ← θ − ρ ∂loss/∂η, η its expectation parameters, which is the same in
every parametrisation, so that it is taken in the whitened coordinates of the sites (:mod:`ppl_dgp.numerics.
natural_gaussian`, :mod:`ppl_dgp.state_space.natural_chain`).

A rate that adapts goes by whether steps agree, as Kesten (1958) has it: with Δ the last step of a factor, ḡ its
gradient now and KL how far steps led,

.. math::
    c = -\frac{\langle \bar g, \Delta\rangle\, \rho}{2 \sqrt{KL_t\, KL_{t-1}}}, \qquad
    \log \rho \leftarrow \log \rho + \kappa (c - c_0)

c is the cosine, in the Fisher metric, between the last natural gradient and this one. Where there is way to go they
agree and ρ grows to 1, which is exact where the model is conjugate; where draws and minibatches are all that moves the
factor each step takes back some of the last, and ρ falls. Without c₀ > 0 it would be a random walk once it is small.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.factor_kinds import Factor, FactorStep, FullRankFactor
from ppl_dgp.fit.factors import GaussianFactors
from ppl_dgp.gp.contract import Parameters

FIRST_RATE, SMALLEST_RATE = 0.1, 1e-3  # of rates that adapt
AGREEMENT_GAIN, AGREEMENT_WANTED = 0.1, 0.03  # κ, and the cosine below which a rate falls


class NaturalAdamState(NamedTuple):
    """Steps done, steps of a factor's parts that had to be halved, and Adam's own state of the other parameters.

    Then, of each factor, ρ, the KL of the last step, and that step.
    """

    steps: Int[Array, ""]
    halved: Int[Array, ""]
    adam: Any
    rates: Float[Array, " F"]
    divergences: Float[Array, " F"]
    moves: Any

    @property
    def needs_all_rows(self) -> bool:
        """Whether factors of rows are among them, which know how many there are: other rows' share of a step is 0."""
        names = (name for move in self.moves for name in move)
        return any(not name.rpartition("/")[2].startswith("u_") for name in names)


@lru_cache(maxsize=64)
def natural_adam(
    natural_rate: float | optax.Schedule | str = "auto",
    learning_rate: float | optax.Schedule = 0.01,
    factors: GaussianFactors | None = None,
    reach: float = math.inf,
) -> optax.GradientTransformation:
    """An optimiser for ``fit_svi(optimizer=...)``: natural gradients for the Gaussian factors of q, Adam for the rest.

    Without ``factors`` these are every full-rank q(u), the parameters ``u_loc`` (P, M) and ``u_scale`` (P, M, M) of
    :class:`ppl_dgp.guides.FullRank`, whatever stands before ``u`` in the site's path; of a rule that conditions a
    layer's u on earlier ones, the offset and the covariance of that conditional. With
    ``factors=gaussian_factors(guide, x, y)`` they are all that the guide has, chains of a trajectory too. Under a
    Gaussian likelihood, with all the data, one step of rate 1 reaches the optimal q(u), and where the model is
    linear-Gaussian the smoother's q(x). Where a step would make a precision indefinite (a likelihood that is not
    log-concave, a noisy gradient), or lead further than ``reach``, that part's rate is halved until it does not, at
    most 30 times, and is 0 then; ``NaturalAdamState.halved`` counts such steps. The same arguments give the same
    object, so that compiled fits are found again.

    :param natural_rate: ρ, in (0, 1] as a rule, a number or an optax schedule of the step; or "auto": each factor's
        begins at 0.1 and goes by whether its steps agree, up to 1 where they do and down where they are noise.
    :param learning_rate: of Adam, a number or a schedule; 0 holds the other parameters.
    :param factors: of the guide that is trained.
    :param reach: KL[before ‖ after] of a step, in nats for each dimension of a factor's part, at most.
    :raises ValueError: for rates that are not finite or below 0, a reach that is not positive, and at the start of a
        fit without such factors.
    """
    for name, rate in {"natural_rate": natural_rate, "learning_rate": learning_rate}.items():
        if name == "natural_rate" and rate == "auto":
            continue
        if not callable(rate) and not (_is_number(rate) and float(rate) >= 0):
            also = ", 'auto'" if name == "natural_rate" else ""
            raise ValueError(
                f"{name}: found {rate!r}, expected a number of at least 0{also} or an optax schedule"
            )
    if not (_is_number(reach, finite=False) and reach > 0):
        raise ValueError(f"reach: found {reach!r}, expected a positive number of nats; leave it out")
    others = adam(learning_rate)

    def of(params: Parameters) -> tuple[Factor, ...]:
        return _full_rank(params) if factors is None else factors.factors

    def init(params: Parameters) -> NaturalAdamState:
        natural = of(params)
        missing = sorted({name for factor in natural for name in factor.names} - params.keys())
        if missing:
            raise ValueError(
                f"factors: found those of another guide, with {', '.join(missing)}; take gaussian_factors(guide, x, y) "
                "of the guide that is trained"
            )
        if not natural:
            raise ValueError(
                f"natural_adam: found the parameters {sorted(params)}, expected a full-rank q(u), u_loc (P, M) and "
                "u_scale (P, M, M); use Guide(model, inducing=FullRank()), factors=gaussian_factors(guide, x, y), or "
                "optax.adam"
            )
        zero, dtype = jnp.zeros((), jnp.int32), params[natural[0].names[0]].dtype
        moves = [{name: jnp.zeros_like(params[name]) for name in factor.names} for factor in natural]
        rates = jnp.full(len(natural), FIRST_RATE, dtype)
        return NaturalAdamState(
            zero, zero, others.init(_others(params, natural)), rates, jnp.zeros_like(rates), moves
        )

    def update(
        gradients: Parameters, state: NaturalAdamState, params: Parameters | None = None
    ) -> tuple[dict[str, Array], NaturalAdamState]:
        if params is None:
            raise ValueError(
                "params: found None, expected the current parameters; call update(gradients, state, params)"
            )
        natural = of(params)
        units = [jnp.ones(())] * len(natural) if factors is None else factors.units(params)
        rates = state.rates
        if not isinstance(natural_rate, str):
            rate = natural_rate(state.steps) if callable(natural_rate) else natural_rate
            rates = jnp.full_like(rates, rate)
        updates, adam_state = others.update(_others(gradients, natural), state.adam, _others(params, natural))
        halved, found = state.halved, []
        for factor, unit, rate in zip(natural, units, rates, strict=True):
            here = {name: params[name] for name in factor.names}
            dtype = here[factor.names[0]].dtype
            step = factor.step(here, gradients, rate.astype(dtype), reach, unit.astype(dtype))
            found.append(step._replace(params={name: step.params[name] - here[name] for name in here}))
            updates |= found[-1].params
            halved += step.halved
        new = state._replace(steps=optax.safe_increment(state.steps), halved=halved, adam=adam_state)
        return updates, new if natural_rate != "auto" else _adapted(new, gradients, found)

    return optax.GradientTransformation(init, update)


def _adapted(state: NaturalAdamState, gradients: Parameters, steps: list[FactorStep]) -> NaturalAdamState:
    """The rates of the next step, by whether this one agrees with the last."""
    divergences = jnp.stack([step.divergence for step in steps]).astype(state.rates.dtype)
    divergences = jnp.maximum(divergences, 0.0)
    along = jnp.stack(
        [sum(jnp.vdot(gradients[name], move[name]) for name in move) for move in state.moves]
    ).astype(state.rates.dtype)
    size = 2.0 * jnp.sqrt(divergences * state.divergences)
    # nothing to go by where a factor did not move
    cosine = jnp.where(size > 0.0, -along * state.rates / jnp.where(size > 0.0, size, 1.0), 0.0)
    growth = AGREEMENT_GAIN * (jnp.clip(cosine, -1.0, 1.0) - AGREEMENT_WANTED)
    rates = jnp.clip(state.rates * jnp.exp(jnp.where(size > 0.0, growth, 0.0)), SMALLEST_RATE, 1.0)
    return state._replace(rates=rates, divergences=divergences, moves=[step.params for step in steps])


def _full_rank(params: Parameters) -> tuple[Factor, ...]:
    """Each full-rank q(u): ``…/u_loc`` (P, M), ``…/u_scale`` unconstrained."""
    found: list[Factor] = []
    for name, loc in params.items():
        site = name.removesuffix("_loc")
        if name.split("/")[-1] == "u_loc" and f"{site}_scale" in params and loc.ndim == 2:
            outputs, size = loc.shape
            if params[f"{site}_scale"].shape == (outputs, size * (size + 1) // 2):
                found.append(FullRankFactor(site))
    return tuple(found)


def _others(tree: Mapping[str, Array], natural: tuple[Factor, ...]) -> dict[str, Array]:
    taken = {name for factor in natural for name in factor.names}
    return {name: leaf for name, leaf in tree.items() if name not in taken}


def _is_number(value: Any, finite: bool = True) -> bool:
    number = not isinstance(value, str) and np.ndim(value) == 0 and not np.isnan(value)
    return number and bool(np.isfinite(value) or not finite)
