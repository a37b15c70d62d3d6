"""Tied factors of a row's own latent: the GPLVM's energy (Bui 2017, 3.7) and the state space model's (3.5)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss

from ppl_dgp import likelihoods
from ppl_dgp.gp.means import Zero
from ppl_dgp.gp.moment_matching import linearised, matched
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import ApproximatePowerEP, PowerEP
from ppl_dgp.objectives.cavity import flat_cavity, renyi_and_cavity
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.objectives.regression import GaussianInputs

KEY = jax.random.PRNGKey(4)
RANDOM = np.random.default_rng(3)
ROWS, OUTPUTS, NOISE = 4, 2, 0.3
Y = jnp.asarray(RANDOM.normal(size=(ROWS, OUTPUTS)))
Z = jnp.linspace(-1.5, 1.5, 5)[:, None]
KERNEL = RBF(1.2, jnp.array([0.9]))
LOC = jnp.asarray(0.7 * RANDOM.normal(size=(OUTPUTS, 5)))
ROOT = jnp.asarray(np.tril(0.2 * RANDOM.normal(size=(OUTPUTS, 5, 5)), -1) + 0.4 * np.eye(5))
X_LOC, X_SCALE = jnp.asarray(RANDOM.normal(size=(ROWS, 1))), jnp.asarray(RANDOM.uniform(0.2, 0.6, (ROWS, 1)))


def gplvm(y):
    f = sparse_gp("gp", KERNEL, Z, OUTPUTS, jitter=1e-10)
    with data_plate(ROWS):
        x = offer("x", numpyro.sample("x", dist.Normal(0.0, 1.0).expand((1,)).to_event(1)))
        numpyro.sample("y", f(x).noisy(NOISE), obs=y)


def guide(y):
    numpyro.sample(
        "gp/u", InducingGaussian(LOC, ROOT), infer={"role": "inducing", "representation": "marginal"}
    )
    with data_plate(ROWS):
        loc = numpyro.param("loc", X_LOC, event_dim=1)
        scale = numpyro.param("scale", X_SCALE, event_dim=1)
        numpyro.sample("x", dist.Normal(loc, scale).to_event(1))


def value(objective, params=None):
    return -loss(objective, params or {}, gplvm, guide, Y, key=KEY)


def by_moments(alpha):
    return value(ApproximatePowerEP(alpha, 1, propagation="moments"))


class Function:
    """A sparse GP at moments of u, outside any model."""

    kernel, inducing, mean = KERNEL, Z, Zero(OUTPUTS)

    def __init__(self, loc, root):
        lower, _ = cholesky(KERNEL(Z, Z), 1e-10)
        self.whiten, self.u = inverse_lower(lower), Gaussian(loc, root)


def given(f, kernel, inducing, h):
    """Mean and variance of f at certain inputs, u integrated out."""
    phi = kernel(h, inducing) @ f.whiten.T
    variance = (kernel.diag(h) - jnp.square(phi).sum(1))[:, None]
    return phi @ f.u.mean.T, variance + jnp.square(jnp.einsum("bm,pmk->bpk", phi, f.u.scale)).sum(2)


def grid(number, dims):
    """Nodes (K, D) and weights (K,) of a product rule for N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    nodes = np.stack([each.ravel() for each in np.meshgrid(*[nodes] * dims)], 1)
    weights = np.prod([each.ravel() for each in np.meshgrid(*[weights / weights.sum()] * dims)], 0)
    return jnp.asarray(nodes), jnp.asarray(weights)


@jax.jit
def psi(inputs):
    """Mean and variance of f(x) at moments of x by 60-point quadrature, not by kernel expectations."""
    f = Function(LOC, ROOT)
    nodes, weights = grid(60, 1)
    mean, variance = jax.vmap(lambda node: given(f, KERNEL, Z, inputs.mean + inputs.scale * node))(nodes)
    mean, second = jnp.tensordot(weights, mean, 1), jnp.tensordot(weights, variance + jnp.square(mean), 1)
    return mean, second - jnp.square(mean)


