"""Distances, the Cholesky ladder, its derivatives, inverse and quadratic form against dense algebra."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from ppl_dgp.kernels import RBF
from ppl_dgp.numerics.linalg import (
    cholesky,
    diag_quadratic,
    first_jitter,
    inverse_lower,
    lower_inverse_root,
    squared_distance,
    whitening,
)

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(5, 5))
GOOD = ROOT @ ROOT.T + np.eye(5)
# lowest eigenvalue −1e-4, mean diagonal 1.4: of the jitters 1e-8, 1e-7, … the first that helps is 1e-4
BASIS = np.linalg.qr(RNG.normal(size=(5, 5)))[0]
BAD = BASIS @ np.diag([3.0, 2.0, 1.0, 1.0, -1e-4]) @ BASIS.T


def jittered(matrix: np.ndarray, jitter: float) -> np.ndarray:
    return matrix + jitter * np.mean(np.diag(matrix)) * np.eye(len(matrix))


def test_a_good_matrix_needs_only_the_first_jitter() -> None:
    lower, used = cholesky(jnp.asarray(GOOD))
    assert used == first_jitter("float64") == 1e-8
    assert_allclose(lower, np.linalg.cholesky(jittered(GOOD, 1e-8)), rtol=1e-12)
    lower, used = cholesky(jnp.asarray(GOOD), 0.0)
    assert used == 0.0
    assert_allclose(lower, np.linalg.cholesky(GOOD), rtol=1e-12)
    lower, used = cholesky(jnp.asarray(GOOD), 1e-3)
    assert used == 1e-3
    assert_allclose(lower, np.linalg.cholesky(jittered(GOOD, 1e-3)), rtol=1e-12)


@pytest.mark.parametrize("jitter", [None, 0.0, 1e-6])
def test_a_bad_matrix_gets_the_smallest_rung_that_succeeds(jitter: float | None) -> None:
    lower, used = jax.jit(lambda a: cholesky(a, jitter))(jnp.asarray(BAD))
    assert_allclose(used, 1e-4, rtol=1e-12)
    assert_allclose(lower @ lower.T, jittered(BAD, 1e-4), atol=1e-14)


def test_of_a_function_that_is_zero_the_factor_is_the_jitter() -> None:
    lower, used = cholesky(jnp.zeros((3, 3)))
    assert_allclose(lower, 1e-4 * np.eye(3), rtol=1e-12)
    assert_allclose(whitening(jnp.zeros((3, 3)))[0], 1e4 * np.eye(3), rtol=1e-12)
    assert float(used) == 1e-8


def test_the_last_rung_is_a_tenth_and_then_comes_nan() -> None:
    lower, used = cholesky(jnp.asarray(np.diag([1.0, 1.0, -0.05])))
    assert_allclose(used, 0.1, rtol=1e-12)
    assert jnp.all(jnp.isfinite(lower))
    for hopeless in (-np.eye(3), np.diag([1.0, 1.0, -0.5]), np.full((3, 3), np.nan)):
        lower, used = cholesky(jnp.asarray(hopeless))
        assert jnp.all(jnp.isnan(lower)) and jnp.isnan(used)


@pytest.mark.parametrize(("dtype", "first"), [("float32", 1e-5), ("float64", 1e-8)])
def test_a_singular_gram_matrix_has_finite_value_and_gradient(dtype: str, first: float) -> None:
    x = jnp.linspace(0.0, 1.0, 60, dtype=dtype)[:, None]

    def loss(lengthscale):
        lower, used = cholesky(RBF(1.0, lengthscale)(x, x))
        return jnp.sum(jnp.log(jnp.diagonal(lower))), used

    (value, used), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(3.0, dtype))
    assert used >= jnp.asarray(first, dtype)
    assert jnp.isfinite(value) and jnp.isfinite(grad)


@pytest.mark.parametrize("matrix", [GOOD, BAD], ids=["good", "bad"])
def test_derivatives_are_finite_differences(matrix: np.ndarray) -> None:
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(5, 5)))

    @jax.jit
    def loss(matrix):
        # j is a constant of the derivative: BAD keeps its rung over small steps
        lower = cholesky(matrix)[0]
        return jnp.sum(weights * lower) + jnp.sum(jnp.log(jnp.diagonal(lower)))

    eps, rtol = (1e-6, 1e-5) if matrix is GOOD else (1e-9, 1e-3)
    check_grads(loss, (jnp.asarray(matrix),), order=1, modes=("fwd", "rev"), eps=eps, rtol=rtol, atol=rtol)


def test_second_derivatives_are_finite_differences() -> None:
    loss = jax.jit(lambda a: jnp.sum(jnp.sin(cholesky(a)[0])))
    check_grads(loss, (jnp.asarray(GOOD),), order=2, rtol=1e-4)


def test_derivatives_agree_with_those_of_jax() -> None:
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(5, 5)))
    ours = jax.grad(lambda a: jnp.sum(weights * cholesky(a, 0.0)[0]))(jnp.asarray(GOOD))
    theirs = jax.grad(lambda a: jnp.sum(weights * jnp.linalg.cholesky(a)))(jnp.asarray(GOOD))
    assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whitening_is_the_solve(dtype: str) -> None:
    """L⁻¹ applied by matmul against a triangular solve, to the precision's share of the condition number."""
    points = np.linspace(0.0, 3.0, 20)
    matrix = jnp.asarray(np.exp(-0.5 * np.square(points[:, None] - points)), dtype)
    right = jnp.asarray(np.random.default_rng(0).normal(size=(20, 4)), dtype)
    whiten, used = whitening(matrix)
    lower, same = cholesky(matrix)
    assert used == same
    solved = np.linalg.solve(np.asarray(lower, float), np.asarray(right, float))
    # the backward error of either is a few ulps of cond(L)
    error = 20 * jnp.finfo(dtype).eps * np.linalg.cond(np.asarray(lower, float)) * np.abs(solved).max()
    assert np.abs(np.asarray(whiten @ right) - solved).max() < error


