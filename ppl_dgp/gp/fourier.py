r"""Fourier features of Matérn kernels on an interval (Hensman, Durrande & Solin 2018).

.. math::
    u_m = \langle f, \phi_m \rangle_{\mathcal H} / s_m, \quad
    \phi = 1, \cos \omega_1 (x - a), \dots, \sin \omega_1 (x - a), \dots, \quad
    \omega_j = 2 \pi j / (b - a)

in the kernel's own Hilbert space of functions on [a, b], s_m the norm of φ_m: then k_u(x) = φ(x)/s whatever the kernel,
and Kuu is a diagonal and a matrix of rank 1 to 3, which has a root (:mod:`ppl_dgp.numerics.structured_root`).
The features have no places, nothing of them is learnt, and they say most about functions that repeat many times within
the interval, where points would have to lie close.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.features import FixedFunctions
from ppl_dgp.kernels import Kernel, Matern12, Matern32, Matern52, Stationary
from ppl_dgp.numerics.compatibility import is_traced
from ppl_dgp.numerics.structured_root import LowRankRoot


@register_dataclass
@dataclass(frozen=True, eq=False)
class Fourier(FixedFunctions):
    """1 + 2·``frequencies`` Fourier features of a function on the interval from ``low`` to ``high``.

    For one input and a kernel ``Matern12``, ``Matern32`` or ``Matern52``. Let the interval be wider than the data by
    three or four lengthscales on each side: at its ends the features' functions are periodic, as f is not. Inputs
    outside are an error, or NaN where they are traced.

    :raises ValueError: for an empty interval, or fewer than one frequency.
    """

    low: float = field(metadata={"static": True})
    high: float = field(metadata={"static": True})
    frequencies: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(
                f"high: found {self.high}, expected more than low, {self.low}; give an interval around the data"
            )
        if self.frequencies < 1:
            raise ValueError(f"frequencies: found {self.frequencies}, expected at least 1")

    @property
    def shape(self) -> tuple[int, int]:
        return 1 + 2 * self.frequencies, 1

    @property
    def corner(self) -> tuple[float, ...]:
        return (self.low,)

    def waves(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        if not is_traced(x):
            self._check_inside(np.asarray(x))
        inside = (x >= self.low) & (x <= self.high)
        phase = (x - self.low) * jnp.asarray(self._omega, x.dtype)
        waves = jnp.concatenate([jnp.ones_like(x), jnp.cos(phase), jnp.sin(phase)], 1)
        return jnp.where(inside, waves, jnp.nan)

    def scales(self, kernel: Kernel) -> Float[Array, " M"]:
        diagonal, low_rank = self._inner_products(kernel)
        return jax.lax.rsqrt(diagonal + jnp.square(low_rank).sum(1))

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        diagonal, low_rank = self._normed(kernel)
        return jnp.diag(diagonal) + low_rank @ low_rank.T

    def root(self, kernel: Kernel) -> LowRankRoot:
        return LowRankRoot.of(*self._normed(kernel))

    def _check_inside(self, x: np.ndarray) -> None:
        if x.size and (x.min() < self.low or x.max() > self.high):
            raise ValueError(
                f"inputs: found {x.min():g} to {x.max():g}, expected them within the interval of the Fourier features, "
                f"{self.low:g} to {self.high:g}; widen it"
            )

    @property
    def _omega(self) -> np.ndarray:
        return 2.0 * np.pi * np.arange(1, self.frequencies + 1) / (self.high - self.low)

    def _normed(self, kernel: Kernel) -> tuple[Float[Array, " M"], Float[Array, "M R"]]:
        """Kuu as diag + V Vᵀ."""
        diagonal, low_rank = self._inner_products(kernel)
        scales = self.scales(kernel)
        return diagonal * jnp.square(scales), low_rank * scales[:, None]

    def _inner_products(self, kernel: Kernel) -> tuple[Float[Array, " M"], Float[Array, "M R"]]:
        """⟨φ_m, φ_n⟩ = diag + V Vᵀ: the integral over the interval, and what is added at its lower end."""
        if type(kernel) not in _SMOOTHNESS or not isinstance(kernel, Stationary):
            raise TypeError(
                f"kernel: found {type(kernel).__name__}, expected Matern12, Matern32 or Matern52 for Fourier features; "
                "take inducing points"
            )
        if kernel.active_dims not in (None, (0,)) or jnp.size(kernel.lengthscale) != 1:
            raise ValueError(
                f"kernel: found active_dims {kernel.active_dims} and {jnp.size(kernel.lengthscale)} lengthscales, "
                "expected a kernel of the one input that Fourier features have"
            )
        order = _SMOOTHNESS[type(kernel)]
        sigma2 = jnp.asarray(kernel.variance)
        lam = np.sqrt(2.0 * order - 1.0) / jnp.reshape(jnp.asarray(kernel.lengthscale), ())
        omega = jnp.asarray(self._omega, lam.dtype)
        width = self.high - self.low
        # ∫ |(d/dt + λ)^order e^{iωt}|² dt over the interval; that of a constant is not halved as of a cosine
        share = {1: 0.25, 2: 0.125, 3: 3.0 / 32.0}[order] * width / sigma2
        spectrum = share * (lam**2 + omega**2) ** order / lam ** (2 * order - 1)
        constant = 2.0 * share * lam[None]
        diagonal = jnp.concatenate([constant, spectrum, spectrum])
        ones, none = jnp.ones(self.frequencies + 1, lam.dtype), jnp.zeros(self.frequencies, lam.dtype)
        of_cosines = lambda values: jnp.concatenate([values, none])
        of_sines = lambda values: jnp.concatenate([0.0 * ones, values])
        ratio = omega / lam
        if order == 1:
            columns = [of_cosines(ones)]
        elif order == 2:
            columns = [of_cosines(ones), of_sines(ratio)]
        else:
            # [9/8 −3/8; −3/8 9/8] between the value and the second derivative over λ², as a product with its transpose
            curved = jnp.concatenate([jnp.zeros(1, lam.dtype), jnp.square(ratio)])
            first = np.sqrt(9.0 / 8.0) * ones - np.sqrt(1.0 / 8.0) * curved
            columns = [of_cosines(first), of_cosines(curved), of_sines(np.sqrt(3.0) * ratio)]
        return diagonal, jnp.stack(columns, 1) / jnp.sqrt(sigma2)


#: ν + ½ of a Matérn kernel
_SMOOTHNESS: dict[type, int] = {Matern12: 1, Matern32: 2, Matern52: 3}
