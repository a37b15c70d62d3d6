"""Diagnostics against closed forms: where q is the posterior, every bound is the evidence and LOO is known."""

import dataclasses
import io
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import multivariate_normal, norm

from ppl_dgp.data import Table
from ppl_dgp.diagnostics import compare, khat, scores, tabulate, to_arviz
from ppl_dgp.diagnostics.arviz_api import ONE, container, group, pareto_smoothed, read_netcdf, write_netcdf
from ppl_dgp.diagnostics.arviz_axes import parts_of
from ppl_dgp.diagnostics.comparison import Comparison
from ppl_dgp.diagnostics.draws import joint_draws
from ppl_dgp.diagnostics.layers import layer_maps
from ppl_dgp.fit import Posterior, fit_svi
from ppl_dgp.guides import Conditional, Diagonal, FullRank, Guide
from ppl_dgp.kernels import Matern32
from ppl_dgp.models.deep_gp import deep_gp
from ppl_dgp.models.gp_regression import exact_gp_regression, sparse_gp_regression
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import Prediction, predict

KEY = jax.random.key(5)
ROWS = 30
NOISE = 0.05


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(1)
    x = np.sort(random.uniform(-1.5, 1.5, (ROWS, 1)), axis=0)
    return x, np.sin(2 * x) + np.sqrt(NOISE) * random.normal(size=(ROWS, 1))


@pytest.fixture(scope="module")
def deep(table):
    model = deep_gp((2,), 5)
    return fit_svi(
        KEY, model, Guide(model, hidden=Conditional()), PowerEP(0.0), *table, steps=20, chunk=20, restarts=2
    )


@pytest.fixture(scope="module")
def exact(table):
    """A sparse GP with Z = X whose q(u) is the posterior: S = (I + LᵀL/s²)⁻¹, µ = S Lᵀy/s²."""
    x, y = table
    kernel = lambda _dims: Matern32(jnp.asarray(1.0), jnp.asarray(1.0))
    model = sparse_gp_regression(ROWS, kernel=kernel, noise=NOISE, train_inducing=False, jitter=1e-12)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=1, chunk=1)
    gram = np.asarray(kernel(1)(jnp.asarray(x), jnp.asarray(x)))
    lower = np.linalg.cholesky(gram + 1e-12 * np.eye(ROWS))
    covariance = np.linalg.inv(np.eye(ROWS) + lower.T @ lower / NOISE)
    params = {
        "gp/inducing": x,
        "gp/u_loc": (covariance @ lower.T @ y / NOISE).T,
        "gp/u_scale": np.linalg.cholesky(covariance)[None],
    }
    params = {name: jnp.asarray(value) for name, value in params.items()}
    stacked = {name: value[None] for name, value in params.items()}
    return dataclasses.replace(fit, params=params, restart_params=stacked), gram


@pytest.fixture(scope="module")
def data(deep, table):
    return to_arviz(KEY, deep, *table, num_draws=60, num_locals=4)


def evidence(gram, y):
    return multivariate_normal(np.zeros(ROWS), gram + NOISE * np.eye(ROWS)).logpdf(y[:, 0])


def test_every_bound_is_the_evidence_where_q_is_the_posterior(exact, table):
    fit, gram = exact
    truth = evidence(gram, table[1])
    value, error = khat.elbo(KEY, fit, *table, num_draws=5)
    assert value == pytest.approx(truth, abs=1e-3)
    assert error < 1e-3
    value, error = khat.importance_weighted_bound(KEY, fit, *table, num_draws=50, num_locals=1)
    assert value == pytest.approx(truth, abs=1e-3)
    assert error < 1e-3


def test_u_unwhitened_is_f_at_the_inducing_inputs(exact, table):
    fit, gram = exact
    draws = joint_draws(KEY, fit, *table, num_draws=50, num_locals=1)
    lower = np.linalg.cholesky(gram + 1e-12 * np.eye(ROWS))
    np.testing.assert_allclose(draws.unwhitened["gp/u"], draws.sites["gp/u"] @ lower.T, atol=1e-6)


