"""Orthogonally decoupled q(u): the formulas of Salimbeni et al. and Shi et al. at Z and O by NumPy, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import initial, loss, noise_like, on_host
from fast import few
from numpyro.handlers import seed, substitute, trace
from rules import MODEL, X, Y
from scipy import stats

from ppl_dgp.diagnostics import to_arviz
from ppl_dgp.fit import (
    Fit,
    Posterior,
    fit_lbfgs,
    fit_svi,
    gaussian_factors,
    natural_adam,
    optimal_inducing,
    shallow_start,
)
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Decoupled, Diagonal, FullRank, Guide, LayerChain, LowRank
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import ApproximatePowerEP, BlackBoxAlpha, Collapsed, PowerEP
from ppl_dgp.prediction.joint import sample_functions
from ppl_dgp.prediction.predict import predict

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(3)
#: rows; Z, of which the covariance is, and O beside them
ROWS = RANDOM.uniform(-2.0, 2.0, (30, 2))
TARGETS = np.sin(2.0 * ROWS[:, :1]) + 0.2 * RANDOM.normal(size=(30, 1))
AT, SEEN = jnp.asarray(ROWS), jnp.asarray(TARGETS)
Z, OTHERS = RANDOM.uniform(-2.0, 2.0, (4, 2)), RANDOM.uniform(-2.0, 2.0, (5, 2))
VARIANCE, LENGTHSCALE, NOISE = 1.3, np.array([0.8, 1.1]), 0.15
ALPHAS = (0.0, 0.5, 1.0)


def kernel(a, b):
    scaled = (a[:, None] - b) / LENGTHSCALE
    return VARIANCE * np.exp(-0.5 * np.square(scaled).sum(-1))


def residual_kernel(a, b):
    """Of h = f − E[f | f(Z)]."""
    return kernel(a, b) - kernel(a, Z) @ np.linalg.solve(kernel(Z, Z), kernel(Z, b))


def root_of(matrix):
    return np.linalg.cholesky(matrix)


def spread(size, scale):
    """A covariance that is nowhere special."""
    root = RANDOM.normal(size=(size, size))
    return scale * (root @ root.T / size + 0.3 * np.eye(size))


#: q(u) = N(m, S); weights a of the residual's kernel at OTHERS, q(v) = N(C a, ·); SOLVE-GP's covariance of v
MEAN_U, COVARIANCE_U = RANDOM.normal(size=4), spread(4, 0.4)
WEIGHTS, COVARIANCE_V = RANDOM.normal(size=5), spread(5, 0.2)


def kl(mean, covariance, prior):
    """KL[N(mean, covariance) ‖ N(0, prior)]."""
    log_ratio = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(covariance)[1]
    quadratic = mean @ np.linalg.solve(prior, mean) + np.trace(np.linalg.solve(prior, covariance))
    return 0.5 * (quadratic - len(mean) + log_ratio)


def by_hand(orthogonal, alpha):
    """The bound at α = 0 as the papers have it, of f(Z) and h(O); at others power EP's, of f(Z) and f(O)."""
    at_u = np.linalg.solve(kernel(Z, Z), kernel(Z, ROWS)).T
    at_v = residual_kernel(ROWS, OTHERS)
    inner = residual_kernel(OTHERS, OTHERS)
    mean = at_u @ MEAN_U + at_v @ WEIGHTS
    from_u = np.einsum("nm,mk,nk->n", at_u, COVARIANCE_U, at_u)
    left = np.diag(residual_kernel(ROWS, ROWS))
    if orthogonal == "prior":
        # q(h) has the prior's covariance, and no inverse of k̃(OTHERS, OTHERS) is needed
        divergence = kl(MEAN_U, COVARIANCE_U, kernel(Z, Z)) + 0.5 * WEIGHTS @ inner @ WEIGHTS
        variance = from_u + left
        covariance = inner
    else:
        covariance = COVARIANCE_V
        divergence = kl(MEAN_U, COVARIANCE_U, kernel(Z, Z)) + kl(inner @ WEIGHTS, covariance, inner)
        gain = np.linalg.solve(inner, at_v.T).T
        variance = from_u + left + np.einsum("nm,mk,nk->n", gain, covariance - inner, gain)
    y = TARGETS[:, 0]
    if alpha == 0.0:
        terms = stats.norm.logpdf(y, mean, NOISE**0.5) - 0.5 * variance / NOISE
        return terms.sum() - divergence
    # what f(Z) and f(OTHERS) together leave of f, and what q says of them
    gain = np.linalg.solve(inner, at_v.T).T
    beyond = left - np.einsum("nm,mk,nk->n", gain, inner, gain)
    within = from_u + np.einsum("nm,mk,nk->n", gain, covariance, gain)
    wide = NOISE + alpha * beyond
    terms = -0.5 * np.log(2.0 * np.pi * NOISE) - 0.5 * np.log1p(alpha * beyond / NOISE) / alpha
    return (terms - 0.5 * (np.square(y - mean) + within) / wide).sum() - divergence


