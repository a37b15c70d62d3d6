"""Training along nested families: each begins at the poorer one's optimum, and ends no lower, or says so."""

import dataclasses

import jax
import numpy as np
import pytest

from ppl_dgp.diagnostics import compare
from ppl_dgp.fit import Fit, fit_svi
from ppl_dgp.fit.path import bounds, compared
from ppl_dgp.guides import Conditional, Diagonal, DoublyStochastic, FullRank, Guide, Markov, MeanField
from ppl_dgp.models import deep_gp, gpssm
from ppl_dgp.objectives import PowerEP

KEY = jax.random.PRNGKey(1)
X = np.linspace(-1.5, 1.5, 20)[:, None]
Y = np.sign(X) + 0.05 * np.random.default_rng(0).normal(size=X.shape)
MODEL = deep_gp((1, 1), 5)
OBJECTIVE = PowerEP(0.0)


def trained(guide, **settings):
    """A short fit."""
    return fit_svi(KEY, MODEL, guide, OBJECTIVE, X, Y, **({"steps": 150, "learning_rate": 0.02} | settings))


@pytest.fixture(scope="module")
def along():
    return trained(Guide(MODEL, hidden=Markov()), path=[MeanField()])


@pytest.mark.slow
def test_each_begins_where_the_poorer_one_has_ended(along, tmp_path):
    poorer = trained(Guide(MODEL, hidden=MeanField()))
    (leg,) = along.path
    assert (
        leg.guide == "Guide(hidden=MeanField())"
        and leg.steps == 150
        and leg.convergence == poorer.convergence
    )
    value = bounds(KEY, poorer, X, Y).mean()
    assert leg.bound == pytest.approx(value, abs=1e-3) and "path      Guide(hidden=MeanField()) " in repr(
        along
    )
    # the first loss is that of the poorer one's optimum, of one draw
    assert along.losses[0, 0] == pytest.approx(-value, abs=6.0 * 100**0.5 * leg.error)
    assert along.guide.hidden == Markov()
    along.save(tmp_path / "fit")
    assert Fit.load(tmp_path / "fit").path == along.path


@pytest.mark.slow
def test_the_last_rule_may_be_named_and_a_path_goes_on_from_its_checkpoints(along, tmp_path):
    guide = Guide(MODEL, hidden=Markov())
    named = trained(guide, path=["mean-field", "markov"], checkpoint=tmp_path / "kept")
    again = trained(
        guide, path=[Guide(MODEL, hidden=MeanField()), Markov()], checkpoint=tmp_path / "kept", resume=True
    )
    for other in (named, again):
        for name, value in along.params.items():
            np.testing.assert_array_equal(other.params[name], value)


def test_one_that_has_ended_below_a_poorer_one_has_not_converged(along):
    worse = dataclasses.replace(
        along, params={**along.params, "likelihood/noise": 4.0 * along.params["likelihood/noise"]}
    )
    known = dataclasses.replace(along.convergence, gap=0.0, error=0.0)
    better, worse = (dataclasses.replace(each, convergence=known) for each in (along, worse))
    of_better, of_worse = bounds(KEY, better, X, Y), bounds(KEY, worse, X, Y)
    assert better.converged and compared(better, of_better, of_worse).converged
    found = compared(worse, of_worse, of_better)
    shortfall = float((of_better - of_worse).mean())
    assert not found.converged and found.convergence.shortfall == pytest.approx(shortfall)
    assert "below a poorer family" in repr(found) and any(
        "path: found a bound" in text for text in found.advice
    )


@pytest.mark.slow
def test_comparisons_walk_the_containments_by_themselves():
    guides = {
        "markov alone": Markov(),
        "mean-field": MeanField(),
        "sampled": DoublyStochastic(),
        "markov": Markov(),
    }
    settings = {"steps": 100, "num_draws": 20, "num_samples": 2, "learning_rate": 0.02}
    key = jax.random.key(0)
    found = compare(key, lambda: MODEL, guides, X, Y, **settings)
    alone = compare(key, lambda: MODEL, guides, X, Y, starts={}, **settings)
    first = lambda table, name: float(table.fits[name, 0.0].losses[0, 0])
    for name in ("markov alone", "mean-field", "sampled"):
        assert first(found, name) == first(alone, name)
    assert first(found, "markov") < first(alone, "markov") - 10.0


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ([Markov(), MeanField()], ValueError, "richer: found hidden=MeanField"),
        ([Conditional()], ValueError, "richer: found hidden=Markov"),
        ([], ValueError, "path: found"),
        ("mean-field", ValueError, "path: found"),
        (["mean field"], ValueError, "path: found 'mean field'"),
        (
            [Guide(MODEL, hidden=MeanField(), inducing=FullRank())],
            ValueError,
            "richer: found inducing=Diagonal",
        ),
    ],
    ids=repr,
)
def test_what_is_no_path_is_refused(path, error, message):
    inducing = Diagonal() if path and isinstance(path[0], Guide) else FullRank()
    with pytest.raises(error, match=message):
        trained(Guide(MODEL, hidden=Markov(), inducing=inducing), path=path)


def test_a_path_is_of_rules():
    with pytest.raises(TypeError, match="guide: found a function"):
        trained(lambda x, y: None, path=[MeanField()])


@pytest.mark.slow
def test_models_without_inputs_have_paths_too():
    model = gpssm(1, num_inducing=3)
    y = np.random.default_rng(1).normal(size=(8, 1))
    objective = PowerEP(0.0, propagation="moments")
    guide = Guide(model, hidden=Markov())
    fit = fit_svi(KEY, model, guide, objective, None, y, path=[MeanField()], steps=2, learning_rate=1e-9)
    (leg,) = fit.path
    # where nothing moves the richer family stands where the poorer one does, and moments have no noise
    assert leg.error == pytest.approx(0.0, abs=1e-3)
    assert -fit.losses[0, 0] == pytest.approx(leg.bound, rel=1e-4)