def test_loo_is_the_closed_form_of_gaussian_process_regression(exact, table):
    fit, gram = exact
    draws = joint_draws(KEY, fit, *table, num_draws=4000, num_locals=1)
    value, error, rows = khat.expected_log_density(draws.log_likelihood)
    # Rasmussen and Williams 2006, eq. 5.10–5.12
    inverse = np.linalg.inv(gram + NOISE * np.eye(ROWS))
    weights, y = inverse @ table[1][:, 0], table[1][:, 0]
    variance = 1 / np.diag(inverse)
    truth = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (weights * variance) ** 2 / variance
    # the Monte Carlo error of 4000 draws is about 0.1
    assert value == pytest.approx(truth.sum(), abs=0.5)
    assert error == pytest.approx(np.sqrt(ROWS * truth.var()), rel=0.2)
    assert rows.shape == y.shape


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_khat_is_the_tail_index_of_pareto_weights(shape):
    # w = U^−k has tail index k; the tail of 2·10⁴ draws gives it to about 0.07
    weights = -shape * np.log(np.random.default_rng(0).uniform(size=(3, 20_000)))
    smoothed, found = pareto_smoothed(weights)
    np.testing.assert_allclose(found, shape, atol=0.2)
    np.testing.assert_allclose(np.exp(smoothed).sum(-1), 1.0)
    assert np.all([np.corrcoef(a, b)[0, 1] > 0.9 for a, b in zip(smoothed, weights, strict=True)])


def test_equal_weights_have_no_tail():
    assert khat._khat(np.zeros((2, 50))).tolist() == [-np.inf, -np.inf]


@pytest.mark.slow
def test_khat_of_sites_and_rows(deep, table):
    found = khat.pareto_k(KEY, deep, *table, num_draws=60, num_locals=4, local_draws=240)
    assert np.isfinite(found.sites)
    assert found.rows.shape == (ROWS,)
    assert np.isfinite(found.rows).all()
    with pytest.raises(ValueError, match="num_draws: found 3"):
        khat.pareto_k(KEY, deep, *table, num_draws=3)


@pytest.mark.slow
def test_elbo_is_below_the_importance_weighted_bound_and_has_an_error(deep, table):
    value, error = khat.elbo(KEY, deep, *table, num_draws=60)
    assert 0 < error < 0.3 * abs(value)
    bound, _ = khat.importance_weighted_bound(KEY, deep, *table, num_draws=60, num_locals=4)
    assert bound > value - 4 * error


def test_groups_have_named_axes_and_a_chain_per_restart(data):
    posterior = group(data, "posterior")
    sizes = {"chain": 2, "draw": 60}
    assert dict(posterior["layer1.u"].sizes) == {**sizes, "layer1_output": 2, "layer1_inducing": 5}
    assert dict(posterior["layer2.u_unwhitened"].sizes) == {**sizes, "layer2_output": 1, "layer2_inducing": 5}
    assert dict(posterior["layer1.h"].sizes) == {**sizes, "row": ROWS, "layer1_output": 2}
    assert dict(group(data, "log_likelihood")["y"].sizes) == {**sizes, "row": ROWS}
    assert dict(group(data, "posterior_predictive")["y"].sizes) == {**sizes, "row": ROWS}
    constants = group(data, "constant_data")
    assert constants["layer1.inducing"].dims == ("chain", "layer1_inducing", "layer1_input")
    assert not [name for name in constants if "u_loc" in name or "h_shrinkage" in name]
    stats = group(data, "sample_stats")
    assert stats["loss"].dims == ("chain", "step")
    assert stats["log_q"].dims == ("chain", "draw")


def test_draws_of_one_restart_are_four_chains_and_columns_have_their_names(exact, table):
    fit, (x, y) = exact[0], table
    frame = pd.DataFrame(x, columns=["time"])
    data = to_arviz(KEY, fit, frame, pd.DataFrame(y, columns=["level"]), num_draws=400, num_locals=1)
    posterior, stats = group(data, "posterior"), group(data, "sample_stats")
    assert dict(posterior["gp.u"].sizes) == {"chain": 4, "draw": 100, "gp_output": 1, "gp_inducing": ROWS}
    assert data.attrs["chains"] == "4 parts of the independent draws of one restart"
    # the chains are the draws, cut, each with its own weights; independent draws have an r-hat of one
    whole = joint_draws(jax.random.fold_in(KEY, 0), fit, x, y, num_draws=400, num_locals=1)
    np.testing.assert_array_equal(posterior["gp.u"].values.reshape(400, 1, ROWS), whole.sites["gp/u"])
    np.testing.assert_array_equal(stats["log_q"].values.ravel(), whole.log_q)
    assert stats["loss"].sizes["chain"] == 4
    r_hat = az.rhat(data, var_names=["gp.u"])
    r_hat = (group(r_hat, "posterior") if hasattr(r_hat, "children") else r_hat)["gp.u"].values
    assert np.isfinite(r_hat).all() and r_hat.max() < 1.05
    constants = group(data, "constant_data")
    assert list(constants["input"].values) == list(constants["gp_input"].values) == ["time"]
    assert list(posterior["gp_output"].values) == ["level"]


