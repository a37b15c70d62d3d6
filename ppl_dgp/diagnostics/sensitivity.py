r"""How f depends on single inputs: partial dependence with its uncertainty, and what it says of each input's weight.

.. math::
    g_d(v) = \frac{1}{R} \sum_r f(x_{r1}, \dots, v, \dots, x_{rD})

(Friedman 2001, eq. 53), the average over rows of f with the d-th input held at v. f is uncertain, and so is its
average, whose covariance over v is that of f averaged over pairs of rows: exact within each layer, no draws of f.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ppl_dgp.fit import Posterior
from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.prediction.joint import joint_prediction


@dataclass(frozen=True, eq=False)
class Dependence:
    """The partial dependence of P outputs on one input at G ``values`` of it, NumPy arrays.

    ``mean`` and ``deviation`` (G, P) are of g under the posterior of f; ``rows`` (R, G, P) the means of f of single
    rows, whose differences are interactions. ``column`` counts from 0.
    """

    column: int
    values: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    rows: np.ndarray

    @property
    def importance(self) -> Float[np.ndarray, " P"]:
        """How much g varies over the values: the standard deviation of its mean (Greenwell et al. 2018)."""
        result: np.ndarray = self.mean.std(0)
        return result


@takes_fit
def partial_dependence(
    key: Array,
    fit: Posterior,
    x: ArrayLike,
    column: int,
    *,
    values: ArrayLike | None = None,
    num_rows: int = 40,
    num_samples: int = 20,
) -> Dependence:
    """The average of f over rows, with one input held at each of some values in turn.

    O((R G)²) per draw of the hidden layers. Values that no row comes near to are of little meaning, and so are those of
    one of two inputs that go together.

    :param key: of the draws of hidden layers.
    :param fit: as in :func:`ppl_dgp.predict`, of one function at y.
    :param x: inputs (N, D), in the units of training.
    :param column: which input.
    :param values: G of them; by default 25 from its 2nd to its 98th percentile.
    :param num_rows: R, evenly spaced among those of x.
    :param num_samples: of the hidden layers.
    :raises ValueError: for a column that x does not have.
    """
    inputs = np.asarray(x, float)
    if inputs.ndim != 2 or not 0 <= column < inputs.shape[1]:
        raise ValueError(
            f"column: found {column}, expected 0 to {inputs.shape[-1] - 1}, one of the columns of x (N, D)"
        )
    if values is None:
        low, high = np.quantile(inputs[:, column], (0.02, 0.98))
        values = np.linspace(low, high, 25)
    grid = np.unique(np.asarray(values, float).reshape(-1))
    chosen = np.unique(np.linspace(0, len(inputs) - 1, min(num_rows, len(inputs))).round().astype(int))
    places = np.repeat(inputs[chosen][None], len(grid), axis=0)
    places[:, :, column] = grid[:, None]
    mean, covariance = joint_prediction(
        key, fit, jnp.asarray(places.reshape(-1, inputs.shape[1])), num_samples
    )
    shape = len(grid), len(chosen)
    each = np.asarray(mean).reshape(*shape, -1)
    # the variance of an average is the average of the covariances
    blocks = np.asarray(covariance).reshape(-1, *shape, *shape)
    variance = np.einsum("pgrgs->gp", blocks) / len(chosen) ** 2
    return Dependence(column, grid, each.mean(1), np.sqrt(np.maximum(variance, 0.0)), each.transpose(1, 0, 2))
