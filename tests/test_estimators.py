"""The scikit-learn estimators: their contract, their units, and what they compute."""

import pickle

import jaxtyping
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from ppl_dgp import estimators
from ppl_dgp.estimators import DeepGPRegressor, SparseGPRegressor

TINY = {
    "sparse": SparseGPRegressor(num_inducing=5, steps=100, learning_rate=0.1),
    "deep": DeepGPRegressor(widths=(1,), num_inducing=5, steps=100, learning_rate=0.1, num_samples=20),
}
# cheap, and every one of them has caught an estimator of this kind before
FAST_CHECKS = {
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimators_unfitted",
    "check_estimators_nan_inf",
    "check_regressors_no_decision_function",
    "check_get_params_invariance",
    "check_set_params",
    "check_n_features_in_after_fitting",
    "check_fit1d",
}


def _name(check) -> str:
    return getattr(check, "func", check).__name__


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(100.0, 200.0, (30, 1))
    return x, 1000.0 + 50.0 * np.sin(x[:, 0] / 15.0) + rng.normal(0.0, 5.0, 30)


@pytest.fixture(scope="module")
def sparse() -> SparseGPRegressor:
    return SparseGPRegressor(num_inducing=30, steps=1500, learning_rate=0.05, random_state=0).fit(*_data())


@pytest.mark.parametrize("kind", ["sparse"])
def test_fast_part_of_the_contract(kind: str) -> None:
    checks = [
        (estimator, check)
        for estimator, check in estimator_checks_generator(TINY[kind])
        if _name(check) in FAST_CHECKS
    ]
    assert len(checks) >= 8
    for estimator, check in checks:
        check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_whole_contract(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # it hands -1 and the like to __init__, which is to keep them: only fit may complain
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    check_estimator(TINY[kind])


def test_inducing_inputs_at_the_rows_give_the_exact_gp(sparse: SparseGPRegressor) -> None:
    x, y = _data()
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    standard = (x - x.mean()) / x.std()
    exact = GaussianProcessRegressor(kernel, alpha=0.0).fit(standard, (y - y.mean()) / y.std())
    mean, deviation = exact.predict(standard, return_std=True)
    found, spread = sparse.predict(x, return_std=True)
    # Adam at a fixed rate ends near the optimum, not on it: within a tenth of the noise
    assert_allclose(found, y.mean() + y.std() * mean, atol=0.5)
    assert_allclose(spread, y.std() * deviation, rtol=0.05)


def test_estimator_survives_clone_pickle_and_pipeline(sparse: SparseGPRegressor) -> None:
    x, y = _data()
    expected = sparse.predict(x)
    estimators._program.cache_clear()  # as in a process that has not seen the model
    again = pickle.loads(pickle.dumps(sparse))
    assert_array_equal(again.predict(x), expected)
    fresh = clone(sparse)
    with pytest.raises(NotFittedError):
        fresh.predict(x)
    pipeline = make_pipeline(StandardScaler(), clone(sparse)).fit(x, y)
    # standardising twice is standardising once, up to rounding that 1500 steps of Adam magnify
    assert_allclose(pipeline.predict(x), again.predict(x), rtol=1e-3)
    assert sparse.score(x, y) > 0.9


def test_deep_gp_predicts_several_targets_in_their_shape() -> None:
    x, y = _data()
    targets = np.stack([y, -2.0 * y], 1)
    model = clone(TINY["deep"]).set_params(random_state=1).fit(x, targets)
    mean, deviation = model.predict(x[:7], return_std=True)
    assert mean.shape == deviation.shape == (7, 2) and (deviation > 0).all()
    assert_array_equal(model.predict(x[:7]), mean)
    # whatever rows stand beside them
    assert_allclose(model.predict(x)[:7], mean, rtol=1e-9)
    assert model.score(x, targets) > 0.5


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"kernel": "cosine"}, "rbf"),
        ({"kernel": "rbf+cosine"}, "'cosine'"),
        ({"inducing_rule": "full"}, "full-rank"),
        ({"objective": "elbo"}, "power-ep"),
        ({"hidden": "free"}, "conditional-free"),
        ({"alpha": 2.0}, r"\[0, 1\]"),
        ({"widths": (0,)}, "at least 1"),
        ({"num_inducing": 0}, "at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"learning_rate": -1.0}, "positive"),
    ],
)
def test_bad_settings_name_themselves(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        clone(TINY["deep"]).set_params(**settings).fit(*_data())
