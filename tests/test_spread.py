"""How much a kernel varies at narrow inputs, and bounds of layers there, to digits that differences would lose."""

from decimal import Decimal, localcontext
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpyro.handlers import seed

from ppl_dgp.expectations import kernel_covariance_quadratic, kernel_covariance_sum, psi1, psi2_sum
from ppl_dgp.gp.features import cross
from ppl_dgp.gp.moment_matching import matched
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF, Linear
from ppl_dgp.numerics.gaussian import Gaussian
from ppl_dgp.objectives.deterministic_inputs import DeterministicInputs
from ppl_dgp.objectives.factors import Factors
from ppl_dgp.objectives.regression import GaussianInputs, Regression

ELL = np.array([0.5, 1.0, 3.0])
random = np.random.default_rng(0)
MEAN, Z, WEIGHTS = random.normal(size=(7, 3)), random.normal(size=(5, 3)), random.uniform(size=(7, 2))


def scales(size: float, full: bool) -> np.ndarray:
    draws = np.random.default_rng(1)
    deviations = size * draws.uniform(0.5, 1.0, (7, 3))
    lower = np.tril(draws.normal(size=(7, 3, 3)), -1) * size
    return lower + deviations[:, :, None] * np.eye(3) if full else deviations


def in_many_digits(mean: np.ndarray, scale: np.ndarray, z: np.ndarray, other: np.ndarray) -> float:
    """⟨k k'⟩ − ⟨k⟩⟨k'⟩ as Titsias & Lawrence (2010) have them, of one row of independent dimensions."""
    of = lambda numbers: [Decimal(float(number)) for number in numbers]
    with localcontext(prec=50):
        m, v, squares = of(mean), [each**2 for each in of(scale)], [each**2 for each in of(ELL)]
        dims = range(len(m))

        def one(z: np.ndarray) -> Decimal:
            far = sum((m[d] - of(z)[d]) ** 2 / (v[d] + squares[d]) for d in dims)
            return (-far / 2).exp() / prod(1 + v[d] / squares[d] for d in dims).sqrt()

        apart = sum((of(z)[d] - of(other)[d]) ** 2 / (4 * squares[d]) for d in dims)
        about = sum((m[d] - (of(z)[d] + of(other)[d]) / 2) ** 2 / (2 * v[d] + squares[d]) for d in dims)
        two = (-apart - about).exp() / prod(1 + 2 * v[d] / squares[d] for d in dims).sqrt()
        return float(two - one(z) * one(other))


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("full", [False, True], ids=["independent", "correlated"])
def test_nothing_is_lost_where_inputs_are_narrow(size: float, full: bool) -> None:
    scale = scales(size, False)
    expected = np.array([[in_many_digits(MEAN[0], scale[0], z, other) for z in Z] for other in Z])
    given = scale[:, :, None] * np.eye(3) if full else scale
    inputs, kernel = Gaussian(jnp.asarray(MEAN[:1]), jnp.asarray(given[:1])), RBF(1.0, jnp.asarray(ELL))
    left = np.asarray(kernel_covariance_sum(kernel, inputs, jnp.asarray(Z))) - expected
    if full:
        # determinants of whole matrices have an error of 1e-16, a multiple of ψ1ψ1ᵀ, which whitening leaves as it is
        assert np.abs(left).max() < 1e-15
        known = np.outer(*[psi1(kernel, inputs, jnp.asarray(Z))[0]] * 2)
        left = left - (left * known).sum() / np.square(known).sum() * known
    assert np.abs(left).max() < 1e-13 * np.abs(expected).max() + 1e-30


@pytest.mark.parametrize("full", [False, True], ids=["independent", "correlated"])
@pytest.mark.parametrize(
    "kernel", [RBF(1.7, jnp.asarray(ELL)), RBF(1.3, 0.9) * Linear(0.2)], ids=["rbf", "product"]
)
def test_it_is_the_difference_with_its_gradient(kernel: RBF, full: bool) -> None:
    def whole(mean, scale, z):  # type: ignore[no-untyped-def]
        found = kernel_covariance_sum(kernel, Gaussian(mean, scale), z, jnp.asarray(WEIGHTS), block=3)
        return jnp.sin(found).sum()

    def apart(mean, scale, z):  # type: ignore[no-untyped-def]
        inputs, weights = Gaussian(mean, scale), jnp.asarray(WEIGHTS)
        one = psi1(kernel, inputs, z)
        found = psi2_sum(kernel, inputs, z, weights) - jnp.einsum("nc,nm,nk->cmk", weights, one, one)
        return jnp.sin(found).sum()

    at = (jnp.asarray(MEAN), jnp.asarray(scales(0.7, full)), jnp.asarray(Z))
    for mine, theirs in zip(
        jax.value_and_grad(whole, (0, 1, 2))(*at)[1],
        jax.value_and_grad(apart, (0, 1, 2))(*at)[1],
        strict=True,
    ):
        assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


def test_points_vary_in_nothing_and_have_no_slope() -> None:
    kernel = RBF(1.7, jnp.asarray(ELL))
    for scale in (jnp.zeros((7, 3)), jnp.zeros((7, 3, 3))):
        total = lambda scale: kernel_covariance_sum(
            kernel, Gaussian(jnp.asarray(MEAN), scale), jnp.asarray(Z)
        ).sum()
        assert_allclose(jax.grad(total)(scale), 0.0, atol=1e-14)
        assert_allclose(total(scale), 0.0, atol=1e-14)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("active", [None, (0, 2)], ids=["all", "some"])
