"""Kernels against scikit-learn's, and against the limits and identities a covariance function obeys."""

from functools import reduce

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import pytest
from fast import few
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sk

from ppl_dgp.kernels import (
    KERNELS,
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Sum,
    White,
)
from ppl_dgp.models.kernel_values import kernel_parameters, named_kernel

X = np.random.default_rng(0).normal(size=(7, 3))
Z = np.concatenate([X[:2], np.random.default_rng(1).normal(size=(4, 3))])
ARD = np.array([0.5, 1.3, 2.0])

# name: our kernel, scikit-learn's
PAIRS = {
    "rbf": (RBF(1.7, 0.8), 1.7 * sk.RBF(0.8)),
    "rbf ard": (RBF(1.7, jnp.asarray(ARD)), 1.7 * sk.RBF(ARD)),
    "matern12": (Matern12(1.7, jnp.asarray(ARD)), 1.7 * sk.Matern(ARD, nu=0.5)),
    "matern32": (Matern32(1.7, jnp.asarray(ARD)), 1.7 * sk.Matern(ARD, nu=1.5)),
    "matern52": (Matern52(1.7, jnp.asarray(ARD)), 1.7 * sk.Matern(ARD, nu=2.5)),
    "matern52 scalar": (Matern52(0.3, 0.4), 0.3 * sk.Matern(0.4, nu=2.5)),
    "rational quadratic": (RationalQuadratic(1.7, 0.8, 0.6), 1.7 * sk.RationalQuadratic(0.8, 0.6)),
    "linear": (Linear(1.7), 1.7 * sk.DotProduct(sigma_0=0.0)),
    "linear equal variances": (Linear(jnp.full(3, 1.7)), 1.7 * sk.DotProduct(sigma_0=0.0)),
    "linear with bias": (Linear(1.7) + Constant(0.4), 1.7 * sk.DotProduct(0.0) + sk.ConstantKernel(0.4)),
    "constant": (Constant(0.4), sk.ConstantKernel(0.4)),
    "sum": (RBF(1.7, 0.8) + Matern32(0.2, 3.0), 1.7 * sk.RBF(0.8) + 0.2 * sk.Matern(3.0, nu=1.5)),
    "product": (RBF(1.7, 0.8) * Linear(0.2), 1.7 * sk.RBF(0.8) * (0.2 * sk.DotProduct(0.0))),
    "nested": (
        (RBF(1.0, 0.8) + Constant(0.1)) * Matern12(0.5, 2.0),
        (sk.RBF(0.8) + sk.ConstantKernel(0.1)) * (0.5 * sk.Matern(2.0, nu=0.5)),
    ),
}
STATIONARY = {
    "rbf": lambda s=1.0: RBF(s, 0.7),
    "matern12": lambda s=1.0: Matern12(s, 0.7),
    "matern32": lambda s=1.0: Matern32(s, 0.7),
    "matern52": lambda s=1.0: Matern52(s, 0.7),
    "rational quadratic": lambda s=1.0: RationalQuadratic(s, 0.7, 1.2),
    "periodic": lambda s=1.0: Periodic(s, 0.7, 1.9),
}
EVERY: dict[str, Kernel] = {
    **{name: make() for name, make in STATIONARY.items()},
    "linear": Linear(0.6),
    "constant": Constant(0.6),
    "white": White(0.6),
    "sum": RBF(1.0, 0.5) + White(0.1),
    "product": Matern32(1.0, 0.5) * Linear(2.0),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_are_those_of_scikit_learn(name: str) -> None:
    ours, theirs = PAIRS[name]
    assert_allclose(ours(jnp.asarray(X), jnp.asarray(Z)), theirs(X, Z), rtol=1e-12, atol=1e-14)
    assert_allclose(ours(jnp.asarray(X), jnp.asarray(X)), theirs(X), rtol=1e-12, atol=1e-14)
    assert_allclose(ours.diag(jnp.asarray(X)), theirs.diag(X), rtol=1e-12)


def test_periodic_is_the_product_of_scikit_learns_over_dimensions() -> None:
    period = np.array([1.1, 2.0, 0.7])
    ours = Periodic(1.7, jnp.asarray(ARD), jnp.asarray(period))(jnp.asarray(X), jnp.asarray(Z))
    factors = [sk.ExpSineSquared(ARD[d], period[d])(X[:, [d]], Z[:, [d]]) for d in range(3)]
    assert_allclose(ours, 1.7 * reduce(np.multiply, factors), rtol=1e-11)


def test_white_is_scikit_learns_on_one_set_and_matches_equal_rows_of_two() -> None:
    x, z = jnp.asarray(X), jnp.asarray(Z)
    assert_array_equal(White(0.3)(x, x), sk.WhiteKernel(0.3)(X))
    assert_array_equal(jax.jit(White(0.3))(x, z), 0.3 * np.eye(7, 6) * (np.arange(6) < 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda dims: RBF(1.2, jnp.array([0.5, 2.0])[: len(dims)] if dims else 0.5, dims),
        lambda dims: Matern52(1.2, 0.5, dims),
        lambda dims: RationalQuadratic(1.2, 0.5, 0.9, active_dims=dims),
        lambda dims: Periodic(1.2, 0.5, 0.9, active_dims=dims),
        lambda dims: Linear(1.2, dims),
    ],
)
@pytest.mark.parametrize("dims", [(2, 0), (1,)])
def test_active_dims_select_columns(make, dims: tuple[int, ...]) -> None:
    x, z = jnp.asarray(X), jnp.asarray(Z)
    chosen, whole = make(dims), make(tuple(range(len(dims))))
    assert_allclose(chosen(x, z), whole(x[:, list(dims)], z[:, list(dims)]), rtol=1e-14)
    assert_allclose(chosen.diag(x), whole.diag(x[:, list(dims)]), rtol=1e-14)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-13), ("float32", 1e-5)])