def test_at_alpha_zero_it_is_the_bound_of_the_bayesian_gplvm():
    """Titsias & Lawrence 2010: −Σ KL[q(u_d)] − Σ KL[q(x_n)] + Σ ⟨log N(y; f(x), s²)⟩, here with q(u) free."""
    mean, variance = psi(Gaussian(X_LOC, X_SCALE))
    fit = (-0.5 * jnp.log(2 * jnp.pi * NOISE) - 0.5 * (jnp.square(Y - mean) + variance) / NOISE).sum()
    kl_x = 0.5 * (jnp.square(X_SCALE) + jnp.square(X_LOC) - 1 - 2 * jnp.log(X_SCALE)).sum()
    covariance = np.asarray(ROOT @ jnp.swapaxes(ROOT, 1, 2))
    kl_u = 0.5 * (
        np.trace(covariance, axis1=1, axis2=2) + np.square(LOC).sum(1) - 5 - np.linalg.slogdet(covariance)[1]
    )
    assert by_moments(0.0) == pytest.approx(float(fit - kl_x) - kl_u.sum(), abs=1e-7)


@pytest.mark.slow
def test_error_in_alpha_is_first_order():
    errors = [by_moments(alpha) - by_moments(0.0) for alpha in (1e-2, 1e-3, 1e-4)]
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 10.0, rtol=0.05)


@pytest.mark.slow
def test_at_alpha_one_it_does_not_depend_on_q_of_x():
    """A flat direction: the cavity of x_n is its prior, and no gradient trains q(x_n)."""
    values = []
    for seed in range(3):
        loc, scale = jax.random.normal(jax.random.PRNGKey(seed), (2, ROWS, 1))
        params = {"loc": loc, "scale": jnp.exp(scale)}
        with pytest.warns(UserWarning, match="does not depend on q of"):
            values.append(value(ApproximatePowerEP(1.0, 1, propagation="moments"), params))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
    assert abs(by_moments(0.5) - value(ApproximatePowerEP(0.5, 1, propagation="moments"), params)) > 1e-2


@pytest.mark.slow
def test_draws_from_the_cavity_of_x_are_the_definition_with_draws_from_q():
    """(1/α) log E_cav(u) E_q(x)[w^α], its inner expectation by quadrature over x."""
    alpha = 0.5
    _, cavity = renyi_and_cavity(
        "u", InducingGaussian(LOC, ROOT), dist.Normal(0, 1).expand((2, 5)).to_event(2), alpha / ROWS
    )
    divergence, _ = renyi_and_cavity(
        "u", InducingGaussian(LOC, ROOT), dist.Normal(0, 1).expand((2, 5)).to_event(2), alpha / ROWS
    )
    f = Function(cavity.loc, cavity.scale)
    nodes, weights = grid(80, 1)

    def term(node):
        x = X_LOC + X_SCALE * node
        log_w = likelihoods.Gaussian(jnp.asarray(NOISE)).tempered(Y, *given(f, KERNEL, Z, x), alpha).sum(1)
        log_ratio = -0.5 * x**2 + 0.5 * node**2 + jnp.log(X_SCALE)
        return alpha * (log_w + log_ratio[:, 0])

    inner = jax.scipy.special.logsumexp(jax.jit(jax.vmap(term))(nodes), b=weights[:, None], axis=0)
    exact = inner.sum() / alpha - divergence.sum()
    # the logarithm of a mean of S = 1000 draws is biased by var / 2S < 2e-3
    keys = jax.random.split(KEY, 100)
    found = -np.asarray(
        jax.lax.map(lambda k: ApproximatePowerEP(alpha, 1000).loss(k, {}, gplvm, guide, Y), keys)
    )
    assert abs(found.mean() - float(exact)) < 4 * found.std() / 100**0.5 + 2e-3


def test_moments_are_the_mean_of_draws_of_x():
    values = -np.asarray(
        jax.jit(jax.vmap(lambda k: PowerEP(0.0, 1).loss(k, {}, gplvm, guide, Y)))(jax.random.split(KEY, 4000))
    )
    assert abs(values.mean() - by_moments(0.0)) < 4 * values.std() / 4000**0.5