def test_only_layers_that_are_made_of_columns_have_their_names(deep, table):
    x, y = table
    known = Table(X=x, y=y, feature_names=("time",), target_names=("level",)).coords
    names = {**known, "layer1_output": ["up", "down"]}
    data = to_arviz(KEY, deep, *table, num_draws=5, num_locals=1, coords=names)
    posterior, constants = group(data, "posterior"), group(data, "constant_data")
    assert list(constants["layer1_input"].values) == ["time"]
    assert list(constants["layer2_input"].values) == [0, 1]
    assert list(posterior["layer1_output"].values) == ["up", "down"]
    assert list(posterior["layer2_output"].values) == ["level"]
    assert data.attrs["chains"] == "restarts"
    for wrong, words in [
        ({"input": ["a", "b"]}, "coords: found 2 labels of 'input'"),
        ({"age": [1]}, "'age', expected"),
    ]:
        with pytest.raises(ValueError, match=words):
            to_arviz(KEY, deep, *table, num_draws=5, num_locals=1, coords=wrong)


@pytest.mark.parametrize("number, parts", [(200, 4), (9, 1), (12, 3), (10, 2), (3, 1)])
def test_as_many_parts_as_divide_the_draws_and_leave_enough_for_r_hat(number, parts):
    assert parts_of(number) == parts


def test_netcdf_gives_back_every_number_and_name(data, tmp_path):
    path = tmp_path / "fit.nc"
    write_netcdf(data, path)
    again = read_netcdf(path)
    names = (
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "constant_data",
        "sample_stats",
    )
    for name in names:
        np.testing.assert_equal(
            {key: value.values for key, value in group(again, name).variables.items()},
            {key: value.values for key, value in group(data, name).variables.items()},
        )
    assert again.attrs["inference_library"] == "ppl_dgp"


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_arviz_reads_it_and_agrees_on_loo(data):
    found = az.loo(data)
    rows = group(data, "log_likelihood")["y"].values.reshape(-1, ROWS)
    value, error, _ = khat.expected_log_density(rows)
    elpd = found.elpd if ONE else found.elpd_loo
    # ArviZ fits the tail for the effective sample size of the chains, we for independent draws
    assert float(elpd) == pytest.approx(value, abs=0.5)
    assert float(found.se) == pytest.approx(error, rel=0.2)
    assert len(az.summary(data, var_names=["layer1.u"])) == 10


@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
def test_posterior_predictive_plot(data):
    if ONE:
        import arviz_plots

        arviz_plots.plot_ppc_dist(data, backend="none")
    else:
        import matplotlib.pyplot as plt

        az.plot_ppc(data, num_pp_samples=5, random_seed=0)
        plt.close("all")


def test_rows_that_do_not_agree_and_models_without_rows_are_refused(deep, table):
    x, y = table
    with pytest.raises(ValueError, match="y: found 29 rows, expected 30"):
        to_arviz(KEY, deep, x, y[:-1])
    with pytest.raises(ValueError, match="num_draws: found 0"):
        to_arviz(KEY, deep, x, y, num_draws=0)
    model = exact_gp_regression()
    with pytest.raises(TypeError, match="expected one data plate"):
        joint_draws(KEY, Posterior(model, lambda *args: None, {}), x, y, num_draws=2)


