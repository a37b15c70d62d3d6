r"""Deep convolutional GPs for images (Blomqvist, Kaski & Heinonen 2018; Dutordoir et al. 2020).

    H_n⁰ = X_n
    g^l ~ GP(m^l, k^l),   H_n^l[p] = g^l(H_n^{l−1}[p]) + ε,   ε ~ N(0, s_l²)        l = 1 … L−1
    g_c ~ GP(0, k^L),     f_c(H) = (1/P) Σ_p w_p g_c(H[p]),   y_n ~ p(y | f(H_n^{L−1}))

Card. A deep GP whose hidden layers map images to images: each place has the answer to the patch around it, of several
channels. For images that one layer of patches does not tell apart. The means m^l are filters: leading right-singular
vectors of patches, as those of a deep GP whose layers narrow, or the pixel in the middle. Guide: ``Guide(model)``.
Sites ``layer1/u``, ``layer1/h``, …, ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.means import Linear, layer_map
from ppl_dgp.gp.patch_layers import at_patches, centre_filter
from ppl_dgp.gp.patches import Convolutional, InducingPatches, Patches
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.kernels import RBF
from ppl_dgp.models.checks import checked_flag, whole_sequence
from ppl_dgp.models.classification import checked_classes, class_likelihood
from ppl_dgp.models.convolutional_gp import checked_image, some_images, some_patches
from ppl_dgp.models.deep_gp import INNER_NOISE, INNER_SCALE
from ppl_dgp.models.gp_regression import NUM_INDUCING
from ppl_dgp.models.inducing import inducing_inputs
from ppl_dgp.models.kernel_values import KernelChoice, kernel_parameters
from ppl_dgp.models.observation import LikelihoodChoice
from ppl_dgp.models.parts import as_columns, rows_plate
from ppl_dgp.models.settings import checked_settings
from ppl_dgp.models.zoo_model import ZooModel

#: what the means of hidden layers may be
FILTERS = ("principal", "centre")


@dataclass(frozen=True, eq=False, repr=False)
class deep_convolutional_gp(ZooModel):
    """Classes of images by layers of patches: sites ``layer1/u``, ``layer1/h`` (N, P·C), …, ``y``.

    :param image: height, width and channels; (H, W) for one channel.
    :param channels: C of each hidden layer.
    :param patch: height and width, in every layer.
    :param strides: rows and columns from one patch to the next, of the hidden layers and the last.
    :param num_classes: of the labels.
    :param num_inducing: M patches in each layer.
    :param kernel: of patches, for every layer, see :mod:`ppl_dgp.models.kernel_values`.
    :param filters: means of hidden layers: "principal", leading right-singular vectors of patches, or "centre".
    :param weighted, located: as of ``convolutional_gp``; weights are those of the last layer.
    :param likelihood: as in :func:`ppl_dgp.models.sparse_gp_classification`.
    :param inner_noise: where the learnt noise variances s_l² of hidden layers start.
    :param train_inducing: whether inducing patches are learnt; they start at k-means centres of patches.
    :param jitter: see :func:`ppl_dgp.gp.sparse_gp.sparse_gp`.
    :raises ValueError: for settings of the wrong kind, patches larger than what they are cut from, rows that are no
        such images, or labels outside 0 … C − 1.
    """

    image: Sequence[int] = (28, 28)
    channels: Sequence[int] = (4,)
    patch: Sequence[int] = (5, 5)
    strides: Sequence[int] = (2, 1)
    num_classes: int = 10
    num_inducing: int = NUM_INDUCING
    _: KW_ONLY
    kernel: KernelChoice = RBF
    filters: str = "principal"
    weighted: bool = True
    located: bool = False
    likelihood: LikelihoodChoice | None = None
    inner_noise: float = INNER_NOISE
    train_inducing: bool = True
    jitter: float | None = None

    def __post_init__(self) -> None:
        settings: dict[str, Any] = checked_classes(self.num_classes, self.likelihood)
        settings |= checked_image(self.image, self.patch)
        settings["channels"] = whole_sequence(
            "channels", self.channels, "whole numbers, one per hidden layer"
        )
        settings["strides"] = whole_sequence("strides", self.strides, "whole numbers, one per layer")
        if len(settings["strides"]) != len(settings["channels"]) + 1:
            raise ValueError(
                f"strides: found {settings['strides']}, expected {len(settings['channels']) + 1} of them, for "
                f"{len(settings['channels'])} hidden layers and the last"
            )
        flags = {name: checked_flag(name, getattr(self, name)) for name in ("weighted", "located")}
        without = ("image", "patch", "channels", "strides", "num_classes", "likelihood", *flags)
        self._settle(**settings, **flags, **checked_settings(self, without=without, filters=FILTERS))
        assert self.patches  # sizes that do not fit are refused here

    @property
    def patches(self) -> tuple[Patches, ...]:
        """How they are cut in each layer."""
        height, width, depth = self.image
        h, w = self.patch
        layers = []
        for stride, channels in zip(self.strides, (*self.channels, 1), strict=True):
            layers.append(Patches((height, width, depth), (h, w), self.located, stride))
            (height, width), depth = layers[-1].grid, channels
        return tuple(layers)

    def __call__(
        self, x: Array, y: Array | None = None, index: Array | None = None, size: int | None = None
    ) -> Any:
        y = as_columns(x, y, 1)
        given = class_likelihood(self.likelihood, self.num_classes, y)
        functions, noises = [], []
        pushed = lambda: some_images(x)  # through the means: where inducing patches start
        *hidden, last = self.patches
        for layer, (cut, channels) in enumerate(zip(hidden, self.channels, strict=True), start=1):
            name = f"layer{layer}"
            k, inducing = self._patches_of(name, cut, pushed)
            mean = self._filters(name, cut, channels, pushed)
            functions.append(
                sparse_gp(
                    name, k, inducing, channels, mean=mean, reused=True, initial_scale=INNER_SCALE,
                    jitter=self.jitter,
                )
            )  # fmt: skip
            pushed = _through(mean, cut, pushed)
            start = jnp.asarray(self.inner_noise)
            noises.append(numpyro.param(f"{name}/noise", start, constraint=constraints.positive))
        f = self._last(f"layer{len(hidden) + 1}", last, given.num_functions(1), pushed)
        with rows_plate(x, index, size):
            h = x
            for layer, (g, cut, noise) in enumerate(zip(functions, hidden, noises, strict=True), start=1):
                h = numpyro.sample(f"layer{layer}/h", at_patches(g, h, cut).noisy(noise), infer=hidden_role())
            return numpyro.sample("y", f(h).observe(given), obs=y)

    def _last(self, name: str, cut: Patches, functions: int, pushed: Any) -> SparseGP:
        k, inducing = self._patches_of(name, cut, pushed)
        weights: Array | float = 1.0
        if self.weighted:
            weights = numpyro.param(f"{name}/weights", jnp.ones(cut.count))
        whole = Convolutional(k, cut, weights)
        return sparse_gp(name, whole, InducingPatches(inducing, cut), functions, jitter=self.jitter)

    def _patches_of(self, name: str, cut: Patches, pushed: Any) -> tuple[Any, Array]:
        start = lambda: some_patches(cut, pushed())
        inducing = inducing_inputs(name, start, self.num_inducing, self.train_inducing)
        return kernel_parameters(name, self.kernel, cut.size), inducing

    def _filters(self, name: str, cut: Patches, channels: int, pushed: Any) -> Linear:
        if self.filters == "centre":
            return centre_filter(cut, channels)
        pixels = cut.size - 2 * cut.located
        start = lambda _key: layer_map(some_patches(cut, pushed())[:, :pixels], channels)
        found = jax.lax.stop_gradient(numpyro.param(f"{name}/linear_map", start))
        return Linear(jnp.pad(found, ((0, cut.size - pixels), (0, 0))))


def _through(mean: Linear, cut: Patches, images: Any) -> Any:
    """What gives images after a layer's mean."""
    return lambda: mean(cut.of(images()).reshape(-1, cut.size)).reshape(len(images()), -1)
