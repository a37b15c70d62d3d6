r"""All outputs of a row together, of functions that they smooth (tutorial, eq. (26); :mod:`ppl_dgp.gp.smoothing`).

.. math::
    \operatorname{cov}(f_p(x), f_{p'}(x) \mid u) = k((x, p), (x, p')) - \phi_p^\top \phi_{p'}, \quad
    \phi_p = L^{-1} k_u((x, p))

of the rows (x, p) of one function, whose inducing outputs are all that the outputs have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ppl_dgp.gp.correlated import CorrelatedMarginal
from ppl_dgp.gp.features import Functionals
from ppl_dgp.gp.smoothing import Convolved, rows_of_outputs
from ppl_dgp.gp.sparse_gp import offered_marginal
from ppl_dgp.gp.sums import FunctionSum, ScaledMarginal
from ppl_dgp.numerics.gaussian import Gaussian

if TYPE_CHECKING:
    from ppl_dgp.gp.sparse_gp import SparseGP
else:  # of a marginal of several outputs it is a stand-in
    SparseGP = Any


def convolved(f: SparseGP, x: Float[Array, "B D"] | Gaussian | Functionals) -> ConvolvedMarginal:
    """All P outputs of each row of x, jointly given u, of a function f of rows (x, p) with a ``Convolved`` kernel.

    >>> from numpyro.handlers import seed
    >>> from ppl_dgp.gp.smoothing import InducingLatents
    >>> from ppl_dgp.gp.sparse_gp import sparse_gp
    >>> kernel = Convolved(jnp.ones((3, 1)), 0.5, 1.0)
    >>> with seed(rng_seed=0):
    ...     f = sparse_gp("f", kernel, InducingLatents(jnp.linspace(0.0, 1.0, 4)[None, :, None]))
    >>> convolved(f, jnp.ones((5, 1))).mean.shape
    (5, 3)

    :raises TypeError: if f has another kernel.
    :raises ValueError: if f has several outputs of its own, or x is not (B, D), or moments or functionals.
    """
    if not isinstance(f.kernel, Convolved):
        raise TypeError(
            f"f: found the kernel {type(f.kernel).__name__}, expected Convolved, of several outputs"
        )
    if isinstance(x, Gaussian | Functionals):
        raise ValueError(
            f"x: found {type(x).__name__}, expected inputs (B, D); take draws of what is uncertain, propagation='draws'"
        )
    dims, outputs = f.num_inputs - 1, f.kernel.num_outputs
    if jnp.ndim(x) != 2 or jnp.shape(x)[1] != dims:
        raise ValueError(
            f"x: found shape {jnp.shape(x)}, expected (B, {dims}), inputs without the number of an output"
        )
    functions = (f.u.mean if isinstance(f.u, Gaussian) else f.u).shape[-2]
    if functions != 1:
        raise ValueError(
            f"f: found {functions} functions, expected one, sparse_gp(…, num_outputs=1): its inputs say which output"
        )
    flat = f.for_several(outputs).marginal(rows_of_outputs(x, outputs))
    mean, residual, from_u = (each.reshape(-1, outputs) for each in (flat.mean, flat.residual, flat.from_u))
    weights, function = flat.weights.reshape(*mean.shape, -1), FunctionSum([f.name])
    marginal: Any = offered_marginal(
        ConvolvedMarginal(function, x, weights, mean, residual, from_u, f)  # type: ignore[arg-type]
    )
    return marginal  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ConvolvedMarginal(CorrelatedMarginal):
    """Marginals of all outputs at the rows of x, ``weights`` (B, P, M); ``flat`` is the function of rows (x, p)."""

    made_by = "convolved"
    remedy = "let an offset be the mean of the function of rows (x, p)"

    flat: SparseGP

    @property
    def terms(self) -> tuple[ScaledMarginal, ...]:
        """The function of rows (x, p), at the rows of all outputs."""
        return self.flat.marginal(rows_of_outputs(self.rows, self.mean.shape[1])).terms

    @property
    def functions(self) -> dict[str, SparseGP]:
        return {self.flat.name: self.flat}

    def given_u(self) -> Float[Array, "B P P"]:
        # k is stationary: of the outputs at one place it is the same everywhere
        one = rows_of_outputs(jnp.zeros_like(self.rows[:1]), self.mean.shape[1])
        return self.flat.kernel(one, one) - self.weights @ jnp.swapaxes(self.weights, 1, 2)

    def through_u(self) -> Float[Array, "B P P"]:
        u = self.flat.u
        if not isinstance(u, Gaussian):
            return jnp.zeros((*self.mean.shape, self.mean.shape[1]), self.mean.dtype)
        # outputs in the place of rows, rows in that of outputs
        return u.projected_covariance(jnp.swapaxes(self.weights, 0, 1))

    def joint(self) -> tuple[Float[Array, "B P"], Float[Array, "P B B"]]:
        rows = rows_of_outputs(self.rows, self.mean.shape[1]).reshape(*self.mean.shape, -1)
        return self.mean, jax.vmap(lambda each: self.flat.joint(each)[1][0])(jnp.swapaxes(rows, 0, 1))

    def draw(self, key: Array) -> Float[Array, "B P"]:
        everything = self.flat.marginal(rows_of_outputs(self.rows, self.mean.shape[1]))
        return everything.draw(key).reshape(self.mean.shape)

    def slope(self, num_inputs: int) -> Float[Array, "B P D"]:
        of_flat = self.flat.marginal(rows_of_outputs(self.rows, self.mean.shape[1])).slope(num_inputs + 1)
        return of_flat.reshape(*self.mean.shape, -1)[:, :, :num_inputs]