@pytest.mark.slow
def test_layer_maps_follow_the_means(deep, table):
    first, second = layer_maps(deep, jnp.asarray(table[0]))
    np.testing.assert_allclose(first.inputs, table[0])
    np.testing.assert_allclose(second.inputs, first.mean)
    # a curve over one input, a field over two
    assert first.grid.shape[1] == 1 and second.grid.shape[1] == 2
    for place in (first, second):
        assert (place.grid.min(0) <= place.inputs.min(0)).all() and (
            place.grid.max(0) >= place.inputs.max(0)
        ).all()
    assert second.inducing.shape == (5, 2)


def test_container_keeps_attributes():
    assert container({}, {"steps": 3}).attrs["steps"] == 3


SMALL = dict(steps=20, chunk=20, num_draws=30, num_locals=2, num_samples=20)


@pytest.fixture(scope="module")
def comparison(table):
    """A sparse GP at two α; what was said is kept in the list."""
    x, y = table
    said = []
    found = compare(
        KEY,
        lambda: deep_gp((2,), 5),
        {"sparse": (lambda: sparse_gp_regression(5), Guide)},
        x,
        y,
        x[::2],
        y[::2],
        [0.0, 0.5],
        target_scale=10.0,
        say=said.append,
        **SMALL,
    )
    assert said == ["1 of 2: sparse, α = 0", "2 of 2: sparse, α = 0.5"]
    return found


@pytest.mark.slow
def test_comparison_has_a_row_per_guide_and_alpha_and_original_units(comparison, table):
    found = comparison.table
    assert list(found["alpha"]) == [0.0, 0.5]
    assert found.notna().all(axis=None)
    assert found["coverage95"].between(0, 1).all()
    fit = comparison.fits["sparse", 0.0]
    # u_loc 5, u_scale 5·5, inducing 5, lengthscale, variance, noise
    assert found["parameters"][0] == 38
    x, y = (jnp.asarray(column[::2]) for column in table)
    told = predict(KEY, fit, x, y, num_samples=1)
    # one layer has no hidden draws, so that the prediction is the same for every key
    assert found["test_rmse"][0] == pytest.approx(10 * np.sqrt(np.square(told.mean - y).mean()))
    assert found["test_log_density"][0] == pytest.approx(told.log_density.mean() - np.log(10))


def test_comparison_prints_draws_and_adds(comparison, tmp_path):
    exact = tabulate({("exact", np.nan): lambda: {"elbo": 0.5, "elbo_se": 0.0, "khat": None}})
    console = Console(width=200, record=True, file=io.StringIO())
    console.print((comparison + exact).to_rich("two"))
    text = console.export_text()
    # a line for each α, above the advice
    assert sum(line.strip().startswith("sparse ") for line in text.splitlines()) == 2
    assert f"{comparison.table['elbo'][0]:.2f} ±" in text
    (line,) = (line.split() for line in text.splitlines() if "exact" in line)
    assert line == ["exact", "–", "0.50", "±", "0.00", *"–––––––––"]
    (comparison + exact).figure().savefig(tmp_path / "comparison.png")
    with pytest.raises(ValueError, match="in both comparisons"):
        comparison + comparison


def test_a_comparison_shows_its_table_and_no_fits():
    found = repr(Comparison(pd.DataFrame({"fit": ["a"], "alpha": [0.5], "elbo": [-12.3456]}), {}))
    assert found.split() == ["fit", "alpha", "elbo", "a", "0.5", "-12.35"]


def test_comparison_needs_something_to_compare(table):
    x, y = table
    with pytest.raises(ValueError, match="guides: found none"):
        compare(KEY, lambda: deep_gp((2,), 5), {}, x, y)
    with pytest.raises(ValueError, match="target_scale: found 0"):
        compare(KEY, lambda: deep_gp((2,), 5), {"a": Guide}, x, y, target_scale=0.0)
    with pytest.raises(ValueError, match="starts: found 'b' for 'a'"):
        compare(KEY, lambda: deep_gp((2,), 5), {"a": Guide, "b": Guide}, x, y, starts={"a": "b"})
    hand = {"a": lambda model: lambda x, y: None, "b": Guide}
    with pytest.raises(TypeError, match="starts: found a function for 'a', expected a Guide"):
        compare(KEY, lambda: deep_gp((2,), 5), hand, x, y, starts={"b": "a"})
    with pytest.raises(ValueError, match="rows: found none"):
        tabulate({})


