"""Inducing features, and functionals of f as inputs: by automatic differentiation, quadrature and dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from fast import few
from jaxtyping import TypeCheckError
from numpyro.handlers import seed, trace
from scipy.integrate import quad
from scipy.special import erf

from ppl_dgp.fit import fit_lbfgs
from ppl_dgp.gp.features import Joined, Points, covariance, cross
from ppl_dgp.gp.fourier import Fourier
from ppl_dgp.gp.functionals import Averages, Derivatives, box_averages, gradients
from ppl_dgp.gp.means import Linear
from ppl_dgp.gp.sparse_gp import SparseGP, sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF, Matern12, Matern32, Matern52
from ppl_dgp.kernels import Linear as LinearKernel
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.normal(size=(6, 2)))
Z = jnp.asarray(RANDOM.normal(size=(4, 2)))
DIRECTIONS = jnp.asarray(RANDOM.normal(size=(4, 2)))
LENGTHSCALE = jnp.array([0.7, 1.3])
KERNELS = {
    "rbf": RBF(1.4, LENGTHSCALE), "matern52": Matern52(1.4, LENGTHSCALE), "matern32": Matern32(1.4, LENGTHSCALE),
    "sum": RBF(0.5, 0.8) + LinearKernel(0.3) * Matern52(1.0, 1.1),
}  # fmt: skip
SLOPES = Derivatives(Z, DIRECTIONS)


def made(kernel, inducing, u=None, mean=None, outputs=1, name="f"):
    """The function as ``sparse_gp`` makes it, with a u of one's own."""
    with seed(rng_seed=0), trace():
        f = sparse_gp(name, kernel, inducing, outputs, mean=mean, jitter=0.0)
    return f if u is None else SparseGP(name, f.kernel, f.inducing, f.whiten, f.mean, u)


