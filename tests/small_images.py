"""Small images that tests of patches tell apart."""

import numpy as np


def bars(count, key):
    """Images of 8 × 8 with a horizontal or a vertical bar of three somewhere, and noise."""
    random = np.random.default_rng(key)
    images, labels = 0.1 * random.normal(size=(count, 8, 8)), random.integers(0, 2, count)
    for image, label in zip(images, labels, strict=True):
        i, j = random.integers(0, 6, 2)
        image[(i + 1, slice(j, j + 3)) if label else (slice(i, i + 3), j + 1)] += 1.0
    return images.reshape(count, -1), labels[:, None]
