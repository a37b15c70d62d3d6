r"""Reduced-rank GPs on a box, by the Laplacian's eigenfunctions (Solin & Särkkä 2020; Riutort-Mayol et al. 2023).

.. math::
    \tilde f(x) = m(x) + \sum_j \sqrt{S(\omega_j)}\, \phi_j(x)\, v_j, \quad v_j \sim N(0, 1), \quad
    \phi_j(x) = \prod_d \sqrt{2 / L_d} \sin(\omega_{jd} (x_d - a_d)), \quad \omega_{jd} = \pi j_d / L_d

S the spectral density of a stationary kernel k, L the sides of the box. The kernel of f̃ nears k within the box, away
from its walls, where f̃ is 0. The weights v are all that f̃ is: u has nothing left to say, so that bounds are those of a
linear model, and M numbers are what NUTS samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lgamma, log, pi

import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.features import FixedFunctions
from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.weight_space import WeightSpace
from ppl_dgp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, Sum
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.structured_root import LowRankRoot

#: ν of a Matérn kernel
SMOOTHNESS: dict[type, float] = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}
#: weights of one function beyond which a box of so many dimensions asks for other features
MOST_WEIGHTS = 20_000


def reduced_rank_gp(
    name: str,
    kernel: Kernel,
    low: Sequence[float],
    high: Sequence[float],
    number: int | Sequence[int],
    num_outputs: int = 1,
    *,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
) -> SparseGP:
    """Sample the M weights of a reduced-rank GP, the site ``name/u`` (P, M), and return the function.

    It is a ``sparse_gp`` whose residual is 0. Let the box reach beyond the data by three lengthscales or four, for at
    its walls f is 0. An RBF of lengthscale ℓ has nothing beyond frequencies of 6/ℓ, so that eigenfunctions twice as
    many as a side has lengthscales suffice; a Matérn has, and wants more.

    :param kernel: ``RBF``, ``Matern12``, ``Matern32``, ``Matern52``, or sums of them, on all inputs.
    :param low, high: corners of the box, a number for each of the D inputs.
    :param number: of eigenfunctions along each input; M is their product.
    :param num_outputs, mean, reused, initial_scale: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for an empty box, numbers that are none or whose product is beyond 20 000, or inputs outside.
    :raises TypeError: for a kernel whose spectral density is not known here.
    """
    counts = (number,) * len(low) if isinstance(number, int) else tuple(number)
    features = Eigenfunctions(tuple(map(float, low)), tuple(map(float, high)), counts)
    reduced = ReducedRank(kernel, features)
    settings = {"mean": mean, "reused": reused, "initial_scale": initial_scale}
    return sparse_gp(name, reduced, features, num_outputs, jitter=0.0, **settings)  # type: ignore[arg-type]


@register_dataclass
@dataclass(frozen=True, eq=False)
class Eigenfunctions(FixedFunctions):
    """The weights v of a :class:`ReducedRank` kernel, as inducing outputs."""

    low: tuple[float, ...] = field(metadata={"static": True})
    high: tuple[float, ...] = field(metadata={"static": True})
    number: tuple[int, ...] = field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.number) > 0:
            raise ValueError(
                f"number: found {len(self.number)} numbers beside {len(self.low)} and {len(self.high)} ends, expected "
                "one of each for every input"
            )
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"high: found {self.high}, expected more than low, {self.low}, in each input")
        if min(self.number) < 1 or self.shape[0] > MOST_WEIGHTS:
            raise ValueError(
                f"number: found {self.number}, expected at least 1 along each input and at most {MOST_WEIGHTS} in all; "
                "take fewer, or inducing points"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return int(np.prod(self.number)), len(self.number)

    @property
    def corner(self) -> tuple[float, ...]:
        return self.low

    def scales(self, kernel: Kernel) -> Float[Array, " M"]:
        return _reduced(kernel).root

    def total_variance(
        self, kernel: Kernel, rows: Float[Array, ""], squares: Float[Array, " M"]
    ) -> Float[Array, ""]:
        return jnp.square(_reduced(kernel).root) @ squares

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        """The identity."""
        return jnp.eye(self.shape[0], dtype=_reduced(kernel).root.dtype)

    def root(self, kernel: Kernel) -> LowRankRoot:
        """That of the identity."""
        ones = jnp.ones_like(_reduced(kernel).root)
        return LowRankRoot.of(ones, ones[:, None][:, :0])

    def waves(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        low, high = (np.asarray(ends) for ends in (self.low, self.high))
        if not is_traced(x):
            known = np.asarray(x)
            outside = (known < low) | (known > high)
            if outside.any():
                raise ValueError(
                    f"inputs: found {known[outside][0]:g} outside the box of the eigenfunctions, {self.low} to "
                    f"{self.high}; widen it"
                )
        inside = ((x >= jnp.asarray(low, x.dtype)) & (x <= jnp.asarray(high, x.dtype))).all(1, keepdims=True)
        product = jnp.ones((x.shape[0], 1), x.dtype)
        for d, count in enumerate(self.number):
            side = self.high[d] - self.low[d]
            phase = (x[:, d, None] - self.low[d]) * jnp.asarray(pi / side * np.arange(1, count + 1), x.dtype)
            one = np.sqrt(2.0 / side) * jnp.sin(phase)
            product = (product[:, :, None] * one[:, None, :]).reshape(x.shape[0], -1)
        return jnp.where(inside, product, jnp.nan)

    @property
    def frequencies(self) -> Float[np.ndarray, "M D"]:
        """ω of each eigenfunction."""
        along = [
            pi / (b - a) * np.arange(1, count + 1)
            for a, b, count in zip(self.low, self.high, self.number, strict=True)
        ]
        return np.stack(np.meshgrid(*along, indexing="ij"), -1).reshape(-1, len(along))


@register_dataclass
@dataclass(frozen=True, eq=False)
class ReducedRank(WeightSpace):
    """The kernel of f̃, Σ_j S(ω_j) φ_j(x) φ_j(z), of rank M, within the box of its eigenfunctions."""

    kernel: Kernel
    features: Eigenfunctions

    @property
    def root(self) -> Float[Array, " M"]:
        """√S at each frequency."""
        return jnp.sqrt(spectral_density(self.kernel, jnp.asarray(self.features.frequencies, float)))

    def basis(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self.features.waves(x) * self.root


def spectral_density(kernel: Kernel, frequencies: Float[Array, "M D"]) -> Float[Array, " M"]:
    r"""S(ω) = ∫ k(r) exp(−iωᵀr) dr of a stationary kernel at angular frequencies, in D dimensions.

    :raises TypeError: for a kernel of another kind.
    :raises ValueError: for one of some of the inputs alone.
    """
    if isinstance(kernel, Sum):
        return spectral_density(kernel.left, frequencies) + spectral_density(kernel.right, frequencies)
    kernel = spectral_kernel(kernel)
    dims = frequencies.shape[1]
    lengthscale = jnp.broadcast_to(jnp.asarray(kernel.lengthscale), (dims,))
    squares = jnp.square(lengthscale * frequencies).sum(1)
    volume = kernel.variance * jnp.prod(lengthscale)
    if isinstance(kernel, RBF):
        gaussian: Array = volume * (2.0 * pi) ** (0.5 * dims) * jnp.exp(-0.5 * squares)
        return gaussian
    nu = SMOOTHNESS[type(kernel)]
    constant = dims * log(2.0) + 0.5 * dims * log(pi) + lgamma(nu + 0.5 * dims) - lgamma(nu)
    power: Array = jnp.exp(constant + nu * log(2.0 * nu) - (nu + 0.5 * dims) * jnp.log(2.0 * nu + squares))
    return volume * power


def spectral_kernel(kernel: Kernel) -> RBF | Matern12 | Matern32 | Matern52:
    """The kernel itself, one whose spectral density is known here.

    :raises TypeError: for a kernel of another kind.
    :raises ValueError: for one of some of the inputs alone.
    """
    check_spectral(type(kernel))
    assert isinstance(kernel, RBF | Matern12 | Matern32 | Matern52)
    if kernel.active_dims is not None:
        raise ValueError(
            f"kernel: found active_dims {kernel.active_dims}, expected a kernel of all inputs; give the function the "
            "columns that it is of"
        )
    return kernel


def check_spectral(kernel: type[Kernel]) -> None:
    """Refuse, by a TypeError, a class of kernels whose spectral density is not known here."""
    if kernel is not RBF and kernel not in SMOOTHNESS:
        raise TypeError(
            f"kernel: found {kernel.__name__}, expected RBF, Matern12, Matern32 or Matern52, whose spectral densities "
            "are known, or for reduced_rank_gp a sum of them; take inducing points"
        )


def _reduced(kernel: Kernel) -> ReducedRank:
    if isinstance(kernel, ReducedRank):
        return kernel
    raise TypeError(
        f"kernel: found {type(kernel).__name__} with Eigenfunctions, expected ReducedRank, the kernel whose weights "
        "they are; take reduced_rank_gp(name, kernel, …)"
    )