@pytest.mark.parametrize("matrix", [GOOD, BAD], ids=["good", "bad"])
def test_whitening_has_the_derivatives_of_the_inverse_factor(matrix: np.ndarray) -> None:
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(5, 5)))
    ours = jax.jit(jax.grad(lambda a: jnp.sum(jnp.sin(weights * whitening(a)[0]))))(jnp.asarray(matrix))
    slow = jax.jit(jax.grad(lambda a: jnp.sum(jnp.sin(weights * inverse_lower(cholesky(a)[0])))))(
        jnp.asarray(matrix)
    )
    assert_allclose(ours, slow, rtol=1e-6 if matrix is BAD else 1e-10, atol=1e-10 * np.abs(slow).max())
    if matrix is GOOD:
        loss = jax.jit(lambda a: jnp.sum(jnp.sin(weights * whitening(a)[0])))
        check_grads(loss, (jnp.asarray(matrix),), order=2, rtol=1e-4)


def test_each_matrix_of_a_batch_climbs_on_its_own() -> None:
    batch = jnp.asarray(np.stack([GOOD, BAD, -np.eye(5)]))
    lower, used = cholesky(batch)
    assert_allclose(used, [1e-8, 1e-4, np.nan], rtol=1e-12)
    for i in range(2):
        assert_allclose(lower[i], cholesky(batch[i])[0], rtol=1e-12, atol=1e-14)
    mapped = jax.vmap(cholesky)(batch)
    assert_array_equal(mapped[0], lower)
    assert_array_equal(mapped[1], used)
    assert cholesky(batch[None])[0].shape == (1, 3, 5, 5) and cholesky(batch[None])[1].shape == (1, 3)


