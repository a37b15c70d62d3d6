"""Streaming inference against one fit to all rows, explicit dense matrices, and exact evidences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial
from fast import few
from jaxtyping import TypeCheckError
from numpyro import handlers
from scipy import stats

from ppl_dgp import checkpoint, likelihoods
from ppl_dgp.fit import Posterior, fit_svi, natural_adam
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.old_posterior import OldPosterior, OldPosteriorFactor, old_posterior_of
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.models.inducing import inducing_inputs
from ppl_dgp.models.kernel_values import kernel_parameters
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, PowerEP
from ppl_dgp.streaming import Greedy, Keep, ReplacedAtRandom, Stream, move_inducing, store_posterior, streamed

KEY = jax.random.PRNGKey(4)
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.uniform(-2, 2, (16, 1)))
Y = jnp.asarray(np.sin(3 * X) + 0.2 * RANDOM.standard_normal((16, 1)))
Z = jnp.linspace(-1.8, 1.9, 5)[:, None]
MODEL = sparse_gp_regression(5, jitter=0.0)
STREAMED = streamed(MODEL)
GUIDE = Guide(STREAMED)
HYPER = {
    "gp/inducing": Z,
    "gp/variance": jnp.array(1.3),
    "gp/lengthscale": jnp.array([0.7]),
    "likelihood/noise": jnp.array(0.1),
    "gp/u_loc": jnp.zeros((1, 5)),
    "gp/u_scale": jnp.eye(5)[None],
}
CHANGED = HYPER | {
    "gp/inducing": Z[::-1] * 0.8 + 0.3,
    "gp/variance": jnp.array(0.8),
    "gp/lengthscale": jnp.array([1.1]),
}


_energies = {}


def energy(objective, params, x, y, model=STREAMED, guide=GUIDE):
    # equal objectives share a program
    name = repr(objective), id(model)
    if name not in _energies:
        _energies[name] = jax.jit(lambda p, x, y: -objective.loss(KEY, p, model, guide, x, y))
    return float(_energies[name](params, x, y))


@partial(jax.jit, static_argnums=0)
def learnt(alpha, x, y, params=HYPER):
    """The memory of rows seen at held hyperparameters, as parameters."""
    params = Collapsed(alpha).finish(params, STREAMED, GUIDE, x, y)
    return store_posterior(Posterior(STREAMED, GUIDE, params), x[:1])


def rbf(params, a, b):
    scale = float(params["gp/lengthscale"][0])
    return float(params["gp/variance"]) * np.exp(-0.5 * np.square((np.asarray(a) - np.asarray(b).T) / scale))


def unwhitened(params):
    """Dense mean and covariance of q(u), and Kzz."""
    z = params["gp/inducing"]
    prior = rbf(params, z, z)
    lower = np.linalg.cholesky(prior) @ np.asarray(params["gp/u_scale"][0])
    return np.linalg.cholesky(prior) @ np.asarray(params["gp/u_loc"][0]), lower @ lower.T, prior


@pytest.mark.slow
@pytest.mark.parametrize(
    "alpha", [pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.0, 1.0)] + [0.5]
)
def test_batch_after_batch_is_one_fit_to_all_rows(alpha):
    runs = []

    def counted(*args, **kwargs):
        runs.append(1)
        return MODEL(*args, **kwargs)

    stream = Stream(KEY, counted, Collapsed(alpha), choice=Keep(), start=HYPER)
    energies = [stream.update(X[i : i + 4], Y[i : i + 4]) for i in (0, 4)]
    before, compiled = stream.params, len(runs)
    energies += [stream.update(X[i : i + 4], Y[i : i + 4]) for i in (8, 12)]
    assert len(runs) == compiled  # no batch is traced again
    assert sum(energies) == pytest.approx(energy(Collapsed(alpha), HYPER, X, Y), abs=1e-9)
    assert stream.energy == pytest.approx(sum(energies)) and stream.rows == 16
    whole = jax.jit(lambda p: Collapsed(alpha).finish(p, STREAMED, GUIDE, X, Y))(HYPER)
    for name in ("gp/u_loc", "gp/u_scale"):
        np.testing.assert_allclose(stream.params[name], whole[name], atol=1e-8)
    # with q(u) spelt out: the same at the optimum, less elsewhere
    best = {name: whole[name] for name in ("gp/u_loc", "gp/u_scale")}
    value = energy(PowerEP(alpha), before | best, X[8:], Y[8:])
    assert value == pytest.approx(sum(energies[2:]), abs=1e-8)
    assert energy(PowerEP(alpha), before, X[8:], Y[8:]) < value - 0.01


@pytest.mark.slow  # compiles a fit
def test_a_natural_step_of_rate_one_does_the_same_as_the_closed_form():
    before = learnt(0.5, X[:8], Y[:8])
    settings = {"steps": 1, "optimizer": natural_adam(1.0, 0.0), "start": before}
    fit = fit_svi(KEY, STREAMED, GUIDE, PowerEP(0.5), X[8:], Y[8:], **settings)
    expected = Collapsed(0.5).finish(HYPER, STREAMED, GUIDE, X, Y)
    for name in ("gp/u_loc", "gp/u_scale"):
        np.testing.assert_allclose(fit.params[name], expected[name], atol=1e-8)
    for name, value in before.items():
        if "/memory/" in name:
            np.testing.assert_array_equal(fit.params[name], value)


def test_the_bound_is_that_of_dense_matrices():
    """E_q[log p(y|f)] − KL[q(b)‖p(b)] + E_q[log q_old(a) − log p_old(a)], nothing whitened."""
    old = learnt(0.0, X[:8], Y[:8])
    lower = jnp.tril(0.2 * jnp.asarray(RANDOM.standard_normal((1, 5, 5)))) + 0.5 * jnp.eye(5)
    params = old | CHANGED | {"gp/u_loc": jnp.array([[0.3, -0.2, 0.5, 0.1, -0.4]]), "gp/u_scale": lower}
    mean_a, cov_a, prior_a = unwhitened(old)
    mean_b, cov_b, prior_b = unwhitened(params)
    zb = params["gp/inducing"]

    def marginal(x):
        weights = rbf(params, x, zb) @ np.linalg.inv(prior_b)
        return weights @ mean_b, rbf(params, x, x) - weights @ (prior_b - cov_b) @ weights.T

    def expected_log_normal(at, covariance, mean, spread):
        log_p = stats.multivariate_normal.logpdf(at, mean, covariance)
        return log_p - 0.5 * np.trace(np.linalg.solve(covariance, spread))

    mean, spread = marginal(X[8:])
    total = expected_log_normal(mean, 0.1 * np.eye(8), np.asarray(Y[8:, 0]), spread)
    mean, spread = marginal(Z)
    total += expected_log_normal(mean, cov_a, mean_a, spread)
    total -= expected_log_normal(mean, prior_a, np.zeros(5), spread)
    total += expected_log_normal(mean_b, prior_b, np.zeros(5), cov_b)
    total += 0.5 * np.linalg.slogdet(2 * np.pi * np.e * cov_b)[1]
    assert energy(PowerEP(0.0), params, X[8:], Y[8:]) == pytest.approx(total, abs=1e-6)
    assert energy(Collapsed(0.0), params, X[8:], Y[8:]) > total


def pseudo_data(old):
    """The old posterior as targets ŷ with noise D_a, and the constant log t(a) − log N(ŷ; a, D_a)."""
    mean, covariance, prior = unwhitened(old)
    noise = np.linalg.inv(np.linalg.inv(covariance) - np.linalg.inv(prior))
    target = noise @ np.linalg.solve(covariance, mean)
    normal = lambda c, m: stats.multivariate_normal.logpdf(np.zeros(5), m, c, allow_singular=True)
    return target, noise, normal(covariance, mean) - normal(prior, np.zeros(5)) - normal(noise, target)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_closed_form_is_that_of_the_paper(alpha):
    """log N([y, ŷ]; 0, Q + diag(s² + αD, D_a + αR)) and power EP's corrections, R of the old inducing outputs."""
    old = learnt(alpha, X[:8], Y[:8])
    params = old | CHANGED
    target, noise, constant = pseudo_data(old)
    points, zb = np.concatenate([X[8:], Z]), params["gp/inducing"]
    cross = rbf(params, points, zb)
    low_rank = cross @ np.linalg.solve(rbf(params, zb, zb), cross.T)
    rest = rbf(params, points, points) - low_rank
    block = np.zeros_like(rest)
    block[:8, :8] = np.diag(np.diag(rest)[:8])
    block[8:, 8:] = rest[8:, 8:]
    likelihood = np.zeros_like(rest)
    likelihood[:8, :8], likelihood[8:, 8:] = 0.1 * np.eye(8), noise
    data = np.concatenate([Y[8:, 0], target])
    total = constant + stats.multivariate_normal.logpdf(
        data, np.zeros(13), low_rank + alpha * block + likelihood
    )
    ratio = np.linalg.solve(likelihood, block)
    if alpha == 0.0:
        total -= 0.5 * np.trace(ratio)
    else:
        total -= (1 - alpha) / (2 * alpha) * np.linalg.slogdet(np.eye(13) + alpha * ratio)[1]
    assert energy(Collapsed(alpha), params, X[8:], Y[8:]) == pytest.approx(total, abs=1e-6)


