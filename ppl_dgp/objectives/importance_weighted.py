r"""Importance-weighted bounds over the local latents, θ and the functions outside the logarithm.

.. math::
    -KL[q(\theta) \| p(\theta)] + \sum_n E_{q(f)} E_{h_{n1} \dots h_{nK}}\Bigl[\frac1\alpha
    \log \frac1K \sum_k \Bigl(\frac{p(y_n | f, h_{nk})\, p(h_{nk} | f)}{q(h_{nk} | f)}\Bigr)^\alpha\Bigr]

α = 1 is the bound of Burda, Grosse & Salakhutdinov (2016), for deep GPs Salimbeni et al. (2019); 0 < α < 1 the
variational Rényi bound of Li & Turner (2016) of order 1 − α. The K samples of a datum share one draw of each function,
drawn jointly at their inputs (K × K), so that this bounds the evidence of the exact model, not of FITC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.primitives import Messenger

from ppl_dgp.gp.contract import Trace
from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.separate import check_shared
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, first_jitter, precise_matmul
from ppl_dgp.numerics.power_mean import Alpha
from ppl_dgp.objectives.alpha import AlphaSchedule
from ppl_dgp.objectives.divergence import PARTICLES, AlphaDivergence, stop_gradient
from ppl_dgp.objectives.enumeration import VALUES, power_mean_over_draws
from ppl_dgp.objectives.loss_steps import Particle, Weighed
from ppl_dgp.objectives.representation import Logarithm
from ppl_dgp.objectives.site_roles import SiteRoles
from ppl_dgp.objectives.weights import log_weights


class ImportanceWeighted(AlphaDivergence):
    """The bound with K samples of the local latents; it rises with K, and with α (in expectation).

    Its gradient with respect to q(h) loses its signal as K grows: ``doubly_reparameterised`` takes the estimator of
    Tucker et al. (2019), the same in expectation and often of lower variance (it costs five further runs of the model).
    """

    globals_outside_log = True
    draws_functions = True

    def __init__(
        self,
        num_particles: int = 8,
        alpha: float | AlphaSchedule = 1.0,
        *,
        doubly_reparameterised: bool = False,
    ) -> None:
        """
        :param num_particles: K, the samples of a datum's local latents.
        :param alpha: in [0, 1], or a schedule; 0 is the ELBO.
        :param doubly_reparameterised: whether q(h) is trained by that estimator; h must be reparameterised.
        """
        super().__init__(alpha, num_particles)
        self.doubly_reparameterised = doubly_reparameterised

    @property
    def _power_of_memory(self) -> Alpha:
        # f is outside the logarithm
        return 0.0

    def _functions(self, key: Array, alone: bool = False, beside: bool = False) -> Messenger:
        return _SharedFunctions(key, alone, (PARTICLES, VALUES) if beside else (PARTICLES,))

    def _over_particles(self, particle: Callable[[Array], Any], keys: Array) -> Any:
        return jax.vmap(particle, axis_name=PARTICLES)(keys)

    @property
    def _logarithm(self) -> Logarithm:
        # what is inside it sees a draw of f
        return "none"

    def _weigh(self, roles: SiteRoles, probe: Trace, particle: Particle) -> Weighed:
        if not self.doubly_reparameterised:
            return super()._weigh(roles, probe, particle)
        if roles.summed or roles.guided_discrete:
            raise ValueError(
                "doubly_reparameterised: found discrete latents, expected reparameterised ones; leave it out"
            )
        model_trace, guide_trace = particle.traces({})
        draws = {name: guide_trace[name]["value"] for name in roles.local_sites}
        # through p at draws that are held
        _, fixed_guide = particle.traces(stop_gradient(draws), still=True)
        explicit = self._density(roles, particle.traces(stop_gradient(draws))[0], fixed_guide)
        # through the draws, all densities held: the score term, reparameterised, weighs a draw's reach by 1 + αw, and
        # takes α of what it does to its own density away
        if len(explicit) != 1:
            raise ValueError(
                f"doubly_reparameterised: found the plates {sorted(explicit)}, expected one; leave it out"
            )
        (group,) = explicit
        share = jax.lax.stop_gradient(self._share(explicit[group]))
        scaled = {name: _scaled(value, 1.0 + self.alpha * share) for name, value in draws.items()}
        reach = self._density(roles, *particle.traces(scaled, still=True))
        density = self._density(roles, *particle.traces(draws, still=True, alone=True))
        weights = {group: jnp.stack([explicit[group], reach[group], density[group]])}
        return weights, {}, (model_trace, guide_trace)

    def _share(self, log_w: Float[Array, "..."]) -> Float[Array, "..."]:
        """This particle's share of Σ w^α."""
        every = self.alpha * jax.lax.all_gather(log_w, PARTICLES)
        return jnp.exp(self.alpha * log_w - jax.nn.logsumexp(every, axis=0))

    def _density(self, roles: SiteRoles, model: Trace, guide: Trace) -> dict[str, Array]:
        # with f drawn, p(h | f) and q(h | f) are plain densities
        return log_weights(roles, model, guide, self.alpha, False, plain=True)

    def _power_mean(self, log_w: Float[Array, "S ..."], log_q: Array | None) -> Float[Array, "..."]:
        if not self.doubly_reparameterised:
            return super()._power_mean(log_w, log_q)
        explicit, reach, density = log_w[:, 0], log_w[:, 1], log_w[:, 2]
        value = power_mean_over_draws(jax.lax.stop_gradient(explicit), self.alpha, None)
        share = jax.lax.stop_gradient(jax.nn.softmax(self.alpha * explicit, axis=0))
        surrogate = (share * (explicit + reach - self.alpha * density)).sum(0)
        return value + surrogate - jax.lax.stop_gradient(surrogate)


