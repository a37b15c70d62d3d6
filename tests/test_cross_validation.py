"""Cross-validation against closed forms, stacking against an optimiser of its own, folds that know no future."""

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.model_selection import KFold, RepeatedKFold

from ppl_dgp import (
    Guide,
    MeanField,
    PowerEP,
    Standardiser,
    compare_elpd,
    cross_validate,
    data_plate,
    exact_gp_regression,
    fit_svi,
    forward_folds,
    gplvm,
    gpssm,
    row_log_density,
    sparse_gp,
    sparse_gp_classification,
    sparse_gp_regression,
    to_arviz,
)
from ppl_dgp.diagnostics import CrossValidation
from ppl_dgp.diagnostics.arviz_api import pointwise_elpd, stacking_weights
from ppl_dgp.kernels import Linear

KEY, BOUND = jax.random.key(4), PowerEP(0.0)
NOISE, ROWS = 0.3**2, 11
X = np.random.default_rng(0).normal(size=(ROWS, 2))
Y = X @ np.array([[1.0], [-0.5]]) + 0.3 * np.random.default_rng(1).normal(size=(ROWS, 1))


def linear_regression(x, y=None, index=None, size=None):
    """y_n ~ N(wᵀx_n, 0.3²), w ~ N(0, I): f at two points is w, so that q(u) holds the posterior."""
    f = sparse_gp("gp", Linear(jnp.ones(2)), jnp.eye(2))
    with data_plate(size or x.shape[0], index):
        return numpyro.sample("y", f(x).noisy(NOISE), obs=y)


def held_out(train, test):
    """log p(y_n | rows trained on) of Bayesian linear regression, in closed form."""
    precision = np.eye(2) + X[train].T @ X[train] / NOISE
    mean = np.linalg.solve(precision, X[train].T @ Y[train, 0] / NOISE)
    variance = np.einsum("nd,de,ne->n", X[test], np.linalg.inv(precision), X[test]) + NOISE
    return norm.logpdf(Y[test, 0], X[test] @ mean, np.sqrt(variance))


def validated(folds, model=linear_regression, **settings):
    settings = {"steps": 500, "learning_rate": 0.05, "chunk": 100} | settings
    return cross_validate(KEY, model, Guide(model), BOUND, X, Y, folds=folds, **settings)


def test_leaving_rows_out_is_as_in_closed_form():
    """Of each row alone also by the inverse of K = XXᵀ + s²I: mean y_i − [K⁻¹y]_i/[K⁻¹]_ii, variance 1/[K⁻¹]_ii."""
    inverse = np.linalg.inv(X @ X.T + NOISE * np.eye(ROWS))
    mean, variance = Y[:, 0] - inverse @ Y[:, 0] / np.diag(inverse), 1.0 / np.diag(inverse)
    expected = norm.logpdf(Y[:, 0], mean, np.sqrt(variance))
    others = [np.delete(np.arange(ROWS), row) for row in range(ROWS)]
    np.testing.assert_allclose([held_out(each, [row])[0] for row, each in enumerate(others)], expected)
    found = validated(ROWS)
    np.testing.assert_allclose(found.log_density, expected, atol=2e-3)
    assert sorted(found.fold) == list(range(ROWS)) and list(found.scores["test"]) == [1] * ROWS
    assert found.elpd == pytest.approx(expected.sum(), abs=0.01)
    assert found.se == pytest.approx(np.sqrt(ROWS) * expected.std(), abs=0.01)
    assert found.converged == all(fit.converged for fit in found.fits)
    assert list(found.scores["gap"]) == [fit.gap for fit in found.fits]


@pytest.mark.slow
def test_folds_of_unequal_length_train_side_by_side():
    """Eleven rows in three folds, by scikit-learn; the rows appended to two of them count for nothing."""
    splitter = KFold(3, shuffle=True, random_state=0)
    found = validated(splitter)
    assert list(found.scores["train"]) == [7, 7, 8]
    # of one program all have the time
    assert len({round(fit.compile_seconds, 12) for fit in found.fits}) == 1
    for number, (train, test) in enumerate(splitter.split(X)):
        np.testing.assert_allclose(found.log_density[test], held_out(train, test), atol=2e-3)
        assert set(found.fold[test]) == {number}
        errors = (
            X[test] @ np.linalg.solve(NOISE * np.eye(2) + X[train].T @ X[train], X[train].T @ Y[train])
            - Y[test]
        )
        assert found.scores["test_rmse"][number] == pytest.approx(np.sqrt(np.square(errors).mean()), abs=2e-3)