def exact(params, x, y, target=None, noise=None):
    """The exact log evidence, of pseudo-data too."""
    points = x if target is None else np.concatenate([x, Z])
    data = np.asarray(y[:, 0]) if target is None else np.concatenate([y[:, 0], target])
    covariance = rbf(params, points, points)
    covariance[: len(x), : len(x)] += 0.1 * np.eye(len(x))
    if noise is not None:
        covariance[len(x) :, len(x) :] += noise
    return stats.multivariate_normal.logpdf(data, np.zeros(len(data)), covariance)


def test_it_is_a_bound_on_the_evidence_given_what_is_remembered():
    old = learnt(0.0, X[:8], Y[:8])
    target, noise, constant = pseudo_data(old)
    evidence = constant + exact(HYPER, X[8:], Y[8:], target, noise)
    first = energy(Collapsed(0.0), HYPER, X[:8], Y[:8])
    for shift in (0.0, 0.5):
        moved = old | {"gp/inducing": Z + shift, "gp/memory/shared": jnp.zeros((5, 5))}
        found = energy(Collapsed(0.0), moved, X[8:], Y[8:])
        assert found <= evidence + 1e-9
        assert first + found <= exact(HYPER, X, Y)
    # exact, at every α, where the new inducing inputs hold all that matters
    for alpha in (0.0, 0.5):
        full = old | {"gp/inducing": jnp.concatenate([Z, X[8:10]]), "gp/memory/shared": jnp.eye(5, 7)}
        expected = constant + exact(HYPER, X[8:10], Y[8:10], target, noise)
        assert energy(Collapsed(alpha), full, X[8:10], Y[8:10]) == pytest.approx(expected, abs=1e-6)


