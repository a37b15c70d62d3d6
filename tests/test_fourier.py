"""Fourier features of several inputs, their roots and sums over rows: dense matrices, exact GPs, bounds with rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace

from ppl_dgp.gp.features import covariance, cross
from ppl_dgp.gp.fourier import Fourier
from ppl_dgp.gp.fourier_dimensions import FourierProduct, FourierSum
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.kernels import RBF, Matern12, Matern32, Matern52
from ppl_dgp.numerics.structured_root import BlockRoot, InverseRoot, KroneckerRoot, LowRankRoot

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
LEFT = Matern32(1.3, 0.4, active_dims=(0,))
RIGHT = Matern52(0.8, 0.7, active_dims=(1,))
PARTS = (Fourier(-1.5, 1.5, 3), Fourier(-2.0, 2.0, 2))
CASES = {
    "matern12": (Matern12(1.3, 0.5), Fourier(-1.5, 1.5, 4)),
    "matern32": (Matern32(1.3, 0.5), Fourier(-1.5, 1.5, 4)),
    "matern52": (Matern52(1.3, 0.5), Fourier(-1.5, 1.5, 4)),
    "product": (RIGHT * LEFT, FourierProduct(PARTS)),
    "sum": (LEFT + RIGHT, FourierSum(PARTS)),
}


def low_rank(size, rank):
    return LowRankRoot.of(
        jnp.asarray(0.1 + RANDOM.random(size)), jnp.asarray(3.0 * RANDOM.normal(size=(size, rank)))
    )


ROOTS = {
    **{f"rank {rank}": lambda rank=rank: low_rank(6, rank) for rank in (0, 1, 3)},
    "kronecker": lambda: KroneckerRoot((low_rank(2, 1), low_rank(3, 2), low_rank(2, 0))),
    "blocks": lambda: BlockRoot((low_rank(2, 1), low_rank(4, 3))),
}


@pytest.mark.parametrize("name", ROOTS)
def test_products_with_a_root_are_those_of_its_matrix(name):
    root = ROOTS[name]()
    dense, x = np.asarray(root.to_dense()), RANDOM.normal(size=(3, root.size))
    for inverse in (False, True):
        for transposed in (False, True):
            matrix = np.linalg.inv(dense) if inverse else dense
            matrix = matrix.T if transposed else matrix
            found = root.product(jnp.asarray(x), inverse=inverse, transposed=transposed)
            np.testing.assert_allclose(found, x @ matrix.T, atol=1e-10)
    assert float(root.log_det) == pytest.approx(np.linalg.slogdet(dense @ dense.T)[1], abs=1e-10)
    factor, inverse = InverseRoot(root), np.linalg.inv(dense)
    for left, right in ((factor, inverse), (factor.T, inverse.T)):
        np.testing.assert_allclose(jnp.asarray(x) @ left, x @ right, atol=1e-10)
        np.testing.assert_allclose(left @ jnp.asarray(x.T), right @ x.T, atol=1e-10)
        np.testing.assert_allclose(left.to_dense(), right, atol=1e-10)
        np.testing.assert_allclose(left @ left.T, right @ right.T, atol=1e-10)


def test_a_root_is_of_a_diagonal_and_columns():
    diagonal, columns = 0.1 + RANDOM.random(6), 3.0 * RANDOM.normal(size=(6, 3))
    # a column twice, and one of zeros, are no trouble
    for given in (columns, columns[:, [0, 0]], np.zeros((6, 2))):
        dense = LowRankRoot.of(jnp.asarray(diagonal), jnp.asarray(given)).to_dense()
        np.testing.assert_allclose(dense @ dense.T, np.diag(diagonal) + given @ given.T, atol=1e-10)


def at(features, rows=7):
    low, high = np.asarray(features.corner), -np.asarray(features.corner)
    return jnp.asarray(low + (high - low) * RANDOM.random((rows, len(low))))


@pytest.mark.parametrize("name", CASES)
def test_features_have_a_root_of_their_covariance(name):
    kernel, features = CASES[name]
    dense = features.root(kernel).to_dense()
    np.testing.assert_allclose(dense @ dense.T, covariance(kernel, features), atol=1e-10)
    assert features.shape == (len(dense), len(features.corner))
    with seed(rng_seed=0), trace() as sites:
        f = sparse_gp("f", kernel, features)
    assert float(sites["f/jitter"]["value"]) == 0.0
    # u = W v: the prior of the features, and Q of Nyström
    x = at(features)
    weights = f(x).weights
    phi = np.asarray(cross(kernel, x, features))
    nystrom = phi @ np.linalg.solve(covariance(kernel, features), phi.T)
    np.testing.assert_allclose(weights @ weights.T, nystrom, atol=1e-10)
    np.testing.assert_allclose(f.at_inducing()[0], dense @ f.u[0], atol=1e-10)
    squares = jnp.square(features.waves(x)).sum(0)
    np.testing.assert_allclose(
        features.total_variance(kernel, jnp.asarray(7.0), squares), kernel.diag(x).sum()
    )


def test_products_and_sums_are_those_of_each_input():
    x = at(FourierProduct(PARTS))
    own = [Matern32(1.3, 0.4), Matern52(0.8, 0.7)]
    first, second = (
        np.asarray(cross(k, x[:, d, None], part)) for d, (k, part) in enumerate(zip(own, PARTS, strict=True))
    )
    for kernel in (LEFT * RIGHT, RIGHT * LEFT):
        products = cross(kernel, x, FourierProduct(PARTS))
        np.testing.assert_allclose(
            products, np.einsum("na,nb->nab", first, second).reshape(7, -1), atol=1e-12
        )
    np.testing.assert_allclose(
        cross(LEFT + RIGHT, x, FourierSum(PARTS)), np.hstack([first, second]), atol=1e-12
    )
    one = FourierSum(PARTS[:1])
    np.testing.assert_allclose(cross(own[0], x[:, :1], one), first, atol=1e-12)


@pytest.mark.parametrize("name", ["product", "sum"])
def test_many_features_are_the_kernel(name):
    """Well within wide intervals, where what is left falls with the square of the highest frequency and faster."""
    kernel = {"product": LEFT * RIGHT, "sum": LEFT + RIGHT}[name]
    parts = (Fourier(-2.5, 2.5, 60), Fourier(-3.5, 3.5, 40))
    features = {"product": FourierProduct, "sum": FourierSum}[name](parts)
    x = jnp.asarray(RANDOM.uniform(-0.5, 0.5, (5, 2)))
    phi = cross(kernel, x, features) @ InverseRoot(features.root(kernel)).T
    np.testing.assert_allclose(phi @ phi.T, kernel(x, x), atol=2e-3)


def test_what_does_not_fit_is_refused():
    product = FourierProduct(PARTS)
    with pytest.raises(ValueError, match="parts: found"):
        FourierSum(())
    with pytest.raises(ValueError, match=r"kernel: found kernels of the columns .*expected one of each"):
        covariance(LEFT + RIGHT, product)
    with pytest.raises(ValueError, match="give each its active_dims"):
        covariance(LEFT * Matern32(1.0, 1.0), product)
    with pytest.raises(ValueError, match="expected one of each"):
        covariance(LEFT * LEFT, product)
    with pytest.raises(TypeError, match="kernel: found RBF, expected Matern12"):
        covariance(LEFT * RBF(1.0, 1.0, active_dims=(1,)), product)
    with pytest.raises(ValueError, match="within the interval of the Fourier features, -2 to 2"):
        cross(LEFT * RIGHT, jnp.array([[0.0, 3.0]]), product)
