"""Prediction as one function of the rows alone, which JAX can trace for any number of them and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.prediction.exact import is_exact, trained_gp
from ppl_dgp.prediction.predict import prediction_program


def row_program(
    key: Array, fit: Posterior, levels: Sequence[float] = (), num_samples: int = 100
) -> Callable[[Float[Array, "N D"]], dict[str, Array]]:
    """What ``predict`` says of rows x (N, D) under ``row_by_row=True``, its parameters and draws constants.

    :param key: of the draws, the same for every row and every call.
    :param fit: of a model of inputs, whose prediction ``predict`` knows.
    :param levels: quantiles of y wanted, each in (0, 1); none of classes without an order.
    :param num_samples: draws of the hidden layers.
    :returns: a function of x to ``mean`` and ``variance`` (N, P), of classes (N, C), and with ``levels`` to
        ``quantiles`` (K, N, P), in the units of training.
    """
    if not is_exact(fit):
        program = prediction_program(fit.model, fit.guide, num_samples, tuple(levels), False, True, "draws")
        params = {name: jnp.asarray(value) for name, value in fit.params.items()}

        def drawn(x: Float[Array, "N D"]) -> dict[str, Array]:
            found = program(jax.random.fold_in(key, 0), params, x, None, {})
            return {name: found[name] for name in ("mean", "variance", "quantiles") if name in found}

        return drawn
    gp, y = trained_gp(fit)

    def closed(x: Float[Array, "N D"]) -> dict[str, Array]:
        mean, f_variance = gp.predictive(y, x)
        variance = jnp.broadcast_to(f_variance[:, None], mean.shape) + gp.noise[0]
        found = {"mean": mean, "variance": variance}
        if levels:
            steps = norm.ppf(jnp.asarray(levels, mean.dtype))
            found["quantiles"] = mean + steps[:, None, None] * jnp.sqrt(variance)
        return found

    return closed