def test_the_sum_of_energies_bounds_no_evidence_where_the_memory_was_too_poor():
    """Targets that contradict each other, the first of which the inducing inputs of then could not represent."""
    far, x = {"gp/inducing": Z + 20.0}, jnp.zeros((1, 1))
    noise = {"likelihood/noise": jnp.array(0.1)}
    first = energy(Collapsed(0.0), HYPER | far | noise, x, x + 3.0)
    old = learnt(0.0, x, x + 3.0, HYPER | far | noise)
    near = old | {"gp/inducing": Z, "gp/memory/shared": jnp.zeros((5, 5))}
    second = energy(Collapsed(0.0), near, x, x - 3.0)
    assert first + second > exact(HYPER, np.zeros((2, 1)), np.array([[3.0], [-3.0]]))


def random_function(outputs=2):
    """A function of two outputs under new hyperparameters, with a mean, and a memory of another."""
    normal = lambda *shape: jnp.asarray(RANDOM.standard_normal(shape))
    old = RBF(1.3, 0.7)
    whiten = inverse_lower(cholesky(old(Z, Z), 0.0)[0])
    before = SparseGP("f", old, Z, whiten, Linear(jnp.full((1, outputs), 0.4)), jnp.zeros((outputs, 5)))
    scale = jnp.tril(0.15 * normal(outputs, 5, 5), -1) + 0.5 * jnp.eye(5)
    memory = OldPosterior.of(before, Gaussian(normal(outputs, 5), scale))
    kernel, inducing = RBF(0.9, 1.0), Z[:3] + 0.2
    q = InducingGaussian(normal(outputs, 3), jnp.tril(0.2 * normal(outputs, 3, 3), -1) + 0.7 * jnp.eye(3))
    new = cholesky(kernel(inducing, inducing), 0.0)[0]
    mean = Linear(jnp.full((1, outputs), -0.2))
    make = lambda u: SparseGP("f", kernel, inducing, inverse_lower(new), mean, u)
    memory = OldPosterior(**{**vars(memory), "shared": jnp.zeros((5, 3))})
    return before, scale, memory, make, q


