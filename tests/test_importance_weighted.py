"""Importance-weighted bounds: their order, one function draw for a datum's samples, the gradient estimator."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, noise_like, on_host
from fast import few

from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, latent_input_gp
from ppl_dgp.numerics.gaussian import InducingGaussian
from ppl_dgp.objectives import ImportanceWeighted, PowerEP

KEY = jax.random.PRNGKey(11)
# w_n ~ N(0, 1), y_n = f(x_n + w_n) + ε;  q(w_n) = N(M, S²)
M, S, NOISE = 0.3, 0.8, 0.05
X, Y = np.array([[-0.4], [0.9]]), np.array([[0.7], [-0.5]])
Z = np.array([[-1.0], [0.0], [1.0]])
LOC = np.array([[0.9, -0.6, 0.4]])
ROOT = np.array([[[0.5, 0.0, 0.0], [0.2, 0.4, 0.0], [-0.1, 0.1, 0.6]]])


def model(x, y):
    f = sparse_gp("gp", RBF(1.0, jnp.array([0.7])), jnp.asarray(Z), jitter=1e-10)
    with data_plate(2):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", f(x + w[:, None]).noisy(NOISE), obs=y)


def guide(x, y):
    asked = {"role": "inducing", "representation": "marginal"}
    numpyro.sample("gp/u", InducingGaussian(jnp.asarray(LOC), jnp.asarray(ROOT)), infer=asked)
    with data_plate(2):
        numpyro.sample("w", dist.Normal(numpyro.param("m", M), numpyro.param("s", S)))


def simulated(alpha, shared, draws=400_000):
    """Σ_n E[(1/α) log ½ Σ_k w_nk^α] with f drawn jointly at the two samples' inputs, or apart, and its s.e."""
    random = np.random.default_rng(0)
    k = lambda a, b: np.exp(-0.5 * ((a - b) / 0.7) ** 2)
    lower = np.linalg.cholesky(k(Z, Z.T) + 1e-10 * np.eye(3))
    total, variance = 0.0, 0.0
    for x, y in zip(X[:, 0], Y[:, 0], strict=True):
        w = M + S * random.normal(size=(draws, 2))
        h = x + w
        phi = np.linalg.solve(lower, k(Z, h.reshape(1, -1))).T.reshape(draws, 2, 3)
        root = phi @ ROOT[0]
        covariance = (
            k(h[:, :, None], h[:, None, :]) - phi @ phi.transpose(0, 2, 1) + root @ root.transpose(0, 2, 1)
        )
        if not shared:
            covariance = covariance * np.eye(2)
        chol = np.linalg.cholesky(covariance + 1e-9 * np.eye(2))
        f = phi @ LOC[0] + (chol @ random.normal(size=(draws, 2, 1)))[:, :, 0]
        log_w = -0.5 * np.log(2 * np.pi * NOISE) - 0.5 * (y - f) ** 2 / NOISE
        log_w += -0.5 * w**2 + 0.5 * ((w - M) / S) ** 2 + np.log(S)
        value = np.logaddexp(alpha * log_w[:, 0], alpha * log_w[:, 1]) / alpha - np.log(2.0) / alpha
        total, variance = total + value.mean(), variance + value.var() / draws
    return total, variance**0.5


@pytest.fixture(scope="module")
def divergence():
    covariance = ROOT[0] @ ROOT[0].T
    return 0.5 * (np.trace(covariance) + np.square(LOC).sum() - 3) - 0.5 * np.linalg.slogdet(covariance)[1]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_the_samples_of_a_datum_share_a_draw_of_the_function(divergence, alpha):
    objective = ImportanceWeighted(2, alpha)
    loss = lambda key: objective.loss(key, {}, model, guide, jnp.asarray(X), jnp.asarray(Y))
    values = -np.asarray(jax.jit(jax.vmap(loss))(jax.random.split(KEY, 30_000)))
    expected, error = simulated(alpha, shared=True)
    spread = np.hypot(values.std() / 30_000**0.5, error)
    assert abs(values.mean() - (expected - divergence)) < 3.5 * spread
    # the test can tell: with a function draw for each sample the value is another
    assert abs(simulated(alpha, shared=False)[0] - expected) > 10 * spread


