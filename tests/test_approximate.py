"""Approximate power EP: the divergence and the cavity by natural parameters, closed forms, and what it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss, numpyro_follows, refuse
from numpyro import handlers
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoNormal
from numpyro.infer.inspect import get_dependencies

from ppl_dgp.guides import DoublyStochastic, FullRank, Guide, LayerChain, MomentMatched
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.numerics.gaussian import InducingGaussian
from ppl_dgp.objectives import ApproximatePowerEP
from ppl_dgp.objectives.cavity import renyi_and_cavity
from ppl_dgp.objectives.dependencies import prior_parents

KEY = jax.random.PRNGKey(5)
RANDOM = np.random.default_rng(1)


def by_natural_parameters(m, S, m0, S0, epsilon):
    """Φ(p) − Φ(q) − (1/ε)(Φ(cav) − Φ(q)), Φ = ½ηᵀΛ⁻¹η − ½log|Λ|, and the cavity's moments."""
    precision, prior = np.linalg.inv(S), np.linalg.inv(S0)
    cavity = (1 - epsilon) * precision + epsilon * prior
    eta = (1 - epsilon) * precision @ m + epsilon * prior @ m0
    phi = lambda e, lam: 0.5 * e @ np.linalg.solve(lam, e) - 0.5 * np.linalg.slogdet(lam)[1]
    q, p = phi(precision @ m, precision), phi(prior @ m0, prior)
    return p - q - (phi(eta, cavity) - q) / epsilon, np.linalg.solve(cavity, eta), np.linalg.inv(cavity)


def spd(size, spread=1.0):
    root = RANDOM.normal(size=(size, size)) * spread
    return root @ root.T + 0.2 * np.eye(size)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0])
