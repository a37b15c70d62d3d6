"""Fits of the zoo's models: files that hold their model, and a fit by NUTS in the places of one by a guide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_dgp import Fit, Guide, Markov, PowerEP, deep_gp, fit_nuts, fit_svi, sparse_gp_regression
from ppl_dgp.likelihoods import StudentT

KEY = jax.random.PRNGKey(0)
X = jnp.linspace(-1.5, 1.5, 10)[:, None]
Y = jnp.sin(2 * X)


def assert_same_predictions(one, other):
    for name in ("mean", "variance"):
        ours, theirs = (getattr(fit.predict(KEY, X, num_samples=5), name) for fit in (one, other))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "model, guide",
    [
        (sparse_gp_regression(4, kernel="rbf + linear", likelihood=StudentT(5.0, 0.2)), {}),
        pytest.param(
            deep_gp((2,), inducing=[np.linspace(-1, 1, 4)[:, None], np.ones((3, 2))]),
            {"hidden": Markov(full=True)},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sparse", "deep"],
)
def test_a_file_holds_its_model(model, guide, tmp_path):
    """Nothing is passed in: model, guide and objective are made from their settings, equal to those saved."""
    fit = fit_svi(KEY, model, Guide(model, **guide), PowerEP(0.5), X, Y, steps=1)
    fit.save(tmp_path / "fit.safetensors")
    loaded = Fit.load(tmp_path / "fit.safetensors")
    assert loaded.model == fit.model and loaded.guide == fit.guide
    assert repr(loaded.objective) == repr(fit.objective)
    assert_same_predictions(fit, loaded)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_dgp.fit.SamplingWarning")
def test_a_fit_by_nuts_is_saved_and_compared(tmp_path):
    model = sparse_gp_regression(3, noise=0.05)
    fit = fit_svi(KEY, model, Guide(model), PowerEP(0.0), X, Y, steps=50, learning_rate=0.05)
    drawn = fit_nuts(KEY, model, X, Y, start=fit, num_warmup=100, num_samples=100, num_chains=2)
    drawn.save(tmp_path / "nuts.safetensors")
    loaded = Fit.load(tmp_path / "nuts.safetensors")
    assert_same_predictions(drawn, loaded)
    assert loaded.chains is not None and loaded.chains.r_hat == drawn.chains.r_hat
    table = fit.compare(KEY, X, Y, {"NUTS": drawn}, X, Y, num_draws=50).table
    assert list(table["fit"]) == ["this fit", "NUTS"]
    assert np.isfinite(table["test_log_density"]).all() and np.isfinite(table["loo"]).all()
