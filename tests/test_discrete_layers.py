"""Discrete latents beside hidden layers: the definition by quadrature, the FITC evidence, and what is refused."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss, noise_like, on_host, refuse
from fast import few
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from ppl_dgp.gp.contract import hidden_role
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.representation import offer
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Conditional, DoublyStochastic, Guide, MeanField, MomentMatched
from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import BlackBoxAlpha, ImportanceWeighted, PowerEP
from ppl_dgp.state_space.trajectory import Trajectory

KEY = jax.random.PRNGKey(5)
X = np.array([[-0.8], [0.1], [0.9]])
Y = np.array([[0.5], [-0.4], [1.1]])
Z1, Z2 = np.array([[-1.0], [0.2], [1.0]]), np.array([[-0.9], [0.0], [1.1]])
PI = np.array([0.35, 0.65])
INNER, NOISE = 0.15, np.array([0.05, 0.3])
#: parameters of a guide, at which q(u) is a point to all that is asked here
SHARP = 1e-7


def model(x, y=None):
    """The layer before is one function for all; z says which function of it a row has, and which noise."""
    f = sparse_gp("layer1", RBF(0.5, jnp.array([0.8])), jnp.asarray(Z1), 1, mean=Linear(jnp.eye(1)))
    g = sparse_gp("layer2", RBF(1.0, jnp.array([0.6])), jnp.asarray(Z2), 2)
    with data_plate(len(X)):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
        h = offer("layer1/h", numpyro.sample("layer1/h", f(x).noisy(INNER), infer=hidden_role()))
        numpyro.sample("y", g(h).output(z).noisy(jnp.asarray(NOISE)[z][:, None]), obs=y)


def switched(x, y):
    """The layer before is another function for each z."""
    f = sparse_gp("layer1", RBF(0.5, jnp.array([0.8])), jnp.asarray(Z1), 2, mean=Linear(jnp.ones((1, 2))))
    g = sparse_gp("layer2", RBF(1.0, jnp.array([0.6])), jnp.asarray(Z2), 2)
    with data_plate(len(X)):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)), infer={"enumerate": "parallel"})
        h = offer("layer1/h", numpyro.sample("layer1/h", f(x).output(z).noisy(INNER), infer=hidden_role()))
        numpyro.sample("y", g(h).output(z).noisy(jnp.asarray(NOISE)[z][:, None]), obs=y)


def gp(kernel_variance, length, inducing, u, h, slope=0.0):
    """Means (n, P) of whitened u (P, M) at h (n,), and the variance of f given u (n,)."""
    k = lambda a, b: kernel_variance * np.exp(-0.5 * ((a[:, None] - b[None]) / length) ** 2)
    at = inducing[:, 0]
    lower = np.linalg.cholesky(k(at, at) + 1e-8 * kernel_variance * np.eye(len(at)))
    phi = np.linalg.solve(lower, k(at, h)).T
    return phi @ u.T + slope * h[:, None], kernel_variance - np.square(phi).sum(1)


def tempered(y, mean, variance, s2, alpha):
    penalty = variance / s2 if alpha == 0.0 else np.log1p(alpha * variance / s2) / alpha
    return -0.5 * np.log(2 * np.pi * s2) - 0.5 * penalty - 0.5 * np.square(y - mean) / (s2 + alpha * variance)


def parameters(program, guide):
    """Moved a little from where they begin, with q(u) a point; and the KL of that q(u)."""
    params = on_host(initial(KEY, program, guide, jnp.asarray(X), jnp.asarray(Y)))
    kl = 0.0
    for number, (name, value) in enumerate(sorted(params.items())):
        if name.endswith("u_scale"):
            params[name] = SHARP * np.broadcast_to(np.eye(3), value.shape)
            kl += 0.5 * value.shape[0] * (3 * SHARP**2 - 3 - 6 * np.log(SHARP))
        elif name.endswith("u_loc"):
            params[name] = 0.8 * noise_like(value, number)
            kl += 0.5 * np.square(params[name]).sum()
        else:
            params[name] = value + 0.1 * np.abs(noise_like(value, number))
    return {name: jnp.asarray(value) for name, value in params.items()}, kl


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def rows_by_quadrature(params, alpha, follows, depends):
    """(1/α) log E_q(h) (Σ_z w)^α of each row, h by Gauss-Hermite nodes, z by hand."""
    u1, u2 = np.asarray(params["layer1/u_loc"]), np.asarray(params["layer2/u_loc"])
    mean, residual = gp(0.5, 0.8, Z1, u1, X[:, 0], 1.0)
    total = []
    for n in range(len(X)):
        by_value = []
        for z in range(2):
            before, s2 = mean[n, z if depends else 0], INNER
            if follows:
                h, weight = before + np.sqrt(residual[n] + s2) * NODES, 0.0
            else:
                loc = float(params["layer1/h_loc"][n, 0])
                scale = float(params["layer1/h_scale"][n, 0]) * np.sqrt(s2)
                h = loc + scale * NODES
                weight = tempered(h, before, residual[n], s2, alpha) - norm.logpdf(h, loc, scale)
            after, variance = gp(1.0, 0.6, Z2, u2, h)
            by_value.append(np.log(PI[z]) + weight + tempered(Y[n], after[:, z], variance, NOISE[z], alpha))
        log_w = logsumexp(by_value, axis=0)
        mean_of = WEIGHTS @ log_w if alpha == 0.0 else logsumexp(alpha * log_w, b=WEIGHTS) / alpha
        total.append(mean_of)
    return np.array(total)


CASES = [
    ("mean-field", model, MeanField(), 0.5), ("model's own", model, DoublyStochastic(), 0.5),
    ("mean-field", model, MeanField(), 0.0), ("mean-field", model, MeanField(), 1.0),
    ("model's own", model, DoublyStochastic(), 0.0), ("model's own", model, DoublyStochastic(), 1.0),
    ("mean-field, h of z", switched, MeanField(), 0.0), ("mean-field, h of z", switched, MeanField(), 0.5),
    ("model's own, h of z", switched, DoublyStochastic(), 1.0),
]  # fmt: skip


@pytest.mark.parametrize("objective", [PowerEP, BlackBoxAlpha])
@pytest.mark.parametrize(("name", "program", "rule", "alpha"), few(CASES, 0, 8))
def test_z_is_summed_inside_the_logarithm_beside_hidden_layers(objective, name, program, rule, alpha):
    """With u known all objectives are one: E_q(h) stands inside the logarithm, Σ_z inside that."""
    guide = Guide(program, hidden=rule)
    params, kl = parameters(program, guide)
    x, y = jnp.asarray(X), jnp.asarray(Y)
    expected = (
        rows_by_quadrature(params, alpha, isinstance(rule, DoublyStochastic), program is switched).sum() - kl
    )
    run = lambda key: -objective(alpha, 1 if alpha == 0.0 else 3000).loss(key, params, program, guide, x, y)
    draws = 20_000 if alpha == 0.0 else 8
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, draws)))
    assert values.mean() == pytest.approx(expected, abs=5.0 * values.std() / draws**0.5 + 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", few([0.0, 0.5, 1.0], 1))
def test_importance_weights_sum_over_z_with_functions_drawn(alpha):
    """E_f (1/α) log ½ Σ_s (Σ_z w(f, h_s, z))^α, the K draws of h under one draw of f and g, in NumPy."""
    guide = Guide(model, hidden=MeanField())
    params, kl = parameters(model, guide)
    draws, samples = 100_000, 2
    random = np.random.default_rng(0)
    u1, u2 = np.asarray(params["layer1/u_loc"]), np.asarray(params["layer2/u_loc"])
    mean, residual = gp(0.5, 0.8, Z1, u1, X[:, 0], 1.0)
    k = lambda a, b: np.exp(-0.5 * ((a[..., :, None] - b[..., None, :]) / 0.6) ** 2)
    at = Z2[:, 0]
    lower = np.linalg.cholesky(k(at, at) + 1e-8 * np.eye(3))
    expected, variance = -kl, 0.0
    for n in range(len(X)):
        f = mean[n, 0] + np.sqrt(residual[n]) * random.normal(size=(draws, 1))
        loc, scale = (float(params[f"layer1/h_{part}"][n, 0]) for part in ("loc", "scale"))
        scale *= np.sqrt(INNER)
        h = loc + scale * random.normal(size=(draws, samples))
        phi = np.moveaxis(np.linalg.solve(lower, k(at, h.reshape(-1))), 0, 1).reshape(draws, samples, 3)
        joint = np.linalg.cholesky(k(h, h) - phi @ phi.transpose(0, 2, 1) + 1e-9 * np.eye(samples))
        noise = random.normal(size=(draws, 2, samples))
        g = np.einsum("dsm,pm->dps", phi, u2) + np.einsum("dst,dpt->dps", joint, noise)
        log_y = np.log(PI)[:, None] + norm.logpdf(Y[n], g, np.sqrt(NOISE)[:, None])
        log_w = logsumexp(log_y, axis=1) + norm.logpdf(h, f, np.sqrt(INNER)) - norm.logpdf(h, loc, scale)
        each = log_w.mean(1) if alpha == 0.0 else (logsumexp(alpha * log_w, axis=1) - np.log(samples)) / alpha
        expected, variance = expected + each.mean(), variance + each.var() / draws
    objective = ImportanceWeighted(samples, alpha)
    run = lambda key: -objective.loss(key, params, model, guide, jnp.asarray(X), jnp.asarray(Y))
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 20_000)))
    assert values.mean() == pytest.approx(
        expected, abs=4.0 * (values.var() / 20_000 + variance) ** 0.5 + 1e-4
    )


def test_a_function_drawn_for_importance_weights_is_one_for_all_values_of_z():
    """E_f log Σ_z π_z N(y; f(x + z)), f joint at x and x + z; drawn apart, however linked, it is another number."""
    shift = 0.5

    def program(x, y):
        f = sparse_gp("gp", RBF(1.0, jnp.array([0.5])), jnp.asarray(Z1), 1)
        with data_plate(len(X)):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
            numpyro.sample("y", f(x + shift * z[:, None]).noisy(0.02), obs=y)

    guide = Guide(program)
    params = on_host(initial(KEY, program, guide, jnp.asarray(X), jnp.asarray(Y)))
    u = 0.5 * noise_like(params["gp/u_loc"], 1)
    params = {"gp/u_loc": jnp.asarray(u), "gp/u_scale": SHARP * jnp.eye(3)[None]}
    kl = 0.5 * (3 * SHARP**2 - 3 - 6 * np.log(SHARP) + np.square(u).sum())
    run = lambda key: (
        -ImportanceWeighted(2, 0.0).loss(key, params, program, guide, jnp.asarray(X), jnp.asarray(Y))
    )
    values = np.asarray(jax.jit(jax.vmap(run))(jax.random.split(KEY, 20_000)))

    random, k = np.random.default_rng(0), lambda a, b: np.exp(-0.5 * ((a[:, None] - b) / 0.5) ** 2)
    at, noise = Z1[:, 0], random.normal(size=(200_000, 2))
    lower = np.linalg.cholesky(k(at, at) + 1e-8 * np.eye(3))
    expected, apart, variance = -kl, -kl, 0.0
    for x, y in zip(X[:, 0], Y[:, 0], strict=True):
        h = x + shift * np.arange(2)
        phi = np.linalg.solve(lower, k(at, h)).T
        covariance = k(h, h) - phi @ phi.T
        log_p = lambda root, phi=phi, y=y: logsumexp(
            np.log(PI) + norm.logpdf(y, phi @ u[0] + noise @ root.T, 0.02**0.5), axis=1
        )
        together = log_p(np.linalg.cholesky(covariance + 1e-12 * np.eye(2)))
        same_noise = log_p(np.sqrt(np.diag(covariance))[:, None] * np.array([[1.0, 0.0], [1.0, 0.0]]))
        expected, apart = expected + together.mean(), apart + same_noise.mean()
        variance += together.var() / 200_000
    error = (values.var() / 20_000 + variance) ** 0.5
    assert values.mean() == pytest.approx(expected, abs=4.0 * error + 1e-4)
    assert abs(expected - apart) > 20.0 * error


def test_at_alpha_1_its_exponential_averages_to_the_fitc_evidence_over_all_z():
    """E_{u ~ p} exp ℓ(u) is the evidence of FITC, here Σ over the 2^N values of z by hand; f of hidden is linear."""
    noise = 0.2

    def program(x, y):
        f = sparse_gp("layer1", RBF(1e-10, jnp.ones(1)), jnp.asarray(Z1), 1, mean=Linear(jnp.eye(1)))
        g = sparse_gp("layer2", RBF(1.0, jnp.array([0.7])), jnp.asarray(Z2), 2)
        with data_plate(len(X)):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
            h = numpyro.sample("layer1/h", f(x).noisy(1e-8), infer=hidden_role())
            numpyro.sample("y", g(h).output(z).noisy(noise), obs=y)

    def at(u):
        def guide(x, y):
            numpyro.sample("layer1/u", dist.Delta(jnp.zeros((1, 3)), event_dim=2), infer={"role": "inducing"})
            numpyro.sample("layer2/u", dist.Delta(u, event_dim=2), infer={"role": "inducing"})
            with data_plate(len(X)):
                numpyro.sample("layer1/h", dist.Normal(x, 1e-4).to_event(1), infer=hidden_role())

        prior = dist.Normal().log_prob(u).sum() + dist.Normal().log_prob(jnp.zeros((1, 3))).sum()
        return -PowerEP(1.0, 1).loss(KEY, {}, program, guide, jnp.asarray(X), jnp.asarray(Y)) - prior

    us = jax.random.normal(KEY, (40_000, 2, 3))
    values = np.exp(np.asarray(jax.jit(jax.vmap(at))(us)))

    phi, residual = gp(1.0, 0.7, Z2, np.eye(3), X[:, 0])
    evidence = 0.0
    for z in product(range(2), repeat=len(X)):
        same = np.equal.outer(z, z)
        covariance = same * (phi @ phi.T) + np.diag(residual + noise)
        evidence += np.prod(PI[list(z)]) * multivariate_normal.pdf(Y[:, 0], np.zeros(len(X)), covariance)
    assert values.mean() == pytest.approx(evidence, abs=4.0 * values.std() / 200.0 + 1e-4 * evidence)


def refusal(objective, program, guide):
    with pytest.raises(ValueError) as error:
        refuse(objective, {}, program, guide, jnp.asarray(X), jnp.asarray(Y))
    return str(error.value)


@pytest.mark.slow
def test_moments_of_hidden_layers_have_no_place_in_the_logarithm_of_the_sum():
    guide = Guide(model, hidden=MomentMatched())
    for objective in (PowerEP(0.0), BlackBoxAlpha(0.5)):
        assert refusal(objective, model, guide).startswith("propagation: found {'moments'} beside discrete")
    # at α = 1 black-box α has the sum and the mean over h in one logarithm
    params = initial(KEY, model, guide, jnp.asarray(X), jnp.asarray(Y))
    program = lambda: BlackBoxAlpha(1.0, 1).loss(KEY, params, model, guide, jnp.asarray(X), jnp.asarray(Y))
    assert np.isfinite(jax.jit(program)())


@pytest.mark.parametrize("rule", [DoublyStochastic(), Conditional()])
def test_a_hidden_layer_that_follows_its_function_by_z_bounds_the_fitc_model_alone(rule):
    guide = Guide(switched, hidden=rule)
    found = refusal(PowerEP(0.0), switched, guide)
    assert "for 'layer1/h' beside the discrete sites ['z'], at alpha=0" in found
    for objective in (PowerEP(0.5), ImportanceWeighted(2, 0.0)):
        shapes = lambda objective=objective: initial(KEY, switched, guide, jnp.asarray(X), jnp.asarray(Y))
        params = jax.eval_shape(shapes)
        jax.eval_shape(
            lambda params, objective=objective: objective.loss(
                KEY, params, switched, guide, jnp.asarray(X), jnp.asarray(Y)
            ),
            params,
        )


def test_what_is_outside_the_plate_may_not_depend_on_its_rows():
    def program(x, y):
        with data_plate(len(X)):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
        level = numpyro.sample("level", dist.Normal(z.sum(), 1.0))
        with data_plate(len(X)):
            numpyro.sample("y", dist.Normal(level, 1.0).expand([3, 1]).to_event(1), obs=y)

    def guide(x, y):
        numpyro.sample("level", dist.Normal(0.0, 1.0))

    assert refusal(PowerEP(0.5), program, guide).startswith("model: found the latent 'level', outside")

    def beside(x, y):
        with data_plate(len(X)):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
            numpyro.sample("y", dist.Normal(z[:, None], 1.0).to_event(1), obs=y)
        numpyro.sample("count", dist.Normal(z.sum(), 1.0), obs=jnp.ones(()))

    found = refusal(PowerEP(0.5), beside, lambda x, y: None)
    assert "'count' to depend on the discrete sites ['z'] of another plate" in found


def along_a_path(by_hand):
    """A state space model whose rows have noise of two kinds; and the same with the sum in the distribution of y."""

    def program(x, y):
        f = sparse_gp("f", RBF(1.0, jnp.ones(1)), jnp.asarray(Z1), mean=Linear(jnp.eye(1)), reused=True)
        start = Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1)))
        trajectory = Trajectory(f, jnp.array([0.1]), jnp.zeros((len(X), 0)), start)
        states = trajectory.states(offer("x", numpyro.sample("x", trajectory, infer=hidden_role())))[:, 0]
        deviations = jnp.sqrt(jnp.asarray(NOISE))
        with data_plate(len(X)):
            if by_hand:
                kinds = dist.Normal(states[:, None], deviations)
                both = dist.MixtureSameFamily(dist.Categorical(jnp.asarray(PI)), kinds)
                numpyro.sample("y", both, obs=y[:, 0])
            else:
                z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
                numpyro.sample("y", dist.Normal(states, deviations[z]), obs=y[:, 0])

    return program


def clustered(by_hand):
    """A latent variable model whose latents have a mixture for their prior."""
    centres = jnp.array([[-1.0, 0.5], [1.0, -0.5]])

    def program(x, y):
        f = sparse_gp("f", RBF(1.0, jnp.ones(2)), jnp.asarray(np.tile(Z1, (1, 2))))
        with data_plate(len(X)):
            if by_hand:
                both = dist.MixtureSameFamily(
                    dist.Categorical(jnp.asarray(PI)), dist.Normal(centres, 0.5).to_event(1)
                )
                h = numpyro.sample("x", both, infer=hidden_role())
            else:
                z = numpyro.sample("z", dist.Categorical(jnp.asarray(PI)))
                h = numpyro.sample("x", dist.Normal(centres[z], 0.5).to_event(1), infer=hidden_role())
            numpyro.sample("y", f(h).noisy(0.1), obs=y)

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "objective"),
    few(
        list(product([along_a_path, clustered], [PowerEP(0.5), PowerEP(0.0), BlackBoxAlpha(0.0)]))
        + [(clustered, BlackBoxAlpha(0.5))],
        0,
        3,
    ),
)
def test_beside_paths_and_latent_inputs_it_is_the_distribution_with_the_sum_in_it(family, objective):
    """The same draws, the same number, where u is known."""
    found = []
    for by_hand in (True, False):
        program = family(by_hand)
        guide = Guide(program, hidden=MeanField())
        if by_hand:
            params = initial(KEY, program, guide, jnp.asarray(X), jnp.asarray(Y))
            params |= {"f/u_loc": jnp.array([[0.4, -0.8, 1.1]]), "f/u_scale": SHARP * jnp.eye(3)[None]}
        found.append(loss(objective, params, program, guide, jnp.asarray(X), jnp.asarray(Y)))
    assert found[0] == pytest.approx(found[1], abs=1e-5)
