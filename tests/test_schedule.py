"""α that changes as a fit goes on: every step's objective is that of its α."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import initial

from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import Conditional, Guide
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import ApproximatePowerEP, BlackBoxAlpha, ImportanceWeighted, PowerEP

KEY = jax.random.PRNGKey(2)
X = np.linspace(-1.0, 1.0, 8)[:, None]
Y = np.sin(4.0 * X)
ANNEALED = optax.linear_schedule(0.0, 1.0, 10)


@pytest.mark.parametrize(
    "kind",
    [
        PowerEP,
        pytest.param(BlackBoxAlpha, marks=pytest.mark.slow),
        pytest.param(ApproximatePowerEP, marks=pytest.mark.slow),
    ],
)
def test_the_objective_of_a_step_is_that_of_its_alpha(kind):
    """One layer has a closed form, so that at α = 0 too the traced branch must agree to all digits."""
    model = sparse_gp_regression(4)
    guide = Guide(model)
    params = initial(KEY, model, guide, jnp.asarray(X), jnp.asarray(Y))
    about = params, model, guide, jnp.asarray(X), jnp.asarray(Y)
    annealed = kind(ANNEALED, 2)
    static_loss = lambda objective, p: objective.loss(KEY, p, *about[1:])
    value = jax.jit(jax.value_and_grad(lambda p, step: annealed.at_step(step).loss(KEY, p, *about[1:])))
    for step in (0, 3):
        found, slope = value(params, step)
        wanted, slopes = jax.jit(jax.value_and_grad(partial(static_loss, kind(step / 10, 2))))(params)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
        for name in slope:
            np.testing.assert_allclose(slope[name], slopes[name], rtol=1e-6, atol=1e-8)


@pytest.mark.slow  # compiles fits of two layers
@pytest.mark.parametrize("objective", [PowerEP(ANNEALED, 2), ImportanceWeighted(2, ANNEALED)])
def test_a_deep_gp_is_annealed(objective):
    model = deep_gp((1,), 4)
    fit = fit_svi(KEY, model, Guide(model, hidden=Conditional()), objective, X, Y, steps=12, chunk=6)
    assert np.isfinite(fit.losses).all()
    same = fit_svi(KEY, model, Guide(model, hidden=Conditional()), objective, X, Y, steps=12, chunk=6)
    np.testing.assert_array_equal(fit.losses, same.losses)


def test_a_fit_follows_the_schedule():
    """The loss of every step is that of its α: with a rate of 0, at the parameters where it starts."""
    model = sparse_gp_regression(4)
    guide = Guide(model)
    about, data = {"steps": 4, "chunk": 4, "optimizer": optax.sgd(0.0)}, (jnp.asarray(X), jnp.asarray(Y))
    fit = fit_svi(KEY, model, guide, PowerEP(ANNEALED, 1), X, Y, **about)
    value = jax.jit(
        lambda step: PowerEP(ANNEALED, 1).at_step(step).loss(KEY, fit.params, model, guide, *data)
    )
    np.testing.assert_allclose(fit.losses[0], [value(jnp.asarray(step)) for step in range(4)], rtol=1e-8)


def test_what_needs_a_step_says_so():
    model = sparse_gp_regression(4)
    with pytest.raises(ValueError, match="schedule without a step"):
        PowerEP(ANNEALED).loss(KEY, {}, model, Guide(model), jnp.asarray(X), jnp.asarray(Y))
    assert "schedule" in repr(PowerEP(ANNEALED))