@pytest.mark.slow
@pytest.mark.parametrize("alpha", few([0.0, 0.4, 1.0], 1))
def test_the_factor_of_a_draw_and_of_moments(alpha):
    """Against E[t^α] by Gaussian integrals spelt out, over a | u or over a, and sigma points for E over q(u)."""
    before, scale, memory, make, q = random_function()

    def tempered(u, moments=None):
        """(1/α) log E[t^α], a | u or, given moments, a; t = N(v; µ, S) / N(v; 0, I)."""
        function = make(u)
        total = 0.0
        means, covariances = function.joint(Z)
        if moments is not None:
            means, covariances = make(moments).joint(Z)
        for p in range(2):
            whiten = np.asarray(before.whiten)
            mean = whiten @ np.asarray(means[:, p] - before.mean(Z)[:, p])
            spread = whiten @ np.asarray(covariances[p]) @ whiten.T
            s = np.asarray(scale[p] @ scale[p].T)
            mu, precision = np.asarray(memory.mean[p]), np.linalg.inv(s) - np.eye(5)
            slope = np.linalg.solve(s, mu)
            constant = -0.5 * np.linalg.slogdet(s)[1] - 0.5 * mu @ slope
            if alpha == 0.0:
                total += constant + slope @ mean - 0.5 * mean @ precision @ mean
                total -= 0.5 * np.trace(precision @ spread)
                continue
            # completing the square under N(mean, spread)
            inverse = np.linalg.inv(spread)
            both = inverse + alpha * precision
            linear = inverse @ mean + alpha * slope
            log_mean = 0.5 * linear @ np.linalg.solve(both, linear) - 0.5 * mean @ inverse @ mean
            log_mean -= 0.5 * np.linalg.slogdet(both @ spread)[1]
            total += constant + log_mean / alpha
        return total

    draw = jnp.asarray(RANDOM.standard_normal((2, 3)))
    assert float(OldPosteriorFactor(make(draw), memory).tempered(alpha)) == pytest.approx(
        tempered(draw), abs=1e-6
    )
    several = jnp.stack([draw, -draw, 2 * draw])
    expected = np.mean([tempered(each) for each in several])
    assert float(OldPosteriorFactor(make(several), memory).tempered(alpha)) == pytest.approx(
        expected, abs=1e-6
    )
    at_moments = OldPosteriorFactor(make(q.moments), memory)
    inside = tempered(q.loc, q.moments)
    assert float(at_moments.tempered(alpha)) == pytest.approx(inside, abs=1e-6)
    # exact for a quadratic: ± √n of each of the n columns of the scale of vec(u)
    root = np.zeros((6, 6))
    root[:3, :3], root[3:, 3:] = q.scale[0], q.scale[1]
    points = [q.loc + sign * np.sqrt(6.0) * root[:, k].reshape(2, 3) for k in range(6) for sign in (1, -1)]
    outside = np.mean([tempered(jnp.asarray(point)) for point in points])
    found = float(at_moments.tempered(alpha, u_outside=True))
    assert found == pytest.approx(outside, abs=1e-6)
    traced = jax.jit(lambda a: at_moments.site(a).at(q.loc))(alpha)
    assert float(traced) == pytest.approx(tempered(q.loc), abs=1e-6)


