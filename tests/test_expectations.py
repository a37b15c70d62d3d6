"""Kernel expectations against dense quadrature, Monte Carlo, printed formulas, and the identities they obey."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from fast import few
from jax.test_util import check_grads
from numpy.testing import assert_allclose

from ppl_dgp.expectations import (
    input_input_kernel,
    input_kernel,
    kernel_kernel_input,
    psi0,
    psi1,
    psi2,
    psi2_quadratic,
    psi2_sum,
    psi4,
)
from ppl_dgp.expectations.closed import Closed
from ppl_dgp.expectations.nodes import CubatureExpectations
from ppl_dgp.expectations.terms import terms_of
from ppl_dgp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from ppl_dgp.numerics.gaussian import Gaussian

# what is averaged, of h (S, D) and k (S, M): the statistic, and its integrand
STATISTICS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "psi1": (psi1, lambda h, k: k),
    "psi2": (psi2, lambda h, k: np.einsum("sm,sn->smn", k, k)),
    "input_kernel": (input_kernel, lambda h, k: np.einsum("sm,sd->smd", k, h)),
    "input_input_kernel": (input_input_kernel, lambda h, k: np.einsum("sm,sd,se->smde", k, h, h)),
    "kernel_kernel_input": (kernel_kernel_input, lambda h, k: np.einsum("sm,sn,sd->smnd", k, k, h)),
}
ELL = np.array([0.9, 1.4, 0.7, 2.0])


def kernels(dims: int) -> dict[str, Kernel]:
    """Kernels with a closed form, in `dims` dimensions."""
    rbf, last = RBF(1.3, jnp.asarray(ELL[:dims])), (dims - 1,)
    return {
        "rbf": rbf,
        "active dims": RBF(1.3, 0.8, last),
        "linear": Linear(0.7),
        "linear ard": Linear(jnp.asarray(ELL[:dims])),
        "rbf * linear ard": rbf * Linear(jnp.asarray(ELL[:dims])) + Linear(jnp.asarray([0.3]), last),
        "constant": Constant(0.4),
        "rbf + linear": rbf + Linear(0.7, (0,)),
        "rbf * rbf": rbf * RBF(0.8, 1.7, last),
        "rbf * constant": rbf * Constant(0.6),
        "linear * constant": Linear(0.7) * Constant(0.6),
        "rbf * linear": rbf * Linear(0.7, (0,)),
        "nested": (RBF(1.3, 1.1, (0,)) + Constant(0.3)) * Linear(0.5) + rbf + Constant(0.1),
    }


def gaussian(dims: int, full: bool, rows: int = 3) -> tuple[Gaussian, jax.Array]:
    """Inputs of standard deviation about a half, and inducing inputs."""
    rng = np.random.default_rng(dims)
    mean, z = rng.normal(size=(rows, dims)), rng.normal(size=(4, dims))
    scale = rng.uniform(0.2, 0.8, size=(rows, dims))
    lower = np.tril(0.4 * rng.normal(size=(rows, dims, dims)), -1) + scale[..., None] * np.eye(dims)
    return Gaussian(jnp.asarray(mean), jnp.asarray(lower if full else scale)), jnp.asarray(z)


def lower_factors(inputs: Gaussian) -> np.ndarray:
    scale = np.asarray(inputs.scale)
    return scale if scale.ndim == 3 else scale[..., None] * np.eye(scale.shape[-1])


@lru_cache
def dense_rule(dims: int) -> tuple[np.ndarray, np.ndarray]:
    """60 Gauss-Hermite nodes a dimension."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * dims), -1).reshape(-1, dims)
    return grid, np.prod(np.meshgrid(*[weights / weights.sum()] * dims), 0).ravel()


