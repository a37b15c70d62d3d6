r"""Convolutional Gaussian processes for images (van der Wilk, Rasmussen & Hensman 2017; Dutordoir et al. 2020).

    g_c ~ GP(0, k_g),   f_c(X) = (1/P) Σ_p w_p g_c(X[p]),   y_n ~ p(y | f(X_n))
    or, a mixture over patches,                             y_n ~ Σ_p π_p p(y | g(X_n[p]))

Card. For images that are told by what is in them, wherever it is: an answer to patches is learnt, from many fewer
images than one to whole images. Rows are images, height by width by channels, one behind the other; numbers of about 1.
The cost of a step is that of B P (P + M) kernel values. Guides: ``Guide(model)``. Sites ``gp/u`` (C, M), ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from ppl_dgp.gp.patch_layers import at_patches
from ppl_dgp.gp.patches import Convolutional, InducingPatches, Patches
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import checked_flag, whole_sequence
from ppl_dgp.models.classification import checked_classes, class_likelihood
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import GivenInducing, inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.observation import LikelihoodChoice
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

#: images, and patches of each, that inducing patches are chosen from
IMAGES, OF_EACH = 2000, 10


@dataclass(frozen=True, eq=False, repr=False)
class convolutional_gp(ZooModel):
    """Classes of images by their patches: sites ``gp/u``, ``y``; parameters ``gp/inducing``, ``gp/weights`` (P,).

    :param image: height, width and channels; (H, W) for one channel.
    :param patch: height and width.
    :param num_classes: C.
    :param num_inducing: M patches, which all classes share.
    :param kernel: k_g of patches, see :mod:`ppl_dgp.models.kernel_values`.
    :param weighted: whether each place of a patch has a weight w_p, learnt; else all have 1 (of a mixture 1/P).
    :param located: whether an answer depends on where a patch is: row and column, from 0 to 1, behind its pixels.
    :param stride: rows and columns from one patch to the next; 2 costs a fifth of 1.
    :param mixture: whether an image has the answer to one of its patches, which is not known and summed out, rather
        than the average of the answers to all.
    :param likelihood: as in :func:`ppl_dgp.models.sparse_gp_classification`.
    :param inducing: patches (M, d) to begin at.
    :param train_inducing: whether they are learnt; they start at k-means centres of patches if not given.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, a patch larger than the image, rows that are no such images, or
        labels outside 0 … C − 1.
    """

    image: Sequence[int] = (28, 28)
    patch: Sequence[int] = (5, 5)
    num_classes: int = 10
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    weighted: bool = True
    located: bool = False
    stride: int = 1
    mixture: bool = False
    likelihood: LikelihoodChoice | None = None
    inducing: GivenInducing | None = None
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        settings = checked_classes(self.num_classes, self.likelihood)
        settings |= checked_image(self.image, self.patch)
        flags = {name: checked_flag(name, getattr(self, name)) for name in ("weighted", "located", "mixture")}
        cut = Patches(settings["image"], settings["patch"], flags["located"])
        without = ("image", "patch", "num_classes", "likelihood", *flags)
        self._settle(**settings, **flags, **checked_settings(self, without=without, dims=cut.size))

    @property
    def patches(self) -> Patches:
        """How they are cut."""
        height, width, channels = self.image
        h, w = self.patch
        return Patches((height, width, channels), (h, w), self.located, self.stride)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        given, cut = class_likelihood(self.likelihood, self.num_classes, y), self.patches
        start = lambda: some_patches(cut, x)
        settings = self.num_inducing, self.train_inducing, self.inducing, cut.size
        inducing = inducing_inputs("gp", start, *settings)
        kernel = kernel_parameters("gp", self.kernel, cut.size)
        functions = given.num_functions(1)
        if self.mixture:
            g = sparse_gp("gp", kernel, inducing, functions, reused=True, jitter=self.jitter)
            shares = jnp.full(cut.count, 1.0 / cut.count)
            if self.weighted:
                shares = numpyro.param("gp/weights", shares, constraint=constraints.simplex)
            observed = lambda images: at_patches(g, images, cut).given_any(given, shares)
        else:
            weights: Array | float = (
                numpyro.param("gp/weights", jnp.ones(cut.count)) if self.weighted else 1.0
            )
            whole = Convolutional(kernel, cut, weights)
            f = sparse_gp("gp", whole, InducingPatches(inducing, cut), functions, jitter=self.jitter)
            observed = lambda images: f(images).observe(given)
        with rows_plate(x, index, size):
            return numpyro.sample("y", observed(x), obs=y)


def checked_image(image: Any, patch: Any) -> dict[str, tuple[int, ...]]:
    """Sizes of images, a channel behind them if there is one alone, and of patches.

    :raises ValueError: for what are none.
    """
    checked = {}
    for name, sizes, lengths in (("image", image, (2, 3)), ("patch", patch, (2,))):
        shape = whole_sequence(name, sizes, "whole numbers, height and width first")
        if len(shape) not in lengths:
            raise ValueError(f"{name}: found {shape}, expected {' or '.join(map(str, lengths))} numbers")
        checked[name] = shape
    checked["image"] = (*checked["image"], 1)[:3]
    return checked


def some_images(images: Float[Array, "N _"]) -> Float[Array, "K _"]:
    """At most ``IMAGES`` of them, to begin at."""
    number = min(IMAGES, len(images))
    return images[jax.random.choice(jax.random.key(0), len(images), (number,), replace=False)]


def some_patches(cut: Patches, images: Float[Array, "N _"]) -> Float[Array, "K d"]:
    """Patches of some images, some of each, to begin at."""
    of_each = min(OF_EACH if len(images) > IMAGES // OF_EACH else cut.count, cut.count)
    found = cut.of(some_images(images))
    places = jax.random.randint(jax.random.key(1), (len(found), of_each), 0, cut.count)
    return jnp.take_along_axis(found, places[:, :, None], 1).reshape(-1, cut.size)
