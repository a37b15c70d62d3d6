"""The scikit-learn estimators: their contract, their units, and what they compute."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from contract import keeps_all, keeps_fast_part
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ppl_dgp.diagnostics import layer_maps
from ppl_dgp.diagnostics.arviz_api import group
from ppl_dgp.estimators import (
    AdditiveGPRegressor,
    DeepGPClassifier,
    DeepGPRegressor,
    MultiOutputGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
    StackClassifier,
    StackRegressor,
    log_density_score,
)
from ppl_dgp.kernels import Matern32
from ppl_dgp.likelihoods import StudentT
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.models.blocks import LatentInputs
from ppl_dgp.models.function_blocks import BayesianLayer, GPLayer
from ppl_dgp.objectives import Collapsed
from ppl_dgp.streaming import Stream

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


#: whose whole contract is a campaign, half an hour together: others of the same base classes stand for them
LONG = ("additive", "deep", "deep classes", "several", "smoothed", "stack", "stack classes")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.campaign] * (k in LONG)) for k in TINY])
def test_whole_contract(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_all(TINY[kind], monkeypatch)


@pytest.mark.slow
def test_a_stack_of_gps_is_a_deep_gp() -> None:
    x, y = _data()
    settings = {"num_inducing": 4, "steps": 20, "learning_rate": 0.1, "num_samples": 5, "random_state": 0}
    deep = DeepGPRegressor(widths=(1,), **settings).fit(x, y)
    same = StackRegressor(blocks=[GPLayer(1), GPLayer()], **settings).fit(x, y)
    assert_allclose(same.predict(x), deep.predict(x), rtol=1e-8)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_stack_of_gps_has_the_probabilities_of_a_deep_gp() -> None:
    x, y = load_iris(return_X_y=True)
    settings = {"num_inducing": 5, "steps": 10, "learning_rate": 0.1, "num_samples": 5, "random_state": 0}
    deep = DeepGPClassifier(widths=(1,), **settings).fit(x, y)
    same = StackClassifier(blocks=[GPLayer(1), GPLayer()], **settings).fit(x, y)
    assert_allclose(same.predict_proba(x), deep.predict_proba(x), rtol=1e-7)


@pytest.mark.slow
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
    "wrong, words",
    [
        (
            lambda: SparseGPRegressor(likelihood="studentt"),
            "likelihood: .*; did you mean 'student-t'\\? choose from",
        ),
        (lambda: SparseGPRegressor(likelihood="negative_binomial"), "did you mean 'negative-binomial'\\?"),
        (lambda: SparseGPRegressor(likelihood="softmax"), "which is one of classes; take SparseGPClassifier"),
        (
            lambda: SparseGPRegressor(likelihood="bernoulli"),
            "which is one of classes; take SparseGPClassifier",
        ),
        (lambda: SparseGPRegressor(kernel="RBF"), "kernel: .*did you mean 'rbf'\\?"),
        (
            lambda: DeepGPRegressor(hidden="doubly_stochastic"),
            "hidden: .*did you mean 'doubly-stochastic'\\?",
        ),
        (lambda: SparseGPRegressor(objective="power_ep"), "objective: .*did you mean 'power-ep'\\?"),
        (lambda: SparseGPClassifier(likelihood="robustmax"), "likelihood: .*did you mean 'robust-max'\\?"),
        (lambda: SparseGPClassifier(likelihood="poisson"), "which is of no classes; choose from bernoulli"),
    ],
)
def test_unknown_names_ask_for_the_nearest(wrong, words: str) -> None:
    x = np.linspace(0.0, 1.0, 6)[:, None]
    with pytest.raises(ValueError, match=words):
        wrong().fit(x, np.arange(6) % 2)


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


@pytest.mark.slow
def test_an_additive_prediction_is_the_sum_of_its_terms() -> None:
    x, y = _two_features()
    model = AdditiveGPRegressor(num_inducing=8, steps=150, learning_rate=0.1, random_state=0).fit(x, y)
    terms = layer_maps(model.fit_, jnp.asarray((x - x.mean(0)) / x.std(0)))
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


@pytest.mark.slow
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
        (AdditiveGPRegressor(groups=[(0, 5)]), np.arange(20.0), "groups: found the column 5"),
        (AdditiveGPRegressor(groups=[()]), np.arange(20.0), "groups"),
        (MultiOutputGPRegressor(), np.zeros(20), r"y: found shape \(20,\)"),
        (MultiOutputGPRegressor(), np.array([[1.0, np.nan]] * 20), "no entry in column 1"),
        (MultiOutputGPRegressor(), np.full((20, 2), np.inf), "infinity"),
        (MultiOutputGPRegressor(num_latents=0), np.eye(20)[:, :2], "num_latents"),
    ],
)
def test_bad_targets_and_settings_of_sums_and_mixtures_name_themselves(model, targets, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        clone(model).set_params(num_inducing=3, steps=2).fit(np.arange(40.0).reshape(20, 2), targets)


@pytest.mark.slow
def test_a_covariance_and_draws_are_the_exact_gps(sparse: SparseGPRegressor) -> None:
    """Z = X under the parameters found: scikit-learn's GP at the same kernel and noise."""
    x, y = _data()
    p, scale = sparse.params_, y.std()
    kernel = ConstantKernel(p["gp/variance"]) * RBF(p["gp/lengthscale"]) + WhiteKernel(
        np.ravel(p["likelihood/noise"])[0]
    )
    standard = lambda rows: (rows - x.mean()) / x.std()
    exact = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(
        standard(x), (y - y.mean()) / scale
    )
    new = np.linspace(110.0, 190.0, 6)[:, None]
    expected, between = exact.predict(standard(new), return_cov=True)
    mean, covariance = sparse.predict(new, return_cov=True)
    # to within a fiftieth of the noise's variance
    assert_allclose(mean, y.mean() + scale * expected, atol=0.1)
    assert_allclose(covariance, scale**2 * between, atol=0.5)
    deviation = sparse.predict(new, return_std=True)[1]
    assert_allclose(np.sqrt(np.diag(covariance)), deviation, rtol=1e-5)
    draws = sparse.sample_y(new, 4000, random_state=1)
    assert draws.shape == (6, 4000)
    assert_allclose(np.cov(draws), covariance, atol=0.1 * covariance.max())
    assert_array_equal(sparse.sample_y(new, 3, random_state=1), sparse.sample_y(new, 3, random_state=1))
    low, median, high = sparse.predict_quantiles(new).T
    assert_allclose(median, mean, rtol=1e-6)
    assert_allclose([low, high], [mean + norm.ppf(p) * deviation for p in (0.025, 0.975)], rtol=1e-6)
    density = sparse.log_density(new, mean + deviation)
    assert_allclose(density, norm.logpdf(1.0) - np.log(deviation), rtol=1e-4)
    assert sparse.score(new, mean + deviation, scoring="log_density") == pytest.approx(density.mean())
    assert log_density_score(sparse, new, mean) == pytest.approx(norm.logpdf(0.0) - np.log(deviation).mean())
    for wrong, words in [
        (lambda: sparse.predict(new, return_std=True, return_cov=True), "return_cov: found True beside"),
        (lambda: sparse.predict_quantiles(new, (0.0,)), "quantiles: found 0.0"),
        (lambda: sparse.sample_y(new, 0), "n_samples: found 0"),
        (lambda: sparse.score(new, mean, scoring="auc"), "scoring: found 'auc'"),
        (lambda: sparse.log_density(new, np.ones((6, 2))), "y: found 2 columns, expected 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            wrong()


@pytest.mark.slow
def test_the_fit_is_kept_with_its_bound_and_the_names_of_columns(sparse: SparseGPRegressor) -> None:
    x, y = _data()
    # Z = X: the bound is the evidence of scikit-learn's GP at the same parameters, in standardised units
    p = sparse.params_
    kernel = ConstantKernel(p["gp/variance"]) * RBF(p["gp/lengthscale"]) + WhiteKernel(
        np.ravel(p["likelihood/noise"])[0]
    )
    exact = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)
    exact.fit((x - x.mean()) / x.std(), (y - y.mean()) / y.std())
    assert sparse.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=0.05)
    assert sparse.elbo_ == pytest.approx(-sparse.losses_[-1], abs=1e-3)
    named = clone(sparse).set_params(num_inducing=4, steps=2)
    named.fit(pd.DataFrame(np.column_stack([x, x**2]), columns=["dose", "age"]), pd.Series(y, name="answer"))
    data = named.to_arviz(num_draws=20, num_locals=1)
    constants = group(data, "constant_data")
    assert list(constants["input"].values) == list(constants["gp_input"].values) == ["dose", "age"]
    assert list(group(data, "posterior")["gp_output"].values) == ["answer"]
    served = pickle.loads(pickle.dumps(named))
    assert_array_equal(
        served.predict(x_new := pd.DataFrame({"dose": [150.0], "age": [2e4]})), named.predict(x_new)
    )
    with pytest.raises(ValueError, match="to_arviz: found no training rows"):
        served.to_arviz()
    with pytest.raises(AttributeError, match="elbo_: found no"):
        served.elbo_  # noqa: B018
    with pytest.raises(AttributeError, match="elbo_: found no fit"):
        clone(sparse).elbo_  # noqa: B018


