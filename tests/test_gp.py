"""One and two sparse layers against golden numbers of an independent NumPy implementation (data A), without jitter."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from compiled import loss
from fast import few
from jaxtyping import TypeCheckError
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from scipy import stats

from ppl_dgp.gp.means import Linear, Zero
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.guides import Conditional, DoublyStochastic, FullRank, Guide
from ppl_dgp.kernels import RBF
from ppl_dgp.models import exact_gp_regression, sparse_gp_regression
from ppl_dgp.numerics.gaussian import Gaussian, InducingGaussian
from ppl_dgp.numerics.linalg import cholesky, inverse_lower
from ppl_dgp.objectives import BlackBoxAlpha, Collapsed, PowerEP, collapsed_energy

X = jnp.array([-1, -0.3, 0.4, 1.2, 2])[:, None]
Y = jnp.array([0.5, -0.2, 0.1, 0.9, -0.4])[:, None]
Z = jnp.array([-0.8, 0.5, 1.6])[:, None]
KERNEL, NOISE = RBF(1.3, 0.7), 0.1
M_U = jnp.array([0.3, -0.1, 0.4])
L_U = jnp.array([[0.5, 0, 0], [0.1, 0.6, 0], [-0.2, 0.05, 0.4]])
EXACT, TITSIAS, FITC, HALF = -5.600379180933, -13.077317303641, -6.096544945625, -7.963844158032
KEY = jax.random.PRNGKey(0)

MODEL = sparse_gp_regression(3, jitter=0.0)
GUIDE = Guide(MODEL, inducing=FullRank())
HYPER = {
    "gp/inducing": Z,
    "gp/variance": jnp.array(1.3),
    "gp/lengthscale": jnp.array([0.7]),
    "likelihood/noise": jnp.array(0.1),
}


def whitened(loc, scale, z=Z):
    inverse = inverse_lower(cholesky(KERNEL(z, z), 0.0)[0])
    return {
        **HYPER,
        "gp/inducing": z,
        "gp/u_loc": (inverse @ loc)[None],
        "gp/u_scale": (inverse @ scale)[None],
    }


def optimal(z=Z, alpha=0.0):
    """The maximiser of PowerEP's bound: the posterior of v under heteroscedastic noise s² + αD."""
    weights = KERNEL(X, z) @ inverse_lower(cholesky(KERNEL(z, z), 0.0)[0]).T
    total = NOISE + alpha * (KERNEL.diag(X) - jnp.square(weights).sum(1))
    precision = jnp.eye(len(z)) + weights.T @ (weights / total[:, None])
    covariance = jnp.linalg.inv(precision)
    loc = covariance @ weights.T @ (Y[:, 0] / total)
    return {
        **HYPER,
        "gp/inducing": z,
        "gp/u_loc": loc[None],
        "gp/u_scale": jnp.linalg.cholesky(covariance)[None],
    }


def bound(params, objective, model=MODEL, guide=GUIDE, x=X, y=Y):
    return -loss(objective, params, model, guide, x, y)


FIXED = whitened(M_U, L_U)


def test_exact_gp():
    params = {
        "gp/variance": jnp.array(1.3),
        "gp/lengthscale": jnp.array([0.7]),
        "likelihood/noise": jnp.array(0.1),
    }
    found = -loss(Trace_ELBO(), params, exact_gp_regression(), lambda x, y: None, X, Y)
    assert found == pytest.approx(EXACT, abs=1e-10)


@pytest.mark.parametrize("alpha, expected", [(0.0, TITSIAS), (0.5, HALF), (1.0, FITC), (1e-7, -13.077315248)])
def test_collapsed_energy(alpha, expected):
    tolerance = 1e-9 if alpha != 1e-7 else 1e-8
    energy = collapsed_energy(KERNEL, Z, NOISE, X, Y, alpha, jitter=0.0)
    assert float(energy) == pytest.approx(expected, abs=tolerance)
    assert bound(FIXED, Collapsed(alpha)) == pytest.approx(expected, abs=tolerance)
    # one column more of the same targets, noise per row and per column
    twice = jnp.concatenate([Y, Y], 1)
    for noise in (jnp.array([0.1, 0.1]), jnp.full((5, 1), 0.1), jnp.full((5, 2), 0.1)):
        energy = collapsed_energy(KERNEL, Z, noise, X, twice, alpha, jitter=0.0)
        assert float(energy) == pytest.approx(2 * expected, abs=2 * tolerance)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_collapsed_energy_is_exact_with_inducing_inputs_at_the_data(alpha):
    mean = Linear(jnp.array([[0.4]]), jnp.array([0.2]))
    energy = collapsed_energy(KERNEL, X, NOISE, X, Y, alpha, mean, jitter=0.0)
    covariance = KERNEL(X, X) + NOISE * jnp.eye(5)
    expected = stats.multivariate_normal.logpdf(Y[:, 0], mean(X)[:, 0], covariance)
    assert float(energy) == pytest.approx(expected, abs=1e-9)