def test_the_gradient_with_a_memory_of_other_hyperparameters():
    params = learnt(0.5, X[:8], Y[:8]) | CHANGED
    loss = jax.jit(lambda p: Collapsed(0.5).loss(KEY, p, STREAMED, GUIDE, X[8:], Y[8:]))
    slopes = jax.jit(jax.grad(loss))(params)
    for name in ("gp/variance", "gp/lengthscale", "gp/inducing", "likelihood/noise"):
        entry = (0,) * params[name].ndim
        step = lambda size: params | {name: params[name].at[entry].add(size)}  # noqa: B023, E731
        difference = (loss(step(1e-5)) - loss(step(-1e-5))) / 2e-5
        assert float(slopes[name][entry]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6)
    for name, slope in slopes.items():
        if "/memory/" in name:
            np.testing.assert_array_equal(slope, 0.0)


def test_a_memory_of_nothing_changes_nothing():
    for objective in (Collapsed(0.5), BlackBoxAlpha(0.5)):
        params = HYPER | {"gp/u_loc": jnp.full((1, 5), 0.3)}
        bare = energy(objective, params, X, Y, MODEL, Guide(MODEL))
        assert energy(objective, params, X, Y) == pytest.approx(bare, abs=1e-10)


def test_a_memory_stands_outside_the_logarithm_of_every_objective():
    """Inside it, power means over u would forget a share of what is known with every batch."""
    params = learnt(0.5, X[:8], Y[:8]) | {"gp/u_loc": jnp.full((1, 5), 0.3)}
    gains = []
    for objective in (PowerEP(0.5, 1), BlackBoxAlpha(0.5, 1)):
        bare = energy(objective, params, X[8:], Y[8:], MODEL, Guide(MODEL))
        gains.append(energy(objective, params, X[8:], Y[8:]) - bare)
    assert abs(gains[0]) > 0.1
    assert gains[1] == pytest.approx(gains[0], abs=1e-9)


@pytest.mark.slow
def test_what_is_remembered_in_each_layer_of_a_deep_gp_enters_its_bound():
    model = deep_gp((1,), 3)
    guide, bare = (Guide(m, hidden=DoublyStochastic()) for m in (streamed(model), model))
    params = initial(KEY, streamed(model), guide, X[:6], Y[:6])
    for layer in ("layer1", "layer2"):
        params |= {
            f"{layer}/u_loc": jnp.array([[0.4, -0.3, 0.6]]),
            f"{layer}/u_scale": 0.3 * jnp.eye(3)[None],
        }
    params = store_posterior(Posterior(streamed(model), guide, params), X[:1]) | {
        "layer1/lengthscale": jnp.array([0.8])
    }
    with_memory = energy(PowerEP(0.0), params, X[6:10], Y[6:10], streamed(model), guide)
    without = energy(PowerEP(0.0), params, X[6:10], Y[6:10], model, bare)
    seeded = handlers.substitute(handlers.seed(streamed(model), KEY), data=params)
    sites = handlers.trace(seeded).get_trace(X[6:10], Y[6:10])
    total = 0.0
    for layer in ("layer1", "layer2"):
        found = old_posterior_of(sites[f"{layer}/memory"]["fn"])
        q = InducingGaussian(params[f"{layer}/u_loc"], params[f"{layer}/u_scale"])
        function = SparseGP(**{**vars(found.function), "u": q.moments})
        total += float(OldPosteriorFactor(function, found.memory).tempered(0.0))
    assert abs(total) > 0.01
    assert with_memory - without == pytest.approx(total, abs=1e-8)


