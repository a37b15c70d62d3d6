"""Deep GPs in their linear-Gaussian limit: identity means and a kernel variance of 1e-12 leave a Gaussian chain.

    h_n⁰ = x_n,   h_n^l = h_n^{l−1} + ε,  ε ~ N(0, s_l²),   y_n = h_n^{L−1} + ε:   y_n ~ N(x_n, Σ_l s_l²)

The evidence is known, and so is every rule's bound: each is then a Gaussian chain h^l | h^{l−1} ~ N(T h^{l−1} + b, S),
and PowerEP is the evidence minus the Rényi divergence of order 1 − α from it to the posterior (KL at α = 0). A draw
of f is then within 4e-6 of its mean, which adds at most 1e-4 nats.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from fast import few
from rules import CHAINS, RULES
from scipy import stats

from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

X, Y = np.array([-1.0, 0.1, 0.9]), np.array([-0.2, 0.3, 0.5])
NOISES = {2: np.array([0.3, 0.2]), 3: np.array([0.3, 0.15, 0.2])}
EVIDENCE = {
    depth: float(stats.norm.logpdf(Y, X, noise.sum() ** 0.5).sum()) for depth, noise in NOISES.items()
}
KEY = jax.random.PRNGKey(11)


def model_of(depth):
    def model(x, y=None, index=None, size=None):
        inducing = jnp.array([[-0.8], [0.6]])
        functions = [
            sparse_gp(f"layer{i + 1}", RBF(1e-12, 1.0), inducing, mean=Linear(jnp.eye(1)))
            for i in range(depth)
        ]
        with data_plate(size or x.shape[0], index):
            h = x
            for i, f in enumerate(functions[:-1]):
                h = numpyro.sample(f"layer{i + 1}/h", f(h).noisy(NOISES[depth][i]), infer={"role": "hidden"})
            numpyro.sample("y", functions[-1](h).noisy(NOISES[depth][-1]), obs=y)

    return model


class Chain:
    """q(h¹ … h^K): slopes (K,), offsets (N, K), variances (K,), and variances (K,) that draws of u give the offsets."""

    def __init__(self, slope, offset, spread, shifted=0.0):
        self.slope, self.offset, self.spread = np.asarray(slope), np.asarray(offset), np.asarray(spread)
        self.shifted = np.broadcast_to(shifted, self.spread.shape)
        step = np.eye(len(spread)) - np.diag(self.slope[1:], -1)
        self.precision = step.T @ np.diag(1 / self.spread) @ step
        start = self.offset + np.outer(X, np.eye(len(spread))[0] * self.slope[0])
        self.mean = np.linalg.solve(step, start.T).T
        inverse = np.linalg.inv(step)
        self.shift = inverse @ np.diag(self.shifted) @ inverse.T


def posterior(depth):
    """Of the hidden layers: precision (K, K) and means (N, K)."""
    noise, hidden = NOISES[depth], depth - 1
    step = np.eye(hidden) - np.eye(hidden, k=-1)
    precision = step.T @ np.diag(1 / noise[:-1]) @ step
    precision[-1, -1] += 1 / noise[-1]
    first, last = np.eye(hidden)[0], np.eye(hidden)[-1]
    rhs = np.outer(X, first) / noise[0] + np.outer(Y, last) / noise[-1]
    return precision, np.linalg.solve(precision, rhs.T).T


def minus_renyi(chain, depth, alpha):
    """(1/α) log ∫ q^{1−α} p(h | x, y)^α dh for each datum, (N,), its mean over the offsets that u shifts."""
    precision, mean = posterior(depth)
    d, log_det = chain.mean - mean, lambda a: np.linalg.slogdet(a)[1]
    if alpha == 0.0:
        trace = np.trace(precision @ (np.linalg.inv(chain.precision) + chain.shift)) - len(precision)
        quadratic = np.einsum("ni,ij,nj->n", d, precision, d)
        return -0.5 * (trace + quadratic + log_det(chain.precision) - log_det(precision))
    mixed = (1 - alpha) * chain.precision + alpha * precision
    assert np.linalg.eigvalsh(mixed).min() > 0
    between = (1 - alpha) * chain.precision @ np.linalg.solve(mixed, alpha * precision)
    quadratic = np.einsum("ni,ij,nj->n", d, between, d) + np.trace(between @ chain.shift)
    dets = (1 - alpha) * log_det(chain.precision) + alpha * log_det(precision) - log_det(mixed)
    return (0.5 * dets - 0.5 * quadratic) / alpha


def best(name, depth):
    """The rule's optimum at α = 0: the posterior itself, or its mean and conditional variances for mean fields."""
    noise, hidden = NOISES[depth], depth - 1
    precision, mean = posterior(depth)
    if name == "doubly-stochastic":
        return Chain(np.ones(hidden), np.zeros_like(mean), noise[:-1])
    if name not in CHAINS:
        return Chain(np.zeros(hidden), mean, 1 / np.diag(precision))
    # h^l given h^{l−1} and y is a step of a bridge: after is the noise still to come
    after = np.array([noise[i + 1 :].sum() for i in range(hidden)])
    slope = after / (noise[:-1] + after)
    return Chain(slope, np.outer(Y, 1 - slope) if depth > 1 else mean, noise[:-1] * slope)