def regression(inducing=None):
    inducing = np.concatenate([Z, OTHERS]) if inducing is None else inducing
    return sparse_gp_regression(len(inducing), inducing=inducing, noise=NOISE, jitter=0.0)


def hyperparameters(inducing=None):
    inducing = np.concatenate([Z, OTHERS]) if inducing is None else inducing
    values = {"gp/variance": VARIANCE, "gp/lengthscale": LENGTHSCALE, "gp/inducing": inducing}
    return {name: jnp.asarray(value) for name, value in values.items()}


def parameters(orthogonal):
    """The same q in the rule's parameters: each block by the root of its own prior covariance."""
    root_u, root_v = root_of(kernel(Z, Z)), root_of(residual_kernel(OTHERS, OTHERS))
    found = {
        "gp/u_first_loc": np.linalg.solve(root_u, MEAN_U)[None],
        "gp/u_first_scale": np.tril(np.linalg.solve(root_u, root_of(COVARIANCE_U)))[None],
        "gp/u_orthogonal_loc": (root_v.T @ WEIGHTS)[None],
    }
    if orthogonal == "full":
        found["gp/u_orthogonal_scale"] = np.tril(np.linalg.solve(root_v, root_of(COVARIANCE_V)))[None]
    return hyperparameters() | {name: jnp.asarray(value) for name, value in found.items()}


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("orthogonal", ["prior", "full"])
def test_the_bound_is_that_of_the_papers(orthogonal, alpha):
    model = regression()
    guide = Guide(model, inducing=Decoupled(4, orthogonal))
    found = loss(PowerEP(alpha), parameters(orthogonal), model, guide, AT, SEEN)
    np.testing.assert_allclose(-found, by_hand(orthogonal, alpha), atol=1e-8, rtol=0.0)


def as_full_rank(q):
    """The blocks of a q(u) as one Cholesky factor."""
    return {"gp/u_loc": q.mean, "gp/u_scale": jnp.linalg.cholesky(q.moments.covariance())}


@pytest.mark.parametrize("orthogonal", few(["prior", "diagonal", "full"], 2))
def test_it_is_full_rank_with_blocks_of_zeros(orthogonal):
    """The same losses of every objective, and the same draws."""
    model, rule = regression(), Decoupled(4, orthogonal)
    guide, full = Guide(model, inducing=rule), Guide(model, inducing=FullRank())
    params = parameters(orthogonal)
    if orthogonal == "diagonal":
        params["gp/u_orthogonal_scale"] = jnp.asarray(RANDOM.uniform(0.2, 1.5, (1, 5)))
    q = trace(substitute(seed(guide, KEY), params)).get_trace(AT, SEEN)["gp/u"]["fn"]
    same = hyperparameters() | as_full_rank(q)
    for objective in (PowerEP(0.0), PowerEP(0.5), BlackBoxAlpha(0.5), ApproximatePowerEP(0.5)):
        losses = [
            loss(objective, values, model, each, AT, SEEN) for values, each in ((params, guide), (same, full))
        ]
        np.testing.assert_allclose(*losses, rtol=1e-10)
    draws = [
        trace(substitute(seed(each, KEY), values)).get_trace(AT, SEEN)["gp/u"]["value"]
        for values, each in ((params, guide), (same, full))
    ]
    np.testing.assert_allclose(*draws, rtol=1e-10)


