"""Steps on minibatches move the rows at hand alone, as if there were no others."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from fast import few
from numpyro.infer import SVI

from ppl_dgp.fit import fit_sghmc, fit_svi, gaussian_factors, natural_adam
from ppl_dgp.fit.adam import adam
from ppl_dgp.fit.program import _update, as_numpyro
from ppl_dgp.fit.rows_at_hand import per_datum_names, update_rows
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, Markov, MeanField
from ppl_dgp.models import deep_gp, gplvm, sparse_gp_regression
from ppl_dgp.objectives import BlackBoxAlpha, ImportanceWeighted, PowerEP

KEY = jax.random.PRNGKey(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
MODEL = deep_gp((2,), 3)
INDEX = jnp.asarray([7, 1, 4])


def begun(model, rule, objective, x=X):
    """An SVI at its start."""
    guide = Guide(model) if rule is None else Guide(model, hidden=rule)
    svi = SVI(model, guide, as_numpyro(adam(0.1)), objective)
    return svi, svi.init(KEY, jnp.asarray(x), jnp.asarray(Y))


def stepped(svi, state, index=INDEX, local=True):
    """A step on rows, and its loss."""
    args = jnp.asarray(X)[index], jnp.asarray(Y)[index]
    if local:
        run = lambda state: update_rows(_update, svi, state, *args, index, len(X))
    else:
        run = lambda state: _update(svi, state, *args, index=index, size=len(X))
    return jax.jit(run)(state)


def test_adam_is_that_of_optax():
    params = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.ones(())}
    ours, theirs = adam(0.1), optax.adam(0.1)
    assert adam(0.1) is ours
    states = ours.init(params), theirs.init(params)
    for step in range(5):
        slopes = jax.tree.map(lambda leaf, step=step: jnp.sin(leaf + step), params)
        found, expected = ours.update(slopes, states[0]), theirs.update(slopes, states[1])
        states = found[1], expected[1]
        for name in params:
            np.testing.assert_allclose(found[0][name], expected[0][name], rtol=1e-5)


RULES = {
    "mean field": (MeanField(), {"loc", "scale"}),
    "Markov": (Markov(), {"loc", "scale", "slope"}),
    "coupled": (Conditional(), {"loc", "scale", "shrinkage"}),
    "tied": (Conditional(tied=True), {"loc", "scale", "shrinkage", "residual"}),
    "free": (Conditional(free=True), {"loc", "scale", "weights"}),
    "doubly stochastic": (DoublyStochastic(), set()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(RULES, 0))
def test_other_rows_are_left_alone(name):
    rule, expected = RULES[name]
    svi, start = begun(MODEL, rule, PowerEP(0.0))
    at = jnp.asarray(X)[INDEX], jnp.asarray(Y)[INDEX], INDEX, len(X)
    names = per_datum_names(svi, start, *at)
    assert {each.split("_")[-1] for each in names} == expected
    first, loss = stepped(svi, start)
    dense, same = stepped(svi, start, local=False)
    assert loss == pytest.approx(float(same), rel=1e-6)
    # a first step has no momentum: a gradient of 0 moves nothing
    params, others = svi.optim.get_params(first.optim_state), svi.optim.get_params(dense.optim_state)
    for each in params:
        np.testing.assert_allclose(params[each], others[each], rtol=1e-5, atol=1e-6)
    second, _ = stepped(svi, first, jnp.asarray([2, 4, 9]))
    after = svi.optim.get_params(second.optim_state)
    counts = second.optim_state[1][1][0].count
    unmoved = [0, 1, 3, 5, 6, 7, 8, 10, 11]
    for each in names:
        np.testing.assert_array_equal(after[each][jnp.asarray(unmoved)], params[each][jnp.asarray(unmoved)])
        assert jnp.abs(after[each][4] - params[each][4]).max() > 0
        np.testing.assert_array_equal(counts[each], [0, 1, 1, 0, 2, 0, 0, 1, 0, 1, 0, 0])
    assert all((counts[each] == 2).all() for each in after if each not in names)
    if names:  # what it is not
        third, _ = stepped(svi, dense, jnp.asarray([2, 4, 9]), local=False)
        moved = svi.optim.get_params(third.optim_state)
        assert any(jnp.abs(moved[each][1] - others[each][1]).max() > 0.01 for each in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", few([PowerEP(0.5), BlackBoxAlpha(1.0), ImportanceWeighted(3)], 0), ids=repr
)
def test_every_objective_sees_the_rows_at_hand(objective):
    svi, start = begun(MODEL, MeanField(), objective)
    found, loss = stepped(svi, start)
    dense, same = stepped(svi, start, local=False)
    assert loss == pytest.approx(float(same), rel=1e-5)
    for one, other in zip(*(jax.tree.leaves(each.optim_state[1][0]) for each in (found, dense)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_has_as_many_rows_as_there_are_data_is_no_parameter_of_theirs():
    """Inducing inputs at every row."""
    svi, start = begun(sparse_gp_regression(len(X)), None, PowerEP(0.0))
    assert svi.optim.get_params(start.optim_state)["gp/inducing"].shape[0] == len(X)
    at = jnp.asarray(X)[INDEX], jnp.asarray(Y)[INDEX], INDEX, len(X)
    assert per_datum_names(svi, start, *at) == set()


def test_natural_gradients_of_rows_see_them_all():
    """They take the share of a minibatch from how many rows there are; those of q(u) alone leave rows to Adam."""
    guide = Guide(MODEL, hidden=MeanField())
    at = jnp.asarray(X)[INDEX], jnp.asarray(Y)[INDEX], INDEX, len(X)
    for factors, expected in (
        (None, {"layer1/h_loc", "layer1/h_scale"}),
        (gaussian_factors(guide, X, Y), set()),
    ):
        svi = SVI(MODEL, guide, as_numpyro(natural_adam(0.1, 0.01, factors)), PowerEP(0.0))
        assert per_datum_names(svi, svi.init(KEY, jnp.asarray(X), jnp.asarray(Y)), *at) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimiser",
    few([numpyro.optim.Adam(0.1), as_numpyro(optax.flatten(optax.adam(0.1)))], 0),
    ids=["packed", "flat"],
)
def test_optimisers_that_hold_all_rows_in_one_move_them_all(optimiser):
    svi = SVI(MODEL, Guide(MODEL, hidden=MeanField()), optimiser, PowerEP(0.0))
    state = svi.init(KEY, jnp.asarray(X), jnp.asarray(Y))
    found, expected = stepped(svi, state), stepped(svi, state, local=False)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_rejected_step_leaves_the_rows_as_they_are():
    svi, start = begun(MODEL, MeanField(), PowerEP(0.0))
    run = lambda state: update_rows(
        _update, svi, state, jnp.full((3, 1), jnp.nan), jnp.zeros((3, 1)), INDEX, 12
    )
    after, loss = jax.jit(run)(start)
    assert jnp.isnan(loss)
    for one, other in zip(*(jax.tree.leaves(each.optim_state) for each in (after, start)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_work_of_a_step_does_not_grow_with_the_rows():
    """What XLA counts as operations of a step on three rows of 12 and of 12 000."""

    def work(rows):
        y = np.zeros((rows, 2))
        model = gplvm(2, latent=1, num_inducing=3)
        svi = SVI(model, Guide(model, hidden=MeanField()), as_numpyro(adam(0.1)), PowerEP(0.0))
        state = jax.eval_shape(
            lambda: svi.init(KEY, jnp.zeros((rows, 0)), jnp.asarray(y + np.arange(rows)[:, None]))
        )
        run = lambda state: update_rows(
            _update, svi, state, jnp.zeros((3, 0)), jnp.zeros((3, 2)), INDEX, rows
        )
        costs = jax.jit(run, donate_argnums=0).lower(state).compile().cost_analysis()
        return costs["flops"]

    assert work(12_000) == pytest.approx(work(12), rel=0.02)


@pytest.mark.slow
def test_minibatches_of_rows_reach_the_optimum_of_all_rows():
    """The bound of a GPLVM in closed form, which has no noise but that of minibatches."""
    y = np.random.default_rng(0).normal(size=(60, 1)) @ np.ones((1, 4)) + 0.1 * np.random.default_rng(
        1
    ).normal(size=(60, 4))
    model, objective = gplvm(4, latent=1, num_inducing=5), PowerEP(0.0, propagation="moments")

    def fit(steps, **settings):
        rate = optax.cosine_decay_schedule(0.1, steps, 0.01)
        guide = Guide(model, hidden=MeanField())
        return fit_svi(KEY, model, guide, objective, None, y, learning_rate=rate, steps=steps, **settings)

    # a third of the rows in twice as many steps
    whole, parts = fit(4500), fit(9000, batch_size=20)
    # 0.01 nat a row
    assert parts.energy(KEY, None, y) == pytest.approx(whole.energy(KEY, None, y), abs=0.6)


@pytest.mark.parametrize("fit", [fit_svi, fit_sghmc])
def test_a_model_that_ignores_the_index_is_refused(fit):
    """Its minibatches would count as if they were all rows, and the prior four times too much."""

    def careless(x, y=None, index=None, size=None):
        return sparse_gp_regression(3)(x, y)

    settings = (Guide(careless), PowerEP(0.0), X, Y) if fit is fit_svi else (X, Y)
    about = {"steps": 2} if fit is fit_svi else {"num_warmup": 2, "num_samples": 4}
    with pytest.raises(
        ValueError, match="model: found minibatches of 3 rows .* all 12, expected each row to count 4"
    ):
        fit(KEY, careless, *settings, batch_size=3, **about)
