"""Quantiles of predictions: of mixtures of Gaussians as SciPy finds their roots, of counts counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import initial
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq
from scipy.stats import norm

from ppl_dgp.fit.posterior import Posterior
from ppl_dgp.guides import Guide
from ppl_dgp.models import sparse_gp_regression
from ppl_dgp.prediction.predict import predict
from ppl_dgp.prediction.quantiles import drawn_quantiles, mixture_quantiles

LEVELS = (0.001, 0.025, 0.5, 0.975)


def test_quantiles_of_a_mixture_are_the_roots_of_its_distribution_function() -> None:
    random = np.random.default_rng(0)
    mean = random.normal(size=(7, 3, 2)) * np.array([[0.1], [1.0], [30.0]])  # the last with gaps between
    variance = random.gamma(2.0, size=(7, 3, 2))
    found = np.asarray(mixture_quantiles(jnp.asarray(mean), jnp.asarray(variance), LEVELS))
    for k, level in enumerate(LEVELS):
        for row in np.ndindex(3, 2):
            of_row = mean[:, *row], np.sqrt(variance[:, *row])
            root = brentq(lambda q: norm.cdf(q, *of_row).mean() - level, -200.0, 200.0, xtol=1e-13)  # noqa: B023
            assert found[k][row] == pytest.approx(root, rel=1e-9, abs=1e-9)


def test_quantiles_of_draws_are_draws() -> None:
    draws = np.random.default_rng(1).poisson(4.0, (200, 50))
    found = drawn_quantiles(jnp.asarray(draws), LEVELS)
    assert_array_equal(found, np.quantile(draws, LEVELS, axis=0, method="inverted_cdf"))


@pytest.mark.parametrize("likelihood", [None, "poisson"])
def test_predictions_have_them(likelihood: str | None) -> None:
    x = jnp.linspace(-1.0, 1.0, 6)[:, None]
    model = sparse_gp_regression(3, likelihood=likelihood)
    guide = Guide(model)
    fit = Posterior(model, guide, initial(jax.random.key(0), model, guide, x, jnp.round(x + 2.0)))
    found = predict(jax.random.key(1), fit, x, levels=LEVELS, num_samples=40)
    if likelihood is None:
        expected = [norm.ppf(level, found.mean, np.sqrt(found.variance)) for level in LEVELS]
        assert_allclose(found.quantiles, expected, rtol=1e-5, atol=1e-6)
    else:
        assert_array_equal(found.quantiles, np.round(found.quantiles))
