"""What a descent knows of losses that are rough, and of a line search that finds nothing lower."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from scipy.optimize import minimize

from ppl_dgp.fit import fit_lbfgs


def bowl(rough: float):  # type: ignore[no-untyped-def]
    """A model of one parameter whose evidence is a parabola, and differs by so much between neighbouring numbers."""

    def model(x, y=None):  # type: ignore[no-untyped-def]
        a = numpyro.param("a", jnp.full(3, 2.0))
        noise = rough * jnp.sin(1e15 * jax.lax.stop_gradient(a)).sum()
        numpyro.factor("f", -0.5 * jnp.square(a - 1.0).sum() + noise)

    return model


@pytest.mark.parametrize(("rough", "said"), [(0.0, True), (1.0, False)])
def test_a_loss_that_differs_by_rounding_has_not_converged_by_less(rough: float, said: bool) -> None:
    x = np.zeros((5, 1))
    fit = fit_lbfgs(jax.random.key(0), bowl(rough), x, x)
    assert fit.converged is said
    assert (fit.gap > 0.3) is not said


def test_a_descent_whose_line_search_fails_goes_on_without_its_memory() -> None:
    # steep on one side and flat on the other: the first directions are of lengths that are nothing like the way
    def value(a):  # type: ignore[no-untyped-def]
        return jnp.exp(40.0 * (a[0] + a[1])) + jnp.exp(-0.1 * a[0]) + 1e-3 * a[1] ** 2

    def model(x, y=None):  # type: ignore[no-untyped-def]
        numpyro.factor("f", -value(numpyro.param("a", jnp.array([3.0, 2.7]))))

    x = np.zeros((5, 1))
    fit = fit_lbfgs(jax.random.key(0), model, x, x, steps=400)
    found = minimize(
        lambda a: float(value(a)), fit.params["a"] + 0.1, method="Nelder-Mead", options={"fatol": 1e-14}
    )
    np.testing.assert_allclose(fit.losses[0, -1], found.fun, rtol=1e-8)
