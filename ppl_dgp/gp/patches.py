r"""Image-convolutional GPs, and patches as their inducing inputs (van der Wilk, Rasmussen & Hensman 2017).

.. math::
    f(X) = \frac{1}{P} \sum_p w_p\, g(X[p]), \quad g \sim GP(0, k_g), \quad u_m = g(Z_m), \quad
    k(X, X') = \frac{1}{P^2} \sum_{p, p'} w_p w_{p'}\, k_g(X[p], X'[p'])

X[p] the p-th patch of an image, Z_m a patch: an answer to patches is learnt, and an image has the average of those to
its patches. With the place of a patch behind its pixels the answer may depend on it (Dutordoir et al. 2020). Images are
rows, height by width by channels; a patch has all channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass
from jaxtyping import Array, Float, Int

from ppl_dgp.gp.features import InducingFeatures
from ppl_dgp.gp.means import Mean
from ppl_dgp.kernels import Kernel
from ppl_dgp.kernels.kernel import pair

if TYPE_CHECKING:
    Rows: TypeAlias = Float[Array, "M _"]
    Weights: TypeAlias = Float[Array, " P"] | Float[Array, ""] | float
else:  # JAX rebuilds pytrees with batched leaves and placeholders: calls check the shapes
    Rows = Weights = Any

#: kernel values that are held at a time: on CPUs what fits into caches, 1 MB in 32 bits, on others 0.5 GB
VALUES_HELD = {"cpu": 2**18}
ON_OTHERS = 2**27


@dataclass(frozen=True)
class Patches:
    """How patches are cut out of an image: height, width and channels of it, height and width of them.

    :param located: whether behind its pixels a patch has where it is, row and column of its first pixel from 0 to 1.
    :param stride: rows and columns from one patch to the next.
    :raises ValueError: for sizes that are none, or patches that are larger than the image.
    """

    image: tuple[int, int, int]
    patch: tuple[int, int]
    located: bool = False
    stride: int = 1

    def __post_init__(self) -> None:
        if len(self.image) != 3 or len(self.patch) != 2 or min(*self.image, *self.patch) < 1:
            raise ValueError(
                f"image: found {self.image} with patches {self.patch}, expected height, width and channels, and height "
                "and width, each at least 1"
            )
        if any(small > large for small, large in zip(self.patch, self.image, strict=False)):
            raise ValueError(
                f"patch: found {self.patch}, expected no more than the image of {self.image} has"
            )
        if self.stride < 1:
            raise ValueError(f"stride: found {self.stride}, expected at least 1")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches below each other, and side by side."""
        (height, width, _), (h, w) = self.image, self.patch
        return (height - h) // self.stride + 1, (width - w) // self.stride + 1

    @property
    def count(self) -> int:
        """P."""
        return self.grid[0] * self.grid[1]

    @property
    def pixels(self) -> int:
        """Numbers in an image."""
        return int(np.prod(self.image))

    @property
    def size(self) -> int:
        """Numbers in a patch, its place among them if it has one."""
        return int(np.prod(self.patch)) * self.image[2] + 2 * self.located

    @property
    def _members(self) -> Int[np.ndarray, "P d"]:
        """Of each patch the numbers of its pixels in the row of an image."""
        (height, width, channels), (h, w) = self.image, self.patch
        number = np.arange(height * width * channels).reshape(height, width, channels)
        windows = np.lib.stride_tricks.sliding_window_view(number, (h, w), axis=(0, 1))
        return np.moveaxis(windows[:: self.stride, :: self.stride], 2, -1).reshape(self.count, -1)

    @property
    def _places(self) -> Float[np.ndarray, "P 2"]:
        (height, width, _), (h, w) = self.image, self.patch
        ends = max(height - h, 1), max(width - w, 1)
        along = [self.stride * np.arange(number) / end for number, end in zip(self.grid, ends, strict=True)]
        return np.stack(np.meshgrid(*along, indexing="ij"), -1).reshape(-1, 2)

    def of(self, images: Float[Array, "N _"]) -> Float[Array, "N P d"]:
        """The patches of images, one of them a row.

        :raises ValueError: for rows of another length.
        """
        if images.ndim != 2 or images.shape[1] != self.pixels:
            raise ValueError(
                f"images: found shape {images.shape}, expected rows of {self.pixels} numbers, {self.image} each"
            )
        cut = images[:, self._members]
        if not self.located:
            return cut
        placed = jnp.broadcast_to(jnp.asarray(self._places, images.dtype), (*cut.shape[:2], 2))
        return jnp.concatenate([cut, placed], -1)

    def onto_images(self, of_patch: Float[Array, "C d"]) -> Float[Array, "Q D"]:
        """Linear maps of a patch's pixels as maps of the image, (P·C, D), one for each place."""
        members, maps = self._members, of_patch[:, : self._members.shape[1]]
        image = jnp.zeros((self.count, len(maps), self.pixels), maps.dtype)
        at_places = image.at[np.arange(self.count)[:, None], :, members].set(maps.T)
        return at_places.reshape(-1, self.pixels)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Convolutional(Kernel):
    """The covariance of the average of g over an image's patches, from ``kernel`` of patches, that of g.

    :param weights: w, one for each patch or one for all.
    """

    kernel: Kernel
    patches: Patches = field(metadata={"static": True})
    weights: Weights = 1.0

    def __call__(self, x: Float[Array, "N D"], z: Float[Array, "M D"]) -> Float[Array, "N M"]:
        pair(x, z)
        others, shares = self.patches.of(z), self._shares(z)

        def of_image(image: Array) -> Array:
            cut = self.patches.of(image[None])[0]
            between = jax.vmap(lambda other: shares @ self.kernel(cut, other) @ shares)
            return between(others)

        return _in_pieces(of_image, x, len(z) * self.patches.count**2)

    def diag(self, x: Float[Array, "N D"]) -> Float[Array, " N"]:
        shares = self._shares(x)

        def of_image(image: Array) -> Array:
            cut = self.patches.of(image[None])[0]
            return shares @ self.kernel(cut, cut) @ shares

        return _in_pieces(of_image, x, self.patches.count**2)

    def with_patches(self, x: Float[Array, "N D"], z: Float[Array, "M d"]) -> Float[Array, "N M"]:
        """Covariance of f at images with g at patches."""
        shares = self._shares(x)

        def of_image(image: Array) -> Array:
            return shares @ self.kernel(self.patches.of(image[None])[0], z)

        return _in_pieces(of_image, x, self.patches.count * len(z))

    def _shares(self, like: Array) -> Float[Array, " P"]:
        """w / P."""
        count = self.patches.count
        if jnp.shape(self.weights) not in ((), (count,)):
            raise ValueError(
                f"weights: found shape {jnp.shape(self.weights)}, expected one for each of {count} patches, or one"
            )
        return jnp.broadcast_to(jnp.asarray(self.weights, like.dtype), (count,)) / count