def test_collapsed_refuses_what_has_no_closed_form():
    with pytest.raises(ValueError, match="alpha"):
        Collapsed(1.5)
    with pytest.raises(ValueError, match="minibatch"):
        index = jnp.array([0, 2])
        Collapsed().loss(KEY, FIXED, MODEL, GUIDE, X[index], Y[index], index=index, size=5)


@pytest.mark.slow
@pytest.mark.parametrize("alpha, expected", few([(0.0, TITSIAS), (0.5, HALF), (1.0, FITC)], 1))
def test_the_best_power_ep_is_the_collapsed_energy(alpha, expected):
    best = optimal(alpha=alpha)
    assert bound(best, PowerEP(alpha)) == pytest.approx(expected, abs=1e-9)
    # and it is a maximum: the slope vanishes, and no step goes up
    slope = jax.grad(lambda q: PowerEP(alpha).loss(KEY, {**best, **q}, MODEL, GUIDE, X, Y))(
        {name: best[name] for name in ("gp/u_loc", "gp/u_scale")}
    )
    assert max(float(jnp.abs(jnp.tril(s)).max()) for s in slope.values()) < 1e-9
    assert bound(FIXED, PowerEP(alpha)) < expected


def test_power_ep_is_exact_with_inducing_inputs_at_the_data_and_black_box_is_not():
    assert bound(optimal(X), PowerEP(0.0)) == pytest.approx(EXACT, abs=1e-8)
    assert bound(optimal(X, 0.5), PowerEP(0.5)) == pytest.approx(EXACT, abs=1e-8)
    assert bound(optimal(X, 0.5), BlackBoxAlpha(0.5)) > EXACT + 0.05


def test_bounds_of_a_fixed_q():
    kl = 1.410948143219
    assert bound(FIXED, PowerEP(0.0)) == pytest.approx(-15.615467077496 - kl, abs=1e-10)
    assert bound(FIXED, BlackBoxAlpha(0.0)) == pytest.approx(-17.026415220715, abs=1e-10)
    # θ outside the logarithm at α = 1 is the bound of the FITC model, inside it is the predictive density
    assert bound(FIXED, PowerEP(1.0)) == pytest.approx(-6.100275501956 - kl, abs=1e-10)
    assert bound(FIXED, BlackBoxAlpha(1.0)) == pytest.approx(-4.109472421328 - kl, abs=1e-10)
    prior = {**HYPER, "gp/u_loc": jnp.zeros((1, 3)), "gp/u_scale": jnp.eye(3)[None]}
    assert bound(prior, PowerEP(0.0)) == pytest.approx(-37.688229933538, abs=1e-10)


@pytest.mark.slow
def test_numpyros_own_elbo_bounds_the_fitc_model():
    losses = jax.vmap(lambda key: Trace_ELBO().loss(key, FIXED, MODEL, GUIDE, X, Y))(
        jax.random.split(KEY, 4000)
    )
    se = float(losses.std()) / np.sqrt(4000)
    assert abs(-float(losses.mean()) - (-6.100275501956 - 1.410948143219)) < 4 * se


def test_predictive_moments():
    inverse = inverse_lower(cholesky(KERNEL(Z, Z), 0.0)[0])
    moments = Gaussian(FIXED["gp/u_loc"], FIXED["gp/u_scale"])
    f = SparseGP("f", KERNEL, Z, inverse, Zero(), moments)
    mean = [0.3086603812, 0.1271155158, -0.1083002946, 0.2353099572, 0.3836573385]
    variance = [0.3224117647, 0.5453502645, 0.3927393246, 0.3562007423, 0.4958092323]
    np.testing.assert_allclose(f(X).mean[:, 0], mean, atol=1e-10)
    np.testing.assert_allclose(f(X).variance[:, 0], variance, atol=1e-10)
    new = jnp.array([-0.5, 0, 0.9])[:, None]
    centre, covariance = f.joint(new)
    np.testing.assert_allclose(centre[:, 0], [0.2175500492, -0.0166871670, 0.0554016463], atol=1e-9)
    np.testing.assert_allclose(jnp.diag(covariance[0]), [0.399910387, 0.5851209459, 0.4171409001], atol=1e-9)
    off = covariance[0][jnp.triu_indices(3, 1)]
    np.testing.assert_allclose(off, [0.3977333386, -0.0467053381, 0.0165716873], atol=1e-9)