BERNOULLI = likelihoods.Scalar(lambda f: dist.Bernoulli(logits=f))


def classifier(x, y=None, index=None, size=None):
    inducing = inducing_inputs("gp", x, 5, train=False)
    f = sparse_gp("gp", kernel_parameters("gp", RBF, x.shape[1]), inducing)
    with data_plate(size or x.shape[0], index):
        return numpyro.sample("y", f(x).observe(BERNOULLI), obs=y)


@pytest.mark.slow  # compiles a fit
def test_classification_in_two_batches_is_close_to_one():
    labels = (Y[:, :1] + 0.3 > 0).astype(float)
    settings = {"steps": 40, "optimizer": natural_adam(0.5, 0.0), "choice": Keep(), "start": HYPER}
    whole, stream, half = (Stream(KEY, classifier, PowerEP(0.0), **settings) for _ in range(3))
    whole.update(X, labels)
    half.update(X[::2], labels[::2])
    stream.run([(X[::2], labels[::2]), (X[1::2], labels[1::2])])
    mean = lambda s: np.asarray(s.params["gp/u_loc"])
    away = np.abs(mean(half) - mean(whole)).max()
    assert np.abs(mean(stream) - mean(whole)).max() < 0.15 * away
    assert stream.energy == pytest.approx(whole.energy, abs=0.05)
    assert abs(half.energy - whole.energy) > 1.0


@pytest.mark.slow  # compiles a fit
def test_the_state_can_be_saved_and_minibatches_be_drawn(tmp_path):
    settings = {"steps": 4, "choice": ReplacedAtRandom(0.4), "batch_size": 4}
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 4)]
    whole = Stream(KEY, MODEL, PowerEP(0.5), **settings).run(batches)
    first = Stream(KEY, MODEL, PowerEP(0.5), **settings).run(batches[:2])
    checkpoint.save(tmp_path, first.state, {})
    found = checkpoint.load(tmp_path)[0]
    rest = Stream(KEY, MODEL, PowerEP(0.5), start=found, **settings).run(batches[2:])
    assert rest.state.keys() == whole.state.keys()
    for name, value in whole.state.items():
        np.testing.assert_array_equal(rest.state[name], value, err_msg=name)
    assert rest.rows == 24 and rest.batches == 3


@pytest.mark.slow  # compiles a fit
def test_hyperparameters_are_learnt_from_each_batch():
    stream = Stream(KEY, MODEL, Collapsed(0.0), steps=20, choice=Keep(), start=HYPER)
    stream.update(X[:8], Y[:8])
    before = dict(stream.params)
    held = energy(Collapsed(0.0), before, X[8:], Y[8:])
    found = stream.update(X[8:], Y[8:])
    assert found > held + 0.01
    assert float(stream.params["gp/lengthscale"][0]) != float(before["gp/lengthscale"][0])
    prediction = stream.predict(KEY, X)
    assert np.sqrt(np.mean((prediction.mean - np.sin(3 * np.asarray(X))) ** 2)) < 0.3


@pytest.mark.slow
def test_inducing_inputs_are_chosen():
    kernel = RBF(1.0, 0.5)
    kept = Keep()(KEY, kernel, Z, X)
    np.testing.assert_array_equal(kept[0], Z)
    for choice in (ReplacedAtRandom(0.4), Greedy(1.0), Greedy(2.0)):
        found, kept = jax.jit(choice)(KEY, kernel, Z, 2.0 * X)
        np.testing.assert_array_equal(found[kept], Z[kept])
        assert all((2.0 * X == row).any() for row in found[~kept])
        assert len(np.unique(found)) == 5
        if isinstance(choice, ReplacedAtRandom):
            assert int((~kept).sum()) == 2
            continue
        # the determinant grows, or is that of the old ones
        chosen, old = (np.linalg.slogdet(np.asarray(kernel(z, z)))[1] for z in (found, Z))
        assert chosen >= old - 1e-12
    candidates, picked = np.concatenate([Z, 2.0 * X]), []
    for _ in range(5):
        cross = np.asarray(kernel(jnp.asarray(candidates), jnp.asarray(candidates)))
        known = (
            cross[:, picked] @ np.linalg.solve(cross[np.ix_(picked, picked)], cross[picked])
            if picked
            else 0.0
        )
        picked.append(int(np.argmax(np.diag(cross - known))))
    found, _ = Greedy(1.0)(KEY, kernel, Z, 2.0 * X)
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(candidates[picked, 0]))