def test_divergence_and_cavity_are_those_of_the_natural_parameters(epsilon):
    m, S, m0, S0 = RANDOM.normal(size=4), spd(4), RANDOM.normal(size=4), spd(4)
    expected, mean, covariance = by_natural_parameters(m, S, m0, S0, epsilon)
    normal = lambda mean, covariance: dist.MultivariateNormal(jnp.asarray(mean), jnp.asarray(covariance))
    value, cavity = renyi_and_cavity("u", normal(m, S), normal(m0, S0), epsilon)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(cavity.mean, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(cavity.covariance_matrix, covariance, rtol=1e-9)
    # two outputs of an inducing site, full and diagonal
    loc, lower = (
        jnp.asarray(RANDOM.normal(size=(2, 4))),
        jnp.linalg.cholesky(jnp.stack([jnp.asarray(S), 0.1 * S0])),
    )
    prior = dist.Normal(0.0, 1.0).expand((2, 4)).to_event(2)
    value, cavity = renyi_and_cavity("u", InducingGaussian(loc, lower), prior, epsilon)
    each = [
        by_natural_parameters(np.asarray(loc[p]), C, np.zeros(4), np.eye(4), epsilon)
        for p, C in enumerate([S, 0.1 * S0])
    ]
    np.testing.assert_allclose(value, sum(part[0] for part in each), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(cavity.moments.mean, [part[1] for part in each], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(cavity.moments.covariance(), [part[2] for part in each], rtol=1e-8, atol=1e-12)
    deviations = jnp.asarray(RANDOM.uniform(0.1, 1.5, (2, 4)))
    diagonal, _ = renyi_and_cavity("u", InducingGaussian(loc, deviations), prior, epsilon)
    full, _ = renyi_and_cavity("u", InducingGaussian(loc, jax.vmap(jnp.diag)(deviations)), prior, epsilon)
    np.testing.assert_allclose(diagonal, full, rtol=1e-10, atol=1e-14)


def test_divergence_at_alpha_zero_is_the_kl():
    q = InducingGaussian(
        jnp.asarray(RANDOM.normal(size=(2, 3))), jnp.linalg.cholesky(jnp.asarray([spd(3), spd(3)]))
    )
    prior = dist.Normal(0.0, 1.0).expand((2, 3)).to_event(2)
    value, cavity = renyi_and_cavity("u", q, prior, 0.0)
    np.testing.assert_allclose(value, dist.kl_divergence(q, prior), rtol=1e-12)
    np.testing.assert_allclose(cavity.moments.covariance(), q.moments.covariance(), rtol=1e-10)


def test_32_bits_at_a_small_alpha_and_many_rows():
    """α = 1e-3 and N = 1e5: within 1e-2 nats of 64 bits, where the printed form would lose thousands."""
    size, epsilon = 50, 1e-3 / 1e5
    root = np.tril(RANDOM.normal(size=(3, size, size)), -1) * 0.01 + 0.03 * np.eye(size)
    loc = RANDOM.normal(size=(3, size))

    def value(dtype):
        q = InducingGaussian(jnp.asarray(loc, dtype), jnp.asarray(root, dtype))
        prior = dist.Normal(jnp.zeros((), dtype), jnp.ones((), dtype)).expand((3, size)).to_event(2)
        return renyi_and_cavity("u", q, prior, epsilon)[0]

    single = value(jnp.float32)
    assert single.dtype == jnp.float32
    assert abs(float(single) - float(value(jnp.float64))) < 1e-2


X = np.linspace(-1.0, 1.0, 6)[:, None]
Y_COLUMN = np.sin(3.0 * X) + 0.1 * RANDOM.normal(size=(6, 1))


@pytest.fixture(scope="module")
def layer():
    """One layer at Z = X, at the exact posterior of u; the exact evidence; a value of the objective at each α."""
    model = sparse_gp_regression(6, train_inducing=True, jitter=1e-10)
    guide = Guide(model, inducing=FullRank())
    x, y = jnp.asarray(X), jnp.asarray(Y_COLUMN)
    params = initial(KEY, model, guide, x, y)
    params["gp/inducing"] = x
    k = np.exp(-0.5 * (X - X.T) ** 2) + 1e-10 * np.eye(6)
    noise = float(params["likelihood/noise"])
    evidence = float(
        -0.5 * Y_COLUMN[:, 0] @ np.linalg.solve(k + noise * np.eye(6), Y_COLUMN[:, 0])
        - 0.5 * np.linalg.slogdet(2 * np.pi * (k + noise * np.eye(6)))[1]
    )
    lower = np.linalg.cholesky(k)
    precision = np.eye(6) + lower.T @ lower / noise
    posterior = np.linalg.inv(precision)
    params["gp/u_loc"] = jnp.asarray(posterior @ lower.T @ Y_COLUMN / noise).T
    params["gp/u_scale"] = jnp.linalg.cholesky(jnp.asarray(posterior))[None]

    compiled = jax.jit(
        lambda alpha, values: (
            -ApproximatePowerEP(lambda _: alpha, 1).at_step(0).loss(KEY, values, model, guide, x, y)
        )
    )

    def value(alpha, params=params):
        return float(compiled(jnp.asarray(alpha), params))

    return value, params, evidence, (lower, posterior, noise)


def test_it_is_not_exact_where_the_inducing_inputs_are_the_rows(layer):
    """So that nobody mends it: with tied factors the energy lies above the exact evidence for α > 0 (Bui 2017, 2.6)."""
    value, _, evidence, _ = layer
    assert value(0.0) == pytest.approx(evidence, abs=1e-6)
    excess = [value(alpha) - evidence for alpha in (1e-3, 0.1, 0.5, 1.0)]
    assert 0.0 < excess[0] < 1e-2
    assert excess == sorted(excess)
    assert excess[2] > 0.1


def test_a_layer_of_gaussian_noise_in_closed_form(layer):
    value, params, _, (lower, _, noise) = layer
    m, root = (
        np.array([0.4, -0.2, 0.1, 0.9, -1.0, 0.3]),
        np.tril(RANDOM.normal(size=(6, 6)) * 0.1 + np.eye(6)),
    )
    changed = {**params, "gp/u_loc": jnp.asarray(m)[None], "gp/u_scale": jnp.asarray(root)[None]}
    for alpha in (0.2, 1.0):
        divergence, mean, covariance = by_natural_parameters(
            m, root @ root.T, np.zeros(6), np.eye(6), alpha / 6
        )
        f, v = lower @ mean, np.diag(lower @ covariance @ lower.T)
        t = -0.5 * np.log(2 * np.pi * noise) - np.log1p(alpha * v / noise) / (2 * alpha)
        t -= 0.5 * (Y_COLUMN[:, 0] - f) ** 2 / (noise + alpha * v)
        assert value(alpha, changed) == pytest.approx(t.sum() - divergence, abs=1e-6)


def test_error_in_alpha_is_first_order(layer):
    value, params, _, _ = layer
    changed = {**params, "gp/u_scale": 2.0 * params["gp/u_scale"]}
    errors = [value(alpha, changed) - value(0.0, changed) for alpha in (1e-2, 1e-3, 1e-4)]
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 10.0, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [pytest.param(DoublyStochastic(), marks=pytest.mark.slow), MomentMatched()])
def test_a_deep_gp_tends_to_its_bound(rule):
    """T9 and T18's neighbour: three layers, every one propagated with its cavity; MC and moments alike."""
    model = deep_gp((2, 1), 4)
    guide = Guide(model, hidden=rule)
    x, y = jnp.asarray(X), jnp.asarray(Y_COLUMN)
    params = initial(KEY, model, guide, x, y)
    params = {name: value + (0.1 if name.endswith("u_loc") else 0.0) for name, value in params.items()}
    value = jax.jit(
        lambda alpha: -ApproximatePowerEP(lambda _: alpha, 4).at_step(0).loss(KEY, params, model, guide, x, y)
    )
    bound = jax.jit(lambda: -ApproximatePowerEP(0.0, 4).loss(KEY, params, model, guide, x, y))()
    errors = np.asarray([value(jnp.asarray(alpha)) - bound for alpha in (1e-2, 1e-3, 1e-4)])
    np.testing.assert_allclose(errors[:2] / errors[1:], 10.0, rtol=0.15)


def test_no_layers_but_one_is_the_sparse_gp(layer):
    value, params, _, _ = layer
    model = deep_gp((), 6, jitter=1e-10)
    guide = Guide(model)
    renamed = {name.replace("gp/", "layer1/"): each for name, each in params.items()}
    found = -loss(ApproximatePowerEP(0.5, 1), renamed, model, guide, jnp.asarray(X), jnp.asarray(Y_COLUMN))
    assert found == pytest.approx(value(0.5), abs=1e-10)


def test_hyperparameters_with_a_prior_have_a_cavity_too():
    """log θ ~ N(0, 1), y_n ~ N(log θ, 1): the same as with θ's logarithm for a site."""

    def model(y, transformed=True):
        prior = dist.LogNormal(0.0, 1.0) if transformed else dist.Normal(0.0, 1.0)
        theta = numpyro.sample("theta", prior)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.log(theta) if transformed else theta, 1.0), obs=y)

    y = jnp.asarray([0.3, 1.2, -0.4])
    values = []
    for transformed in (True, False):
        guide = AutoNormal(handlers.block(lambda y, t=transformed: model(y, t), hide=["y"]))
        params = {"theta_auto_loc": jnp.asarray(0.4), "theta_auto_scale": jnp.asarray(0.6)}
        handlers.seed(guide, KEY)(y)
        values.append(
            loss(ApproximatePowerEP(0.5, 3), params, lambda y, t=transformed: model(y, t), guide, y)
        )
    assert values[0] == pytest.approx(values[1], abs=1e-9)


