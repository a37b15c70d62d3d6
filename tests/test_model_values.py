"""Models are values: they print, compare, hash and pickle as their settings; kernels and likelihoods of every kind."""

import dataclasses
import doctest
import inspect
import pickle
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss
from jax.tree_util import register_dataclass
from numpyro import handlers
from numpyro.distributions import constraints

import ppl_dgp.kernels.stationary as stationary
import ppl_dgp.likelihoods.scalar as scalar
from ppl_dgp import models
from ppl_dgp.fit import fit_svi
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.kernels import RBF, Constant, Kernel, Linear, Matern32, Stationary, Sum
from ppl_dgp.likelihoods import Elementwise, Laplace, MixedLikelihood, Poisson, StudentT
from ppl_dgp.models import (
    deep_gp,
    dynamical_gplvm,
    exact_gp_regression,
    gp_narx,
    gplvm,
    gpssm,
    linear_gaussian_ssm,
    mixture_of_functions,
    shared_gplvm,
    sparse_gp_classification,
    sparse_gp_regression,
    switching_gpssm,
)
from ppl_dgp.models.function_blocks import GPLayer
from ppl_dgp.models.kernel_values import kernel_parameters
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(0)
X = jnp.stack([jnp.linspace(-1.5, 1.5, 9), jnp.cos(jnp.arange(9.0))], 1)
Y = jnp.sin(2.0 * X[:, :1])
COUNTS = jnp.asarray([[0], [1], [0], [3], [2], [0], [1], [4], [2]], float)
#: what each model has to be given
NEEDED = {
    "conditioned_gplvm": (3,),
    "deep_gplvm": (3,),
    "dynamical_gplvm": (3,),
    "gplvm": (3,),
    "gpssm": (2,),
    "linear_gaussian_ssm": (2,),
    "shared_gplvm": ((2, 3),),
    "stack": ([GPLayer(2, 3), GPLayer(num_inducing=3)],),
    "stack_classification": ([GPLayer(2, 3), GPLayer(num_inducing=3)],),
    "switching_gpssm": (2,),
}


def made(name, **settings):
    return getattr(models, name)(*NEEDED.get(name, ()), **settings)


def sites_of(model, x=X, y=Y):
    """The parameters' first values, by name."""
    with handlers.seed(rng_seed=0):
        found = handlers.trace(model).get_trace(x, y)
    return {name: site["value"] for name, site in found.items() if site["type"] == "param"}


@pytest.mark.parametrize("name", models.__all__)
def test_every_model_is_a_value(name):
    one, other = made(name), made(name)
    assert one is not other and one == other and hash(one) == hash(other)
    again = pickle.loads(pickle.dumps(one))
    assert again == one and hash(again) == hash(one)
    assert repr(one).startswith(f"{name}(") and "\n" not in repr(one)
    assert list(inspect.signature(one).parameters) == ["x", "y", "index", "size"]
    # another value of any setting that both kinds of jitter show is another model
    first = dataclasses.fields(one)[-1].name
    changed = {"jitter": 1e-4, "noise": 0.2, "iterations": 3}[first]
    assert made(name, **{first: changed}) != one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.num_outputs = 3


@pytest.mark.parametrize(
    "model, text",
    [
        (deep_gp((2,), 20), "deep_gp(widths=(2,), num_inducing=20)"),
        (deep_gp([2, 3], kernel="rbf"), "deep_gp(widths=(2, 3), num_inducing=100)"),
        (
            sparse_gp_regression(5, kernel="rbf + linear*matern32", noise=np.ones(4)),
            "sparse_gp_regression(num_inducing=5, kernel=RBF + Linear*Matern32, noise=array(4,))",
        ),
        (
            sparse_gp_regression(kernel=RBF(1.0, jnp.ones(2)), likelihood=StudentT(4.0, 0.5), inducing=X),
            "sparse_gp_regression(num_inducing=9, kernel=RBF(variance=1.0, lengthscale=array(2,)), "
            "likelihood=StudentT(df=4.0, scale=0.5), inducing=array(9, 2))",
        ),
        (gpssm(2, window=5), "gpssm(num_outputs=2, latent=None, num_inducing=20, window=5)"),
    ],
)
def test_a_model_prints_in_one_line(model, text):
    assert repr(model) == text