def mean_and_error(objective, *program, draws=2000):
    values = -np.asarray(
        jax.jit(jax.vmap(lambda key: objective.loss(key, *program)))(jax.random.split(KEY, draws))
    )
    return values.mean(), values.std() / draws**0.5


@pytest.mark.slow
def test_the_bound_rises_with_the_number_of_samples_from_the_elbo():
    program = {}, model, guide, jnp.asarray(X), jnp.asarray(Y)
    elbo, error = mean_and_error(PowerEP(0.0), *program)
    found = [mean_and_error(ImportanceWeighted(number), *program) for number in (1, 2, 8)]
    # of one sample it is the ELBO, the function drawn instead of integrated
    assert abs(found[0][0] - elbo) < 3.5 * np.hypot(error, found[0][1])
    assert found[0][0] + 4 * found[0][1] < found[1][0] < found[2][0]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(DoublyStochastic(), marks=pytest.mark.slow),
        pytest.param(MeanField(), marks=pytest.mark.slow),
        Conditional(),
    ],
)
@pytest.mark.slow
def test_one_sample_of_a_deep_gp_is_its_elbo(rule):
    """The function outside the logarithm: t_0 in expectation, hidden layers too, and so no bound of the FITC model."""
    program = deep_gp((2,), 3, inner_noise=0.2)
    approximation = Guide(program, hidden=rule)
    x, y = jnp.asarray(np.linspace(-1.0, 1.0, 4)[:, None]), jnp.asarray([[0.1], [0.5], [-0.2], [0.3]])
    params = initial(KEY, program, approximation, x, y)
    params["layer1/u_scale"] = 30.0 * params["layer1/u_scale"]
    about = params, program, approximation, x, y
    elbo, error = mean_and_error(PowerEP(0.0), *about)
    one, one_error = mean_and_error(ImportanceWeighted(1), *about)
    four, four_error = mean_and_error(ImportanceWeighted(4), *about)
    assert abs(one - elbo) < 3.5 * np.hypot(error, one_error)
    assert four > one - 3.0 * np.hypot(one_error, four_error)


def learnt(x, y):
    """The model with parameters of its own."""
    kernel = RBF(numpyro.param("variance", 1.0), numpyro.param("lengthscale", jnp.array([0.7])))
    f = sparse_gp("gp", kernel, numpyro.param("inducing", jnp.asarray(Z)), jitter=1e-10)
    with data_plate(2):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", f(x + w[:, None]).noisy(numpyro.param("noise", NOISE)), obs=y)


def learnt_guide(x, y):
    asked = {"role": "inducing", "representation": "marginal"}
    loc, root = numpyro.param("loc", jnp.asarray(LOC)), numpyro.param("root", jnp.asarray(ROOT))
    numpyro.sample("gp/u", InducingGaussian(loc, root), infer=asked)
    with data_plate(2):
        m = numpyro.param("m", jnp.array([M, -0.1]), event_dim=0)
        s = numpyro.param("s", jnp.array([S, 0.6]), event_dim=0)
        numpyro.sample("w", dist.Normal(m, s))


PARAMS = {
    "variance": 1.0, "lengthscale": [0.7], "inducing": Z, "noise": NOISE, "loc": LOC, "root": ROOT,
    "m": [M, -0.1], "s": [S, 0.6],
}  # fmt: skip


def gradients(params, program, alpha, draws):
    """Of the plain estimator and of the doubly reparameterised one, by parameter (2, draws, n), at the same draws."""

    def slopes(doubly):
        # few particles, so that what one does to the others' weights through the shared function is seen
        objective = ImportanceWeighted(3, alpha, doubly_reparameterised=doubly)
        one = lambda key: jax.grad(lambda p: objective.loss(key, p, *program))(params)
        return jax.jit(jax.vmap(one))(jax.random.split(KEY, draws))

    both = slopes(False), slopes(True)
    return {name: np.stack([np.asarray(each[name]).reshape(draws, -1) for each in both]) for name in params}


