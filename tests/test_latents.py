"""Latents of new rows, their densities, what they decode to; the GPLVM as a transformer."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import pytest
from scipy import stats
from sklearn.utils.estimator_checks import check_estimator

from ppl_dgp.estimators import GPLVM
from ppl_dgp.fit import Posterior, fit_lbfgs, fit_svi
from ppl_dgp.gp.moment_matching import matched
from ppl_dgp.guides import Amortised, Conditional, Guide, MeanField, PointEstimate
from ppl_dgp.models import deep_gplvm, dynamical_gplvm, gplvm
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import Collapsed, PowerEP
from ppl_dgp.prediction.latents import infer_latents, relevance, row_log_density
from ppl_dgp.prediction.predict import predict
from ppl_dgp.prediction.predictive_trace import model_sites

KEY = jax.random.PRNGKey(1)
RANDOM = np.random.default_rng(1)
T = np.linspace(-1.5, 1.5, 14)
Y = np.column_stack([T, np.sin(2 * T), T**2 - 0.7]) + 0.05 * RANDOM.normal(size=(14, 3))
GAPS = Y.copy()
GAPS[[1, 4, 9], [0, 2, 1]] = np.nan


@pytest.fixture(scope="module")
def fitted():
    model = gplvm(3, 1, 6, missing=True)
    guide = Guide(model, hidden=MeanField())
    return fit_lbfgs(KEY, model, None, GAPS, guide=guide, objective=Collapsed(), steps=400)


@pytest.fixture(scope="module")
def again(fitted):
    return infer_latents(KEY, fitted, None, GAPS)


@pytest.mark.slow
def test_rows_of_training_are_found_again(fitted, again):
    """At the optimum q(x_n) is stationary, so that folding the same rows in gives it again."""
    assert np.abs(again.mean - fitted.params["x_loc"]).max() < 0.02
    assert np.allclose(again.scale, fitted.params["x_scale"], rtol=0.05)
    assert again.params["x_loc"].shape == (14, 1)


def test_a_layer_that_is_switched_off_hands_latents_on_in_its_own_units(fitted):
    """One layer's latents x are a hidden layer's h = C x where the function above is 0 and its noise C²."""
    c, model = 40.0, deep_gplvm(3, 1, (1,), 6, missing=True)
    params = {name.replace("gp/", "layer2/"): value for name, value in fitted.params.items()}
    params |= {f"layer2/{name}": c * params[f"layer2/{name}"] for name in ("inducing", "lengthscale")}
    # deviations are in units of that of the noise
    params |= {"layer1/h_loc": c * params["x_loc"], "layer1/h_scale": params["x_scale"]}
    params |= {"layer1/variance": jnp.asarray(1e-9), "layer1/noise": jnp.asarray(c**2)}
    params |= {"layer1/inducing": jnp.linspace(-2.0, 2.0, 6)[:, None], "layer1/u_loc": jnp.zeros((1, 6))}
    params |= {"layer1/u_scale": jnp.eye(6)[None], "layer1/lengthscale": jnp.ones(1)}
    params |= {"x_loc": jnp.zeros((14, 1)), "x_scale": jnp.ones((14, 1))}
    found = infer_latents(KEY, Posterior(model, Guide(model, hidden=MeanField()), params), None, GAPS)
    h = found.sites["layer1/h"]
    # by 300 draws of a bound whose slopes are those of a draw: errors of 0.02, 12 %, and of x, of unit deviation, 0.2
    np.testing.assert_allclose(h.mean / c, fitted.params["x_loc"], atol=0.05)
    np.testing.assert_allclose(h.scale / c, fitted.params["x_scale"], rtol=0.3)
    assert np.abs(found.mean).max() < 0.5


def test_rows_do_not_depend_on_each_other(fitted, again):
    few = infer_latents(KEY, fitted, None, GAPS[[9, 4]])
    assert np.allclose(few.mean, again.mean[[9, 4]], atol=1e-6)


def test_density_of_rows_is_the_integral_over_x(fitted, again):
    """One latent: by quadrature; entries that are missing have no part."""
    x = np.linspace(-6.0, 6.0, 4001)[:, None]
    sites = model_sites(
        KEY, fitted.model, fitted.guide, fitted.params, jnp.zeros((4001, 0)), values={"x": jnp.asarray(x)}
    )
    emission = sites["y"]["fn"]
    mean, deviation = np.asarray(emission.mean), np.sqrt(np.asarray(emission.variance))
    each = np.nansum(stats.norm.logpdf(GAPS[:, None], mean, deviation), -1) + stats.norm.logpdf(x[:, 0])
    exact = np.log(np.trapezoid(np.exp(each), x[:, 0], axis=1))
    found = row_log_density(KEY, fitted, None, GAPS, latents=again, num_samples=1000)
    # the standard error of a log mean of 1000 weights of unit spread is 0.03
    assert np.abs(found - exact).max() < 0.15
    assert abs(found.mean() - exact.mean()) < 0.05


@pytest.mark.slow
def test_latents_decode_by_the_fitted_function(fitted, again):
    at = jnp.linspace(-1.0, 1.0, 14)[:, None]
    sites = model_sites(KEY, fitted.model, fitted.guide, fitted.params, jnp.zeros((14, 0)), values={"x": at})
    settings = dict(num_samples=1, latents={"x": Gaussian(at, jnp.zeros_like(at))})
    points = predict(KEY, fitted, None, **settings)
    assert np.allclose(points.mean, sites["y"]["fn"].mean, atol=1e-10)
    assert np.allclose(points.variance, sites["y"]["fn"].variance, atol=1e-10)
    # and of q(x) the moments, by kernel expectations; 4 standard errors of 2000 draws
    settings = dict(num_samples=2000, latents=again.sites)
    drawn = predict(KEY, fitted, None, **settings)
    moments = matched(sites["y"]["fn"].marginal.function, jax.tree.map(jnp.asarray, again.sites["x"]))
    spread = np.sqrt(np.asarray(moments.beyond) / 2000)
    assert np.all(np.abs(drawn.f_mean - moments.mean) < 4.0 * spread + 1e-9)


def test_entries_left_out_are_known_better_than_by_their_mean(fitted, again):
    found = predict(KEY, fitted, None, latents=again.sites)
    gone = np.isnan(GAPS)
    assert np.abs(found.mean - Y)[gone].max() < 0.5 < np.abs(Y)[gone].max()


@pytest.mark.slow
def test_an_encoder_answers_at_once():
    model = gplvm(3, 1, 6, missing=True)
    guide = Guide(model, hidden=Amortised((4,), MeanField(), missing="mask"))
    objective = PowerEP(0.0, propagation="moments")
    fit = fit_svi(KEY, model, guide, objective, None, GAPS, steps=20, batch_size=7)
    found = infer_latents(KEY, fit, None, GAPS)
    assert not found.params and found.mean.shape == (14, 1)
    few = infer_latents(KEY, fit, None, GAPS[:3])
    assert np.allclose(few.mean, found.mean[:3])


def test_relevance_is_spread_in_lengthscales():
    model = gplvm(3)
    of = lambda **values: Posterior(
        model, Guide(model), {name.replace("__", "/"): jnp.array(value) for name, value in values.items()}
    )
    assert np.allclose(
        relevance(of(gp__lengthscale=[0.5, 4.0], x_loc=[[1.0, 2.0], [-1.0, -2.0]])), [2.0, 0.5]
    )
    assert np.allclose(relevance(of(view1__lengthscale=[2.0]), "view1"), [0.5])
    with pytest.raises(KeyError, match="no lengthscale of 'gp'"):
        relevance(of(x_loc=np.zeros((2, 1))))


@pytest.mark.slow
def test_bad_rows_are_refused(fitted):
    with pytest.raises(ValueError, match="y: found shape"):
        infer_latents(KEY, fitted, None, Y[0])
    with pytest.raises(ValueError, match="batch_size: found 0"):
        infer_latents(KEY, fitted, None, Y, batch_size=0)
    settings = dict(latents={"z": Gaussian(jnp.zeros((3, 1)), jnp.zeros((3, 1)))})
    with pytest.raises(ValueError, match="latents: found 'z'"):
        predict(KEY, fitted, None, **settings)
    settings = dict(latents={"x": Gaussian(jnp.zeros((3, 1)), jnp.zeros((3, 1)))}, propagation="moments")
    with pytest.raises(ValueError, match="propagation: found 'moments' beside latents"):
        predict(KEY, fitted, None, **settings)
    whole = gplvm(3, 1, 6)
    complete = dataclasses.replace(fitted, model=whole, guide=Guide(whole, hidden=MeanField()))
    with pytest.raises(ValueError, match="row 0, column 1.*missing=True"):
        infer_latents(KEY, complete, None, np.array([[0.1, np.nan, 0.2]]))
    with pytest.raises(ValueError, match="y: found inf"):
        infer_latents(KEY, fitted, None, np.full((2, 3), np.inf))
    points = Guide(fitted.model, hidden=PointEstimate())
    fit = fit_svi(KEY, fitted.model, points, PowerEP(0.0), None, GAPS, steps=2)
    with pytest.raises(ValueError, match="no density"):
        row_log_density(KEY, fit, None, Y)


@pytest.mark.slow
def test_latents_of_a_deep_model_are_those_below_its_layers():
    """And of rules that draw u, the spread is that of runs of the guide."""
    model = deep_gplvm(3, 2, (1,), 6, missing=True)
    guide = Guide(model, hidden=Conditional(tied=True), latent=MeanField())
    fit = fit_svi(KEY, model, guide, PowerEP(0.0), None, GAPS, steps=30)
    found = infer_latents(KEY, fit, None, GAPS, steps=1)
    assert found.mean.shape == (14, 2) and found.sites["layer1/h"].mean.shape == (14, 1)
    values = fit.params | dict(found.params)
    run = numpyro.handlers.substitute(guide, values)
    x, y = jnp.zeros((14, 0)), jnp.asarray(GAPS)
    one = jax.jit(lambda key: numpyro.handlers.seed(run, key)(x, y)["layer1/h"])
    spread = np.std([one(key) for key in jax.random.split(KEY, 400)], axis=0)
    # the standard deviation of 100 draws has a relative standard error of 0.07
    assert np.all(np.abs(np.log(found.sites["layer1/h"].scale / spread)) < 0.35)


def curves(times):
    """Four curves of a point on a circle."""
    a, b = np.sin(times), np.cos(times)
    return np.stack([a, b, a * b, a**2 - b], 1)


@pytest.fixture(scope="module")
def moving():
    times = np.linspace(0.0, 12.0, 40)
    y = curves(times) + 0.05 * np.random.default_rng(0).normal(size=(40, 4))
    model = dynamical_gplvm(4, 2, 12, times=12, missing=True)
    guide = Guide(model, hidden=MeanField())
    return fit_lbfgs(KEY, model, times[:, None], y, guide=guide, objective=Collapsed(), steps=200)


@pytest.mark.slow
def test_latents_of_times_without_data_are_the_priors(moving):
    """Far from all that is known a standard normal; between times of training what the prior function is there."""
    far = infer_latents(KEY, moving, np.array([[60.0], [90.0]]), np.full((2, 4), np.nan))
    assert np.abs(far.mean).max() < 1e-6
    deviation = np.sqrt(1.0 + float(moving.params["prior/noise"]))
    np.testing.assert_allclose(far.scale, deviation, rtol=1e-3)
    between = infer_latents(KEY, moving, np.array([[6.05]]), np.full((1, 4), np.nan))
    sites = model_sites(KEY, moving.model, moving.guide, moving.params, jnp.asarray([[6.05]]))["x"]["fn"]
    np.testing.assert_allclose(between.mean, sites.mean, atol=1e-3)
    np.testing.assert_allclose(between.variance, sites.variance, rtol=1e-2)


@pytest.mark.slow
def test_a_gap_of_a_new_sequence_is_filled_by_its_dynamics(moving):
    """Rows are inferred together: a straight line through the gap errs several times as much."""
    times = np.linspace(30.0, 36.0, 40)
    y, gone = curves(times), slice(15, 25)
    seen = y.copy()
    seen[gone] = np.nan
    found = infer_latents(KEY, moving, times[:, None], seen)
    filled = predict(KEY, moving, times[:, None], latents=found.sites)
    error = lambda mean: np.sqrt(np.square(mean - y[gone]).mean())
    known = ~np.isnan(seen[:, 0])
    line = np.stack([np.interp(times[gone], times[known], y[known, c]) for c in range(4)], 1)
    assert error(filled.mean[gone]) < 0.3 * error(line)
    # what is not seen is less certain
    assert found.scale[20].min() > found.scale[8].max()
    with pytest.raises(ValueError, match="y: found 40 rows, expected at most batch_size=30"):
        infer_latents(KEY, moving, times[:, None], seen, batch_size=30)


@pytest.fixture(scope="module")
def transformer():
    return GPLVM(latent=1, num_inducing=6, steps=150, random_state=0).fit(100.0 + 10.0 * GAPS)


@pytest.mark.slow
def test_transformer_in_the_units_of_the_table(transformer):
    table = 100.0 + 10.0 * GAPS
    assert np.abs(transformer.transform(table) - transformer.embedding_).max() < 0.1
    filled, deviation = transformer.impute(table, return_std=True)
    gone = np.isnan(GAPS)
    assert np.array_equal(filled[~gone], table[~gone]) and np.all(deviation[~gone] == 0.0)
    assert np.abs(filled[gone] - (100.0 + 10.0 * Y)[gone]).max() < 5.0
    assert np.all(deviation[gone] > 0.0)
    assert np.array_equal(
        pickle.loads(pickle.dumps(transformer)).transform(table), transformer.transform(table)
    )
    back = transformer.inverse_transform(transformer.embedding_)
    assert np.sqrt(np.mean((back - (100.0 + 10.0 * Y)) ** 2)) < 2.0
    assert transformer.sample(5).shape == (5, 3)
    assert list(transformer.get_feature_names_out()) == ["gplvm0"]
    # the density is of the table's units: ten times as wide, so that each entry loses log 10
    narrow = GPLVM(latent=1, num_inducing=6, steps=150, random_state=0).fit(GAPS)
    entries = (~gone).sum(1)
    assert np.allclose(
        transformer.score_samples(table), narrow.score_samples(GAPS) - entries * np.log(10.0), atol=0.05
    )


@pytest.mark.slow
def test_the_bound_of_a_transformer_is_what_its_descent_ended_at(transformer):
    # q(u) is at its optimum in closed form in one, and written out in the other
    assert np.isclose(transformer.elbo_, -transformer.losses_[-1], rtol=1e-6)
    points = GPLVM(latent=1, num_inducing=3, hidden="point-estimate", steps=1).fit(Y)
    with pytest.raises(AttributeError, match="elbo_: found point estimates"):
        points.elbo_  # noqa: B018


def test_transformer_refuses_what_it_does_not_know(transformer):
    with pytest.raises(ValueError, match="hidden: found 'markov'"):
        GPLVM(hidden="markov").fit(Y)
    with pytest.raises(ValueError, match="rows: found no entry in column 1"):
        GPLVM().fit(np.column_stack([T, T * np.nan]))
    with pytest.raises(ValueError, match="Z: found shape"):
        transformer.inverse_transform(np.zeros((2, 2)))


@pytest.mark.slow
def test_transformer_keeps_scikit_learns_contract(monkeypatch):
    # it hands -1 and the like to __init__, which is to keep them: only fit may complain
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    check_estimator(GPLVM(latent=1, num_inducing=5, steps=20))
