"""Golden numbers of an independent NumPy implementation (data A, no jitter) that need training, quadrature or draws.

The rest of them are in ``test_gp.py`` and ``test_likelihoods.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import loss
from numpyro.distributions.kl import kl_divergence

from ppl_dgp.fit import Posterior, fit_lbfgs
from ppl_dgp.gp.means import Linear, Zero
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import DoublyStochastic, FullRank, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import PowerEP, collapsed_energy
from ppl_dgp.prediction.predict import predict

KEY = jax.random.PRNGKey(5)
X = jnp.array([-1, -0.3, 0.4, 1.2, 2])[:, None]
Y = jnp.array([0.5, -0.2, 0.1, 0.9, -0.4])[:, None]
Z = jnp.array([-0.8, 0.5, 1.6])[:, None]
Z2 = jnp.array([-1, 0.4, 1.8])[:, None]
KERNEL, INNER, NOISE = RBF(1.3, 0.7), RBF(0.5, 1.0), 0.1
L_U = jnp.array([[0.5, 0, 0], [0.1, 0.6, 0], [-0.2, 0.05, 0.4]])
#: whitened q(u) of the first and the second layer
Q1 = InducingGaussian(jnp.array([[0.2, -0.1, 0.3]]), 0.1 * jnp.eye(3)[None])
Q2 = InducingGaussian(jnp.array([[0.3, -0.2, 0.5]]), L_U[None])
PRIOR = dist.Normal(0.0, 1.0).expand((1, 3)).to_event(2)
KL1, KL2 = 5.492755278982, 1.221513536200


def function(kernel, inducing, q, mean=None):
    inverse = inverse_lower(cholesky(kernel(inducing, inducing), 0.0)[0])
    return SparseGP("f", kernel, inducing, inverse, mean or Zero(), Gaussian(q.loc, q.scale))


def normal_nodes(mean, variance, count=120):
    """Values (N, K) and weights (K,) of a Gauss–Hermite rule for N(mean, variance), each (N,)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    at = np.asarray(mean)[:, None] + np.sqrt(np.asarray(variance))[:, None] * nodes
    return at, weights / weights.sum()


def one_layer(x, y=None, index=None, size=None):
    f = sparse_gp("gp", KERNEL, Z, jitter=0.0)
    with data_plate(size or x.shape[0], index):
        numpyro.sample("y", f(x).noisy(NOISE), obs=y)


@pytest.mark.slow
def test_training_finds_the_optimal_q():
    fit = fit_lbfgs(KEY, one_layer, X, Y, guide=Guide(one_layer, inducing=FullRank()), objective=PowerEP(0.0))
    assert -float(fit.losses[0, -1]) == pytest.approx(-13.077317303641, abs=1e-9)
    q = InducingGaussian(fit.params["gp/u_loc"], fit.params["gp/u_scale"])
    lower = cholesky(KERNEL(Z, Z), 0.0)[0]
    # where the slope is 1e-8 a parameter is good to 1e-7, its value of the bound to twice the digits
    expected = [0.1627700281, 0.2488245227, 0.2299346639]
    np.testing.assert_allclose(lower @ q.loc[0], expected, atol=1e-6)
    assert float(kl_divergence(q, PRIOR)) == pytest.approx(2.984379839743, abs=1e-6)


def test_what_the_layer_leaves_of_the_kernel():
    residual = float(function(KERNEL, Z, Q2)(X).residual.sum())
    assert residual == pytest.approx(0.929380972260, abs=1e-11)
    # log N(y; 0, Q + s²I), which is no bound: Titsias' without its trace
    dtc = collapsed_energy(KERNEL, Z, NOISE, X, Y, 0.0, jitter=0.0) + residual / (2 * NOISE)
    assert float(dtc) == pytest.approx(-8.430412442341, abs=1e-10)
    whitened = inverse_lower(cholesky(KERNEL(Z, Z), 0.0)[0]) @ jnp.array([0.3, -0.1, 0.4])
    np.testing.assert_allclose(whitened, [0.2631174058, -0.1368013460, 0.4086710633], atol=1e-10)