@pytest.mark.parametrize("name", few(KERNELS, 2, 3))
def test_slopes_are_those_of_automatic_differentiation(name):
    kernel = KERNELS[name]
    at = lambda x, z: kernel(x[None], z[None])[0, 0]
    along = jax.vmap(lambda x: jax.vmap(lambda z, d: jax.grad(at, 1)(x, z) @ d)(Z, DIRECTIONS))(X)
    np.testing.assert_allclose(cross(kernel, X, SLOPES), along, rtol=1e-10, atol=1e-12)
    # between different points: at one point the second derivative of a Matérn is a limit, see below
    mixed = lambda x, d, z, e: d @ jax.jacfwd(jax.grad(at, 1), 0)(x, z).T @ e
    others = Derivatives(X[:4], DIRECTIONS[::-1])
    both = jax.vmap(lambda x, d: jax.vmap(lambda z, e: mixed(x, d, z, e))(Z, DIRECTIONS))(
        X[:4], DIRECTIONS[::-1]
    )
    np.testing.assert_allclose(others.between(kernel, SLOPES), both, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name, share", [("rbf", 1.0), ("matern52", 5.0 / 3.0), ("matern32", 3.0)])
def test_variance_of_a_slope(name, share):
    """−k″(0): σ²/ℓ² times 1, 5/3 and 3."""
    expected = share * 1.4 * jnp.square(DIRECTIONS / LENGTHSCALE).sum(1)
    np.testing.assert_allclose(SLOPES.variance(KERNELS[name]), expected, rtol=1e-9)
    np.testing.assert_allclose(jnp.diagonal(SLOPES.covariance(KERNELS[name])), expected, rtol=1e-9)


def test_averages_are_integrals():
    """Of an RBF between and within intervals, by error functions."""
    low, high = jnp.array([[-1.0], [0.2]]), jnp.array([[0.5], [0.9]])
    kernel, ell = RBF(1.3, 0.6), 0.6
    of = box_averages(low, high, 20, integral=True)
    root = np.sqrt(2.0) * ell
    whole = lambda x, a, b: 1.3 * ell * np.sqrt(np.pi / 2.0) * (erf((b - x) / root) - erf((a - x) / root))
    x = np.array([[-0.3], [2.0]])
    expected = np.array([[whole(each[0], a, b) for a, b in ((-1.0, 0.5), (0.2, 0.9))] for each in x])
    np.testing.assert_allclose(cross(kernel, jnp.asarray(x), of), expected, rtol=1e-10)
    twice = [
        [
            quad(lambda t, a=a, b=b: whole(t, a, b), c, d, epsabs=1e-12)[0]
            for a, b in ((-1.0, 0.5), (0.2, 0.9))
        ]
        for c, d in ((-1.0, 0.5), (0.2, 0.9))
    ]
    np.testing.assert_allclose(of.covariance(kernel), twice, rtol=1e-10)
    np.testing.assert_allclose(of.variance(kernel), np.diag(twice), rtol=1e-10)
    widths = (high - low)[:, 0]
    np.testing.assert_allclose(
        cross(kernel, jnp.asarray(x), box_averages(low, high, 20)), expected / np.asarray(widths), rtol=1e-10
    )
    areas = box_averages(jnp.zeros((1, 2)), jnp.array([[2.0, 3.0]]), 3, integral=True)
    assert float(areas.of(lambda z: z[:, 0] ** 2 * z[:, 1])[0]) == pytest.approx(8.0 / 3.0 * 9.0 / 2.0)


FOURIER_ORDERS = {Matern12: 1, Matern32: 2, Matern52: 3}


@pytest.mark.parametrize("kind", FOURIER_ORDERS)
def test_fourier_features_are_orthogonal_in_the_kernels_space(kind):
    """⟨φ_m, φ_n⟩ of Hensman et al. (2018) by quadrature, and k itself where there are many of them."""
    low, high, variance, ell = -0.5, 1.7, 1.3, 0.4
    kernel, features = kind(variance, ell), Fourier(low, high, 3)
    order = FOURIER_ORDERS[kind]
    lam = np.sqrt(2.0 * order - 1.0) / ell
    omega = 2.0 * np.pi * np.arange(1, 4) / (high - low)
    # derivatives of φ at t, of order j
    waves = [(0.0, 0.0), *((w, 0.0) for w in omega), *((w, -np.pi / 2.0) for w in omega)]
    slope = lambda m, t, j: waves[m][0] ** j * np.cos(waves[m][0] * (t - low) + waves[m][1] + j * np.pi / 2.0)
    binomial = {1: (1, 1), 2: (1, 2, 1), 3: (1, 3, 3, 1)}[order]
    filtered = lambda m, t: sum(c * lam ** (order - j) * slope(m, t, j) for j, c in enumerate(binomial))
    share = {1: 0.5 / lam, 2: 0.25 / lam**3, 3: 3.0 / 16.0 / lam**5}[order]

    # trigonometric polynomials, of which the rule of Gauss and Legendre is exact to rounding
    nodes, shares = np.polynomial.legendre.leggauss(80)
    nodes, shares = low + (high - low) * (nodes + 1.0) / 2.0, shares * (high - low) / 2.0

    def product(m, n):
        inner = share * (shares * filtered(m, nodes) * filtered(n, nodes)).sum()
        at = lambda i, j: slope(m, low, i) * slope(n, low, j)
        ends = {
            1: lambda: at(0, 0),
            2: lambda: at(0, 0) + at(1, 1) / lam**2,
            3: lambda: (
                1.125 * at(0, 0)
                + 1.125 * at(2, 2) / lam**4
                + 3.0 / lam**2 * (at(1, 1) + (at(2, 0) + at(0, 2)) / 8.0)
            ),
        }
        return (inner + ends[order]()) / variance

    expected = np.array([[product(m, n) for n in range(7)] for m in range(7)])
    norms = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(features.covariance(kernel), expected / np.outer(norms, norms), atol=1e-9)
    x = jnp.linspace(low, high, 9)[:, None]
    plain = np.array([[slope(m, t, 0) for m in range(7)] for t in np.asarray(x[:, 0])])
    np.testing.assert_allclose(features.cross(kernel, x), plain / norms, atol=1e-10)
    # of many features the rest of the prior variance is nothing, in the middle of a wide interval
    many, inside = Fourier(-2.0, 3.2, 400), x[2:7]
    weights = many.cross(kernel, inside)
    recovered = weights @ jnp.linalg.solve(many.covariance(kernel), weights.T)
    np.testing.assert_allclose(recovered, kernel(inside, inside), atol={1: 2e-2, 2: 1e-4, 3: 1e-6}[order])


def test_values_as_functionals_are_inducing_points_to_the_digit():
    """Up to the order in which distances are added up."""
    u = Gaussian(jnp.asarray(RANDOM.normal(size=(2, 4))), jnp.full((2, 4), 0.3))
    mean = Linear(jnp.ones((2, 2)), jnp.array([0.5, -1.0]))
    plain = made(KERNELS["rbf"], Z, u, mean, 2)
    for inducing in (Points(Z), Averages(Z[:, None], jnp.ones((4, 1)))):
        same = made(KERNELS["rbf"], inducing, u, mean, 2)
        for one, other in zip(
            jax.tree.leaves(plain(X).variance), jax.tree.leaves(same(X).variance), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-12)
        np.testing.assert_allclose(plain(X).mean, same(X).mean, rtol=1e-12)
        np.testing.assert_allclose(plain.at_inducing(), same.at_inducing(), atol=1e-12)
        np.testing.assert_allclose(plain(Points(X)).variance, plain(X).variance, atol=1e-14)


@pytest.mark.slow
def test_marginals_are_those_of_dense_matrices():
    """Of values and of slopes, given moments of slopes and averages."""
    kernel = KERNELS["matern52"]
    inducing = Joined((SLOPES, Averages(jnp.stack([X[:3], X[3:]], 1), jnp.full((3, 2), 0.5))))
    mean = Linear(jnp.array([[0.4], [-0.2]]), jnp.array([0.3]))
    loc, scale = RANDOM.normal(size=7), 0.2 + RANDOM.random(7)
    f = made(kernel, inducing, Gaussian(jnp.asarray(loc)[None], jnp.asarray(scale)[None]), mean)
    kuu = np.asarray(inducing.covariance(kernel))
    lower = np.linalg.cholesky(kuu)
    for places in (X, gradients(X)):
        rows = np.asarray(cross(kernel, places, inducing)) @ np.linalg.inv(lower).T
        prior = kernel.diag(X) if places is X else gradients(X).variance(kernel)
        fixed = mean(X)[:, 0] if places is X else np.tile([0.4, -0.2], 6)
        found = f(places)
        np.testing.assert_allclose(found.mean[:, 0], fixed + rows @ loc, atol=1e-10)
        expected = prior - np.square(rows).sum(1) + np.square(rows) @ np.square(scale)
        np.testing.assert_allclose(found.variance[:, 0], expected, atol=1e-10)
    np.testing.assert_allclose(f.at_inducing()[0], inducing.of(mean)[:, 0] + lower @ loc, atol=1e-9)


@pytest.mark.slow
def test_slopes_of_outputs_with_kernels_of_their_own_and_their_joint_covariance():
    """Each is what a function of one output is; between rows it is the dense prior's less what u says."""
    kernels = [RBF(1.4, 0.7), RBF(0.3, 1.6)]
    u = jnp.asarray(RANDOM.normal(size=(2, 4)))
    both = made(kernels, Z, u, outputs=2)
    found, (mean, covariances) = both(gradients(X)), both.joint(gradients(X))
    for p, kernel in enumerate(kernels):
        one = made(kernel, Z, u[p : p + 1])(gradients(X))
        np.testing.assert_allclose(found.mean[:, p], one.mean[:, 0], atol=1e-10)
        np.testing.assert_allclose(found.variance[:, p], one.variance[:, 0], atol=1e-10)
        at_z = np.asarray(gradients(X).between(kernel, Z))
        left = gradients(X).covariance(kernel) - at_z @ np.linalg.solve(kernel(Z, Z), at_z.T)
        np.testing.assert_allclose(covariances[p], left, atol=1e-9)
        np.testing.assert_allclose(mean[:, p], one.mean[:, 0], atol=1e-10)


def test_boxes_between_whole_numbers():
    """Corners are no kind of number that nodes would be rounded to."""
    found = box_averages(np.array([[0], [1]]), np.array([[1], [3]]), 4)
    np.testing.assert_allclose(found.of(lambda z: z[:, 0] ** 2), [1.0 / 3.0, 13.0 / 3.0])


@pytest.mark.parametrize("name", few(["rbf", "sum"], 1))
def test_moments_of_uncertain_inputs_are_those_of_draws(name):
    """By Gauss–Hermite nodes of the input, of one dimension."""
    kernel = {"rbf": RBF(1.4, 0.7), "sum": RBF(0.5, 0.8) + LinearKernel(0.3)}[name]
    inducing = Joined((Derivatives(Z[:, :1], jnp.ones((4, 1))), box_averages(Z[:2, :1], Z[:2, :1] + 0.5, 5)))
    u = Gaussian(jnp.asarray(RANDOM.normal(size=(1, 6))), jnp.full((1, 6), 0.3))
    f = made(kernel, inducing, u, Linear(jnp.array([[0.4]]), jnp.array([0.1])))
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)
    found = f(Gaussian(jnp.array([[0.3]]), jnp.array([[0.5]])))
    at = f(jnp.asarray(0.3 + 0.5 * nodes)[:, None])
    shares = shares / shares.sum()
    mean = shares @ np.asarray(at.mean[:, 0])
    variance = shares @ np.asarray(at.variance[:, 0] + jnp.square(at.mean[:, 0])) - mean**2
    assert float(found.mean[0, 0]) == pytest.approx(mean, abs=1e-10)
    assert float(found.variance[0, 0]) == pytest.approx(variance, abs=1e-9)


