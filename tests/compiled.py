"""Objectives compiled before they are evaluated once: operation by operation they take several times as long."""

from typing import Any

import jax
import numpy as np
import numpyro
import pytest
from jax import Array
from numpyro.infer import SVI

from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(0)
#: for what NumPyro itself follows through a program: its 0.21 does not know the programs of JAX 0.11
numpyro_follows = pytest.mark.skipif(
    numpyro.__version__.startswith("0.21.") and jax.__version_info__ >= (0, 11),
    reason="NumPyro 0.21 cannot follow dependencies under JAX 0.11",
)


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


def on_host(params: dict[str, Array]) -> dict[str, np.ndarray]:
    """Parameters in NumPy: arithmetic on each of other shapes would be compiled."""
    return {name: np.asarray(value) for name, value in params.items()}


def noise_like(value: np.ndarray, number: int) -> np.ndarray:
    """Standard normal numbers of a parameter's shape, others for each number."""
    return np.random.default_rng(number).normal(size=value.shape).astype(value.dtype)