# a chain x_0 … x_T, y_t = x_t + noise: energies of one step, by hand from Bui 2017, 2.8–2.10
STATES = 5
H = Gaussian(
    jnp.asarray(RANDOM.normal(size=(STATES, OUTPUTS))),
    jnp.asarray(RANDOM.uniform(0.2, 0.5, (STATES, OUTPUTS))),
)
Q, R = 0.2, 0.1
SERIES = jnp.asarray(RANDOM.normal(size=(STATES - 1, OUTPUTS)))
Z2 = jnp.asarray(RANDOM.normal(size=(5, OUTPUTS)))
KERNEL2 = RBF(0.8, jnp.array([1.1, 0.7]))


class Transition(Function):
    kernel, inducing = KERNEL2, Z2

    def __init__(self, loc, root):
        lower, _ = cholesky(KERNEL2(Z2, Z2), 1e-10)
        self.whiten, self.u = inverse_lower(lower), Gaussian(loc, root)


@partial(jax.jit, static_argnums=1)
def state_space_energy(alpha, how=matched):
    """APEP with factorised q(x): every state one cavity, α of one of its n_t equal factors left out."""
    steps = STATES - 1
    prior = dist.Normal(0.0, 1.0).expand((2, 5)).to_event(2)
    divergence, cavity = renyi_and_cavity("u", InducingGaussian(LOC, ROOT), prior, alpha / steps)
    first = Gaussian(H.mean[:1], H.scale[:1])
    first_divergence, first_cavity = renyi_and_cavity(
        "x0",
        dist.Normal(first.mean, first.scale).to_event(1),
        dist.Normal(jnp.zeros((1, 2)), 1.0).to_event(1),
        alpha,
    )
    # transition in, transition out and emission; the last state has no transition out
    copies = jnp.asarray([3.0] * (steps - 1) + [2.0])
    entropy, rest = flat_cavity(Gaussian(H.mean[1:], H.scale[1:]), copies, alpha)
    before = Gaussian(
        jnp.concatenate([first_cavity.mean, rest.mean[:-1]]),
        jnp.concatenate([jnp.sqrt(first_cavity.variance), rest.scale[:-1]]),
    )
    f = Transition(cavity.loc, cavity.scale)
    moments = matched(f, before) if how is matched else linearised(f, before)[0]
    gaussian = lambda s2: likelihoods.Gaussian(jnp.asarray(s2))
    variance = moments.residual + moments.beyond + rest.variance
    transition = gaussian(Q).tempered(rest.mean, moments.mean, variance, alpha).sum()
    emission = gaussian(R).tempered(SERIES, rest.mean, rest.variance, alpha).sum()
    return transition + emission + entropy.sum() - divergence.sum() - first_divergence.sum()


@jax.jit
def state_space_bound():
    """The ELBO of the same q, its dynamics term by quadrature over x_{t−1}."""
    f = Transition(LOC, ROOT)
    nodes, weights = grid(40, 2)

    def dynamics(node):
        mean, variance = given(f, KERNEL2, Z2, H.mean[:-1] + H.scale[:-1] * node)
        error = jnp.square(H.mean[1:] - mean) + variance + H.variance[1:]
        return (-0.5 * jnp.log(2 * jnp.pi * Q) - 0.5 * error / Q).sum()

    dynamics = weights @ jax.vmap(dynamics)(nodes)
    emission = -0.5 * jnp.log(2 * jnp.pi * R) - 0.5 * (jnp.square(SERIES - H.mean[1:]) + H.variance[1:]) / R
    entropy = (0.5 * jnp.log(2 * jnp.pi * jnp.e) + jnp.log(H.scale[1:])).sum()
    kl_first = 0.5 * (H.variance[0] + jnp.square(H.mean[0]) - 1 - jnp.log(H.variance[0])).sum()
    covariance = ROOT @ jnp.swapaxes(ROOT, 1, 2)
    kl = (
        jnp.trace(covariance, axis1=1, axis2=2)
        + jnp.square(LOC).sum(1)
        - 5
        - jnp.linalg.slogdet(covariance)[1]
    )
    return dynamics + emission.sum() + entropy - kl_first - 0.5 * kl.sum()


