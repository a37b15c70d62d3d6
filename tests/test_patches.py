"""Convolutional GPs: against sums over patches written out, limits, and the images that they are for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from small_images import bars

from ppl_dgp.fit import fit_svi
from ppl_dgp.gp.features import covariance, cross
from ppl_dgp.gp.patches import Convolutional, InducingPatches, Patches
from ppl_dgp.gp.sparse_gp import sparse_gp
from ppl_dgp.guides import Guide
from ppl_dgp.kernels import RBF, Matern32
from ppl_dgp.models import convolutional_gp, sparse_gp_classification
from ppl_dgp.models.convolutional_gp import some_patches
from ppl_dgp.objectives import PowerEP

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
IMAGE, PATCH = (4, 5, 2), (2, 3)
CUT = Patches(IMAGE, PATCH)
X = jnp.asarray(RANDOM.normal(size=(3, 40)))
Z = jnp.asarray(RANDOM.normal(size=(4, 12)))
WEIGHTS = jnp.asarray(RANDOM.uniform(0.5, 1.5, size=9))
BASE = RBF(1.3, 2.0)


def by_hand(images, located=False):
    """The patches of each image, by two loops."""
    found = []
    for image in np.asarray(images).reshape(-1, *IMAGE):
        for i in range(3):
            for j in range(3):
                place = [i / 2.0, j / 2.0] if located else []
                found.append(np.concatenate([image[i : i + 2, j : j + 3].ravel(), place]))
    return jnp.asarray(found).reshape(len(images), 9, -1)


@pytest.mark.parametrize("located", [False, True])
def test_patches_are_those_cut_by_hand(located):
    cut = Patches(IMAGE, PATCH, located)
    np.testing.assert_array_equal(cut.of(X), by_hand(X, located))
    assert (cut.count, cut.size, cut.pixels) == (9, 12 + 2 * located, 40)


@pytest.mark.parametrize("weights", [WEIGHTS, 1.0], ids=["weighted", "alike"])
def test_covariances_are_sums_over_patches(weights):
    kernel = Convolutional(BASE, CUT, weights)
    shares = np.broadcast_to(weights, 9) / 9.0
    images = by_hand(X)
    expected = [[shares @ BASE(a, b) @ shares for b in images] for a in images]
    np.testing.assert_allclose(kernel(X, X), expected, rtol=1e-12)
    np.testing.assert_allclose(kernel.diag(X), np.diagonal(expected), rtol=1e-12)
    features = InducingPatches(Z, CUT)
    np.testing.assert_allclose(cross(kernel, X, features), [shares @ BASE(a, Z) for a in images], rtol=1e-12)
    np.testing.assert_array_equal(covariance(kernel, features), BASE(Z, Z))


def test_an_answer_may_depend_on_the_place():
    """A product of a kernel of pixels and one of places, which the last two columns are."""
    cut = Patches(IMAGE, PATCH, located=True)
    pixels = tuple(range(12))
    base = RBF(1.0, 2.0, active_dims=pixels) * Matern32(1.0, 0.5, active_dims=(12, 13))
    images = by_hand(X, located=True)
    expected = [[base(a, b).mean() for b in images] for a in images]
    np.testing.assert_allclose(Convolutional(base, cut)(X, X), expected, rtol=1e-12)


def test_a_patch_as_large_as_the_image_is_an_inducing_point():
    whole = Patches(IMAGE, IMAGE[:2])
    z = jnp.asarray(RANDOM.normal(size=(2, 40)))
    f = seed(sparse_gp, KEY)("f", Convolutional(BASE, whole), InducingPatches(z, whole), 2, jitter=0.0)
    g = seed(sparse_gp, KEY)("f", BASE, z, 2, jitter=0.0)
    np.testing.assert_allclose(f(X).mean, g(X).mean, rtol=1e-12)
    np.testing.assert_allclose(f(X).variance, g(X).variance, rtol=1e-12)


def test_whitened_equals_unwhitened():
    kernel, features = Convolutional(BASE, CUT, WEIGHTS), InducingPatches(Z, CUT)
    f = seed(sparse_gp, KEY)("f", kernel, features, 1, jitter=0.0)
    weights = np.linalg.solve(covariance(kernel, features), cross(kernel, X, features).T).T
    u = f.at_inducing()[0]
    np.testing.assert_allclose(f(X).mean[:, 0], weights @ u, rtol=1e-10)
    residual = kernel.diag(X) - (weights * cross(kernel, X, features)).sum(1)
    np.testing.assert_allclose(f(X).residual[:, 0], residual, atol=1e-12)


@pytest.mark.slow
def test_gradients_and_32_bits():
    def total(z, weights, lengthscale, x=X):
        kernel = Convolutional(RBF(1.3, lengthscale), CUT, weights)
        f = seed(sparse_gp, KEY)("f", kernel, InducingPatches(z, CUT), 1)
        return f(x).residual.sum() + (f(x).weights ** 3).sum()

    arguments = Z, WEIGHTS, jnp.asarray(2.0)
    slopes = jax.grad(total, (0, 1, 2))(*arguments)
    for place, slope in enumerate(slopes):
        step = jax.random.normal(jax.random.key(place), slope.shape)
        there, back = (
            total(*(a + size * step if n == place else a for n, a in enumerate(arguments)))
            for size in (1e-5, -1e-5)
        )
        np.testing.assert_allclose((slope * step).sum(), (there - back) / 2e-5, rtol=1e-6)
    exact = float(total(*arguments))
    with jax.enable_x64(False):
        *inputs, images = (jnp.asarray(np.asarray(a), jnp.float32) for a in (*arguments, X))
        narrow = total(*inputs, images)
        assert narrow.dtype == jnp.float32
        np.testing.assert_allclose(float(narrow), exact, rtol=1e-3)


@pytest.mark.slow
def test_the_model_of_whole_images_is_that_without_patches():
    inducing, labels = np.asarray(X[:2]), jnp.array([[0], [1], [2]])
    one = convolutional_gp(IMAGE, IMAGE[:2], 3, 2, inducing=inducing, weighted=False)
    other = sparse_gp_classification(3, 2, inducing=inducing)
    losses = []
    for model in (one, other):
        sites = trace(seed(Guide(model), KEY)).get_trace(X, labels)
        params = {name: site["value"] for name, site in sites.items() if site["type"] == "param"}
        params["gp/u_loc"] = params["gp/u_loc"] + 0.3
        losses.append(PowerEP(0.5).loss(KEY, params, model, Guide(model), X, labels))
    np.testing.assert_allclose(*losses, rtol=1e-10)


@pytest.mark.slow
def test_what_is_somewhere_is_learnt_from_few_images():
    """Bars wherever they are, of 60 images; a kernel of whole images knows only where they have been."""
    (x, y), (new, truth) = bars(60, 0), bars(200, 1)
    accuracies = []
    for model in (convolutional_gp((8, 8), (3, 3), 2, 12, weighted=False), sparse_gp_classification(2, 30)):
        fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), x, y, steps=400, learning_rate=0.05)
        accuracies.append(np.mean((fit.predict(KEY, new).mean[:, 0] > 0.5) == truth[:, 0]))
    assert accuracies[0] > 0.95 and accuracies[0] > accuracies[1] + 0.1


def test_it_begins_at_patches_of_the_images():
    cut = Patches((8, 8, 1), (3, 3))
    found = some_patches(cut, jnp.asarray(bars(5, 0)[0]))
    assert found.shape == (5 * 36, 9)
    every = np.asarray(cut.of(jnp.asarray(bars(5, 0)[0]))).reshape(-1, 9)
    assert all((np.abs(every - patch).sum(1) == 0.0).any() for patch in np.asarray(found)[:20])


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: convolutional_gp((4, 4), (5, 2)), ValueError, r"patch: found \(5, 2\)"),
        (lambda: convolutional_gp((4,), (2, 2)), ValueError, r"image: found \(4,\)"),
        (lambda: convolutional_gp(num_classes=1), ValueError, "num_classes: found 1"),
        (lambda: convolutional_gp(inducing=np.ones((3, 4))), ValueError, "inducing: found shape"),
        (lambda: Patches((4, 5, 0), PATCH), ValueError, "image: found"),
        (lambda: Patches(IMAGE, (5, 2)), ValueError, r"patch: found \(5, 2\)"),
        (lambda: CUT.of(X[:, :3]), ValueError, r"images: found shape \(3, 3\)"),
        (lambda: Convolutional(BASE, CUT, WEIGHTS[:2]).diag(X), ValueError, "weights: found shape"),
        (lambda: covariance(BASE, InducingPatches(Z, CUT)), TypeError, "kernel: found RBF"),
        (lambda: covariance(Convolutional(BASE, CUT), InducingPatches(Z[:, :3], CUT)), ValueError, "z: found shape"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(made, error, message):
    with pytest.raises(error, match=message):
        made()