def test_without_others_it_is_full_rank():
    model = regression(Z)
    q = {"loc": jnp.asarray(RANDOM.normal(size=(1, 4))), "scale": jnp.asarray(root_of(spread(4, 0.3)))[None]}
    full = hyperparameters(Z) | {f"gp/u_{name}": value for name, value in q.items()}
    blocks = hyperparameters(Z) | {f"gp/u_first_{name}": value for name, value in q.items()}
    for rule in (Decoupled(4), Decoupled(9, "full")):
        guide = Guide(model, inducing=rule)
        assert not any("orthogonal" in name for name in initial(KEY, model, guide, AT, SEEN))
        losses = [
            loss(PowerEP(0.5), values, model, each, AT, SEEN)
            for values, each in ((full, Guide(model)), (blocks, guide))
        ]
        np.testing.assert_allclose(*losses, rtol=1e-12)


def titsias(inducing):
    """The bound at the optimal q(u), from Titsias (2009), and that q of whitened u."""
    weights = np.linalg.solve(root_of(kernel(inducing, inducing)), kernel(inducing, ROWS))
    low_rank = weights.T @ weights
    bound = stats.multivariate_normal.logpdf(TARGETS[:, 0], np.zeros(30), low_rank + NOISE * np.eye(30))
    precision = np.eye(len(inducing)) + weights @ weights.T / NOISE
    mean = np.linalg.solve(precision, weights @ TARGETS[:, 0]) / NOISE
    q = Gaussian(jnp.asarray(mean)[None], jnp.asarray(root_of(np.linalg.inv(precision)))[None])
    return bound - 0.5 * (VARIANCE - np.diag(low_rank)).sum() / NOISE, q


def test_its_optimum_lies_between_those_of_sparse_gps():
    """SGPR at Z ≤ decoupled ≤ a diagonal ≤ SOLVE-GP ≤ SGPR at Z and O; and gradients vanish there."""
    model = regression()
    (low, _), (high, q) = titsias(Z), titsias(np.concatenate([Z, OTHERS]))
    bounds = []
    for orthogonal in ("prior", "diagonal", "full"):
        rule = Decoupled(4, orthogonal)
        guide, best = Guide(model, inducing=rule), rule.nearest("gp/u", q)
        run = lambda values, guide=guide: PowerEP(0.0).loss(
            KEY, hyperparameters() | values, model, guide, AT, SEEN
        )
        value, slopes = jax.jit(jax.value_and_grad(run))(best)
        bounds.append(-float(value))
        for name, slope in slopes.items():
            slope = jnp.tril(slope) if slope.ndim == 3 else slope
            np.testing.assert_allclose(slope, 0.0, atol=1e-8, err_msg=name)
    assert low < bounds[0] < bounds[1] < bounds[2] < high