class _SharedFunctions(Messenger):
    """Gives a function's marginals the values of one draw of it, shared by the particles of each datum."""

    def __init__(self, key: Array, alone: bool, axes: tuple[str, ...]) -> None:
        super().__init__()
        self.key, self.alone, self.axes = key, alone, axes
        self.evaluated: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "evaluate":
            return
        name = msg["marginal"].function.name
        if name in self.evaluated:
            raise ValueError(
                f"ImportanceWeighted: found the function {name!r} evaluated twice in one run, expected once per datum; "
                "evaluate it at all its inputs at once, or take PowerEP"
            )
        self.evaluated.add(name)
        msg["value"] = _drawn(self.key, msg["marginal"], self.alone, self.axes)


def _scaled(value: Array, factor: Float[Array, "B"]) -> Array:
    """The same value with its rows' gradients times a factor."""
    still = jax.lax.stop_gradient(value)
    return still + (value - still) * factor.reshape(-1, *(1,) * (value.ndim - 1))


def _drawn(key: Array, marginal: Marginal, alone: bool, axes: tuple[str, ...]) -> Marginal:
    """f at this particle's inputs, drawn jointly with f at those of the others, which ``alone`` takes as given.

    :param axes: of the particles, and of the values of discrete sites where these are summed out.
    """
    function = marginal.function
    check_shared(function, f"{function.name} under ImportanceWeighted")

    place: Any = 0
    for axis in reversed(axes):
        place = place * jax.lax.axis_size(axis) + jax.lax.axis_index(axis)

    def every(value: Array) -> Array:
        gathered = value[None]
        for axis in axes:
            gathered = jax.lax.all_gather(gathered, axis).reshape(-1, *value.shape)
        if not alone:
            return gathered
        one_open: Array = jax.lax.stop_gradient(gathered).at[place].set(value)
        return one_open

    inputs, weights, mean = every(marginal.rows), every(marginal.weights), every(marginal.mean)
    u = function.u
    rows_first = jnp.moveaxis(weights, 0, 1)  # (B, K, M)
    covariance = jax.vmap(lambda h: function.kernel(h, h))(jnp.moveaxis(inputs, 0, 1))
    # what is left of k where particles lie close is lost in products of fewer bits, which a GPU takes if not told
    covariance = (covariance - precise_matmul(rows_first, jnp.swapaxes(rows_first, 1, 2)))[:, None]
    if isinstance(u, Gaussian):
        covariance = covariance + jax.vmap(u.projected_covariance)(rows_first)  # (B, P, K, K)
    count, rows, outputs = mean.shape
    # samples at one place have one value, to rounding: the jitter is relative to k, not to what u leaves of it
    jitter = first_jitter(mean.dtype) * function.kernel.diag(inputs[0]).mean()
    lower, _ = cholesky(covariance + jitter * jnp.eye(count, dtype=mean.dtype), 0.0)
    # a function's own key: guide and model meet the same draw
    noise = jax.random.normal(
        jax.random.fold_in(key, crc32(function.name.encode())), (rows, outputs, count), mean.dtype
    )
    lower = jnp.broadcast_to(lower, (rows, outputs, count, count))
    drawn = mean + jnp.einsum("bpkj,bpj->kbp", lower, noise, precision="highest")
    nothing = jnp.zeros_like(marginal.mean)
    here = drawn[place]
    return replace(marginal, mean=here, residual=nothing[:, :1], from_u=nothing)
