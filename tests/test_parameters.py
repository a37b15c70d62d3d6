"""Parameters from elsewhere: what is missing, unknown, misshapen or impossible is refused before compilation."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial

from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.fit.initial import traced_start
from ppl_dgp.guides import Guide
from ppl_dgp.models import deep_gp, sparse_gp_regression, stack
from ppl_dgp.models.function_blocks import GPLayer
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(0)
X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(4.0 * X)
DEEP, SPARSE = deep_gp((1,), 5), sparse_gp_regression(5)


@pytest.fixture(scope="module")
def params():
    return initial(KEY, DEEP, Guide(DEEP), jnp.asarray(X), jnp.asarray(Y))


def refused(model, params, message):
    with pytest.raises(ValueError, match=message):
        predict(KEY, Posterior(model, Guide(model), params), X[:3])


def test_parameters_of_another_model_are_refused(params):
    refused(
        SPARSE, params, "found no 'gp/inducing', which the program has; the nearest .* 'layer[12]/inducing'"
    )
    deeper = {**params, "layer3/u_loc": params["layer2/u_loc"]}
    refused(
        DEEP, deeper, "found 'layer3/u_loc', which the program does not have; the nearest .* 'layer2/u_loc'"
    )


@pytest.mark.parametrize("name", ["layer2/u_loc", "layer1/lengthscale", "likelihood/noise"])
def test_missing_parameters_are_named(params, name):
    rest = {other: value for other, value in params.items() if other != name}
    refused(DEEP, rest, f"params: found no '{name}'")


def test_rows_with_other_columns_say_so(params):
    """A layer of one output has a linear map as its mean where it sees two inputs."""
    with pytest.raises(
        ValueError, match=r"layer1: found inputs of shape \(3, 2\), expected \(B, 1\), .*; give rows with"
    ):
        predict(KEY, Posterior(DEEP, Guide(DEEP), params), np.zeros((3, 2)))


@pytest.mark.parametrize("model", [DEEP, SPARSE, stack([GPLayer(num_inducing=5)])])
def test_functions_of_x_without_x_are_refused(model):
    with pytest.raises(
        ValueError, match="x: found no columns for the function '(gp|layer1)', .*; give x, or"
    ):
        fit_svi(KEY, model, Guide(model), PowerEP(0.0), None, Y, steps=1)


def test_shapes_are_those_of_the_program(params):
    wrong = {**params, "layer2/u_loc": params["layer2/u_loc"].T}
    refused(DEEP, wrong, r"found 'layer2/u_loc' of shape \(5, 1\), expected \(1, 5\)")


def test_a_fit_in_the_place_of_its_parameters_is_refused():
    """Below the checks of types that tests add."""
    fit = Posterior(DEEP, Guide(DEEP), {})
    with pytest.raises(
        TypeError, match="start: found Posterior, expected parameters .*; pass start=fit.params"
    ):
        inspect.unwrap(traced_start)(None, KEY, X, Y, fit)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda p: {"layer1/u_lok": p["layer1/u_loc"]}, "'layer1/u_lok', which .* have; .*'layer1/u_loc'"),
        (lambda p: {"layer1/u_loc": p["layer1/u_loc"].T}, r"'layer1/u_loc' of shape \(5, 1\), expected \(1, 5\)"),
        (lambda p: {"layer1/noise": jnp.asarray(-0.1)}, "'layer1/noise' that is not finite, or outside"),
        (lambda p: {"layer1/u_scale": -p["layer1/u_scale"]}, "'layer1/u_scale' that is not finite, or outside"),
        (lambda p: {"likelihood/noise": jnp.asarray(np.nan)}, "'likelihood/noise' that is not finite"),
    ],
)  # fmt: skip
def test_what_a_fit_cannot_start_from_is_refused(params, start, message):
    with pytest.raises(ValueError, match=message):
        fit_svi(KEY, DEEP, Guide(DEEP), PowerEP(0.0), X, Y, steps=1, start=start(params))


def test_a_fit_starts_where_it_is_told(params):
    told = {"layer1/noise": jnp.asarray(0.3), "layer2/u_loc": jnp.full((1, 5), 0.7)}
    fit = fit_svi(KEY, DEEP, Guide(DEEP), PowerEP(0.0), X, Y, steps=1, start=told, learning_rate=1e-9)
    for name, value in told.items():
        np.testing.assert_allclose(fit.params[name], value, rtol=1e-6)