def test_a_batch_has_the_gradients_of_its_matrices() -> None:
    def loss(a):
        return jnp.sum(jnp.sin(cholesky(a)[0]))

    batch = jnp.asarray(np.stack([GOOD, BAD]))
    single = jnp.stack([jax.grad(loss)(a) for a in batch])
    assert_allclose(jax.jit(jax.grad(loss))(batch), single, rtol=1e-8, atol=1e-10)
    assert_allclose(jax.vmap(jax.grad(loss))(batch), single, rtol=1e-8, atol=1e-10)


def test_inverse_lower() -> None:
    lower = np.linalg.cholesky(np.stack([GOOD, 2 * GOOD]))
    assert_allclose(inverse_lower(jnp.asarray(lower)), np.linalg.inv(lower), rtol=1e-10, atol=1e-13)
    assert_allclose(inverse_lower(jnp.asarray(lower[0])) @ lower[0], np.eye(5), atol=1e-13)
    check_grads(jax.jit(lambda a: inverse_lower(jnp.tril(a))), (jnp.asarray(lower[0]),), order=1, rtol=1e-5)


def test_lower_inverse_root() -> None:
    matrices = np.stack([GOOD, 2.0 * GOOD + np.eye(5), -GOOD])
    found = np.asarray(lower_inverse_root(jnp.asarray(matrices)))
    assert_allclose(
        found @ found.swapaxes(-1, -2), np.linalg.inv(matrices) * [[[1]], [[1]], [[np.nan]]], rtol=1e-10
    )
    assert_array_equal(np.triu(found[:2], 1), 0.0)
    assert np.all(np.diagonal(found[:2], axis1=-2, axis2=-1) > 0.0)


def test_diag_quadratic_is_the_diagonal_of_the_dense_form() -> None:
    a, s_tril = RNG.normal(size=(6, 4)), np.tril(RNG.normal(size=(3, 4, 4)))
    dense = np.einsum("nm,pmk,plk,nl->np", a, s_tril, s_tril, a)
    assert_allclose(diag_quadratic(jnp.asarray(a), jnp.asarray(s_tril)), dense, rtol=1e-12)
    check_grads(
        jax.jit(diag_quadratic), (jnp.asarray(a), jnp.asarray(s_tril)), order=1, modes=["rev"], rtol=1e-5
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), offset=st.sampled_from([0.0, 10.0, 1e4]))
def test_squared_distances(seed: int, offset: float) -> None:
    x = np.random.default_rng(seed).normal(size=(6, 3)) + offset
    z = np.concatenate([x[:2], np.random.default_rng(seed + 1).normal(size=(2, 3)) + offset])
    ours = np.asarray(squared_distance(jnp.asarray(x), jnp.asarray(z)))
    assert_allclose(ours, cdist(x, z, "sqeuclidean"), rtol=1e-10, atol=1e-13)
    assert (ours >= 0).all() and ours[0, 0] == ours[1, 1] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cholesky(jnp.ones((2, 3))), "matrix: found shape"),
        (lambda: cholesky(jnp.ones(3)), "matrix: found shape"),
        (lambda: cholesky(jnp.eye(3), -1e-6), "jitter: found -1e-06"),
        (lambda: cholesky(jnp.eye(3), 0.5), "jitter: found 0.5"),
        (lambda: cholesky(jnp.eye(3), jnp.ones(2)), "jitter: found shape"),
        (lambda: inverse_lower(jnp.ones((2, 3))), "lower: found shape"),
        (lambda: diag_quadratic(jnp.ones((2, 3)), jnp.ones((3, 3))), "a: found shape"),
        (lambda: diag_quadratic(jnp.ones((2, 3)), jnp.ones((1, 2, 2))), "a: found shape"),
        (lambda: squared_distance(jnp.ones((2, 3)), jnp.ones((2, 2))), "x: found shape"),
    ],
)
def test_bad_input_is_named(call, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        call()