def test_a_target_of_one_value_is_warned_of(sparse: SparseGPRegressor) -> None:
    x, y = _data()
    with pytest.warns(UserWarning, match="y: found a column of one value"):
        clone(sparse).set_params(steps=1).fit(x, np.full(len(y), 3.0))


@pytest.mark.slow
def test_a_weight_is_a_number_of_equal_rows() -> None:
    """The units too; inducing inputs at the rows, so that it begins at the same places in another order."""
    x, y = _data()
    x, y = x[:10], y[:10]
    times = np.array([1, 2, 0, 3, 1, 1, 0, 2, 1, 1])
    model = SparseGPRegressor(num_inducing=8, tolerance=1e-5, random_state=0)
    weighted = clone(model).fit(x, y, sample_weight=times)
    repeated = clone(model).fit(np.repeat(x, times, 0), np.repeat(y, times))
    assert_allclose(weighted.x_units_.scale, repeated.x_units_.scale, rtol=1e-12)
    assert_allclose(weighted.y_units_.mean, repeated.y_units_.mean, rtol=1e-12)
    assert weighted.elbo_ == pytest.approx(repeated.elbo_, abs=0.05)
    for each, same in zip(weighted.predict(x, True), repeated.predict(x, True), strict=True):
        assert_allclose(each, same, rtol=0.02)
    # weights that are one change nothing, not a bit
    some = clone(model).set_params(steps=2)
    assert_array_equal(some.fit(x, y).predict(x), some.fit(x, y, np.ones(10)).predict(x))
    with pytest.raises(ValueError, match="sample_weight: found weights for ApproximatePowerEP"):
        some.set_params(objective="approximate-power-ep").fit(x, y, times)


