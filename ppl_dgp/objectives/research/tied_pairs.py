r"""Tied factors of a q(x) that is a Markov chain: neighbours as pairs, the states between them as separators.

In its junction tree form :math:`q(x) = \prod_t q(x_t) \prod_t r_t`, with the dependence
:math:`r_t = q(x_{t-1}, x_t) / q(x_{t-1}) q(x_t)`. The n_t factors that touch x_t share q(x_t), as they do of a
factorised q; r_t can belong to nothing but the step. Less α of that step,

.. math::
    q^{\backslash t}(x_{t-1}, x_t) \propto r_t^{1-α}\, q(x_{t-1})^{1-α/n_{t-1}}\, q(x_t)^{1-α/n_t},

a product of q(x_{t−1}, x_t)^{1−α} and positive powers of its marginals, so proper (of x_0: q(x_0)^{1−α} p(x_0)^α). The
energy is that of the marginals (:mod:`ppl_dgp.objectives.research.tied_chain`), its steps tilted under these cavities,
and for each step

.. math::
    κ_t = \tfrac1α \log E_{\mathrm{cav}(x_{t-1})\,\mathrm{cav}(x_t)}\, r_t^{1-α},

0 without dependence, at α = 0 what it takes from the entropy. Source: Bui 2017, 3.4 (3.46, 3.58–3.73 with the corrected
signs of W) for the pairs; that the marginals and no more are tied is ours. Shapes: T steps, Q state dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.contract import Propagation
from ppl_dgp.gp.moment_matching import linearised, matched, matched_covariance
from ppl_dgp.likelihoods.gaussian import tempered_jointly
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.numerics.power_mean import Alpha, log1p_ratio, log_det_ratio
from ppl_dgp.state_space.linear_gaussian_chain import LinearGaussianChain, apply, log_det, times, transposed
from ppl_dgp.state_space.sequences import Layout
from ppl_dgp.state_space.trajectory import Trajectory


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """The cavities of the steps: x_{t−1} as ``before`` has it, x_t = W x_{t−1} + c + N(0, H).

    :param before: means (T, Q), lower Cholesky factors (T, Q, Q).
    :param slopes: W.
    :param offsets: c.
    :param residual: H.
    """

    before: Gaussian
    slopes: Float[Array, "T Q Q"]
    offsets: Float[Array, "T Q"]
    residual: Float[Array, "T Q Q"]

    def tilted(
        self, trajectory: Trajectory, alpha: Alpha, propagation: Propagation, key: Array
    ) -> Float[Array, " T"]:
        """(1/α) log Z of each step: f and x_t integrated exactly, x_{t−1} drawn, or carried as moments.

        With "moments" and "linearised" each output of f(x_{t−1}) − W x_{t−1} is on its own.
        """
        if propagation == "draws":
            states = self.before.draw(key)
            marginal = trajectory.at(states).marginal
            mean = marginal.mean - apply(self.slopes, states)
            covariance = jax.vmap(jnp.diag)(marginal.variance)
        else:
            step = trajectory.at(replace(self.before, linearise=propagation == "linearised"))
            f, inputs = step.marginal.function, step.marginal.inputs
            assert isinstance(inputs, Gaussian)
            # nothing of the controls is taken away
            slope = jnp.pad(self.slopes, ((0, 0), (0, 0), (0, trajectory.controls.shape[1])))
            moments = linearised(f, inputs, slope)[0] if inputs.linearise else matched(f, inputs, slope)
            mean, covariance = moments.mean, jax.vmap(jnp.diag)(moments.residual + moments.beyond)
            if propagation == "full-moments":
                covariance = matched_covariance(f, inputs, slope)
        noise = jnp.broadcast_to(trajectory.noise_at(trajectory.controls), mean.shape)
        return tempered_jointly(self.offsets - mean, covariance + self.residual, noise, alpha)


def pair_cavities(
    layout: Layout,
    initial: Gaussian,
    chain: LinearGaussianChain,
    states: Gaussian,
    copies: Float[Array, " slots"],
    alpha: Alpha,
) -> tuple[Float[Array, " T"], Pairs]:
    """κ_t, and the cavities of the steps.

    :param initial: p(x_0) of each sequence, independent dimensions.
    :param chain: q(x) over all slots, and ``states`` its marginals, with lower Cholesky factors.
    :param copies: n_t, the factors that touch each state: above alpha.
    """
    first, after = layout.first, layout.after
    before, width = after - 1, states.mean.shape[1]
    origin, root, lower = states.mean[before], states.scale[before], states.scale[after]
    slope, scale = chain.slopes[before], chain.scale_trils[before]
    identity = jnp.eye(width, dtype=root.dtype)
    # w = (z, e) ~ N(0, I): x_{t−1} = m + L z, x_t − E x_t = A L z + R e
    gain = jnp.concatenate([times(slope, root), scale], -1)
    # precisions of w: of x_t's marginal, and of what x_{t−1} keeps, its prior if that is x_0
    seen = times(inverse_lower(lower), gain)
    prior = jax.tree.map(lambda leaf: leaf[layout.sequence], initial)
    known = root / prior.scale[:, :, None]
    begins = first[:, None, None]
    kept = jnp.where(
        begins, times(transposed(known), known), (1.0 - 1.0 / copies[before])[:, None, None] * identity
    )
    pull = jnp.where(first[:, None], apply(transposed(known), (prior.mean - origin) / prior.scale), 0.0)
    both = (1.0 - 1.0 / copies[after])[:, None, None] * times(transposed(seen), seen)
    volume, pair = _tempered(both.at[:, :width, :width].add(kept), alpha)
    # beside it without the dependence
    volume_alone, alone = _tempered(kept, alpha)
    volume_alone = volume_alone - width / copies[after] * log1p_ratio(
        -alpha / copies[after], jnp.ones_like(volume)
    )
    shift = alpha * times(pair, transposed(pair[:, :width])) @ pull[..., None]
    shift_alone = alpha * times(alone, transposed(alone)) @ pull[..., None]
    closer = (pull[..., None] * (shift[:, :width] - shift_alone)).sum((1, 2))
    # log |R| − log |L_t|, half the log determinant of the correlations
    dependence = log_det(scale) - log_det(lower) - 0.5 * (volume - volume_alone) + 0.5 * closer
    shift = shift[..., 0]
    cavity = Gaussian(origin + apply(root, shift[:, :width]), times(root, pair[:, :width, :width]))
    regression = times(scale, pair[:, width:, :width], inverse_lower(cavity.scale))
    slopes = slope + regression
    centre = states.mean[after] + apply(gain, shift)
    noise = times(scale, pair[:, width:, width:])
    return dependence, Pairs(
        cavity, slopes, centre - apply(slopes, cavity.mean), times(noise, transposed(noise))
    )


def _tempered(
    matrix: Float[Array, "T D D"], alpha: Alpha
) -> tuple[Float[Array, " T"], Float[Array, "T D D"]]:
    """(1/α) log |P| of P = (1−α) I + αM, and the lower triangular U with U Uᵀ = P⁻¹."""
    identity = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    beyond = matrix - identity
    # as lower_inverse_root, by the factorisation that is safe for many matrices within a compiled loop
    upper = cholesky((identity + alpha * beyond)[:, ::-1, ::-1], 0.0)[0][:, ::-1, ::-1]
    root = inverse_lower(transposed(upper))
    return log_det_ratio(alpha, beyond, -2.0 * log_det(root)), root
