"""Likelihoods of several functions against Monte Carlo and brute force, and the models of classes built on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast import few
from numpyro import handlers
from scipy import integrate, special, stats

from ppl_dgp.diagnostics import to_arviz
from ppl_dgp.diagnostics.arviz_api import group
from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Gaussian,
    Heteroscedastic,
    RobustMax,
    Softmax,
    StudentT,
)
from ppl_dgp.models import (
    deep_gp_classification,
    sparse_gp_classification,
    sparse_gp_regression,
    sparse_heteroscedastic_gp,
)
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(3)
ALPHAS = [0.0, 1e-3, 0.5, 1.0]
RNG = np.random.default_rng(0)
#: six rows of four functions whose variances differ by factors of 10⁻⁴ to 10⁴
MEANS, LABELS = RNG.normal(0.0, 1.5, (6, 4)), np.array([[0], [1], [2], [3], [0], [1]])
VARIANCES = 10.0 ** RNG.uniform(-2.0, 2.0, (6, 4))
VARIANCES[0], VARIANCES[1] = [1e2, 1e-2, 1e-2, 1e-2], [1e2, 1e-2, 1e2, 1.0]


def chance(y: int, mean: np.ndarray, variance: np.ndarray) -> float:
    """P(argmax = y) by SciPy's adaptive quadrature, told where the product steps."""
    others, s = [c for c in range(len(mean)) if c != y], np.sqrt(variance)

    def integrand(z: float) -> float:
        f = mean[y] + s[y] * z
        return stats.norm.pdf(z) * np.prod([special.ndtr((f - mean[c]) / s[c]) for c in others])

    points = [(mean[c] + k * s[c] - mean[y]) / s[y] for c in others for k in (-5.0, -2.0, 0.0, 2.0, 5.0)]
    points = [point for point in [*points, -4.0, 0.0, 4.0] if abs(point) < 9.0]
    return integrate.quad(integrand, -9.0, 9.0, points=points, limit=400, epsabs=1e-11)[0]


