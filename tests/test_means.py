"""Mean functions against their formulas, and the maps between layers against principal axes."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA

from ppl_dgp.gp.means import Constant, Linear, Mean, Zero, layer_map

H = np.random.default_rng(0).normal(size=(20, 3)) @ np.diag([3.0, 1.0, 0.3])
H = H - H.mean(axis=0)
WEIGHTS = np.random.default_rng(1).normal(size=(3, 2))


def test_zero_and_constant() -> None:
    h = jnp.asarray(H, "float32")
    assert Zero()(h).shape == (20, 1) and Zero()(h).dtype == h.dtype
    assert_array_equal(Zero(4)(h), np.zeros((20, 4)))
    assert Constant(2.0)(h).shape == (20, 1) and Constant(2.0)(h).dtype == h.dtype
    assert_array_equal(Constant(jnp.array([1.0, 2.0]))(h), np.tile([1.0, 2.0], (20, 1)))


@pytest.mark.parametrize("bias", [0.0, 0.5, np.array([0.5, -1.0])])
def test_linear_is_the_affine_map(bias: float | np.ndarray) -> None:
    mean = Linear(jnp.asarray(WEIGHTS), bias if isinstance(bias, float) else jnp.asarray(bias))
    assert_allclose(mean(jnp.asarray(H)), H @ WEIGHTS + bias, rtol=1e-12, atol=1e-14)


def test_means_are_pytrees() -> None:
    h, linear = jnp.asarray(H), Linear(jnp.asarray(WEIGHTS), jnp.ones(2))
    means: tuple[Mean, ...] = (Zero(2), Constant(jnp.ones(2)), linear)
    for mean in means:
        assert_allclose(jax.jit(lambda m: m(h))(mean), mean(h), rtol=1e-12)
    batch = Linear(jnp.stack([WEIGHTS, 2 * WEIGHTS]), jnp.zeros((2, 2)))
    assert_allclose(jax.vmap(lambda m: m(h))(batch)[1], 2 * H @ WEIGHTS, rtol=1e-12)
    grads = jax.grad(lambda m: jnp.sum(m(h)))(linear)
    assert_allclose(grads.weights, np.tile(H.sum(axis=0)[:, None], (1, 2)), atol=1e-12)
    assert_allclose(grads.bias, [20.0, 20.0])


@pytest.mark.parametrize("width", [3, 4, 7])
def test_a_layer_as_wide_as_its_input_or_wider_keeps_the_input(width: int) -> None:
    weights = layer_map(jnp.asarray(H), width)
    assert weights.shape == (3, width)
    assert_array_equal(weights, np.eye(3, width))


@pytest.mark.parametrize("width", [1, 2])
def test_a_narrower_layer_keeps_the_principal_axes(width: int) -> None:
    weights = np.asarray(layer_map(jnp.asarray(H), width))
    axes = PCA(width).fit(H).components_.T
    assert_allclose(np.abs(np.sum(weights * axes, axis=0)), 1.0, rtol=1e-10)
    assert_allclose(weights.T @ weights, np.eye(width), atol=1e-12)
    assert (weights[np.abs(weights).argmax(axis=0), np.arange(width)] > 0).all()
    # no other orthonormal map of this width keeps more of x: H is centred, so variance counts
    assert_allclose(np.var(H @ weights, axis=0), PCA(width).fit(H).explained_variance_ * 19 / 20, rtol=1e-10)


def test_fewer_rows_than_outputs_still_give_orthonormal_columns() -> None:
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 6)))
    weights = layer_map(x, 4)
    assert weights.shape == (6, 4)
    assert_allclose(weights.T @ weights, np.eye(4), atol=1e-12)
    # the rows of x lie in the span of the first two columns
    assert_allclose(x @ weights @ weights.T, x, atol=1e-12)


def test_maps_keep_the_dtype() -> None:
    h = jnp.asarray(H, "float32")
    assert [layer_map(h, width).dtype for width in (1, 3, 5)] == [h.dtype] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h: Zero(0), "num_outputs: found 0"),
        (lambda h: Zero()(h[0]), "h: found shape"),
        (lambda h: Constant(jnp.ones((2, 2)))(h), "value: found shape"),
        (lambda h: Linear(jnp.ones(3))(h), "weights: found shape"),
        (lambda h: Linear(jnp.ones((2, 2)))(h), "h: found 3 columns"),
        (lambda h: Linear(jnp.ones((3, 2)), jnp.ones(3))(h), "bias: found shape"),
        (lambda h: layer_map(h, 0), "width: found 0"),
        (lambda h: layer_map(h, -2), "width: found -2"),
        (lambda h: layer_map(h[0], 1), "x: found shape"),
    ],
)
def test_bad_input_is_named(call, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        call(jnp.asarray(H))
