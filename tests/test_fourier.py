"""Fourier features of several inputs, their roots and sums over rows: dense matrices, exact GPs, bounds with rows."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial, loss
from fast import few
from numpyro.distributions import constraints
from numpyro.handlers import seed, trace

from ppl_dgp.fit import fit_lbfgs, fixed_rows
from ppl_dgp.gp.eigenfunctions import Eigenfunctions, reduced_rank_gp
from ppl_dgp.gp.features import covariance, cross
from ppl_dgp.gp.fourier import Fourier
from ppl_dgp.gp.fourier_dimensions import FourierProduct, FourierSum
from ppl_dgp.gp.means import Constant, Linear
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.gp.wrappers import data_plate
from ppl_dgp.guides import Guide, Optimal
from ppl_dgp.kernels import RBF, Matern12, Matern32, Matern52
from ppl_dgp.numerics.structured_root import BlockRoot, InverseRoot, KroneckerRoot, LowRankRoot
from ppl_dgp.objectives import Collapsed, deterministic_inputs
from ppl_dgp.objectives.row_sums import KnownSums, RowSums, SummedInputs, double_sums

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


@pytest.mark.parametrize("name", few(CASES, 3))
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


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["product", "sum"], 0))
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


def placed(kernel, features, mean=None, noise=None):
    """Two outputs of one function, whose kernel is scaled by a parameter, as are mean and noise."""

    def model(x, y=None, index=None, size=None):
        positive = lambda name, value: numpyro.param(
            name, jnp.asarray(value, x.dtype), constraint=constraints.positive
        )
        stretched = jax.tree.map(lambda leaf: leaf * positive("stretch", 1.1), kernel)
        given = None if mean is None else mean(numpyro.param("slope", jnp.asarray(0.4, x.dtype)))
        if isinstance(features, Eigenfunctions):
            box = features.low, features.high, features.number
            f = reduced_rank_gp("f", stretched, *box, num_outputs=2, mean=given)
        else:
            f = sparse_gp("f", stretched, features, num_outputs=2, mean=given)
        variance = positive("noise", [0.05, 0.2] if noise is None else noise)
        with data_plate(size or x.shape[0], index):
            return numpyro.sample("y", f(x).noisy(variance), obs=y)

    return model


def linear(slope):
    return Linear(
        slope * jnp.ones((2, 2), jnp.result_type(slope)), jnp.asarray([0.3, -0.2], jnp.result_type(slope))
    )


BOX = Eigenfunctions((-1.5, -1.5), (1.5, 1.5), (4, 3))
ROWS = {
    "fourier": (placed(*CASES["matern32"]), 1),
    "product": (placed(*CASES["product"], linear), 2),
    "sum": (placed(*CASES["sum"], lambda slope: Constant(slope), 0.1), 2),
    "eigenfunctions": (placed(RBF(1.1, 0.6), BOX, linear), 2),
}


def data(inputs, rows=40):
    x = np.random.default_rng(1).uniform(-1.3, 1.3, (rows, inputs))
    y = np.stack([np.sin(3.0 * x).sum(1), np.cos(2.0 * x).sum(1)], 1)
    return jnp.asarray(x), jnp.asarray(y)


def by_rows(monkeypatch):
    """Collapsed without sums: a regression on the rows themselves, the whitened features of each."""
    monkeypatch.setattr(SummedInputs, "may_sum", lambda *_: False)


def sums_of(objective, params, model, guide, x, y):
    return double_sums(jax.jit(lambda x, y: objective.fixed_rows(params, model, guide, x, y))(x, y))


def value_and_slope(params, model, guide, x, y, sums=None):
    def of(values):
        with KnownSums(sums or {}):
            return Collapsed().loss(KEY, values, model, guide, x, y)

    value, slope = jax.jit(jax.value_and_grad(of))(params)
    return float(value), slope


@pytest.mark.slow
@pytest.mark.parametrize("name", few(ROWS, 1, 3))
def test_the_bound_of_sums_is_that_of_rows(name, monkeypatch):
    """Value and gradient, with the sums known, found within the loss, and of rows in pieces."""
    model, inputs = ROWS[name]
    features = BOX if name == "eigenfunctions" else CASES[name if inputs == 2 else "matern32"][1]
    x, y = data(inputs)
    guide = Guide(model, inducing=Optimal())
    params = initial(KEY, model, guide, x, y)
    sums = sums_of(Collapsed(), params, model, guide, x, y)
    assert sums.keys() == {"f/u"}
    found = [value_and_slope(params, model, guide, x, y, known) for known in (sums, None)]
    finish = lambda: jax.jit(lambda values: Collapsed().finish(values, model, guide, x, y))(params)
    whole = finish()
    monkeypatch.setattr(deterministic_inputs, "PIECE_NUMBERS", 7 * sums["f/u"].gram.shape[0])
    pieces = {"f/u": RowSums.of(features, x, y)}
    found.append(value_and_slope(params, model, guide, x, y, pieces))
    by_rows(monkeypatch)
    value, slope = value_and_slope(params, model, guide, x, y)
    for other_value, other_slope in found:
        assert other_value == pytest.approx(value, abs=1e-8)
        for key, expected in slope.items():
            np.testing.assert_allclose(other_slope[key], expected, rtol=1e-8, atol=1e-8)
    expected = finish()
    for key in ("f/u_loc", "f/u_scale"):
        np.testing.assert_allclose(whole[key], expected[key], atol=1e-8)


@pytest.mark.slow
def test_32_bits():
    """Sums and regression are of 64 bits; what is left is the rounding of parameters, rows and the result."""
    model, inputs = ROWS["product"]
    x, y = data(inputs, 400)
    guide = Guide(model, inducing=Optimal())
    params = initial(KEY, model, guide, x, y)
    exact, slope = value_and_slope(params, model, guide, x, y)
    with jax.enable_x64(False):
        narrow = {key: jnp.asarray(value, jnp.float32) for key, value in params.items()}
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        sums = sums_of(Collapsed(), narrow, model, guide, x, y)
        assert sums["f/u"].gram.dtype == jnp.float64
        for known in (sums, None):
            value, narrow_slope = value_and_slope(narrow, model, guide, x, y, known)
            # a row's share is y²/2s² of 64 bits; 6e-8 of each of its parts
            assert value == pytest.approx(exact, rel=1e-6)
            for key in ("stretch", "noise", "slope"):
                np.testing.assert_allclose(narrow_slope[key], slope[key], rtol=1e-5)


def test_what_depends_on_parameters_or_on_rows_is_not_summed():
    """Inputs that are stretched by a parameter, noise of each row, α > 0: their bounds are those of rows, as before."""
    x, y = data(1)

    def model(x, y=None, index=None, size=None):
        stretch = numpyro.param("stretch", jnp.asarray(0.9))
        f = sparse_gp("f", *CASES["matern32"], num_outputs=2)
        with data_plate(size or x.shape[0], index):
            return numpyro.sample("y", f(stretch * x).noisy(0.1), obs=y)

    guide = Guide(model, inducing=Optimal())
    params = initial(KEY, model, guide, x, y)
    assert sums_of(Collapsed(), params, model, guide, x, y) == {}
    slope = value_and_slope(params, model, guide, x, y)[1]["stretch"]
    move = lambda by: loss(Collapsed(), {**params, "stretch": params["stretch"] + by}, model, guide, x, y)
    assert float(slope) == pytest.approx((move(1e-5) - move(-1e-5)) / 2e-5, rel=1e-5)
    rows = placed(*CASES["matern32"], noise=np.linspace(0.1, 0.3, 40)[:, None])
    for objective, other in ((Collapsed(0.5), ROWS["fourier"][0]), (Collapsed(), rows)):
        guide = Guide(other, inducing=Optimal())
        params = initial(KEY, other, guide, x, y)
        assert sums_of(objective, params, other, guide, x, y) == {}


@pytest.mark.slow
def test_many_features_give_the_evidence_of_the_exact_gp():
    """Of a wide interval, where Σ D_n is 1.2e-5: Titsias' bound is lower by D_n / 2s² and what that does to Q."""
    x, y = data(1)
    kernel = Matern52(1.3, 0.5)
    model = placed(kernel, Fourier(-4.0, 4.0, 100), noise=0.1)
    guide = Guide(model, inducing=Optimal())
    params = {**initial(KEY, model, guide, x, y), "stretch": jnp.asarray(1.0)}
    covariance = kernel(x, x) + 0.1 * jnp.eye(len(x))
    exact = dist.MultivariateNormal(jnp.zeros(len(x)), covariance).log_prob(y.T).sum()
    found = -loss(Collapsed(), params, model, guide, x, y)
    assert float(exact) - 1e-3 < found <= float(exact)


@pytest.mark.slow
@pytest.mark.parametrize("bits", few([64, 32], 1))
def test_a_fit_takes_the_sums_once(bits, monkeypatch):
    """And ends where one of rows ends."""
    taken = []
    counted = lambda rows: taken.append(len(rows)) or double_sums(rows)
    monkeypatch.setattr(fixed_rows, "double_sums", counted)
    model, inputs = ROWS["fourier"]
    x, y = data(inputs)
    with jax.enable_x64(bits == 64):
        x, y = x.astype(float), y.astype(float)
        run = lambda model: fit_lbfgs(
            KEY, model, x, y, guide=Guide(model, inducing=Optimal()), objective=Collapsed(), steps=20
        )
        fit = run(model)
        assert taken == [1]
        by_rows(monkeypatch)
        # a model of its own, so that its program is not that of the sums
        expected = run(placed(*CASES["matern32"]))
    assert taken == [1, 0]
    # of 32 bits the regression on rows is itself of 32
    assert fit.losses[0, -1] == pytest.approx(expected.losses[0, -1], rel={64: 1e-8, 32: 1e-4}[bits])