@pytest.mark.slow
def test_classes_are_weighted_and_have_log_probabilities(cancer: SparseGPClassifier) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x, words = x[150:180], np.array(["malignant", "benign"])[y[150:180]]
    p = cancer.predict_proba(x)
    found = cancer.log_density(x, words)
    assert_allclose(found, np.log(np.where(words == "benign", p[:, 0], p[:, 1])), rtol=1e-12)
    assert cancer.score(x, words, scoring="log_density") == pytest.approx(found.mean())
    with pytest.raises(ValueError, match="y: found 'neither'"):
        cancer.log_density(x[:1], ["neither"])
    small = clone(cancer).set_params(num_inducing=5, steps=30)
    heavy = small.fit(x, words, np.where(words == "benign", 20.0, 1.0)).predict_proba(x)[:, 0].mean()
    light = small.fit(x, words).predict_proba(x)[:, 0].mean()
    assert heavy > light


@pytest.mark.slow
def test_batches_are_learnt_one_after_another() -> None:
    """With hyperparameters that are held it is Stream's own posterior; elsewhere the error falls as batches come."""
    x, y = _data()
    rng = np.random.default_rng(5)
    more = rng.uniform(100.0, 200.0, (90, 1))
    answers = 1000.0 + 50.0 * np.sin(more[:, 0] / 15.0) + rng.normal(0.0, 5.0, 90)
    model = SparseGPRegressor(num_inducing=10, random_state=0, steps=20)
    errors = []
    for begin in (0, 30, 60):
        model.partial_fit(more[begin : begin + 30], answers[begin : begin + 30])
        errors.append(np.sqrt(np.mean((model.predict(x) - 1000.0 - 50.0 * np.sin(x[:, 0] / 15.0)) ** 2)))
    assert errors[-1] < errors[0] and errors[-1] < 6.0
    assert model.losses_.shape == (3,) and model.n_iter_ == 3
    stream = Stream(
        jax.random.key(model._seed), sparse_gp_regression(10, num_outputs=1), Collapsed(0.0), steps=20
    )
    for begin in (0, 30, 60):
        rows = model.x_units_.transform(more[begin : begin + 30])
        stream.update(rows, model.y_units_.transform(answers[begin : begin + 30, None]))
    own = model.y_units_.inverse(
        stream.predict(jax.random.key(0), jnp.asarray(model.x_units_.transform(x))).mean
    )
    assert_allclose(model.predict(x), own[:, 0], rtol=1e-8)
    again = pickle.loads(pickle.dumps(model)).partial_fit(x, y)
    assert_array_equal(again.predict(x), model.partial_fit(x, y).predict(x))
    with pytest.raises(AttributeError, match="elbo_"):
        again.elbo_  # noqa: B018
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(np.ones((3, 2)), np.ones(3))
    assert model.fit(x, y).partial_fit(x, y).n_iter_ == 1


@pytest.mark.slow
def test_labels_come_in_batches_that_need_not_have_them_all() -> None:
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    x, y = x[order], y[order]
    model = SparseGPClassifier(
        num_inducing=10, steps=100, learning_rate=0.1, likelihood="softmax", random_state=0
    )
    two = y < 2
    model.partial_fit(x[two], y[two], classes=[0, 1, 2]).partial_fit(x[~two], y[~two])
    assert model.predict_proba(x).shape == (150, 3) and model.score(x, y) > 0.8
    with pytest.raises(ValueError, match="y: found 7"):
        model.partial_fit(x[:2], [1, 7])
