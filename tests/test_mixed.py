"""Tables whose columns have likelihoods of different kinds: columns evaluated together are those taken one by one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compiled import initial
from numpyro.distributions import constraints
from numpyro.handlers import seed

from ppl_dgp.gp.marginal import Marginal
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.likelihoods import (
    Bernoulli,
    Beta,
    Gamma,
    Gaussian,
    Heteroscedastic,
    Laplace,
    Likelihood,
    MixedLikelihood,
    Ordinal,
    Scalar,
    Softmax,
    StudentT,
)
from ppl_dgp.models import gplvm
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(5)
RNG = np.random.default_rng(6)
ROWS, DRAWS = 3, 20_000
# a column's likelihood, its functions among the F, and values it may have
TABLE: list[tuple[Likelihood, slice, list[float]]] = [
    (Gaussian(jnp.asarray(0.3)), slice(0, 1), [0.2, -1.0, 2.0]),
    (Softmax(3, 64), slice(1, 4), [2.0, 0.0, 1.0]),
    (Heteroscedastic(0.2, 16), slice(4, 6), [0.1, 1.5, -0.4]),
    (Gaussian(jnp.asarray(0.7)), slice(6, 7), [0.0, 0.4, -3.0]),
    (Gamma(3.0, 16), slice(7, 8), [0.5, 2.0, 1.0]),
    (Softmax(3, 64), slice(8, 11), [0.0, 0.0, 2.0]),
    (Ordinal(jnp.asarray([-0.5, 0.8]), 0.6, 16), slice(11, 12), [1.0, 2.0, 0.0]),
    (Ordinal(jnp.asarray([-1.0, 0.1]), 0.9, 16), slice(12, 13), [2.0, 2.0, 1.0]),
]
PARTS, WHERE, VALUES = zip(*TABLE, strict=True)
MIXED, FUNCTIONS = MixedLikelihood(tuple(PARTS)), 13
# the columns before the ordinal ones, whose quadrature takes long to compile, and their functions
SHORT, SHORT_FUNCTIONS = 6, 11
Y = jnp.asarray(VALUES).T
MEAN = jnp.asarray(RNG.normal(0.0, 0.7, (ROWS, FUNCTIONS)))
INSIDE, OUTSIDE = jnp.asarray(RNG.uniform(0.05, 0.4, (2, ROWS, FUNCTIONS)))


@partial(jax.jit, static_argnames="alpha")
def tempered(likelihood, y, mean, variance, alpha):
    return likelihood.tempered(y, mean, variance, alpha)


@partial(jax.jit, static_argnames="alpha")
def tempered_outside(likelihood, y, mean, inside, outside, alpha):
    return likelihood.tempered_outside(y, mean, inside, outside, alpha)


def both(of: Callable[..., jax.Array], columns: int, *rows: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """``of(likelihood, y, …)`` of the first columns together, and of each by itself, (ROWS, columns).

    Likelihoods of a kind share what is compiled.
    """
    functions = slice(0, WHERE[columns - 1].stop)
    found = of(
        MixedLikelihood(tuple(PARTS[:columns])), Y[:, :columns], *(each[:, functions] for each in rows)
    )
    apart = [of(PARTS[c], Y[:, [c]], *(each[:, WHERE[c]] for each in rows)) for c in range(columns)]
    return np.asarray(found), np.concatenate(apart, 1)


@pytest.mark.parametrize("alpha, columns", [(0.0, SHORT), (0.5, SHORT), (1.0, len(PARTS))])
def test_tempered_is_that_of_each_column_by_itself(alpha, columns):
    found, expected = both(partial(tempered, alpha=alpha), columns, MEAN, INSIDE)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_tempered_outside_is_that_of_each_column_by_itself(alpha):
    found, expected = both(partial(tempered_outside, alpha=alpha), SHORT, MEAN, INSIDE, OUTSIDE)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


MATCHING = MixedLikelihood(
    (Gaussian(jnp.asarray(0.3)), Laplace(jnp.asarray(0.4)), Gaussian(jnp.asarray(0.7)))
)
CLOSED = Y[:, [0, 2, 3]], MEAN[:, :3], INSIDE[:, :3]


def test_alpha_of_each_datum_or_entry():
    alphas = jnp.asarray(RNG.uniform(size=(ROWS, 3)))
    value = jax.jit(lambda likelihood, y, m, v, alpha: likelihood.tempered(y, m, v, alpha))
    for given in (alphas, alphas[:, :1]):
        found, each = value(MATCHING, *CLOSED, given), jnp.broadcast_to(given, (ROWS, 3))
        columns = ([column] for column in range(3))
        expected = [value(MATCHING.parts[at[0]], *(a[:, at] for a in (*CLOSED, each))) for at in columns]
        np.testing.assert_allclose(found, np.concatenate(expected, 1), rtol=1e-10)


def test_values_are_leaves_and_their_gradients_those_of_each_column():
    assert len(jax.tree.leaves(MATCHING)) == 3
    slope = jax.jit(jax.grad(lambda likelihood, *rows: likelihood.tempered(*rows, 0.5).sum()))
    slopes = slope(MATCHING, *CLOSED)
    for column, part in enumerate(MATCHING.parts):
        expected = slope(part, *(each[:, [column]] for each in CLOSED))
        np.testing.assert_allclose(
            jax.tree.leaves(slopes.parts[column]), jax.tree.leaves(expected), rtol=1e-10
        )


def test_likelihoods_that_are_no_pytrees_are_told_apart():
    wide, narrow = (Scalar(lambda f, s=scale: dist.Normal(f, s), 24) for scale in (2.0, 0.5))
    likelihood = MixedLikelihood((wide, narrow, wide))
    found = jax.jit(lambda *rows: likelihood.tempered(*rows, 1.0))(*CLOSED)
    expected = Gaussian(jnp.asarray([4.0, 0.25, 4.0])).tempered(*CLOSED, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_32_bits_stay_32_bits():
    # likelihoods that differ in numbers, not arrays
    likelihood = MixedLikelihood((StudentT(4.0, 0.5), Beta(2.0), StudentT(5.0, 0.8)))
    y = jnp.asarray([[0.3, jnp.nan, 0.1]], jnp.float32)
    filled = jnp.where(jnp.isnan(y), likelihood.possible, y)
    rows = jnp.full((1, 3), 0.2, jnp.float32)
    found = jax.eval_shape(lambda y, m: likelihood.tempered(y, m, m, 1.0), filled, rows)
    assert filled.dtype == found.dtype == jnp.float32


def marginal(functions: int) -> Marginal:
    """Of a sparse GP at ROWS inputs."""
    x, z = jnp.linspace(-1.0, 1.0, ROWS)[:, None], jnp.asarray([[-0.8], [0.7]])
    return seed(sparse_gp, KEY)("gp", RBF(1.0, jnp.ones(1)), z, functions)(x)


@pytest.mark.slow
def test_missing_entries_count_for_nothing_and_leave_gradients_finite():
    likelihood, y, rows = MixedLikelihood(tuple(PARTS[:SHORT])), Y[:, :SHORT], (MEAN, OUTSIDE)
    mean, from_u = (each[:, :SHORT_FUNCTIONS] for each in rows)
    holes = np.zeros(y.shape, bool)
    holes[0, ::2] = holes[1, 1::2] = holes[2] = True
    here = marginal(SHORT_FUNCTIONS)

    def total(mean, from_u):
        emission = replace(here, mean=mean, from_u=from_u).observe(likelihood).partly_observed()
        return emission.tempered(jnp.where(holes, jnp.nan, y), 0.0).sum()

    value, slopes = jax.jit(jax.value_and_grad(total, (0, 1)))(mean, from_u)
    expected = tempered(likelihood, y, mean, here.residual + from_u, 0.0)[~holes].sum()
    assert float(value) == pytest.approx(float(expected), rel=1e-10)
    hidden = np.concatenate(
        [holes[:, [c]].repeat(w.stop - w.start, 1) for c, w in enumerate(WHERE[:SHORT])], 1
    )
    for slope in slopes:
        assert np.isfinite(slope).all()
        assert not slope[hidden].any() and slope[~hidden].all()


@pytest.mark.slow
def test_moments_are_those_of_draws():
    shape = (DRAWS, ROWS, FUNCTIONS)

    @jax.jit
    def both(mean, variance):
        draws = MIXED.sample(KEY, jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape))
        return draws, MIXED.moments(mean, variance)

    draws, (mean, variance) = both(MEAN, INSIDE)
    assert draws.shape == (DRAWS, ROWS, len(PARTS)) and mean.shape == variance.shape == (ROWS, len(PARTS))
    for column, part in enumerate(PARTS):
        y = np.asarray(draws[..., column])
        part.check(jnp.asarray(y))
        if part.unordered:
            # draws that are not the label; the nodes of Softmax add 10⁻² to the standard error √(p(1 − p)/S)
            missed = (y != mean[:, column]).mean(0)
            error = np.sqrt(missed * (1.0 - missed) / DRAWS)
            assert np.all(np.abs(missed - variance[:, column]) < 4.0 * error + 1e-2)
            for row in range(ROWS):
                shares = np.bincount(y[:, row].astype(int), minlength=3) / DRAWS
                assert shares[int(mean[row, column])] > shares.max() - 1e-2
            continue
        # standard errors of a mean, √(v/S), and of a variance, √((µ₄ − v²)/S)
        error = y.std(0) / np.sqrt(DRAWS)
        assert np.all(np.abs(y.mean(0) - mean[:, column]) < 4.0 * error)
        fourth = np.mean((y - y.mean(0)) ** 4, 0)
        error = np.sqrt((fourth - y.var(0) ** 2) / DRAWS)
        assert np.all(np.abs(y.var(0) - variance[:, column]) < 4.0 * error)
    # columns are drawn by themselves, also those that are evaluated together
    residuals = np.asarray(draws - draws.mean(0))
    correlation = np.corrcoef(residuals[:, 0].T)
    assert np.abs(correlation - np.eye(len(PARTS))).max() < 5.0 / np.sqrt(DRAWS)


def test_what_it_says_of_itself():
    assert MIXED.num_functions(len(PARTS)) == FUNCTIONS and MIXED.num_targets(FUNCTIONS) == len(PARTS)
    assert MIXED.unordered and not MATCHING.unordered
    assert MIXED.support is constraints.real
    assert MixedLikelihood((Bernoulli(), Bernoulli("logit"))).support is constraints.boolean
    np.testing.assert_array_equal(MIXED.possible, [0.0] * 4 + [1.0] + [0.0] * 3)
    assert marginal(FUNCTIONS).observe(MIXED).event_shape == (len(PARTS),)


@pytest.mark.parametrize(
    "column, value, message",
    [
        (0, np.inf, "y: found inf at row 1, column 0, expected finite numbers for Gaussian; encode"),
        (1, 3.0, "y: found 3.0 at row 1, column 1, expected whole labels 0 … 2 for Softmax"),
        (4, 0.0, "y: found 0.0 at row 1, column 4, expected positive numbers for Gamma"),
        (6, 1.5, "y: found 1.5 at row 1, column 6, expected whole labels 0 … 2 for Ordinal"),
    ],
)
def test_wrong_targets_are_named_with_their_column(column, value, message):
    MIXED.check(Y)
    MIXED.check(Y.at[1, column].set(jnp.nan))
    with pytest.raises(ValueError, match=message):
        MIXED.check(Y.at[1, column].set(value))


COLUMNS = ["gaussian", "bernoulli", "gaussian"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MixedLikelihood(()), "parts: found none, expected a likelihood for each column"),
        (
            lambda: MIXED.num_functions(3),
            "y: found 3 columns for Mixed of 8 likelihoods, expected one for each",
        ),
        (lambda: MIXED.check(Y[:, 1:]), "y: found 7 columns for Mixed of 8 likelihoods"),
        (
            lambda: marginal(12).observe(MIXED),
            "likelihood: found 12 functions for Mixed of 8 columns, expected 13; make the GP with num_outputs=13",
        ),
        (
            lambda: gplvm(4, likelihood=COLUMNS),
            "likelihood: found 3 for 4 columns, expected one for each of them",
        ),
        (
            lambda: gplvm(3, likelihood=COLUMNS, noise=0.1),
            "noise: found 0.1 beside a likelihood for each column",
        ),
        (
            lambda: gplvm(2, likelihood=["gaussian", "normal"]),
            "likelihood: found 'normal' for column 1, which is unk",
        ),
        (
            lambda: gplvm(2, likelihood=["gaussian", "softmax"]),
            r"likelihood: found 'softmax' for column 1, .* C classes; pass Softmax\(num_classes=C\)",
        ),
        (
            lambda: gplvm(2, likelihood=["robust-max", "gaussian"]),
            r"found 'robust-max' for column 0, .* pass RobustMax\(num_classes=C\)",
        ),
        (lambda: gplvm(1, likelihood=["ordinal"]), r"found 'ordinal' for column 0, .* pass Ordinal\(cuts\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def rough() -> Laplace:
    """Columns that share a scale which is learnt."""
    return Laplace(numpyro.param("rough/scale", jnp.asarray(0.5), constraint=constraints.positive))


@pytest.mark.slow
def test_a_gplvm_of_mixed_columns_with_holes():
    likelihood = ["gaussian", "bernoulli", "gaussian", "laplace", "poisson", Softmax(3, 16), rough, rough]
    model = gplvm(8, 2, 4, likelihood=likelihood, missing=True)
    guide, objective = Guide(model, hidden=MeanField()), PowerEP(0.0)
    columns = (
        RNG.normal(size=10), RNG.integers(0, 2, 10), RNG.normal(size=(10, 2)), RNG.poisson(2.0, 10),
        RNG.integers(0, 3, 10), RNG.normal(size=(10, 2)),
    )  # fmt: skip
    x, y = jnp.zeros((10, 0)), np.column_stack(columns)
    y[RNG.uniform(size=y.shape) < 0.2] = np.nan
    y = jnp.asarray(y)
    params = initial(KEY, model, guide, x, y)
    values = {name: value for name, value in params.items() if name.startswith(("likelihood/", "rough/"))}
    assert {name: value.shape for name, value in values.items()} == {
        "likelihood/gaussian/noise": (),
        "likelihood/laplace/scale": (),
        "rough/scale": (),
    }
    assert params["gp/u_loc"].shape[0] == 10
    value = lambda params: objective.loss(KEY, params, model, guide, x, y)
    found, slopes = jax.jit(jax.value_and_grad(value))(params)
    assert np.isfinite(found)
    assert all(np.isfinite(slope).all() for slope in slopes.values())
    # what is learnt is learnt from the columns that share it
    assert all(np.any(slopes[name]) for name in values)