def test_arrays_are_compared_by_content_and_functions_by_identity():
    noise = np.linspace(0.1, 0.5, 9)
    one = sparse_gp_regression(4, noise=noise)
    assert one == sparse_gp_regression(4, noise=noise.copy())
    assert one != sparse_gp_regression(4, noise=noise + 0.1)
    noise[0] = 7.0
    assert one.noise[0] == 0.1
    fixed = lambda dims: RBF(1.0, 1.0)
    assert deep_gp(kernel=fixed) == deep_gp(kernel=fixed)
    assert deep_gp(kernel=fixed) != deep_gp(kernel=lambda dims: RBF(1.0, 1.0))
    assert deep_gp(kernel=RBF(1.0, jnp.ones(2))) == deep_gp(kernel=RBF(1.0, jnp.ones(2)))
    assert deep_gp(kernel=RBF(1.0, jnp.ones(2))) != deep_gp(kernel=RBF(1.0, jnp.full(2, 0.5)))
    assert deep_gp(kernel="rbf") == deep_gp() != deep_gp(kernel=Matern32)
    assert gplvm(2, likelihood=["gaussian", "poisson"]) == gplvm(2, likelihood=("gaussian", "poisson"))
    assert gpssm(2, window=5).num_windows is not None and gpssm(2).num_windows is None


def test_an_equal_model_made_anew_compiles_nothing():
    compilations = []

    def count(event, _seconds, **_about):
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    numbers, losses = [], []
    for _ in range(3):
        before = len(compilations)
        model = deep_gp((1,), 4, inner_noise=0.02)
        fit = fit_svi(KEY, model, Guide(model, hidden=DoublyStochastic()), PowerEP(0.0), X, Y, steps=2)
        numbers.append(len(compilations) - before)
        losses.append(np.asarray(fit.losses))
    assert numbers[0] > 5 and numbers[1:] == [0, 0]
    np.testing.assert_array_equal(losses[0], losses[1])


class Matern72(Stationary):
    """One method."""

    def correlation(self, r2):
        s = jnp.sqrt(7.0 * r2 + 1e-12)
        return (1.0 + s + 0.4 * s**2 + s**3 / 15.0) * jnp.exp(-s)


@register_dataclass
@dataclass(frozen=True, eq=False)
class Bump(Kernel):
    """k = variance · b(x) b(z), b(x) = exp(−|x − centre|²/2)."""

    variance: float = 0.7
    centre: float = dataclasses.field(default=-0.3, metadata={"constraint": constraints.real})

    def _bump(self, x):
        return jnp.exp(-0.5 * jnp.square(x - self.centre).sum(1))

    def __call__(self, x, z):
        return self.variance * self._bump(x)[:, None] * self._bump(z)

    def diag(self, x):
        return self.variance * self._bump(x) ** 2


@pytest.mark.slow
def test_a_class_of_ones_own_is_learnt():
    params = sites_of(sparse_gp_regression(4, kernel=Matern72))
    # two inputs of unit spread are √2 apart
    np.testing.assert_allclose(params["gp/lengthscale"], np.full(2, 2**0.5))
    assert params["gp/variance"] == 1.0
    params = sites_of(sparse_gp_regression(4, kernel=Bump))
    assert params["gp/variance"] == pytest.approx(0.7) and params["gp/centre"] == pytest.approx(-0.3)
    model = sparse_gp_regression(4, kernel=Matern72)
    guide = Guide(model)
    start = initial(KEY, model, guide, X, Y)
    # at q(u) = p(u) the marginals of f are the prior's, whatever the lengthscale
    start["gp/u_loc"] = jnp.asarray([[0.4, -0.3, 0.8, 0.1]])
    slope = jax.jit(jax.grad(lambda values: PowerEP(0.0).loss(KEY, values, model, guide, X, Y)))(start)
    assert all(np.isfinite(value).all() for value in slope.values())
    assert np.abs(slope["gp/lengthscale"]).min() > 0.0


def test_an_instance_starts_at_its_values_and_is_learnt():
    kernel = RBF(0.5, jnp.asarray([0.3, 2.0])) + Constant(0.2) * Linear(jnp.asarray([1.5, 0.4]))
    model = sparse_gp_regression(4, kernel=kernel)
    params = sites_of(model)
    assert params["gp/1/variance"] == pytest.approx(0.5) and params["gp/2/variance"] == pytest.approx(0.2)
    np.testing.assert_allclose(params["gp/1/lengthscale"], [0.3, 2.0])
    np.testing.assert_allclose(params["gp/3/variance"], [1.5, 0.4])
    with handlers.seed(rng_seed=0):
        found = kernel_parameters("gp", kernel, 2)
    assert isinstance(found, Sum)
    np.testing.assert_allclose(found(X, X[:3]), kernel(X, X[:3]), rtol=1e-12)
    # held at those values the loss is the same: the function makes the same kernel without sites
    held = sparse_gp_regression(4, kernel=lambda dims: kernel)
    assert "gp/1/variance" not in sites_of(held)
    start = initial(KEY, model, Guide(model), X, Y)
    here = loss(PowerEP(0.5), start, model, Guide(model), X, Y)
    assert loss(PowerEP(0.5), start, held, Guide(held), X, Y) == pytest.approx(here, rel=1e-9)


