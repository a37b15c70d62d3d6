"""The zoo: shapes, per-row noise, several targets, 32 and 64 bits, and the errors that name what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO

from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.models import deep_gp, exact_gp_regression, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.PRNGKey(1)
X = jnp.stack([jnp.linspace(-1.5, 1.5, 7), jnp.cos(jnp.arange(7.0))], 1)
Y = jnp.stack([jnp.sin(2 * X[:, 0]), X[:, 1] ** 2], 1)


def started(model, x=X, y=Y, **options):
    guide = Guide(model, **options)
    sites = handlers.trace(handlers.seed(guide, KEY)).get_trace(x, y)
    return guide, {name: site["value"] for name, site in sites.items() if site["type"] == "param"}


def prior(model, **arguments):
    return handlers.trace(handlers.seed(model, KEY)).get_trace(X, **arguments)


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
    parts = [full.loss(KEY, params, model, guide, X[i], Y[i], index=i, size=7) for i in (index, jnp.arange(7))]
    alone = sparse_gp_regression(3, num_outputs=2, noise=noise[index], train_inducing=False)
    kl = -full.loss(KEY, params, sparse_gp_regression(3, num_outputs=2, noise=1e12), guide, X, Y)
    constant = -0.5 * 14 * jnp.log(2 * jnp.pi * 1e12)
    # at infinite noise only the constant and the KL are left, and q(u) = p(u) has none
    assert float(kl - constant) == pytest.approx(0.0, abs=1e-6)
    here = full.loss(KEY, params, alone, Guide(alone), X[index], Y[index])
    assert float(parts[0]) == pytest.approx(3.5 * float(here), rel=1e-9)


def test_columns_are_independent_given_the_kernel():
    both = sparse_gp_regression(3, num_outputs=2, noise=0.1)
    one = sparse_gp_regression(3, noise=0.1)
    guide, params = started(both)
    parts = [Collapsed().loss(KEY, params, one, Guide(one), X, Y[:, p]) for p in range(2)]
    assert float(Collapsed().loss(KEY, params, both, guide, X, Y)) == pytest.approx(float(sum(parts)), rel=1e-12)
    exact = exact_gp_regression(noise=0.1)
    values = {"gp/variance": jnp.array(1.2), "gp/lengthscale": jnp.array([0.8, 1.1])}
    loss = lambda y: float(Trace_ELBO().loss(KEY, values, exact, lambda x, y: None, X, y))  # noqa: E731
    assert loss(Y) == pytest.approx(loss(Y[:, 0]) + loss(Y[:, 1]), rel=1e-12)


def test_zero_layers_are_a_sparse_gp():
    deep, sparse = deep_gp((), 3, num_outputs=2), sparse_gp_regression(3, num_outputs=2)
    guide, params = started(sparse)
    renamed = {name.replace("gp/", "layer1/"): value for name, value in params.items()}
    expected = PowerEP(0.5).loss(KEY, params, sparse, guide, X, Y)
    assert float(PowerEP(0.5).loss(KEY, renamed, deep, Guide(deep), X, Y)) == pytest.approx(float(expected), rel=1e-12)


def test_32_and_64_bits_agree():
    model = deep_gp((2,), 4, num_outputs=2, jitter=1e-5)
    guide, params = started(model, hidden=DoublyStochastic())
    # draws differ between widths: many particles, inner layers near-deterministic
    narrow = lambda a: jnp.asarray(a, jnp.float32)  # noqa: E731
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
