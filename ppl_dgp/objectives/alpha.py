"""The order α of a divergence: 0 is the ELBO."""

from __future__ import annotations

from typing import Any


def checked_alpha(name: str, alpha: Any) -> float:
    """α of the objective ``name``.

    :raises TypeError: if it is not a number.
    :raises ValueError: if it is outside [0, 1].
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise TypeError(f"{name}: alpha: found {alpha!r}, expected a number in [0, 1]")
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"{name}: alpha: found {alpha}, expected a number in [0, 1]; 0 is the ELBO")
    return float(alpha)
