"""NUTS and SGHMC as rows of a comparison: where they start, what they hold, and that they agree with the best guide."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_dgp import RBF, Guide, compare, fit_nuts, fit_sghmc, sparse_gp_regression

KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 1.0, 60)[:, None]
Y = jnp.sin(3.0 * X) + 0.4 * jax.random.normal(KEY, X.shape)


def _left_out_by_fitc(params) -> float:
    """Each row given all others, f_n independent given u: of the Gaussian N(y; 0, Q + diag(K − Q) + σ²)."""
    kernel = RBF(params["gp/variance"], params["gp/lengthscale"])
    z = params["gp/inducing"]
    q = kernel(X, z) @ jnp.linalg.solve(kernel(z, z), kernel(z, X))
    covariance = q + jnp.diag(kernel.diag(X) - jnp.diag(q) + params["likelihood/noise"])
    precision = jnp.linalg.inv(covariance)
    variance = 1.0 / jnp.diag(precision)
    error = variance * (precision @ Y[:, 0])
    return float(-0.5 * (jnp.log(2.0 * jnp.pi * variance) + jnp.square(error) / variance).sum())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_dgp.fit.SamplingWarning")
def test_samplers_are_rows_that_start_at_the_best_guide_before_them():
    said = []
    guides = {
        "full-rank": Guide,
        "NUTS": partial(fit_nuts, num_warmup=200, num_samples=250),
        "SGHMC": partial(fit_sghmc, num_warmup=1000, num_samples=50, thinning=10),
    }
    found = compare(
        KEY,
        lambda: sparse_gp_regression(6),
        guides,
        X,
        Y,
        X,
        Y,
        [0.0, 1.0],
        steps=4000,
        num_draws=1000,
        say=said.append,
    )
    assert said[2:] == ["3 of 5: NUTS", "4 of 5: SGHMC, α = 0", "5 of 5: SGHMC, α = 1"]
    table = found.table.set_index(["fit", "alpha"])
    (nuts,) = (fit for (name, _), fit in found.fits.items() if name == "NUTS")
    # hyperparameters are held at those of α = 1, whose energy is the evidence of t_1
    best = found.fits["full-rank", 1.0]
    for name in ("gp/lengthscale", "likelihood/noise", "gp/inducing"):
        np.testing.assert_array_equal(nuts.params[name], best.params[name])
    assert nuts.chains.stats["diverging"].shape == (4, 250)
    # Gaussian noise: at α = 1 q(u) becomes the posterior that NUTS draws from
    near = table.loc[("full-rank", 1.0)]
    (row,) = (table.loc[key] for key in table.index if key[0] == "NUTS")
    assert row["test_log_density"] == pytest.approx(near["test_log_density"], abs=0.05)
    # four standard errors of some 500 effective draws, by simulation of the closed form
    assert row["loo"] == pytest.approx(_left_out_by_fitc(nuts.params), abs=0.6)
    assert np.isnan(row["elbo"]) and np.isnan(row["khat"])
    assert not np.isnan(table.loc[("SGHMC", 1.0), "loo"])


def test_starts_are_of_guides():
    guides = {"full-rank": Guide, "NUTS": fit_nuts}
    with pytest.raises(TypeError, match="starts: found the sampler 'NUTS', expected guides"):
        compare(KEY, lambda: sparse_gp_regression(6), guides, X, Y, starts={"NUTS": "full-rank"})
