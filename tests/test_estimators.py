"""The scikit-learn estimators: their contract, their units, and what they compute."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from contract import keeps_all, keeps_fast_part
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ppl_dgp.diagnostics import layer_maps
from ppl_dgp.estimators import (
    AdditiveGPRegressor,
    DeepGPClassifier,
    DeepGPRegressor,
    MultiOutputGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
    StackClassifier,
    StackRegressor,
)
from ppl_dgp.kernels import Matern32
from ppl_dgp.likelihoods import StudentT
from ppl_dgp.models.blocks import LatentInputs
from ppl_dgp.models.function_blocks import BayesianLayer, GPLayer

TINY = {
    "sparse": SparseGPRegressor(num_inducing=5, steps=100, learning_rate=0.1),
    "deep": DeepGPRegressor(widths=(1,), num_inducing=5, steps=100, learning_rate=0.1, num_samples=20),
    "sparse classes": SparseGPClassifier(num_inducing=10, steps=100, learning_rate=0.1),
    "deep classes": DeepGPClassifier(
        widths=(1,), num_inducing=10, steps=100, learning_rate=0.1, num_samples=20
    ),
    "stack": StackRegressor(
        blocks=(BayesianLayer(2), GPLayer()), num_inducing=5, steps=100, learning_rate=0.1, num_samples=20
    ),
    "stack classes": StackClassifier(
        blocks=(BayesianLayer(2), GPLayer()), num_inducing=10, steps=100, learning_rate=0.1, num_samples=20
    ),
    "additive": AdditiveGPRegressor(num_inducing=5, steps=100, learning_rate=0.1),
    "several": MultiOutputGPRegressor(num_inducing=5, steps=100, learning_rate=0.1),
    "smoothed": MultiOutputGPRegressor(smoothed=True, num_inducing=5, steps=100, learning_rate=0.1),
}


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(100.0, 200.0, (30, 1))
    return x, 1000.0 + 50.0 * np.sin(x[:, 0] / 15.0) + rng.normal(0.0, 5.0, 30)


@pytest.fixture(scope="module")
def sparse() -> SparseGPRegressor:
    return SparseGPRegressor(num_inducing=30, tolerance=1e-3, random_state=0).fit(*_data())


@pytest.mark.parametrize(
    "kind",
    ["sparse"]
    + [
        pytest.param(k, marks=pytest.mark.slow)
        for k in ("sparse classes", "stack classes", "additive", "several", "smoothed")
    ],
)
def test_fast_part_of_the_contract(kind: str) -> None:
    keeps_fast_part(TINY[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TINY)
def test_whole_contract(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_all(TINY[kind], monkeypatch)


def test_a_stack_of_gps_is_a_deep_gp() -> None:
    x, y = _data()
    settings = {"num_inducing": 4, "steps": 20, "learning_rate": 0.1, "num_samples": 5, "random_state": 0}
    deep = DeepGPRegressor(widths=(1,), **settings).fit(x, y)
    same = StackRegressor(blocks=[GPLayer(1), GPLayer()], **settings).fit(x, y)
    assert_allclose(same.predict(x), deep.predict(x), rtol=1e-8)


def test_a_stack_with_latents_predicts_in_the_units_of_y() -> None:
    x, y = _data()
    blocks = [LatentInputs(1), BayesianLayer(2), GPLayer(num_inducing=50)]
    stack = StackRegressor(blocks=blocks, steps=20, learning_rate=0.1, num_samples=20, random_state=0).fit(
        x, y
    )
    mean, deviation = stack.predict(x[:5], return_std=True)
    assert mean.shape == deviation.shape == (5,) and 800.0 < mean.min() and mean.max() < 1200.0
    assert clone(stack).blocks == blocks
    with pytest.raises(ValueError, match="kernel: found 'linear', expected none beside blocks"):
        StackRegressor(blocks=blocks, kernel="linear").fit(x, y)


def test_a_stack_of_gps_has_the_probabilities_of_a_deep_gp() -> None:
    x, y = load_iris(return_X_y=True)
    settings = {"num_inducing": 5, "steps": 10, "learning_rate": 0.1, "num_samples": 5, "random_state": 0}
    deep = DeepGPClassifier(widths=(1,), **settings).fit(x, y)
    same = StackClassifier(blocks=[GPLayer(1), GPLayer()], **settings).fit(x, y)
    assert_allclose(same.predict_proba(x), deep.predict_proba(x), rtol=1e-7)


def test_a_network_tells_classes_apart() -> None:
    """Two rings, which no line divides; labels are words."""
    rng = np.random.default_rng(0)
    radius, angle = np.repeat([0.5, 2.0], 40), rng.uniform(0.0, 2.0 * np.pi, 80)
    x = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.normal(size=(80, 2))
    y = np.where(radius > 1.0, "out", "in")
    network = StackClassifier(
        blocks=(BayesianLayer(8), BayesianLayer(activation="tanh")),
        inducing_rule="diagonal",
        steps=600,
        learning_rate=0.02,
        random_state=0,
    )
    assert network.fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.9
    assert network.predict_proba(x).shape == (80, 2)


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


def _two_features() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.uniform(-2.0, 2.0, (40, 2)) * np.array([1.0, 50.0])
    return x, 100.0 + 10.0 * np.sin(2.0 * x[:, 0]) + 0.2 * x[:, 1] + rng.normal(0.0, 0.1, 40)


def test_an_additive_prediction_is_the_sum_of_its_terms() -> None:
    x, y = _two_features()
    model = AdditiveGPRegressor(num_inducing=8, steps=150, learning_rate=0.1, random_state=0).fit(x, y)
    terms = layer_maps(model._posterior(), jnp.asarray((x - x.mean(0)) / x.std(0)))
    total = y.mean() + y.std() * sum(term.mean for term in terms)
    assert_allclose(model.predict(x), total[:, 0], rtol=1e-9)
    assert_allclose(model.explained_, [term.mean.var(0) for term in terms], rtol=1e-9)
    # what a term makes of a feature does not depend on the other, and each explains its share
    effects = [
        model.predict(x * [1.0, 0.0] + [0.0, at]) - model.predict(x * 0.0 + [0.0, at]) for at in (0.0, 30.0)
    ]
    assert_allclose(*effects, atol=1e-8)
    share = np.array([10.0 * np.sin(2.0 * x[:, 0]), 0.2 * x[:, 1]]).var(1) / y.var()
    assert_allclose(model.explained_[:, 0], share, atol=0.1)


@pytest.mark.slow
def test_terms_of_several_columns_and_targets() -> None:
    x, y = _two_features()
    model = AdditiveGPRegressor(groups=[(0, 1), (1,)], num_inducing=4, steps=2)
    model.fit(x, np.stack([y, -y], 1))
    # of each term and target
    assert model.explained_.shape == (2, 2) and model.predict(x).shape == (40, 2)


def test_missing_targets_are_filled_from_the_others() -> None:
    x, y = _two_features()
    targets = np.stack([y, -3.0 * y + 5.0], 1)
    targets[::2, 0] = np.nan
    targets[1::4, 1] = np.nan
    settings = dict(num_latents=1, num_inducing=10, steps=150, learning_rate=0.1, random_state=0)
    model = MultiOutputGPRegressor(**settings).fit(x, targets)
    mean, deviation = model.predict(x, return_std=True)
    assert mean.shape == deviation.shape == (40, 2) and (deviation > 0.0).all()
    # standardised by the entries that are there
    assert_allclose(model.y_units_.mean, np.nanmean(targets, 0))
    assert_allclose(model.y_units_.scale, np.nanstd(targets, 0))
    gone = np.isnan(targets[:, 0])
    assert np.sqrt(np.mean((mean[gone, 0] - y[gone]) ** 2)) < 0.5 * y.std()
    # where no target has gaps, to say that some may have changes nothing
    whole = np.stack([y, -3.0 * y + 5.0], 1)
    assert_array_equal(
        clone(model).set_params(steps=3).fit(x, whole).predict(x[:5]),
        clone(model).set_params(steps=3).fit(x, whole.tolist()).predict(x[:5]),
    )


@pytest.mark.slow
def test_an_entry_of_a_convolved_target_that_is_missing_is_predicted() -> None:
    x, y = _two_features()
    targets = np.stack([y, -3.0 * y + 5.0], 1)
    targets[::2, 0] = np.nan
    model = MultiOutputGPRegressor(
        smoothed=True, num_latents=1, num_inducing=10, steps=300, learning_rate=0.1, random_state=0
    ).fit(x, targets)
    assert np.sqrt(np.mean((model.predict(x)[::2, 0] - y[::2]) ** 2)) < 0.5 * y.std()
    with pytest.raises(ValueError, match="kernel: found 'matern32'"):
        clone(model).set_params(kernel="matern32").fit(x, targets)


@pytest.mark.parametrize(
    "model, targets, words",
    [
        (AdditiveGPRegressor(groups=[(0, 5)]), np.zeros(20), "groups: found the column 5"),
        (AdditiveGPRegressor(groups=[()]), np.zeros(20), "groups"),
        (MultiOutputGPRegressor(), np.zeros(20), r"y: found shape \(20,\)"),
        (MultiOutputGPRegressor(), np.array([[1.0, np.nan]] * 20), "no entry in column 1"),
        (MultiOutputGPRegressor(), np.full((20, 2), np.inf), "infinity"),
        (MultiOutputGPRegressor(num_latents=0), np.eye(20)[:, :2], "num_latents"),
    ],
)
def test_bad_targets_and_settings_of_sums_and_mixtures_name_themselves(model, targets, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        clone(model).set_params(num_inducing=3, steps=2).fit(np.arange(40.0).reshape(20, 2), targets)
