"""NUTS in one call: against the FITC posterior in closed form, and as a fit that predicts, is exported and compared."""

import warnings
from dataclasses import replace

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.diagnostics import summary

from ppl_dgp.diagnostics import to_arviz
from ppl_dgp.diagnostics.arviz_api import group
from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.diagnostics.khat import elbo, expected_log_density, sites_khat
from ppl_dgp.diagnostics.scores import held_out_scores
from ppl_dgp.fit import Posterior, SamplingWarning, fit_nuts, fit_svi
from ppl_dgp.fit.chains import chains_of
from ppl_dgp.fit.nuts import _metric
from ppl_dgp.fit.sampled_model import Beginning
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, Guide, MeanField
from ppl_dgp.guides.empirical import DefensiveProposal, EmpiricalPosterior
from ppl_dgp.kernels import RBF
from ppl_dgp.models import (
    deep_gp,
    exact_gp_regression,
    gplvm,
    gpssm,
    mixture_of_functions,
    sparse_gp_regression,
    stack,
)
from ppl_dgp.models.deep_gp import INNER_SCALE
from ppl_dgp.models.function_blocks import GPLayer
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.forecast import forecast
from ppl_dgp.prediction.joint import joint_prediction
from ppl_dgp.prediction.predict import predict

#: few draws of many sites: R-hat of some is above 1.01 by chance
FEW = pytest.mark.filterwarnings("ignore::ppl_dgp.fit.SamplingWarning")

X = jnp.linspace(-1.5, 1.5, 12)[:, None]
Y = jnp.sin(2 * X) + 0.1 * jax.random.normal(jax.random.PRNGKey(1), X.shape)
NOISE = 0.05


