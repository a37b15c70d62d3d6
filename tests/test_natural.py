"""Natural gradients against the formula in natural and expectation parameters, and the optimal q(u) in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import loss
from fast import few
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to, constraints

from ppl_dgp.fit import fit_svi, natural_adam
from ppl_dgp.guides import Conditional, Diagonal, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.numerics.natural_gaussian import natural_step
from ppl_dgp.objectives import PowerEP, collapsed_energy

KEY = jax.random.key(4)
M, OUTPUTS, ROWS, NOISE = 6, 2, 25, 0.1
BIJECTION = biject_to(constraints.lower_cholesky)
MODEL = sparse_gp_regression(M, num_outputs=OUTPUTS, noise=NOISE)
GUIDE, ELBO = Guide(MODEL), PowerEP(0.0)


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(-2, 2, size=(ROWS, 1)), axis=0)
    y = np.concatenate([np.sin(3 * x), x**2 - 1], axis=1) + NOISE**0.5 * random.normal(size=(ROWS, OUTPUTS))
    return jnp.asarray(x), jnp.asarray(y)


def full_rank(seed, *batch):
    """A mean (M,) and an unconstrained factor of some q(u)."""
    random = np.random.default_rng(seed)
    size = M * (M + 1) // 2
    return jnp.asarray(random.normal(size=(*batch, M))), jnp.asarray(0.3 * random.normal(size=(*batch, size)))


def moments(loc, scale):
    lower = np.asarray(BIJECTION(scale))
    return np.asarray(loc), lower @ lower.T


def loss_of(seed):
    """A smooth function of (m, S), not convex, with its gradient in them."""
    random = np.random.default_rng(seed)
    a, b, c = random.normal(size=(M, M)), random.normal(size=(M, M)), random.normal(size=M)

    def loss(mean, covariance):
        quadratic = 0.5 * mean @ (b @ b.T) @ mean + c @ mean + 0.3 * jnp.trace((a + a.T) @ covariance)
        return quadratic + 0.25 * mean @ covariance @ mean - 0.5 * jnp.linalg.slogdet(covariance)[1]

    return loss


def explicit(loc, scale, loss, rate):
    """θ − rate ∂loss/∂η with inverses, back in (m, S); S may have lost its definiteness."""
    mean, covariance = moments(loc, scale)
    in_mean, in_covariance = map(np.asarray, jax.grad(loss, (0, 1))(mean, covariance))
    in_covariance = 0.5 * (in_covariance + in_covariance.T)
    # S = η₂ − η₁η₁ᵀ: ∂/∂η₁ = ∂/∂m − 2 (∂/∂S) m, ∂/∂η₂ = ∂/∂S
    first = np.linalg.inv(covariance) @ mean - rate * (in_mean - 2.0 * in_covariance @ mean)
    second = -0.5 * np.linalg.inv(covariance) - rate * in_covariance
    covariance = np.linalg.inv(-2.0 * second)
    return covariance @ first, covariance


def stepped(loc, scale, loss, rate):
    def unconstrained(loc, scale):
        lower = BIJECTION(scale)
        return loss(loc, lower @ lower.T)

    gradients = jax.grad(unconstrained, (0, 1))(loc, scale)
    found = jax.jit(natural_step)(loc, scale, *gradients, jnp.asarray(rate))
    return *moments(found.loc, found.scale), bool(found.halvings)


@pytest.mark.parametrize("seed", few([1, 2, 3], 0))
def test_step_is_the_formula_with_inverses(seed):
    q, loss, rate = full_rank(seed), loss_of(seed), 0.05
    *found, halved = stepped(*q, loss, rate)
    for got, expected in zip(found, explicit(*q, loss, rate), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
    assert not halved


def test_a_step_that_would_make_the_precision_indefinite_is_halved():
    q, loss, rate = full_rank(1), loss_of(1), 64.0
    eigenvalues = lambda rate: np.linalg.eigvalsh(explicit(*q, loss, rate)[1])
    taken = rate
    while eigenvalues(taken).min() < 0:
        taken /= 2
    *found, halved = stepped(*q, loss, rate)
    assert halved and taken < rate
    for got, expected in zip(found, explicit(*q, loss, taken), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-10)


def test_a_step_knows_how_far_it_leads_and_goes_no_further_than_it_may():
    loc, scale = full_rank(2)
    slopes = full_rank(3)
    step = jax.jit(lambda most: natural_step(loc, scale, *slopes, jnp.asarray(0.2), most))
    found = step(jnp.inf)
    (mean, covariance), (mean_after, covariance_after) = moments(loc, scale), moments(found.loc, found.scale)
    inverse, move = np.linalg.inv(covariance_after), mean_after - mean
    # KL[N(m, S) ‖ N(m', S')]
    expected = 0.5 * (np.trace(inverse @ covariance) + move @ inverse @ move - M)
    expected += 0.5 * (np.linalg.slogdet(covariance_after)[1] - np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(found.divergence, expected, rtol=1e-9)
    near = step(0.1 * expected)
    assert near.halvings > found.halvings and 0.0 < near.divergence <= 0.1 * expected


def test_one_step_reaches_the_optimal_inducing_outputs_and_a_second_stays(table):
    random = np.random.default_rng(5)
    start = {"gp/u_loc": jnp.asarray(random.normal(size=(OUTPUTS, M)))}
    start["gp/u_scale"] = BIJECTION(jnp.asarray(0.5 * random.normal(size=(OUTPUTS, M * (M + 1) // 2))))
    one, two = (
        fit_svi(KEY, MODEL, GUIDE, ELBO, *table, steps=n, start=start, optimizer=natural_adam(1.0, 0.0))
        for n in (1, 2)
    )
    params = one.params
    kernel = RBF(params["gp/variance"], params["gp/lengthscale"])
    optimum = jax.jit(lambda z: collapsed_energy(kernel, z, NOISE, *table, 0.0))(params["gp/inducing"])
    # at the optimum the bound is quadratic in the rounding errors of q(u)
    np.testing.assert_allclose(-loss(ELBO, params, MODEL, GUIDE, *table), optimum, rtol=1e-8)
    np.testing.assert_allclose(-two.losses[0, 1], optimum, rtol=1e-8)
    assert -two.losses[0, 0] < optimum - 10.0
    for name in one.params:
        np.testing.assert_allclose(two.params[name], params[name], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("rate", few([0.02, optax.exponential_decay(0.02, 1, 0.5)], 1))
def test_other_parameters_are_those_of_adam_alone(rate):
    loc, scale = full_rank(1, OUTPUTS)
    # a hidden layer's rows and a q(u) that is diagonal look alike, but are not full-rank q(u)
    others = {"layer1/h_loc": jnp.ones((3, 1)), "layer1/h_scale": jnp.ones((3, 1)), "noise": jnp.asarray(0.3)}
    others |= {"layer1/u_loc": jnp.ones((1, 4)), "layer1/u_scale": jnp.ones((1, 4))}
    params = {**others, "u_loc": loc, "u_scale": scale}
    both, adam = natural_adam(0.1, rate), optax.adam(rate)
    state, alone, plain = both.init(params), adam.init(others), others
    for step in range(3):
        gradients = {name: jnp.cos(value + step) for name, value in params.items()}
        updates, state = jax.jit(both.update)(gradients, state, params)
        expected, alone = adam.update({name: gradients[name] for name in others}, alone, plain)
        params, plain = optax.apply_updates(params, updates), optax.apply_updates(plain, expected)
        for name in others:
            np.testing.assert_allclose(params[name], plain[name], rtol=1e-13)
    assert state.steps == 3 and np.all(params["u_loc"] != loc)


def test_the_rate_may_be_a_schedule():
    loc, scale = full_rank(2, 1)
    params = {"u_loc": loc, "u_scale": scale}
    gradients = jax.tree.map(lambda leaf: 0.01 * jnp.sin(leaf), params)
    scheduled = natural_adam(lambda step: jnp.where(step == 0, 0.3, 0.7))
    state = scheduled.init(params)
    for rate in (0.3, 0.7):
        found, state = jax.jit(scheduled.update)(gradients, state, params)
        fixed = natural_adam(rate)
        expected, _ = jax.jit(fixed.update)(gradients, fixed.init(params), params)
        np.testing.assert_allclose(*(ravel_pytree(each)[0] for each in (found, expected)), rtol=1e-12)


@pytest.mark.slow
def test_minibatches_restarts_and_checkpoints(table, tmp_path):
    def fit(steps, **settings):
        optimizer = natural_adam(0.2, 0.02)
        settings |= {"restarts": 2, "batch_size": 10, "chunk": 20, "optimizer": optimizer}
        return fit_svi(KEY, MODEL, GUIDE, ELBO, *table, steps=steps, **settings)

    whole = fit(60)
    fit(20, checkpoint=tmp_path / "saved")
    resumed = fit(60, checkpoint=tmp_path / "saved", resume=True)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    for name in whole.restart_params:
        np.testing.assert_array_equal(resumed.restart_params[name], whole.restart_params[name])
    assert whole.rejected_steps == 0
    assert np.all(whole.losses[:, -20:].mean(axis=1) < whole.losses[:, :5].mean(axis=1))


@pytest.mark.slow
def test_a_sparse_gp_trains_faster_than_with_adam(table):
    natural, adam = (
        fit_svi(KEY, MODEL, GUIDE, ELBO, *table, steps=60, learning_rate=0.02, optimizer=optimizer)
        for optimizer in (natural_adam(1.0, 0.02), None)
    )
    assert natural.rejected_steps == 0 and natural.losses[0, -1] < adam.losses[0, -1] - 1.0


@pytest.mark.slow
def test_a_deep_gp_trains(table):
    x, y = table
    model = deep_gp((1,), M)
    optimizer = natural_adam(0.1, 0.02)
    fit = fit_svi(
        KEY, model, Guide(model, hidden=Conditional()), ELBO, x, y[:, :1], steps=60, optimizer=optimizer
    )
    assert fit.rejected_steps == 0 and fit.losses[0, -10:].mean() < fit.losses[0, :10].mean() - 5.0


def test_the_same_settings_give_the_same_optimiser():
    assert natural_adam(0.1, 0.01) is natural_adam(0.1, 0.01)


def test_refusals_say_what_was_expected(table):
    with pytest.raises(ValueError, match="natural_rate: found -1.0, expected a number of at least 0"):
        natural_adam(-1.0)
    with pytest.raises(
        ValueError, match=r"found the parameters \[.*'gp/u_loc'.*\], expected a full-rank q\(u\)"
    ):
        guide = Guide(MODEL, inducing=Diagonal())
        fit_svi(KEY, MODEL, guide, ELBO, *table, steps=1, optimizer=natural_adam())
