"""Weights of rows: a whole number is a row that stands so often in the table, 0 one that does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from ppl_dgp import Fit
from ppl_dgp.fit import Posterior, energy, fit_svi, fit_table
from ppl_dgp.guides import Guide, MeanField
from ppl_dgp.kernels import RBF
from ppl_dgp.models import deep_gp, gpssm, sparse_gp_classification, sparse_gp_regression
from ppl_dgp.objectives import (
    ApproximatePowerEP,
    BlackBoxAlpha,
    Collapsed,
    PowerEP,
    closed_form,
)

KEY = jax.random.key(0)
rng = np.random.default_rng(0)
ROWS = 12
X = rng.normal(size=(ROWS, 2))
Y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(ROWS, 1))
TIMES = np.array([0, 1, 2, 3, 1, 0, 1, 4, 1, 1, 2, 1])


def repeated(values: np.ndarray) -> np.ndarray:
    return np.repeat(values, TIMES, axis=0)


def started(model, guide, y=Y, x=X) -> Posterior:
    """Parameters where training begins, one step from there."""
    return fit_svi(KEY, model, guide, PowerEP(0.0), x, y, steps=3, learning_rate=0.1)


@pytest.fixture(scope="module")
def sparse() -> Posterior:
    model = sparse_gp_regression(4)
    return started(model, Guide(model))


@pytest.mark.parametrize(
    "objective",
    [PowerEP(0.0), PowerEP(0.5), BlackBoxAlpha(0.5), Collapsed(), Collapsed(0.5), Collapsed.fitc()],
    ids=repr,
)
def test_a_weight_is_a_number_of_equal_rows(sparse: Posterior, objective) -> None:
    found = energy(KEY, sparse, X, Y, objective=objective.weighted(TIMES))
    assert found == pytest.approx(
        energy(KEY, sparse, repeated(X), repeated(Y), objective=objective), rel=1e-9
    )
    assert found != pytest.approx(energy(KEY, sparse, X, Y, objective=objective), rel=1e-2)
    assert energy(KEY, sparse, X, Y, objective=objective.weighted(np.ones(ROWS))) == pytest.approx(
        energy(KEY, sparse, X, Y, objective=objective), rel=1e-9
    )


@pytest.mark.slow
def test_labels_and_hidden_layers_of_a_row_count_as_often() -> None:
    labels = (Y > 0).astype(int)
    model = sparse_gp_classification(2, 4)
    fit = started(model, Guide(model), labels)
    for alpha in (0.0, 0.5):
        found = energy(KEY, fit, X, labels, objective=PowerEP(alpha, weights=TIMES))
        same = energy(KEY, fit, repeated(X), repeated(labels), objective=PowerEP(alpha))
        assert found == pytest.approx(same, rel=1e-9)
    model = deep_gp((1,), 4)
    fit = started(model, Guide(model, hidden=MeanField()))
    # of the copies of a row each has a q of its own, here the same
    of_rows = {name for name, value in fit.params.items() if value.shape[:1] == (ROWS,)}
    assert of_rows
    params = {
        name: jnp.asarray(repeated(value)) if name in of_rows else value for name, value in fit.params.items()
    }
    copies = Posterior(fit.model, fit.guide, params)
    moments = PowerEP(0.0, propagation="moments")
    found = energy(KEY, fit, X, Y, objective=moments.weighted(TIMES))
    assert found == pytest.approx(energy(KEY, copies, repeated(X), repeated(Y), objective=moments), rel=1e-9)


def test_a_weight_divides_the_variance_of_gaussian_noise(sparse: Posterior) -> None:
    """w log N(y; f, s²) = log N(y; f, s²/w) − ½ (w − 1) log 2πs² − ½ log w."""
    weights = rng.uniform(0.2, 3.0, ROWS)
    p = sparse.params
    found = energy(KEY, sparse, X, Y, objective=Collapsed(weights=weights))
    kernel = RBF(p["gp/variance"], p["gp/lengthscale"])
    noise = float(np.ravel(p["likelihood/noise"])[0])
    about = kernel, p["gp/inducing"], jnp.asarray(noise / weights)[:, None], jnp.asarray(X), jnp.asarray(Y)
    other = float(closed_form.collapsed_energy(*about, 0.0))
    other -= (0.5 * (weights - 1.0) * np.log(2.0 * np.pi * noise) + 0.5 * np.log(weights)).sum()
    assert found == pytest.approx(other, rel=1e-6)


@pytest.mark.slow
def test_minibatches_add_up(sparse: Posterior) -> None:
    objective = PowerEP(0.0, weights=TIMES)
    loss = lambda **which: float(
        objective.loss(KEY, dict(sparse.params), sparse.model, sparse.guide, *which.pop("rows"), **which)
    )
    parts = [np.arange(begin, begin + 4) for begin in (0, 4, 8)]
    each = [loss(rows=(jnp.asarray(X[p]), jnp.asarray(Y[p])), index=jnp.asarray(p), size=ROWS) for p in parts]
    assert np.mean(each) == pytest.approx(loss(rows=(jnp.asarray(X), jnp.asarray(Y))), rel=1e-9)


@pytest.mark.slow
def test_a_table_is_trained_with_weights_and_saved(tmp_path) -> None:
    model = sparse_gp_regression(4, inducing=X[[1, 2, 3, 4]], train_inducing=False)
    settings = {"tolerance": 1e-4}
    fit = fit_table(KEY, model, Guide(model), PowerEP(0.0, weights=TIMES), X, Y, **settings)
    same = fit_table(KEY, model, Guide(model), PowerEP(0.0), repeated(X), repeated(Y), **settings)
    assert fit.converged and fit.losses[0, -1] == pytest.approx(same.losses[0, -1], abs=1e-3)
    assert_allclose(fit.params["gp/lengthscale"], same.params["gp/lengthscale"], rtol=1e-2)
    fit.save(tmp_path / "fit")
    again = Fit.load(tmp_path / "fit")
    assert again.objective == fit.objective != PowerEP(0.0)
    assert "weights=array of (12,)" in repr(again.objective)


@pytest.mark.parametrize(
    "weights, words",
    [
        (-np.ones(ROWS), "none negative"),
        (np.zeros(ROWS), "one of them positive"),
        (np.full(ROWS, np.nan), "finite"),
        (np.ones((ROWS, 1)), r"shape \(12, 1\)"),
    ],
)
def test_weights_that_are_none_are_refused(weights, words: str) -> None:
    for kind in (PowerEP, Collapsed):
        with pytest.raises(ValueError, match=words):
            kind(weights=weights)
    with pytest.raises(TypeError, match="expected numbers"):
        PowerEP(weights=np.array(["a"]))


def test_objectives_and_models_without_terms_of_rows_refuse_them(sparse: Posterior) -> None:
    with pytest.raises(ValueError, match="ApproximatePowerEP: weights: found some"):
        ApproximatePowerEP(weights=TIMES)
    with pytest.raises(ValueError, match="weights: found some beside blocks"):
        Collapsed(1.0, "all", weights=TIMES)
    for objective in (PowerEP(0.0, weights=TIMES[:5]), Collapsed(weights=TIMES[:5])):
        with pytest.raises(ValueError, match="weights: found 5, expected"):
            energy(KEY, sparse, X, Y, objective=objective)
    model = gpssm(1, 1, 3)
    series = started(model, Guide(model, hidden=MeanField()), x=None)
    with pytest.raises(ValueError, match="weights: found the trajectory 'x' at a positive alpha"):
        energy(KEY, series, None, Y, objective=PowerEP(0.5, weights=TIMES))
    layers = deep_gp((1,), 4)
    hidden = started(layers, Guide(layers, hidden=MeanField()))
    with pytest.raises(ValueError, match="Collapsed: weights: found some with the hidden layers"):
        energy(KEY, hidden, X, Y, objective=Collapsed(weights=TIMES))