@pytest.mark.slow
def test_natural_gradients_are_of_the_blocks_with_a_covariance():
    """Under Gaussian noise one step of rate 1 puts a block at its optimum given the others."""
    model = regression()
    for orthogonal, names in (
        ("prior", ["gp/u_first"]),
        ("diagonal", ["gp/u_first", "gp/u_orthogonal"]),
        ("full", ["gp/u_first", "gp/u_orthogonal"]),
    ):
        guide = Guide(model, inducing=Decoupled(4, orthogonal))
        factors = gaussian_factors(guide, AT, SEEN)
        assert [factor.site for factor in factors.factors] == names
        # one step, and hyperparameters held
        optimizer = natural_adam(1.0, 0.0, factors)
        start = parameters("full") | {"gp/u_orthogonal_loc": jnp.zeros((1, 5))}
        if orthogonal != "full":
            del start["gp/u_orthogonal_scale"]
        fit = fit_svi(KEY, model, guide, PowerEP(0.0), AT, SEEN, steps=1, start=start, optimizer=optimizer)
        run = lambda values, guide=guide: PowerEP(0.0).loss(KEY, values, model, guide, AT, SEEN)
        if orthogonal == "prior":  # the second mean has no scale, and Adam's rate is 0
            slope = jax.grad(run)(dict(fit.params))["gp/u_first_loc"]
            np.testing.assert_allclose(slope, 0.0, atol=1e-8)
        else:  # precisions do not depend on the means
            _, q = titsias(np.concatenate([Z, OTHERS]))
            best = guide.inducing.nearest("gp/u", q)
            for name in best:
                if name.endswith("_scale"):
                    np.testing.assert_allclose(fit.params[name], best[name], atol=1e-8, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("orthogonal", few(["prior", "diagonal", "full"], 0))
def test_a_deep_gp_trains_on_minibatches(orthogonal, tmp_path):
    """Losses fall; predictions, draws and the export to ArviZ are numbers; a fit is saved and loaded as it is."""
    x, y = AT, SEEN
    model = deep_gp((2,), 9)
    guide = Guide(model, inducing=Decoupled(4, orthogonal))
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), x, y, steps=150, batch_size=10)
    losses = np.ravel(fit.losses)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 5.0
    assert np.isfinite(
        predict(KEY, Posterior(model, guide, fit.params), x, y, num_samples=8).log_density
    ).all()
    exported = to_arviz(KEY, fit, x, y, num_draws=4)
    assert exported.posterior["layer1.u"].shape == (1, 4, 2, 9)
    assert np.isfinite(exported.posterior["layer2.u_unwhitened"]).all()
    fit.save(tmp_path / "fit")
    loaded = Fit.load(tmp_path / "fit")
    assert loaded.guide == guide
    np.testing.assert_array_equal(
        loaded.params["layer2/u_orthogonal_loc"], fit.params["layer2/u_orthogonal_loc"]
    )
    for alpha in (0.5, 1.0):
        assert np.isfinite(loss(PowerEP(alpha, 2), dict(fit.params), model, guide, x, y))


def test_minibatches_average_to_the_whole():
    model = regression()
    guide, params = Guide(model, inducing=Decoupled(4)), parameters("prior")
    x, y = AT, SEEN
    run = jax.jit(
        lambda index: PowerEP(0.5).loss(KEY, params, model, guide, x[index], y[index], index=index, size=30)
    )
    parts = [run(jnp.arange(start, start + 10)) for start in (0, 10, 20)]
    np.testing.assert_allclose(np.mean(parts), loss(PowerEP(0.5), params, model, guide, x, y), rtol=1e-10)


@pytest.mark.slow
def test_32_bits_are_near_64():
    """To what rounding of the kernel's matrix, whose condition number is 20, can do to sums of 30 terms."""
    model = regression()
    narrow = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    for orthogonal in ("prior", "full", "weights"):
        guide, params = Guide(model, inducing=Decoupled(4, orthogonal)), parameters(orthogonal)
        params = weighted(params) if orthogonal == "weights" else params
        x, y = AT, SEEN
        wide = loss(PowerEP(0.5), params, model, guide, x, y)
        found = loss(PowerEP(0.5), narrow(params), model, guide, narrow(x), narrow(y))
        np.testing.assert_allclose(found, wide, rtol=1e-5)


def moved(params):
    """Parameters that are nowhere special."""
    found = {}
    for number, (name, value) in enumerate(sorted(on_host(params).items())):
        step = 0.3 * noise_like(value, number)
        if name.endswith("_scale"):
            found[name] = np.tril(step, -1) + 0.4 * np.eye(len(step[0])) if value.ndim == 3 else np.exp(step)
        else:
            found[name] = value + step if "/u_" in name else value
    return {name: jnp.asarray(value) for name, value in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "poorer, richer",
    few(
        [
            (Decoupled(2), FullRank()),
            (Decoupled(1), Decoupled(2, "diagonal")),
            (Diagonal(), Decoupled(2, "full")),
            (Decoupled(1, "full"), LayerChain()),
            (Decoupled(2), Decoupled(2, "full")),
        ],
        0,
        1,
        2,
    ),
)
def test_it_stands_among_the_nested_rules(poorer, richer):
    guides = [Guide(MODEL, inducing=rule) for rule in (poorer, richer)]
    params = moved(initial(KEY, MODEL, guides[0], X, Y))
    start = nested_start(*guides, params, X, Y)
    for site in ("layer1/u", "layer3/u"):
        q, same = (
            trace(substitute(seed(guide, KEY), values)).get_trace(X, Y)[site]["fn"]
            for guide, values in zip(guides, (params, start), strict=True)
        )
        np.testing.assert_allclose(q.mean, same.mean, atol=1e-12)
        same = same.at({"layer1/u": q.mean, "layer2/u": 0.0}) if hasattr(same, "at") else same
        np.testing.assert_allclose(
            q.moments.covariance(), same.moments.covariance(), atol=1e-10, err_msg=site
        )