def test_energy_of_a_state_space_model_tends_to_its_bound():
    """T9 and T12: by moment matching exactly, and first order in α."""
    assert float(state_space_energy(0.0)) == pytest.approx(float(state_space_bound()), abs=1e-6)
    errors = [state_space_energy(alpha) - state_space_energy(0.0) for alpha in (1e-2, 1e-3, 1e-4)]
    np.testing.assert_allclose(np.divide(errors[:2], errors[1:]), 10.0, rtol=0.05)


def test_linearisation_does_not_tend_to_the_bound():
    """T13: the function's own variance is frozen at the mean (Bui 2017, 3.4)."""
    assert abs(state_space_energy(0.0, linearised) - state_space_bound()) > 0.05


@pytest.mark.slow
def test_the_markov_transition_by_moments_is_the_expected_log_density():
    """T12 with x_t = W x_{t−1} + noise under q: the term's limit is E log N(x_t; f(x_{t−1}), Q), by draws."""
    slope = jnp.asarray(RANDOM.normal(size=(STATES - 1, OUTPUTS, OUTPUTS)) * 0.4)
    centre = jnp.asarray(RANDOM.normal(size=(STATES - 1, OUTPUTS)))
    spread = jnp.asarray(RANDOM.uniform(0.05, 0.2, (STATES - 1, OUTPUTS)))
    f = Transition(LOC, ROOT)
    left = matched(f, Gaussian(H.mean[:-1], H.scale[:-1]), slope)
    variance = left.residual + left.beyond + spread
    found = likelihoods.Gaussian(jnp.asarray(Q)).tempered(centre, left.mean, variance, 0.0).sum(1)
    key_x, key_e = jax.random.split(KEY)
    count = 100_000
    x = H.mean[:-1] + H.scale[:-1] * jax.random.normal(key_x, (count, STATES - 1, OUTPUTS))
    after = centre + jnp.einsum("tqp,ntp->ntq", slope, x)
    after = after + jnp.sqrt(spread) * jax.random.normal(key_e, after.shape)
    mean, own = given(f, KERNEL2, Z2, x.reshape(-1, OUTPUTS))
    mean, own = mean.reshape(after.shape), own.reshape(after.shape)
    log_p = (-0.5 * jnp.log(2 * jnp.pi * Q) - 0.5 * (jnp.square(after - mean) + own) / Q).sum(2)
    error = np.asarray(log_p.std(0)) / count**0.5
    assert np.all(np.abs(np.asarray(found - log_p.mean(0))) < 4 * error)


@pytest.mark.slow
def test_collapsed_dynamics_are_the_uncollapsed_at_the_optimal_q_of_u():
    """T11: the regression of x_t on uncertain x_{t−1} (Bui 2017, 3.26 and 3.32), and a poorer q(u) lies below."""
    before, after = Gaussian(H.mean[:-1], H.scale[:-1]), Gaussian(H.mean[1:], H.scale[1:])

    @jax.jit
    def uncollapsed(loc, root):
        moments = matched(Transition(loc, root), before)
        variance = moments.residual + moments.beyond + after.variance
        fit = likelihoods.Gaussian(jnp.asarray(Q)).tempered(after.mean, moments.mean, variance, 0.0).sum()
        covariance = root @ jnp.swapaxes(root, 1, 2)
        kl = (
            jnp.trace(covariance, axis1=1, axis2=2)
            + jnp.square(loc).sum(1)
            - 5
            - jnp.linalg.slogdet(covariance)[1]
        )
        return fit - 0.5 * kl.sum()

    f = Transition(LOC, ROOT)
    known = matched(f, before)
    features = GaussianInputs.of(known.weights, f, before, None, after)
    statistics = features.statistics(jnp.full((STATES - 1, 1), Q), Factors(0.0))
    best = statistics.optimum()
    assert float(statistics.energy()) == pytest.approx(float(uncollapsed(best.mean, best.scale)), abs=1e-7)
    for poorer in ((best.mean + 0.1, best.scale), (best.mean, 1.2 * best.scale), (LOC, ROOT)):
        assert float(uncollapsed(*poorer)) < float(statistics.energy())