def away(name, depth):
    """Somewhere else, and wide, so that weights have a finite variance at α = 1."""
    if name == "doubly-stochastic":
        return best(name, depth)
    chain, rng = best(name, depth), np.random.default_rng(3)
    slope = chain.slope + 0.2 * rng.standard_normal(chain.slope.shape) * (name in CHAINS)
    offset = chain.offset + 0.1 * rng.standard_normal(chain.offset.shape)
    return Chain(slope, offset, 1.6 * chain.spread, 0.05 if name == "free" else 0.0)


def parameters(name, chain):
    """All parameters of guide and model for a chain."""
    found = {}
    for i in range(len(chain.spread) + 1):
        # q(u) = p(u)
        found[f"layer{i + 1}/u_loc"], found[f"layer{i + 1}/u_scale"] = jnp.zeros((1, 2)), jnp.eye(2)[None]
    for i, (slope, spread, shifted) in enumerate(zip(chain.slope, chain.spread, chain.shifted, strict=True)):
        site, rows = f"layer{i + 1}/h", jnp.ones((len(X), 1))
        offset = jnp.asarray(chain.offset[:, i : i + 1])
        # q(h) is kept in units of the layer's noise
        unit = NOISES[len(chain.spread) + 1][i]
        if name == "markov":
            found[f"{site}_slope"] = slope * rows[..., None]
        elif name in ("coupled", "coupled-markov", "tied"):
            # half of the slope by f and half by T, where there is one
            kept = slope / 2 if name == "coupled-markov" and i else slope
            found[f"{site}_shrinkage"], offset = (1 - kept) / jnp.sqrt(unit) * rows, offset / (1 - kept)
            if kept != slope:
                found[f"{site}_slope"] = (slope - kept) / (1 - kept) * rows[..., None]
        elif name == "free":
            # T v with v ~ N(0, I) of two inducing outputs
            found[f"{site}_weights"] = jnp.sqrt(shifted / 2) * jnp.ones((len(X), 1, 2))
        if name != "doubly-stochastic":
            found[f"{site}_loc"], found[f"{site}_scale"] = offset, jnp.sqrt(spread / unit) * rows
        if name == "tied":
            found[f"{site}_residual"] = rows
    return found


def estimates(name, depth, objective, chains, num_keys):
    """Independent values of the objective at each of the chains, (chains, num_keys)."""
    model = model_of(depth)
    guide = Guide(model, hidden=RULES[name])
    x, y = jnp.asarray(X[:, None]), jnp.asarray(Y[:, None])
    run = jax.jit(jax.vmap(lambda key, q: -objective.loss(key, q, model, guide, x, y), (0, None)))
    keys = jax.random.split(KEY, num_keys)
    return [np.asarray(run(keys, parameters(name, chain))) for chain in chains]


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in [(3, 0.5), (3, 1.0), (2, 0.5)]]