def test_diag_is_the_diagonal_and_dtypes_are_kept(name: str, dtype: str, rtol: float) -> None:
    x = jnp.asarray(X + 100.0, dtype)
    gram, diag = EVERY[name](x, x), EVERY[name].diag(x)
    assert gram.dtype == diag.dtype == x.dtype
    assert_allclose(jnp.diagonal(gram), diag, rtol=rtol)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", few(["float64", "float32"], 1))
def test_gradients_are_finite_at_zero_distance(name: str, dtype: str) -> None:
    x = jnp.asarray(np.concatenate([X, X]), dtype)
    leaves = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), EVERY[name])
    grads = jax.grad(lambda k, x: jnp.sum(k(x, x)), argnums=(0, 1))(leaves, x)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("white", "sum")])
def test_gradients_are_finite_differences(name: str) -> None:
    kernel = jax.tree.map(jnp.asarray, EVERY[name])
    weights = np.random.default_rng(2).normal(size=(7, 6))

    @jax.jit
    def f(x, z, kernel):
        return jnp.sum(weights * kernel(x, z))

    # no rows at distance zero, where the exponential kernel has a kink
    check_grads(
        f, (jnp.asarray(X), jnp.asarray(Z[::-1] + 0.1), kernel), order=1, eps=1e-5, atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "curvature"),
    few([("rbf", 1.0), ("matern32", 3.0), ("matern52", 5.0 / 3.0), ("rational quadratic", 1.0)], 0, 1),
)
def test_curvature_at_zero_distance_is_exact(name: str, curvature: float) -> None:
    """k = σ²(1 − c r²/2 + …) for small r: the Hessian in x is −c σ²/ℓ² I."""
    x = jnp.asarray(X[:1])
    hessian = jax.hessian(lambda a: STATIONARY[name](1.3)(a[None], x)[0, 0])(x[0])
    assert_allclose(hessian, -1.3 * curvature / 0.7**2 * np.eye(3), rtol=1e-10, atol=1e-10)


