"""Estimators of images: what they compute, their pixels and sizes, and scikit-learn's contract."""

import doctest
import pickle

import jax
import jaxtyping
import numpy as np
import pytest
from contract import keeps_all, keeps_fast_part
from fast import seldom
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from small_images import bars

from ppl_dgp.data import DataError, Standardiser
from ppl_dgp.estimators import ConvolutionalGPClassifier, DeepConvolutionalGPClassifier, images
from ppl_dgp.estimators.images import rows_at_once, square_image, usual_patch
from ppl_dgp.fit import fit_table
from ppl_dgp.gp.patches import Patches
from ppl_dgp.guides import Guide
from ppl_dgp.models import convolutional_gp, deep_convolutional_gp
from ppl_dgp.objectives import PowerEP
from ppl_dgp.prediction.predict import predict

TINY = {
    "one layer": ConvolutionalGPClassifier(num_inducing=10, steps=100, learning_rate=0.1),
    "two layers": DeepConvolutionalGPClassifier(
        channels=(1,), num_inducing=10, steps=100, learning_rate=0.1, num_samples=20
    ),
}


def _framed(count: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Bars of 0 to 255 within a rim that never changes, and words."""
    pixels, codes = bars(count, key)
    inside = 100.0 + 100.0 * pixels.reshape(count, 8, 8)
    rows = np.pad(inside, ((0, 0), (1, 1), (1, 1))).reshape(count, -1)
    return rows, np.array(["upright", "flat"])[codes[:, 0]]


def _seed(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


@pytest.mark.parametrize("kind", ["one layer", pytest.param("two layers", marks=pytest.mark.slow)])
def test_it_is_the_fit_of_the_api(kind: str) -> None:
    x, y = _framed(30, 0)
    settings = dict(patch=(3, 3), num_inducing=4, steps=5, random_state=3)
    if kind == "one layer":
        found = ConvolutionalGPClassifier(stride=2, located=True, **settings).fit(x, y)
        model = convolutional_gp((10, 10), (3, 3), 2, 4, stride=2, located=True)
    else:
        found = DeepConvolutionalGPClassifier(channels=(2,), strides=(2, 1), **settings).fit(x, y)
        model = deep_convolutional_gp((10, 10), (2,), (3, 3), (2, 1), 2, 4)
    standard = (x - x.mean()) / x.std()
    codes = (y == "upright").astype(int)[:, None]
    fitted = fit_table(jax.random.key(_seed(3)), model, Guide(model), PowerEP(0.0), standard, codes, steps=5)
    key = jax.random.key(_seed(3) + 1)
    expected = predict(key, fitted, standard[:6], num_samples=100, row_by_row=True).mean[:, 0]
    probabilities = found.predict_proba(x[:6])
    assert_allclose(probabilities[:, 1], expected, rtol=1e-6)
    assert_allclose(probabilities.sum(1), 1.0)
    assert list(found.classes_) == ["flat", "upright"]
    assert_array_equal(pickle.loads(pickle.dumps(found)).predict_proba(x[:6]), probabilities)
    with pytest.raises(ValueError, match="features"):
        found.predict(x[:, :99])


@pytest.mark.slow
def test_bars_are_told_apart_wherever_they_are() -> None:
    x, y = _framed(150, 0)
    model = ConvolutionalGPClassifier(patch=(3, 3), num_inducing=10, steps=600, learning_rate=0.05)
    assert model.fit(x, y).score(*_framed(100, 1)) > 0.9


@pytest.mark.parametrize(
    "pixels, image", [(64, (8, 8)), (784, (28, 28)), (1, (1, 1)), (2, None), (785, None), (783, None)]
)
def test_square_images(pixels: int, image: tuple[int, int] | None) -> None:
    assert square_image(pixels) == image


@pytest.mark.parametrize(
    "image, strides, patch",
    [
        ((28, 28), (1,), (5, 5)),
        ((28, 28, 3), (2, 1), (5, 5)),
        ((4, 9), (1,), (4, 5)),
        # a hidden layer leaves 8 − 4 + 1 = 5 ≥ 4 of 8, of a stride of 2 with patches of 3 again 3
        ((8, 8), (1, 1), (4, 4)),
        ((8, 8), (2, 1), (3, 3)),
        ((1, 7), (1, 1, 1), (1, 3)),
        ((1, 1), (1, 1), (1, 1)),
    ],
)
def test_patches_that_fit(image: tuple[int, ...], strides: tuple[int, ...], patch: tuple[int, int]) -> None:
    assert usual_patch(image, strides) == patch
    if len(strides) > 1:
        deep_convolutional_gp(image, (1,) * (len(strides) - 1), patch, strides)


def test_predictions_of_deep_layers_hold_what_fits() -> None:
    small, large = (Patches(size, (5, 5)) for size in ((8, 8, 1), (28, 28, 1)))
    assert rows_at_once((small, Patches((4, 4, 4), (4, 4))), (4,), 10, 20) == 1000
    wide = rows_at_once((large, Patches((24, 24, 4), (5, 5))), (4,), 100, 200)
    assert 20 < wide < 100
    # of two hidden layers each draw has kernel values of its own
    assert rows_at_once((large, large, large), (4, 4), 100, 200) < wide / 5


def test_pixels_are_standardised_alike() -> None:
    x = np.array([[0.0, 10.0, 5.0], [0.0, 30.0, 5.0]])
    found = Standardiser.fit_alike(x)
    assert_allclose(found.mean, np.full(3, x.mean()))
    assert_allclose(found.scale, np.full(3, x.std()))
    assert_allclose(Standardiser.fit_alike(np.ones((4, 2))).scale, 1.0)
    with pytest.raises(DataError, match="array"):
        Standardiser.fit_alike(np.empty((0, 3)))


@pytest.mark.parametrize(
    "kind, settings, words",
    [
        ("one layer", {"image": (5, 5)}, "image: found .*25 numbers, expected 64"),
        ("one layer", {"image": (8,)}, "image"),
        ("one layer", {"patch": (9, 9)}, "patch"),
        ("one layer", {"stride": 0}, "stride"),
        ("one layer", {"located": 3}, "located"),
        ("one layer", {"likelihood": "bernoulli"}, "for 3 classes"),
        ("two layers", {"channels": (0,)}, "channels"),
        ("two layers", {"strides": (1,)}, "strides"),
        ("two layers", {"patch": (5, 5)}, "patch"),
    ],
)
def test_bad_sizes_name_themselves(
    kind: str, settings: dict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # only fit may complain
    x, y = load_digits(n_class=3, return_X_y=True)
    with pytest.raises(ValueError, match=words):
        clone(TINY[kind]).set_params(**settings).fit(x[:30], y[:30])


@pytest.mark.slow
def test_examples() -> None:
    assert doctest.testmod(images) == (0, 8)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in TINY])
def test_fast_part_of_the_contract(kind: str) -> None:
    keeps_fast_part(TINY[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", seldom(TINY, 1))
def test_whole_contract(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_all(TINY[kind], monkeypatch)
