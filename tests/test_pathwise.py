"""Paths in one logarithm: Kalman's evidence, its order with the other bounds, and what few weights are worth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import loss, refuse
from test_gpssm import (
    KEY,
    NONE,
    Y,
    coupled_walk,
    linear,
    mean_of,
    moved,
    nearly_nothing,
    prepared,
    smoothed,
    without_function,
)

from ppl_dgp.guides import Conditional, DoublyStochastic
from ppl_dgp.objectives import PathWarning, Pathwise, PowerEP


def test_every_path_of_the_smoother_weighs_the_evidence():
    """Under the coupled rule at Kalman's smoother, at every α."""
    values, evidence = coupled_walk()
    model, guide, params = prepared(Conditional(), kernel=nearly_nothing)
    params = without_function(params, **values)
    for objective in (Pathwise(0.5, 3), Pathwise(1.0, 2)):
        assert -loss(objective, params, model, guide, NONE, Y) == pytest.approx(evidence, abs=1e-5)
    size = lambda values: Pathwise(1.0, 4).effective_sample_size(KEY, values, model, guide, NONE, Y)
    sample = jax.jit(size)(params)
    assert float(sample) == pytest.approx(4.0, rel=1e-4)


@pytest.mark.slow
def test_paths_of_the_model_average_to_the_evidence():
    """w = Π p(y_t | x_t) under the prior's own paths: log E w at α = 1, less at α = ½, and the ELBO below both."""
    y, x = Y[:3], NONE[:3]
    walk = linear(1, jnp.eye(1), jnp.zeros(1), x)
    _, evidence = smoothed(walk, y, jnp.eye(1), jnp.zeros(1))
    model, guide, params = prepared(DoublyStochastic(), x, y, num_inducing=1, kernel=nearly_nothing)
    params = without_function(params, x_0_loc=jnp.zeros((1, 1)), x_0_scale=jnp.ones((1, 1)))
    found = [mean_of(Pathwise(alpha, 4000), params, model, guide, x, y, draws=20) for alpha in (1.0, 0.5)]
    assert found[0][0] == pytest.approx(evidence, abs=4 * found[0][1] + 0.01)
    below = mean_of(PowerEP(0.0), params, model, guide, x, y, draws=400)
    assert below[0] + 4 * below[1] < found[1][0] < found[0][0]
    size = lambda values: Pathwise(1.0, 100).effective_sample_size(KEY, values, model, guide, x, y)
    small = jax.jit(size)(params)
    assert 1.0 <= float(small) < 80.0


@pytest.mark.slow
def test_long_series_are_warned_of_and_others_refused():
    y = jnp.sin(jnp.arange(25.0))[:, None]
    model, guide, params = prepared(Conditional(), jnp.zeros((25, 0)), y)
    with pytest.warns(PathWarning, match="25 steps"):
        refuse(Pathwise(0.5, 2), params, model, guide, jnp.zeros((25, 0)), y)
    with pytest.raises(ValueError, match="alpha above 0|alpha > 0"):
        Pathwise(0.0).effective_sample_size(KEY, params, model, guide, jnp.zeros((25, 0)), y)


@pytest.mark.slow
def test_alpha_0_is_the_elbo():
    model, guide, params = prepared(Conditional())
    params = moved(params)
    elbo = jax.jit(lambda p: PowerEP(0.0).loss(KEY, p, model, guide, NONE, Y))(params)
    assert jax.jit(lambda p: Pathwise(0.0, 1).loss(KEY, p, model, guide, NONE, Y))(params) == elbo
    slope = jax.jit(jax.grad(lambda p: Pathwise(0.5, 2).loss(KEY, p, model, guide, NONE, Y)))(params)
    assert all(np.isfinite(each).all() for each in slope.values())