def test_periodic_repeats_and_curves_as_its_series_says() -> None:
    x, z = jnp.asarray(X), jnp.asarray(Z)
    kernel = Periodic(1.3, 0.7, 1.9)
    assert_allclose(kernel(x + 3 * 1.9, z), kernel(x, z), rtol=1e-11)
    # 2 sin²(πd/p)/ℓ² ≈ (2π/pℓ)² d²/2
    hessian = jax.hessian(lambda a: kernel(a[None], x[:1])[0, 0])(x[0])
    assert_allclose(hessian, -1.3 * (2 * np.pi / (1.9 * 0.7)) ** 2 * np.eye(3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in STATIONARY if n != "periodic"])
def test_values_do_not_depend_on_the_origin_in_32_bits(name: str) -> None:
    # inputs that were rounded at 1000 once, so that moving them back is exact
    x, z = (jnp.asarray(a + 1000.0, "float32") for a in (X, Z))
    kernel = STATIONARY[name]()
    assert_allclose(kernel(x, z), kernel(x - 1000.0, z - 1000.0), atol=2e-4)


def test_rational_quadratic_tends_to_rbf_as_alpha_grows() -> None:
    x, z = jnp.asarray(X), jnp.asarray(Z)
    assert_allclose(RationalQuadratic(1.3, 0.7, 1e9)(x, z), RBF(1.3, 0.7)(x, z), rtol=1e-6)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=15, deadline=None)
@given(x=arrays("float64", (6, 2), elements=st.floats(-5.0, 5.0, width=32)))
def test_gram_matrices_are_symmetric_and_positive_semidefinite(name: str, x: np.ndarray) -> None:
    gram = np.asarray(GRAMS[name](jnp.asarray(x)))
    assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-7 * max(1.0, gram.trace())


# √r² turns a rounding error of 1e-16 in r² into 1e-8 in a Matern kernel, hence the tolerance above
GRAMS = {name: jax.jit(lambda x, k=kernel: k(x, x)) for name, kernel in EVERY.items()}


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(7)))
def test_permuting_the_data_permutes_the_matrix(order: list[int]) -> None:
    kernel, rows = EVERY["sum"], np.array(order)
    gram = kernel(jnp.asarray(X), jnp.asarray(X))
    assert_allclose(kernel(jnp.asarray(X[rows]), jnp.asarray(X[rows])), gram[rows][:, rows], atol=1e-13)


@pytest.mark.parametrize("name", EVERY)
def test_kernels_are_pytrees_under_jit_vmap_and_placeholders(name: str) -> None:
    kernel, x, z = EVERY[name], jnp.asarray(X), jnp.asarray(Z)
    assert_allclose(jax.jit(lambda k: k(x, z))(kernel), kernel(x, z), rtol=1e-12, atol=1e-14)
    twice = jax.tree.map(lambda leaf: 2.0 * leaf, kernel)
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), kernel, twice)
    rows = jnp.stack([kernel(x, z), twice(x, z)])
    assert_allclose(jax.vmap(lambda k: k(x, z))(batch), rows, rtol=1e-12, atol=1e-14)
    assert jax.tree.leaves(jax.tree.map(jnp.ndim, kernel)) == [0] * len(jax.tree.leaves(kernel))


