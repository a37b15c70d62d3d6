"""Parts computed in 64 bits within 32: values, gradients, and JAX's transformations of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_dgp.numerics.double_precision import in_double

X = jnp.linspace(0.0, 1.0, 8)


def left(x, unit):
    """What is left of 1 where nearly 1 is taken away: in 32 bits nothing of it."""
    total = jax.lax.scan(lambda sum, each: (sum + each**2, None), jnp.zeros((), x.dtype), x)[0]
    return {"left": 1.0 - jnp.exp(-1e-9 * unit * total), "count": len(x)}


def single(x=X):
    return x.astype(jnp.float32)


@pytest.fixture
def narrow():
    with jax.enable_x64(False):
        yield


def test_values_and_gradients_are_those_of_64_bits(narrow):
    found = jax.jit(lambda x: in_double(left, x, 2)["left"])
    with jax.enable_x64(True):
        doubled = jnp.asarray(np.asarray(single()), float)
        expected, slope = jax.value_and_grad(lambda x: left(x, 2)["left"])(doubled)
    value, gradient = jax.value_and_grad(found)(single())
    assert value.dtype == gradient.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)
    # the same in 32 bits is off by all of it
    assert left(single(), 2)["left"] == 0.0


def test_it_passes_through_vmap_scan_and_remains_a_tree(narrow):
    one = lambda x: in_double(left, x, 2)
    batch = jnp.stack([single(), 2.0 * single()])
    first, second = jax.vmap(jax.grad(lambda x: one(x)["left"]))(batch)
    np.testing.assert_allclose(second, 2.0 * first, rtol=1e-5)

    def step(x, _):
        value, slope = jax.value_and_grad(lambda x: one(x)["left"])(x)
        return x - 1e6 * slope, value

    values = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[1])(single())
    assert (np.diff(values) < 0.0).all()
    assert one(single())["count"] == 8


def test_integers_keys_and_nothing_may_be_among_the_arguments(narrow):
    def chosen(x, index, nothing, name):
        assert nothing is None and name == "x"
        return x[index].sum()

    found = lambda x: in_double(chosen, x, jnp.array([1, 2]), None, "x")
    np.testing.assert_array_equal(jax.jit(jax.grad(found))(single()), [0, 1, 1, 0, 0, 0, 0, 0])


def test_64_bits_are_left_alone():
    assert in_double(left, X, 2)["left"].dtype == jnp.float64
    # forward derivatives too, which a 32-bit part has none of
    assert jax.jvp(lambda x: in_double(left, x, 2)["left"], (X,), (X,))[1] > 0.0