def test_what_it_does_not_contain():
    for richer, poorer in (
        (Decoupled(2), Decoupled(2, "diagonal")),
        (Decoupled(2, "full"), Decoupled(1, "full")),
        (Decoupled(2), Decoupled(3)),
        (Decoupled(2), Diagonal()),
        (Decoupled(2, "full"), LowRank(2)),
    ):
        assert richer.contains(poorer) is None


@pytest.mark.slow
def test_a_deep_gp_begins_at_the_sparse_gp():
    """By the last layer's q(u) as near to the sparse GP's as it can be: the bound that an own one has, or less."""
    x = jnp.linspace(-2.0, 2.0, 20)[:, None] * jnp.array([1.0, -0.5])
    y = jnp.sin(3.0 * x[:, :1])
    model = deep_gp((2,), 6)
    losses = []
    for rule in (
        FullRank(),
        Decoupled(6),
        Decoupled(5, "full"),
        Decoupled(5, "diagonal"),
        Decoupled(5),
        Decoupled(5, "weights"),
    ):
        guide = Guide(model, inducing=rule)
        losses.append(loss(PowerEP(0.0, 50), shallow_start(KEY, model, guide, x, y), model, guide, x, y))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[1] < losses[2]
    np.testing.assert_allclose(losses[2], losses[3], rtol=1e-10)  # one input has one deviation
    assert losses[3] < losses[4]
    np.testing.assert_allclose(losses[4], losses[5], rtol=1e-6)


@pytest.mark.slow
def test_what_is_refused():
    with pytest.raises(ValueError, match=r"num_covariance: found 0, expected at least 1; .*Decoupled\(1\)"):
        Decoupled(0)
    with pytest.raises(
        ValueError, match="orthogonal: found 'none', expected one of prior, diagonal, full, weights"
    ):
        Decoupled(2, "none")
    model = regression()
    guide = Guide(model, inducing=Decoupled(4))
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), AT, SEEN, steps=1)
    with pytest.raises(ValueError, match=r"expected a full-rank q\(u\).*factors=gaussian_factors"):
        fit_svi(KEY, model, guide, PowerEP(0.0), AT, SEEN, steps=1, optimizer=natural_adam())
    with pytest.raises(ValueError, match="fit: found no parameters …/u_loc, expected those of a full-rank"):
        optimal_inducing(fit, AT, SEEN)
    # of which it would leave the guide's parameters untrained
    with pytest.raises(TypeError, match="inducing: found the parameters gp/u_first_loc, .*take inducing=Opt"):
        fit_lbfgs(KEY, model, AT, SEEN, guide=guide, objective=Collapsed())


def weighted(params):
    """The same q by weights of the residual's kernel."""
    left = {name: value for name, value in params.items() if name != "gp/u_orthogonal_loc"}
    return left | {"gp/u_orthogonal_weights": jnp.asarray(WEIGHTS)[None]}


@pytest.mark.parametrize("alpha", few(ALPHAS, 0))
def test_weights_have_the_bound_of_the_papers(alpha):
    model = regression()
    guide, prior = (Guide(model, inducing=Decoupled(4, kind)) for kind in ("weights", "prior"))
    params = parameters("prior")
    found = loss(PowerEP(alpha), weighted(params), model, guide, AT, SEEN)
    np.testing.assert_allclose(-found, by_hand("prior", alpha), atol=1e-8, rtol=0.0)
    for objective in (BlackBoxAlpha(alpha, 2), ApproximatePowerEP(alpha, 2)):
        losses = [
            loss(objective, values, model, each, AT, SEEN)
            for values, each in ((weighted(params), guide), (params, prior))
        ]
        np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.slow
