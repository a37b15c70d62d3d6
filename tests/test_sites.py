"""Power EP by its sites against closed forms, explicit matrices, quadrature over u, and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss
from fast import few
from jax.scipy.stats import norm
from numpyro import handlers
from scipy import stats
from site_cases import RANDOM, THETA, N, X, Y, Z, converged, energy, rows_at, tempered

from ppl_dgp.fit import Posterior, SiteWarning, fit_power_ep, power_ep
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Diagonal, FullRank, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import Gaussian, Scalar
from ppl_dgp.models import deep_gp
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import SiteEnergy, collapsed_energy
from ppl_dgp.objectives.site_energy import read_layer
from ppl_dgp.objectives.sites import (
    Cavity,
    SiteParameters,
    energy_of_sites,
    of_prior,
    parallel_sweep,
    posterior_of_sites,
    projected,
    proposed,
    restored,
    summed,
    tilted_sum,
    with_prior,
)
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(5)
LABELS = jnp.where(Y > 0, 1, -1)
PROBIT = Scalar(lambda f: Probit(f))
NODES, WEIGHTS = np.polynomial.hermite.hermgauss(80)


class Probit(dist.Distribution):
    """y ∈ {−1, 1} with probability Φ(y f)."""

    support = dist.constraints.real

    def __init__(self, f):
        self.f = f
        super().__init__(jnp.shape(f))

    def log_prob(self, value):
        return norm.logcdf(value * self.f)

    def sample(self, key, sample_shape=()):
        chance = jax.random.bernoulli(key, norm.cdf(self.f), sample_shape + self.batch_shape)
        return jnp.where(chance, 1, -1)

    @property
    def mean(self):
        return 2.0 * norm.cdf(self.f) - 1.0

    @property
    def variance(self):
        return 1.0 - jnp.square(self.mean)


def log_power(y, mean, variance, alpha):
    """log E[Φ(y f)^α] by quadrature of many nodes."""
    f = mean + np.sqrt(2.0 * variance) * NODES
    return np.log((WEIGHTS / np.sqrt(np.pi) * np.exp(alpha * stats.norm.logcdf(y * f))).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "alpha, sequential",
    few([pytest.param(0.3, True, marks=pytest.mark.slow), (0.5, False), (1.0, True), (0.0, False)], 1),
)
def test_sites_of_gaussian_data_are_the_closed_form(alpha, sequential):
    """g = y − m and variance αD + s², with noise per row, a mean and two outputs; the energy is the collapsed one."""
    noise = jnp.asarray(RANDOM.uniform(0.1, 0.5, size=(N, 1)))
    y = jnp.concatenate([Y, jnp.cos(X)], 1)
    rows = rows_at(THETA, y, offset=0.3)
    sites, change, skipped = converged(Gaussian(noise), rows, alpha, sequential)
    assert change <= 1e-12 and skipped == 0
    np.testing.assert_allclose(sites.location / sites.precision, y - 0.3, atol=1e-8)
    wanted = jnp.broadcast_to(alpha * rows.residual + noise, y.shape)
    np.testing.assert_allclose(1.0 / sites.precision, wanted, atol=1e-8)
    kernel = RBF(jnp.exp(THETA[0]), jnp.exp(THETA[1]))
    closed = collapsed_energy(kernel, Z, noise, X, y - 0.3, alpha, jitter=0.0)
    found = energy(Gaussian(noise), rows, sites, alpha)
    np.testing.assert_allclose(found, closed, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_site_matches_the_tilted_distribution(alpha):
    """Cavity times site^α has the moments of cavity times p^α, by quadrature (D = 0); at α = 0 the derivatives."""
    mean, variance = jnp.array([[-0.7, 0.4, 2.0]]), jnp.array([[0.5, 1.3, 0.2]])
    y = jnp.array([[1, 1, -1]])
    zero = jnp.zeros((1, 3))
    likelihood = Scalar(PROBIT.of, 80)
    at = Cavity(mean, variance, zero + 1.0)
    sites, sensible = proposed(tempered(likelihood, alpha), y, zero, zero, at, alpha)
    assert sensible.all()
    for n in range(3):
        m, v, label = float(mean[0, n]), float(variance[0, n]), int(y[0, n])
        nu, tau = float(sites.location[0, n]), float(sites.precision[0, n])
        f = m + np.sqrt(2 * v) * NODES
        if alpha == 0.0:
            # E[d/df log p] and E[d²/df² log p], r = N(f)/Φ(yf)
            r = np.exp(stats.norm.logpdf(f) - stats.norm.logcdf(label * f))
            first = (WEIGHTS * label * r).sum() / np.sqrt(np.pi)
            second = (WEIGHTS * (-label * f * r - r**2)).sum() / np.sqrt(np.pi)
            assert (nu, tau) == pytest.approx((first - second * m, -second), abs=1e-7)
            continue
        weights = WEIGHTS * np.exp(alpha * stats.norm.logcdf(label * f))
        weights /= weights.sum()
        centre = (weights * f).sum()
        spread = (weights * (f - centre) ** 2).sum()
        precision = 1.0 / v + alpha * tau
        assert (m / v + alpha * nu) / precision == pytest.approx(centre, abs=1e-7)
        assert 1.0 / precision == pytest.approx(spread, abs=1e-7)


@pytest.mark.slow
def test_probit_sites_at_alpha_one_are_those_of_the_closed_form():
    """d1, d2 of log Φ(ym/√(1 + v)), v with the D of f given u: A.83 and A.84 word by word."""
    m, s, d, y = 0.3, 0.6, 0.4, -1
    at = Cavity(*(jnp.array([[value]]) for value in (m, s, 1.0)))
    column = lambda value: jnp.array([[value]])
    found, _ = proposed(tempered(Scalar(PROBIT.of, 80), 1.0), column(y), column(0.0), column(d), at, 1.0)
    root = np.sqrt(1.0 + s + d)
    z = y * m / root
    ratio = stats.norm.pdf(z) / stats.norm.cdf(z)
    d1, d2 = y * ratio / root, -ratio * (z + ratio) / root**2
    g, v = -d1 / d2 + m, -1.0 / d2 - s
    assert float(found.precision[0, 0]) == pytest.approx(1.0 / v, rel=1e-8)
    assert float(found.location[0, 0]) == pytest.approx(g / v, rel=1e-8)


def test_the_energy_is_the_sum_of_log_partition_functions():
    """G(q) − G(p) + (1/α) Σ [log Z̃ + G(cavity) − G(q)] (A.87), with explicit matrices, for any sites."""
    alpha, rows = 0.6, rows_at(THETA, LABELS)
    sites = SiteParameters(
        jnp.asarray(RANDOM.normal(size=(N, 1))), jnp.asarray(RANDOM.uniform(0.1, 0.6, (N, 1)))
    )
    phi, nu, tau = np.asarray(rows.phi), np.asarray(sites.location)[:, 0], np.asarray(sites.precision)[:, 0]

    def log_partition(precision, location):
        mean = np.linalg.solve(precision, location)
        return -0.5 * np.linalg.slogdet(precision)[1] + 0.5 * location @ mean

    precision, location = np.eye(2) + phi.T @ (tau[:, None] * phi), phi.T @ nu
    of_q = log_partition(precision, location)
    total = of_q  # the prior's is 0
    for n in range(N):
        cavity = precision - alpha * tau[n] * np.outer(phi[n], phi[n])
        rest = location - alpha * nu[n] * phi[n]
        covariance = np.linalg.inv(cavity)
        variance = float(rows.residual[n, 0]) + phi[n] @ covariance @ phi[n]
        tilted = log_power(int(LABELS[n, 0]), phi[n] @ covariance @ rest, variance, alpha)
        total += (tilted + log_partition(cavity, rest) - of_q) / alpha
    found = energy(Scalar(PROBIT.of, 80), rows, sites, alpha)
    assert found == pytest.approx(total, abs=1e-9)


def test_both_schedules_rest_at_the_same_sites():
    rows = rows_at(THETA, LABELS)
    one, *_ = converged(PROBIT, rows, 0.5, sequential=True)
    other, *_ = converged(PROBIT, rows, 0.5, damping=0.7)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.slow
def test_small_powers_tend_to_the_variational_bound():
    """The energy at small α against the bound at the same q(u), and at α = 0 the bound at its optimum."""

    def bound(q, rows):
        covariance = q.root[0].T @ q.root[0]
        divergence = 0.5 * (
            jnp.trace(covariance) + q.mean[0] @ q.mean[0] - 2 - jnp.linalg.slogdet(covariance)[1]
        )
        mean, variance = projected(rows.phi, q)
        f = mean + jnp.sqrt(2.0 * (variance + rows.residual)) * NODES
        return ((WEIGHTS / np.sqrt(np.pi)) * norm.logcdf(LABELS * f)).sum() - divergence

    rows = rows_at(THETA, LABELS)
    found, errors = {}, {}
    for alpha in (0.01, 0.001, 0.0):
        sites, *_ = converged(PROBIT, rows, alpha, damping=0.7)
        found[alpha] = energy(PROBIT, rows, sites, alpha), sites
        q = posterior_of_sites(with_prior(summed(rows.phi, sites)))
        errors[alpha] = found[alpha][0] - float(bound(q, rows))
    # of first order in α
    assert 0.0 < errors[0.01] < 0.03 and errors[0.001] / errors[0.01] == pytest.approx(0.1, rel=0.02)
    best = posterior_of_sites(with_prior(summed(rows.phi, found[0.0][1])))
    assert found[0.0][0] == pytest.approx(float(bound(best, rows)), abs=1e-7)
    # at α = 0 the fixed point is the bound's optimum
    slope = jax.grad(lambda mean, root: bound(best._replace(mean=mean, root=root), rows), (0, 1))(
        best.mean, best.root
    )
    assert max(float(jnp.abs(jnp.tril(each)).max()) for each in slope) < 1e-6


def test_the_evidence_is_near_that_of_integration_over_u():
    """EP's evidence is an approximation, of a part in a hundred or better for probit; the bound stays below.

    Its model at α = 1 is the one whose f_n are independent given u: the integral is over two whitened u by quadrature.
    """
    rows = rows_at(THETA, LABELS)
    u = np.stack(np.meshgrid(NODES, NODES), -1).reshape(-1, 2) * np.sqrt(2.0)
    weights = (WEIGHTS[:, None] * WEIGHTS).ravel() / np.pi
    inner = np.asarray(rows.phi) @ u.T / np.sqrt(1.0 + np.asarray(rows.residual))
    evidence = np.log((weights * np.exp(stats.norm.logcdf(np.asarray(LABELS) * inner).sum(0))).sum())
    values = {}
    for alpha in (0.0, 1.0):
        sites, *_ = converged(PROBIT, rows, alpha, damping=0.7)
        values[alpha] = energy(PROBIT, rows, sites, alpha)
    assert values[1.0] == pytest.approx(evidence, rel=1e-2)
    assert values[0.0] < evidence and abs(values[1.0] - evidence) < abs(values[0.0] - evidence)


@pytest.mark.slow
def test_the_hyperparameters_gradient_is_that_of_the_energy_of_converged_sites():
    """Finite differences see the sites move; the gradient that holds them agrees, the energy being stationary."""
    alpha = 0.5

    @jax.jit
    def best(theta):
        rows = rows_at(theta, LABELS)
        sites, *_ = converged(PROBIT, rows, alpha, damping=0.7, tolerance=1e-13)
        return energy_of_sites(tempered(PROBIT, alpha), rows, sites, alpha), sites

    sites = best(THETA)[1]
    natural = with_prior(summed(rows_at(THETA, LABELS).phi, sites))
    held = lambda theta: tilted_sum(tempered(PROBIT, alpha), rows_at(theta, LABELS), sites, natural, alpha)
    gradient, step = jax.grad(held)(THETA), 1e-4
    for i in range(3):
        move = step * jnp.eye(3)[i]
        numeric = (best(THETA + move)[0] - best(THETA - move)[0]) / (2 * step)
        assert float(gradient[i]) == pytest.approx(float(numeric), abs=1e-7)


def test_what_would_be_improper_is_skipped_or_halved_or_left_out():
    rows = rows_at(THETA, Y)
    # a cavity without positive variance
    at = Cavity(jnp.zeros((N, 1)), jnp.full((N, 1), -2.0), jnp.full((N, 1), -0.5))
    _, sensible = proposed(tempered(Gaussian(jnp.asarray(0.1)), 1.0), Y, rows.offset, rows.residual, at, 1.0)
    assert not sensible.any()
    # log p = f²/5: the full step's precision −0.4 of each row would together make q improper, so that it is halved
    convex = lambda y, mean, variance: 0.2 * (jnp.square(mean) + variance)
    zero = SiteParameters(jnp.zeros((N, 1)), jnp.zeros((N, 1)))
    start = of_prior(1, 2, rows.phi.dtype)
    found, skipped = parallel_sweep(convex, rows, zero, start, 0.0, 1.0)
    share = -found.precision / 0.4
    largest = np.linalg.eigvalsh(np.asarray(rows.phi.T @ rows.phi)).max()
    halvings = int(np.ceil(np.log2(0.4 * largest)))
    assert skipped == 0 and halvings >= 1
    np.testing.assert_allclose(share, 0.5**halvings, rtol=1e-9)
    # and one that alone would take away nearly all that q knows of its f is skipped
    _, skipped = parallel_sweep(lambda *at: 5.0 * convex(*at), rows, zero, start, 0.0, 1.0)
    assert skipped > 0
    mixed = SiteParameters(jnp.ones((N, 1)), jnp.where(jnp.arange(N)[:, None] % 2 == 0, -5.0, 2.0))
    kept = restored(rows.phi, mixed, 1.0)
    np.testing.assert_array_equal(kept.precision[:, 0], np.tile([0.0, 2.0], N // 2))
    np.testing.assert_array_equal(restored(rows.phi, kept, 1.0).precision, kept.precision)
    # q is proper, but at α = 1 not without its one positive site
    one = SiteParameters(jnp.ones((N, 1)), jnp.full((N, 1), -0.3).at[3].set(30.0))
    np.testing.assert_array_equal(restored(rows.phi, one, 0.0).precision, one.precision)
    assert (restored(rows.phi, one, 1.0).precision != 0.0).sum() == 1


def classifier(x, y=None, index=None, size=None):
    positive = dist.constraints.softplus_positive
    lengthscale = numpyro.param("gp/lengthscale", jnp.asarray(0.8), constraint=positive)
    f = sparse_gp("gp", RBF(1.5, lengthscale), numpyro.param("gp/inducing", Z))
    with data_plate(size or x.shape[0], index):
        return numpyro.sample("y", f(x).observe(PROBIT), obs=y)


GUIDE = Guide(classifier, inducing=FullRank())


@pytest.mark.slow
def test_a_fit_trains_ends_at_its_sites_and_predicts(monkeypatch):
    settings = {"alpha": 0.5, "hyper_steps": 5, "learning_rate": 0.05}
    fit = fit_power_ep(KEY, classifier, GUIDE, X, LABELS, **settings)
    assert fit.losses.shape == (1, 6) and np.all(np.diff(fit.losses[0]) < 0)
    params = fit.params
    found = loss(SiteEnergy(0.5), params, classifier, GUIDE, X, LABELS)
    assert found == pytest.approx(fit.losses[0, -1], rel=1e-10)
    found = predict(KEY, Posterior(classifier, GUIDE, params), X)
    kernel, z = RBF(1.5, params["gp/lengthscale"]), params["gp/inducing"]
    phi = kernel(X, z) @ inverse_lower(cholesky(kernel(z, z))[0]).T
    q = posterior_of_sites(
        with_prior(summed(phi, SiteParameters(params["gp/site_location"], params["gp/site_precision"])))
    )
    np.testing.assert_allclose(params["gp/u_loc"], q.mean, rtol=1e-9)
    np.testing.assert_allclose(found.f_mean, projected(phi, q)[0], rtol=1e-9)
    variance = kernel.diag(X)[:, None] - jnp.square(phi).sum(1)[:, None] + projected(phi, q)[1]
    np.testing.assert_allclose(found.f_variance, variance, rtol=1e-7)
    # the same objects and settings compile nothing anew, and give the same numbers; sites may be a start
    monkeypatch.setattr(power_ep.program, "CachedProgram", None)
    again = fit_power_ep(KEY, classifier, GUIDE, X, LABELS, **settings)
    np.testing.assert_array_equal(again.losses, fit.losses)
    warm = fit_power_ep(KEY, classifier, GUIDE, X, LABELS, start=params, **settings)
    assert warm.losses[0, 0] == pytest.approx(fit.losses[0, -1], rel=1e-9)


@pytest.mark.slow
def test_minibatches_come_near_the_whole():
    """With hyperparameters that hardly move, the sites of minibatches come to rest where those of all rows do."""
    whole = fit_power_ep(KEY, classifier, GUIDE, X, LABELS, hyper_steps=5, learning_rate=0.05)
    settings = {"batch_size": 3, "hyper_steps": 80, "start": dict(whole.params)}
    for name in ("gp/site_location", "gp/site_precision"):
        settings["start"][name] = jnp.zeros((N, 1))
    still = fit_power_ep(KEY, classifier, GUIDE, X, LABELS, learning_rate=1e-12, **settings)
    assert still.losses.shape == (1, 81)
    assert still.losses[0, -1] == pytest.approx(whole.losses[0, -1], abs=1e-6)
    np.testing.assert_allclose(still.params["gp/u_loc"], whole.params["gp/u_loc"], atol=1e-4)
    np.testing.assert_allclose(still.params["gp/lengthscale"], whole.params["gp/lengthscale"], rtol=1e-6)


@pytest.mark.slow
def test_sites_that_do_not_rest_are_told_of():
    with pytest.warns(SiteWarning, match="sites: found changes of .* in the last of 1 sweeps"):
        fit_power_ep(KEY, classifier, GUIDE, X, LABELS, sweeps=1, hyper_steps=0)


def test_refusals_say_what_was_expected():
    settings = {"schedule": "zigzag", "damping": 1.5, "tolerance": 0.0, "sweeps": 0, "batch_size": N + 1}
    for name, value in settings.items():
        with pytest.raises(ValueError, match=f"{name}: found {value!r}, expected"):
            power_ep._check_settings(N, {**DEFAULTS, name: value})
    with pytest.raises(ValueError, match="schedule: found 'sequential' with a batch_size"):
        power_ep._check_settings(N, {**DEFAULTS, "schedule": "sequential", "batch_size": 2})
    with pytest.raises(ValueError, match="alpha: found 2.0"):
        fit_power_ep(KEY, classifier, GUIDE, X, LABELS, alpha=2.0)
    with pytest.raises(TypeError, match="expected those of a full-rank one"):
        fit_power_ep(KEY, classifier, Guide(classifier, inducing=Diagonal()), X, LABELS)
    scaled, masked = (handlers.scale(classifier, 2.0), handlers.mask(classifier, jnp.arange(N) > 0))
    for program, words in ((scaled, "found y scaled"), (masked, "found masked rows")):
        with pytest.raises(ValueError, match=words):
            jax.eval_shape(lambda p=program: read_layer(p, {}, X, LABELS).rows)
    deep = deep_gp((1,), 2)
    with pytest.raises(ValueError, match="expected the inducing outputs of one layer"):
        fit_power_ep(KEY, deep, Guide(deep), X, Y)


DEFAULTS = {
    "sweeps": None, "hyper_steps": 1, "batch_size": None, "damping": None, "tolerance": None, "learning_rate": 0.1,
    "schedule": "parallel",
}  # fmt: skip
