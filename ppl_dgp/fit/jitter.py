"""What the covariance matrices of a fitted model needed on their diagonals to be factorised."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI

from ppl_dgp.fit.advice import jitter_advice
from ppl_dgp.fit.program import cached_program
from ppl_dgp.gp.representation import replayed
from ppl_dgp.numerics.compatibility import compiled_to_run_once
from ppl_dgp.numerics.products import multiplying_in_full


class JitterWarning(UserWarning):
    """A covariance matrix was singular to working precision at the parameters found."""


def used_jitter(
    svi: SVI, params: Mapping[str, Array], x: Float[Array, "N D"], y: Num[Array, "N P"]
) -> dict[str, float]:
    """The relative jitter at each deterministic site ``…/jitter`` of the model, given constrained parameters."""
    return {
        name: float(value)
        for name, value in cached_program(svi, _build_jitter).run(dict(params), x, y).items()
    }


def warn_of_jitter(jitter: Mapping[str, float], dtype: Any) -> None:
    """Warn, with advice, where more was needed than is added to every matrix."""
    if (advice := jitter_advice(jitter, dtype)) is not None:
        warnings.warn(JitterWarning(advice), stacklevel=3)


def _build_jitter(svi: SVI) -> Callable[..., dict[str, Array]]:
    """``run(params, x, y)``: the jitter by site. Compiled, so that all else that the model computes is left out."""

    def run(
        params: dict[str, Array], x: Float[Array, "N D"], y: Num[Array, "N P"]
    ) -> dict[str, Float[Array, ""]]:
        def sites(fn: Callable[..., Any]) -> dict[str, Any]:
            found: dict[str, Any] = trace(substitute(seed(fn, jax.random.key(0)), data=params)).get_trace(
                x, y
            )
            return found

        found = sites(replayed(svi.model, sites(svi.guide)))
        return {
            name: jnp.max(site["value"])
            for name, site in found.items()
            if site["type"] == "deterministic" and name.endswith("/jitter")
        }

    return jax.jit(multiplying_in_full(run), **compiled_to_run_once())
