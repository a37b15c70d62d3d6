"""Settings of targets that are classes, and of rows that are images: their names, and what no data could make right."""

from __future__ import annotations

from typing import Any

from ppl_dgp.cli.errors import BadInput
from ppl_dgp.cli.stacks import STACK

CLASS_LIKELIHOODS = {
    "bernoulli": "two classes by a probit",
    "bernoulli-logit": "two classes by a logit",
    "robust-max": "classes, of which the function that is the largest decides, but for errors",
    "softmax": "classes, whose probabilities are softer",
    "ordinal": "classes in an order, that of the sorted labels or of --label-order",
}
IMAGE_MODELS = {
    "convolutional-gp": "classes of images by their patches: an answer to patches is learnt, wherever they are",
    "deep-convolutional-gp": "the same by layers of patches, whose hidden layers are images",
}
#: of two labels alone
OF_TWO = ("bernoulli", "bernoulli-logit")
#: models that take a likelihood of classes
TAKE_CLASSES = ("sparse-gp", "deep-gp", STACK, *IMAGE_MODELS)
#: channels of the hidden layers of a deep-convolutional-gp, unless told
CHANNELS = (4,)


def is_of_classes(settings: Any) -> bool:
    """Whether the target is one of classes."""
    return settings.model in IMAGE_MODELS or settings.likelihood in CLASS_LIKELIHOODS


def strides_of(settings: Any) -> tuple[int, ...]:
    """Rows and columns from one patch to the next in each layer of an image model; the last of several keeps 1."""
    if settings.model == "convolutional-gp":
        return (settings.stride,)
    return (settings.stride,) * len(settings.widths) + (1,)


def check_classes(settings: Any) -> None:
    """Raise BadInput for settings of classes or images that no data could make right."""
    for option, sizes, lengths, example in (
        ("--image", settings.image, (2, 3), "height and width, or those and channels, such as 28,28"),
        ("--patch", settings.patch, (2,), "height and width, such as 5,5"),
    ):
        if sizes is not None and (len(sizes) not in lengths or min(sizes) < 1):
            raise BadInput(f"{option} is {','.join(map(str, sizes))}", f"give {example}")


def check_numbers(settings: Any) -> None:
    """Raise BadInput for a target of classes where rows are read block by block."""
    if is_of_classes(settings):
        found = "model" if settings.model in IMAGE_MODELS else "likelihood"
        raise BadInput(
            f"--{found} is {getattr(settings, found)}, of classes, but rows are read block by block, their targets as "
            "numbers",
            "give a file that fits in memory, without --stream and --distributed",
        )


def check_labels(settings: Any, labels: tuple[Any, ...], target: str, source: str) -> None:
    """Raise BadInput for labels of another number than the likelihood is of."""
    if settings.likelihood in OF_TWO and len(labels) != 2:
        raise BadInput(
            f"--likelihood is {settings.likelihood}, of two labels, but target {target!r} of {source} has "
            f"{len(labels)}",
            "take robust-max, softmax or ordinal",
        )
