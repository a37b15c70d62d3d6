"""The forecaster: the units, labels and horizons of what a state space model says of the steps ahead."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from ppl_dgp.diagnostics.arviz_api import group
from ppl_dgp.estimators import GPSSMForecaster
from ppl_dgp.estimators.horizons import Timeline, checked_horizon
from ppl_dgp.prediction.forecast import forecast

SIZE, AHEAD = 60, 6
rng = np.random.default_rng(0)
CONTROL = np.sign(np.sin(np.arange(SIZE + AHEAD) / 4.0)) * 10.0
SERIES = np.empty(SIZE + AHEAD)
state = 0.0
for step in range(SIZE + AHEAD):
    state = 0.8 * state + 0.05 * CONTROL[step]
    SERIES[step] = 100.0 + 20.0 * state + rng.normal(0.0, 1.0)
DAYS = pd.date_range("2024-01-01", periods=SIZE + AHEAD, freq="D")
Y = pd.Series(SERIES, DAYS, name="level")
X = pd.DataFrame({"valve": CONTROL}, DAYS)


@pytest.fixture(scope="module")
def fitted() -> GPSSMForecaster:
    y = Y[:SIZE].copy()
    y.iloc[10] = np.nan  # an entry may be missing
    # the noise is that of the series, of a deviation of one; a bound at its optimum is not needed here
    model = GPSSMForecaster(latent=1, num_inducing=6, steps=40, num_samples=400, random_state=0)
    return model.fit(y, X[:SIZE])


@pytest.mark.slow
def test_a_forecast_is_that_of_the_fit_in_units_of_y(fitted: GPSSMForecaster) -> None:
    steps = np.arange(1, AHEAD + 1)
    mean = fitted.predict(steps, X[SIZE:])
    assert list(mean.index) == list(DAYS[SIZE:]) and mean.name == "level"
    rows, targets = map(jnp.asarray, fitted._trained_on)
    controls = (CONTROL[SIZE:, None] - CONTROL[:SIZE].mean()) / CONTROL[:SIZE].std()
    own = forecast(
        jax.random.key(fitted._seed + 1), fitted.fit_, rows, targets, jnp.asarray(controls), num_samples=400
    )
    level, scale = np.nanmean(Y[:SIZE].drop(DAYS[10])), np.nanstd(Y[:SIZE].drop(DAYS[10]))
    assert_allclose(mean, level + scale * own.mean[:, 0], rtol=1e-10)
    assert_allclose(fitted.predict_var(steps, X[SIZE:])["level"], scale**2 * own.variance[:, 0], rtol=1e-10)
    draws = level + scale * own.samples[:, :, 0]
    interval = fitted.predict_interval(steps, X[SIZE:], coverage=[0.5, 0.9])
    assert_allclose(interval["level", 0.9, "upper"], np.quantile(draws, 0.95, axis=0), rtol=1e-10)
    assert_allclose(interval["level", 0.5, "lower"], np.quantile(draws, 0.25, axis=0), rtol=1e-10)
    quantiles = fitted.predict_quantiles(steps, X[SIZE:], alpha=0.95)
    assert_allclose(quantiles["level", 0.95], interval["level", 0.9, "upper"], rtol=1e-12)
    # some steps of a horizon are those of the whole; a number is one step
    assert_allclose(fitted.predict([2, 6], X[SIZE:]), mean.iloc[[1, 5]], rtol=1e-12)
    assert fitted.predict(6, X[SIZE:]).iloc[0] == mean.iloc[5]


def test_it_learns_the_series(fitted: GPSSMForecaster) -> None:
    """A linear system: the noiseless path from the last state is what the best forecast would say."""
    found = fitted.predict(np.arange(1, AHEAD + 1), X[SIZE:])
    interval = fitted.predict_interval(np.arange(1, AHEAD + 1), X[SIZE:], coverage=0.95)["level", 0.95]
    assert np.sqrt(np.mean((found - Y[SIZE:]) ** 2)) < 0.4 * Y.std()
    assert ((interval["lower"] < Y[SIZE:]) & (Y[SIZE:] < interval["upper"])).mean() >= 0.6
    assert np.isfinite(fitted.elbo_) and fitted.n_iter_ <= 40
    data = fitted.to_arviz(num_draws=8, num_locals=1)
    assert list(group(data, "constant_data")["input"].values) == ["valve"]


@pytest.mark.slow
def test_new_steps_are_seen_without_training(fitted: GPSSMForecaster) -> None:
    model = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(model.predict([1, 2], X[SIZE:]), fitted.predict([1, 2], X[SIZE:]))
    before = {name: value.copy() for name, value in model.params_.items()}
    model.update(Y[SIZE : SIZE + 2], X[SIZE : SIZE + 2]).update(
        Y[SIZE + 2 : SIZE + 4], X[SIZE + 2 : SIZE + 4]
    )
    assert model.cutoff_ == DAYS[SIZE + 3]
    after = model.predict([1, 2], X[SIZE + 4 :])
    assert list(after.index) == list(DAYS[SIZE + 4 :])
    for name, value in before.items():
        assert_array_equal(value, model.params_[name])
    # a state that is seen to have moved is followed
    far = pickle.loads(pickle.dumps(fitted)).update(Y[SIZE : SIZE + 4] + 60.0, X[SIZE : SIZE + 4])
    assert (far.predict([1], X[SIZE + 4 :]) - model.predict([1], X[SIZE + 4 :])).iloc[0] > 1.0
    with pytest.raises(ValueError, match="y: found an index that begins at"):
        model.update(Y[:2], X[:2])


@pytest.mark.slow
def test_training_anew_is_a_fit_of_all_steps(fitted: GPSSMForecaster) -> None:
    y = Y[:SIZE].copy()
    y.iloc[10] = np.nan
    whole = clone(fitted).set_params(steps=5)
    parts = clone(whole).fit(y[:50], X[:50]).update(y[50:], X[50:SIZE], update_params=True)
    assert_allclose(
        parts.predict([1, 2], X[SIZE:]), whole.fit(y, X[:SIZE]).predict([1, 2], X[SIZE:]), rtol=1e-10
    )


@pytest.mark.slow
def test_arrays_come_out_as_arrays_and_several_series_as_columns() -> None:
    y = np.column_stack([SERIES[:20], -SERIES[:20]])
    model = GPSSMForecaster(num_inducing=4, steps=2, num_samples=20, hidden="conditional", learning_rate=0.01)
    found = model.fit(y).predict([1, 3])
    assert isinstance(found, np.ndarray) and found.shape == (2, 2)
    table = model.predict_quantiles([1, 3], alpha=[0.1, 0.9])
    assert list(table.columns) == [(0, 0.1), (0, 0.9), (1, 0.1), (1, 0.9)] and list(table.index) == [20, 22]
    with pytest.raises(ValueError, match="X: found controls, expected None"):
        model.predict(1, np.ones((1, 1)))


@pytest.mark.parametrize(
    "index, labels",
    [
        (pd.period_range("2024-01", periods=4, freq="M"), pd.period_range("2024-06", periods=1, freq="M")),
        (pd.date_range("2024-01-31", periods=4, freq="ME"), pd.DatetimeIndex(["2024-06-30"])),
        (pd.RangeIndex(10, 18, 2), pd.Index([20])),
        (pd.Index([1.5, 1.7, 4.0, 9.0]), pd.Index([5])),
    ],
    ids=["months", "ends of months", "every other", "no rhythm"],
)
def test_an_index_goes_on_in_its_rhythm(index, labels) -> None:
    line = Timeline.of(pd.Series(np.zeros(4), index), 4)
    assert list(line.ahead(np.array([2]))) == list(labels)


def test_wrong_horizons_controls_and_series_name_themselves(fitted: GPSSMForecaster) -> None:
    for wrong in (0, [2, 1], [1.5], []):
        with pytest.raises(ValueError, match="fh: found"):
            checked_horizon(wrong)
    new = GPSSMForecaster(num_inducing=3, steps=2)
    with pytest.raises(NotFittedError):
        new.predict(1)
    for call, words in [
        (lambda: fitted.predict([7], X[SIZE:]), "X: found 6 rows, expected 7"),
        (lambda: fitted.predict([1]), "X: found None, expected controls"),
        (
            lambda: fitted.predict([1, 2], X[SIZE + 2 :]),
            "X: found an index that begins at 2024-03-03.* 2024-03-01",
        ),
        (lambda: fitted.predict([1, 2], X[SIZE:][::-1]), "X: found an index that begins at 2024-03-06"),
        (lambda: fitted.update(Y[SIZE:], X[SIZE:][::-1]), "X: found an index that begins at"),
        (lambda: new.fit(Y, X[::-1]), "X: found an index that begins at 2024-03-06"),
        (lambda: new.fit(Y[::-1], X[::-1]), "y: found an index that does not rise"),
        (lambda: fitted.predict([1], np.ones((1, 2))), "X: found 2 columns, expected 1"),
        (lambda: fitted.predict_interval([1], X[SIZE:], 1.0), "coverage: found 1.0"),
        (lambda: fitted.predict_quantiles([1], X[SIZE:], 0.0), "alpha: found 0.0"),
        (lambda: new.fit(["a", "b"]), "y: found what are no numbers"),
        (lambda: new.fit(np.ones((3, 2, 2))), r"y: found shape \(3, 2, 2\)"),
        (lambda: new.fit(SERIES, np.full(SIZE + AHEAD, np.nan)), "X: found NaN"),
        (lambda: new.fit(SERIES, np.ones(3)), "X: found 3 rows, expected 66"),
        (lambda: clone(new).set_params(hidden="free").fit(SERIES), "conditional-free"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    assert len(fitted.predict([1, 2], X[SIZE:].reset_index(drop=True))) == 2  # an index of its own
