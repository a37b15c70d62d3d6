"""Convolutional GPs, of one layer and of several, as scikit-learn classifiers of images that are rows of pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_dgp.data import Standardiser
from ppl_dgp.estimators.classification import _Classifier
from ppl_dgp.estimators.estimator import PREDICTED_AT_ONCE
from ppl_dgp.gp.patches import Patches
from ppl_dgp.models import convolutional_gp, deep_convolutional_gp
from ppl_dgp.models.zoo_model import ZooModel

#: height and width of a patch unless told, or what fits
USUAL_PATCH = 5
#: numbers that a prediction may hold, and how many it does of each number of a hidden image: means, variances and draws
MOST_HELD, OF_EACH_DRAW = 10**8, 4


def square_image(pixels: int) -> tuple[int, int] | None:
    """Height and width of a square image of one channel; None where there is no such."""
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else None


def usual_patch(image: Sequence[int], strides: Sequence[int] = (1,)) -> tuple[int, int]:
    """Height and width of patches: at most five, and no more than the images that any layer sees.

    :param strides: of each layer in turn.
    """
    height, width = (
        next(size for size in range(USUAL_PATCH, 0, -1) if size == 1 or _fits(size, side, strides))
        for side in tuple(image)[:2]
    )
    return height, width


def rows_at_once(layers: Sequence[Patches], channels: Sequence[int], num_inducing: int, draws: int) -> int:
    """Rows that a prediction takes together, so that what it holds of all draws of hidden images fits into memory.

    :param layers: how patches are cut, layer by layer.
    :param channels: of the hidden layers.
    """
    hidden = [cut.count for cut in layers[:-1]]
    images = draws * sum(count * depth for count, depth in zip(hidden, channels, strict=True))
    # kernel values; what is before the first draw is the same for all
    values = num_inducing * (sum(hidden[:1]) + draws * sum(hidden[1:]))
    return max(1, min(PREDICTED_AT_ONCE, MOST_HELD // max(OF_EACH_DRAW * images + values, 1)))


def _fits(size: int, side: int, strides: Sequence[int]) -> bool:
    """Whether patches of a size can be cut from what every layer leaves of a side."""
    for stride in strides:
        if size > side:
            return False
        side = (side - size) // max(stride, 1) + 1  # what is no stride the model refuses
    return True


@dataclass(kw_only=True, eq=False, repr=False)
class _ImageClassifier(_Classifier):
    """Rows of pixels, standardised alike."""

    image: Sequence[int] | None = None
    patch: Sequence[int] | None = None
    located: bool = False
    weighted: bool = True

    def _strides(self) -> tuple[int, ...]:
        """Rows and columns from one patch to the next, in each layer."""
        raise NotImplementedError

    def _units(self) -> Callable[..., Standardiser]:
        return Standardiser.fit_alike

    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the image and of patches; a row that is no square is an image one pixel high.

        :raises ValueError: for an image of another number of pixels.
        """
        pixels: int = self.n_features_in_
        image = self.image
        if image is None:
            image = square_image(pixels) or (1, pixels)
        elif len(image) not in (2, 3):
            raise ValueError(
                f"image: found {tuple(image)}, expected height and width, and channels if there are several"
            )
        elif int(np.prod(image)) != pixels:
            raise ValueError(
                f"image: found {tuple(image)}, {int(np.prod(image))} numbers, expected {pixels}, as X has columns"
            )
        return tuple(image), tuple(usual_patch(image, self._strides()) if self.patch is None else self.patch)


@dataclass(kw_only=True, eq=False, repr=False)
class ConvolutionalGPClassifier(_ImageClassifier):
    """Classes of images by what is in them, wherever it is: an answer to patches is learnt, of which images have means.

    Rows are images, height by width by channels, one behind the other. One mean and one scale standardise all pixels.

    :param image: height and width, and channels if there are several; None for a square of one channel, or, where that
        cannot be, an image one pixel high.
    :param patch: height and width; None for 5 × 5, or what fits.
    :param stride: rows and columns from one patch to the next; 2 costs a fifth of 1.
    :param located: whether an answer depends on where a patch is.
    :param weighted: whether each place of a patch has a weight, learnt.
    :param likelihood: as in ``SparseGPClassifier``.
    :param num_inducing: patches M that all classes share; fewer where there are fewer rows.
    :param kernel: of patches, as in ``SparseGPRegressor``.
    :param inducing_rule, objective, alpha, num_particles, steps, tolerance, budget, batch_size, learning_rate,
        num_samples, random_state, progress: as in ``SparseGPRegressor``.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = ConvolutionalGPClassifier(patch=(3, 3), stride=2, num_inducing=5, steps=2)
    >>> model.fit(X[:40], y[:40]).predict_proba(X[:2]).shape
    (2, 3)
    """

    stride: int = 1

    def _strides(self) -> tuple[int, ...]:
        return (self.stride,)

    def _zoo_model(self) -> ZooModel:
        (image, patch), target = self._sizes(), self._target()
        return convolutional_gp(
            image,
            patch,
            target.classes,
            self.num_inducing_,
            kernel=self.kernel,
            weighted=self.weighted,
            located=self.located,
            stride=self.stride,
            likelihood=target.likelihood,
        )


@dataclass(kw_only=True, eq=False, repr=False)
class DeepConvolutionalGPClassifier(_ImageClassifier):
    """Classes of images by layers of patches: the answers to patches are images again, of several channels.

    For images that one layer of patches does not tell apart.

    :param channels: of each hidden layer.
    :param strides: rows and columns from one patch to the next, of each hidden layer and the last; None for 1 in all.
    :param image, patch, located, weighted, likelihood, num_inducing, kernel: as in ``ConvolutionalGPClassifier``, the
        patch in every layer.
    :param inducing_rule, objective, alpha, num_particles, steps, tolerance, budget, batch_size, learning_rate,
        num_samples, random_state, progress: as in ``SparseGPRegressor``.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(n_class=3, return_X_y=True)
    >>> model = DeepConvolutionalGPClassifier(channels=(2,), strides=(2, 1), num_inducing=5, steps=2, num_samples=5)
    >>> model.fit(X[:40], y[:40]).predict_proba(X[:2]).shape
    (2, 3)
    """

    channels: Sequence[int] = (4,)
    strides: Sequence[int] | None = None
    num_samples: int = 100

    def _rows_at_once(self, draws: int) -> int:
        model: Any = self._zoo_model()
        return rows_at_once(model.patches, self.channels, self.num_inducing_, draws)

    def _strides(self) -> tuple[int, ...]:
        return (1,) * (len(self.channels) + 1) if self.strides is None else tuple(self.strides)

    def _zoo_model(self) -> ZooModel:
        (image, patch), target = self._sizes(), self._target()
        return deep_convolutional_gp(
            image,
            tuple(self.channels),
            patch,
            self._strides(),
            target.classes,
            self.num_inducing_,
            kernel=self.kernel,
            weighted=self.weighted,
            located=self.located,
            likelihood=target.likelihood,
        )