def test_sites_of_a_function_belong_to_their_layer():
    def of_dims(dims):
        return RBF(1.0, numpyro.param("scale", jnp.ones(dims), constraint=constraints.positive))

    def of_name(name, dims):
        return RBF(1.0, numpyro.param(f"{name}/scale", jnp.full(dims, 2.0), constraint=constraints.positive))

    for kernel in (of_dims, of_name):
        params = sites_of(deep_gp((3,), 4, kernel=kernel))
        assert params["layer1/scale"].shape == (2,) and params["layer2/scale"].shape == (3,)

    def shared(name, dims):
        return RBF(1.0, numpyro.param("scale", jnp.ones(())))

    with pytest.raises(ValueError, match="found the site 'scale' in the function for layer1"):
        sites_of(deep_gp((3,), 4, kernel=shared))
    with pytest.raises(ValueError, match="from the function for layer1, expected a kernel"):
        sites_of(deep_gp((3,), 4, kernel=lambda dims: 1.0))


def test_linear_has_a_variance_for_each_dimension():
    params = sites_of(sparse_gp_regression(4, kernel="linear"))
    np.testing.assert_array_equal(params["gp/variance"], np.ones(2))
    # of a product those of the linear factor are learnt, and no others
    params = sites_of(sparse_gp_regression(4, kernel="rbf*linear"))
    assert "gp/1/variance" not in params and params["gp/2/variance"].shape == (2,)


@dataclass(frozen=True)
class Weibull(Elementwise):
    """A likelihood of one's own."""

    shape: float = 2.0

    def of(self, f):
        return dist.Weibull(jnp.exp(f), self.shape)


def poisson(f):
    return dist.Poisson(jnp.exp(f))


@pytest.mark.parametrize(
    "likelihood, learnt",
    [
        ("student-t", {"likelihood/df": 4.0, "likelihood/scale": 0.3}),
        (StudentT, {"likelihood/df": 4.0, "likelihood/scale": 0.3}),
        (StudentT(3.0, 0.05), {"likelihood/df": 3.0, "likelihood/scale": 0.05}),
        (lambda: StudentT(3.0, 0.05), {}),
        (Weibull, {"likelihood/shape": 2.0}),
        (Weibull(1.5), {"likelihood/shape": 1.5}),
        (poisson, {}),
        (MixedLikelihood((Laplace(0.2),)), {"likelihood/column0/scale": 0.2}),
    ],
)
def test_a_likelihood_of_any_kind(likelihood, learnt):
    model = sparse_gp_regression(4, likelihood=likelihood)
    params = sites_of(model, y=COUNTS + 1.0)
    found = {name: float(value) for name, value in params.items() if name.startswith("likelihood/")}
    assert found == pytest.approx(learnt)


def test_a_function_of_f_is_the_likelihood_it_writes_out():
    own, named = (sparse_gp_regression(4, likelihood=likelihood) for likelihood in (poisson, Poisson()))
    params = initial(KEY, named, Guide(named), X, COUNTS)
    expected = loss(PowerEP(0.0), params, named, Guide(named), X, COUNTS)
    assert loss(PowerEP(0.0), params, own, Guide(own), X, COUNTS) == pytest.approx(expected, rel=1e-7)


def test_columns_share_the_values_of_one_instance():
    shared = StudentT(4.0, 0.5)
    model = gplvm(4, num_inducing=4, likelihood=[shared, "gaussian", shared, Laplace(0.2)])
    y = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4)))
    names = {name for name in sites_of(model, jnp.zeros((9, 0)), y) if name.startswith("likelihood/")}
    assert names == {
        "likelihood/column0/df",
        "likelihood/column0/scale",
        "likelihood/gaussian/noise",
        "likelihood/column3/scale",
    }