def test_second_layer_alone():
    def model(x, y):
        f = sparse_gp("gp", KERNEL, Z2, jitter=0.0)
        with data_plate(x.shape[0]):
            numpyro.sample("y", f(x).noisy(NOISE), obs=y)

    params = {"gp/u_loc": Q2.loc, "gp/u_scale": Q2.scale}
    found = -loss(PowerEP(0.0), params, model, Guide(model, inducing=FullRank()), X, Y)
    assert found == pytest.approx(-20.383079241999, abs=1e-10)


FIRST = function(INNER, Z, Q1, Linear(jnp.eye(1)))
SECOND = function(KERNEL, Z2, Q2)


def second_at(nodes):
    """The second layer's emission at the nodes, (N, K) made rows."""
    return SECOND(jnp.asarray(nodes).reshape(-1, 1)).noisy(NOISE)


def test_two_layers_by_quadrature():
    hidden = FIRST(X)
    nodes, weights = normal_nodes(hidden.mean[:, 0], hidden.variance[:, 0])
    inner = second_at(nodes).tempered(jnp.repeat(Y, nodes.shape[1], 0), 0.0).reshape(nodes.shape)
    likelihood = float((inner @ weights).sum())
    assert likelihood == pytest.approx(-19.239421222497, abs=1e-9)
    assert float(kl_divergence(Q1, PRIOR)) == pytest.approx(KL1, abs=1e-11)
    assert float(kl_divergence(Q2, PRIOR)) == pytest.approx(KL2, abs=1e-11)
    assert likelihood - KL1 - KL2 == pytest.approx(-25.953690037679, abs=1e-9)


@pytest.mark.slow
def test_density_of_two_layers_at_a_new_row():
    hidden = FIRST(jnp.zeros((1, 1)))
    nodes, weights = normal_nodes(hidden.mean[:, 0], hidden.variance[:, 0])
    inner = np.asarray(second_at(nodes).log_prob(jnp.full((nodes.size, 1), 0.2)))
    assert np.log(weights @ np.exp(inner)) == pytest.approx(-0.839279193310, abs=1e-9)
    # the mean of the logarithms, which is not what predict is to give
    assert weights @ inner == pytest.approx(-0.839587955307, abs=1e-9)

    def model(x, y=None, index=None, size=None):
        f1 = sparse_gp("layer1", INNER, Z, mean=Linear(jnp.eye(1)), jitter=0.0)
        f2 = sparse_gp("layer2", KERNEL, Z2, jitter=0.0)
        with data_plate(size or x.shape[0], index):
            h = numpyro.sample("layer1/h", f1(x).noisy(1e-12), infer={"role": "hidden"})
            numpyro.sample("y", f2(h).noisy(NOISE), obs=y)

    params = {
        "layer1/u_loc": Q1.loc,
        "layer1/u_scale": Q1.scale,
        "layer2/u_loc": Q2.loc,
        "layer2/u_scale": Q2.scale,
    }
    rows, draws = 1000, 200
    guide = Guide(model, hidden=DoublyStochastic())
    new = predict(
        KEY,
        Posterior(model, guide, params),
        jnp.zeros((rows, 1)),
        jnp.full((rows, 1), 0.2),
        num_samples=draws,
    )
    # every row draws its own h; log mean of 200 draws is 2e-6 too low
    se = new.log_density.std() / rows**0.5
    assert se < 7e-5
    assert abs(new.log_density.mean() - -0.839279193310) < 4 * se + 2e-6