@pytest.mark.parametrize("depth, alpha", [(3, 0.0), *SLOW])
@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_as_far_below_the_evidence_as_it_should_be(name, depth, alpha):
    particles, num_keys = (1, 4000) if alpha == 0.0 else (200, 200)
    chains = [best(name, depth), away(name, depth)]
    for chain, values in zip(
        chains, estimates(name, depth, PowerEP(alpha, particles), chains, num_keys), strict=True
    ):
        expected = EVIDENCE[depth] + minus_renyi(chain, depth, alpha).sum()
        assert expected <= EVIDENCE[depth] + 1e-12
        if chain is chains[0] and name in CHAINS:
            # q(h) is the posterior: the weight is the evidence at every draw
            np.testing.assert_allclose(values, EVIDENCE[depth], atol=1e-4)
            continue
        if chain is chains[0] and name != "doubly-stochastic" and alpha == 1.0:
            continue  # the weights of a mean field with the conditional variances have no variance
        bias = 0.0
        if alpha:
            # of log mean_S w^α: −(E w^{2α} / (E w^α)² − 1) / 2αS, which only lowers the bound
            tilt = 2 * alpha * (minus_renyi(chain, depth, 2 * alpha) - minus_renyi(chain, depth, alpha))
            bias = float(np.expm1(tilt).sum() / (2 * alpha * particles))
            assert bias < 0.1
        se = values.std() / num_keys**0.5
        assert expected - 1.5 * bias - 4 * se - 1e-5 < values.mean() < expected + 4 * se + 1e-5


def test_the_order_of_the_rules():
    """With two hidden layers: doubly stochastic < mean field = free < evidence = Markov = coupled = tied."""
    bound = {name: EVIDENCE[3] + minus_renyi(best(name, 3), 3, 0.0).sum() for name in RULES}
    precision, _ = posterior(3)
    gap = 0.5 * np.log(np.diag(precision).prod() / np.linalg.det(precision))
    assert bound["mean-field"] == pytest.approx(EVIDENCE[3] - len(X) * gap, abs=1e-12)
    assert bound["doubly-stochastic"] < bound["mean-field"] - 0.5 < bound["free"] < EVIDENCE[3] - 0.2
    for name in CHAINS:
        assert bound[name] == pytest.approx(EVIDENCE[3], abs=1e-12)
    # and with one, a mean field holds the posterior
    assert minus_renyi(best("mean-field", 2), 2, 0.0).sum() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", [PowerEP, BlackBoxAlpha])
@pytest.mark.parametrize("name", few(RULES, list(RULES).index("coupled")))
def test_small_alpha_is_the_elbo(name, kind):
    """A traced α of 0 averages to the bound, and what α adds is in proportion to it at every draw."""
    model, chain = model_of(2), away(name, 2)
    guide, q = Guide(model, hidden=RULES[name]), parameters(name, chain)
    x, y = jnp.asarray(X[:, None]), jnp.asarray(Y[:, None])

    def energy(key, alpha):
        return -kind(lambda _: alpha, 2).at_step(0).loss(key, q, model, guide, x, y)

    alphas = jnp.array([0.0, 1e-4, 1e-5])
    run = jax.jit(jax.vmap(jax.vmap(energy, (None, 0)), (0, None)))
    values = np.asarray(run(jax.random.split(KEY, 4000), alphas))
    expected = EVIDENCE[2] + minus_renyi(chain, 2, 0.0).sum()
    assert abs(values[:, 0].mean() - expected) < 4.0 * values[:, 0].std() / 4000**0.5 + 1e-5
    added = values[:, 1:] - values[:, :1]
    assert added[:, 0].mean() > 1e-5
    np.testing.assert_allclose(added[:, 0], 10.0 * added[:, 1], rtol=0.02, atol=1e-8)
