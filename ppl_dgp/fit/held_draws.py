"""Whether a loss that was brought down at draws that were held is as low at others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
from jaxtyping import Array, Shaped

from ppl_dgp.fit.convergence import Convergence
from ppl_dgp.fit.program import split_key

FRESH_DRAWS = 16


class HeldDrawsWarning(UserWarning):
    """A guide that draws was fitted to the draws that were held, and is worse at others."""


def beside_fresh_draws(
    known: Convergence, held: float, loss: Callable[[Array], float], key: Shaped[Array, "..."]
) -> Convergence:
    """What is known, the gap no less than what fresh draws add to the loss, if anything is drawn.

    Warns with ``HeldDrawsWarning`` if they add more than the tolerance and two standard errors.

    :param held: the loss in nats at the draws that were held.
    :param loss: that of a key.
    """
    keys = split_key(jax.random.fold_in(key, 1), FRESH_DRAWS)
    found = [loss(each) for each in keys[:2]]
    if found[0] == found[1]:
        return known
    found += [loss(each) for each in keys[2:]]
    worse, error = float(np.mean(found)) - held, float(np.std(found, ddof=1)) / FRESH_DRAWS**0.5
    if not worse - 2.0 * error <= known.tolerance:
        warnings.warn(
            f"guide: found that it draws, with a loss of {held:.6g} at the draws that were held and {held + worse:.6g} "
            f"± {error:.2g} at fresh ones, expected them alike; train with fit_svi, which draws anew at each step",
            HeldDrawsWarning,
            stacklevel=3,
        )
    return replace(
        known, gap=max(known.gap, worse if np.isfinite(worse) else np.inf), error=max(known.error, error)
    )
