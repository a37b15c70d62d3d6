"""Reference posteriors of benchmarks/: against a grid over hyperparameters, and what their files say of themselves."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density
from scipy import stats

from benchmarks import rows, trust_page
from benchmarks.drawn_functions import DrawFunctions, given_functions, log_density_at
from benchmarks.posterior_at_places import at_draws, predictive
from benchmarks.reference_problems import problems
from benchmarks.trust import FIELDS, measure
from benchmarks.trust_cases import KEY, cases
from ppl_dgp import RBF
from ppl_dgp.gp.emission import Emission, emission_of
from ppl_dgp.likelihoods import Heteroscedastic, Softmax, StudentT
from ppl_dgp.objectives import collapsed_energy, collapsed_posterior

FOLDER = Path(__file__).parents[1] / "benchmarks" / "references"
LIKELIHOODS = {
    "student-t": (StudentT(3.0, 0.3), 1, np.array([[0.4], [-1.0]])),
    "softmax": (Softmax(3, num_nodes=4096), 3, np.array([[2], [0]])),
    "heteroscedastic": (Heteroscedastic(0.2), 2, np.array([[0.4], [-1.0]])),
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def test_a_reference_says_how_its_chains_went(path):
    with np.load(path) as file:
        kept = dict(file)
    about = json.loads(str(kept["about"]))
    assert about["mixes"] == (max(about["r_hat"].values()) <= 1.01)
    assert about["draws"] >= 10_000
    mass = np.exp(kept["log_density"].astype(float))
    known = problems(None)
    if path.stem.split("-")[0] in known:
        values = known[path.stem.split("-")[0]]().values
        mass = mass * (1.0 if values.dtype.kind == "i" else np.diff(values).mean())
        # Student's t of about 0.65 degrees of freedom has 2 % beyond the values, and is as narrow as they are apart
        least = 0.96 if path.stem.startswith("robust") else 0.995
        assert np.all((mass.sum(1) > least) & (mass.sum(1) < 1.001))


def test_the_reference_of_regression_is_that_of_a_grid():
    """Exact GPs at 24³ hyperparameters, weighted by evidence times prior."""
    problem = problems(None)["regression"]()
    x, y, s = problem.x[:, 0], problem.y[:, 0], problem.places[:, 0]
    axes = [np.linspace(*ends, 24) for ends in ((-1.6, 1.6), (-3.0, 3.5), (-4.6, -1.6))]
    lengthscale, variance, noise = (
        np.exp(each.ravel())[:, None, None] for each in np.meshgrid(*axes, indexing="ij")
    )
    k = lambda a, b: variance * np.exp(-0.5 * ((a[:, None] - b) / lengthscale) ** 2)
    covariance = k(x, x) + noise * np.eye(len(x))
    solved = np.linalg.solve(
        covariance, np.concatenate([np.broadcast_to(y[:, None], (24**3, len(x), 1)), k(x, s)], 2)
    )
    evidence = -0.5 * (solved[:, :, 0] @ y) - 0.5 * np.linalg.slogdet(covariance)[1]
    # of the logarithms: the densities of the priors times what each changes by; half-normal standard deviations
    prior = dist.InverseGamma(5.0, 5.0).log_prob(lengthscale.ravel()) + np.log(lengthscale.ravel())
    for each in (variance.ravel(), noise.ravel()):
        prior = prior + stats.halfnorm.logpdf(np.sqrt(each)) + 0.5 * np.log(each)
    weights = np.exp(evidence + prior - np.max(evidence + prior))
    weights = np.asarray(weights / weights.sum())
    mean = np.einsum("hns,n->hs", solved[:, :, 1:], y)
    spread = variance[:, 0] - np.einsum("hns,hns->hs", k(x, s), solved[:, :, 1:])
    f_mean = weights @ mean
    f_deviation = np.sqrt(weights @ (spread + (mean - f_mean) ** 2))
    kept = np.load(FOLDER / "regression-dense.npz")
    # standard errors of 10 000 draws, of a thousand effective ones or more
    assert np.abs((kept["f_mean"][:, 0] - f_mean) / f_deviation).max() < 0.1
    np.testing.assert_allclose(kept["f_deviation"][:, 0], f_deviation, rtol=0.06)
    for name, each in {
        "gp/lengthscale": lengthscale,
        "gp/variance": variance,
        "likelihood/noise": noise,
    }.items():
        logarithm = np.log(each.ravel())
        centre = weights @ logarithm
        deviation = np.sqrt(weights @ (logarithm - centre) ** 2)
        assert abs(float(kept[f"hyper/{name}_mean"].ravel()[0]) - centre) < 0.1 * deviation
        np.testing.assert_allclose(kept[f"hyper/{name}_deviation"].ravel()[0], deviation, rtol=0.08)
    scale = np.sqrt(spread + noise[:, 0])
    density = np.stack([weights @ stats.norm.pdf(v, mean, scale) for v in problem.values[::20]], 1)
    np.testing.assert_allclose(np.exp(kept["log_density"][:, ::20]), density, atol=0.03 * density.max())


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_densities_given_functions_are_the_likelihoods(name):
    likelihood, functions, y = LIKELIHOODS[name]
    f = np.random.default_rng(0).normal(size=(2, functions))
    found = given_functions(likelihood, jnp.asarray(f)).log_prob(jnp.asarray(y))
    expected = likelihood.tempered(jnp.asarray(y), jnp.asarray(f), jnp.zeros_like(f), 1.0).sum(-1)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_densities_at_values_are_those_of_the_emission(name):
    likelihood, functions, y = LIKELIHOODS[name]
    mean = jnp.asarray(np.random.default_rng(0).normal(size=(2, functions)))
    emission = Emission(SimpleNamespace(mean=mean, variance=0.1 + 0.2 * mean**2), likelihood)
    values = np.arange(3) if name == "softmax" else np.array([-0.7, 0.3, 2.0])
    found = log_density_at(emission, jnp.asarray(values))
    expected = jnp.stack([emission.log_prob(jnp.full((2, 1), value)) for value in values], 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_drawn_functions_integrate_to_t_1():
    """By Gauss-Hermite over the one function that is drawn."""
    problem = problems(None)["robust"]()
    x, y = jnp.asarray(problem.x[:1]), jnp.asarray(problem.y[:1])
    draw = {
        name: site["value"]
        for name, site in trace(seed(problem.fitc, 0)).get_trace(x, None).items()
        if name == "gp/u"
    }
    expected = log_density(seed(problem.fitc, 0), (x, y), {}, draw)[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    model = DrawFunctions(problem.fitc, known=False)
    with_e = lambda e: log_density(seed(model, 0), (x, y), {}, {**draw, "y/e": jnp.full((1, 1), e)})[0]
    # the density of e is in it, and in the weights
    joint = np.array([with_e(e) for e in nodes]) + 0.5 * nodes**2 + 0.5 * np.log(2.0 * np.pi)
    found = np.log(weights / weights.sum() @ np.exp(joint))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_places_see_draws_as_the_model_does():
    """Two chains of one draw each: f at places by the emission of the model at that draw."""
    problem = problems(None)["regression"]()
    u = np.random.default_rng(0).normal(size=(2, 1, 1, 8))
    found = at_draws(problem, "fitc", problem.fitc, {}, {"gp/u": u})
    for chain in range(2):
        model = substitute(seed(problem.fitc, 0), data={"gp/u": jnp.asarray(u[chain, 0])})
        emission = emission_of(trace(model).get_trace(jnp.asarray(problem.places), None)["y"]["fn"])
        np.testing.assert_allclose(found["mean"][chain, 0], emission.marginal.mean, atol=1e-10)
        np.testing.assert_allclose(
            found["density"][chain, 0, :, 5],
            emission.log_prob(jnp.full((24, 1), problem.values[5])),
            atol=1e-8,
        )
    both = predictive(found)
    np.testing.assert_allclose(
        both["log_density"], np.logaddexp(*found["density"][:, 0]) - np.log(2.0), atol=1e-10
    )
    assert jax.config.jax_enable_x64


@pytest.mark.parametrize("kind", ["fitc", "dense"])
def test_functions_integrated_out_are_collapsed_energies(kind):
    """The density of y and of the hidden layer by the energy of one layer; its noise has a density of its own."""
    problem = problems(None)["step"]().sampled
    model, x, y = getattr(problem, kind), jnp.asarray(problem.x), jnp.asarray(problem.y)
    z, blocks = jnp.linspace(-2.0, 2.0, 8)[:, None], None if kind == "fitc" else "all"
    kernels = [RBF(0.7, jnp.array([0.8])), RBF(1.3, jnp.array([0.6]))]
    inner, noise, e = 0.05, 0.02, np.random.default_rng(0).normal(size=(30, 1))
    values = {"layer1/noise": inner, "likelihood/noise": noise, "layer1/e": jnp.asarray(e)}
    for layer, kernel in enumerate(kernels, start=1):
        values |= {f"layer{layer}/variance": kernel.variance, f"layer{layer}/lengthscale": kernel.lengthscale}
    values = {name: jnp.asarray(value) for name, value in values.items()}
    sites = trace(substitute(seed(model, 0), data=values)).get_trace(x, y)
    hidden = sites["layer1/hidden"]["value"]
    energy = partial(collapsed_energy, inducing=z, alpha=1.0, blocks=blocks)
    found = sites["y"]["fn"].log_prob(y[:, 0])
    expected = energy(kernels[1], noise=noise, x=hidden, y=y)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    factor = jnp.linalg.cholesky(model.covariance(0, kernels[0], x) + inner * jnp.eye(30))
    of_hidden = stats.norm.logpdf(e).sum() - np.log(np.diag(factor)).sum()
    expected = energy(kernels[0], noise=inner, x=x, y=hidden - x)
    np.testing.assert_allclose(of_hidden, expected, rtol=1e-5)
    places, values_of_y = jnp.asarray(problem.places), jnp.asarray(problem.values)
    ahead = jnp.linspace(-3.0, 3.0, 5)[:, None]
    mean, variance = model.posterior(1, kernels[1], hidden, y, noise, ahead)
    if kind == "fitc":  # at new inputs f is a function of u and of what u does not know
        q = collapsed_posterior(kernels[1], z, noise, hidden, y, 1.0)
        whiten = jnp.linalg.inv(jnp.linalg.cholesky(kernels[1](z, z) + 1e-8 * jnp.eye(8)))
        phi = whiten @ kernels[1](z, ahead)
        np.testing.assert_allclose(mean[:, 0], phi.T @ q.mean[0], atol=1e-5)
        known = jnp.square(q.scale[0].T @ phi).sum(0) - jnp.square(phi).sum(0)
        np.testing.assert_allclose(variance, 1.3 + known, atol=1e-5)
    else:
        k = lambda a, b: 1.3 * np.exp(-0.5 * np.square((np.asarray(a) - np.asarray(b).T) / 0.6))
        solved = np.linalg.solve(
            k(hidden, hidden) + noise * np.eye(30), np.c_[np.asarray(y), k(hidden, ahead)]
        )
        np.testing.assert_allclose(mean[:, 0], k(ahead, hidden) @ solved[:, 0], atol=1e-5)
        reduced = 1.3 - np.sum(k(hidden, ahead) * solved[:, 1:], axis=0)
        np.testing.assert_allclose(variance, reduced, atol=1e-5)
    # hidden values at places by draws: four standard errors of 20 000
    found = model.at_places(sites, places, values_of_y)
    centre, spread = model.posterior(0, kernels[0], x, hidden - x, inner, places)
    z_h = np.random.default_rng(1).normal(size=(20_000, 1))
    for place in (3, 12, 20):
        h = places[place] + centre[place] + jnp.sqrt(spread[place] + inner) * z_h
        f, v = model.posterior(1, kernels[1], hidden, y, noise, h)
        f = np.asarray(f[:, 0])
        assert abs(found[0][place, 0] - f.mean()) < 4.0 * f.std() / 20_000**0.5 + 1e-6
        second = np.asarray(v) + f**2
        error = 4.0 * second.std() / 20_000**0.5 + 1e-6
        assert abs(found[1][place, 0] + found[0][place, 0] ** 2 - second.mean()) < error
        p = stats.norm.pdf(values_of_y[80], f, np.sqrt(np.asarray(v) + noise))
        assert abs(np.exp(found[2][place, 80]) - p.mean()) < 4.0 * p.std() / 20_000**0.5 + 1e-6


def test_rows_whose_fits_are_not_at_hand_stay_in_the_table(tmp_path):
    """As the CSV writes them: α of 0 and 1 without a point."""
    wanted = [case for case in cases(["probit"], {}) if case.rule in ("diagonal", "")]
    written = [
        [f"{getattr(case, name):g}" if name == "alpha" else getattr(case, name) for name in KEY]
        for case in wanted
    ]
    before = [[*row, *[f"{number}"] * (len(FIELDS) - len(KEY))] for number, row in enumerate(written)]
    out = tmp_path / "trust.csv"
    rows.write(out, FIELDS, before)
    measure(wanted, lambda name: problems(None)[name](), tmp_path / "store", out)
    assert [list(row.values()) for row in rows.read(out)] == [list(map(str, row)) for row in before]


def test_the_page_says_what_the_tables_hold():
    root = FOLDER.parents[1]
    text = (root / trust_page.PAGE).read_text()
    tables = (pd.read_csv(root / path) for path in (trust_page.CSV, trust_page.AGAIN))
    assert trust_page.page(text, *tables) == text


def test_a_problem_drawn_again_has_other_rows_and_the_same_fits():
    first, second = (problems(None)[name]() for name in ("step", "step.1"))
    assert first.x.shape == second.x.shape and np.abs(first.x - second.x).max() > 0.01
    np.testing.assert_array_equal(first.places, second.places)
    of_both = [[case.key[1:] for case in cases([name], {})] for name in ("step", "step.1")]
    assert of_both[0] == of_both[1]
    assert second.name == "step.1" and second.sampled.name == "step.1"
