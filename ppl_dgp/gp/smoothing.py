r"""Convolved outputs: functions that outputs have in common, smoothed by Gaussians of each output's own (Boyle & Frean
2005; Álvarez & Lawrence 2011; tutorial, eq. (26)).

.. math::
    f_p(x) = \sum_q \int G_{pq}(x - z)\, g_q(z)\, dz, \quad G_{pq}(x) = S_{pq} N(x \mid \delta_{pq}, \operatorname{diag}
    c_{pq}^2), \quad g_q \sim GP(0, \exp(-\tfrac12 r^2))

so that with s² = ℓ_q² + c_pq² + c_p'q² for each input and x shifted by δ,

.. math::
    \operatorname{cov}(f_p(x), f_{p'}(x')) = \sum_q S_{pq} S_{p'q} \prod_d \frac{\ell_{qd}}{s_d}
    \exp\Bigl(-\frac{(x_d - x'_d)^2}{2 s_d^2}\Bigr)

and the same without p' for cov(f_p(x), g_q(z)). Output is input: rows are (x, p), inducing outputs values of g
(:class:`InducingLatents`) or of f at rows (z, p). All outputs of a row together: :mod:`ppl_dgp.gp.convolved`. At widths
of 0 it is the linear model of coregionalisation, f = S g.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.features import InducingFeatures
from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.windows import averaged_rbf
from ppl_dgp.kernels import Kernel
from ppl_dgp.kernels.kernel import pair
from ppl_dgp.numerics.compatibility import is_traced

if TYPE_CHECKING:
    Latents: TypeAlias = Float[Array, "Q M D"]
    Strengths: TypeAlias = Float[Array, "P Q"]
    Widths: TypeAlias = Float[Array, "P Q D"] | float
    Lengthscales: TypeAlias = Float[Array, "Q D"] | float
else:  # JAX rebuilds pytrees with batched leaves and placeholders: calls check the shapes
    Latents = Strengths = Widths = Lengthscales = Any


class _Smoothed(NamedTuple):
    """What rows are of each g: ``strengths`` (N, Q) times averages under Gaussians.

    Their ``centres`` are (N, Q, D), as are their variances, ``spreads``.
    """

    strengths: Array
    centres: Array
    spreads: Array


@register_dataclass
@dataclass(frozen=True, eq=False)
class Convolved(Kernel):
    """The covariance of convolved outputs, of rows (x, p): D inputs and behind them the number of an output, from 0.

    Of one g the data know ratios of S, differences of δ and of c² alone: a smoother g under narrower Gaussians is the
    same. Inducing inputs (z, p) have to be given, for centres of rows are of no output; learning moves z alone.

    strengths: S (P, Q). widths: c, deviations of at least 0, (P, Q, D) or a number. lengthscale: ℓ, (Q, D) or a number.
    delays: δ (P, Q, D), by which outputs come later; none if not given.
    """

    strengths: Strengths = field(metadata={"constraint": constraints.real})
    widths: Widths
    lengthscale: Lengthscales
    delays: Widths | None = field(default=None, metadata={"constraint": constraints.real})

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        """
        :raises ValueError: if values have other shapes than these, or, where it is known, the last column of rows is no
            number of an output.
        """
        pair(x, z)
        first, second, lengthscale2 = self._smoothed(x), self._smoothed(z), self._lengthscale2(x.shape[1] - 1)
        total: Any = 0.0
        for q in range(self.num_latents):
            both = first.strengths[:, q, None] * second.strengths[:, q]
            centres = first.centres[:, q], first.spreads[:, q], second.centres[:, q], second.spreads[:, q]
            total = total + both * averaged_rbf(lengthscale2[q], *centres)
        return total  # type: ignore[no-any-return]

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        rows, lengthscale2 = self._smoothed(x), self._lengthscale2(x.shape[1] - 1)
        averaged = jnp.exp(-0.5 * jnp.log1p(2.0 * rows.spreads / lengthscale2).sum(2))
        return (jnp.square(rows.strengths) * averaged).sum(1)

    @property
    def num_outputs(self) -> int:
        """P."""
        return jnp.shape(self.strengths)[0]

    @property
    def num_latents(self) -> int:
        """Q."""
        return jnp.shape(self.strengths)[1]

    def with_latents(self, x: Float[Array, "N D"], z: Float[Array, "Q M _"]) -> Float[Array, "N QM"]:
        """Covariance of f at rows with g_q at z_q, those of g_0 first."""
        rows, lengthscale2 = self._smoothed(x), self._lengthscale2(x.shape[1] - 1)
        each = [
            rows.strengths[:, q, None]
            * averaged_rbf(lengthscale2[q], rows.centres[:, q], rows.spreads[:, q], at, jnp.zeros_like(at))
            for q, at in enumerate(z)
        ]
        return jnp.concatenate(each, 1)

    def of_latents(self, z: Float[Array, "Q M _"]) -> Float[Array, "QM QM"]:
        """Covariance of the g_q at z_q, which are independent."""
        lengthscale2, nothing = self._lengthscale2(z.shape[2]), jnp.zeros_like(z[0])
        blocks = [averaged_rbf(lengthscale2[q], at, nothing, at, nothing) for q, at in enumerate(z)]
        together: Array = block_diag(*blocks)
        return together

    def _smoothed(self, rows: Float[Array, "N D"]) -> _Smoothed:
        dims = rows.shape[1] - 1
        if dims < 1:
            raise ValueError(
                f"x: found {rows.shape[1]} columns, expected inputs and behind them the number of an output"
            )
        if jnp.ndim(self.strengths) != 2:
            raise ValueError(
                f"strengths: found shape {jnp.shape(self.strengths)}, expected (P, Q), of each output and function"
            )
        shape = self.num_outputs, self.num_latents, dims
        which = _outputs(rows[:, dims], self.num_outputs)
        centres = jnp.broadcast_to(rows[:, None, :dims], (rows.shape[0], *shape[1:]))
        if self.delays is not None:
            centres = centres - _rows(_of_shape("delays", self.delays, shape), which)
        widths = _rows(_of_shape("widths", self.widths, shape), which)
        return _Smoothed(_rows(jnp.asarray(self.strengths), which), centres, jnp.square(widths))

    def _lengthscale2(self, dims: int) -> Float[Array, "Q D"]:
        return jnp.square(_of_shape("lengthscale", self.lengthscale, (self.num_latents, dims)))


def _of_shape(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    if jnp.shape(value) not in ((), shape):
        raise ValueError(f"{name}: found shape {jnp.shape(value)}, expected {shape}, or a number for all")
    return jnp.broadcast_to(jnp.asarray(value), shape)


def _rows(values: Array, which: Array) -> Array:
    """Those of outputs; NaN where there is no such output."""
    return jnp.take(values, which, axis=0, mode="fill", fill_value=jnp.nan)


def _outputs(column: Float[Array, " N"], count: int) -> Array:
    """The outputs that a column names."""
    if not is_traced(column):
        known = np.asarray(column)
        wrong = ~np.isin(known, np.arange(count))
        if wrong.any():
            raise ValueError(
                f"x: found {known[wrong][0]:g} in its last column, expected the number of an output, 0 to {count - 1}; "
                "do not standardise this column"
            )
    return jnp.round(column).astype(int)


@register_dataclass
@dataclass(frozen=True, eq=False)
class InducingLatents(InducingFeatures):
    """u = g_q(z_q) of a :class:`Convolved` kernel, z (Q, M, D), the QM of them one behind the other; z may be learnt.

    Given u outputs have in common what it leaves of g: fully correlated but sparse.
    """

    z: Latents

    @property
    def shape(self) -> tuple[int, int]:
        functions, size, dims = self.z.shape
        return functions * size, dims + 1

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self._of(kernel).with_latents(x, self.z)

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        return self._of(kernel).of_latents(self.z)

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """0: g has no mean, which is of outputs."""
        outputs = mean(jnp.zeros((1, self.shape[1]), self.z.dtype)).shape[1]
        return jnp.zeros((self.shape[0], outputs), self.z.dtype)

    def _of(self, kernel: Kernel) -> Convolved:
        if not isinstance(kernel, Convolved):
            raise TypeError(
                f"kernel: found {type(kernel).__name__}, expected Convolved, whose outputs are of latent functions; "
                "take inducing inputs"
            )
        if jnp.ndim(self.z) != 3 or self.z.shape[0] != kernel.num_latents:
            raise ValueError(
                f"z: found shape {jnp.shape(self.z)}, expected ({kernel.num_latents}, M, D), inputs of each latent "
                "function of the kernel"
            )
        return kernel


def rows_of_outputs(x: Float[Array, "B D"], outputs: int) -> Float[Array, "BP E"]:
    """Rows (x, p), those of the first x first."""
    which = jnp.tile(jnp.arange(outputs, dtype=x.dtype), x.shape[0])
    return jnp.concatenate([jnp.repeat(x, outputs, 0), which[:, None]], 1)
