"""The zoo: shapes, per-row noise, several targets, training, 32 and 64 bits, errors that name what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from scipy import optimize, stats

from ppl_dgp.fit import Posterior, fit_lbfgs
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(1)
X = jnp.stack([jnp.linspace(-1.5, 1.5, 7), jnp.cos(jnp.arange(7.0))], 1)
Y = jnp.stack([jnp.sin(2 * X[:, 0]), X[:, 1] ** 2], 1)


def started(model, x=X, y=Y, **options):
    guide = Guide(model, **options)
    return guide, initial(KEY, model, guide, x, y)


def compiled(objective, model, guide):
    """The loss as a function of parameters, inputs and targets."""
    return jax.jit(lambda params, x, y: objective.loss(KEY, params, model, guide, x, y))


def prior(model, **arguments):
    return handlers.trace(handlers.seed(model, KEY)).get_trace(X, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(), (1,), (2, 3)])
def test_widths_below_at_and_above_the_inputs(widths):
    sites = prior(deep_gp(widths, 4, num_outputs=2))
    for layer, width in enumerate(widths, start=1):
        assert sites[f"layer{layer}/h"]["value"].shape == (7, width)
        assert sites[f"layer{layer}/u"]["value"].shape == (width, 4)
    assert sites["y"]["value"].shape == (7, 2)
    with numpyro.handlers.seed(rng_seed=0):
        assert deep_gp(widths, 4, num_outputs=2, subsample_size=3)(X, Y).shape == (3, 2)


def test_noise_given_per_row_follows_the_minibatch():
    noise = jnp.linspace(0.1, 0.7, 7)
    model = sparse_gp_regression(3, num_outputs=2, noise=noise, train_inducing=False)
    guide, params = started(model)
    index = jnp.array([5, 2])
    full = PowerEP(0.0)
    parts = [
        jax.jit(lambda i: full.loss(KEY, params, model, guide, X[i], Y[i], index=i, size=7))(i)
        for i in (index, jnp.arange(7))
    ]
    alone = sparse_gp_regression(3, num_outputs=2, noise=noise[index], train_inducing=False)
    kl = -loss(full, params, sparse_gp_regression(3, num_outputs=2, noise=1e12), guide, X, Y)
    constant = -0.5 * 14 * jnp.log(2 * jnp.pi * 1e12)
    # at infinite noise only the constant and the KL are left, and q(u) = p(u) has none
    assert float(kl - constant) == pytest.approx(0.0, abs=1e-6)
    here = loss(full, params, alone, Guide(alone), X[index], Y[index])
    assert float(parts[0]) == pytest.approx(3.5 * here, rel=1e-9)


def test_columns_are_independent_given_the_kernel():
    both = sparse_gp_regression(3, num_outputs=2, noise=0.1)
    one = sparse_gp_regression(3, noise=0.1)
    guide, params = started(both)
    parts = [loss(Collapsed(), params, one, Guide(one), X, Y[:, p]) for p in range(2)]
    assert loss(Collapsed(), params, both, guide, X, Y) == pytest.approx(sum(parts), rel=1e-12)
    exact = exact_gp_regression(noise=0.1)
    values = {"gp/variance": jnp.array(1.2), "gp/lengthscale": jnp.array([0.8, 1.1])}
    of = lambda y: loss(Trace_ELBO(), values, exact, lambda x, y: None, X, y)
    assert of(Y) == pytest.approx(of(Y[:, 0]) + of(Y[:, 1]), rel=1e-12)


def test_zero_layers_are_a_sparse_gp():
    deep, sparse = deep_gp((), 3, num_outputs=2), sparse_gp_regression(3, num_outputs=2)
    guide, params = started(sparse)
    renamed = {name.replace("gp/", "layer1/"): value for name, value in params.items()}
    expected = loss(PowerEP(0.5), params, sparse, guide, X, Y)
    assert loss(PowerEP(0.5), renamed, deep, Guide(deep), X, Y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_32_and_64_bits_agree():
    model = deep_gp((2,), 4, num_outputs=2, jitter=1e-5)
    guide, params = started(model, hidden=DoublyStochastic())
    # draws differ between widths: many particles, inner layers near-deterministic
    narrow = lambda a: jnp.asarray(a, jnp.float32)
    objective = PowerEP(0.0, 500)
    wide = float(objective.loss(KEY, params, model, guide, X, Y))
    found = objective.loss(KEY, jax.tree.map(narrow, params), model, guide, narrow(X), narrow(Y))
    assert np.isfinite(float(found))
    assert float(found) == pytest.approx(wide, rel=0.02)


@pytest.mark.parametrize(
    "argument, make, x, y",
    [
        ("widths", lambda: deep_gp((2, 0), 3), X, Y),
        ("num_inducing", lambda: sparse_gp_regression(8), X, Y[:, :1]),
        ("num_inducing", lambda: sparse_gp_regression(0), X, Y[:, :1]),
        ("num_outputs", lambda: sparse_gp_regression(3), X, Y),
        ("y", lambda: sparse_gp_regression(3), X, Y[:3, :1]),
        ("x", lambda: sparse_gp_regression(3), X[:, 0], Y[:, :1]),
    ],
)
def test_bad_inputs_name_the_argument(argument, make, x, y):
    with pytest.raises(ValueError, match=argument):
        handlers.seed(make(), KEY)(x, y)


def test_the_exact_gp_refuses_a_minibatch():
    with pytest.raises(ValueError, match="index"):
        handlers.seed(exact_gp_regression(), KEY)(X, Y, index=jnp.array([0]))


@pytest.mark.slow
def test_objective_and_prediction_of_several_columns_are_those_of_each():
    both = sparse_gp_regression(3, num_outputs=2, noise=0.1)
    one = sparse_gp_regression(3, noise=0.1)
    alone = Guide(one)
    guide, params = started(both)
    params["gp/u_loc"] = jnp.array([[0.4, -0.2, 0.7], [-0.5, 0.1, 0.3]])
    params["gp/u_scale"] = jnp.stack([0.5 * jnp.eye(3), jnp.eye(3) + jnp.tril(jnp.full((3, 3), 0.2))])
    columns = [
        {**params, **{f"gp/u_{k}": params[f"gp/u_{k}"][p : p + 1] for k in ("loc", "scale")}}
        for p in range(2)
    ]
    for objective in (PowerEP(0.5), BlackBoxAlpha(0.5)):
        whole = compiled(objective, both, guide)(params, X, Y)
        column = compiled(objective, one, alone)
        parts = [float(column(q, X, Y[:, p : p + 1])) for p, q in enumerate(columns)]
        assert float(whole) == pytest.approx(sum(parts), rel=1e-12)
    new = X[:3] + 0.2
    whole = predict(KEY, Posterior(both, guide, params), new, Y[:3], num_samples=2)
    parts = [
        predict(KEY, Posterior(one, alone, q), new, Y[:3, p : p + 1], num_samples=2)
        for p, q in enumerate(columns)
    ]
    for quantity in ("f_mean", "f_variance", "mean", "variance"):
        together = np.concatenate([getattr(part, quantity) for part in parts], 1)
        np.testing.assert_allclose(getattr(whole, quantity), together, rtol=1e-12)
    # a row's log density is that of all its columns
    np.testing.assert_allclose(whole.log_density, parts[0].log_density + parts[1].log_density, rtol=1e-12)


@pytest.mark.slow
def test_row_by_row_a_prediction_is_that_of_a_table_of_one_row():
    model = deep_gp((1,), 3, num_outputs=2)
    guide, params = started(model, hidden=DoublyStochastic())
    settings = {"num_samples": 4, "levels": (0.2, 0.8), "samples": True}
    whole = predict(
        KEY, Posterior(model, guide, params), X[:3], Y[:3], row_by_row=True, batch_size=2, **settings
    )
    for n in range(3):
        alone = predict(KEY, Posterior(model, guide, params), X[n : n + 1], Y[n : n + 1], **settings)
        for quantity in ("f_mean", "f_variance", "mean", "variance", "log_density"):
            np.testing.assert_allclose(getattr(whole, quantity)[n], getattr(alone, quantity)[0], rtol=1e-10)
        for quantity in ("quantiles", "samples"):
            np.testing.assert_allclose(
                getattr(whole, quantity)[:, n], getattr(alone, quantity)[:, 0], rtol=1e-10
            )


@pytest.mark.slow
def test_several_columns_through_a_hidden_layer():
    """Without kernels h = x + ε, y = h + ε in each column: evidence and prediction are Gaussian."""

    def model(x, y=None, index=None, size=None):
        inducing = jnp.array([[-1.0, 0.2], [0.8, -0.4]])
        mean = Linear(jnp.eye(2))
        f1, f2 = (sparse_gp(f"layer{i}", RBF(1e-12, 1.0), inducing, 2, mean=mean) for i in (1, 2))
        with data_plate(size or x.shape[0], index):
            h = numpyro.sample("layer1/h", f1(x).noisy(jnp.array([0.1, 0.3])), infer={"role": "hidden"})
            numpyro.sample("y", f2(h).noisy(jnp.array([0.2, 0.1])), obs=y)

    guide, params = started(model, hidden=MeanField())
    # the posterior: precisions add
    weight = jnp.array([0.1, 0.3]) / jnp.array([0.3, 0.4])
    params["layer1/h_loc"] = X + weight * (Y - X)
    params["layer1/h_scale"] = jnp.broadcast_to(
        jnp.sqrt(weight * jnp.array([0.2, 0.1]) / jnp.array([0.1, 0.3])), (7, 2)
    )
    spread = np.sqrt([0.3, 0.4])
    for objective in (PowerEP(0.0, 2), PowerEP(0.5, 2)):
        evidence = stats.norm.logpdf(Y, X, spread).sum()
        found = -float(compiled(objective, model, guide)(params, X, Y))
        assert found == pytest.approx(evidence, abs=1e-4)
    draws = 4000
    found = predict(KEY, Posterior(model, guide, params), X[:2], Y[:2], num_samples=draws)
    # given h a prediction has the variance of y's noise: that of h is left to the draws
    assert np.abs((found.mean - X[:2]) / np.sqrt([0.1, 0.3])).max() < 4 / draws**0.5
    np.testing.assert_allclose(
        found.variance, np.broadcast_to(spread**2, (2, 2)), rtol=4 * (2 / draws) ** 0.5
    )
    expected = stats.norm.logpdf(Y[:2], X[:2], spread).sum(1)
    # p(y | h) / p(y) varies by about its own size
    np.testing.assert_allclose(found.log_density, expected, atol=4 * 2 / draws**0.5)


@pytest.mark.slow
def test_lbfgs_finds_the_highest_collapsed_bound():
    model = sparse_gp_regression(3)
    x, y = X[:, :1], Y[:, :1] + 0.2 * jnp.cos(9 * X[:, :1])
    fit = fit_lbfgs(KEY, model, x, y, guide=Guide(model), objective=Collapsed(0.0), steps=500)
    best = -float(fit.losses[0, -1])

    def parts(theta):
        variance, lengthscale, noise = np.exp(theta[:3])
        kernel = lambda a, b: variance * np.exp(-0.5 * np.subtract.outer(a, b) ** 2 / lengthscale**2)
        at, z = np.asarray(x[:, 0]), theta[3:]
        kxz = kernel(at, z)
        # the jitter of the package: 1e-8 of the mean diagonal
        projected = kxz @ np.linalg.solve(kernel(z, z) + 1e-8 * variance * np.eye(3), kxz.T)
        log_normal = lambda cov: stats.multivariate_normal.logpdf(y[:, 0], None, cov + noise * np.eye(7))
        titsias = log_normal(projected) - np.trace(kernel(at, at) - projected) / (2 * noise)
        return titsias, log_normal(kernel(at, at))

    names = ("gp/variance", "gp/lengthscale", "likelihood/noise")
    hyper = [float(jnp.log(fit.params[name]).sum()) for name in names]
    theta = np.array([*hyper, *np.asarray(fit.params["gp/inducing"][:, 0])])
    bound, evidence = parts(theta)
    assert best == pytest.approx(bound, abs=1e-6)
    # an optimiser of its own, begun beside it, comes back to the same height
    again = optimize.minimize(lambda t: -parts(t)[0], theta + 0.05 * np.sin(np.arange(6.0)), tol=1e-10)
    assert -again.fun == pytest.approx(best, abs=1e-5)
    assert best < evidence
    exact = fit_lbfgs(KEY, exact_gp_regression(), x, y)
    assert best < -float(exact.losses[0, -1])
    # and the fit ends with the q(u) whose bound that is
    stated = -float(PowerEP(0.0).loss(KEY, fit.params, model, Guide(model), x, y))
    assert stated == pytest.approx(best, rel=1e-9)
