"""Which regime a switching state space model was in at each step, averaged over draws of q."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace

from ppl_dgp.fit.arguments import takes_fit
from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.gp.contract import Parameters
from ppl_dgp.numerics.compatibility import compiled
from ppl_dgp.prediction.posterior_path import check_number, series
from ppl_dgp.state_space.switching_trajectory import SwitchingTrajectory


@takes_fit
def regime_probabilities(
    key: Array,
    fit: Posterior,
    x: Float[Array, "T C"] | None,
    y: Array,
    *,
    num_samples: int = 100,
) -> np.ndarray:
    """p(s_t = k | y), (T, K): that given states and u, averaged over draws of q.

    :param fit: of ``switching_gpssm``, or of another model with one ``SwitchingTrajectory``.
    :param x: as trained on; None for no controls.
    :param y: as trained on.
    :raises ValueError: if its model has no such trajectory.
    """
    check_number("num_samples", num_samples)
    return np.asarray(_regime_program(fit.guide, num_samples)(key, fit.params, *series(x, y)))


@lru_cache(maxsize=32)
def _regime_program(guide: Callable[..., Any], num_samples: int) -> Callable[..., Array]:
    def program(key: Array, params: Parameters, x: Array, y: Array) -> Float[Array, "T K"]:
        def one(key: Array) -> Float[Array, "T K"]:
            sites = trace(substitute(seed(guide, key), params)).get_trace(x, y).values()
            switching = [
                (site["fn"].trajectory, site["value"])
                for site in sites
                if isinstance(getattr(site["fn"], "trajectory", None), SwitchingTrajectory)
            ]
            if len(switching) != 1:
                raise ValueError(
                    f"guide: found {len(switching)} trajectories with regimes, expected one; take that of "
                    "switching_gpssm"
                )
            ((trajectory, path),) = switching
            result: Array = trajectory.regime_probabilities(path)
            return result

        result: Array = jax.lax.map(one, jax.random.split(key, num_samples)).mean(0)
        return result

    return compiled(program)
