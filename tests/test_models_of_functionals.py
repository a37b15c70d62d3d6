"""Additive GPs, values and slopes, counts in bins: against dense matrices, limits and a simulation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import multivariate_normal
from numpyro.handlers import seed, substitute, trace
from scipy.stats import poisson

from ppl_dgp.diagnostics import explained, layer_maps, plot_layers
from ppl_dgp.fit import fit_lbfgs, fit_svi
from ppl_dgp.gp.emission import emission_of
from ppl_dgp.gp.functionals import Averages, ValuesAndSlopes, box_averages
from ppl_dgp.guides import AcrossOutputs, Coupled, Guide
from ppl_dgp.kernels import RBF, Matern12, Matern32
from ppl_dgp.models import additive_gp, binned_counts_gp, gp_with_derivatives, sparse_gp_regression
from ppl_dgp.objectives import Collapsed, PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)


def params_of(model, x, y):
    sites = trace(seed(model, KEY)).get_trace(jnp.asarray(x), jnp.asarray(y))
    return {name: site["value"] for name, site in sites.items() if site["type"] == "param"}


def optimal_q(model, params, noise, x, y):
    """The optimal q(u) by Newton's step of its natural parameters: the posterior of the whitened u given y."""
    sites = trace(seed(substitute(model, params), KEY)).get_trace(jnp.asarray(x), jnp.asarray(y))
    weights = emission_of(sites["y"]["fn"]).marginal.weights
    precision = jnp.eye(weights.shape[-1]) + weights.T @ weights / noise
    scale = jnp.linalg.cholesky(jnp.linalg.inv(precision))[None]
    loc = (scale[0] @ scale[0].T @ weights.T @ jnp.asarray(y) / noise).T
    return {"gp/u_loc": loc, "gp/u_scale": scale}


@pytest.mark.slow
def test_the_sum_is_the_dense_gp_of_the_sum_of_kernels():
    """Moments given u by dense matrices, each term of its own columns; and a bound that lies below the evidence."""
    x = RANDOM.normal(size=(5, 3))
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:]
    groups, kernels = ((0,), (2, 1)), (RBF(1.0, 0.7), Matern32(0.5, jnp.array([1.0, 2.0])))
    model = additive_gp(groups, 3, noise=0.1, jitter=0.0, kernel=kernels)
    sites = trace(seed(model, KEY)).get_trace(jnp.asarray(x), jnp.asarray(y))
    mean, covariance, prior = 0.0, 0.0, 0.0
    for number, (columns, kernel) in enumerate(zip(groups, kernels, strict=True), start=1):
        z, rows = sites[f"term{number}/inducing"]["value"], jnp.asarray(x[:, list(columns)])
        lower = np.linalg.cholesky(kernel(z, z))
        weights = np.linalg.solve(lower, kernel(z, rows)).T
        mean = mean + weights @ sites[f"term{number}/u"]["value"].T
        covariance = covariance + kernel(rows, rows) - weights @ weights.T
        prior = prior + kernel(rows, rows)
    found = emission_of(sites["y"]["fn"]).marginal
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    np.testing.assert_allclose(found.joint()[1][0], covariance, atol=1e-12)
    np.testing.assert_allclose(found.variance[:, 0], np.diagonal(covariance), atol=1e-12)
    evidence = multivariate_normal.logpdf(jnp.asarray(y[:, 0]), jnp.zeros(5), prior + 0.1 * np.eye(5))
    guide = Guide(model, inducing=Coupled("full"))
    params = params_of(model, x, y) | params_of(guide, x, y)
    assert -PowerEP(0.0, 200).loss(KEY, params, model, guide, jnp.asarray(x), jnp.asarray(y)) < evidence


@pytest.mark.slow
def test_what_terms_explain():
    x = RANDOM.uniform(-2.0, 2.0, size=(60, 2))
    y = 2.0 * np.sin(2.0 * x[:, :1]) + 0.1 * RANDOM.normal(size=(60, 1))
    model = additive_gp(num_inducing=10)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=800, learning_rate=0.03)
    shares = fit.explained(jnp.asarray(x))
    assert explained(fit, jnp.asarray(x)).keys() == shares.keys() == {"term1", "term2"}
    np.testing.assert_allclose(shares["term1"], np.var(2.0 * np.sin(2.0 * x[:, 0])), rtol=0.1)
    assert shares["term2"] < 0.02
    maps = layer_maps(fit, jnp.asarray(x))
    assert [each.name for each in maps] == ["term1", "term2"] and maps[0].inputs.shape == (60, 1)
    assert len(plot_layers(maps).axes) == 2