@pytest.mark.slow
def test_an_exact_gp_is_left_out_by_its_evidence():
    """Each fold's density is that of the GP with its own hyperparameters, which are fitted one after another."""
    model = exact_gp_regression()
    found = cross_validate(KEY, model, None, None, X, Y, folds=3)
    for number, fit in enumerate(found.fits):
        test, train = np.flatnonzero(found.fold == number), np.flatnonzero(found.fold != number)
        names = {name.rpartition("/")[2]: np.asarray(value) for name, value in fit.params.items()}
        scaled = X / names["lengthscale"]
        squares = np.square(scaled[:, None] - scaled).sum(-1)
        covariance = names["variance"] * np.exp(-0.5 * squares)
        seen = covariance[np.ix_(train, train)] + names["noise"] * np.eye(len(train))
        gain = np.linalg.solve(seen, covariance[train])
        mean = gain[:, test].T @ Y[train, 0]
        variance = names["variance"] + names["noise"] - (gain * covariance[train]).sum(0)[test]
        np.testing.assert_allclose(
            found.log_density[test], norm.logpdf(Y[test, 0], mean, np.sqrt(variance)), atol=1e-5
        )


@pytest.mark.slow
def test_results_are_in_original_units():
    """Ten times y, and x on another scale, is the same problem where each fold brings its columns to its own scale."""
    model = sparse_gp_regression(3)
    about = {"folds": 2, "standardise": True, "steps": 20}
    first = cross_validate(KEY, model, Guide(model), BOUND, X, Y, **about)
    other = cross_validate(KEY, model, Guide(model), BOUND, 5.0 * X - 2.0, 10.0 * Y + 3.0, **about)
    np.testing.assert_allclose(other.log_density, first.log_density - np.log(10.0), rtol=1e-6)
    np.testing.assert_allclose(other.scores["test_rmse"], 10.0 * first.scores["test_rmse"], rtol=1e-6)
    # targets that were standardised before
    known = Standardiser.fit(Y)
    plain = cross_validate(KEY, model, Guide(model), BOUND, X, known.transform(Y), folds=2, steps=20)
    scaled = cross_validate(
        KEY, model, Guide(model), BOUND, X, known.transform(Y), folds=2, steps=20, target_scale=known
    )
    np.testing.assert_allclose(scaled.log_density, plain.log_density - np.log(known.scale[0]))
    with pytest.raises(ValueError, match="target_scale: found one beside"):
        cross_validate(KEY, model, Guide(model), BOUND, X, Y, standardise=True, target_scale=2.0)


@given(
    rows=some.integers(2, 60), count=some.integers(1, 8), horizon=some.integers(1, 9), gap=some.integers(0, 5),
    longest=some.none() | some.integers(1, 20),
)  # fmt: skip
def test_forward_folds_never_see_the_future(rows, count, horizon, gap, longest):
    first = rows - count * horizon - gap
    if first < 1:
        with pytest.raises(ValueError, match="num_folds: found"):
            forward_folds(rows, count, horizon=horizon, gap=gap, longest=longest)
        return
    folds = forward_folds(rows, count, horizon=horizon, gap=gap, longest=longest)
    assert len(folds) == count
    for train, test in folds:
        assert len(train) and train[-1] + gap + 1 == test[0]
        assert len(test) == horizon and (longest is None or len(train) <= longest)
        assert np.all(np.diff(train) == 1) and np.all(np.diff(test) == 1)
    assert list(np.concatenate([test for _, test in folds])) == list(range(rows - count * horizon, rows))


@pytest.mark.slow
def test_a_number_of_folds_holds_each_row_out_once_by_the_key():
    about = {"steps": 1, "chunk": 1}
    one, again = validated(4, **about), validated(4, **about)
    np.testing.assert_array_equal(one.fold, again.fold)
    assert sorted(np.bincount(one.fold)) == [2, 3, 3, 3]
    np.testing.assert_array_equal(one.log_density, again.log_density)
    forward = validated(forward_folds(ROWS, 2, horizon=3), **about)
    assert list(forward.fold) == [-1] * 5 + [0] * 3 + [1] * 3
    assert np.isnan(forward.log_density[:5]).all() and list(forward.rows) == list(range(5, ROWS))


