r"""Random Fourier features of stationary kernels: functions whose weights are those of random waves.

.. math::
    f(x) = m(x) + \sqrt{\sigma^2 / F} \sum_j v_j \cos \omega_j^\top x + v_{F + j} \sin \omega_j^\top x, \quad
    \omega_j \sim S(\omega) / \int S, \quad v \sim N(0, I)

S the spectral density of a kernel k, whose average over Ω the kernel of f is (Rahimi & Recht 2008). Layers of such
functions are a deep GP by random features (Cutajar et al. 2017). A cosine and a sine of each frequency have
k(x, x) = σ² exactly, and less variance elsewhere than cosines of random phases (Sutherland & Schneider 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float

from ppl_dgp.gp.eigenfunctions import SMOOTHNESS, check_spectral, spectral_kernel
from ppl_dgp.gp.means import Mean
from ppl_dgp.gp.sparse_gp import SparseGP
from ppl_dgp.gp.weight_space import WeightSpace, weight_space_gp
from ppl_dgp.kernels import Kernel

if TYPE_CHECKING:
    Frequencies: TypeAlias = Float[Array, "F D"]
else:  # JAX rebuilds pytrees with batched leaves and placeholders: calls check the shapes
    Frequencies = Any


def unit_frequencies(key: Array, kernel: type[Kernel], number: int, num_inputs: int) -> Float[Array, "F D"]:
    """Angular frequencies drawn from the spectral density of a kernel of lengthscale 1.

    Those of an RBF are normal, those of a Matérn of smoothness ν Student's t with 2ν degrees of freedom.

    :param kernel: ``RBF``, ``Matern12``, ``Matern32`` or ``Matern52``, the class.
    :param number: F.
    :param num_inputs: D.
    :raises ValueError: for numbers below 1.
    :raises TypeError: for another kernel.
    """
    if number < 1 or num_inputs < 1:
        raise ValueError(f"number: found {number} of {num_inputs} inputs, expected at least 1 of either")
    check_spectral(kernel)
    key_normal, key_scale = jax.random.split(key)
    normal = jax.random.normal(key_normal, (number, num_inputs))
    if kernel not in SMOOTHNESS:
        return normal
    freedom = 2.0 * SMOOTHNESS[kernel]
    return normal / jnp.sqrt(jax.random.chisquare(key_scale, freedom, shape=(number, 1)) / freedom)


@register_dataclass
@dataclass(frozen=True, eq=False)
class RandomWaves(WeightSpace):
    """The kernel σ²/F Σ_j cos ω_jᵀ(x − z): ``frequencies`` Ω (F, D) are in units of one over the lengthscales."""

    kernel: Kernel
    frequencies: Frequencies

    def basis(self, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        kernel = spectral_kernel(self.kernel)
        phase = kernel.scale(x) @ self.frequencies.T
        waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], 1)
        return waves * jnp.sqrt(kernel.variance / self.frequencies.shape[0])


def random_features_gp(
    name: str,
    kernel: Kernel,
    frequencies: Float[Array, "F D"],
    num_outputs: int = 1,
    *,
    mean: Mean | None = None,
    reused: bool = False,
    initial_scale: float = 1.0,
    begin_at: Callable[[], tuple[Array, Array, float]] | None = None,
) -> SparseGP:
    """Sample the 2F weights of random waves, the site ``name/u`` (P, 2F), and return the function.

    :param kernel: ``RBF``, ``Matern12``, ``Matern32`` or ``Matern52``, on all inputs; its values may be learnt.
    :param frequencies: of lengthscale 1, as :func:`unit_frequencies` draws them under a key; held, or themselves
        ``numpyro.param``.
    :param num_outputs, mean, reused, initial_scale, begin_at: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for frequencies that are no matrix, or a kernel of some of the inputs alone.
    :raises TypeError: for a kernel whose spectral density is not known here.

    >>> from numpyro.handlers import seed
    >>> from ppl_dgp.kernels import RBF
    >>> with seed(rng_seed=0):
    ...     f = random_features_gp("f", RBF(1.0, 0.5), unit_frequencies(jax.random.key(0), RBF, 20, 3))
    >>> f.u.shape
    (1, 40)
    """
    spectral_kernel(kernel)
    if jnp.ndim(frequencies) != 2:
        raise ValueError(
            f"frequencies: found shape {jnp.shape(frequencies)}, expected (F, D); take unit_frequencies"
        )
    return weight_space_gp(
        name,
        RandomWaves(kernel, frequencies),
        frequencies.shape[1],
        num_outputs,
        mean=mean,
        reused=reused,
        initial_scale=initial_scale,
        begin_at=begin_at,
    )