def test_scores_are_those_of_a_normal_in_the_units_asked_for():
    y, ones = np.array([[0.0], [3.0]]), np.ones((2, 1))
    density = norm.logpdf(y[:, 0], 1.0, 2.0)
    found = Prediction(
        ones, ones, ones, 4 * ones, (0.025, 0.975), np.stack([-2.9 * ones, 2.9 * ones]), None, density
    )
    expected = {
        "test_log_density": density.mean() - np.log(5.0),
        "test_rmse": 5.0 * np.sqrt(2.5),
        "coverage95": 0.5,
    }
    assert scores(found, y, 5.0) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="prediction: found no log density"):
        scores(dataclasses.replace(found, log_density=None), y)


@pytest.mark.slow
def test_comparison_starts_a_richer_guide_at_the_optimum_of_a_poorer_one(table):
    guides = {
        "diagonal": lambda model: Guide(model, inducing=Diagonal()),
        "full-rank": lambda model: Guide(model, inducing=FullRank()),
    }
    make, starts = lambda: sparse_gp_regression(5), {"full-rank": "diagonal"}
    found = compare(KEY, make, guides, *table, starts=starts, **SMALL)
    # the first loss is that of the start; one layer's bound at α = 0 has no Monte Carlo error
    assert -found.fits["full-rank", 0.0].losses[0, 0] == pytest.approx(found.table["elbo"][0], rel=1e-6)
    assert found.table["elbo"][1] > found.table["elbo"][0]
    assert found.table["test_rmse"].isna().all()


@pytest.fixture(scope="module")
def two_targets(table):
    """A sparse GP of two target columns, which are of scales 3 and 5, on standardised targets."""
    x, y = table
    columns = np.hstack([y, np.cos(3 * x)])
    make = lambda: sparse_gp_regression(5, num_outputs=2)
    scale = np.array([3.0, 5.0])
    found = compare(
        KEY, make, {"sparse": Guide}, x, columns, x[::2], columns[::2], target_scale=scale, **SMALL
    )
    return found, x, columns


@pytest.mark.slow
def test_comparison_of_several_targets_takes_rows_together_and_each_in_its_units(two_targets):
    found, x, y = two_targets
    assert found.table.notna().all(axis=None)
    fit, row = found.fits["sparse", 0.0], found.table.iloc[0]
    told = predict(KEY, fit, jnp.asarray(x[::2]), jnp.asarray(y[::2]), num_samples=1)
    # p(y | x) = Π_p N(y_p; m_p, v_p), each density divided by its column's scale
    rows = norm.logpdf(y[::2] * [3, 5], told.mean * [3, 5], np.sqrt(told.variance) * [3, 5]).sum(1)
    assert row["test_log_density"] == pytest.approx(rows.mean())
    wrong = (told.mean - y[::2]) * [3, 5]
    assert row["test_rmse"] == pytest.approx(np.sqrt(np.square(wrong).mean()))


@pytest.mark.slow
def test_several_targets_go_to_arviz_and_back(two_targets, tmp_path):
    found, x, y = two_targets
    data = to_arviz(KEY, found.fits["sparse", 0.0], x, y, num_draws=40, num_locals=4)
    write_netcdf(data, tmp_path / "fit.nc")
    again = read_netcdf(tmp_path / "fit.nc")
    assert dict(group(again, "posterior_predictive")["y"].sizes) == dict(chain=4, draw=10, row=ROWS, target=2)
    np.testing.assert_array_equal(group(again, "observed_data")["y"], y)
    likelihood = group(again, "log_likelihood")["y"]
    assert likelihood.dims == ("chain", "draw", "row")
    stats = group(again, "sample_stats")
    # log p(y, θ) = log p(θ) + Σ_n log p(y_n | θ), θ ~ N(0, I) whitened
    prior = norm.logpdf(group(again, "posterior")["gp.u"][0]).sum((1, 2))
    np.testing.assert_allclose(stats["log_p"][0], prior + likelihood[0].sum("row"), rtol=1e-10)
    assert len(az.summary(again, var_names=["gp.u"])) == 10
    with warnings.catch_warnings():
        # twenty steps of training leave weights with heavy tails
        warnings.filterwarnings("ignore", "Estimated shape parameter")
        loo = az.loo(again)
    assert np.isfinite(float(loo.elpd if ONE else loo.elpd_loo))
