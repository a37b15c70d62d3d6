"""The scikit-learn estimators: their contract, their units, and what they compute."""

import pickle

import jaxtyping
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from ppl_dgp.estimators import (
    DeepGPClassifier,
    DeepGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
)
from ppl_dgp.kernels import Matern32
from ppl_dgp.likelihoods import StudentT

TINY = {
    "sparse": SparseGPRegressor(num_inducing=5, steps=100, learning_rate=0.1),
    "deep": DeepGPRegressor(widths=(1,), num_inducing=5, steps=100, learning_rate=0.1, num_samples=20),
    "sparse classes": SparseGPClassifier(num_inducing=10, steps=100, learning_rate=0.1),
    "deep classes": DeepGPClassifier(
        widths=(1,), num_inducing=10, steps=100, learning_rate=0.1, num_samples=20
    ),
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
    "check_classifiers_one_label",
    "check_classifiers_regression_target",
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
    return SparseGPRegressor(num_inducing=30, tolerance=1e-3, random_state=0).fit(*_data())


@pytest.mark.parametrize("kind", ["sparse", pytest.param("sparse classes", marks=pytest.mark.slow)])
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
    # to within a fiftieth of the noise
    assert_allclose(found, y.mean() + y.std() * mean, atol=0.1)
    assert_allclose(spread, y.std() * deviation, rtol=0.02)


def test_estimator_survives_clone_pickle_and_pipeline(sparse: SparseGPRegressor) -> None:
    x, y = _data()
    expected = sparse.predict(x)
    again = pickle.loads(pickle.dumps(sparse))
    assert_array_equal(again.predict(x), expected)
    fresh = clone(sparse)
    with pytest.raises(NotFittedError):
        fresh.predict(x)
    pipeline = make_pipeline(StandardScaler(), clone(sparse)).fit(x, y)
    # standardising twice is standardising once, up to rounding that the descent magnifies
    assert_allclose(pipeline.predict(x), again.predict(x), rtol=1e-4)
    assert sparse.score(x, y) > 0.9


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def cancer() -> SparseGPClassifier:
    x, y = load_breast_cancer(return_X_y=True)
    words = np.array(["malignant", "benign"])[y[:150]]
    return SparseGPClassifier(num_inducing=15, steps=150, learning_rate=0.1, random_state=0).fit(
        x[:150], words
    )


@pytest.mark.slow
def test_two_classes_of_words(cancer: SparseGPClassifier) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x, words = x[150:250], np.array(["malignant", "benign"])[y[150:250]]
    assert list(cancer.classes_) == ["benign", "malignant"]
    p = cancer.predict_proba(x)
    assert p.shape == (100, 2) and (p >= 0.0).all()
    assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    assert_array_equal(cancer.predict(x), cancer.classes_[p.argmax(1)])
    # logistic regression has 0.96; the more frequent class alone 0.7
    assert cancer.score(x, words) > 0.9
    assert_array_equal(pickle.loads(pickle.dumps(cancer)).predict_proba(x[:5]), p[:5])


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [None, pytest.param("softmax", marks=pytest.mark.slow)])
def test_several_classes(likelihood: str | None) -> None:
    x, y = load_digits(return_X_y=True)
    keep = y < 3
    x, y = x[keep][:200], 10 * y[keep][:200]
    model = SparseGPClassifier(
        num_inducing=20, steps=100, learning_rate=0.1, likelihood=likelihood, random_state=0
    ).fit(x[:120], y[:120])
    assert_allclose(model.predict_proba(x[120:]).sum(1), 1.0, rtol=1e-9)
    assert set(model.predict(x[120:])) == {0, 10, 20}
    # by chance a third; robust-max, flat away from the borders, learns less from 120 rows than softmax does
    assert model.score(x[120:], y[120:]) > (0.8 if likelihood is None else 0.9)


@pytest.mark.slow
def test_deep_classifier_learns_a_border_that_is_not_linear() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = x[:, 0] * x[:, 1] > 0.0
    model = clone(TINY["deep classes"]).set_params(widths=(2,), random_state=0).fit(x[:60], y[:60])
    assert model.classes_.dtype == bool
    assert model.score(x[:60], y[:60]) > 0.85


@pytest.mark.slow
def test_targets_of_another_likelihood_keep_their_units() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(-1.0, 1.0, 40)[:, None]
    counts = rng.poisson(np.exp(1.0 + x[:, 0])).astype(float)
    settings = dict(num_inducing=5, steps=60, learning_rate=0.1, random_state=0)
    by_name = SparseGPRegressor(likelihood="poisson", **settings).fit(x, counts)
    assert_array_equal(by_name.y_units_.scale, 1.0)
    mean, deviation = by_name.predict(x, return_std=True)
    # the mean of the counts, about their own to within what sixty steps reach, and more than a Poisson's spread
    assert np.corrcoef(mean, np.exp(x[:, 0]))[0, 1] > 0.9
    assert (deviation**2 >= mean).all()
    robust = SparseGPRegressor(likelihood=StudentT(4.0, 0.3), kernel=Matern32(1.0, 0.5), **settings)
    robust = clone(robust).set_params(steps=2).fit(x, np.sin(x[:, 0]))
    assert robust.y_units_.scale[0] != 1.0 and {"likelihood/df", "likelihood/scale"} <= set(robust.params_)
    with pytest.raises(ValueError, match="likelihood: found 'cauchy', which is unknown"):
        SparseGPRegressor(likelihood="cauchy").fit(x, counts)


@pytest.mark.parametrize(
    "settings, labels, words",
    [
        ({}, np.zeros(20), "at least two"),
        ({}, np.linspace(0.0, 1.0, 20), "continuous"),
        ({"likelihood": "bernoulli"}, np.arange(20) % 3, "for 3 classes"),
        ({"likelihood": "probit"}, np.arange(20) % 2, "bernoulli-logit"),
        ({"num_inducing": 0}, np.arange(20) % 2, "at least 1"),
    ],
)
def test_bad_labels_and_settings_name_themselves(settings: dict, labels: np.ndarray, words: str) -> None:
    x = np.arange(20.0)[:, None]
    with pytest.raises(ValueError, match=words):
        clone(TINY["sparse classes"]).set_params(**settings).fit(x, labels)
