"""Programs whose data do not fit are refused under every objective, NumPyro's own among them, before compilation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import SVI, Trace_ELBO

from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(0)
X = jnp.linspace(-1.0, 1.0, 12)[:, None]
Y = jnp.sin(4.0 * X)


def own_model(width, likelihood=None):
    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", RBF(1.0, jnp.ones(1)), x[:3], width)
        with data_plate(size or x.shape[0], index):
            emission = f(x).noisy(0.1) if likelihood is None else f(x).observe(likelihood)
            numpyro.sample("y", emission, obs=y)

    return model


def first_loss(model, objective, y, **rows):
    """Of plain NumPyro, without numbers."""
    svi = SVI(model, Guide(model), numpyro.optim.Adam(0.1), objective)
    evaluate = lambda key: svi.evaluate(svi.init(key, X, y, **rows), X, y, **rows)
    return jax.eval_shape(evaluate, KEY)


@pytest.mark.parametrize("objective", [Trace_ELBO(), PowerEP(0.0), PowerEP(0.5)], ids=["NumPyro", "0", "0.5"])
def test_targets_of_another_shape_are_no_broadcast(objective):
    for width, y, message in (
        (1, Y[:, 0], r"y: found shape \(12,\), expected \(12, 1\)"),
        (2, Y, r"y: found shape \(12, 1\), expected \(12, 2\)"),
        (1, jnp.tile(Y, 2), r"y: found shape \(12, 2\), expected \(12, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            first_loss(own_model(width), objective, y)


def test_a_function_of_f_that_mixes_functions_is_no_likelihood():
    both = lambda f: dist.Normal(f[..., 0], jnp.exp(f[..., 1]))
    with pytest.raises(
        ValueError, match=r"likelihood: found a distribution of shape \(2,\) for f of shape \(2, 2\)"
    ):
        first_loss(own_model(2, both), PowerEP(0.0), Y)


@pytest.mark.parametrize("model", [sparse_gp_regression(3), deep_gp((1,), 3)], ids=lambda m: type(m).__name__)
def test_a_minibatch_has_to_say_of_how_many_rows(model):
    refused = partial(first_loss, model, PowerEP(0.0), Y)
    with pytest.raises(ValueError, match="size: found none beside an index of 12 rows"):
        refused(index=jnp.arange(12))
    with pytest.raises(ValueError, match="index: found 5 rows, expected 12 as x has"):
        refused(index=jnp.arange(5), size=40)
    with pytest.raises(ValueError, match="size: found 5 for 12 rows"):
        refused(size=5)