@register_dataclass
@dataclass(frozen=True, eq=False)
class InducingPatches(InducingFeatures):
    """u = g(Z) of a :class:`Convolutional` kernel, Z (M, d) patches; they may be learnt."""

    z: Rows
    patches: Patches = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.z.shape[0], self.patches.pixels

    def cross(self, kernel: Kernel, x: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self._of(kernel).with_patches(x, self.z)

    def covariance(self, kernel: Kernel) -> Float[Array, "M M"]:
        return self._of(kernel).kernel(self.z, self.z)

    def mean(self, mean: Mean) -> Float[Array, "M P"]:
        """0: g has no mean, which is of images."""
        outputs = mean(jnp.zeros((1, self.patches.pixels), self.z.dtype)).shape[1]
        return jnp.zeros((self.shape[0], outputs), self.z.dtype)

    def _of(self, kernel: Kernel) -> Convolutional:
        if not isinstance(kernel, Convolutional) or kernel.patches != self.patches:
            found = kernel.patches if isinstance(kernel, Convolutional) else type(kernel).__name__
            raise TypeError(
                f"kernel: found {found}, expected Convolutional with the same patches, {self.patches}, as the inducing "
                "patches have"
            )
        if self.z.shape[1] != self.patches.size:
            raise ValueError(
                f"z: found shape {self.z.shape}, expected patches (M, {self.patches.size}), as {self.patches} cuts them"
            )
        return kernel


def _in_pieces(of_one: Callable[[Array], Array], x: Float[Array, "N D"], numbers: int) -> Array:
    """A function of each image, some at a time, each computed again for its gradient: no N × P × M array is held."""
    held = VALUES_HELD.get(jax.default_backend(), ON_OTHERS)
    together = max(1, min(len(x), held // max(numbers, 1)))
    found: Array = jax.lax.map(jax.checkpoint(of_one), x, batch_size=together)
    return found