@pytest.mark.slow
def test_inducing_inputs_that_are_given():
    model = sparse_gp_regression(inducing=np.asarray(X[:3]))
    assert model.num_inducing == 3
    np.testing.assert_array_equal(sites_of(model)["gp/inducing"], X[:3])
    # those of another model, found by k-means, say the same as when it finds them
    usual = sparse_gp_regression(4)
    params = initial(KEY, usual, Guide(usual), X, Y)
    given = sparse_gp_regression(inducing=params["gp/inducing"], train_inducing=False)
    start = initial(KEY, given, Guide(given), X, Y)
    np.testing.assert_array_equal(start["gp/inducing"], params["gp/inducing"])
    layers = [np.asarray(X[:3]), np.linspace(-1.0, 1.0, 5)[:, None]]
    params = sites_of(deep_gp((1,), inducing=layers))
    for layer, expected in enumerate(layers, start=1):
        np.testing.assert_array_equal(params[f"layer{layer}/inducing"], expected)
    assert deep_gp((), inducing=X).num_inducing == 9
    latent = gplvm(2, 2, inducing=np.zeros((3, 2)) + np.arange(3.0)[:, None])
    assert sites_of(latent, jnp.zeros((9, 0)), X)["gp/inducing"].shape == (3, 2)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: deep_gp(2), "widths: found 2, expected whole numbers"),
        (lambda: deep_gp((2.5,)), "widths: found 2.5"),
        (lambda: deep_gp((2,), "20"), "num_inducing: found '20', expected a whole number"),
        (lambda: deep_gp((2,), 20.0), "num_inducing: found 20.0"),
        (lambda: sparse_gp_regression(0), "num_inducing: found 0, expected a whole number, at least 1"),
        (lambda: sparse_gp_regression(5, num_outputs=True), "num_outputs: found True"),
        (
            lambda: sparse_gp_regression(5, train_inducing="no"),
            "train_inducing: found 'no', expected True or",
        ),
        (
            lambda: sparse_gp_regression(5, jitter=-1e-6),
            "jitter: found -1e-06, expected a number of at least 0",
        ),
        (lambda: sparse_gp_regression(5, subsample_size=0), "subsample_size: found 0"),
        (lambda: sparse_gp_regression(5, noise=-0.1), "noise: found -0.1"),
        (lambda: sparse_gp_regression(5, noise=np.ones((3, 2))), r"noise: found shape \(3, 2\)"),
        (lambda: sparse_gp_regression(5, kernel="cosine"), "kernel: found 'cosine'"),
        (lambda: sparse_gp_regression(5, kernel=3), "kernel: found 3, expected a name, a kernel class"),
        (
            lambda: deep_gp((2,), kernel=[RBF(1.0, np.ones(99))] * 2),
            "kernel: found a list of 2, expected a name",
        ),
        (lambda: sparse_gp_regression(5, kernel=StudentT), "kernel: found the class StudentT"),
        (lambda: sparse_gp_regression(5, kernel=Stationary), "which lacks correlation"),
        (lambda: sparse_gp_regression(5, kernel=RBF(0.0, 1.0)), "kernel: found variance=0.0 in RBF"),
        (lambda: sparse_gp_regression(5, kernel=lambda: RBF(1.0, 1.0)), "kernel: found <function"),
        (lambda: exact_gp_regression(noise="per-column"), "noise: found 'per-column'"),
        (
            lambda: sparse_gp_regression(5, likelihood=3.0),
            "likelihood: found 3.0, expected a name, a likelihood",
        ),
        (lambda: sparse_gp_regression(5, likelihood=RBF), "likelihood: found the class RBF"),
        (lambda: sparse_gp_regression(5, likelihood=StudentT(4.0, -1.0)), "found scale=-1.0 in StudentT"),
        (lambda: sparse_gp_regression(5, likelihood=lambda f, g: f), "likelihood: found <function"),
        (lambda: sparse_gp_classification(2.0), "num_classes: found 2.0"),
        (lambda: sparse_gp_regression(5, inducing=np.ones((3, 2))), "found 3 inputs beside num_inducing=5"),
        (lambda: sparse_gp_regression(inducing=np.ones(3)), r"inducing: found shape \(3,\)"),
        (lambda: sparse_gp_regression(inducing="k-means"), "inducing: found 'k-means'"),
        (lambda: deep_gp((2,), inducing=np.ones((3, 2))), "inducing: found one array, expected 2"),
        (lambda: gplvm(3, 2, inducing=np.ones((3, 1))), r"inducing: found shape \(3, 1\), expected \(M, 2\)"),
        (
            lambda: sites_of(sparse_gp_regression(inducing=np.ones((3, 1)))),
            r"expected \(M, 2\), as many columns",
        ),
        (lambda: gp_narx(mean="first"), "mean: found 'first'"),
        (lambda: gpssm(2, initial=(0.0, -1.0)), "initial: found"),
        (lambda: gpssm(2, mean=None), "mean: found None"),
        (lambda: switching_gpssm(2, 0), "num_regimes: found 0"),
        (lambda: linear_gaussian_ssm(2, 1, emission="identity"), "latent: found 1, expected at least 2"),
        (lambda: shared_gplvm(3), "num_outputs: found 3"),
        (lambda: mixture_of_functions(1), "num_functions: found 1"),
        (lambda: dynamical_gplvm(3, prior_kernel="linear"), "prior_kernel: found .*Linear"),
        (lambda: gplvm(3, missing=1), "missing: found 1, expected True or False"),
    ],
)
def test_settings_of_the_wrong_kind_are_named_before_anything_is_compiled(make, message, monkeypatch):
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("module", [stationary, scalar])
def test_the_examples_of_classes_of_ones_own_run(module):
    found = doctest.testmod(module)
    assert found.failed == 0 and found.attempted > 1