def product_nodes(number: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Hermite nodes of N(0, I), (number^dimension, dimension), and their weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    grid = np.stack(np.meshgrid(*[nodes] * dimension, indexing="ij"), -1).reshape(-1, dimension)
    products = np.stack(np.meshgrid(*[weights / weights.sum()] * dimension, indexing="ij")).prod(0)
    return grid, products.ravel()


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    """A million draws of f for each row would be 24 million numbers; a row at a time shares these."""
    return np.random.default_rng(1).normal(size=(1_000_000, 4))


def test_robust_max_is_the_integral_at_any_ratio_of_variances():
    likelihood = RobustMax(4, 0.02)
    found = jax.jit(likelihood.chance)(*map(jnp.asarray, (LABELS, MEANS, VARIANCES)))[:, 0]
    expected = np.array([chance(y, m, v) for y, m, v in zip(LABELS[:, 0], MEANS, VARIANCES, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-7)
    # the formula of the two levels, with the chance as it should be
    alphas = jnp.asarray(ALPHAS)
    arrays = [jnp.asarray(a) for a in (LABELS, MEANS, VARIANCES)]
    tempered = jax.jit(jax.vmap(lambda alpha: likelihood.tempered(*arrays, alpha)))(alphas)[..., 0]
    right, wrong = np.log(0.98), np.log(0.02 / 3)
    np.testing.assert_allclose(tempered[0], expected * right + (1 - expected) * wrong, atol=1e-6)
    for row, alpha in zip(tempered[1:], ALPHAS[1:], strict=True):
        mean = expected * np.exp(alpha * right) + (1 - expected) * np.exp(alpha * wrong)
        np.testing.assert_allclose(row, np.log(mean) / alpha, atol=1e-5)


def test_robust_max_is_the_share_of_draws(draws):
    likelihood = RobustMax(4, 0.02)
    p = jax.jit(likelihood.probabilities)(jnp.asarray(MEANS), jnp.asarray(VARIANCES))
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    for row in range(6):
        f = MEANS[row] + np.sqrt(VARIANCES[row]) * draws
        shares = np.bincount(f.argmax(1), minlength=4) / len(f)
        expected = 0.98 * shares + 0.02 / 3 * (1 - shares)
        se = np.sqrt(shares * (1 - shares) / len(f)) + 1e-6
        assert np.all(np.abs(np.asarray(p[row]) - expected) < 4.5 * se)


@pytest.mark.slow
def test_robust_max_of_two_classes_is_probit():
    m, v = jnp.asarray(MEANS[:, :2]), jnp.asarray(VARIANCES[:, :2])
    found = RobustMax(2, 1e-9).probabilities(m, v)[:, 0]
    expected = special.ndtr((MEANS[:, 0] - MEANS[:, 1]) / np.sqrt(VARIANCES[:, :2].sum(1)))
    np.testing.assert_allclose(found, expected, atol=1e-7)


#: errors of P(y = c), and of t_0 and t_α: what its docstring states of 256 nodes, and that more of them leave none
SOFTMAX = [(4, 256, 3e-3, 1e-2), (3, 65_536, 2e-5, 5e-5)]


@pytest.mark.parametrize("classes, nodes, of_chances, of_logarithms", SOFTMAX)
def test_softmax_is_the_integral(classes, nodes, of_chances, of_logarithms):
    """Against Gauss–Hermite quadrature in all functions, which is exact to 3 · 10⁻⁸ here."""
    likelihood, mean, label = Softmax(classes, nodes), MEANS[:, :classes], LABELS % classes
    variance = np.linspace(0.2, 2.0, 24).reshape(6, 4)[:, :classes]
    arrays = [jnp.asarray(a) for a in (label, mean, variance)]
    p = jax.jit(likelihood.probabilities)(*arrays[1:])
    tempered = jax.jit(jax.vmap(lambda alpha: likelihood.tempered(*arrays, alpha)))(jnp.asarray(ALPHAS))
    z, weights = product_nodes(16, classes)
    for row in range(6):
        log_p = special.log_softmax(mean[row] + np.sqrt(variance[row]) * z, axis=1)
        np.testing.assert_allclose(p[row], weights @ np.exp(log_p), atol=of_chances)
        own = log_p[:, label[row, 0]]
        expected = [weights @ own, *(np.log(weights @ np.exp(a * own)) / a for a in ALPHAS[1:])]
        np.testing.assert_allclose(tempered[:, row, 0], expected, atol=of_logarithms)


@pytest.mark.slow
def test_heteroscedastic_is_the_integral():
    likelihood = Heteroscedastic(noise=0.5)
    y, mean, variance = 0.8, np.array([0.1, -0.4]), np.array([0.3, 0.9])
    nodes, weights = np.polynomial.legendre.leggauss(400)
    weights, nodes = weights * stats.norm.pdf(9.0 * nodes), 9.0 * nodes
    f = mean[0] + np.sqrt(variance[0]) * nodes[:, None]
    g = mean[1] + np.sqrt(variance[1]) * nodes
    log_p = stats.norm.logpdf(y, f, np.sqrt(0.5 * np.exp(g)))
    w = 81.0 * np.outer(weights, weights)
    arguments = [jnp.asarray(a)[None] for a in (np.array([y]), mean, variance)]
    assert float(likelihood.expected_log_density(*arguments)[0, 0]) == pytest.approx(
        (w * log_p).sum(), abs=1e-10
    )
    tempered = jax.jit(jax.vmap(lambda alpha: likelihood.tempered(*arguments, alpha)))(jnp.asarray(ALPHAS))
    for number, alpha in enumerate(ALPHAS[1:], start=1):
        expected = np.log((w * np.exp(alpha * log_p)).sum()) / alpha
        assert float(tempered[number, 0, 0]) == pytest.approx(expected, abs=1e-6)
    # two targets are two pairs
    both = [jnp.asarray(a)[None] for a in (np.array([y, y]), mean.repeat(2), variance.repeat(2))]
    np.testing.assert_allclose(likelihood.log_density(*both), float(tempered[3, 0, 0]), atol=1e-9)
    centre, spread = likelihood.moments(*arguments[1:])
    sample = likelihood.sample(KEY, *(jnp.broadcast_to(a, (200_000, 2)) for a in arguments[1:]))
    assert float(sample.mean()) == pytest.approx(
        float(centre[0, 0]), abs=4 * float(spread[0, 0]) ** 0.5 / 447
    )
    squares = jnp.square(sample - centre[0, 0])
    assert float(squares.mean()) == pytest.approx(float(spread[0, 0]), abs=4 * float(squares.std()) / 447)


@pytest.mark.parametrize("likelihood", [RobustMax(3, 0.01), Softmax(3, 512)])
def test_draws_have_the_stated_probabilities(likelihood):
    mean, variance = jnp.asarray([[0.5, 0.0, -1.0]]), jnp.asarray([[0.1, 2.0, 1.0]])
    labels = likelihood.sample(KEY, jnp.tile(mean, (40_000, 1)), jnp.tile(variance, (40_000, 1)))
    assert labels.shape == (40_000, 1)
    p = np.asarray(likelihood.moments(mean, variance)[0])[0]
    shares = np.bincount(np.asarray(labels)[:, 0], minlength=3) / 40_000
    # 2·10⁻³ for the nodes of softmax
    assert np.all(np.abs(shares - p) < 4 * np.sqrt(p * (1 - p) / 40_000) + 2e-3)


SEVERAL = [RobustMax(3, 0.01), Softmax(3), Heteroscedastic(0.5)]


@pytest.fixture(scope="module", params=few(SEVERAL, 0, 1), ids=lambda likelihood: type(likelihood).__name__)
def rows_outside(request):
    """A likelihood of several functions, its t_α with a part of the variance outside, and 40 rows."""
    likelihood, rng = request.param, np.random.default_rng(7)
    functions = likelihood.num_functions(1)
    y = rng.integers(0, 3, (40, 1)) if functions == 3 else 0.5 * rng.normal(size=(40, 1))
    mean, inside, outside = rng.normal(size=(40, functions)), *rng.uniform(0.1, 0.6, (2, 40, functions))
    rows = tuple(map(jnp.asarray, (y, mean, inside, outside)))
    return likelihood, jax.jit(lambda alpha, *arrays: likelihood.tempered_outside(*arrays, alpha)), rows


def test_variance_outside_tends_to_the_bound_as_alpha_does(rows_outside):
    """A schedule that begins at a traced 0 trains the bound itself."""
    likelihood, outside, rows = rows_outside
    bound = likelihood.tempered_outside(*rows, 0.0)
    np.testing.assert_allclose(bound, likelihood.tempered(*rows[:2], rows[2] + rows[3], 0.0), rtol=1e-12)
    # the nodes inside the outer mean are fewer than those of t_0 alone
    np.testing.assert_allclose(outside(jnp.asarray(0.0), *rows), bound, rtol=1e-8)
    # its slope at 0 is half the variance of log p, some tens here
    np.testing.assert_allclose(outside(jnp.asarray(1e-8), *rows), bound, atol=1e-5)


#: the error of the 64 nodes that are taken, and of 1024, where the 256 that softmax has inside are left
OUTSIDE_ERRORS = {RobustMax: (4e-2, 1.5e-3), Softmax: (2e-3, 8e-4), Heteroscedastic: (2e-5, 2e-5)}


def test_variance_outside_is_the_integral(rows_outside, monkeypatch):
    """E t_α(y; m', inside) over m' by Gauss–Hermite nodes in all functions, exact to 2 · 10⁻⁵."""
    likelihood, outside, rows = rows_outside
    y, mean, inside, spread = rows = [array[:6] for array in rows]
    z, weights = product_nodes(10, mean.shape[1])
    tempered = jax.jit(jax.vmap(lambda at, alpha: likelihood.tempered(y, at, inside, alpha), (0, None)))
    monkeypatch.setattr("ppl_dgp.likelihoods.several.OUTSIDE_DRAWS", 1024)
    more = jax.jit(lambda alpha: likelihood.tempered_outside(*rows, alpha))
    few_errors, more_errors = OUTSIDE_ERRORS[type(likelihood)]
    bound = likelihood.tempered(y, mean, inside + spread, 0.0)
    for alpha in (jnp.asarray(0.5), jnp.asarray(1.0)):
        expected = np.einsum("k,knp->np", weights, tempered(mean + jnp.sqrt(spread) * z[:, None], alpha))
        with monkeypatch.context() as few_nodes:
            few_nodes.setattr("ppl_dgp.likelihoods.several.OUTSIDE_DRAWS", 64)
            np.testing.assert_allclose(outside(alpha, *rows), expected, atol=few_errors)
        np.testing.assert_allclose(more(alpha), expected, atol=more_errors)
        # a twentieth of what α adds would be seen
        assert np.median(expected - bound) > 20.0 * more_errors


def test_gradients_of_variance_outside_are_finite_where_f_is_known(rows_outside):
    _, outside, (y, mean, inside, spread) = rows_outside
    slopes = jax.jit(jax.grad(lambda *arrays: outside(jnp.asarray(0.5), y, *arrays).sum(), (0, 1, 2)))
    for scale in (1.0, 0.0):
        assert all(np.isfinite(leaf).all() for leaf in slopes(mean, scale * inside, scale * spread))


def test_every_name_makes_a_likelihood():
    needed = {
        "gaussian": [jnp.asarray(0.1)],
        "student-t": [4.0, 0.1],
        "ordinal": [jnp.array([0.0, 1.0])],
        "softmax": [3],
        "robust-max": [3],
    } | {name: [1.0] for name in ("laplace", "negative-binomial", "gamma", "beta")}
    for name, make in LIKELIHOODS.items():
        likelihood = make(*needed.get(name, []))
        functions = likelihood.num_functions(1)
        assert likelihood.num_targets(functions) == 1
        assert functions == {"softmax": 3, "robust-max": 3, "heteroscedastic": 2}.get(name, 1)


# the models

X = jnp.linspace(-2.0, 2.0, 24)[:, None]
THREE = np.digitize(np.asarray(X[:, 0]), [-0.7, 0.7])
TWO = np.asarray(jnp.abs(X[:, 0]) < 1.0).astype(int)


def fitted(model, y, steps=150, objective=None, **rules):
    guide = Guide(model, **rules)
    return fit_svi(KEY, model, guide, objective or PowerEP(), X, y, steps=steps, learning_rate=0.05)


@pytest.fixture(scope="module")
def three():
    return fitted(sparse_gp_classification(3, 8), THREE)


def test_three_classes_are_learnt_and_predicted(three):
    assert set(three.params) >= {"likelihood/epsilon", "gp/lengthscale", "gp/inducing"}
    found = predict(KEY, three, X, jnp.asarray(THREE), num_samples=2, samples=True)
    assert found.mean.shape == found.f_mean.shape == (24, 3)
    np.testing.assert_allclose(found.mean.sum(1), 1.0, rtol=1e-9)
    assert (found.mean.argmax(1) == THREE).mean() > 0.9
    # given its draws, the log density of a label is the log of its probability
    np.testing.assert_allclose(found.log_density, np.log(found.mean[np.arange(24), THREE]), atol=1e-6)
    assert found.samples.shape == (2, 24, 1) and set(np.unique(found.samples)) <= {0, 1, 2}
    with pytest.raises(ValueError, match="no quantiles"):
        predict(KEY, three, X, num_samples=2, levels=(0.5,))


@pytest.mark.slow
def test_arviz_holds_a_model_of_classes(three):
    data = to_arviz(KEY, three, X, THREE, num_draws=5)
    assert group(data, "posterior")["gp.u"].shape == (1, 5, 3, 8)
    replicated = group(data, "posterior_predictive")["y"]
    assert replicated.shape == (1, 5, 24) and set(np.unique(replicated)) <= {0, 1, 2}
    log_likelihood = group(data, "log_likelihood")["y"].values
    assert np.isfinite(log_likelihood).all() and (log_likelihood < 0.0).all()


@pytest.mark.slow
def test_two_classes_deep():
    model = deep_gp_classification(2, (1,), 6)
    fit = fitted(model, TWO, hidden=DoublyStochastic())
    found = predict(KEY, fit, X, num_samples=20)
    assert found.mean.shape == (24, 1)
    assert ((found.mean[:, 0] > 0.5) == TWO).mean() > 0.9


@pytest.mark.slow
def test_bound_of_a_sparse_classifier_is_below_the_evidence():
    """The evidence of a probit GP at two rows is a bivariate normal probability."""
    x, y = jnp.array([[0.0], [0.6]]), jnp.array([[1], [0]])
    model = sparse_gp_classification(2, 2, train_inducing=False)
    guide = Guide(model)
    values = {"gp/inducing": x, "gp/variance": jnp.asarray(2.0), "gp/lengthscale": jnp.array([0.8])}
    covariance = 2.0 * np.exp(-0.5 * (np.asarray(x) - np.asarray(x).T) ** 2 / 0.64)
    signs = np.diag([1.0, -1.0])
    noisy = signs @ (covariance + np.eye(2)) @ signs
    evidence = np.log(stats.multivariate_normal(np.zeros(2), noisy).cdf(np.zeros(2)))
    found = {}
    for alpha in (0.0, 0.5):
        objective = PowerEP(alpha)
        with handlers.seed(rng_seed=0):
            start = {
                n: s["value"]
                for n, s in handlers.trace(guide).get_trace(x, y).items()
                if s["type"] == "param"
            }
        slope = jax.jit(
            jax.value_and_grad(
                lambda q, objective=objective, start=start: objective.loss(
                    KEY, {**start, **values, **q}, model, guide, x, y
                )
            )
        )
        # q(u) at a fixed rate, its scale held as a lower Cholesky factor by construction
        q = {name: value for name, value in start.items() if name.startswith("gp/u")}
        for _ in range(200):
            loss, gradient = slope(q)
            q = {n: v - 0.1 * (jnp.tril(gradient[n]) if v.ndim == 3 else gradient[n]) for n, v in q.items()}
        found[alpha] = -float(loss)
    # both are bounds at Z = X, and that of α = ½ the tighter one
    assert found[0.0] < evidence and found[0.5] < evidence
    assert found[0.0] > evidence - 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    ["student-t"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("bernoulli", "laplace", "negative-binomial")],
)
def test_regression_under_another_likelihood_starts(likelihood):
    y = TWO if likelihood in ("bernoulli", "negative-binomial") else np.sin(X[:, 0])
    fit = fitted(sparse_gp_regression(4, likelihood=likelihood), y, steps=20)
    assert fit.losses[0, -1] < fit.losses[0, 0]
    learnt = {name for name in fit.params if name.startswith("likelihood/")}
    expected = {"student-t": {"df", "scale"}, "laplace": {"scale"}, "negative-binomial": {"concentration"}}
    assert learnt == {f"likelihood/{field}" for field in expected.get(likelihood, set())}


@pytest.mark.slow
def test_outliers_cost_a_student_t_little():
    y = np.array(np.sin(2.0 * X[:, 0]))
    y[[5, 15]] += 8.0
    error = {}
    for name, settings in {"gaussian": {}, "student-t": {"likelihood": lambda: StudentT(3.0, 0.05)}}.items():
        fit = fitted(sparse_gp_regression(10, **settings), y, steps=400)
        found = predict(KEY, fit, X, num_samples=1)
        error[name] = np.sqrt(np.mean((found.mean[:, 0] - np.sin(2.0 * X[:, 0])) ** 2))
    assert error["student-t"] < 0.1 < 0.3 < error["gaussian"]


@pytest.mark.slow
def test_noise_that_changes_is_learnt():
    rng = np.random.default_rng(2)
    scale = np.where(X[:, 0] > 0.0, 1.0, 0.05)
    fit = fitted(sparse_heteroscedastic_gp(8), scale * rng.normal(size=24), steps=300)
    found = predict(KEY, fit, X, num_samples=1)
    left, right = (np.sqrt(found.variance[side, 0].mean()) for side in (slice(0, 10), slice(14, 24)))
    # these draws scatter by 0.05 and 0.50; noise that is the same everywhere would be about 0.35 on either side
    assert left < 0.3 < 0.4 < right


@pytest.mark.parametrize(
    "model, y, words",
    [
        (lambda: sparse_gp_classification(3, 4), THREE + 1, "found 3 at row"),
        (lambda: sparse_gp_classification(3, 4), THREE - 1, "found -1 at row 0"),
        (lambda: sparse_gp_classification(3, 4), THREE + 0.5, "whole labels 0 … 2"),
        (lambda: sparse_gp_classification(2, 4), THREE, "labels 0 and 1"),
        (lambda: sparse_gp_classification(1, 4), THREE, "at least 2"),
        (lambda: sparse_gp_classification(3, 4, likelihood="bernoulli"), THREE, "for 3 classes"),
        (lambda: sparse_gp_classification(3, 4, likelihood=Softmax(4)), THREE, "num_classes=3"),
        (lambda: sparse_gp_regression(4, likelihood="softmax"), THREE, "sparse_gp_classification"),
        (lambda: sparse_gp_regression(4, likelihood="cauchy"), THREE, "unknown"),
        (lambda: sparse_gp_regression(4, likelihood="poisson", noise=0.1), THREE, "leave it out"),
        (lambda: sparse_gp_regression(4, likelihood="poisson"), THREE - 1.0, "found -1.0 at row 0"),
    ],
)
def test_labels_and_settings_that_cannot_be(model, y, words):
    with pytest.raises(ValueError, match=words):
        fitted(model(), y, steps=1)


def test_functions_that_do_not_fit_the_likelihood():

    kernel = RBF(jnp.asarray(1.0), jnp.ones(1))
    with handlers.seed(rng_seed=0):
        f = sparse_gp("f", kernel, jnp.zeros((1, 1)), 2)
    marginal = f(jnp.asarray(X))
    with pytest.raises(ValueError, match="found 2 functions for RobustMax of 3 classes"):
        marginal.observe(RobustMax(3))
    assert marginal.observe(Bernoulli()).event_shape == (2,)
    assert marginal.observe(Softmax(2)).event_shape == (1,)
    assert marginal.observe(Heteroscedastic()).event_shape == (1,)
    assert marginal.observe(Gaussian(jnp.asarray(1.0))).event_shape == (2,)
