"""A mean field of a deep GP is trained in closed form where it can be, and all else as fit_svi trains it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from ppl_dgp import energy, fit_lbfgs, fit_table
from ppl_dgp.diagnostics import compare
from ppl_dgp.fit import table
from ppl_dgp.guides import Conditional, Diagonal, Guide, Markov, MeanField
from ppl_dgp.guides.nesting import nested_start
from ppl_dgp.kernels import Matern32
from ppl_dgp.models import deep_gp, sparse_gp_regression
from ppl_dgp.objectives import BlackBoxAlpha, PowerEP

KEY = jax.random.key(2)
RANDOM = np.random.default_rng(0)
X = np.linspace(-1.0, 1.0, 30)[:, None]
Y = np.sign(X) + 0.1 * RANDOM.normal(size=X.shape)
MODEL = deep_gp((1,), 6)
FIELD = Guide(MODEL, hidden=MeanField())
CLOSED = PowerEP(0.0, propagation="moments")


class DrawnError(Exception):
    """Raised in the place of training by draws, with what it was called with."""


@pytest.fixture
def not_drawn(monkeypatch):
    def called(*about, **given):
        raise DrawnError(about, given)

    monkeypatch.setattr(table, "fit_svi", called)


@pytest.mark.slow
def test_a_mean_field_ends_at_its_optimum():
    """Where another optimiser, on the same bound with a q(u) of its own, finds no more than the fit says is left."""
    fit = fit_table(KEY, MODEL, FIELD, PowerEP(0.0), X, Y)
    assert fit.converged and fit.guide is FIELD and fit.objective == PowerEP(0.0)
    bound = energy(KEY, fit, X, Y, objective=CLOSED)
    assert bound == pytest.approx(-fit.losses[0, -1], abs=0.05)
    on = fit_lbfgs(KEY, MODEL, X, Y, guide=FIELD, objective=CLOSED, start=fit.params, steps=200)
    assert -on.losses[0, -1] - bound < 0.5


def test_one_layer_ends_at_its_optimum(not_drawn):
    """Its bound is the collapsed one, below the evidence of the exact GP and, with Z at all rows, all but there."""
    model = sparse_gp_regression(30, inducing=X, train_inducing=False)
    fit = fit_table(KEY, model, Guide(model), PowerEP(0.0), X, Y)
    assert fit.converged and fit.objective == PowerEP(0.0)
    assert energy(KEY, fit, X, Y) == pytest.approx(-fit.losses[0, -1], abs=1e-6)
    scale = {name: np.asarray(fit.params[f"gp/{name}"]) for name in ("variance", "lengthscale")}
    at = X / scale["lengthscale"]
    covariance = scale["variance"] * np.exp(-0.5 * np.square(at - at.T)) + fit.params[
        "likelihood/noise"
    ] * np.eye(30)
    evidence = multivariate_normal.logpdf(Y[:, 0], np.zeros(30), covariance)
    assert -fit.losses[0, -1] == pytest.approx(evidence, abs=1e-3)
    exact = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    best = GaussianProcessRegressor(exact, alpha=0.0, n_restarts_optimizer=3, random_state=0).fit(X, Y[:, 0])
    assert evidence == pytest.approx(best.log_marginal_likelihood_value_, abs=0.5)


@pytest.mark.slow
def test_from_a_start_that_is_given():
    """It goes on from there, and is where it was."""
    first = fit_table(KEY, MODEL, FIELD, PowerEP(0.0), X, Y)
    again = fit_table(KEY, MODEL, FIELD, PowerEP(0.0), X, Y, start=first.params)
    assert again.converged and again.steps < 50
    assert -again.losses[0, 0] == pytest.approx(-first.losses[0, -1], abs=0.5)
    # at two layers the richer family is the same
    markov = Guide(MODEL, hidden=Markov())
    same = nested_start(FIELD, markov, first.params, jnp.asarray(X), jnp.asarray(Y))
    richer = fit_table(KEY, MODEL, markov, PowerEP(0.0), X, Y, start=same)
    assert richer.converged
    assert -richer.losses[0, -1] == pytest.approx(-first.losses[0, -1], abs=0.5)


@pytest.mark.parametrize(
    ("guide", "objective", "settings"),
    [
        (Guide(MODEL, hidden=Conditional()), PowerEP(0.0), {}),
        (Guide(MODEL, hidden=MeanField(), inducing=Diagonal()), PowerEP(0.0), {}),
        (FIELD, PowerEP(0.5), {}),
        (FIELD, BlackBoxAlpha(0.0), {}),
        (FIELD, PowerEP(0.0), {"batch_size": 10}),
        (FIELD, PowerEP(0.0), {"steps": 5}),
        (FIELD, PowerEP(0.0), {"learning_rate": 0.01}),
        (Guide(sparse_gp_regression(6)), PowerEP(0.5), {}),
        (Guide(sparse_gp_regression(6, likelihood="student-t")), PowerEP(0.0), {}),
        (Guide(sparse_gp_regression(6, noise=jnp.full(30, 0.1))), PowerEP(0.0), {}),
    ],
    ids=[
        "rule",
        "q(u)",
        "alpha",
        "objective",
        "minibatches",
        "steps",
        "rate",
        "one layer at α",
        "its likelihood",
        "its noises",
    ],
)
def test_all_else_is_trained_by_draws(guide, objective, settings, not_drawn):
    about = KEY, guide.model, guide, objective, X, Y
    with pytest.raises(DrawnError) as drawn:
        fit_table(*about, budget=500, **settings)
    assert drawn.value.args == (about, {"steps": "auto", "budget": 500} | settings)


@pytest.mark.slow
def test_a_kernel_without_closed_expectations(not_drawn):
    """It goes the same way; what is wrong with the data is said at once."""
    model = deep_gp((3,), 6, kernel=Matern32)
    about = KEY, model, Guide(model, hidden=MeanField()), PowerEP(0.0), X
    with pytest.raises(DrawnError):
        fit_table(*about, Y)
    with pytest.raises(ValueError, match="^y: found"):
        fit_table(*about, Y * np.nan)


@pytest.mark.slow
def test_comparisons_train_so():
    found = compare(KEY, lambda: MODEL, {"mean-field": "mean-field"}, X, Y, X, Y, num_draws=4, num_samples=4)
    assert found.table.converged.all()
    assert found.fits["mean-field", 0.0].losses.shape[1] < 3001