@pytest.mark.slow
def test_values_and_slopes_are_the_dense_gp_of_both():
    """The evidence of a table of both, by automatic differentiation of the kernel; inducing points at all rows."""
    points = RANDOM.normal(size=(6, 2))
    kinds = np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    x, y = np.column_stack([points, kinds]), RANDOM.normal(size=(6, 1))
    inducing = np.concatenate([points + 1e-2 * RANDOM.normal(size=points.shape) for _ in range(4)])
    model = gp_with_derivatives(24, inducing=inducing, train_inducing=False, jitter=1e-10)
    params = params_of(model, x, y)
    kernel = RBF(params["gp/variance"], params["gp/lengthscale"])
    one = lambda a, b: kernel(a[None], b[None])[0, 0]

    def entry(a, i, b, j):
        by_first = (lambda a, b: one(a, b)) if i == 0 else (lambda a, b: jax.grad(one)(a, b)[i - 1])
        return by_first(a, b) if j == 0 else jax.grad(by_first, 1)(a, b)[j - 1]

    rows = [(jnp.asarray(point), int(kind)) for point, kind in zip(points, kinds, strict=True)]
    covariance = jnp.array([[entry(*first, *second) for second in rows] for first in rows])
    found = ValuesAndSlopes(
        jnp.asarray(points),
        jnp.asarray(kinds == 0.0, float),
        jnp.asarray(kinds[:, None] == [1.0, 2.0], float),
    )
    np.testing.assert_allclose(found.covariance(kernel), covariance, atol=1e-12)
    np.testing.assert_allclose(found.variance(kernel), np.diagonal(covariance), atol=1e-12)
    np.testing.assert_allclose(params["likelihood/noise"], params["likelihood/slope_noise"])
    noisy = covariance + params["likelihood/noise"] * np.eye(6)
    evidence = multivariate_normal.logpdf(jnp.asarray(y[:, 0]), jnp.zeros(6), noisy)
    loss = PowerEP(0.0).loss
    fit = fit_lbfgs(KEY, model, x, y, guide=Guide(model), objective=PowerEP(0.0), steps=1)
    at_start = {**fit.params, **params}

    def loss_of_q(free):
        return loss(KEY, {**at_start, **free}, model, fit.guide, jnp.asarray(x), jnp.asarray(y))

    optimal = optimal_q(model, params, params["likelihood/noise"], x, y)
    np.testing.assert_allclose(-loss_of_q(optimal), evidence, atol=1e-3)


def test_slopes_pin_down_a_function_and_are_predicted():
    """A cubic from two values and seven slopes, at the optimal q(u) of the kernel that maximises the evidence.

    Against the dense GP of both, and to 0.005 of slopes up to 3.3: the prior knows no polynomials.
    """
    places = np.linspace(-1.5, 1.5, 7)[:, None]
    rows = np.concatenate([np.column_stack([places[:2], [0.0, 0.0]]), np.column_stack([places, np.ones(7)])])
    new = np.column_stack([np.repeat(np.linspace(-1.2, 1.2, 5), 2), np.tile([0.0, 1.0], 5)])
    truth = lambda x: np.where(x[:, 1] == 0.0, x[:, 0] ** 3 - x[:, 0], 3.0 * x[:, 0] ** 2 - 1.0)[:, None]
    variance, lengthscale, noise = 28684.0, 4.138, 1e-5
    inducing = np.linspace(-1.6, 1.6, 9)[:, None]
    settings = {"noise": noise, "slope_noise": noise, "jitter": 1e-12}
    model = gp_with_derivatives(9, inducing=inducing, kernel=RBF(variance, lengthscale), **settings)
    start = fit_lbfgs(KEY, model, rows, truth(rows), guide=Guide(model), objective=PowerEP(0.0), steps=1)
    params = start.params | params_of(model, rows, truth(rows))
    fit = replace(start, params=params | optimal_q(model, params, noise, rows, truth(rows)))

    def covariance(first, second):
        apart = (first[:, None, 0] - second[None, :, 0]) / lengthscale**2
        values = variance * np.exp(-0.5 * apart**2 * lengthscale**2)
        of_first = np.where(first[:, None, 1] == 1.0, -apart, 1.0)
        of_second = np.where(second[None, :, 1] == 1.0, apart, 1.0)
        both = (first[:, None, 1] == 1.0) & (second[None, :, 1] == 1.0)
        return values * (of_first * of_second + np.where(both, lengthscale**-2, 0.0))

    dense = covariance(new, rows) @ np.linalg.solve(covariance(rows, rows) + noise * np.eye(9), truth(rows))
    found = fit.predict(KEY, new).mean
    np.testing.assert_allclose(found, dense, atol=1e-4)
    np.testing.assert_allclose(found, truth(new), atol=0.005)


