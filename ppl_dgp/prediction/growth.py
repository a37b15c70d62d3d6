"""A warning where simulated dynamics grow without end."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Float


class DivergenceWarning(UserWarning):
    """Dynamics that were learnt grow without end: simulations of them end in no numbers."""


BEGIN_STABLE = "begin the model with start='linear', which is stable, or at the first rows by seen="


def warn_of_growth(
    states: Float[np.ndarray, "D H Q"], name: str = "forecast", remedy: str = BEGIN_STABLE
) -> None:
    """Warn where paths are no numbers any more, and say from which step on.

    :param name: what was called.
    :param remedy: what may help.
    """
    lost = ~np.isfinite(states).all(-1)
    if lost.any():
        first = int(lost.any(0).argmax()) + 1
        warnings.warn(
            f"{name}: found {lost.any(1).sum()} of {len(lost)} paths that are no numbers, from step {first} on, "
            "expected all finite: the dynamics grow without end from there, and what is said of these steps is worth "
            f"nothing; {remedy}",
            DivergenceWarning,
            stacklevel=3,
        )