@pytest.mark.parametrize("diagonal", [False, True])
def test_moments_of_u_are_those_of_its_draws(diagonal):
    scale = jnp.array([[0.5, 0.6, 0.4], [0.1, 0.9, 1.2]]) if diagonal else jnp.stack([L_U, 2 * L_U])
    q = InducingGaussian(jnp.stack([M_U, -M_U]), scale)
    inverse = inverse_lower(cholesky(KERNEL(Z, Z), 0.0)[0])
    make = lambda u: SparseGP("f", KERNEL, Z, inverse, Zero(2), u)(X)
    draws = jax.vmap(lambda u: make(u).mean)(q.sample(KEY, (20_000,)))
    exact = make(q.moments)
    assert (
        float(jnp.abs(draws.mean(0) - exact.mean).max()) < 4 * float(exact.from_u.max()) ** 0.5 / 20_000**0.5
    )
    np.testing.assert_allclose(draws.var(0), exact.from_u, rtol=5 * (2 / 20_000) ** 0.5)
    # one draw per datum uses row n's draw at row n
    local = q.sample(KEY, (5,))
    each = jnp.concatenate([make(u).mean[n : n + 1] for n, u in enumerate(local)])
    np.testing.assert_allclose(make(local).mean, each, atol=1e-12)


LAYER2 = jnp.array([-1, 0.4, 1.8])[:, None]


def two_layers(x, y=None, index=None, size=None):
    """Golden numbers take f¹ itself as hidden variable: noise of variance 1e-12."""
    f1 = sparse_gp("layer1", RBF(0.5, 1.0), Z, mean=Linear(jnp.eye(1)), jitter=0.0)
    f2 = sparse_gp("layer2", KERNEL, LAYER2, jitter=0.0)
    with numpyro.plate("data", x.shape[0]):
        h = numpyro.sample("layer1/h", f1(x).noisy(1e-12), infer={"role": "hidden"})
        numpyro.sample("y", f2(h).noisy(NOISE), obs=y)


Q_TWO = {
    "layer1/u_loc": jnp.array([[0.2, -0.1, 0.3]]),
    "layer1/u_scale": 0.1 * jnp.eye(3)[None],
    "layer2/u_loc": jnp.array([[0.3, -0.2, 0.5]]),
    "layer2/u_scale": L_U[None],
}


@pytest.mark.parametrize("objective", [PowerEP(0.0, 4000), BlackBoxAlpha(0.0, 4000)], ids=repr)
def test_two_layers(objective):
    guide = Guide(two_layers, hidden=DoublyStochastic())
    # the standard deviation of one particle of this bound is 1.3 nats
    assert abs(bound(Q_TWO, objective, two_layers, guide) - -25.953690037679) < 4 * 1.3 / 4000**0.5


def test_first_of_two_layers():
    guide = Guide(two_layers, hidden=DoublyStochastic())
    q = handlers.substitute(handlers.seed(guide, KEY), data=Q_TWO)
    u = handlers.trace(q).get_trace(X, Y)["layer1/u"]["fn"].moments
    inverse = inverse_lower(cholesky(RBF(0.5, 1.0)(Z, Z), 0.0)[0])
    marginal = SparseGP("layer1", RBF(0.5, 1.0), Z, inverse, Linear(jnp.eye(1)), u)(X)
    mean = [-0.8432185661, -0.2303082083, 0.3959320835, 1.280115967, 2.1655752697]
    variance = [0.0175296926, 0.0327925389, 0.0063673593, 0.019836341, 0.0523279589]
    np.testing.assert_allclose(marginal.mean[:, 0], mean, atol=1e-9)
    np.testing.assert_allclose(marginal.variance[:, 0], variance, atol=1e-9)


def test_bad_inputs_name_the_argument():
    # the shapes checked in tests may speak first
    with pytest.raises((ValueError, TypeCheckError), match="inducing"):
        handlers.seed(sparse_gp, KEY)("f", KERNEL, Z[:, 0])
    with pytest.raises(ValueError, match="num_outputs"):
        handlers.seed(sparse_gp, KEY)("f", KERNEL, Z, 0)
    f = handlers.seed(sparse_gp, KEY)("f", KERNEL, Z)
    with pytest.raises((ValueError, TypeCheckError), match="inputs|Float"):
        f(jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match="inputs of shape"):
        f(Gaussian(jnp.zeros((1, 3)), jnp.ones((1, 3))))
    with pytest.raises(TypeError, match="moments of the inputs"):
        f(Gaussian(jnp.zeros((1, 1)), jnp.ones((1, 1)))).rows  # noqa: B018
    with pytest.raises(ValueError, match="Conditional"):
        Conditional(free=True, tied=True)
    for other in ("free", "tied", "across_outputs"):
        with pytest.raises(ValueError, match="Conditional: found markov=True beside"):
            Conditional(markov=True, **{other: True})