@pytest.mark.parametrize(
    "objective, expected, digits",
    [
        (PowerEP(0.0), -2.447364942925, 0.0),
        (PowerEP(1.0, 1), -2.447364942925, 0.0),
        (PowerEP(1.0, 2), -2.094037822205, 0.0),
        (PowerEP(1.0, 5), -1.9772, 7e-4),
        (PowerEP(1.0, 50), -1.9347, 4e-4),
    ],
    ids=repr,
)
def test_alpha_one_is_the_importance_weighted_bound(objective, expected, digits):
    """y = 1.5, θ ~ N(0, 1), y | θ ~ N(θ, 0.25), q = N(0.9, 0.5), ln p(y) = −1.930510308862; θ a datum's own latent."""

    def model(y):
        with numpyro.plate("data", 1):
            theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, 0.5), obs=y)

    def guide(y):
        with numpyro.plate("data", 1):
            numpyro.sample("theta", dist.Normal(0.9, 0.5**0.5))

    draws = 40_000
    run = jax.jit(jax.vmap(lambda key: -objective.loss(key, {}, model, guide, jnp.array([1.5]))))
    values = run(jax.random.split(KEY, draws))
    assert abs(float(values.mean()) - expected) < 4 * (float(values.std()) / draws**0.5 + digits)
    assert expected < -1.930510308862


CENTRES = jnp.array([0.2, -0.3, 0.1, 0.5, -0.4])
VARIANCES = jnp.array([0.3, 0.2, 0.4, 0.1, 0.25])
LATENT_Z = jnp.array([[-0.8, -0.5], [0.5, 0.3], [1.6, 0.9]])
LATENT_KERNEL = RBF(1.3, jnp.array([0.7, 1.1]))


def test_latent_inputs():
    """f on (x_n, h_n), h_n ~ N(0, 1), q(h_n) = N(a_n, b_n), written by hand."""

    def model(x, y):
        f = sparse_gp("gp", LATENT_KERNEL, LATENT_Z, jitter=0.0)
        with data_plate(x.shape[0]):
            h = numpyro.sample("h", dist.Normal(jnp.zeros((5, 1)), 1.0).to_event(1))
            numpyro.sample("y", f(jnp.concatenate([x, h], 1)).noisy(NOISE), obs=y)

    def guide(x, y):
        numpyro.sample("gp/u", Q2, infer={"representation": "marginal"})
        with data_plate(5):
            numpyro.sample("h", dist.Normal(CENTRES[:, None], jnp.sqrt(VARIANCES)[:, None]).to_event(1))

    draws = 40_000
    run = jax.jit(jax.vmap(lambda key: -PowerEP(0.0).loss(key, {}, model, guide, X, Y)))
    values = run(jax.random.split(KEY, draws))
    assert abs(float(values.mean()) - -26.802041005177) < 4 * float(values.std()) / draws**0.5


@pytest.mark.slow
def test_latent_inputs_by_quadrature():
    f = function(LATENT_KERNEL, LATENT_Z, Q2)

    def tempered(nodes):
        rows = jnp.stack([jnp.repeat(X[:, 0], nodes.shape[1]), jnp.asarray(nodes).ravel()], 1)
        return np.asarray(f(rows).noisy(NOISE).tempered(jnp.repeat(Y, nodes.shape[1], 0), 0.0)).reshape(
            nodes.shape
        )

    nodes, weights = normal_nodes(CENTRES, VARIANCES)
    likelihood = (tempered(nodes) @ weights).sum()
    assert likelihood == pytest.approx(-23.471237017603, abs=1e-9)
    kl = dist.kl_divergence(dist.Normal(CENTRES, jnp.sqrt(VARIANCES)), dist.Normal(0.0, 1.0)).sum()
    assert likelihood - float(kl) - KL2 == pytest.approx(-26.802041005177, abs=1e-9)
    # importance-weighted without end: Σ_n ln ∫ p(h) exp t_0(y_n; x_n, h) dh
    nodes, weights = normal_nodes(jnp.zeros(5), jnp.ones(5), 200)
    assert np.log(np.exp(tempered(nodes)) @ weights).sum() - KL2 == pytest.approx(-24.509888424204, abs=1e-7)
