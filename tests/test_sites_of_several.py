"""Sites under likelihoods of several functions: against matrices, independent functions, Monte Carlo and the bound."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from site_cases import THETA, N, X, Y, Z, converged, energy, rows_at, tempered

from ppl_dgp.fit import fit_power_ep
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import FullRank, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian, Heteroscedastic, Likelihood, Softmax
from ppl_dgp.models import sparse_gp_classification
from ppl_dgp.objectives import PowerEP
from ppl_dgp.objectives.sites import (
    energy_of_sites,
    posterior_of_sites,
    projected,
    summed,
    tilted_sum,
    with_prior,
)

KEY = jax.random.PRNGKey(6)
NOISE = 0.3
LABELS = jnp.asarray(np.digitize(np.asarray(X), [-0.7, 0.7]))


@dataclass(frozen=True)
class OfTheSum(Likelihood):
    """y ~ N(f_1 + f_2, s²)."""

    def num_functions(self, num_targets):
        return 2 * num_targets

    def tempered(self, y, mean, variance, alpha):
        sums = mean.sum(-1, keepdims=True), variance.sum(-1, keepdims=True)
        return Gaussian(jnp.asarray(NOISE)).tempered(y, *sums, alpha)


@dataclass(frozen=True)
class OfEach(Likelihood):
    """p(y | f_1) p(y | f_2), of which each knows nothing of the other."""

    def tempered(self, y, mean, variance, alpha):
        found = Gaussian(jnp.asarray(NOISE)).tempered(y, mean, variance, alpha)
        return found.sum(-1, keepdims=True)


def log_partition(precision, location):
    return -0.5 * np.linalg.slogdet(precision)[1] + 0.5 * location @ np.linalg.solve(precision, location)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_the_new_posterior_has_the_moments_of_the_tilted_one_and_the_energy_is_that_of_matrices(alpha):
    """p(y | f)^α of a sum is Gaussian in (f_1, f_2): moments, and log partition functions (A.87), by 2 × 2 matrices."""
    rows = rows_at(THETA, Y, functions=2)
    sites, change, skipped = converged(OfTheSum(), rows, alpha, damping=0.7)
    assert change <= 1e-12 and skipped == 0
    q = posterior_of_sites(with_prior(summed(rows.phi, sites)))
    mean, variance = (np.asarray(each) for each in projected(rows.phi, q))
    phi, nu, tau = (np.asarray(each) for each in (rows.phi, sites.location, sites.precision))
    of_u = [(np.eye(2) + phi.T @ (tau[:, [k]] * phi), phi.T @ nu[:, k]) for k in range(2)]
    total = of_q = sum(log_partition(*each) for each in of_u)
    for n in range(N):
        rest = [
            (precision - alpha * tau[n, k] * np.outer(phi[n], phi[n]), location - alpha * nu[n, k] * phi[n])
            for k, (precision, location) in enumerate(of_u)
        ]
        centres = np.array([phi[n] @ np.linalg.solve(*each) for each in rest])
        of_f = np.array([phi[n] @ np.linalg.solve(precision, phi[n]) for precision, _ in rest])
        # given u f is spread by D: of φᵀu the variance within the tilted distribution is what counts
        whole = of_f + float(rows.residual[n, 0])
        power = NOISE / alpha + whole.sum()
        gain = of_f / power
        np.testing.assert_allclose(mean[n], centres + gain * (float(Y[n, 0]) - centres.sum()), atol=1e-8)
        np.testing.assert_allclose(variance[n], of_f - gain * of_f, atol=1e-8)
        left = float(Y[n, 0]) - centres.sum()
        scale = -0.5 * alpha * np.log(2 * np.pi * NOISE) + 0.5 * np.log(NOISE / alpha) - 0.5 * np.log(power)
        tilted = scale - 0.5 * left**2 / power
        total += (tilted + sum(log_partition(*each) for each in rest) - of_q) / alpha
    assert energy(OfTheSum(), rows, sites, alpha) == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize(
    ("alpha", "sequential"), [(0.5, False), pytest.param(0.0, True, marks=pytest.mark.slow), (1.0, True)]
)
def test_functions_that_know_nothing_of_each_other_have_the_sites_they_have_alone(alpha, sequential):
    apart, *_ = converged(Gaussian(jnp.asarray(NOISE)), rows_at(THETA, jnp.tile(Y, 2)), alpha, sequential)
    rows = rows_at(THETA, Y, functions=2)
    together, *_ = converged(OfEach(), rows, alpha, sequential)
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    alone = energy(Gaussian(jnp.asarray(NOISE)), rows_at(THETA, jnp.tile(Y, 2)), apart, alpha)
    assert energy(OfEach(), rows, together, alpha) == pytest.approx(alone, abs=1e-9)


def test_the_evidence_of_three_classes_is_near_its_integral():
    """EP's evidence against draws of u, whose standard error is stated; the bound stays below, and is further away.

    Sites are of one function each, and what classes make the functions know of each other is left out: an error of a
    part in fifty here, where probit's, of one function, is below one in a hundred.
    """
    likelihood, rows = Softmax(3, num_nodes=1024), rows_at(THETA, LABELS, functions=3)
    u = jax.random.normal(KEY, (200_000, 3, 2))
    spread = jnp.sqrt(rows.residual) * jax.random.normal(jax.random.fold_in(KEY, 1), (200_000, N, 3))
    f = jnp.einsum("nm,skm->snk", rows.phi, u) + spread
    each = jnp.take_along_axis(jax.nn.log_softmax(f), LABELS[None], -1)[..., 0].sum(-1)
    weights = np.exp(np.asarray(each))
    evidence, error = np.log(weights.mean()), weights.std() / weights.mean() / np.sqrt(len(weights))
    values = {}
    for alpha in (0.0, 1.0):
        sites, change, _ = converged(likelihood, rows, alpha, damping=0.5, tolerance=1e-9)
        assert change <= 1e-9
        values[alpha] = energy(likelihood, rows, sites, alpha)
    assert error < 0.02
    assert values[1.0] == pytest.approx(evidence, abs=0.02 * abs(evidence) + 4 * error)
    assert values[0.0] < evidence and abs(values[1.0] - evidence) < abs(values[0.0] - evidence)


@pytest.mark.slow
def test_the_hyperparameters_gradient_is_that_of_the_energy_of_converged_sites():
    """Of a sum, whose t_α is exact: the identity between its derivatives in mean and variance is what it rests on."""
    alpha, likelihood = 0.5, OfTheSum()

    @jax.jit
    def best(theta):
        rows = rows_at(theta, Y, functions=2)
        sites, *_ = converged(likelihood, rows, alpha, damping=0.5, tolerance=1e-13)
        return energy_of_sites(tempered(likelihood, alpha), rows, sites, alpha), sites

    sites = best(THETA)[1]
    natural = with_prior(summed(rows_at(THETA, Y, functions=2).phi, sites))
    held = lambda theta: tilted_sum(
        tempered(likelihood, alpha), rows_at(theta, Y, functions=2), sites, natural, alpha
    )
    gradient, step = jax.grad(held)(THETA), 1e-4
    for i in range(3):
        move = step * jnp.eye(3)[i]
        numeric = (best(THETA + move)[0] - best(THETA - move)[0]) / (2 * step)
        assert float(gradient[i]) == pytest.approx(float(numeric), rel=1e-6)


@pytest.mark.slow
def test_at_alpha_zero_sites_rest_at_the_optimum_of_the_bound():
    model = sparse_gp_classification(3, num_inducing=4)
    guide = Guide(model, inducing=FullRank())
    fit = fit_power_ep(KEY, model, guide, X, LABELS, alpha=0.0, hyper_steps=0, sweeps=5000)
    u = {name: fit.params[name] for name in fit.params if "/u_" in name}
    rest = {name: value for name, value in fit.params.items() if name not in u}
    bound = lambda own: PowerEP(0.0).loss(KEY, rest | own, model, guide, X, LABELS)
    value, slopes = jax.jit(jax.value_and_grad(bound))(u)
    assert float(value) == pytest.approx(fit.losses[0, -1], abs=1e-6)
    assert max(float(jnp.abs(jnp.tril(slope)).max()) for slope in slopes.values()) < 1e-5


def noisy(x, y=None, index=None, size=None):
    f = sparse_gp("gp", RBF(1.5, 0.8), numpyro.param("gp/inducing", Z), num_outputs=2)
    with data_plate(size or x.shape[0], index):
        return numpyro.sample("y", f(x).observe(Heteroscedastic()), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_learnt_noise_has_sites_of_both_functions_and_predicts(schedule):
    guide = Guide(noisy, inducing=FullRank())
    fit = fit_power_ep(KEY, noisy, guide, X, Y, alpha=0.5, schedule=schedule, hyper_steps=3, sweeps=300)
    assert fit.params["gp/site_location"].shape == (N, 2) and np.isfinite(fit.losses).all()
    prediction = fit.predict(KEY, np.asarray(X), np.asarray(Y))
    assert np.isfinite(prediction.log_density).all()


@pytest.mark.slow
def test_classes_are_trained_on_minibatches_and_predicted():
    model = sparse_gp_classification(3, num_inducing=4)
    guide = Guide(model, inducing=FullRank())
    fit = fit_power_ep(KEY, model, guide, X, LABELS, alpha=0.5, hyper_steps=200, batch_size=4)
    assert fit.params["gp/site_precision"].shape == (N, 3)
    found = fit.predict(KEY, np.asarray(X)).mean
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    assert (found.argmax(1) == np.asarray(LABELS)[:, 0]).mean() >= 7 / 8


def test_sites_of_another_shape_are_refused():
    model = sparse_gp_classification(3, num_inducing=4)
    start = {"gp/site_location": jnp.zeros((N, 1)), "gp/site_precision": jnp.zeros((N, 1))}
    with pytest.raises(ValueError, match=r"start: found sites of shape \(8, 1\), expected \(8, 3\)"):
        fit_power_ep(KEY, model, Guide(model, inducing=FullRank()), X, LABELS, start=start)