def held_to_the_plain_one(found):
    """The same mean: the standard error is that of the difference, whose draws are shared."""
    for name, (plain, doubly) in found.items():
        error = (doubly - plain).std(0) / len(plain) ** 0.5
        assert np.all(np.abs((doubly - plain).mean(0)) < 4.5 * error + 1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("alpha", few([1.0, 0.5], 0))
def test_doubly_reparameterised_gradient_is_the_same_in_expectation_and_quieter(alpha):
    """For every parameter: of each row's q, where it is quieter, of q(u), of the kernel and of the noise."""
    program = learnt, learnt_guide, jnp.asarray(X), jnp.asarray(Y)
    params = {name: jnp.asarray(value) for name, value in PARAMS.items()}
    found = gradients(params, program, alpha, 10_000)
    held_to_the_plain_one(found)
    for name in ("m", "s"):
        plain, doubly = found[name].var(1)
        assert np.all(doubly < plain)
    for name in ("m", "s", "loc", "root", "noise", "lengthscale"):
        # what it is held to is no noise around 0
        mean, error = found[name][0].mean(0), found[name][0].std(0) / 10_000**0.5
        assert np.abs(mean / np.maximum(error, 1e-12)).max() > 8.0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "program, rules",
    [
        (latent_input_gp(1, (), 2), {"hidden": DoublyStochastic(), "latent": MeanField()}),
        (deep_gp((1,), 2, inner_noise=0.2), {"hidden": MeanField()}),
        (deep_gp((1,), 2, inner_noise=0.2), {"hidden": Conditional()}),
    ],
    ids=["latent-inputs", "mean-field", "coupled"],
)
def test_doubly_reparameterised_gradient_of_the_zoos_guides_is_the_same_in_expectation(program, rules):
    """Of the parameters of each rule, of q(u) in every layer, and of kernels, at a place far from the start."""
    approximation, x, y = Guide(program, **rules), jnp.asarray(X), jnp.asarray(Y)
    params = on_host(initial(KEY, program, approximation, x, y))
    for number, (name, value) in enumerate(sorted(params.items())):
        step = 0.3 * noise_like(value, number)
        if name.endswith("u_scale"):
            params[name] = 0.4 * np.eye(value.shape[-1]) + np.tril(step, -1)
        else:
            positive = name.endswith(("scale", "noise", "variance"))
            params[name] = value * np.exp(step) if positive else value + step
    params = {name: jnp.asarray(value) for name, value in params.items() if not name.endswith("components")}
    held_to_the_plain_one(gradients(params, (program, approximation, x, y), 1.0, 8000))


@pytest.mark.slow
def test_gradients_of_the_models_own_parameters_are_those_of_the_plain_estimator():
    """Shared draws and key: what stands in p alone has the same gradient, draw by draw."""

    def noisy(x, y):
        f = sparse_gp("gp", RBF(1.0, jnp.array([0.7])), jnp.asarray(Z), jitter=1e-10)
        with data_plate(2):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
            numpyro.sample("y", f(x + w[:, None]).noisy(numpyro.param("noise", NOISE)), obs=y)

    params = {"noise": jnp.asarray(NOISE)}
    values = [
        jax.jit(
            jax.value_and_grad(
                lambda p, d=doubly: ImportanceWeighted(4, doubly_reparameterised=d).loss(
                    KEY, p, noisy, guide, jnp.asarray(X), jnp.asarray(Y)
                )
            )
        )(params)
        for doubly in (False, True)
    ]
    assert float(values[0][0]) == pytest.approx(float(values[1][0]), abs=1e-10)
    assert float(values[0][1]["noise"]) == pytest.approx(float(values[1][1]["noise"]), rel=1e-9)


def test_a_function_that_is_used_more_than_once_is_refused():
    def reused(x, y):
        f = sparse_gp("gp", RBF(1.0, jnp.array([0.7])), jnp.asarray(Z), reused=True)
        with data_plate(2):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
            h = f(x).mean
            numpyro.sample("y", f(h + w[:, None]).noisy(NOISE), obs=y)

    with pytest.raises(ValueError, match="'gp' evaluated twice"):
        jax.eval_shape(
            lambda: ImportanceWeighted(2).loss(KEY, {}, reused, guide, jnp.asarray(X), jnp.asarray(Y))
        )