@pytest.mark.parametrize(("dims", "full"), few([(1, False), (2, False), (2, True)], 0, 2))
@pytest.mark.parametrize("name", kernels(1))
def test_every_statistic_is_its_integral(name: str, dims: int, full: bool) -> None:
    kernel = kernels(dims)[name]
    inputs, z = gaussian(dims, full)
    nodes, weights = dense_rule(dims)
    expected: dict[str, list[np.ndarray]] = {statistic: [] for statistic in [*STATISTICS, "psi0"]}
    for mean, lower in zip(np.asarray(inputs.mean), lower_factors(inputs), strict=True):
        h = mean + nodes @ lower.T
        k = np.asarray(kernel(jnp.asarray(h), z))
        expected["psi0"].append(weights @ np.asarray(kernel.diag(jnp.asarray(h))))
        for statistic, (_, integrand) in STATISTICS.items():
            expected[statistic].append(np.tensordot(weights, integrand(h, k), 1))
    # 60 nodes are exact to rounding at these widths
    assert_allclose(psi0(kernel, inputs), expected["psi0"], rtol=1e-12)
    for statistic, (ours, _) in STATISTICS.items():
        actual = ours(kernel, inputs, z)
        assert_allclose(actual, np.stack(expected[statistic]), rtol=1e-11, atol=1e-12, err_msg=statistic)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dims", [3, 4])
def test_every_statistic_is_the_mean_of_draws(dims: int, full: bool) -> None:
    kernel = kernels(dims)["nested"]
    inputs, z = gaussian(dims, full, rows=1)
    noise = np.random.default_rng(9).normal(size=(100_000, dims))
    h = np.asarray(inputs.mean)[0] + noise @ lower_factors(inputs)[0].T
    k = np.asarray(kernel(jnp.asarray(h), z))
    integrands = {name: (ours(kernel, inputs, z)[0], of(h, k)) for name, (ours, of) in STATISTICS.items()}
    integrands["psi0"] = (psi0(kernel, inputs)[0], np.asarray(kernel.diag(jnp.asarray(h))))
    for name, (ours, draws) in integrands.items():
        error = np.std(draws, axis=0) / np.sqrt(len(draws))
        # about 200 numbers in all: the largest of as many standard normals is below 4.5
        assert np.all(np.abs(np.asarray(ours) - draws.mean(0)) < 4.5 * error), name


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_steins_lemma_ties_the_statistics_together(full: bool) -> None:
    """⟨h g(h)⟩ = m ⟨g⟩ + V ∂⟨g⟩/∂m, in three dimensions to rounding."""
    kernel = kernels(3)["rbf * linear"] + Constant(0.3)
    inputs, z = gaussian(3, full)
    lower = lower_factors(inputs)
    covariance = lower @ np.swapaxes(lower, -1, -2)

    def with_input(statistic: Callable[..., Any]) -> Any:
        def row(mean: Any, scale: Any) -> Any:
            return statistic(kernel, Gaussian(mean[None], scale[None]), z)[0]

        def both(mean: Any, scale: Any, v: Any) -> Any:
            return row(mean, scale)[..., None] * mean + jax.jacfwd(row)(mean, scale) @ v

        return jax.vmap(both)(inputs.mean, inputs.scale, covariance)

    for with_h, without in [
        (input_kernel, psi1),
        (input_input_kernel, input_kernel),
        (kernel_kernel_input, psi2),
    ]:
        assert_allclose(with_h(kernel, inputs, z), with_input(without), rtol=1e-10, atol=1e-12)