def test_operators_build_sums_and_products() -> None:
    left, right = RBF(1.0, 1.0), White(0.1)
    both = left + right
    assert isinstance(both, Sum) and both.left is left and both.right is right
    assert isinstance(left * right, Product)
    with pytest.raises(TypeError):
        left + 1.0  # type: ignore[operator]
    with pytest.raises(TypeError):
        left * 2.0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: RBF(1.0, 1.0)(x, x[:, :2]), r"x: found shape \(7, 3\) beside z"),
        (lambda x: Linear(1.0)(x, x[:, :2]), "z has 2 columns"),
        (lambda x: White(1.0)(x, x[:, :2]), "z has 2 columns"),
        (lambda x: Constant(1.0)(x, x[:, :2]), "z has 2 columns"),
        (lambda x: RBF(1.0, 1.0)(x[0], x), r"expected \(N, D\)"),
        (lambda x: RBF(1.0, jnp.ones(2))(x, x), "lengthscale has shape"),
        (lambda x: RBF(1.0, jnp.ones(3), (0, 1)).diag(x), "lengthscale has shape"),
        (lambda x: Periodic(1.0, 1.0, jnp.ones(2))(x, x), "period has shape"),
        (lambda x: RBF(jnp.ones(3), 1.0)(x, x), "variance has shape"),
        (lambda x: RationalQuadratic(1.0, 1.0, jnp.ones(3))(x, x), "alpha has shape"),
        (lambda x: RBF(-1.0, 1.0)(x, x), "variance is -1"),
        (lambda x: RBF(1.0, 0.0)(x, x), "lengthscale is 0"),
        (lambda x: Periodic(1.0, 1.0, -2.0)(x, x), "period is -2"),
        (lambda x: RationalQuadratic(1.0, 1.0, 0.0)(x, x), "alpha is 0"),
        (lambda x: RBF(1.0, 1.0, (0, 3))(x, x), "active_dims is"),
        (lambda x: RBF(1.0, 1.0, (-1,)), "active_dims is"),
        (lambda x: Linear(1.0, (1, 1)), "active_dims is"),
        (lambda x: Linear(jnp.ones(2))(x, x), "variance has shape"),
        (lambda x: Linear(-1.0)(x, x), "variance is -1"),
        (lambda x: Matern32(1.0, 1.0, ()), "active_dims is"),
    ],
)
def test_bad_input_is_named(call, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        call(jnp.asarray(X))


def test_linear_with_variances_is_that_of_scaled_columns() -> None:
    x, z, variances = jnp.asarray(X), jnp.asarray(Z), jnp.asarray(ARD)
    kernel = Linear(variances)
    assert_allclose(kernel(x, z), (X * ARD) @ Z.T, rtol=1e-12)
    assert_allclose(kernel.diag(x), np.diag(kernel(x, x)), rtol=1e-12)
    assert_allclose(
        Linear(variances[:2], (2, 0))(x, z), (X[:, [2, 0]] * ARD[:2]) @ Z[:, [2, 0]].T, rtol=1e-12
    )


def test_composed_names_are_sums_of_products_with_their_own_values() -> None:
    with numpyro.handlers.trace() as sites, numpyro.handlers.seed(rng_seed=0):
        kernel = kernel_parameters("gp", named_kernel("matern32*periodic + linear"), 3)
    # two terms share the variance, the second factor has none of its own; in three dimensions lengthscales are √3
    expected = Matern32(0.5, 3**0.5) * Periodic(1.0, 3**0.5, 1.0) + Linear(0.5)
    x, z = jnp.asarray(X), jnp.asarray(Z)
    assert_allclose(kernel(x, z), expected(x, z), rtol=1e-12)
    assert list(sites) == [
        "gp/1/variance",
        "gp/1/lengthscale",
        "gp/2/lengthscale",
        "gp/2/period",
        "gp/3/variance",
    ]


@pytest.mark.parametrize("name", KERNELS)
def test_every_named_kernel_has_values_to_learn(name: str) -> None:
    assert named_kernel(name) is KERNELS[name]
    with numpyro.handlers.seed(rng_seed=0):
        assert kernel_parameters("gp", named_kernel(name), 3).diag(jnp.asarray(X)).shape == (7,)


@pytest.mark.parametrize("text", ["cosine", "rbf+", "rbf**linear", ""])
def test_unknown_names_list_the_known(text: str) -> None:
    with pytest.raises(ValueError, match="choose from rbf, matern12"):
        named_kernel(text)