@pytest.mark.parametrize(
    ("folds", "error", "said"),
    [
        (1, ValueError, "folds: found 1, expected from 2"),
        (ROWS + 1, ValueError, "folds: found 12"),
        ([(np.arange(8), np.arange(7, 11))], ValueError, "trained on and held out"),
        ([(np.arange(8), np.arange(8, 12))], ValueError, "found rows 8 to 11, expected from 0 to 10"),
        ([(np.arange(11) < 8, np.arange(11) >= 8)], ValueError, "take numpy.flatnonzero"),
        ([(np.arange(8), np.arange(0))], ValueError, "found one without rows"),
        (RepeatedKFold(n_splits=2, n_repeats=3), ValueError, "held out 3 times"),
    ],
    ids=["one", "many", "both", "outside", "mask", "empty", "repeated"],
)
def test_folds_that_are_none_are_refused(folds, error, said):
    with pytest.raises(error, match=said):
        validated(folds)


def test_rows_of_x_and_y_must_agree():
    with pytest.raises(ValueError, match="y: found 10 rows beside 11 of x"):
        cross_validate(KEY, linear_regression, Guide(linear_regression), BOUND, X, Y[:10])


def by_scipy(log_density):
    """The best weights of a mixture, by BFGS over their logits."""
    loss = lambda logits: -logsumexp(log_density + (logits - logsumexp(logits))[:, None], axis=0).sum()
    starts = [np.zeros(len(log_density)), *(3.0 * np.eye(len(log_density)))]
    found = min((minimize(loss, start, method="BFGS") for start in starts), key=lambda each: each.fun)
    return np.exp(found.x - logsumexp(found.x)), found.fun


@pytest.mark.parametrize("offset", [0.0, -2000.0])
def test_stacking_weights_are_those_of_another_optimiser(offset):
    """Also where the densities themselves are no numbers."""
    random = np.random.default_rng(3)
    log_density = offset + random.normal(size=(3, 200)) + np.array([[0.3], [0.0], [-1.0]])
    expected, least = by_scipy(log_density)
    weights = stacking_weights(log_density)
    assert weights.sum() == pytest.approx(1.0) and (weights >= 0.0).all()
    np.testing.assert_allclose(weights, expected, atol=2e-3)
    assert -logsumexp(log_density + np.log(weights + 1e-300)[:, None], axis=0).sum() == pytest.approx(
        least, abs=1e-3
    )