def test_the_printed_formulas_of_the_rbf() -> None:
    """Titsias & Lawrence (2010), and a printed case."""
    inputs, z = gaussian(3, False)
    mu, s, z_ = np.asarray(inputs.mean), np.asarray(inputs.scale) ** 2, np.asarray(z)
    a = 1.0 / ELL[:3] ** 2
    kernel = RBF(1.3, jnp.asarray(ELL[:3]))
    first = np.exp(-0.5 * a * (mu[:, None] - z_) ** 2 / (a * s + 1)[:, None]) / np.sqrt(a * s + 1)[:, None]
    assert_allclose(psi1(kernel, inputs, z), 1.3 * first.prod(-1), rtol=1e-13)
    middle, apart = 0.5 * (z_[:, None] + z_), z_[:, None] - z_
    wide = (2 * a * s + 1)[:, None, None]
    second = np.exp(-0.25 * a * apart**2 - a * (mu[:, None, None] - middle) ** 2 / wide) / np.sqrt(wide)
    assert_allclose(psi2(kernel, inputs, z), 1.3**2 * second.prod(-1), rtol=1e-13)

    one = Gaussian(jnp.array([[0.25]]), jnp.sqrt(jnp.array([[0.3]])))
    places = jnp.array([[-0.8], [0.5], [1.6]])
    printed = [0.5095464193, 0.9841209481, 0.3230556998]
    assert_allclose(psi1(RBF(1.3, 0.7), one, places)[0], printed, atol=1e-10)
    rows = [
        [0.4120942667, 0.4130985263, 0.0587506551],
        [0.4130985263, 1.0699643042, 0.3397523989],
        [0.0587506551, 0.3397523989, 0.2128742610],
    ]
    assert_allclose(psi2(RBF(1.3, 0.7), one, places)[0], rows, atol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_psi4_is_the_mean_function_term_of_moment_matching(full: bool) -> None:
    """(ψ4)_j = ψ1_j wᵀ(m + V(V + Λ)⁻¹(z_j − m)), for every way to give w."""
    inputs, z = gaussian(3, full)
    kernel, w = RBF(1.3, jnp.asarray(ELL[:3])), np.random.default_rng(4).normal(size=(3, 2, 3))
    mean, lower = np.asarray(inputs.mean), lower_factors(inputs)
    v = lower @ np.swapaxes(lower, -1, -2)
    gain = v @ np.linalg.inv(v + np.diag(ELL[:3] ** 2))
    tilted = mean[:, None] + np.einsum("bde,bme->bmd", gain, np.asarray(z) - mean[:, None])
    first = np.asarray(psi1(kernel, inputs, z))
    expected = np.einsum("bpd,bmd,bm->bpm", w, tilted, first)
    assert_allclose(psi4(kernel, inputs, z, jnp.asarray(w)), expected, rtol=1e-12)
    assert_allclose(psi4(kernel, inputs, z, jnp.asarray(w[0]))[0], expected[0], rtol=1e-12)
    assert_allclose(psi4(kernel, inputs, z, jnp.asarray(w[0, 0]))[0], expected[0, 0], rtol=1e-12)


AT_POINTS = {
    "rbf": kernels(2)["rbf"],
    "rbf * linear": kernels(2)["rbf * linear"],
    "matern32": Matern32(1.2, 0.8),
    "no closed form": Linear(0.5) * Linear(0.3, (1,)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "full"),
    few(
        [
            ("rbf", False),
            ("rbf * linear", True),
            ("matern32", False),
            ("matern32", True),
            ("no closed form", True),
        ],
        2,
        4,
    ),
)
def test_points_have_the_plain_kernel_and_its_gradient(name: str, full: bool) -> None:
    kernel, (inputs, z) = jax.tree.map(jnp.asarray, AT_POINTS[name]), gaussian(2, full)
    # the middle datum sits at an inducing input
    mean = inputs.mean.at[1].set(z[2])
    scale = jnp.zeros_like(inputs.scale)
    h, k = np.asarray(mean), np.asarray(kernel(mean, z))
    assert_allclose(psi0(kernel, Gaussian(mean, scale)), kernel.diag(mean), rtol=1e-13)
    for statistic, (ours, integrand) in STATISTICS.items():
        plain = integrand(h, k)
        assert_allclose(
            ours(kernel, Gaussian(mean, scale), z), plain, rtol=1e-12, atol=1e-13, err_msg=statistic
        )

    def total(kernel: Kernel, mean: Any, scale: Any, z: Any) -> Any:
        inputs = Gaussian(mean, scale)
        return jnp.sum(jnp.sin(psi1(kernel, inputs, z))) + jnp.sum(jnp.sin(psi2_sum(kernel, inputs, z)))

    def plain_total(kernel: Kernel, mean: Any, z: Any) -> Any:
        k = kernel(mean, z)
        return jnp.sum(jnp.sin(k)) + jnp.sum(jnp.sin(k.T @ k))

    gradient = jax.jit(jax.grad(total, (0, 1, 3, 2)))(kernel, mean, scale, z)
    plain = jax.grad(plain_total, (0, 1, 2))(kernel, mean, z)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-8, atol=1e-10), gradient[:3], plain)
    # even in the scale, so flat at 0
    assert_allclose(gradient[3], 0.0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", few([kernels(2)["rbf * linear"], Matern52(1.1, 0.9)], 1), ids=["closed", "nodes"]
)
def test_blocks_sum_and_contract_what_psi2_holds(kernel: Kernel) -> None:
    inputs, z = gaussian(2, True, rows=7)
    rng = np.random.default_rng(3)
    weights, matrices = jnp.asarray(rng.normal(size=7)), jnp.asarray(rng.normal(size=(2, 4, 4)))
    each = psi2(kernel, inputs, z)
    for block in (None, 3, 1):
        assert_allclose(psi2_sum(kernel, inputs, z, block=block), each.sum(0), rtol=1e-12)
        weighted = psi2_sum(kernel, inputs, z, weights, block)
        assert_allclose(weighted, jnp.einsum("b,bmn->mn", weights, each), rtol=1e-12)
        traces = psi2_quadratic(kernel, inputs, z, matrices, block)
        assert_allclose(traces, jnp.einsum("pmn,bmn->bp", matrices, each), rtol=1e-12, atol=1e-14)
    assert_allclose(each, jnp.swapaxes(each, 1, 2), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "full"), few([("rbf * linear", False), ("rbf * linear", True), ("matern52", True)], 2)
)
def test_gradients_are_finite_differences(name: str, full: bool) -> None:
    kernel = {**kernels(2), "matern52": Matern52(1.1, 0.9)}[name]
    inputs, z = gaussian(2, full)
    rng = np.random.default_rng(5)
    cotangents = [jnp.asarray(rng.normal(size=shape)) for shape in [(3,), (3, 4), (4, 4), (3, 4, 2), (3, 2)]]
    matrices = jnp.asarray(rng.normal(size=(2, 4, 4)))

    @jax.jit
    def total(kernel: Kernel, mean: Any, scale: Any, z: Any, weights: Any) -> Any:
        inputs = Gaussian(mean, scale)
        values = [
            psi0(kernel, inputs),
            psi1(kernel, inputs, z),
            psi2_sum(kernel, inputs, z, weights, block=2),
            input_kernel(kernel, inputs, z),
            psi2_quadratic(kernel, inputs, z, matrices, block=2),
        ]
        return sum(jnp.vdot(a, b) for a, b in zip(cotangents, values, strict=True))

    arguments = (jax.tree.map(jnp.asarray, kernel), inputs.mean, inputs.scale, z, jnp.array([0.5, 1.0, 2.0]))
    check_grads(total, arguments, order=1, modes=("rev",), eps=1e-5, atol=1e-6, rtol=1e-6)