@pytest.mark.slow
def test_bins_of_no_width_are_points():
    x = np.linspace(-1.0, 1.0, 8)[:, None]
    y = RANDOM.poisson(3.0, size=(8, 1)).astype(float)
    inducing = x[::2]
    binned = binned_counts_gp(4, exposure=True, inducing=inducing)
    usual = sparse_gp_regression(4, likelihood="poisson", inducing=inducing)
    bins = np.column_stack([x - 1e-7, x + 1e-7, np.ones(8)])
    params = params_of(binned, bins, y)
    fits = [(binned, bins), (usual, x)]
    params |= params_of(Guide(binned), bins, y) | {"gp/mean": jnp.zeros(1)}
    losses = [
        PowerEP(0.0).loss(KEY, params, model, Guide(model), jnp.asarray(rows), jnp.asarray(y))
        for model, rows in fits
    ]
    np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.slow
def test_rates_are_found_whatever_the_bins():
    """Events of a known rate in bins of two widths; counts in bins that were not seen are inside their bands."""
    edges = np.concatenate([np.linspace(0.0, 5.0, 51), np.linspace(5.0, 10.0, 11)[1:]])
    rate = lambda t: 200.0 * np.exp(np.sin(t))
    volumes = np.diff(edges)
    expected = rate(0.5 * (edges[1:] + edges[:-1])) * volumes
    counts = RANDOM.poisson(expected)[:, None].astype(float)
    bins = np.column_stack([edges[:-1], edges[1:]])
    model = binned_counts_gp(15)
    assert np.isclose(params_of(model, bins, counts)["gp/mean"], np.log((counts.sum() + 0.5) / 10.0))
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), bins, counts, steps=1500, learning_rate=0.02)
    new = np.column_stack([np.linspace(0.2, 9.2, 10), np.linspace(0.2, 9.2, 10) + 0.6])
    truth = rate(new.mean(1)) * 0.6
    assert np.abs(fit.predict(KEY, new).mean[:, 0] / truth - 1.0).max() < 0.2
    assert isinstance(box_averages(new[:, :1], new[:, 1:]), Averages)
    assert (
        poisson.logpmf(counts[:, 0], expected).sum() > -fit.losses[0, -100:].mean()
    )  # a bound, and of less knowledge


@pytest.mark.slow
def test_draws_of_averages_have_their_covariance():
    """sample_functions at bins: f of overlapping bins is drawn jointly."""
    bins = np.column_stack([np.linspace(0.0, 2.0, 5), np.linspace(0.0, 2.0, 5) + 1.5])
    model = binned_counts_gp(4)
    fit = fit_svi(
        KEY, model, Guide(model, inducing=AcrossOutputs()), PowerEP(0.0), bins, np.ones((5, 1)), steps=5
    )
    draws = fit.sample_functions(KEY, jnp.asarray(bins), num_samples=4000)[..., 0]
    sites = trace(seed(model, KEY)).get_trace(jnp.asarray(bins))
    assert draws.shape == (4000, 5) and np.corrcoef(draws.T)[0, 1] > 0.9
    assert "y" in sites


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: additive_gp(()), "groups: found none"),
        (lambda: additive_gp(((0, 0),)), r"groups: found \(0, 0\)"),
        (lambda: additive_gp(((0,),), kernel=("rbf", "rbf")), "kernel: found 2 for 1 groups"),
        (lambda: additive_gp(kernel=("rbf",)), "kernel: found 1 for no groups"),
        (lambda: seed(additive_gp(((3,),), 2), KEY)(jnp.ones((4, 2))), "groups: found the column 3"),
        (lambda: gp_with_derivatives(0), "num_inducing: found 0"),
        (lambda: gp_with_derivatives(noise=-1.0), "noise: found -1.0"),
        (lambda: seed(gp_with_derivatives(2), KEY)(jnp.ones((4, 1))), "x: found 1 columns"),
        (lambda: seed(gp_with_derivatives(2), KEY)(jnp.full((4, 2), 1.5)), "x: found 1.5 in its last column"),
        (lambda: seed(gp_with_derivatives(2, kernel=Matern12), KEY)(jnp.ones((4, 2))), "of which f has no slopes"),
        (lambda: binned_counts_gp(likelihood="gaussian"), "likelihood: found 'gaussian'"),
        (lambda: binned_counts_gp(nodes=0), "nodes: found 0"),
        (lambda: seed(binned_counts_gp(2), KEY)(jnp.ones((4, 3))), "x: found 3 columns"),
        (lambda: seed(binned_counts_gp(2), KEY)(jnp.ones((4, 2))), "x: found a bin's width of 0"),
        (
            lambda: fit_svi(
                KEY, m := binned_counts_gp(2), Guide(m), PowerEP(0.0), np.ones((4, 2)), np.ones((4, 1)), steps=1
            ),
            "x: found a bin's width of 0",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()


def test_closed_bounds_are_of_values():
    model = gp_with_derivatives(2)
    with pytest.raises(TypeError, match="found functionals, expected draws"):
        fit_lbfgs(
            KEY, model, np.eye(3)[:, :2], np.ones(3), guide=Guide(model), objective=Collapsed(), steps=1
        )