def test_wide_inputs_lose_nothing_and_have_slopes(size: float, active: tuple[int, ...] | None) -> None:
    kernel = RBF(1.7, jnp.asarray(ELL if active is None else ELL[:2]), active)
    z = jnp.asarray(Z)

    def total(scale):  # type: ignore[no-untyped-def]
        return kernel_covariance_sum(kernel, Gaussian(jnp.asarray(MEAN), scale), z)

    for full in (False, True):
        scale = jnp.asarray(scales(size, full))
        inputs = Gaussian(jnp.asarray(MEAN), scale)
        one = psi1(kernel, inputs, z)
        # ⟨k⟩⟨k'⟩ is far below ⟨k k'⟩ here, so that the difference has all digits
        assert_allclose(total(scale), psi2_sum(kernel, inputs, z) - one.T @ one, rtol=1e-7, atol=1e-25)
        assert jnp.isfinite(jax.grad(lambda scale: total(scale).sum())(scale)).all()


def test_single_precision_has_no_overflow() -> None:
    z = jnp.linspace(-40.0, 40.0, 9, dtype=jnp.float32)[:, None]
    for scale in (jnp.full((3, 1), 0.7, jnp.float32), jnp.full((3, 1, 1), 0.7, jnp.float32)):
        inputs = Gaussian(jnp.array([[-35.0], [0.0], [28.0]], jnp.float32), scale)
        assert jnp.isfinite(kernel_covariance_sum(RBF(1.7, 1.0), inputs, z)).all()


def layer(variance: float, scale: float, noise: float) -> tuple[Regression, Regression]:
    """A layer of 100 inducing inputs that nearly coincide, at inputs of a width, and at their means."""
    draws = np.random.default_rng(2)
    x = jnp.asarray(draws.normal(size=(200, 2)))
    y = jnp.asarray(np.sin(2.0 * np.asarray(x)).sum(1, keepdims=True))
    inducing = jnp.asarray(draws.normal(size=(100, 2)))
    f = seed(sparse_gp, 0)("gp", RBF(variance, 1.5), inducing)
    inputs = Gaussian(x, jnp.full_like(x, scale))
    phi = psi1(f.kernel, inputs, inducing) @ f.whiten.T
    uncertain = GaussianInputs.of(phi, f, inputs, None, Gaussian(y, jnp.zeros_like(y)))
    certain = DeterministicInputs(f.kernel, f.inducing, f.whiten, x, y, jnp.zeros_like(y))
    noises, factors = jnp.full((1, 1), noise), Factors(0.0)
    return Regression(uncertain, noises, factors), Regression(certain, noises, factors)


def test_a_layer_at_narrow_inputs_is_the_layer_at_their_means() -> None:
    uncertain, certain = layer(9.0, 1e-9, 5e-5)
    # whitened on both sides, Σψ2 has an error of 1e-16 / jitter, times Σ variance / noise: nats
    assert_allclose(uncertain.energy(), certain.energy(), rtol=1e-9)
    assert_allclose(uncertain.optimum().mean, certain.optimum().mean, rtol=1e-4, atol=1e-4)


def test_a_bound_does_not_move_by_rounding() -> None:
    energies = [float(layer(9.0 * (1.0 + step * 1e-14), 1e-3, 5e-5)[0].energy()) for step in range(5)]
    assert np.ptp(energies) < 1e-4


@pytest.mark.parametrize("variance", [1e12, 1e20, 1e28])
def test_a_bound_that_rounding_has_taken_is_below_its_top(variance: float) -> None:
    # where no row has any residual and u costs nothing: −½ log 2πs² of each
    noise = 1e-12
    uncertain, _ = layer(variance, 3.0, noise)
    assert not uncertain.energy() > -100.0 * np.log(2.0 * np.pi * noise)


def test_contracted_with_matrices_it_is_the_same() -> None:
    matrices = jnp.asarray(np.random.default_rng(4).normal(size=(2, 5, 5)))
    for kernel in (RBF(1.7, jnp.asarray(ELL)), RBF(1.3, 0.9) * Linear(0.2)):
        for full in (False, True):
            inputs = Gaussian(jnp.asarray(MEAN), jnp.asarray(scales(0.7, full)))
            found = kernel_covariance_quadratic(kernel, inputs, jnp.asarray(Z), matrices, block=3)
            each = kernel_covariance_sum(kernel, inputs, jnp.asarray(Z), jnp.eye(7))
            assert_allclose(found, jnp.einsum("bmn,pmn->bp", each, matrices), rtol=1e-10, atol=1e-13)


def test_moments_at_narrow_inputs_are_those_of_points() -> None:
    # whitened u of tens of units, known to a thousandth, as after fits of a function that bends and has little noise
    regression, _ = layer(9.0, 1e-9, 5e-5)
    u = Gaussian(30.0 * jnp.asarray(random.normal(size=(1, 100))), jnp.full((1, 100), 1e-3))
    f = regression.features.function._replace(u=u)
    inputs = regression.features.inputs
    found = matched(f, inputs)
    phi = cross(f.kernel, inputs.mean, f.inducing) @ f.whiten.T
    assert_allclose(found.mean, phi @ f.u.mean.T, rtol=1e-9)
    assert_allclose(found.residual[:, 0], 9.0 - jnp.square(phi).sum(1), atol=1e-12)
    # whitened on both sides, ψ2 has an error of 1e-16 / jitter, times |µ|²: far above these
    assert_allclose(found.beyond, f.u.projected_variance(phi), rtol=1e-4, atol=1e-12)
