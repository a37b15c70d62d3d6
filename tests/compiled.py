"""Objectives compiled before they are evaluated once: operation by operation they take several times as long."""

from typing import Any

import jax
import numpyro
from jax import Array
from numpyro.infer import SVI

from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(0)


def initial(key: Array, model: Any, guide: Any, x: Array, y: Array) -> dict[str, Array]:
    """Constrained parameters to start from; compiled, inducing inputs are random rows and not k-means centres."""
    svi = SVI(model, guide, numpyro.optim.Adam(0.1), PowerEP())
    return dict(jax.jit(lambda key: svi.get_params(svi.init(key, x, y)))(key))


def loss(
    objective: Any, params: dict[str, Array], model: Any, guide: Any, *args: Any, key: Array = KEY
) -> float:
    """``objective.loss`` at parameters."""
    return float(jax.jit(lambda values: objective.loss(key, values, model, guide, *args))(params))


def refuse(objective: Any, params: dict[str, Array], model: Any, guide: Any, *args: Any) -> None:
    """``objective.loss`` without numbers, for errors that do not wait for them."""
    jax.eval_shape(lambda values: objective.loss(KEY, values, model, guide, *args), params)