@pytest.mark.slow
def test_what_has_no_cavity_is_refused():
    x, y = jnp.asarray(X), jnp.asarray(Y_COLUMN)
    model = deep_gp((1,), 4)
    guide = Guide(model, inducing=LayerChain())
    with pytest.raises(ValueError, match="conditioned on"):
        handlers.seed(lambda: refuse(ApproximatePowerEP(0.5), {}, model, guide, x, y), KEY)()

    def plain(y):
        numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    for kind, error in (
        (AutoNormal, "found TransformedDistribution|found Gamma"),
        (AutoLowRankMultivariateNormal, "auxiliary"),
    ):
        auto = kind(plain)
        handlers.seed(auto, KEY)(jnp.ones(3))
        with pytest.raises(TypeError, match=error):
            refuse(ApproximatePowerEP(0.5), {}, plain, auto, jnp.ones(3))


def test_priors_that_depend_on_other_draws():
    """Of globals refused; a row's own latent then has its ordinary weight, and no cavity."""

    def chained(y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        theta = numpyro.sample("theta", dist.Normal(w, 1.0))
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    guide = AutoNormal(chained)
    handlers.seed(guide, KEY)(jnp.ones(3))
    params = {f"{name}_auto_{part}": jnp.asarray(0.5) for name in ("w", "theta") for part in ("loc", "scale")}
    with pytest.raises(ValueError, match=r"prior of 'theta' dependent on \['w'\]"):
        refuse(ApproximatePowerEP(0.5), params, chained, guide, jnp.ones(3))

    def rows(y):
        with numpyro.plate("data", 1):
            one = numpyro.sample("one", dist.Normal(0.0, 1.0))
            two = numpyro.sample("two", dist.Normal(one, 1.0))
            numpyro.sample("y", dist.Normal(two, 0.3**0.5), obs=y)

    def own(y):
        with numpyro.plate("data", 1):
            numpyro.sample("one", dist.Normal(0.2, 0.7))
            numpyro.sample("two", dist.Normal(0.4, 0.5))

    y, alpha = jnp.asarray([0.8]), 0.5
    # 2 log ∫ q^½ p^½ over a grid
    grid = np.linspace(-6.0, 6.0, 1201)
    one, two = np.meshgrid(grid, grid, indexing="ij")
    normal = lambda x, m, v: -0.5 * np.log(2 * np.pi * v) - 0.5 * (x - m) ** 2 / v
    p = normal(one, 0.0, 1.0) + normal(two, one, 1.0) + normal(0.8, two, 0.3)
    q = normal(one, 0.2, 0.49) + normal(two, 0.4, 0.25)
    exact = 2.0 * np.log(np.exp(0.5 * (p + q)).sum() * (grid[1] - grid[0]) ** 2)
    keys = jax.random.split(KEY, 200)
    found = -np.asarray(jax.lax.map(lambda k: ApproximatePowerEP(alpha, 500).loss(k, {}, rows, own, y), keys))
    # the logarithm's bias is var / 2S, below the tolerance
    assert abs(found.mean() - exact) < 4 * found.std() / 200**0.5 + 2e-3


@numpyro_follows
def test_parents_are_those_that_numpyro_finds():
    """Of sites behind closed-over arrays, compiled functions and loops."""

    def model(y, scales):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(jax.jit(jnp.cumsum)(a * scales), 1.0).to_event(1))
        total = jax.lax.scan(lambda sum, each: (sum + each, None), 0.0, b)[0]
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", 3):
            z = numpyro.sample("z", dist.Normal(total * scales, jax.nn.softplus(s)))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    given = jnp.ones(3), jnp.arange(1.0, 4.0)
    theirs = get_dependencies(model, given)["prior_dependencies"]
    expected = {name: set(parents) - {name} for name, parents in theirs.items()}
    assert prior_parents(model, given, {}) == expected
    assert expected == {"a": set(), "b": {"a"}, "s": set(), "z": {"b", "s"}, "y": {"z"}}