def test_weights_are_the_prior_rule_wherever_u_is_looked_at():
    """Draws of u and of functions, joint covariances, predictions; a function of two layers and its gradients."""
    model = regression()
    guides = [Guide(model, inducing=Decoupled(4, kind)) for kind in ("weights", "prior")]
    values = [weighted(parameters("prior")), parameters("prior")]
    posteriors = [Posterior(model, *pair) for pair in zip(guides, values, strict=True)]
    sites = [
        trace(substitute(seed(guide, KEY), params)).get_trace(AT, SEEN)["gp/u"]
        for guide, params in zip(guides, values, strict=True)
    ]
    np.testing.assert_allclose(sites[0]["value"], sites[1]["value"], atol=1e-9)
    np.testing.assert_allclose(*(site["fn"].moments.covariance() for site in sites), atol=1e-12)
    np.testing.assert_allclose(*(site["fn"].log_prob(sites[0]["value"]) for site in sites), rtol=1e-9)
    found = [predict(KEY, posterior, AT, SEEN) for posterior in posteriors]
    for name in ("mean", "f_variance", "log_density"):
        np.testing.assert_allclose(*(getattr(each, name) for each in found), atol=1e-8, err_msg=name)
    drawn = [sample_functions(KEY, posterior, AT[:5], 3) for posterior in posteriors]
    np.testing.assert_allclose(
        *drawn, atol=1e-6
    )  # by a factor of the covariance of f, singular but for its jitter


@pytest.mark.slow
def test_a_step_by_weights_factorises_the_first_alone():
    """No factorisation of M × M is left in the compiled gradient, of one layer or two, at α = 0; at others there is."""
    deep = deep_gp((2,), 9)
    for model in (regression(), deep):
        for kind, alpha, there in (("weights", 0.0, False), ("weights", 0.5, True), ("prior", 0.0, True)):
            guide = Guide(model, inducing=Decoupled(4, kind))
            params = initial(KEY, model, guide, AT, SEEN)
            run = jax.value_and_grad(
                lambda values, a=alpha, g=guide, m=model: PowerEP(a, 1).loss(KEY, values, m, g, AT, SEEN)
            )
            text = jax.jit(run).lower(params).compile().as_text()
            whole = [line for line in text.splitlines() if "potrf" in line and "f64[9,9]" in line]
            assert bool(whole) == there, (model, kind, alpha)
            assert (
                any("potrf" in line and "f64[4,4]" in line for line in text.splitlines()) or kind == "prior"
            )


@pytest.mark.slow
def test_weights_train_a_deep_gp():
    model = deep_gp((2,), 9)
    guide = Guide(model, inducing=Decoupled(4, "weights"))
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), AT, SEEN, steps=150, batch_size=10)
    losses = np.ravel(fit.losses)
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 5.0
    assert [factor.site for factor in gaussian_factors(guide, AT, SEEN).factors] == [
        "layer1/u_first",
        "layer2/u_first",
    ]


@pytest.mark.slow
def test_weights_start_where_a_model_has_its_means():
    """A model's regression start, whitened, by weights."""

    def model(x, y=None):
        f = sparse_gp("f", RBF(1.0, 1.0), AT[:9], begin_at=lambda: (AT, SEEN, 0.1))
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(0.1), obs=y)

    qs = [
        trace(seed(Guide(model, inducing=rule), KEY)).get_trace(AT, SEEN)["f/u"]["fn"]
        for rule in (FullRank(), Decoupled(4), Decoupled(4, "weights"))
    ]
    assert np.abs(qs[0].mean).max() > 0.5
    for q in qs[1:]:
        np.testing.assert_allclose(q.mean, qs[0].mean, atol=1e-6)


def test_weights_of_kernels_of_each_output_are_refused():
    def model(x, y=None):
        f = sparse_gp("f", [RBF(1.0, 1.0), RBF(1.0, 2.0)], AT[:9], 2)
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(0.1), obs=y)

    wide = jnp.concatenate([SEEN, SEEN], 1)
    assert np.isfinite(
        loss(PowerEP(0.0), {}, model, seed(Guide(model, inducing=Decoupled(4)), KEY), AT, wide)
    )
    with pytest.raises(
        ValueError, match="orthogonal: found 'weights' for the site 'f/u', .*orthogonal='prior'"
    ):
        seed(Guide(model, inducing=Decoupled(4, "weights")), KEY)(AT, wide)