@pytest.mark.slow
def test_values_and_slopes_that_were_measured_have_the_exact_evidence():
    """With u at everything that was observed the bound is the log marginal likelihood of the dense model."""
    x = jnp.linspace(-1.0, 1.0, 5)[:, None]
    y, slopes = jnp.sin(2.0 * x), 2.0 * jnp.cos(2.0 * x)
    kernel, along = RBF(1.0, 0.8), Derivatives(x, jnp.ones((5, 1)))

    def model(x, y=None, index=None, size=None):
        f = sparse_gp("f", kernel, Joined((Points(x), along)))
        numpyro.sample("slopes", f(along).noisy(0.02).to_event(1), obs=slopes)
        with data_plate(x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(0.05), obs=y)

    fit = fit_lbfgs(KEY, model, x, y, guide=Guide(model), objective=PowerEP(0.0))
    both = Joined((Points(x), along)).covariance(kernel) + jnp.diag(jnp.repeat(jnp.array([0.05, 0.02]), 5))
    seen = jnp.concatenate([y, slopes])[:, 0]
    exact = dist.MultivariateNormal(jnp.zeros(10), both).log_prob(seen)
    assert -fit.losses[0, -1] == pytest.approx(float(exact), abs=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="directions: found shape"):
        Derivatives(Z, DIRECTIONS[:2])
    with pytest.raises(ValueError, match="weights: found shape"):
        Averages(Z[:, None], jnp.ones((4, 2)))
    with pytest.raises(ValueError, match="high: found -1"):
        Fourier(0.0, -1.0, 3)
    with pytest.raises(ValueError, match="frequencies: found 0"):
        Fourier(0.0, 1.0, 0)
    with pytest.raises(ValueError, match="within the interval of the Fourier features, 0 to 1"):
        cross(Matern12(1.0, 1.0), jnp.array([[1.5]]), Fourier(0.0, 1.0, 3))
    with pytest.raises(TypeError, match="kernel: found RBF, expected Matern12"):
        covariance(RBF(1.0, 1.0), Fourier(0.0, 1.0, 3))
    with pytest.raises(ValueError, match="expected a kernel of the one input"):
        covariance(Matern32(1.0, 1.0, active_dims=(1,)), Fourier(0.0, 1.0, 3))
    for rough in (Matern12(1.0, 1.0), RBF(1.0, 1.0) + LinearKernel(1.0) * Matern12(1.0, 1.0)):
        for slopes in (SLOPES, Joined((Points(Z), SLOPES))):
            with pytest.raises(ValueError, match="kernel: found Matern12, of which f has no slopes"):
                made(rough, slopes)
            with pytest.raises(ValueError, match="of which f has no slopes"):
                slopes.variance(rough)
    with pytest.raises(ValueError, match=r"parts: found functionals of \[2, 1\] inputs"):
        Joined((SLOPES, Points(Z[:, :1]))).shape  # noqa: B018
    with pytest.raises((ValueError, TypeCheckError), match=r"low: found shape \(2,\)|low"):
        box_averages(jnp.zeros(2), jnp.ones(2))
    f = made(Matern12(1.0, 1.0), Fourier(0.0, 1.0, 3))
    with pytest.raises(ValueError, match="found Fourier, expected points or functionals"):
        f(Gaussian(jnp.array([[0.5]]), jnp.array([[0.1]])))
    with pytest.raises(ValueError, match="these are for inducing outputs alone"):
        cross(Matern12(1.0, 1.0), Fourier(0.0, 1.0, 3), Z)
    f = made(KERNELS["rbf"], Z)
    with pytest.raises(ValueError, match="found functionals beside other inputs in one sum"):
        f(SLOPES) + f(Z)
    with pytest.raises(ValueError, match="with a kernel for each output"):
        made([RBF(1.0, 1.0), RBF(2.0, 1.0)], SLOPES, outputs=2)


def test_functionals_are_scaled_shifted_and_added():
    """c L f + L g + b, of one set of functionals, by their joint covariances."""
    f, g = (made(KERNELS["rbf"], Z, name=name) for name in ("f", "g"))
    slopes = gradients(X[:2])
    total = 2.0 * f(slopes) + g(slopes) + 1.0
    (mean, of_f), (_, of_g) = f.joint(slopes), g.joint(slopes)
    np.testing.assert_allclose(total.joint()[1], 4.0 * of_f + of_g, atol=1e-12)
    np.testing.assert_allclose(total.joint()[0], 2.0 * mean + g(slopes).mean + 1.0, atol=1e-12)
    np.testing.assert_allclose(total.variance[:, 0], np.diagonal(total.joint()[1][0]), atol=1e-10)
    twice = f(slopes) + f(slopes)
    np.testing.assert_allclose(twice.joint()[1], 4.0 * of_f, atol=1e-12)
    np.testing.assert_allclose(twice.variance[:, 0], 4.0 * np.diagonal(of_f[0]), atol=1e-10)
