r"""Natural gradients for q(u) and Adam for everything else, in one optimiser.

For a Gaussian q(u) = N(m, S) with natural parameters θ₁ = S⁻¹m, θ₂ = −½S⁻¹ and expectation parameters η₁ = m,
η₂ = S + m mᵀ, the natural gradient with respect to θ is the ordinary one with respect to η (Hensman, Fusi & Lawrence
2013; Salimbeni, Eleftheriadis & Hensman 2018):

.. math::
    \theta \leftarrow \theta - \rho\, \partial \mathcal{L} / \partial \eta
    \quad\Longleftrightarrow\quad S'^{-1} = S^{-1} + 2 \rho\, \partial \mathcal{L} / \partial S,
    \quad m' = m - \rho\, S'\, \partial \mathcal{L} / \partial m

The step is the same in every parametrisation of q(u), so it is taken in the whitened coordinates of the sites. With
S = L Lᵀ and H = tril(LᵀL̄) + its strict part transposed, L̄ the gradient in L, it needs no inverse of S:
S' = L (I + ρH)⁻¹ Lᵀ.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from numpyro.distributions import biject_to, constraints

from ppl_dgp.gp.contract import Parameters
from ppl_dgp.numerics.halving import halved_until_near
from ppl_dgp.numerics.linalg import lower_inverse_root

_bijection = biject_to(
    constraints.lower_cholesky
)  # strict lower triangle as it is, then the logarithm of the diagonal


class NaturalAdamState(NamedTuple):
    """Steps done, steps of a q(u_p) that had to be halved, and Adam's own state of the other parameters."""

    steps: Int[Array, ""]
    halved: Int[Array, ""]
    adam: Any


@lru_cache(maxsize=64)
def natural_adam(
    natural_rate: float | optax.Schedule = 0.1, learning_rate: float | optax.Schedule = 0.01
) -> optax.GradientTransformation:
    """An optimiser for ``fit_svi(optimizer=...)``: natural gradients for every full-rank q(u), Adam for the rest.

    It takes the parameters ``u_loc`` (P, M) and ``u_scale`` (P, M, M) of :class:`ppl_dgp.guides.FullRank`, whatever
    stands before ``u`` in the site's path, and sees them unconstrained, as NumPyro's SVI does; of a rule that
    conditions a layer's u on earlier ones, the offset and the covariance of that conditional. Under a Gaussian
    likelihood, with all the data, one step of rate 1 reaches the optimal q(u). Where a step would make S⁻¹ of an
    output indefinite (a likelihood that is not log-concave, a noisy gradient), that output's rate is halved until it
    does not, at most 30 times, and is 0 then; ``NaturalAdamState.halved`` counts such steps. The same arguments give
    the same object, so that compiled fits are found again.

    :param natural_rate: ρ, in (0, 1] as a rule, a number or an optax schedule of the step.
    :param learning_rate: of Adam, likewise; 0 holds the other parameters.
    :raises ValueError: for rates that are not finite or below 0, and at the start of a fit without a full-rank q(u).
    """
    for name, rate in {"natural_rate": natural_rate, "learning_rate": learning_rate}.items():
        if not callable(rate) and not (np.ndim(rate) == 0 and np.isfinite(rate) and rate >= 0):
            raise ValueError(f"{name}: found {rate!r}, expected a number of at least 0 or an optax schedule")
    adam = optax.adam(learning_rate)

    def init(params: Parameters) -> NaturalAdamState:
        natural = _full_rank(params)
        if not natural:
            raise ValueError(
                f"natural_adam: found the parameters {sorted(params)}, expected a full-rank q(u), u_loc (P, M) and "
                "u_scale (P, M, M); use Guide(model, inducing=FullRank()), or optax.adam"
            )
        zero = jnp.zeros((), jnp.int32)
        return NaturalAdamState(zero, zero, adam.init(_others(params, natural)))

    def update(
        gradients: Parameters, state: NaturalAdamState, params: Parameters | None = None
    ) -> tuple[dict[str, Array], NaturalAdamState]:
        if params is None:
            raise ValueError(
                "params: found None, expected the current parameters; call update(gradients, state, params)"
            )
        natural = _full_rank(params)
        rate = natural_rate(state.steps) if callable(natural_rate) else natural_rate
        others = _others(params, natural)
        updates, adam_state = adam.update(_others(gradients, natural), state.adam, others)
        halved = state.halved
        for loc, scale in natural.items():
            here = (params[loc], params[scale], gradients[loc], gradients[scale])
            dtype = params[loc].dtype
            found = jax.vmap(natural_step, in_axes=(0, 0, 0, 0, None))(*here, jnp.asarray(rate, dtype))
            updates |= {loc: found.loc - params[loc], scale: found.scale - params[scale]}
            halved += (found.halvings > 0).sum(dtype=jnp.int32)
        return updates, NaturalAdamState(optax.safe_increment(state.steps), halved, adam_state)

    return optax.GradientTransformation(init, update)