@pytest.fixture(scope="module")
def sparse():
    """A sparse GP of two columns, its hyperparameters held."""
    targets = jnp.hstack([Y, jnp.cos(X[:, :1])])
    model = sparse_gp_regression(4, num_outputs=2, noise=NOISE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        fit = fit_nuts(
            jax.random.PRNGKey(0), model, X, targets, num_warmup=300, num_samples=500, num_chains=4
        )
    return fit, targets


def fitc(fit, rows):
    """p(v | y) of a sparse GP with an RBF of unit values, the f_n independent given v: mean (M, P), covariance (M, M).

    y = Φv + e, e_n ~ N(0, k(x_n, x_n) − φ_nᵀφ_n + s²), Φ = K(X, Z) L⁻ᵀ (Snelson & Ghahramani 2006), all by NumPy.
    Returns also the mean and variance of y at the rows.
    """
    z = np.asarray(fit.params["gp/inducing"])

    def kernel(a, b):
        return np.exp(-0.5 * np.square(a[:, None] - b[None]).sum(-1))

    lower = np.linalg.cholesky(kernel(z, z) + 1e-8 * np.eye(len(z)))
    features = lambda inputs: np.linalg.solve(lower, kernel(z, inputs)).T
    phi, ahead = features(np.asarray(X)), features(np.asarray(rows))
    spread = 1.0 - np.square(phi).sum(1) + NOISE
    covariance = np.linalg.inv(np.eye(len(z)) + phi.T @ (phi / spread[:, None]))
    return phi, spread, covariance, ahead


def test_inducing_outputs_have_the_fitc_posterior(sparse):
    """Means and second moments within four standard errors, from effective sample sizes."""
    fit, targets = sparse
    phi, spread, covariance, _ = fitc(fit, X)
    mean = covariance @ phi.T @ (np.asarray(targets) / spread[:, None])
    centred = np.asarray(fit.params["gp/u_draws"]) - mean.T
    assert centred.shape == (4, 500, 2, 4)
    moments = {
        "mean": (centred, np.zeros((2, 4))),
        "second": (
            centred[..., :, None] * centred[..., None, :],
            np.broadcast_to(covariance, (2, 4, 4)),
        ),
    }
    for draws, expected in moments.values():
        size = summary({"site": draws}, group_by_chain=True)["site"]["n_eff"]
        error = draws.std((0, 1)) / np.sqrt(size)
        assert (np.abs(draws.mean((0, 1)) - expected) < 4 * error).all()
        # errors that say something: a twentieth of the posterior's deviation, a few hundredths of its variance
        assert error.max() < 0.1


def test_prediction_is_fitcs(sparse):
    fit, targets = sparse
    new = jnp.linspace(-1.8, 1.8, 7)[:, None]
    phi, spread, covariance, ahead = fitc(fit, new)
    mean = ahead @ covariance @ phi.T @ (np.asarray(targets) / spread[:, None])
    from_u = np.einsum("nm,mk,nk->n", ahead, covariance, ahead)
    variance = from_u + 1.0 - np.square(ahead).sum(1) + NOISE
    found = predict(jax.random.PRNGKey(3), fit, new, num_samples=1500)
    # 1500 draws at random of 2000 that are nearly independent
    error = np.sqrt(from_u * (1 / 1500 + 1 / 1000))[:, None]
    assert (np.abs(found.mean - mean) < 4 * error).all()
    np.testing.assert_allclose(found.variance, np.broadcast_to(variance[:, None], (7, 2)), rtol=0.1)


def test_inducing_inputs_are_held(sparse):
    """``Predictive(model, samples)`` starts Z anew by k-means of the rows it is called with; here they stay."""
    fit, targets = sparse
    found = predict(jax.random.PRNGKey(3), fit, X, num_samples=300)
    assert np.sqrt(np.square(found.mean - targets).mean()) < 0.1
    # of fewer rows than inducing inputs, or of others, the same is said
    few = predict(jax.random.PRNGKey(3), fit, X[4:6], num_samples=300, row_by_row=True)
    whole = predict(jax.random.PRNGKey(3), fit, X, num_samples=300, row_by_row=True)
    np.testing.assert_allclose(few.mean, whole.mean[4:6], rtol=1e-10)


def test_jointly_drawn_functions_follow_the_posterior(sparse):
    fit, targets = sparse
    new = jnp.array([[0.0], [0.3]])
    phi, spread, covariance, ahead = fitc(fit, new)
    mean, joint = joint_prediction(jax.random.PRNGKey(0), fit, new, 1000)
    expected = ahead @ covariance @ ahead.T
    expected = expected + np.exp(-0.5 * np.square(new - new.T)) - ahead @ ahead.T
    np.testing.assert_allclose(joint, np.stack([expected] * 2), rtol=0.2, atol=1e-4)


def test_export_has_the_samplers_chains(sparse):
    fit, targets = sparse
    data = to_arviz(jax.random.PRNGKey(2), fit, X, targets)
    posterior, stats = group(data, "posterior"), group(data, "sample_stats")
    np.testing.assert_array_equal(posterior["gp.u"].values, np.asarray(fit.params["gp/u_draws"]))
    assert {"diverging", "acceptance_rate", "n_steps", "energy", "step_size", "lp"} <= set(stats)
    assert "log_q" not in stats and "loss" not in stats and data.attrs["chains"] == "Markov chains"
    table = az.summary(data, var_names=["gp.u"], round_to="none")
    assert np.asarray(table["r_hat"], float).max() < 1.02
    # log p(y_n | θ) is t_1's, by hand
    phi, spread, _, _ = fitc(fit, X)
    mean = np.einsum("nm,cspm->csnp", phi, posterior["gp.u"].values)
    density = -0.5 * (np.log(2 * np.pi * spread)[:, None] + np.square(targets - mean) / spread[:, None])
    exported = group(data, "log_likelihood")["y"].values
    np.testing.assert_allclose(exported, density.sum(-1), rtol=1e-5)
    # and LOO that of leaving out each row, exactly
    covariance = phi @ phi.T + np.diag(spread)
    inverse = np.linalg.inv(covariance)
    left = (inverse @ np.asarray(targets)) / np.diag(inverse)[:, None]
    variance = 1.0 / np.diag(inverse)[:, None]
    exact = (-0.5 * (np.log(2 * np.pi * variance) + np.square(left) / variance)).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # k-hat of the two rows at the ends
        loo = az.loo(data)
    value = float(loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd)
    assert abs(value - exact) < 0.3
    thinned = to_arviz(jax.random.PRNGKey(2), fit, X, targets, num_draws=50)
    np.testing.assert_array_equal(
        group(thinned, "posterior")["gp.u"].values, np.asarray(fit.params["gp/u_draws"])[:, ::10]
    )


def test_measures_of_a_comparison(sparse):
    """LOO and held-out scores are there; a bound and k-hat, which need a density of q, are not numbers."""
    fit, targets = sparse
    program = (fit, X, targets)
    draws = joint_draws(jax.random.PRNGKey(0), *program, num_draws=200)
    assert np.isfinite(expected_log_density(draws.log_likelihood)[0])
    assert np.isnan(sites_khat(draws)) and np.isnan(draws.log_ratio).all()
    assert np.isnan(elbo(jax.random.PRNGKey(0), fit, X, targets, num_draws=4)[0])
    scores = held_out_scores(jax.random.PRNGKey(0), fit, X, targets)
    assert scores["test_rmse"] < 0.15 and np.isfinite(scores["test_log_density"])


def proposed(prior, loc, scale):
    """Draws of the mixture with their weights p/q, in one program."""

    def run(key):
        proposal = DefensiveProposal(prior, loc, scale)
        h = proposal.sample(key, (20_000,))
        return h, jnp.exp(prior.log_prob(h) - proposal.log_prob(h))

    return map(np.asarray, jax.jit(run)(jax.random.PRNGKey(0)))


def test_locals_are_averaged_out_by_importance():
    """The mixture integrates p(h) p(y | h) as the closed form does, and its weights are bounded."""
    loc = jnp.stack([jnp.full((3, 2), 0.8), jnp.full((3, 2), -0.5)])
    h, weights = proposed(dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(1), loc, 0.3 * jnp.ones((2, 3, 2)))
    assert weights.max() <= 3.0 + 1e-9
    density = lambda y, variance: np.exp(-0.5 * y**2 / variance) / np.sqrt(2 * np.pi * variance)
    values = weights * density(1.0 - h.sum(-1), 0.25)
    error = values.std(0) / np.sqrt(len(h))
    assert (np.abs(values.mean(0) - density(1.0, 2.25)) < 4 * error).all() and error.max() < 0.01


def test_a_positive_local_is_proposed_as_positive():
    """Of a Gamma prior the Gaussians are those of the logarithm: the weights average to one."""
    h, weights = proposed(dist.Gamma(2.0 * jnp.ones(4), 1.0), jnp.zeros((1, 4)), 0.5 * jnp.ones((1, 4)))
    assert (h > 0).all()
    assert (np.abs(weights.mean(0) - 1.0) < 4 * weights.std(0) / np.sqrt(len(h))).all()


def lifted(model):
    return handlers.lift(model, prior={"gp/lengthscale": dist.LogNormal(0.0, 0.5).expand([1]).to_event(1)})


@FEW
def test_lifted_hyperparameters_are_sampled_the_rest_is_held():
    """With as many inducing inputs as rows k-means begins Z at the rows, and there it is held."""
    model = lifted(sparse_gp_regression(6, noise=NOISE))
    x, y = X[::2], Y[::2]
    fit = fit_nuts(
        jax.random.PRNGKey(0), model, x, y, num_warmup=150, num_samples=150, num_chains=2, max_tree_depth=6
    )
    np.testing.assert_allclose(np.sort(fit.params["gp/inducing"], 0), x, atol=1e-6)
    draws = np.asarray(fit.params["gp/lengthscale_draws"])
    assert draws.shape == (2, 150, 1) and (draws > 0).all() and draws.std() > 0.02
    assert float(fit.params["gp/variance"]) == 1.0 and "gp/lengthscale" not in fit.params
    # u and the lengthscale of one draw belong together: rows are fitted as with either held
    found = predict(jax.random.PRNGKey(1), fit, x, num_samples=300)
    assert np.sqrt(np.square(found.mean - y).mean()) < 0.15
    data = to_arviz(jax.random.PRNGKey(1), fit, x, y)
    np.testing.assert_array_equal(group(data, "posterior")["gp.lengthscale"].values, draws)
    assert np.isfinite(group(data, "log_likelihood")["y"].values).all()


@FEW
@pytest.mark.slow
def test_inducing_inputs_and_chains_begin_where_the_start_is(sparse):
    fit, targets = sparse
    moved = {**fit.params, "gp/inducing": fit.params["gp/inducing"] + 0.1}
    start = replace(fit, params=moved)
    again = fit_nuts(
        jax.random.PRNGKey(1), fit.model, X, targets, start=start, num_warmup=1, num_samples=4, num_chains=2
    )
    np.testing.assert_array_equal(again.params["gp/inducing"], moved["gp/inducing"])
    # after one step still near the posterior, where draws from the prior would cost hundreds of nats
    usual = fit.chains.stats["potential_energy"]
    assert (again.chains.stats["potential_energy"] < usual.max() + 20.0).all()


@pytest.mark.slow
@FEW
def test_the_metric_begins_at_what_a_fit_knows():
    """At the variances of its q(u), within four standard errors of 200 draws, and so with shorter trajectories."""
    model = sparse_gp_regression(4, noise=NOISE)
    start = fit_svi(
        jax.random.PRNGKey(0), model, Guide(model), PowerEP(0.0), X, Y, steps=600, learning_rate=0.03
    )
    guide = handlers.substitute(start.guide, data=start.params)
    draw = lambda key: {"gp/u": handlers.trace(handlers.seed(guide, key)).get_trace(X, Y)["gp/u"]["value"]}
    scale = start.params["gp/u_scale"][0]
    found = _metric(jax.vmap(draw)(jax.random.split(jax.random.PRNGKey(1), 200)))
    np.testing.assert_allclose(found, np.square(scale).sum(1), rtol=0.4, atol=1e-4)
    steps = []
    for begun in (None, start):
        fit = fit_nuts(
            jax.random.PRNGKey(2), model, X, Y, start=begun, num_warmup=30, num_samples=50, num_chains=2
        )
        steps.append(fit.chains.stats["n_steps"].mean())
    assert steps[1] < 0.8 * steps[0]


def test_inducing_outputs_begin_where_guides_do():
    """Those of a hidden layer at draws of its small scale, and of the last at draws of the prior."""

    def begun(key):
        with Beginning():
            sites = handlers.trace(handlers.seed(deep_gp((2,), 6), key)).get_trace(X, Y)
        return {name: sites[name]["value"] for name in ("layer1/u", "layer2/u")}

    found = jax.jit(jax.vmap(begun))(jax.random.split(jax.random.PRNGKey(0), 100))
    np.testing.assert_allclose(found["layer1/u"].std(), INNER_SCALE, rtol=0.1)
    np.testing.assert_allclose(found["layer2/u"].std(), 1.0, rtol=0.15)


X6, Y6 = X[::2], Y[::2]


@FEW
@pytest.mark.slow
def test_a_two_layer_deep_gp_runs_and_predicts():
    model = deep_gp((1,), 3, noise=NOISE)
    fit = fit_nuts(
        jax.random.PRNGKey(1), model, X6, Y6, num_warmup=100, num_samples=60, num_chains=2, max_tree_depth=6
    )
    assert fit.guide == EmpiricalPosterior(model, ("layer1/u", "layer2/u"), ("layer1/h",))
    assert fit.params["layer1/h_draws"].shape == (2, 60, 6, 1)
    found = predict(jax.random.PRNGKey(2), fit, X6, Y6, num_samples=200)
    assert np.sqrt(np.square(found.mean - Y6).mean()) < 0.3 and np.isfinite(found.log_density).all()
    data = to_arviz(jax.random.PRNGKey(2), fit, X6, Y6)
    posterior = group(data, "posterior")
    np.testing.assert_array_equal(posterior["layer1.h"].values, np.asarray(fit.params["layer1/h_draws"]))
    assert np.isfinite(group(data, "log_likelihood")["y"].values).all()
    with pytest.raises(ValueError, match="y: found .* rows at 'layer1/h'"):
        to_arviz(jax.random.PRNGKey(2), fit, X6[:4], Y6[:4])


@pytest.mark.slow
@FEW
def test_a_deep_gp_from_a_fit_by_svi():
    """Held values are the start's; what LOO averages out, a hidden layer, is what quadrature makes of it."""
    model = deep_gp((1,), 3, noise=NOISE)
    guide = Guide(model, hidden=DoublyStochastic())
    start = fit_svi(jax.random.PRNGKey(0), model, guide, PowerEP(0.0, 1), X6, Y6, steps=200)
    fit = fit_nuts(
        jax.random.PRNGKey(1), model, X6, Y6, start=start, num_warmup=300, num_samples=300, num_chains=2
    )
    for name in ("layer1/inducing", "layer2/inducing", "layer1/noise", "layer2/lengthscale"):
        np.testing.assert_array_equal(fit.params[name], start.params[name])
    draws = joint_draws(jax.random.PRNGKey(2), fit, X6, Y6, num_draws=20, num_locals=2000)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    @jax.jit
    def averaged(theta):
        """log ∫ p(y_n | h) p(h | u) dh of each row."""
        run = handlers.substitute(handlers.seed(model, 0), {**fit.params, **theta})
        step = handlers.trace(run).get_trace(X6, Y6)["layer1/h"]["fn"]
        deviation = jnp.sqrt(step.marginal.variance + fit.params["layer1/noise"])

        def density(node):
            h = step.marginal.mean + node * deviation
            sites = handlers.trace(handlers.substitute(run, {"layer1/h": h})).get_trace(X6, Y6)
            return jnp.exp(sites["y"]["fn"].log_prob(Y6))

        densities = jax.lax.map(density, jnp.asarray(nodes))
        return jnp.log(jnp.asarray(weights) @ densities / jnp.sqrt(2 * jnp.pi))

    for number in range(20):
        expected = averaged({name: jnp.asarray(value[number]) for name, value in draws.sites.items()})
        relative = np.exp(draws.local_weights[number] - draws.log_likelihood[number])
        error = relative.std(0) / np.sqrt(2000)
        assert (np.abs(draws.log_likelihood[number] - expected) < 5 * error + 1e-6).all()


def test_advice_tells_of_divergences_and_of_chains_that_disagree():
    random = np.random.default_rng(0)
    agreeing = {"u": random.normal(size=(4, 500, 2))}
    stats = {"diverging": np.zeros((4, 500), bool)}
    assert chains_of(agreeing, stats, 100).advice is None
    apart = {"u": agreeing["u"] + np.arange(4.0)[:, None, None]}
    chains = chains_of(apart, {"diverging": stats["diverging"] | (np.arange(500) == 3)}, 100)
    assert chains.divergences == 4 and chains.r_hat["u"] > 1.2
    assert "divergences: found 4 in 2000 draws" in chains.advice and "R-hat of u: found" in chains.advice


def without_latents(x, y=None):
    with data_plate(x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=None if y is None else y[:, 0])


@pytest.mark.parametrize(
    "model, message",
    [
        (sparse_gp_regression(4, subsample_size=5), "model: found 5 of 12 rows in the plate 'data'"),
        (without_latents, "model: found no latent sites"),
        (exact_gp_regression(), "model: found no latent sites"),
        (mixture_of_functions(2, num_inducing=3), "model: found the discrete latent"),
    ],
)
def test_models_that_cannot_be_sampled(model, message):
    with pytest.raises(ValueError, match=message):
        fit_nuts(jax.random.PRNGKey(0), model, X, Y)


def test_settings_and_data_that_cannot_be_used(sparse):
    fit, targets = sparse
    key, model = jax.random.PRNGKey(0), sparse_gp_regression(4)
    with pytest.raises(ValueError, match="row 3, column 0"):
        fit_nuts(key, model, X, Y.at[3].set(jnp.nan))
    with pytest.raises(ValueError, match="num_samples: found 2, expected a whole number of at least 4"):
        fit_nuts(key, model, X, Y, num_samples=2)
    with pytest.raises(ValueError, match="chain_method: found 'vector', .* did you mean 'vectorized'"):
        fit_nuts(key, model, X, Y, chain_method="vector")
    with pytest.raises(ValueError, match="target_accept_prob: found 1.0"):
        fit_nuts(key, model, X, Y, target_accept_prob=1.0)
    own, more = (lambda x, y: model(x, y)), sparse_gp_regression(5, noise=NOISE)
    with pytest.raises(ValueError, match="start: found none for the parameter 'likelihood/noise'"):
        fit_nuts(key, own, X, Y, start=fit)
    with pytest.raises(ValueError, match=r"start: found \(4, 1\) for the parameter 'gp/inducing'"):
        fit_nuts(key, lambda x, y: more(x, y), X, Y, start=fit)
    with pytest.raises(
        ValueError, match="start: found one of sparse_gp.*num_inducing=4.*; pass a fit of this model"
    ):
        fit_nuts(key, more, X, Y, start=fit)
    lifted = numpyro.handlers.lift(stack([GPLayer(num_inducing=4)], noise=NOISE), prior={})
    with pytest.raises(ValueError, match="start: found one of sparse_gp.*expected one of the model, stack"):
        fit_nuts(key, lifted, X, Y, start=fit)
    with pytest.raises(ValueError, match="params: found no 'gp/u_draws'"):
        predict(key, Posterior(fit.model, fit.guide, {"gp/inducing": fit.params["gp/inducing"]}), X)


def test_the_objective_is_the_joint_density(sparse):
    """−log p(y, v) at each draw: with one draw alone what NUTS says its potential energy is."""
    fit, targets = sparse
    single = {**fit.params, "gp/u_draws": fit.params["gp/u_draws"][:1, :1]}
    loss = jax.jit(
        lambda values: fit.objective.loss(jax.random.PRNGKey(0), values, fit.model, fit.guide, X, targets)
    )(single)
    np.testing.assert_allclose(loss, fit.chains.stats["potential_energy"][0, 0], rtol=1e-10)


@pytest.mark.slow
@FEW
def test_a_gplvm_is_sampled_from_a_fit():
    """Latents are local: new rows have their own. From the prior's means, chains end at other orders of the rows."""
    y = jnp.hstack([X, jnp.tanh(X), -X]) + 0.1 * jax.random.normal(jax.random.PRNGKey(5), (12, 3))
    model = gplvm(3, 1, 4, noise=NOISE)
    guide = Guide(model, hidden=MeanField())
    start = fit_svi(jax.random.PRNGKey(9), model, guide, PowerEP(0.0), None, y, steps=500, learning_rate=0.03)
    fit = fit_nuts(
        jax.random.PRNGKey(0), model, None, y, start=start, num_warmup=300, num_samples=300, num_chains=2
    )
    data = to_arviz(jax.random.PRNGKey(2), fit, None, y, num_locals=32)
    assert np.isfinite(group(data, "log_likelihood")["y"].values).all()
    latents = group(data, "posterior")["x"].values
    # the line that the rows lie on is found, up to its direction
    for chain in latents[..., 0]:
        assert abs(np.corrcoef(chain.mean(0), X[:, 0])[0, 1]) > 0.9


@pytest.mark.slow
@FEW
def test_a_state_space_model_is_sampled_and_forecast():
    """With next to no kernel it is a random walk with known noises, whose last state and forecast Kalman's are.

    x_0 ~ N(0, 1), x_t = x_{t−1} + N(0, 0.1), y_t = x_t + N(0, 0.05): filter by hand.
    """
    y = np.cumsum(np.random.default_rng(0).normal(size=8)) * 0.3

    walk = gpssm(
        1, 1, 3, emission="identity", kernel=lambda _: RBF(1e-6, jnp.ones(1)), process_noise=0.1, noise=0.05
    )
    mean, variance = 0.0, 1.0
    for value in y:
        variance = variance + 0.1
        gain = variance / (variance + 0.05)
        mean, variance = mean + gain * (value - mean), variance * (1 - gain)
    fit = fit_nuts(jax.random.PRNGKey(0), walk, None, y, num_warmup=300, num_samples=1000, num_chains=4)
    last = np.asarray(fit.params["x_draws"])[..., -1, 0]
    size = summary({"x": last}, group_by_chain=True)["x"]["n_eff"]
    assert abs(last.mean() - mean) < 4 * last.std() / np.sqrt(size)
    np.testing.assert_allclose(last.var(), variance, rtol=0.15)
    found = forecast(jax.random.PRNGKey(1), fit, None, jnp.asarray(y), 3, num_samples=2000)
    steps = 0.1 * np.arange(1, 4)
    error = np.sqrt((variance + steps) * (1 / 2000 + 1 / size))
    assert (np.abs(found.mean[:, 0] - mean) < 4 * error).all()
    np.testing.assert_allclose(found.variance[:, 0], variance + steps + 0.05, rtol=0.15)
