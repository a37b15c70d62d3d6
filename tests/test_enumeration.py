"""Discrete latents summed out, against the sum written by hand and against NumPyro's own enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss, numpyro_follows, refuse
from fast import few
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from scipy.special import logsumexp
from scipy.stats import norm

from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import FullRank, Guide
from ppl_dgp.models import mixture_of_functions
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(3)
Y = np.array([0.3, 2.1, -0.7, 1.9])
PI, RHO = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.4])
CENTRES, SCALES = np.array([-1.0, 0.5, 2.0]), np.array([0.4, 1.1])
Q = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.8, 0.1, 0.1], [0.25, 0.5, 0.25]])


def model(y, index=None):
    # numpyro.contrib.funsor has a plate of its own
    with numpyro.plate("data", 4) if index is None else data_plate(4, index):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
        r = numpyro.sample("r", dist.Categorical(jnp.asarray(RHO)), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.asarray(CENTRES)[z], jnp.asarray(SCALES)[r]), obs=y)


def empty_guide(y, index=None):
    pass


def guide_of_z(y, index=None):
    with data_plate(4, index):
        probs = numpyro.param("q", jnp.asarray(Q), event_dim=1)
        numpyro.sample("z", dist.Categorical(probs), infer={"enumerate": "parallel"})


def joint():
    """log p(y_n, z, r), (N, 3, 2)."""
    log_y = norm.logpdf(Y[:, None, None], CENTRES[:, None], SCALES)
    return log_y + np.log(PI)[:, None] + np.log(RHO)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("objective", [PowerEP, BlackBoxAlpha])
def test_sum_over_two_sites_is_the_marginal_likelihood(objective, alpha):
    found = -loss(objective(alpha, 1), {}, model, empty_guide, jnp.asarray(Y))
    assert found == pytest.approx(logsumexp(joint(), axis=(1, 2)).sum(), abs=1e-10)


@numpyro_follows
def test_numpyro_enumerates_to_the_same():
    theirs, ours = (
        loss(objective, {}, model, empty_guide, jnp.asarray(Y))
        for objective in (TraceEnum_ELBO(), PowerEP(0.0))
    )
    assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.5, 1.0])
def test_a_guides_own_site_is_averaged_as_the_definition_says(alpha):
    """z under q(z), r summed by its best q: w = Σ_r p(y, z, r) / q(z)."""
    log_w = logsumexp(joint(), axis=2) - np.log(Q)
    if alpha == 0.0:
        expected = (Q * log_w).sum()
    else:
        expected = (logsumexp(alpha * log_w, b=Q, axis=1) / alpha).sum()
    found = -loss(PowerEP(alpha, 2), {"q": jnp.asarray(Q)}, model, guide_of_z, jnp.asarray(Y))
    assert found == pytest.approx(expected, abs=1e-9)


def test_minibatches_average_to_all_rows():
    whole = loss(PowerEP(0.5, 1), {}, model, empty_guide, jnp.asarray(Y))
    part = jax.jit(lambda y, index: PowerEP(0.5, 1).loss(KEY, {}, model, empty_guide, y, index=index))
    parts = [part(jnp.asarray(Y[rows]), jnp.asarray(rows)) for rows in ([0, 1], [2, 3])]
    assert float(sum(parts)) / 2 == pytest.approx(whole, abs=1e-10)


def test_what_cannot_be_summed_is_refused():
    def outside(y):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
        with data_plate(4):
            numpyro.sample("y", dist.Normal(jnp.asarray(CENTRES)[z], 1.0), obs=y)

    with pytest.raises(ValueError, match="'z' outside the data plate"):
        refuse(PowerEP(0.5), {}, outside, lambda y: None, jnp.asarray(Y))
    with pytest.raises(Exception, match="discrete latent"):
        SVI(model, empty_guide, numpyro.optim.Adam(0.01), Trace_ELBO()).init(KEY, jnp.asarray(Y))


@pytest.mark.slow
def test_masked_rows_count_for_nothing():
    mask = jnp.asarray([True, False, True, True])
    masked = handlers.mask(model, mask)
    for program, params in ((empty_guide, {}), (handlers.mask(guide_of_z, mask), {"q": jnp.asarray(Q)})):
        whole = np.asarray([
            -PowerEP(0.5, 1).loss(KEY, params, masked, program, jnp.asarray(np.where(mask, Y, value)))
            for value in (Y, 5.0 + Y)
        ])  # fmt: skip
        log_w = logsumexp(joint(), axis=2)
        if params:
            rows = logsumexp(0.5 * (log_w - np.log(Q)), b=Q, axis=1) / 0.5
        else:
            rows = logsumexp(log_w, axis=1)
        np.testing.assert_allclose(whole, rows[np.asarray(mask)].sum(), atol=1e-9)


def test_sites_of_several_values_a_row_are_refused():
    def pairs(y):
        with data_plate(4):
            z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(2)).to_event(1))
            numpyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y)

    with pytest.raises(ValueError, match="'z' of shape \\(4, 2\\)"):
        refuse(PowerEP(0.5), {}, pairs, empty_guide, jnp.asarray(Y))


X = np.linspace(-1.0, 1.0, 9)[:, None]
TWO = np.where(np.arange(9) % 2, X[:, 0], -X[:, 0])[:, None]


@pytest.fixture(scope="module")
def mixture():
    return (made := mixture_of_functions(2, 4)), Guide(made, inducing=FullRank())


@pytest.fixture(scope="module")
def mixture_moments(mixture):
    """Parameters, means, variances of f given u and from q(u), (9, 2) and (9, 1), noise variances, and the KL."""
    program, guide = mixture
    x, y = jnp.asarray(X), jnp.asarray(TWO)
    params = initial(KEY, program, guide, x, y)
    params["gp/u_loc"] = 0.5 * jax.random.normal(KEY, (2, 4))
    params["mixture/weights"] = jnp.asarray([0.3, 0.7])
    fixed = handlers.seed(handlers.substitute(guide, params), KEY)
    q = handlers.trace(fixed).get_trace(x, y)["gp/u"]["fn"]
    height, length = float(params["gp/variance"]), float(params["gp/lengthscale"][0])
    k = lambda a, b: height * np.exp(-0.5 * ((a - b.T) / length) ** 2)
    inducing = np.asarray(params["gp/inducing"])
    kzz = k(inducing, inducing)
    lower = np.linalg.cholesky(kzz + 1e-8 * np.mean(np.diag(kzz)) * np.eye(4))
    phi = np.linalg.solve(lower, k(inducing, X)).T
    covariance = np.asarray(q.moments.covariance())
    mean = phi @ np.asarray(q.loc).T + np.asarray(params["gp/offset"])
    residual = (np.diag(k(X, X)) - np.square(phi).sum(1))[:, None]
    from_u = np.einsum("nm,pmk,nk->np", phi, covariance, phi)
    kl = 0.5 * (np.trace(covariance, axis1=1, axis2=2) + np.square(q.loc).sum(1) - 4)
    kl -= 0.5 * np.linalg.slogdet(covariance)[1]
    return params, mean, residual, from_u, np.asarray(params["likelihood/noise"]), kl.sum()


def tempered_gaussian(mean, variance, s2, alpha):
    t = -0.5 * np.log(2 * np.pi * s2) - 0.5 * np.square(TWO - mean) / (s2 + alpha * variance)
    return t - 0.5 * (variance / s2 if alpha == 0.0 else np.log1p(alpha * variance / s2) / alpha)


def test_energy_of_mixture_of_functions_is_its_marginal_likelihood_given_q(mixture, mixture_moments):
    """Black-box α at 1: Σ_n log Σ_z π_z E_q p(y_n | f_z), where moments of u are all that counts."""
    params, mean, residual, from_u, s2, kl = mixture_moments
    found = -loss(BlackBoxAlpha(1.0, 1), params, *mixture, jnp.asarray(X), jnp.asarray(TWO))
    log_pi = np.log(np.asarray(params["mixture/weights"]))
    tempered = tempered_gaussian(mean, residual + from_u, s2, 1.0)
    assert found == pytest.approx(float(logsumexp(log_pi + tempered, axis=1).sum() - kl), abs=1e-6)


@pytest.mark.parametrize(
    ("objective", "alpha"), few([(PowerEP, 0.0), (PowerEP, 0.5), (PowerEP, 1.0), (BlackBoxAlpha, 0.0)], 0, 2)
)
def test_mixture_of_functions_is_averaged_over_u_outside_the_sum(mixture, mixture_moments, objective, alpha):
    """E_u log Σ_z π_z exp t_α(z; u), against Gauss–Hermite quadrature in both functions; not of the moments of u."""
    params, mean, residual, from_u, s2, kl = mixture_moments
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    log_pi = np.log(np.asarray(params["mixture/weights"]))
    terms = [
        log_pi[z] + tempered_gaussian(mean + np.sqrt(from_u) * node, residual, s2, alpha)[:, z]
        for z in range(2)
        for node in nodes
    ]
    first, second = np.reshape(terms, (2, 60, 9))
    product = np.outer(weights, weights)[..., None] / weights.sum() ** 2
    expected = (product * np.logaddexp(first[:, None], second[None])).sum() - kl

    x, y = jnp.asarray(X), jnp.asarray(TWO)
    run = jax.jit(jax.vmap(lambda key: -objective(alpha, 1).loss(key, params, *mixture, x, y)))
    values = np.asarray(run(jax.random.split(KEY, 20_000)))
    assert values.mean() == pytest.approx(expected, abs=4.0 * values.std() / 20_000**0.5)
    # moments of u would be off by much more than that
    moments = logsumexp(log_pi + tempered_gaussian(mean, residual + from_u, s2, 0.0), axis=1).sum() - kl
    if alpha == 0.0:
        assert abs(expected - moments) > 100.0 * values.std() / 20_000**0.5


@pytest.mark.slow
def test_two_crossing_lines_are_told_apart():
    random = np.random.default_rng(0)
    x = random.uniform(-2.0, 2.0, (120, 1))
    which = random.integers(2, size=120)
    y = np.where(which, x[:, 0], -x[:, 0])[:, None] + 0.05 * random.normal(size=(120, 1))
    program = mixture_of_functions(2, 8)
    guide = Guide(program, inducing=FullRank())
    fit = fit_svi(KEY, program, guide, PowerEP(0.5), x, y, steps=1000, learning_rate=0.03)
    # one function cannot tell y = x from y = −x: its noise is the spread of y, about 1.2, and its density below e⁻¹
    assert fit.losses[0, -100:].mean() < 0.0
    assert np.all(np.sqrt(np.asarray(fit.params["likelihood/noise"])) < 0.15)
    # a prediction is a mixture of both, however hidden layers are carried: ± 2 at x = 2
    found = predict(KEY, fit, jnp.array([[2.0], [0.0]]), propagation="moments")
    assert found.variance[0, 0] > 2.0 and found.variance[1, 0] < 0.1