class NaturalStep(NamedTuple):
    """N(m', L' L'ᵀ) after a step, as ``loc`` and unconstrained ``scale``; KL[before ‖ after]; halvings of the rate."""

    loc: Float[Array, " M"]
    scale: Float[Array, " K"]
    divergence: Float[Array, ""]
    halvings: Int[Array, ""]


def natural_step(
    loc: Float[Array, " M"],
    scale: Float[Array, " K"],
    loc_gradient: Float[Array, " M"],
    scale_gradient: Float[Array, " K"],
    rate: Float[Array, ""],
    most: Float[Array, ""] | float = jnp.inf,
) -> NaturalStep:
    """One step of one N(m, L Lᵀ), its rate halved until S is positive definite and KL[before ‖ after] at most ``most``.

    ``scale`` is L, unconstrained, K = M (M + 1) / 2; the gradients are those of the loss, unconstrained too.
    """
    lower = _bijection(scale)
    (lower_gradient,) = jax.vjp(_bijection.inv, lower)[1](scale_gradient)
    # H = 2 Lᵀ (∂loss/∂S) L
    half = jnp.tril(jnp.matmul(lower.T, lower_gradient, precision="highest"))
    curvature = half + jnp.tril(half, -1).T

    def attempt(rate: Array) -> tuple[tuple[Array, Array], Array]:
        # U Uᵀ = (I + ρH)⁻¹, S' = L U Uᵀ Lᵀ
        root = lower_inverse_root(jnp.eye(loc.size, dtype=loc.dtype) + rate * curvature)
        after = jnp.matmul(lower, root, precision="highest")
        # m' − m = −ρ S' ∂loss/∂m
        pulled = rate * jnp.matmul(after.T, loc_gradient, precision="highest")
        move = -jnp.matmul(after, pulled, precision="highest")
        # KL[N(m, S) ‖ N(m', S')], S'⁻¹S = I + ρH up to similarity
        spread = 0.5 * rate * jnp.trace(curvature) + jnp.log(jnp.diagonal(root)).sum()
        return (move, after), spread + 0.5 * jnp.square(pulled).sum()

    (move, after), divergence, halvings = halved_until_near(attempt, rate, most)
    return NaturalStep(loc + move, _bijection.inv(after), divergence, halvings)


def _full_rank(params: Parameters) -> dict[str, str]:
    """Names of the means and of the factors of each q(u): ``…/u_loc`` (P, M), ``…/u_scale`` unconstrained."""
    found = {}
    for name, loc in params.items():
        scale = name.removesuffix("_loc") + "_scale"
        if name.split("/")[-1] == "u_loc" and scale in params and loc.ndim == 2:
            outputs, size = loc.shape
            if params[scale].shape == (outputs, size * (size + 1) // 2):
                found[name] = scale
    return found


def _others(tree: Parameters, natural: Mapping[str, str]) -> dict[str, Array]:
    taken = {*natural, *natural.values()}
    return {name: leaf for name, leaf in tree.items() if name not in taken}
