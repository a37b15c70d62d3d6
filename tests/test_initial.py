"""The compiled start of a fit: NumPyro's own numbers, and no program taken for another."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from fast import few
from numpyro.infer import SVI
from scipy.cluster.vq import kmeans2

from ppl_dgp.fit import fit_lbfgs, fit_many, fit_stream, fit_svi
from ppl_dgp.fit.initial import initialise
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide, MomentMatched
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp
from ppl_dgp.models.inducing import spread_out
from ppl_dgp.objectives import PowerEP

KEY, X = jax.random.PRNGKey(0), jnp.linspace(-1.0, 1.0, 9)[:, None]


def both(model, x=X, y=None):
    """Where the compiled start puts the parameters, and where NumPyro does."""
    y = jnp.sin(3.0 * x[:, :1]) if y is None else y
    svi = SVI(model, Guide(model, hidden=DoublyStochastic()), numpyro.optim.Adam(0.01), PowerEP(0.0))
    states = initialise(svi, KEY, x, y), svi.init(KEY, x, y)
    return [svi.get_params(state) for state in states]


@pytest.mark.slow
@pytest.mark.parametrize("num_inducing", few([4, 9], 0), ids=["k-means", "every row"])
def test_the_start_is_numpyros(num_inducing):
    found, expected = both(deep_gp((2,), num_inducing))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape, count", few([((300, 3), 40), ((200, 1), 7), ((50, 2), 2)], 0))
def test_k_means_begins_where_scipys_does(shape, count):
    rows = np.random.default_rng(count).normal(size=shape)
    found, _ = kmeans2(rows, spread_out(rows, count, 12345), iter=1, minit="matrix")
    expected, _ = kmeans2(rows, count, iter=1, minit="++", seed=12345)
    np.testing.assert_array_equal(found, expected)


def begins_at(values):
    """A model whose start is the work of an inner program that holds an array."""
    inner = jax.jit(lambda x: x.mean() + jnp.asarray(values))

    def model(x, y=None, index=None, size=None):
        lengthscale = numpyro.param("lengthscale", lambda _: inner(x))
        f = sparse_gp("gp", RBF(1.0, 1.0 + lengthscale[0] ** 2), x[:3])
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(0.1), obs=y)

    return model


@pytest.mark.slow
def test_programs_that_hold_other_arrays_are_not_mistaken():
    for values in (np.array([1.0, 2.0]), np.array([3.0, 5.0])):
        found, expected = both(begins_at(values))
        np.testing.assert_allclose(found["lengthscale"], expected["lengthscale"])
        np.testing.assert_allclose(found["lengthscale"], values, atol=1e-12)


def test_other_rows_are_not_mistaken():
    for scale in (1.0, 2.0):
        found, expected = both(deep_gp((), 3), scale * X)
        np.testing.assert_allclose(found["layer1/inducing"], expected["layer1/inducing"], rtol=1e-12)


WAYS = {
    "svi": lambda model, **how: fit_svi(KEY, model, x=X, y=X, **how),
    "many": lambda model, **how: fit_many(KEY, model, xs=X, ys=X, **how),
    "lbfgs": lambda model, **how: fit_lbfgs(KEY, model, x=X, y=X, **how),
    "stream": lambda model, **how: fit_stream(KEY, model, rows=(X, X), batch_size=3, **how),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_an_objective_refuses_is_said_before_the_start_is_compiled(way, monkeypatch):
    def compiled():
        raise AssertionError("compiled")

    monkeypatch.setattr("ppl_dgp.fit.initial.compiled_to_run_once", compiled)
    model = deep_gp((2,), 4)
    guide = Guide(model, hidden=MomentMatched())
    settings = {"guide": guide, "objective": PowerEP(1.0), "steps": 1}
    with pytest.raises(ValueError, match="propagation: found"):
        WAYS[way](model, **settings)
    with pytest.raises(AssertionError, match="compiled"):
        fit_svi(KEY, model, x=X, y=X, **settings | {"objective": PowerEP(0.0)})