def largest_array(jaxpr: Any) -> int:
    """The most numbers that any array of a computation holds, inner computations included."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(getattr(v.aval, "shape", ()))) for v in equation.outvars]
        for value in equation.params.values():
            inner = value if isinstance(value, tuple | list) else [value]
            sizes += [largest_array(j) for j in inner if hasattr(getattr(j, "jaxpr", j), "eqns")]
    return max(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", few([RBF(1.3, 0.9), RBF(1.3, 0.9) * Linear(0.2), Matern32(1.3, 0.9)], 1))
def test_no_array_of_all_rows_and_pairs_is_made(kernel: Kernel) -> None:
    rows, size, dims = 2000, 20, 2
    mean, scale = jnp.zeros((rows, dims)), jnp.ones((rows, dims, dims))

    def total(kernel: Kernel, mean: Any, scale: Any, z: Any) -> Any:
        inputs = Gaussian(mean, scale)
        traces = psi2_quadratic(kernel, inputs, z, jnp.ones((1, size, size)))
        return jnp.sum(psi2_sum(kernel, inputs, z)) + jnp.sum(traces) + jnp.sum(psi1(kernel, inputs, z))

    z = jnp.zeros((size, dims))
    gradient = jax.make_jaxpr(jax.grad(total, (0, 1, 2, 3)))(kernel, mean, scale, z)
    assert largest_array(gradient) < rows * size**2 // 2
    at_once = jax.make_jaxpr(lambda mean: psi2_sum(kernel, Gaussian(mean, scale), z, block=rows))(mean)
    assert largest_array(at_once) >= rows * size**2


SMOOTH = RBF(1.3, jnp.asarray(ELL[:2]))


@pytest.mark.parametrize(("dims", "full"), few([(1, False), (2, True)], 0))
def test_nodes_agree_with_the_closed_form(dims: int, full: bool) -> None:
    inputs, z = gaussian(dims, full)
    # narrower than the lengthscales, where 20 nodes are nearly exact
    inputs = Gaussian(inputs.mean, 0.4 * inputs.scale)
    kernel = kernels(dims)["nested"]
    terms = terms_of(kernel, dims, z.dtype)
    assert terms is not None
    for statistic in STATISTICS:
        closed = getattr(Closed(terms), statistic)(inputs, z)
        at_nodes = getattr(CubatureExpectations(kernel, dims), statistic)(inputs, z)
        assert_allclose(at_nodes, closed, rtol=1e-9, atol=1e-10, err_msg=statistic)


@pytest.mark.slow
@pytest.mark.parametrize("full", few([False, True], 1))
def test_cubature_is_exact_to_third_order(full: bool) -> None:
    """In many dimensions the error falls with the fourth power of the scale; cubic polynomials have none."""
    inputs, z = gaussian(4, full)
    kernel = RBF(1.3, 1.5)
    terms = terms_of(kernel, 4, z.dtype)
    assert terms is not None
    for statistic in STATISTICS:
        errors = []
        for shrink in (0.1, 0.05):
            narrow = Gaussian(inputs.mean, shrink * inputs.scale)
            closed = getattr(Closed(terms), statistic)(narrow, z)
            errors.append(
                np.abs(getattr(CubatureExpectations(kernel, 4), statistic)(narrow, z) - closed).max()
            )
        assert_allclose(errors[0] / errors[1], 16.0, rtol=0.1, err_msg=statistic)
    quadratic = Linear(0.7) + Constant(0.2)
    assert_allclose(
        CubatureExpectations(quadratic, 4).psi1(inputs, z), psi1(quadratic, inputs, z), rtol=1e-12
    )
    assert_allclose(
        CubatureExpectations(quadratic, 4).psi2(inputs, z), psi2(quadratic, inputs, z), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("kernel", "rtol"),
    [
        (Matern52(1.2, 0.9), 1e-4),
        # a kink in its third derivative is what 32 nodes see least well
        (Matern32(1.2, 0.9) + RBF(0.4, 0.7), 1e-3),
        (RationalQuadratic(1.2, 0.9, 0.7) * Linear(0.5), 1e-4),
        (Periodic(1.2, 0.9, 4.0), 1e-7),
    ],
)
def test_other_kernels_are_close_to_a_fine_sum(kernel: Kernel, rtol: float) -> None:
    inputs, z = gaussian(1, False)
    grid = np.linspace(-9.0, 9.0, 20_001)
    weights = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    for row in range(3):
        h = np.asarray(inputs.mean)[row] + grid[:, None] * np.asarray(inputs.scale)[row]
        k = np.asarray(kernel(jnp.asarray(h), z))
        fine = np.asarray(kernel.diag(jnp.asarray(h))) @ weights
        assert_allclose(psi0(kernel, inputs)[row], fine, rtol=1e-10)
        for statistic, (ours, integrand) in STATISTICS.items():
            expected = np.tensordot(weights, integrand(h, k), 1)
            bound = rtol * np.abs(expected).max()
            assert_allclose(ours(kernel, inputs, z)[row], expected, atol=bound, err_msg=statistic)


@pytest.mark.slow
def test_blocks_of_nodes_are_those_of_all_rows() -> None:
    inputs, z = gaussian(2, False, rows=90)
    # 400 nodes for each of 90 rows and 10 inducing inputs: more than a block holds
    z = jnp.concatenate([z, z + 0.1, z[:2] - 0.1])
    nodes = CubatureExpectations(Matern52(1.2, 0.9), 2)
    for statistic in ("psi1", "input_kernel", "input_input_kernel"):
        one_by_one = [
            getattr(nodes, statistic)(Gaussian(inputs.mean[i : i + 1], inputs.scale[i : i + 1]), z)
            for i in range(0, 90, 17)
        ]
        whole = getattr(nodes, statistic)(inputs, z)[::17]
        assert_allclose(whole, jnp.concatenate(one_by_one), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("base", [SMOOTH, Matern52(1.2, 0.9)], ids=["closed", "nodes"])
def test_white_noise_counts_in_psi0_only(base: Kernel) -> None:
    inputs, z = gaussian(2, False)
    noisy = base + White(0.3) + White(0.2) * base
    assert_allclose(psi0(noisy, inputs), psi0(base, inputs) * 1.2 + 0.3, rtol=1e-12)
    for name, (ours, _) in STATISTICS.items():
        # also where an input is an inducing input for certain
        certain = Gaussian(z[:3], jnp.zeros((3, 2)))
        assert_allclose(ours(noisy, inputs, z), ours(base, inputs, z), rtol=1e-12, err_msg=name)
        assert_allclose(ours(noisy, certain, z), ours(base, certain, z), rtol=1e-12, err_msg=name)
        assert not np.any(ours(White(0.3), inputs, z))
        assert not np.any(ours(White(0.3) * Matern52(1.2, 0.9) * Linear(1.0) * Linear(1.0), inputs, z))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbf", "nested", "matern52"])
def test_32_bits_agree_with_64_far_from_the_origin(name: str) -> None:
    kernel = {**kernels(2), "matern52": Matern52(1.1, 0.9)}[name]
    inputs, z = gaussian(2, True)
    if name != "nested":  # a linear kernel knows the origin
        inputs, z = Gaussian(inputs.mean + 100.0, inputs.scale), z + 100.0
    # rounded once, so that both see the same numbers
    single = jax.tree.map(lambda a: jnp.asarray(a, "float32"), (kernel, inputs, z))
    double = jax.tree.map(lambda a: jnp.asarray(a, "float64"), single)
    for statistic, (ours, _) in STATISTICS.items():
        low, high = ours(*single), ours(*double)
        assert low.dtype == jnp.float32
        assert_allclose(low, high, rtol=1e-4, atol=1e-5 * np.abs(high).max(), err_msg=statistic)
    assert psi0(*single[:2]).dtype == psi2_sum(*single, block=2).dtype == jnp.float32


@pytest.mark.slow
def test_wide_inputs_keep_their_digits_in_32_bits() -> None:
    """V a thousand times ℓ²: ψ2 is the overlap of two far tails, without cancellation."""
    inputs, z = gaussian(2, True)
    wide = Gaussian(inputs.mean, 30.0 * inputs.scale)
    single = jax.tree.map(lambda a: jnp.asarray(a, "float32"), (SMOOTH, wide, z))
    double = jax.tree.map(lambda a: jnp.asarray(a, "float64"), single)
    assert_allclose(psi2(*single), psi2(*double), rtol=3e-5)


@pytest.mark.parametrize("base", [kernels(2)["rbf * linear"], Matern52(1.2, 0.9)], ids=["closed", "nodes"])
def test_batches_of_kernels_and_inputs_are_mapped(base: Kernel) -> None:
    inputs, z = gaussian(2, True)
    kernel = jax.tree.map(jnp.asarray, base)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), (kernel, inputs.mean, inputs.scale))

    @jax.jit
    @jax.vmap
    def both(kernel: Kernel, mean: Any, scale: Any) -> Any:
        inputs = Gaussian(mean, scale)
        return psi1(kernel, inputs, z), psi2_sum(kernel, inputs, z, block=2)

    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], batch)
        each = Gaussian(*one[1:])
        assert_allclose(both(*batch)[0][i], psi1(one[0], each, z), rtol=1e-12)
        assert_allclose(both(*batch)[1][i], psi2_sum(one[0], each, z), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, z: psi1(SMOOTH, g.mean, z), TypeError, "inputs: found .* expected Gaussian"),
        (lambda g, z: psi1(SMOOTH, Gaussian(g.mean, g.scale[:2]), z), ValueError, "scale of shape"),
        (lambda g, z: psi0(SMOOTH, Gaussian(g.mean[0], g.scale[0])), ValueError, "mean of shape"),
        (
            lambda g, z: psi0(SMOOTH, Gaussian(g.mean, g.scale, g.mean[..., None])),
            ValueError,
            "found a factor",
        ),
        (
            lambda g, z: psi2_sum(SMOOTH, g, z[:, :1]),
            ValueError,
            r"z: found shape \(4, 1\), expected \(M, 2\)",
        ),
        (lambda g, z: psi2_sum(SMOOTH, g, z, jnp.ones(2)), ValueError, "weights: found shape"),
        (lambda g, z: psi2_sum(SMOOTH, g, z, block=0), ValueError, "block: found 0"),
        (lambda g, z: psi2_quadratic(SMOOTH, g, z, jnp.ones((4, 4))), ValueError, "matrices: found shape"),
        (lambda g, z: psi4(SMOOTH, g, z, jnp.ones(3)), ValueError, "linear: found shape"),
        (lambda g, z: psi1(RBF(1.0, jnp.ones(3)), g, z), ValueError, "lengthscale has shape"),
        (lambda g, z: psi1(RBF(1.0, 1.0, (2,)), g, z), ValueError, "active_dims is"),
    ],
)
def test_bad_input_is_named(
    call: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the package's own messages, which users see, rather than those of the shape checker in tests
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        call(*gaussian(2, False))