@pytest.mark.slow
def test_q_goes_on_as_the_old_posterior_at_new_inducing_inputs():
    old = learnt(0.0, X[:8], Y[:8])
    found = move_inducing(KEY, Posterior(STREAMED, GUIDE, old), X[8:], ReplacedAtRandom(0.4))
    zb = found["gp/inducing"]
    assert not np.array_equal(zb, Z)
    mean_a, cov_a, prior_a = unwhitened(old)
    mean, covariance, _ = unwhitened(found)
    weights = rbf(old, zb, Z) @ np.linalg.inv(prior_a)
    np.testing.assert_allclose(mean, weights @ mean_a, atol=1e-7)
    expected = rbf(old, zb, zb) - weights @ (prior_a - cov_a) @ weights.T
    np.testing.assert_allclose(covariance, expected, atol=1e-7)


@pytest.mark.slow
def test_a_hundred_batches_forget_nothing_though_kzz_needs_a_nugget():
    """Twice the inducing inputs that the kernel can tell apart: what is shared is not drawn anew at every batch."""
    many = jnp.linspace(-2, 2, 30)[:, None]
    model = sparse_gp_regression(30)
    start = {**HYPER, "gp/inducing": many, "gp/u_loc": jnp.zeros((1, 30)), "gp/u_scale": jnp.eye(30)[None]}
    stream = Stream(KEY, model, Collapsed(0.0), choice=Keep(), start=start)
    stream.run([(X[:8], Y[:8])] * 100)
    times, tiled = jnp.tile(X[:8], (100, 1)), jnp.tile(Y[:8], (100, 1))
    whole = Collapsed(0.0).finish(start, stream.model, stream.guide, times, tiled)
    np.testing.assert_allclose(stream.params["gp/u_loc"], whole["gp/u_loc"], atol=1e-5)
    np.testing.assert_allclose(stream.params["gp/u_scale"], whole["gp/u_scale"], atol=1e-5)
    total = energy(Collapsed(0.0), start, times, tiled, stream.model, stream.guide)
    assert stream.energy == pytest.approx(total, abs=1e-3)


def test_bad_inputs_name_the_argument():
    with pytest.raises((TypeError, TypeCheckError), match="model"):
        streamed(3)
    with pytest.raises(ValueError, match="sparse_gp"):
        handlers.seed(streamed(lambda x, y=None: None), KEY)(X)
    with pytest.raises((TypeError, TypeCheckError), match="objective"):
        Stream(KEY, MODEL, "vfe")
    with pytest.raises(ValueError, match="at least 1"):
        Stream(KEY, MODEL, PowerEP(0.5))
    with pytest.raises(ValueError, match="batch_size"):
        Stream(KEY, MODEL, Collapsed(), batch_size=3)
    with pytest.raises(ValueError, match="Mixed"):
        ReplacedAtRandom(1.5)
    with pytest.raises(ValueError, match="Greedy"):
        Greedy(0.5)
    with pytest.raises(ValueError, match="shared"):
        move_inducing(KEY, Posterior(STREAMED, GUIDE, HYPER), X, Keep())
    with pytest.raises(ValueError, match="update"):
        Stream(KEY, MODEL, Collapsed()).predict(KEY, X)
    with pytest.raises(ValueError, match="dimensions"):
        Stream(KEY, MODEL, Collapsed()).update(X[:0], Y[:0])
