r"""Power EP of one sparse layer under Gaussian noise, q(u) in closed form: its energy and its posterior.

.. math::
    \log N\bigl(y;\ m,\ Q + \mathrm{blkdiag}(α_b D_b) + S\bigr)
    - \sum_b \frac{1 - α_b}{2α_b} \log\bigl|I + α_b S_b^{-1/2} D_b S_b^{-1/2}\bigr|,
    \qquad Q = K_{xz} K_{zz}^{-1} K_{zx}, \quad D = K - Q

α → 0 is Titsias' bound (2009) whatever the blocks, α = 1 FITC (Snelson & Ghahramani 2006), with blocks PITC
(Quiñonero-Candela & Rasmussen 2005), with one block of all rows the exact evidence for any Z; at Z = X it is the exact
evidence at every α, a block or not. Source: Bui, Yan & Turner 2017, "A unifying framework for Gaussian process
pseudo-point approximations"; Bui 2017, 2.3.7, whose printed sign of the second term is wrong.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ppl_dgp.gp.means import Mean
from ppl_dgp.kernels import Kernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives.deterministic_inputs import DeterministicInputs
from ppl_dgp.objectives.factors import Blocks, Factors
from ppl_dgp.objectives.regression import Statistics

Noise = Float[Array, ""] | Float[Array, "#N 1"] | Float[Array, "#N P"] | Float[Array, " P"] | float
Powers = float | Float[Array, ""] | Float[Array, " F"] | Float[np.ndarray, " F"]


def collapsed_energy(
    kernel: Kernel,
    inducing: Float[Array, "M D"],
    noise: Noise,
    x: Float[Array, "N D"],
    y: Float[Array, "N P"],
    alpha: Powers,
    mean: Mean | None = None,
    jitter: float | None = None,
    blocks: Blocks | None = None,
    correction: bool = True,
) -> Float[Array, ""]:
    """The energy in total nats, summed over the P independent columns of y; O(N M² P), never N × N.

    Rows are summed in pieces, so that memory is O(M² + N D) whatever N, in the gradient too; blocks of S rows cost
    O(N S²) time and O(S²) memory beyond that.

    :param noise: variance s²: scalar, per column (P,), or per row (N, 1) or (N, P).
    :param alpha: in [0, 1]; 0 is Titsias' bound. One for all (traced, if you like), or an array of one per row (N,), or
        with blocks of one per block, in the order of the rows or of the sorted labels.
    :param mean: mean function (N, D) → (N, P); zero if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :param blocks: rows whose covariance given u is kept within a factor: so many consecutive rows each, "all" for one
        block, or whole numbers (N,), equal ones a block; none if not given.
    :param correction: False leaves out the second term: the evidence of the model whose f given u has covariance αD,
        which at α = 0 is DTC and no bound.
    :raises ValueError: if an alpha is outside [0, 1], there are not as many as rows or blocks, labels are not one per
        row, or a block has more than 5000 rows.
    :raises TypeError: if alpha or blocks are none of these.
    """
    factors = Factors.checked("collapsed_energy", alpha, blocks, correction)
    return _statistics(kernel, inducing, noise, x, y, factors, mean, jitter).energy()


def collapsed_posterior(
    kernel: Kernel,
    inducing: Float[Array, "M D"],
    noise: Noise,
    x: Float[Array, "N D"],
    y: Float[Array, "N P"],
    alpha: Powers,
    mean: Mean | None = None,
    jitter: float | None = None,
    blocks: Blocks | None = None,
) -> Gaussian:
    """Power EP's posterior of the whitened inducing outputs v, u = m(Z) + L v: means (P, M), factors (P, M, M).

    They are what the sites ``…/u_loc`` and ``…/u_scale`` of a full-rank guide hold. At new rows f is then the ordinary
    sparse GP's, mean m(x) + φᵀµ and variance k(x, x) − φᵀ(I − S)φ. Parameters and errors as for
    :func:`collapsed_energy`.
    """
    factors = Factors.checked("collapsed_posterior", alpha, blocks)
    return _statistics(kernel, inducing, noise, x, y, factors, mean, jitter).optimum()


def _statistics(
    kernel: Kernel,
    inducing: Array,
    noise: Noise,
    x: Array,
    y: Array,
    factors: Factors,
    mean: Mean | None,
    jitter: float | None,
) -> Statistics:
    lower, _ = cholesky(kernel(inducing, inducing), jitter)
    difference = y if mean is None else y - mean(x)
    features = DeterministicInputs(kernel, inducing, inverse_lower(lower), x, difference)
    return features.statistics(columns_of_noise(noise, x.shape[0]), factors)


def columns_of_noise(noise: Noise, rows: int) -> Float[Array, "#N C"]:
    """The noise per row where rows differ, and per column where columns do: those with the same share their sums."""
    noise = jnp.asarray(noise)
    return jnp.broadcast_to(noise, (rows if noise.ndim == 2 else 1, noise.shape[-1] if noise.ndim else 1))