def test_densities_of_other_targets_are_not_compared():
    """Their sums would differ by the logarithm of the units, or by what each row holds."""

    def one(y):
        rows = np.arange(len(y))
        return CrossValidation(-np.square(y[:, 0]), 0 * rows, pd.DataFrame(), [], 1, y)

    y = np.random.default_rng(5).normal(size=(12, 1))
    assert len(compare_elpd({"a": one(y), "b": one((3.0 + y).astype(np.float32))})) == 2
    for other in (10.0 * y, y[::-1], np.hstack([y, y])):
        with pytest.raises(ValueError, match="results: found 'b' of other targets than 'a'"):
            compare_elpd({"a": one(y), "b": one(other)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.filterwarnings("ignore:Comparing LOO-CV to K-fold-CV")
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")
def test_folds_stand_beside_leaving_one_out():
    """Of the same model k-fold ELPD and LOO agree; ArviZ compares them too, and so do we."""
    fit = fit_svi(
        KEY, linear_regression, Guide(linear_regression), BOUND, X, Y, steps=500, learning_rate=0.05
    )
    leaving, folds = to_arviz(KEY, fit, X, Y), validated(ROWS)
    noisy = validated(ROWS, sparse_gp_regression(2), steps=10)
    table = compare_elpd({"folds": folds, "loo": leaving, "other": noisy})
    np.testing.assert_allclose(table.loc["loo", "elpd"], folds.elpd, atol=0.5)
    of_loo = pointwise_elpd(leaving)
    values = np.stack([folds.log_density, of_loo, noisy.log_density])
    best = values[values.sum(1).argmax()]
    for name, each in zip(("folds", "loo", "other"), values, strict=True):
        row = table.loc[name]
        assert row["elpd_diff"] == pytest.approx((each - best).sum())
        assert row["dse"] == pytest.approx(np.sqrt(ROWS * (each - best).var()))
    assert table.index[-1] == "other" and table["weight"].sum() == pytest.approx(1.0)
    by_arviz = az.compare({"folds": folds.to_elpd(), "loo": leaving})
    column = "elpd" if "elpd" in by_arviz else "elpd_loo"
    assert by_arviz.loc["folds", column] == pytest.approx(folds.elpd, abs=0.5)  # 1.x rounds
    assert "11" in str(folds.to_elpd()) and f"{folds.elpd:.2f}" in repr(folds)
    for wrong, error, said in (
        ({"folds": folds}, ValueError, "expected at least two"),
        ({"folds": folds, "half": validated(forward_folds(ROWS, 2), steps=1)}, ValueError, "of other rows"),
        ({"folds": folds, "fit": fit}, TypeError, "results: found Fit"),
    ):
        with pytest.raises(error, match=said):
            compare_elpd(wrong)


def test_another_training_takes_the_place_of_fits_side_by_side():
    seen = []

    def train(key, model, guide, objective, x, y, **settings):
        seen.append((len(x), settings))
        return fit_svi(key, model, guide, objective, x, y, **settings)

    settings = {"steps": 30, "chunk": 10, "learning_rate": 0.05}
    alone, together = validated(3, train=train, **settings), validated(3, **settings)
    assert seen == [(7, settings), (7, settings), (8, settings)]
    np.testing.assert_allclose(alone.log_density, together.log_density, rtol=1e-6)


@pytest.mark.slow
def test_steps_of_a_series_are_predicted_from_those_before():
    """The first step held out is a forecast of one step; of growing series the folds train one after another."""
    random = np.random.default_rng(0)
    y = np.sin(0.6 * np.arange(24.0))[:, None] + 0.1 * random.normal(size=(24, 1))
    model = gpssm(1, num_inducing=5)
    about = {"steps": 200, "learning_rate": 0.02}
    folds = forward_folds(24, 2, horizon=3)
    found = cross_validate(KEY, model, Guide(model), BOUND, None, y, folds=folds, num_samples=4000, **about)
    for number, (train, test) in enumerate(folds):
        ahead = found.fits[number].forecast(
            KEY, None, jnp.asarray(y[train]), 1, y_future=jnp.asarray(y[test[:1]]), num_samples=4000
        )
        assert found.log_density[test[0]] == pytest.approx(ahead.log_density[0], abs=0.1)
    with_gap = cross_validate(
        KEY,
        model,
        Guide(model),
        BOUND,
        None,
        y,
        folds=forward_folds(24, 2, horizon=2, gap=1, longest=10),
        **about,
    )
    assert np.isfinite(with_gap.log_density[-4:]).all() and list(with_gap.scores["train"]) == [10, 10]
    with pytest.raises(ValueError, match="take forward_folds"):
        cross_validate(KEY, model, Guide(model), BOUND, None, y, folds=3, steps=1)


@pytest.mark.slow
def test_classes_and_latents_have_densities_of_their_own():
    labels = (X[:, 0] > 0).astype(int) + (X[:, 0] > 1)
    model = sparse_gp_classification(3, num_inducing=4)
    found = cross_validate(KEY, model, Guide(model), BOUND, X, labels, folds=2, steps=100, standardise=True)
    assert {"test_accuracy", "test_calibration_error"} <= set(found.scores)
    assert (found.log_density < 0.0).all()
    views = np.concatenate([X, X @ np.array([[1.0], [0.5]])], 1)
    latent = gplvm(3, 1, num_inducing=4)
    found = cross_validate(KEY, latent, Guide(latent, MeanField()), BOUND, None, views, folds=2, steps=100)
    test = np.flatnonzero(found.fold == 0)
    own = jax.random.fold_in(jax.random.split(KEY, 3)[2], 0)
    np.testing.assert_allclose(
        found.log_density[test], row_log_density(own, found.fits[0], None, views[test]), rtol=1e-6
    )
